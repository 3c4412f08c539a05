"""The matrix: which fault happens at which step, and why some do not.

`+` is run by `make test-faults`, `*`, one for each group, by the ordinary tests, too. `i` is `+` for a node that
allocates immediately afterwards. Another letter is the reason why the cell makes no sense.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from proto.annotations.node_allocation import AllocationMode
from tests.faults.faults import BY_NAME, Fault
from tests.faults.steps import Step

TABLE = """
                                 star regi repo filt rese bind answ Allo PreS rest end  unin
API server
API server away 1 s               +    +    +    +    +    *    +    +    +    +    +    +
API server away 60 s              +    +    +    +    +    +    +    +    +    +    +    +
409 to every write                +    +    +    +    +    +    +    +    +    +    +    +
410 to every watch                +    +    +    +    +    +    +    +    +    +    +    a
429 to everything                 +    +    +    +    +    +    +    +    +    +    +    +
watch refused: 429                +    +    +    +    +    +    +    +    +    +    +    a
watch refused: 403                +    +    +    +    +    +    +    +    +    +    +    a
slow: 2 s for each answer         +    +    +    +    +    +    +    +    +    +    +    +
half-open                         +    +    +    +    +    +    +    +    +    +    +    +
kubelet
kubelet's sockets made again      +    +    +    b    b    b    +    +    +    +    +    +
kubelet dead                      i    +    +    b    b    b    *    +    +    +    +    +
pod-resources absent              i    +    +    b    b    b    +    +    +    +    +    c
pod-resources lists nothing       +    +    +    b    b    b    +    +    +    +    +    c
pod-resources names other pods    +    +    +    b    b    b    +    +    +    +    +    c
node
disk full                         i    +    +    +    +    +    +    +    +    +    +    +
CDI folder read-only              i    +    +    b    b    b    +    +    +    +    +    +
NVML hangs                        +    +    +    b    b    b    +    +    +    +    +    d
GPU lost                          +    +    +    +    +    *    +    +    +    +    +    d
clock back 1 h                    +    +    +    +    +    +    +    +    +    +    +    +
clock forward 1 h                 +    +    +    +    +    +    +    +    +    +    +    +
programs
SIGKILL of the daemon             +    +    +    b    b    b    +    +    *    +    +    +
SIGKILL of the extender           +    e    e    +    +    +    +    f    f    f    +    e
SIGSTOP of the daemon 30 s        +    +    +    b    b    b    +    +    +    +    +    +
SIGSTOP of the extender 30 s      +    e    e    +    +    +    +    f    f    f    +    e
"""
REASONS = {
    "a": "`uninstall-node` watches nothing",
    "b": "the node takes no part before the Binding is carried out",
    "c": "`uninstall-node` does not ask kubelet",
    "d": "`uninstall-node` does not open the driver",
    "e": "the extender takes no part",
    "f": "the extender has done its part; its next one is the pod's end",
}
_ALWAYS, _IMMEDIATE = "*", "i"
_RUN = ("+", _ALWAYS, _IMMEDIATE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """`reason` is empty for one that is run."""

    group: str
    fault: Fault
    step: Step
    always: bool
    allocation: AllocationMode
    reason: str


def cells() -> Iterator[Cell]:
    """In the order of the table. Raises KeyError for a fault or a reason that there is not."""
    group = ""
    for line in TABLE.splitlines()[2:]:
        name, marks = line[:33].strip(), line[33:].split()
        if not marks:
            group = name
        for step, mark in zip(Step, marks, strict=bool(marks)):
            reason = "" if mark in _RUN else mark
            assert not reason or REASONS[reason]
            mode = AllocationMode.IMMEDIATE if mark == _IMMEDIATE else AllocationMode.SLOTS
            always, fault = mark == _ALWAYS, BY_NAME[name]
            yield Cell(group=group, fault=fault, step=step, always=always, allocation=mode, reason=reason)
