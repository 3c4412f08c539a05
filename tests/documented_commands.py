"""The commands that README and docs show, and the one list of those that cannot be run by a test."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from textwrap import dedent

RUN = (
    "topogpu-device-plugin",
    "kubectl-topogpu",
    "topogpu-scheduler",
    "topogpu-sim",
    "promtool",
    "eval",
    "python",
    "make",
    "sed",
)
"""First words of the commands that are run, but for those below."""
NOT_RUN = {
    "kubectl": "needs a cluster",
    "helm": "needs a cluster",
    "kind": "needs a container engine",
    "minikube": "needs a container engine",
    "docker": "needs a container engine and a registry",
    "curl": "asks a running program",
    "git": "writes to the repository",
    "topogpu-scheduler serve": "needs an API server; serves until it is stopped",
    "topogpu-scheduler explain": "asks a running extender",
    "pipx": "fetches from the package index",
    "python -m pip": "fetches from the package index",
    "python -m benchmarks": "measures, which takes minutes and a quiet machine",
}
"""By how a command begins, and why. A command at the prompt `#` is for root on a GPU node, and not run either."""
_FENCE = re.compile(r"^( *)```(\w*)[^\n]*\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """`output` is what stands below the command, empty when none is shown."""

    prompt: str
    command: str
    output: tuple[str, ...] = ()

    @property
    def why_not_run(self) -> str:
        """Empty for a command that is run."""
        if self.prompt == "#":
            return "is for root on a GPU node"
        return next(
            (why for start, why in NOT_RUN.items() if re.match(rf"{re.escape(start)}(?![\w-])", self.command)), ""
        )

    @property
    def fails(self) -> bool:
        return any(line.startswith("Error: ") for line in self.output)


def fences(text: str) -> Iterator[tuple[str, str]]:
    """Language and content of every fenced block, also of those inside lists."""
    for _, language, content in _FENCE.findall(text):
        yield language, dedent(content)


def shown_commands(text: str) -> Iterator[Shown]:
    """Every line in a block that begins with a prompt. A backslash at the end of a line carries it on."""
    for language, content in fences(text):
        prompts = "[#$] " if language == "console" else "[$] "
        yield from _commands(content.replace("\\\n", " ").splitlines(), prompts)


def tour(page: str) -> str:
    """The section of docs/simulation.md whose commands go together; empty for other pages."""
    found = re.search(r"^## A tour of .*?(?=^## )", page, re.MULTILINE | re.DOTALL)
    return found[0] if found else ""


def is_shown(wanted: tuple[str, ...], real: str) -> bool:
    """Do the lines shown stand in the real output, in this order? Lines may be left out, best with a line `...`."""
    lines = iter(line.rstrip() for line in real.splitlines())
    return all(line == "..." or line.rstrip() in lines for line in wanted if line.strip())


def _commands(lines: list[str], prompts: str) -> Iterator[Shown]:
    starts = [number for number, line in enumerate(lines) if re.match(prompts, line)]
    for start, end in pairwise([*starts, len(lines)]):
        prompt, _, command = lines[start].partition(" ")
        yield Shown(
            prompt=prompt, command=re.sub(r"\s+#\s.*", "", command).strip(), output=tuple(lines[start + 1 : end])
        )


def typed(command: str, environment: Path) -> str:
    """As it is run here: `make` uses this virtual environment, and but for the demo only says what it would do."""
    if not command.startswith("make "):
        return command
    stamps = " ".join(f"--old-file={environment}/{name}" for name in (".runtime", ".development", ".documents"))
    only_say = "" if command.startswith("make demo") else "--dry-run "
    return command.replace("make ", f"make VENV={environment} {stamps} {only_say}", 1)


def samples() -> Path:
    """The files that commands name: a cluster's state, a pod, settings."""
    return Path(__file__).parent / "data" / "documents"
