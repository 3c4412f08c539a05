"""The stand-in for the controller of StatefulSets (pure). Source: Kubernetes documentation, "StatefulSets".

Old templates are not kept for `kubectl rollout undo`.
"""

from collections.abc import Iterable, Iterator, Mapping

from simulation.controllers.steps import (
    MOST_CREATED,
    REVISION,
    Create,
    Delete,
    JsonObject,
    Step,
    digest_of,
    has_ended,
    is_leaving,
    is_ready,
    labels_of,
    living,
    name_of,
    reference_to,
    status_of,
    status_written,
    templated,
)


def stateful_set_steps(
    stateful_set: JsonObject, pods: list[JsonObject], claims: Iterable[JsonObject] = ()
) -> Iterator[Step]:
    """Makes pods with fixed names in their order, and replaces those of an older template from the last one on."""
    spec = stateful_set["spec"]
    newest = f"{name_of(stateful_set)}-{digest_of(spec['template'])}"
    by_ordinal = {_ordinal(pod): pod for pod in pods}
    first = (spec.get("ordinals") or {}).get("start", 0)
    wanted = range(first, first + spec["replicas"])
    yield from _status(stateful_set, pods, newest)
    ended = [pod for pod in pods if has_ended(pod) and not is_leaving(pod)]
    yield from (Delete("pods", pod) for pod in ended)
    ordered = spec["podManagementPolicy"] == "OrderedReady"
    namespace = stateful_set["metadata"]["namespace"]
    claimed = {name_of(one): one for one in claims if one["metadata"]["namespace"] == namespace}
    complete, made = True, 0
    for ordinal in wanted:
        pod = by_ordinal.get(ordinal)
        if pod is None:
            yield from (Create(one) for one in _claims(stateful_set, ordinal) if name_of(one) not in claimed)
            yield Create(_pod(stateful_set, ordinal, newest))
            made += 1
        complete = complete and pod is not None and is_ready(pod) and not is_leaving(pod)
        if (ordered and not complete) or made == MOST_CREATED:
            return
    surplus = [by_ordinal[ordinal] for ordinal in sorted(by_ordinal, reverse=True) if ordinal not in wanted]
    for pod in surplus[:1] if ordered else surplus:
        if not is_leaving(pod):
            yield Delete("pods", pod)
    if not surplus and spec["updateStrategy"]["type"] == "RollingUpdate":
        partition = (spec["updateStrategy"].get("rollingUpdate") or {}).get("partition", 0)
        yield from _replaced((by_ordinal.get(one) for one in reversed(wanted) if one >= partition), newest)


def _replaced(last_first: Iterable[JsonObject | None], newest: str) -> Iterator[Step]:
    """Deletes the last pod of an older template, once all pods behind it are ready."""
    for pod in last_first:
        if pod is None or is_leaving(pod):
            return
        if labels_of(pod).get(REVISION) != newest:
            yield Delete("pods", pod)
            return
        if not is_ready(pod):
            return


def _pod(stateful_set: JsonObject, ordinal: int, revision: str) -> JsonObject:
    name, spec = f"{name_of(stateful_set)}-{ordinal}", stateful_set["spec"]
    labels = {
        "statefulset.kubernetes.io/pod-name": name,
        "apps.kubernetes.io/pod-index": str(ordinal),
        REVISION: revision,
    }
    volumes = {one["name"]: one for one in spec["template"]["spec"].get("volumes") or []}
    for template in spec.get("volumeClaimTemplates") or []:
        claim = {"claimName": f"{name_of(template)}-{name}"}
        volumes[name_of(template)] = {"name": name_of(template), "persistentVolumeClaim": claim}
    own = (
        {"hostname": name}
        | ({"volumes": [*volumes.values()]} if volumes else {})
        | ({"subdomain": spec["serviceName"]} if spec.get("serviceName") else {})
    )
    return templated(stateful_set, own, name=name, labels=labels)


def _claims(stateful_set: JsonObject, ordinal: int) -> Iterator[JsonObject]:
    """Yields the claims of one pod. They stay when the set goes, except with whenDeleted: Delete."""
    metadata, spec = stateful_set["metadata"], stateful_set["spec"]
    policy = spec.get("persistentVolumeClaimRetentionPolicy") or {}
    owned = {"ownerReferences": [reference_to(stateful_set)]} if policy.get("whenDeleted") == "Delete" else {}
    for template in spec.get("volumeClaimTemplates") or []:
        own = {
            "name": f"{name_of(template)}-{metadata['name']}-{ordinal}",
            "namespace": metadata["namespace"],
            "labels": (template["metadata"].get("labels") or {}) | (spec["selector"].get("matchLabels") or {}),
        }
        yield {"kind": "PersistentVolumeClaim", "apiVersion": "v1", "metadata": own | owned, "spec": template["spec"]}


def _status(stateful_set: JsonObject, pods: list[JsonObject], newest: str) -> Iterator[Step]:
    there, before = living(pods), status_of(stateful_set)
    revisions = [labels_of(pod).get(REVISION) for pod in there]
    ready, updated = sum(map(is_ready, there)), revisions.count(newest)
    current = before.get("currentRevision") or newest
    if updated == ready == stateful_set["spec"]["replicas"]:
        current = newest
    counts: Mapping[str, int] = {
        "readyReplicas": ready,
        "currentReplicas": revisions.count(current),
        "updatedReplicas": updated,
    }
    status = {
        "observedGeneration": stateful_set["metadata"]["generation"],
        "replicas": len(there),
        "availableReplicas": ready,
        "currentRevision": current,
        "updateRevision": newest,
        "collisionCount": 0,
    }
    yield from status_written(
        "statefulsets", stateful_set, status | {name: count for name, count in counts.items() if count}
    )


def _ordinal(pod: JsonObject) -> int:
    """Returns the number at the end of the name; −1 for another name."""
    number = name_of(pod).rpartition("-")[2]
    return int(number) if number.isascii() and number.isdigit() else -1
