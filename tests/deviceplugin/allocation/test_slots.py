import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deviceplugin.allocation.slots import Sweep, larger, qualified, slot_file, slot_name, slot_of_file, sweep
from tests.deviceplugin.gpus import A, B, share

IDS = st.frozensets(st.from_regex(r"GPU-[a-z0-9]{1,6}-[0-9]", fullmatch=True), min_size=1, max_size=5)


@given(IDS, IDS)
def test_a_slot_is_the_ids_in_any_order_and_nothing_else(ids: frozenset[str], others: frozenset[str]) -> None:
    assert slot_name(sorted(ids)) == slot_name(sorted(ids, reverse=True))
    assert (slot_name(ids) == slot_name(others)) == (ids == others)


def test_the_name_stays_the_same_over_releases_because_kubelet_remembers_it() -> None:
    assert qualified(slot_name([f"{A}-0", f"{B}-1"])) == "topogpu.io/slot=53477618ea1b4293beaf2cb79c3ded3b"


@given(IDS)
def test_it_is_a_valid_cdi_name_and_names_its_file(ids: frozenset[str]) -> None:
    slot = slot_name(ids)
    assert re.fullmatch("[A-Za-z0-9]([A-Za-z0-9_.:-]*[A-Za-z0-9])?", slot)
    assert slot_file(slot) == f"topogpu.io-slot-{slot}.json"
    assert slot_of_file(slot_file(slot)) == slot


@pytest.mark.parametrize("name", ["nvidia.yaml", "topogpu.io-slot-.json", ".topogpu.io-slot-x.json.new", "x.json"])
def test_other_files_belong_to_no_slot(name: str) -> None:
    assert slot_of_file(name) is None


def test_a_slot_goes_when_nobody_has_held_it_for_the_grace() -> None:
    first = sweep({"a", "b"}, held={"a"}, unheld={}, now=100.0, grace_seconds=180.0)
    assert first == Sweep(frozenset(), {"b": 100.0})
    assert sweep({"a", "b"}, {"a"}, first.unheld, 279.0, 180.0) == Sweep(frozenset(), {"b": 100.0})
    assert sweep({"a", "b"}, {"a"}, first.unheld, 280.0, 180.0) == Sweep(frozenset({"b"}), {"b": 100.0})


def test_a_slot_that_was_held_meanwhile_begins_its_grace_anew() -> None:
    held = sweep({"b"}, held={"b"}, unheld={"b": 100.0}, now=200.0, grace_seconds=180.0)
    assert held == Sweep(frozenset(), {})
    assert sweep({"b"}, set(), held.unheld, 300.0, 180.0) == Sweep(frozenset(), {"b": 300.0})


def test_containers_that_share_a_slot_have_the_larger_limits_gpu_by_gpu() -> None:
    init, app = (share(A, 1000, 50), share(B, 4000, 10)), (share(B, 3000, 20), share(A, 2000, 20))
    assert larger([init, app]) == (share(A, 2000, 50), share(B, 4000, 20))


def test_no_limit_is_the_largest() -> None:
    assert larger([(share(A, 0, 50),), (share(A, 2000, 0),)]) == (share(A, 0, 0),)
