"""Checks the Node: our annotations against this machine, the node lock, and HAMi's handshake."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta

from deviceplugin.doctor.finding import Finding, ok, problem, skipped, warning
from deviceplugin.node.desired import differences, is_met
from deviceplugin.node.labels import label_report, labels_of_ours
from deviceplugin.node.registration import Offer, registration
from deviceplugin.settings import HamiScheduler
from program.words import enumerated
from proto.annotations.errors import AnnotationError
from proto.annotations.keys import BIND_PHASE, NODE_ALLOCATION, NODE_HANDSHAKE, NODE_LOCK, NODE_REGISTER, NODE_SCORE
from proto.annotations.node_allocation import AllocationMode, decode_mode
from proto.annotations.node_handshake import HandshakeState, decode_handshake
from proto.annotations.node_lock import BindPhase, decode_lock
from proto.annotations.node_register import decode_register, decode_scores
from proto.devices import Device, DeviceUUID, PairScores
from proto.kubernetes.objects import Node, Pod

ANNOTATIONS = "Node annotations"
LOCK = "Node lock"
HANDSHAKE = "Handshake of HAMi's scheduler"

LOCK_LIFETIME = timedelta(minutes=5)
"""The age at which schedulers, HAMi's and ours, take the lock from its holder."""
_SERVED_GRACE = timedelta(seconds=30)
"""After the pod's start or end, a lock needs this long to be released."""
_ANSWER_WITHIN = timedelta(seconds=60)


@dataclass(frozen=True, slots=True, kw_only=True)
class LockHolder:
    """The pod that a lock names, as far as the API server returned it."""

    known: bool = False
    pod: Pod | None = None
    """The pod; None if there is no such pod."""


def judge_annotations(
    node: Node,
    offer: Offer,
    *,
    scheduler: HamiScheduler,
    daemon_serves: bool,
    now: datetime,
) -> Finding:
    """Compares the offer of this machine with the Node. Only the daemon knows the health of a GPU."""
    devices, scores = offer.devices, offer.scores
    # An answer that was given just now need not be given again.
    desired = registration(node, offer, scheduler, answered_at=now, now=now)
    wanted = differences(desired.annotations, node.metadata.annotations)
    wanted.pop(NODE_HANDSHAKE, None)
    if not wanted:
        return ok(
            ANNOTATIONS,
            f"They match this machine: {len(devices)} GPUs, allocation {offer.mode.value}, "
            f"limits {offer.limits.value}.",
        )
    missing = [key for key in wanted if key not in node.metadata.annotations]
    if missing == list(wanted) and not daemon_serves:
        return skipped(ANNOTATIONS, "The daemon has not written any yet.")
    if list(wanted) == [NODE_REGISTER] and _only_health_differs(node, devices):
        return warning(
            ANNOTATIONS,
            "The daemon knows more about the health of GPUs than the driver reports now: "
            f"{_difference(NODE_REGISTER, node, devices, scores)}.",
            "Wait for the recovery time (a tenth of --remediation-seconds). If it stays, read the daemon's log.",
        )
    different = [key for key in wanted if key not in missing]
    faults = [
        *(f"{key} is missing" for key in missing),
        *(_difference(key, node, devices, scores) for key in different),
    ]
    return problem(
        ANNOTATIONS,
        f"The Node's annotations do not match this machine, so schedulers decide on wrong facts: {'; '.join(faults)}.",
        "Run this with the daemon's own settings. If they are the same, another program writes these annotations, "
        "or the daemon does not run: a running one restores them within a second.",
    )


def judge_lock(value: str | None, holder: LockHolder, node_name: str, now: datetime) -> Finding:
    """Checks the lock. `value` is the annotation, `holder` the pod it names."""
    if value is None:
        return ok(LOCK, "It is free.")
    remove = f"Remove it: kubectl annotate node {node_name} {NODE_LOCK}-"
    try:
        lock = decode_lock(value)
    except AnnotationError as error:
        return problem(
            LOCK, f"It cannot be read, and until then HAMi's scheduler binds no pod to this node: {error}.", remove
        )
    age = now - lock.taken_at
    owner = f"{lock.namespace}/{lock.pod}" if lock.pod else "a pod that it does not name"
    held = f"Held by {owner} for {_duration(age)}"
    why = _why_stale(holder, node_name, age)
    if why:
        return problem(LOCK, f"{held}, stale: {why}. Pods for this node wait until it is gone.", remove)
    return ok(LOCK, f"{held}; the pod is being served.")


def judge_handshake(node: Node, scheduler: HamiScheduler, now: datetime) -> Finding:
    """Checks the handshake. Time stamps have no zone; they are read as UTC, as HAMi does."""
    value = node.metadata.annotations.get(NODE_HANDSHAKE)
    if value is None:
        return ok(HANDSHAKE, "No scheduler asks.")
    handshake = decode_handshake(value)
    if handshake.state is HandshakeState.REPORTED:
        return ok(HANDSHAKE, "It is answered.")
    if handshake.state is HandshakeState.REQUESTING:
        stamped_at = handshake.stamped_at
        age = None if stamped_at is None else now - stamped_at.replace(tzinfo=UTC)
        if age is None or age <= _ANSWER_WITHIN:
            return ok(HANDSHAKE, "A scheduler asked within the last minute.")
        state = f"A HAMi scheduler asked {_duration(age)} ago ({value}), without an answer"
    else:
        state = f"A HAMi scheduler has marked this node as lost ({value})"
    if scheduler.asks:
        return problem(
            HANDSHAKE,
            f"{state}, although --hami-handshake {scheduler.value} is set.",
            "The daemon is not running or cannot write the Node: read its log.",
        )
    return warning(
        HANDSHAKE,
        f"{state}. Schedulers up to HAMi 2.7 give such a node no pods and cannot read its JSON; later ones need no "
        "answer.",
        "If such a scheduler still runs, set --hami-handshake to its version (2.4 or 2.7). If none does, remove the "
        f"annotation: kubectl annotate node {node.metadata.name} {NODE_HANDSHAKE}-",
    )


