"""Judges the variables that a container sets itself, beside those that the daemon gives it.

Kubelet puts an answer's environment before the pod's, and container runtimes use the last value (source:
GenerateRunContainerOptions in pkg/kubelet/kubelet_pods.go). A slot is applied after both, so that its values replace
the pod's.
"""

from collections.abc import Mapping, Sequence

from program.words import enumerated
from proto.environment import (
    CORE_POLICY,
    DEFAULT_CORE_POLICY,
    DISABLE_CONTROL,
    DRIVER_HARD_LIMIT,
    DRIVER_SOFT_LIMIT,
    FEATURES,
    SHARED_CACHE,
    VISIBLE_DEVICES,
    chosen_by,
    lifted_by,
)
from proto.kubernetes.objects import EnvVar

_DRIVERS = frozenset({DRIVER_SOFT_LIMIT, DRIVER_HARD_LIMIT})
_MAY_DIFFER = frozenset({"LIBCUDA_LOG_LEVEL", DISABLE_CONTROL, *FEATURES})
"""Variables of an answer with more than one harmless value."""


def outdone(container: str, env: Sequence[EnvVar], given: Mapping[str, str], *, limited: bool) -> str:
    """Returns what is wrong with the variables of a container whose GPUs are named in the answer of Allocate; empty if
    nothing. `limited`: something must hold it to a part of a GPU.
    """
    harmful = _harmful(env, given, limited=limited)
    compared = {VISIBLE_DEVICES, *given} - _MAY_DIFFER
    names = dict.fromkeys(
        variable.name
        for variable in env
        if (variable.name in harmful or variable.name in compared)
        and (variable.value_from is not None or variable.value != given.get(variable.name))
    )
    return _sentence(container, list(names), given)


def unreplaced(
    container: str, env: Sequence[EnvVar], given: Mapping[str, str], *, limited: bool, by_driver: bool = False
) -> str:
    """Returns the same of a container whose slot gives it its variables: those of the slot replace its own. Where the
    driver holds all of its parts, `by_driver`, HAMi-core's variables lift nothing.
    """
    harmful = [name for name in _harmful(env, given, limited=limited) if name not in given]
    if by_driver and SHARED_CACHE not in given:
        harmful = [name for name in harmful if name in _DRIVERS or name not in lifted_by(env)]
    return _sentence(container, harmful, given)


def _harmful(env: Sequence[EnvVar], given: Mapping[str, str], *, limited: bool) -> Sequence[str]:
    core_policy = given.get(CORE_POLICY, DEFAULT_CORE_POLICY)
    return (*chosen_by(env, gpus_set=True), *(lifted_by(env, core_policy) if limited else ()))


def _sentence(container: str, names: Sequence[str], given: Mapping[str, str]) -> str:
    if not names:
        return ""
    replaces = "would replace what this node gives it"
    adds = "would get it past what was decided for it"
    which = replaces if all(name in given or name == VISIBLE_DEVICES for name in names) else adds
    return f"container {container} sets {enumerated(list(names))} itself, which {which}; remove it from the pod"
