"""The matrix: which fault happens at which step, and why some do not.

`+` is run by `make test-faults`, `*` by the ordinary tests, too. A letter is the reason why the cell makes no sense.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from tests.faults.faults import BY_NAME, Fault
from tests.faults.steps import Step

TABLE = """
                                 star regi repo filt rese bind answ Allo PreS rest end  unin
API server
API server away 1 s               *    +    *    +    +    *    *    +    *    +    *    *
API server away 60 s              +    +    +    +    +    +    +    +    +    +    +    +
409 to every write                +    +    *    +    +    *    +    +    +    +    +    +
410 to every watch                +    +    +    +    +    +    *    +    +    +    +    a
429 to everything                 +    +    +    +    +    *    +    +    +    +    +    +
watch refused: 429                +    +    +    +    +    +    +    +    +    +    +    a
watch refused: 403                +    +    +    +    +    +    +    +    +    +    +    a
slow: 2 s for each answer         +    +    +    +    +    +    +    +    +    +    +    +
half-open                         +    +    +    +    +    +    +    +    +    +    +    +
kubelet
kubelet's sockets made again      +    *    +    b    b    b    +    *    *    +    +    +
kubelet dead                      +    +    +    b    b    b    *    +    +    +    +    +
pod-resources absent              +    +    +    b    b    b    +    +    *    +    +    c
pod-resources lists nothing       +    +    +    b    b    b    +    +    +    +    +    c
pod-resources names other pods    +    +    +    b    b    b    +    +    *    +    +    c
node
disk full                         +    +    +    +    *    +    +    +    *    +    +    +
CDI folder read-only              +    +    +    b    b    b    +    +    +    *    +    +
NVML hangs                        *    +    +    b    b    b    +    +    +    +    +    d
GPU lost                          +    +    +    +    +    *    +    +    +    +    +    d
clock back 1 h                    +    +    +    *    +    +    +    +    +    +    +    +
clock forward 1 h                 +    +    +    +    *    +    +    +    +    +    +    +
programs
SIGKILL of the daemon             *    +    +    b    b    b    +    *    *    +    +    *
SIGKILL of the extender           +    e    e    *    *    *    *    f    f    f    +    e
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
_RUN, _ALWAYS = "+", "*"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """`reason` is empty for one that is run."""

    group: str
    fault: Fault
    step: Step
    always: bool
    reason: str


def cells() -> Iterator[Cell]:
    """In the order of the table. Raises KeyError for a fault or a reason that there is not."""
    group = ""
    for line in TABLE.splitlines()[2:]:
        name, marks = line[:33].strip(), line[33:].split()
        if not marks:
            group = name
        for step, mark in zip(Step, marks, strict=bool(marks)):
            reason = "" if mark in (_RUN, _ALWAYS) else mark
            assert not reason or REASONS[reason]
            yield Cell(group=group, fault=BY_NAME[name], step=step, always=mark == _ALWAYS, reason=reason)
