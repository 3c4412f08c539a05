from tests.daemonset.monitoring.promql import Asked, asked


def test_metrics_and_labels_are_found_wherever_they_stand() -> None:
    expression = (
        'histogram_quantile(0.99, sum by (le, verb) (rate(a_bucket{verb="filter {x}",node=~"$node"}[5m] offset 1h))) '
        "> ignoring (device_cores) 2 * b and on () max_over_time(c[1d]) > bool 1"
    )
    assert asked(expression) == Asked(
        frozenset({"a_bucket", "b", "c"}), frozenset({"le", "verb", "node", "device_cores"})
    )
