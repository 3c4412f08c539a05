"""Reads the Node and its pods, and removes from the Node what we wrote (edge)."""

from collections.abc import Sequence

from deviceplugin.labels import labels_of_ours
from deviceplugin.remediation.words import is_ours, without_condition
from deviceplugin.removal.plan import annotations_of_ours, health_of_ours, totals_of_ours
from deviceplugin.settings import TotalNames
from deviceplugin.totals import without_totals
from proto.annotations.keys import NODE_CONDITION
from proto.kubernetes.client import ApiServer
from proto.kubernetes.errors import Conflict, NotFound
from proto.kubernetes.objects import NODES, PODS, Node, Pod

_ATTEMPTS = 5


async def read_node(api: ApiServer, name: str) -> Node | None:
    """None when there is no such Node. Raises ApiError or ApiUnreachable."""
    try:
        return await api.get(NODES, name)
    except NotFound:
        return None


async def read_pods(api: ApiServer, node_name: str) -> Sequence[Pod]:
    """Those bound to the node. Raises ApiError or ApiUnreachable."""
    return (await api.list_page(PODS, field_selector=f"spec.nodeName={node_name}", limit=0)).items


async def remove_totals(api: ApiServer, name: str, names: TotalNames) -> tuple[str, ...]:
    """The resources that were removed. Raises ApiError or ApiUnreachable."""
    node = await read_node(api, name)
    resources = () if node is None else totals_of_ours(node, names)
    if resources:
        await api.patch(NODES, name, without_totals(resources), subresource="status")
    return resources


async def remove_health(api: ApiServer, name: str) -> tuple[str, ...]:
    """What was removed of the words about GPUs that stay unhealthy. Raises ApiError or ApiUnreachable."""
    node = await read_node(api, name)
    words = () if node is None else health_of_ours(node)
    if node is None or not words:
        return ()
    if any(condition.type == NODE_CONDITION for condition in node.status.conditions):
        await api.patch(NODES, name, without_condition(), subresource="status", strategic=True)
        node = await api.get(NODES, name)
    others = [taint for taint in node.spec.taints if not is_ours(taint)]
    if others != node.spec.taints:
        metadata = {"resourceVersion": node.metadata.resource_version}
        await api.patch(NODES, name, {"metadata": metadata, "spec": {"taints": others}})
    return words


async def remove_metadata(api: ApiServer, name: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The labels and annotations that were removed, of the Node as it is at that moment.

    Raises ApiError or ApiUnreachable.
    """
    for attempt in range(_ATTEMPTS):
        node = await read_node(api, name)
        keys = () if node is None else annotations_of_ours(node)
        if node is None or not keys:
            break
        labels = tuple(labels_of_ours(node))
        metadata = {
            "labels": dict.fromkeys(labels),
            "annotations": dict.fromkeys(keys),
            "resourceVersion": node.metadata.resource_version,
        }
        try:
            await api.patch(NODES, name, {"metadata": metadata})
            return labels, keys
        except NotFound:
            break
        except Conflict:
            # Another program wrote the Node meanwhile, perhaps a new lock: read again.
            if attempt == _ATTEMPTS - 1:
                raise
    return (), ()
