import pytest

from simulation.machines.printed import score_printed, score_token


@pytest.mark.parametrize(("token", "score"), [("X", 0), ("PIX", 50), ("SOC", 10), ("NV18", 1810), ("C2C", None)])
def test_a_printed_token_scores_the_least_it_can_mean(token: str, score: int | None) -> None:
    assert score_token(token) == score


def test_a_printed_pair_is_scored_by_its_worse_cell() -> None:
    assert score_printed((("X", "NV6"), ("SYS", "X"))) == ((0, 10), (10, 0))
