"""Reads the API server for `doctor`: the Node, its pods, and our rights. It writes nothing (edge)."""

import asyncio
from collections.abc import Mapping, Sequence

from deviceplugin.apiserver import USER_AGENT
from deviceplugin.doctor.annotations import LockHolder
from deviceplugin.doctor.cluster import ClusterFacts, NoAnswer, Right
from proto.annotations.errors import AnnotationError
from proto.annotations.keys import NODE_LOCK
from proto.annotations.node_lock import decode_lock
from proto.kubernetes.client import ApiServer
from proto.kubernetes.errors import ApiError, ApiServerUnconfigured, ApiUnreachable, NotFound
from proto.kubernetes.objects import (
    NODES,
    PODS,
    SELF_SUBJECT_ACCESS_REVIEWS,
    AccessReviewSpec,
    Node,
    Pod,
    ResourceAttributes,
    SelfSubjectAccessReview,
)

_HTTP_NOT_FOUND = "Not Found"
"""The reason of web servers and proxies; an API server has NotFound."""


async def cluster_facts(
    kubeconfig: str | None, node_name: str, needed: Sequence[Right], *, timeout_seconds: float
) -> ClusterFacts:
    """Gathers the facts. Each question has its own deadline; without an answer it stays empty. Without a name it only
    checks whether the API server answers.

    `needed` are the rights that are checked.
    """
    try:
        async with asyncio.timeout(timeout_seconds):
            api = await ApiServer.connect(kubeconfig, timeout_seconds=timeout_seconds, user_agent=USER_AGENT)
    except ApiServerUnconfigured as error:
        return ClusterFacts(refusal=error)
    except TimeoutError:
        slow = f"The kubeconfig's credentials were not there within {timeout_seconds:g} s."
        return ClusterFacts(refusal=ApiServerUnconfigured(slow))
    async with api:
        node, pods, rights = await asyncio.gather(_node(api, node_name), _pods(api, node_name), _rights(api, needed))
        known, refusal = (None, node) if isinstance(node, NoAnswer) else (node, None)
        return ClusterFacts(
            url=api.url,
            refusal=refusal,
            node=known,
            pods=pods,
            rights=rights,
            holder=await _holder(api, known),
        )


async def _node(api: ApiServer, name: str) -> Node | NoAnswer | None:
    try:
        if not name:
            await api.list_page(NODES, limit=1)
            return None
        return await api.get(NODES, name)
    except NotFound as error:
        if error.reason == _HTTP_NOT_FOUND:
            return ApiUnreachable(f"{api.url} has no Kubernetes nodes; it is not an API server")
        return error
    except (ApiError, ApiUnreachable) as error:
        return error


async def _pods(api: ApiServer, node_name: str) -> tuple[Pod, ...]:
    if not node_name:
        return ()
    try:
        return tuple((await api.list_page(PODS, field_selector=f"spec.nodeName={node_name}")).items)
    except (ApiError, ApiUnreachable):
        return ()


async def _rights(api: ApiServer, needed: Sequence[Right]) -> Mapping[Right, bool]:
    answers = await asyncio.gather(*(_may(api, right) for right in needed))
    return {right: may for right, may in zip(needed, answers, strict=True) if may is not None}


async def _may(api: ApiServer, right: Right) -> bool | None:
    resource, _, subresource = right.resource.partition("/")
    attributes = ResourceAttributes(
        verb=right.verb,
        group=right.group,
        resource=resource,
        subresource=subresource,
        namespace=right.namespace,
        name=right.name,
    )
    question = SelfSubjectAccessReview(spec=AccessReviewSpec(resource_attributes=attributes))
    try:
        return (await api.create(SELF_SUBJECT_ACCESS_REVIEWS, question)).status.allowed
    except (ApiError, ApiUnreachable):
        return None


async def _holder(api: ApiServer, node: Node | None) -> LockHolder:
    """Reads the pod that the node lock names."""
    value = None if node is None else node.metadata.annotations.get(NODE_LOCK)
    if value is None:
        return LockHolder()
    try:
        lock = decode_lock(value)
        if not lock.pod:
            return LockHolder()
        return LockHolder(known=True, pod=await api.get(PODS, lock.pod, namespace=lock.namespace))
    except NotFound:
        return LockHolder(known=True)
    except (AnnotationError, ApiError, ApiUnreachable):
        return LockHolder()
