"""`docs/reliability.md`, from the matrix and the times of its last runs: `python -m tests.faults.document FOLDER`.

A cell that has not been run since keeps the time that the page has. What follows the first heading of the second level
is written by hand, and stays.
"""

import json
import sys
from collections.abc import Iterator, Mapping
from itertools import groupby
from pathlib import Path

from proto.annotations.node_allocation import AllocationMode
from tests.faults.faults import FAULTS
from tests.faults.matrix import REASONS, Cell, cells
from tests.faults.steps import Step

PAGE = Path(__file__).parents[2] / "docs/reliability.md"
_UNKNOWN = "?"
_BY_HAND = "\n## "
_INTRODUCTION = """\
# Faults

What happens when a part of the cluster fails at a bad moment. `make test-faults` lets every fault happen at every
step of a pod's life, on a cluster with one node and four simulated GPUs. The daemon and the extender are real
processes. API server, kubelet, kube-scheduler and driver are stand-ins. The fault begins when one of them sees the
message of that step. Other pods run beside the pod of the step, and more pods come than fit.

A number is the time in seconds from the end of the fault until the cluster is as it would be without the fault:

- Every pod runs that fits. Each container has the GPUs and limits of its own pod's annotation.
- The extender's ledger, the pods' annotations and kubelet's containers have the same sums.
- The Node's annotations are computed from the machine. Both programs are ready.

No GPU is over its capacity at any moment, also during the fault. After every write to the API server, and before
every call of kubelet, an observer adds up the pods' annotations, and what containers were created with. It uses no code
of the two programs. At last all pods are deleted, and one pod gets the whole of all GPUs. Then nothing is left: no
reservation, no file of a Binding, no slot, no folder of an unknown pod. The programs have no more open files, threads
and tasks than without a fault.

The times were measured on two busy cores. A part of each is the back-off of kube-scheduler and kubelet, which try
again after seconds.
"""
_IMMEDIATE = """\
i: when a daemon starts for the first time on a node, and what slots need is missing for longer than four seconds, it
allocates immediately, until it is started again: [how the mode is chosen](identity.md#what-it-needs-and-how-to-switch).
"""
_STEPS = {
    Step.START: "the program's first request",
    Step.REGISTER: "kubelet takes the plugin's registration",
    Step.REPORT: "the API server takes the Node's first patch",
    Step.FILTER: "kube-scheduler sends `/filter`",
    Step.RESERVE: "it has the answer",
    Step.BIND_SENT: "the API server has the Binding, not yet carried out",
    Step.BIND_ANSWERED: "the Binding is carried out, not yet answered",
    Step.ALLOCATE: "kubelet calls Allocate",
    Step.PRE_START: "kubelet calls PreStartContainer",
    Step.RESTART: "the same, for another start of the container",
    Step.POD_END: "kubelet reports the containers' end",
    Step.UNINSTALL: "the first request of `uninstall-node`",
}


def document(times: Mapping[tuple[str, str], str], page: str) -> str:
    """Returns the page anew. `times` are by fault and step."""
    lines = [_INTRODUCTION, f"| fault | {' | '.join(Step)} |", f"|---|{'---|' * len(Step)}"]
    for name, row in groupby(cells(), lambda cell: cell.fault.name):
        lines.append(f"| {name} | {' | '.join(_shown(cell, times) for cell in row)} |")
    lines += ["", "The steps:", "", *(f"- {step}: {meaning}" for step, meaning in _STEPS.items())]
    lines += ["", _refusing(), "", _IMMEDIATE]
    lines += ["", "Why a cell is not run:", "", *(f"- {mark}: {reason}" for mark, reason in REASONS.items())]
    if any(_shown(cell, times).startswith(_UNKNOWN) for cell in cells()):
        lines += [f"- {_UNKNOWN}: it has not been run to its end yet"]
    _, heading, by_hand = page.partition(_BY_HAND)
    return "\n".join([*lines, ""]) + heading + by_hand


def written_times(page: str) -> dict[tuple[str, str], str]:
    """The times of a page, by fault and step."""
    generated = page.partition(_BY_HAND)[0].splitlines()
    rows = [[word.strip() for word in line.split("|")[1:-1]] for line in generated if line.startswith("| ")]
    return {(fault, step): time for fault, *times in rows[1:] for step, time in zip(Step, times, strict=True)}


def _refusing() -> str:
    names = ", ".join(fault.name for fault in FAULTS if fault.refuses)
    return f"""\
While kubelet knows no plugin, or reaches none, it refuses pods for good, and their controllers create them again. The
test does the same. That happens with these faults and no others: {names}."""


def _shown(cell: Cell, times: Mapping[tuple[str, str], str]) -> str:
    mark = " i" if cell.allocation is AllocationMode.IMMEDIATE else ""
    return cell.reason or times.get((cell.fault.name, cell.step), _UNKNOWN).removesuffix(mark) + mark


def _measured(folder: Path) -> Iterator[tuple[tuple[str, str], str]]:
    for file in folder.glob("*.json"):
        found = json.loads(file.read_text())
        yield (found["fault"], found["step"]), f"{found['seconds']:.1f}"


if __name__ == "__main__":
    before = PAGE.read_text()
    PAGE.write_text(document(written_times(before) | dict(_measured(Path(sys.argv[1]))), before))
