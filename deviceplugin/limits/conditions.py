"""Decides whether the driver of a node limits GPU memory by control group, from what was read."""

from dataclasses import dataclass

from deviceplugin.machine.readings import FIRST_LIMITING_BRANCH, driver_branch


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverFacts:
    """Facts that were read on the node."""

    version: str = ""
    """Empty where the driver does not report it."""
    is_version_2: bool = False
    """The host's control groups are those of version 2, and nothing else."""
    has_pods: bool = False
    """Kubelet's control groups were found."""
    gpus: int = 0
    """Healthy GPUs that are not in MIG mode."""
    refusal: str = ""
    """The reason why the driver does not read or set the limits of one of them, as a clause; empty where it does."""
    is_of_gpus: bool = False
    """The refusal is about single GPUs, which fail or are slow, and not about the driver."""
    is_limiting: bool = False
    """The driver limits one of them."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """The answer to whether the driver limits memory here. `problem` is why not, as a clause; empty if it does."""

    problem: str
    doubted_at: float | None = None
    """The time in seconds since when single GPUs refuse."""
    is_known: bool = True
    """False until the driver has answered for a GPU."""


NOT_ANSWERED = Judgement("it has not answered yet", is_known=False)
_DOUBT_SECONDS = 15.0
"""Seconds after which a GPU that refuses counts for its node. A GPU that hangs or is lost is unhealthy before."""


def judge(before: Judgement, facts: DriverFacts, now: float) -> Judgement:
    """Returns whether the driver limits memory after a look at `now`, in seconds. A node keeps its driver while single
    GPUs refuse: such a GPU recovers, or is unhealthy soon, and no container starts meanwhile without its limit on it.
    """
    problem = why_no_driver(facts)
    if not (problem and facts.is_of_gpus):
        return Judgement(problem)
    since = now if before.doubted_at is None else before.doubted_at
    if now - since >= _DOUBT_SECONDS:
        return Judgement(problem, since)
    return Judgement("" if facts.is_limiting else before.problem, since, is_known=before.is_known or facts.is_limiting)


def may_limit(facts: DriverFacts) -> bool:
    """Returns whether driver and node have what limits need, so that it is worth trying."""
    return not _why_not(facts)


def why_no_driver(facts: DriverFacts) -> str:
    """Returns why the driver holds no container to its memory, as a clause; empty if it does."""
    no_gpu = "" if facts.gpus else "no healthy GPU of this node is without MIG"
    return _why_not(facts) or no_gpu or facts.refusal


def _why_not(facts: DriverFacts) -> str:
    branch = driver_branch(facts.version)
    if branch is None:
        return "the driver does not report its release"
    if branch < FIRST_LIMITING_BRANCH:
        return f"the driver is {facts.version}, and limits by control group need {FIRST_LIMITING_BRANCH}"
    if not facts.is_version_2:
        return "the control groups of this node are not those of version 2"
    return "" if facts.has_pods else "kubelet's control groups are not seen below host_root"
