"""Annotations that are nearly known ones."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proto.annotations import keys
from proto.annotations.spelling import FOR_AUTHORS, LONGEST, MOST_JUDGED, misspelt


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("hami.io/gpu-schedular-policy", keys.GPU_POLICY),
        ("nvidia.com/use-gpu-type", keys.USE_GPU_TYPE),
        ("nvidia.com/nouse-gpuuid", keys.NO_USE_GPU_UUID),
        ("nvidia.com/numabind", keys.NUMA_BIND),
    ],
)
def test_a_misspelt_annotation_has_the_nearest_name(written: str, meant: str) -> None:
    assert list(misspelt([written])) == [(written, meant)]


def test_annotations_of_others_and_known_ones_are_not_misspelt() -> None:
    others = ["nvidia.com/gpu.deploy.driver", "hami.io/anything", "prometheus.io/scrape", keys.DEVICES_ALLOCATED]
    assert list(misspelt([*FOR_AUTHORS, *others])) == []


def test_a_misspelt_domain_is_found_where_all_domains_are_judged() -> None:
    written = "hamii.io/gpu-scheduler-policy"
    assert list(misspelt([written])) == []
    assert list(misspelt([written], domains=("",))) == [(written, keys.GPU_POLICY)]


@given(st.lists(st.text(max_size=2 * LONGEST).map(keys.GPU_POLICY.__add__), max_size=3 * MOST_JUDGED))
def test_the_number_of_comparisons_is_bounded(names: list[str]) -> None:
    assert len(list(misspelt(names))) <= MOST_JUDGED
