from scheduler_ext.decide.misfit import Reason
from scheduler_ext.outlook.words import WORDS


def test_every_reason_has_words_for_people() -> None:
    assert set(Reason) - set(WORDS) == {Reason.NOT_LOOKED_AT}, "no decision on one snapshot leaves a node out"
