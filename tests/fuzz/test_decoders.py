"""Each decoder keeps its promise for valid inputs and for those that fuzzing found."""

import pytest

from tests.fuzz.targets import TARGETS, corpus, run


@pytest.mark.parametrize("name", TARGETS)
def test_a_decoder_reads_valid_inputs(name: str) -> None:
    seeds = list(TARGETS[name].seeds())
    assert seeds
    for seed in seeds:
        TARGETS[name].read(seed)


@pytest.mark.timeout(20)
@pytest.mark.parametrize("name", TARGETS)
def test_a_decoder_answers_or_raises_its_own_error_for_what_fuzzing_found(name: str) -> None:
    for data in corpus(name):
        run(TARGETS[name], data)


@pytest.mark.parametrize("name", TARGETS)
def test_a_decoder_answers_or_raises_its_own_error_for_each_cut_of_a_valid_input(name: str) -> None:
    for seed in TARGETS[name].seeds():
        for end in range(min(len(seed), 400)):
            run(TARGETS[name], seed[:end])
