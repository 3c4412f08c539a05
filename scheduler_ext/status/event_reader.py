"""Reads the events of a pod whose page is open (edge of the API server): a bounded number, kept for a moment."""

from collections import OrderedDict
from collections.abc import Callable

from proto.kubernetes.client import ApiServer
from proto.kubernetes.errors import ApiError, ApiUnreachable, Forbidden
from proto.kubernetes.objects import Pod, Resource
from scheduler_ext.status.pod_page import PodEvents, SeenEvent, shown_events

MOST_READ = 200
KEPT_SECONDS = 5.0
MOST_KEPT = 64

_EVENTS = Resource("v1", "events", True, SeenEvent)


class EventReader:
    def __init__(self, api: ApiServer, monotonic: Callable[[], float]) -> None:
        self._api = api
        self._monotonic = monotonic
        self._kept: OrderedDict[str, tuple[float, PodEvents]] = OrderedDict()

    async def of(self, pod: Pod) -> PodEvents:
        uid, now = pod.metadata.uid, self._monotonic()
        until, kept = self._kept.get(uid, (now, PodEvents()))
        if now < until:
            return kept
        found = await self._read(pod)
        self._kept[uid] = self._monotonic() + KEPT_SECONDS, found
        self._kept.move_to_end(uid)
        if len(self._kept) > MOST_KEPT:
            self._kept.popitem(last=False)
        return found

    async def _read(self, pod: Pod) -> PodEvents:
        try:
            page = await self._api.list_page(
                _EVENTS,
                namespace=pod.metadata.namespace,
                limit=MOST_READ,
                field_selector=f"involvedObject.uid={pod.metadata.uid}",
            )
        except Forbidden:
            return PodEvents(problem="the extender has no right to list events")
        except (ApiError, ApiUnreachable) as error:
            return PodEvents(problem=str(error))
        return PodEvents(events=shown_events(page.items))
