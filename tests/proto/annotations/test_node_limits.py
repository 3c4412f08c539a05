import pytest

from proto.annotations.node_limits import NodeLimits, decode_limits, limits_with


@pytest.mark.parametrize(
    ("written", "read"),
    [
        *((limits.value, limits) for limits in NodeLimits),
        pytest.param(None, NodeLimits.PARTLY_ENFORCED, id="HAMi's plugin says nothing and comes with HAMi-core"),
        pytest.param("", NodeLimits.NONE, id="empty"),
        pytest.param("mps", NodeLimits.NONE, id="a later release's word promises nothing to this one"),
    ],
)
def test_only_words_that_are_known_promise_that_parts_of_a_gpu_are_served(
    written: str | None, read: NodeLimits
) -> None:
    assert decode_limits(written) is read


def test_every_set_of_backends_has_one_word() -> None:
    assert [limits_with(each.backends, allows_unheld=each.allows_unheld) for each in NodeLimits] == list(NodeLimits)