def published_mode(node: Node) -> AllocationMode:
    """Returns the Node's allocation mode; immediate if it has no known one."""
    return decode_mode(node.metadata.annotations.get(NODE_ALLOCATION))


def _why_stale(holder: LockHolder, node_name: str, age: timedelta) -> str:
    """Returns why the lock is stale; empty for a lock in use."""
    if age >= LOCK_LIFETIME:
        return f"no lock is needed for longer than {_duration(LOCK_LIFETIME)}"
    if not holder.known or age < _SERVED_GRACE:
        return ""
    return "there is no such pod" if holder.pod is None else _why_served(holder.pod, node_name)


def _why_served(pod: Pod, node_name: str) -> str:
    """Returns why the pod needs no lock of this node; empty if it may need one."""
    phase = pod.metadata.annotations.get(BIND_PHASE)
    if pod.spec.node_name not in ("", node_name):
        return f"the pod is on node {pod.spec.node_name}"
    if pod.is_running or pod.has_ended:
        return f"the pod is {pod.status.phase.lower()}"
    return f"the pod's allocation ended with {phase}" if phase in (BindPhase.SUCCESS, BindPhase.FAILED) else ""


def _difference(key: str, node: Node, devices: Sequence[Device], scores: PairScores) -> str:
    value = node.metadata.annotations[key]
    try:
        if key == NODE_REGISTER:
            details = list(_device_differences(_by_uuid(decode_register(value)), _by_uuid(devices)))
        elif key == NODE_SCORE:
            details = list(_score_differences(decode_scores(value), scores))
        else:
            details = [f"it has {value}"]
    except AnnotationError as error:
        return f"it cannot be read ({error})"
    return f"{key} differs" + (f": {enumerated(details)}" if details else " in its form")


def _by_uuid(devices: Iterable[Device]) -> dict[DeviceUUID, Device]:
    return {device.uuid: device for device in devices}


def _score_differences(written: PairScores, found: PairScores) -> Iterator[str]:
    for first in sorted(written.keys() | found.keys()):
        there, here = written.get(first, {}), found.get(first, {})
        for second in sorted(there.keys() | here.keys()):
            if there.get(second) != here.get(second):
                says, should = there.get(second, "nothing"), here.get(second, "nothing")
                yield f"{first} to {second} scores {says} instead of {should}"


def _device_differences(written: Mapping[DeviceUUID, Device], found: Mapping[DeviceUUID, Device]) -> Iterator[str]:
    for uuid in sorted(written.keys() | found.keys()):
        there, here = written.get(uuid), found.get(uuid)
        if there is None:
            yield f"{uuid} is not registered"
        elif here is None:
            yield f"{uuid} is registered but not on this machine"
        else:
            for name in (field.name for field in fields(Device)):
                if getattr(there, name) != getattr(here, name):
                    yield f"{uuid} has {name} {getattr(there, name)} instead of {getattr(here, name)}"


def _only_health_differs(node: Node, devices: Sequence[Device]) -> bool:
    try:
        written = _by_uuid(decode_register(node.metadata.annotations.get(NODE_REGISTER, "")))
    except AnnotationError:
        return False
    details = _device_differences(written, _by_uuid(devices))
    return bool(written) and all(" has healthy " in one for one in details)


def _duration(age: timedelta) -> str:
    seconds = int(age.total_seconds())
    if abs(seconds) < 120:
        return f"{seconds} s"
    minutes = seconds // 60
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h"


LABELS = "Feature labels"


def judge_labels(node: Node, wanted: Mapping[str, str], *, daemon_serves: bool) -> Finding:
    """Checks the labels. `wanted` are those that the daemon would write."""
    due = label_report(node, wanted)
    if due.others:
        return warning(
            LABELS,
            f"Another program writes them: {enumerated(due.others)}.",
            "Remove gpu-labels from the setting features, or remove these labels and the program that "
            "writes them, such as GPU feature discovery.",
        )
    if is_met(node, due.desired):
        return ok(LABELS, f"The Node has {len(wanted)} labels of its GPUs.")
    if not daemon_serves:
        return skipped(LABELS, "The daemon does not run, so they are not written.")
    wrong = [name for name, value in wanted.items() if node.metadata.labels.get(name) != value]
    return problem(
        LABELS,
        f"{len(wrong)} of {len(wanted)} are missing or have other values: {enumerated(wrong)}.",
        "Run this with the daemon's own settings (--mig-strategy, --device-split-count, --config). If they are the "
        "same, read the daemon's log: the policy topogpu-device-plugin-nodes must let it write labels.",
    )


def judge_without_labels(node: Node) -> Finding:
    left = labels_of_ours(node)
    if left:
        return problem(
            LABELS,
            f"They are off, and the Node still has {enumerated(left)}.",
            "Read the daemon's log: it must be allowed to patch nodes, by its ClusterRole and by the policies.",
        )
    return ok(LABELS, "They are off.")
