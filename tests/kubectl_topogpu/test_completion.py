import pytest

from kubectl_topogpu.cli.completion import choices


@pytest.mark.parametrize(
    ("words", "lines"),
    [
        (["fit", "--gpu-policy", ""], ["binpack", "spread", "topology-aware", "mutex", "numa", "fgd", ":4"]),
        (["fit", "--node-policy", "f"], ["fgd", ":4"]),
        (["top", "-o", "j"], ["json", ":4"]),
        (["topo", "--svg", "x"], [":0"]),
        (["top", "--state", ""], [":0"]),
    ],
)
def test_kubectl_is_given_choices_and_a_directive(words: list[str], lines: list[str]) -> None:
    assert choices(words) == lines


def test_commands_and_options_come_with_their_help() -> None:
    assert [line.partition("\t")[0] for line in choices(["t"])] == ["top", "topo", ":4"]
    (svg, directive) = choices(["topo", "--sv"])
    assert svg.startswith("--svg\tAlso draw it as SVG")
    assert directive == ":4"
