"""Reads the Node and its pods, and removes from the Node what we wrote (edge)."""

from collections.abc import Callable, Sequence

from deviceplugin.node.desired import NO_TIME, Desired, patch_of
from deviceplugin.removal.plan import words_of
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


async def remove_part(api: ApiServer, name: str, of_ours: Callable[[Node], Desired]) -> tuple[str, ...]:
    """Removes what is ours of one part of the Node as it is at that moment, and returns it in words. Raises ApiError or
    ApiUnreachable.
    """
    for attempt in range(_ATTEMPTS):
        node = await read_node(api, name)
        ours = Desired() if node is None else of_ours(node)
        patch = None if node is None else patch_of(node, ours, NO_TIME)
        if patch is None:
            break
        try:
            await api.patch(
                *(NODES, name, patch.body), subresource="status" if patch.of_status else "", strategic=patch.of_status
            )
            return words_of(ours)
        except NotFound:
            break
        except Conflict:
            # Another program wrote the Node meanwhile, perhaps a new lock: read again.
            if attempt == _ATTEMPTS - 1:
                raise
    return ()
