"""The steps of a pod's and a program's life, each by the message that a peer of the program sees at that moment."""

import asyncio
from enum import StrEnum

from simulation.apiserver.routes import RecordedRequest

DAEMON = "topogpu-device-plugin"
EXTENDER = "topogpu-scheduler"
"""The programs, by what they call themselves to the API server."""
UNINSTALL = "uninstall-node"


class Step(StrEnum):
    """In the order of time."""

    START = "start"
    """The first request of the program that the fault concerns; of the daemon where it concerns both."""
    REGISTER = "register"
    """Kubelet takes a registration."""
    REPORT = "report"
    """The API server takes the first patch of the Node."""
    FILTER = "filter"
    """kube-scheduler is about to send `/filter`."""
    RESERVE = "reserve"
    """kube-scheduler has the answer: the GPUs are reserved in the extender's memory alone."""
    BIND_SENT = "bind sent"
    """The API server has the Binding, and has not carried it out."""
    BIND_ANSWERED = "bind answered"
    """The API server has carried out the Binding, and its answer is still to be sent."""
    ALLOCATE = "Allocate"
    """Kubelet is about to call it."""
    PRE_START = "PreStart"
    """Kubelet is about to call PreStartContainer for the first start of the container."""
    RESTART = "restart"
    """The same for another start of the container of a pod that runs."""
    POD_END = "pod end"
    """The API server has kubelet's last word: the containers have ended."""
    UNINSTALL = "uninstall"
    """The first request of `uninstall-node`."""


EARLY = (Step.START, Step.REGISTER, Step.REPORT)
"""Steps of programs, before there are pods."""


class Moment:
    """Holds the peer that sees an armed step, until the fault has begun."""

    def __init__(self) -> None:
        self._armed: tuple[Step, str] | None = None
        self._reached = asyncio.Event()
        self._over = asyncio.Event()

    def arm(self, step: Step, program: str) -> None:
        self._armed = (step, program)

    async def reached(self) -> None:
        await self._reached.wait()

    def go_on(self) -> None:
        self._over.set()

    async def before_request(self, request: RecordedRequest) -> None:
        await self._see(request.user_agent, *_before(request))

    async def after_request(self, request: RecordedRequest) -> None:
        if (request.verb, request.subresource) == ("create", "binding"):
            await self._see(request.user_agent, Step.BIND_ANSWERED)

    async def before_kubelet_calls(self, call: str) -> None:
        await self._see("", *_CALLS.get(call.split(maxsplit=1)[0], ()))

    async def before_scheduler_calls(self, verb: str) -> None:
        if verb == "filter":
            await self._see("", Step.FILTER)

    async def after_scheduler_called(self, verb: str) -> None:
        if verb == "filter":
            await self._see("", Step.RESERVE)

    async def _see(self, program: str, *steps: Step) -> None:
        if self._armed is None or self._armed[0] not in steps:
            return
        if self._armed[0] is Step.START and self._armed[1] != program:
            return
        self._armed = None
        self._reached.set()
        await self._over.wait()


_CALLS = {
    "Register": (Step.REGISTER,),
    "Allocate": (Step.ALLOCATE,),
    "PreStartContainer": (Step.PRE_START, Step.RESTART),
}


def _before(request: RecordedRequest) -> tuple[Step, ...]:
    if request.user_agent.startswith("kubelet/"):
        return (Step.POD_END,) if (request.verb, request.resource) == ("delete", "pods") else ()
    if (request.verb, request.subresource) == ("create", "binding"):
        return (Step.BIND_SENT,)
    first = (Step.START, Step.UNINSTALL) if request.user_agent in (DAEMON, EXTENDER) else ()
    is_report = request.user_agent == DAEMON and (request.verb, request.resource) == ("patch", "nodes")
    return (*first, Step.REPORT) if is_report and not request.subresource else first
