from pathlib import Path

from tests.metrics_reference import daemon_families, extender_families, reference

DOCUMENT = Path(__file__).parent.parent / "docs/metrics-reference.md"


def test_the_reference_is_what_the_programs_declare() -> None:
    assert DOCUMENT.read_text(encoding="utf-8") == reference(), "run `make docs-metrics`"


def test_a_name_that_both_programs_use_has_the_same_labels_in_both() -> None:
    ours = {family.name: family for family in daemon_families()}
    both = [(ours[family.name], family) for family in extender_families() if family.name in ours]
    assert [(one.name, one.labels) for one, _ in both] == [(other.name, other.labels) for _, other in both]
    assert {one.name for one, _ in both} == {"hami_build_info"}
