import subprocess
import sys

import click
import pytest
from click.testing import CliRunner

from program.commands import WholeNumber

HEAVY = ("aiohttp", "grpc", "kubernetes", "pynvml", "prometheus_client", "cryptography", "rich")


@pytest.mark.parametrize("words", ["scheduler_ext --help", "scheduler_ext serve --help", "deviceplugin run --help"])
def test_help_loads_no_server_no_driver_and_no_client(words: str) -> None:
    program, *arguments = words.split()
    script = (
        f"import atexit, sys; from {program}.cli import main;"
        f"atexit.register(lambda: print('LOADED', *sorted(sys.modules.keys() & {set(HEAVY)!r})));"
        f"main({arguments!r}, prog_name='p')"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.startswith("Usage: p")
    assert done.stdout.splitlines()[-1] == "LOADED"


@pytest.mark.parametrize(
    ("where", "said"),
    [(">/dev/full", "Error: No space left on device\n"), (">&-", "Error: standard output is closed\n")],
)
def test_output_that_cannot_be_written_is_told_in_one_line(where: str, said: str) -> None:
    program = "from program.commands import Commands; Commands(help='x').main(['--help'])"
    command = ["sh", "-c", f'"$0" -c "$1" {where}', sys.executable, program]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, said)


@pytest.mark.parametrize("words", ["scheduler_ext serve", "deviceplugin run --node-name n"])
def test_a_program_that_starts_does_not_scan_its_modules_again_and_again(words: str) -> None:
    program, *arguments = [*words.split(), "--kubeconfig", "/nowhere"]
    script = (
        f"import atexit, gc; from {program}.cli import main; before = gc.get_stats()[0]['collections'];"
        "atexit.register(lambda: print(gc.get_stats()[0]['collections'] - before));"
        f"main({arguments!r}, prog_name='p')"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
    assert "kubeconfig" in done.stderr
    assert int(done.stdout.splitlines()[-1]) < 40


@pytest.mark.parametrize(
    ("text", "said"),
    [("7", "7"), ("-1", "-1 is not in the range 0<=x<=100."), ("101", "101 is not in the range 0<=x<=100.")]
    + [(text, f"{text!r} is not a whole number") for text in (" 5 ", "1_0", "1e1", "٥", "50%", "+5", "")],
)
def test_a_whole_number_is_digits_alone(text: str, said: str) -> None:
    @click.command()
    @click.option("--cores", type=WholeNumber(0, 100))
    def asked(cores: int) -> None:
        click.echo(cores)

    assert CliRunner().invoke(asked, ["--cores", text]).output.splitlines()[-1].endswith(said)
