import re

from tests.metrics_reference import PAGE, daemon_families, extender_families, page, telemetry_families

OURS = [
    family
    for families in (daemon_families(), telemetry_families(), extender_families())
    for family in families
    if family.name.startswith("topogpu_")
]
OTHER_UNITS = re.compile(r"_(percent|percentage|milliseconds|ms|mib|mb|gib|kib|minutes|hours|milliwatts|mhz)(_|$)")
"""Prometheus' conventions want base units: seconds, bytes, ratios from 0 to 1."""


def test_the_reference_is_what_the_programs_declare() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run `make docs-metrics`"


def test_a_name_that_both_programs_use_has_the_same_labels_in_both() -> None:
    ours = {family.name: family for family in daemon_families()}
    both = [(ours[family.name], family) for family in extender_families() if family.name in ours]
    assert [(one.name, one.labels) for one, _ in both] == [(other.name, other.labels) for _, other in both]
    assert {one.name for one, _ in both} == {"hami_build_info"}


def test_counters_alone_end_in_total() -> None:
    assert [one.name for one in OURS if (one.kind == "counter") != one.name.endswith("_total")] == []


def test_names_have_base_units_and_no_part_twice() -> None:
    for family in OURS:
        parts = family.name.split("_")
        assert (OTHER_UNITS.search(family.name), len(parts) == len(set(parts))) == (None, True), family.name


def test_a_ratio_is_a_share_of_one() -> None:
    ratios = [family for family in OURS if family.name.endswith("_ratio")]
    assert ratios
    assert [family.name for family in ratios if not re.search(r"0 to 1|1 being", family.documentation)] == []


def test_histograms_measure_seconds() -> None:
    assert [one.name for one in OURS if one.kind == "histogram" and not one.name.endswith("_seconds")] == []
