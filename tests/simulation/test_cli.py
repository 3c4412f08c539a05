import pytest
from click.testing import CliRunner

from simulation import machines
from simulation.cli import main


@pytest.mark.parametrize(("command", "option"), [("up", "--load"), ("plan", "--fill")])
def test_a_load_and_a_percentage_are_numbers(command: str, option: str) -> None:
    answer = CliRunner().invoke(main, [command, option, "nan"])
    assert (answer.exit_code, answer.output.splitlines()[-1]) == (
        2,
        f"Error: Invalid value for '{option}': nan is not a number",
    )


@pytest.mark.parametrize("command", ["up", "demo"])
def test_an_unknown_machine_is_said_before_anything_starts(command: str) -> None:
    answer = CliRunner().invoke(main, [command, "--machine", "1x-t4-vm", "--machine", "gh200x4"])
    assert answer.exit_code == 1
    assert answer.output.startswith("Error: gh200x4: no such file; did you mean ")


def test_machines_lists_every_description() -> None:
    answer = CliRunner().invoke(main, ["machines"], env={"COLUMNS": "200"})
    assert answer.exit_code == 0
    for name in machines.names():
        assert name in answer.output


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--nodes", "0"], "Error: Invalid value for '--nodes': 0 is not in the range 1<=x<=64."),
        (["--nodes", "65"], "Error: Invalid value for '--nodes': 65 is not in the range 1<=x<=64."),
        (["--pods", "many"], "Error: Invalid value for '--pods': 'many' is not a whole number"),
        (["--api-port", "70000"], "Error: Invalid value for '--api-port': 70000 is not in the range 0<=x<=65535."),
    ],
)
def test_a_bad_number_is_one_sentence(arguments: list[str], said: str) -> None:
    answer = CliRunner().invoke(main, ["demo", *arguments])
    assert answer.exit_code == 2
    assert answer.output.splitlines()[-1] == said
