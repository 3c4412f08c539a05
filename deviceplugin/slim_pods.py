"""Cuts the pods of a node down to what the daemon reads of them, so that no pod takes much of its memory.

A pod without a GPU matters by its UID alone, and so does one that has ended. Of others the daemon keeps what decides on
their GPUs. It has no decision for a pod beyond the bounds below, so it serves that pod nothing.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import islice

from proto.annotations.keys import (
    BIND_PHASE,
    DEVICES_ALLOCATED,
    DEVICES_TO_ALLOCATE,
    MEMORY_RESIZE,
    MEMORY_WISH,
    POD_NODE,
)
from proto.annotations.memory_resize import LONGEST_ANSWER, wish_in
from proto.annotations.node_lock import BindPhase
from proto.environment import TASK_PRIORITY, VISIBLE_DEVICES, is_judged
from proto.kubernetes.objects import (
    STATIC_UID,
    TOPOLOGY_AFFINITY_ERROR,
    Container,
    ContainerState,
    ContainerStatus,
    EnvVar,
    ObjectMeta,
    Pod,
    PodSpec,
    PodStatus,
    Resources,
)
from proto.kubernetes.requests import requested

MOST_CONTAINERS = 256
"""The most containers of a pod, as in the extender."""
MOST_VARIABLES = 256
"""The most variables of a pod, of those that are kept."""
LONGEST_VALUE = 1024
"""Characters. A longer value is none that the daemon allows, and neither is its beginning."""
LONGEST_DECISION = 32_768
"""Characters of an annotation; it has room for some 500 shares of GPUs."""

_ANNOTATIONS = (DEVICES_ALLOCATED, DEVICES_TO_ALLOCATE, BIND_PHASE, POD_NODE)
_GIVEN = frozenset({TASK_PRIORITY, "CUDA_OVERSUBSCRIBE", "TRITON_LIBCUDA_PATH"})
"""Variables that the daemon sets although they are not judged."""

_Decided = Mapping[str, str]


def slim(pod: Pod, resource: str, totals: Sequence[str]) -> None:
    """Cuts the pod down, in place. Containers request GPUs by `resource`; the daemon counts `totals` besides."""
    annotations = pod.metadata.annotations
    decided = {key: annotations[key] for key in _ANNOTATIONS if key in annotations}
    if DEVICES_ALLOCATED in decided:
        wishes = {MEMORY_WISH: wish_in(annotations), MEMORY_RESIZE: annotations.get(MEMORY_RESIZE, "")[:LONGEST_ANSWER]}
        decided |= {key: value for key, value in wishes.items() if key in annotations}
    if pod.has_ended and decided.get(BIND_PHASE) != BindPhase.ALLOCATING:
        decided = {}
    counted = (resource, *totals)
    inits = [_container(each, counted) for each in pod.spec.init_containers]
    apps = [_container(each, counted) for each in pod.spec.containers]
    if not any(resource in each.resources.limits for each in (*inits, *apps)):
        pod.status.reason = ""
    if not decided and (pod.has_ended or not any(each.resources.limits for each in (*inits, *apps))):
        inits, apps = [], []
    elif _exceeds(decided, (*inits, *apps)):
        decided = {}
        inits, apps = [], _bare((*inits, *apps), resource, {name: requested(pod, name) for name in totals})
    _keep(pod, decided, inits, apps)


def _keep(pod: Pod, decided: _Decided, inits: list[Container], apps: list[Container]) -> None:
    metadata, spec, status = pod.metadata, pod.spec, pod.status
    static = {STATIC_UID: pod.kubelet_uid} if pod.kubelet_uid != metadata.uid else {}
    pod.metadata = ObjectMeta(
        name=metadata.name,
        namespace=metadata.namespace,
        uid=metadata.uid,
        resource_version=metadata.resource_version,
        deletion_timestamp=metadata.deletion_timestamp,
        annotations={**decided, **static},
    )
    pod.spec = PodSpec(
        node_name=spec.node_name,
        priority=spec.priority,
        restart_policy=spec.restart_policy,
        init_containers=inits,
        containers=apps,
    )
    pod.status = PodStatus(
        phase=status.phase,
        reason=status.reason if status.reason == TOPOLOGY_AFFINITY_ERROR else "",
        init_container_statuses=_statuses(status.init_container_statuses) if inits or apps else [],
        container_statuses=_statuses(status.container_statuses) if inits or apps else [],
    )


def _exceeds(decided: _Decided, containers: Sequence[Container]) -> bool:
    return (
        len(containers) > MOST_CONTAINERS
        or sum(len(container.env) for container in containers) > MOST_VARIABLES
        or any(len(value) > LONGEST_DECISION for value in decided.values())
    )


def _container(container: Container, counted: Sequence[str]) -> Container:
    """Requests of such resources equal their limits: the API server accepts no other ones. An amount of 0 is kept,
    except of GPUs: 0 is the highest priority.
    """
    amounts = {**container.resources.requests, **container.resources.limits}
    gpus, *_ = counted
    return Container(
        name=container.name,
        env=_variables(container.env),
        resources=_resources(
            tuple((name, amounts[name]) for name in counted if name in amounts and (name, amounts[name]) != (gpus, "0"))
        ),
        restart_policy=container.restart_policy,
    )


def _bare(containers: Iterable[Container], resource: str, totals: Mapping[str, int]) -> list[Container]:
    """Returns the containers that request GPUs, and one that requests the pod's totals of the rest. Of variables it
    matters only whether a container names GPUs itself: then it is not known which ones it has.
    """
    asking = (each for each in containers if resource in each.resources.limits)
    return [
        Container(resources=_resources(tuple(totals.items())), name=""),
        *(
            Container(
                name=each.name,
                env=[EnvVar(name=VISIBLE_DEVICES)] if any(one.name == VISIBLE_DEVICES for one in each.env) else [],
                resources=_resources(((resource, each.resources.limits[resource]),)),
            )
            for each in islice(asking, MOST_CONTAINERS)
        ),
    ]


def _variables(env: Iterable[EnvVar]) -> list[EnvVar]:
    """Returns each different one once. What one is taken from does not matter."""
    kept = (variable for variable in env if is_judged(variable.name) or variable.name in _GIVEN)
    found = dict.fromkeys((each.name, each.value[:LONGEST_VALUE], each.value_from is None) for each in kept)
    return [EnvVar(name=name, value=value, value_from=None if plain else {}) for name, value, plain in found]


def _statuses(statuses: Sequence[ContainerStatus]) -> list[ContainerStatus]:
    return [_status(each) for each in statuses[:MOST_CONTAINERS]]


def _status(status: ContainerStatus) -> ContainerStatus:
    state = status.state
    return ContainerStatus(
        name=status.name,
        container_id=status.container_id,
        state=ContainerState(
            waiting=None if state.waiting is None else {"reason": str(state.waiting.get("reason", ""))},
            running=None if state.running is None else {},
            terminated=state.terminated,
        ),
    )


@lru_cache(maxsize=256)
def _resources(limits: tuple[tuple[str, str | int | float], ...]) -> Resources:
    """Returns one object for all containers that request the same."""
    return Resources(limits=dict(limits))
