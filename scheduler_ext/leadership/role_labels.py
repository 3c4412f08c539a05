"""Labels the scheduler's pods with their roles: the webhook's Service selects the leader by its label."""

import asyncio
import logging
from collections.abc import Callable

from proto.annotations.keys import SCHEDULER_ROLE
from proto.kubernetes.client import ApiServer
from proto.kubernetes.errors import ApiError, ApiUnreachable
from proto.kubernetes.objects import PODS
from scheduler_ext.leadership.election import Role
from scheduler_ext.settings import LeaseSettings

log = logging.getLogger(__name__)

_KINSHIP = ("app.kubernetes.io/name", "app.kubernetes.io/instance", "app.kubernetes.io/component")
"""Labels that the replicas of one deployment share."""
_RETRY_SECONDS = 5.0


async def label_roles(
    api: ApiServer, settings: LeaseSettings, leads: Callable[[], bool], next_change: Callable[[], asyncio.Event]
) -> None:
    """Labels the pods whenever this replica leads, until cancelled."""
    while True:
        changed = next_change()
        if leads():
            try:
                await _label_pods(api, settings.pod_name, settings.pod_namespace)
            except (ApiError, ApiUnreachable) as error:
                log.warning("the scheduler's pods could not be labelled with their roles: %s", error)
                await asyncio.sleep(_RETRY_SECONDS)
                continue
        await changed.wait()


async def _label_pods(api: ApiServer, own: str, namespace: str) -> None:
    ours = await api.get(PODS, own, namespace)
    kin = [f"{label}={ours.metadata.labels[label]}" for label in _KINSHIP if label in ours.metadata.labels]
    page = await api.list_page(PODS, namespace=namespace, label_selector=",".join(kin)) if kin else None
    pods = [ours, *(page.items if page is not None else ())]
    roles = {pod.metadata.name: pod.metadata.labels.get(SCHEDULER_ROLE, "") for pod in pods}
    for name, known in roles.items():
        role = (Role.LEADER if name == own else Role.FOLLOWER).value
        if known != role:
            labels = {"metadata": {"labels": {SCHEDULER_ROLE: role}}}
            await api.patch(PODS, name, labels, namespace=namespace)
