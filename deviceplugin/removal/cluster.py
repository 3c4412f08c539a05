"""Reads the Node and its pods, and removes from the Node what we wrote (edge)."""

from collections.abc import Sequence

from deviceplugin.node.desired import NO_TIME, Desired, patch_of
from deviceplugin.node.labels import labels_of_ours
from deviceplugin.removal.plan import annotations_of_ours, health_of_ours, totals_of_ours
from deviceplugin.settings import TotalNames
from proto.annotations.keys import NODE_CONDITION, NODE_TAINT
from proto.kubernetes.client import ApiServer
from proto.kubernetes.errors import Conflict, NotFound
from proto.kubernetes.objects import NODES, PODS, Node, Pod

_ATTEMPTS = 5


async def read_node(api: ApiServer, name: str) -> Node | None:
    """Returns None when there is no such Node. Raises ApiError or ApiUnreachable."""
    try:
        return await api.get(NODES, name)
    except NotFound:
        return None


async def read_pods(api: ApiServer, node_name: str) -> Sequence[Pod]:
    """Returns the pods bound to the node. Raises ApiError or ApiUnreachable."""
    return (await api.list_page(PODS, field_selector=f"spec.nodeName={node_name}", limit=0)).items


async def remove_totals(api: ApiServer, name: str, names: TotalNames) -> tuple[str, ...]:
    """Removes the totals and returns their names. Raises ApiError or ApiUnreachable."""
    node = await read_node(api, name)
    resources = () if node is None else totals_of_ours(node, names)
    if node is not None:
        await _remove(api, node, Desired(totals=dict.fromkeys(resources)))
    return resources


async def remove_health(api: ApiServer, name: str) -> tuple[str, ...]:
    """Removes condition and taint of GPUs that stay unhealthy, and returns their names. Raises ApiError or
    ApiUnreachable.
    """
    node = await read_node(api, name)
    if node is None:
        return ()
    await _remove(api, node, Desired(conditions={NODE_CONDITION: None}, taints={NODE_TAINT: None}))
    return health_of_ours(node)


async def _remove(api: ApiServer, node: Node, desired: Desired) -> None:
    while (patch := patch_of(node, desired, NO_TIME)) is not None:
        subresource = "status" if patch.of_status else ""
        node = await api.patch(
            *(NODES, node.metadata.name, patch.body), subresource=subresource, strategic=patch.of_status
        )


async def remove_metadata(api: ApiServer, name: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Returns the labels and annotations that were removed, of the Node as it is at that moment.

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
