"""Registers our device plugin with kubelet, through restarts of kubelet and of the daemon (edge).

Kubelet empties its plugin folder when it starts and forgets every plugin. So both sockets are watched: a new kubelet
socket requires a registration, and so does a vanished plugin socket. Kubelet also gives up for good a plugin whose
ListAndWatch ended; then the plugin registers again.

While a daemon is replaced, two are registered, and kubelet calls the one that registered last. From 1.37 on kubelet
keeps connections by socket, and the end of the first does not affect the second. Before 1.37 it keeps one connection
for each resource: when the first plugin ends, it closes that one, which is the second's, and counts no GPU until the
second registers again. So the second daemon, once registered, makes kubelet forget that connection by a registration
that the daemon itself refuses (the devices stay). It registers again when the first has ended. Source: client.go and
handler.go in pkg/kubelet/cm/devicemanager/plugin/v1beta1 of Kubernetes 1.29 to 1.37.
"""

import asyncio
import logging
import math
import secrets
from collections.abc import Callable
from contextlib import suppress
from enum import Enum

import grpc

from deviceplugin.plugin_calls import Allocator, DevicePlugin, KubeletCalls, ListedHints, options
from deviceplugin.plugin_sockets import CannotServe, OtherSockets, ServedSocket, SocketIdentity, identity
from deviceplugin.settings import KubeletSettings
from deviceplugin.socket_names import TOKEN_BYTES, refusing_name, socket_name
from proto.kubelet import deviceplugin_v1beta1_pb2 as pb
from proto.kubelet import deviceplugin_v1beta1_pb2_grpc as rpc

log = logging.getLogger(__name__)

API_VERSION = "v1beta1"
_LOOK_SECONDS = 0.2
"""Seconds between two looks at kubelet's socket, and at all sockets while daemons are replaced. A kubelet that starts
leaves a second for the registration.
"""
_FIRST_RETRY_SECONDS = 0.1
_SLOWEST_RETRY_SECONDS = 5.0
_MOST_LOSSES = 3
"""The number of times that the registration may be lost within `_LOSS_SECONDS`. More losses mean that another process
serves the same resource.
"""
_LOSS_SECONDS = 60.0
_TRUCE_SECONDS = 30.0
"""Seconds of pause: two plugins that take the resource from each other at once would make kubelet refuse pods without
end.
"""
_MOST_SOCKETS = 8
"""The most sockets at a time. Earlier ones stay while kubelet listens: before 1.37, the end of one is that of the last.
"""


class KubeletUnusable(Exception):
    """The plugin's socket cannot be served, or kubelet does not accept the registration.

    `wait_seconds` is how long to leave it so; None for as long as it was left before, doubled.
    """

    def __init__(self, problem: str, wait_seconds: float | None = None) -> None:
        super().__init__(problem)
        self.wait_seconds = wait_seconds


class _Due(Enum):
    """The reasons to register."""

    NOTHING = ""
    NEW = "kubelet is new"
    LOST = "another plugin took {}, or its socket was removed"
    UNHEARD = "kubelet has closed its connection to {}"
    LEFT = "another daemon that served {} has ended"


class PluginServer:
    """One resource, served and registered through every restart of kubelet."""

    def __init__(
        self,
        settings: KubeletSettings,
        allocator: Allocator,
        calls: KubeletCalls,
        offers: ListedHints,
        *,
        restarted: Callable[[], None] = lambda: None,
        registered: Callable[[bool], None] = lambda _: None,
        draw: Callable[[], str] = lambda: secrets.token_hex(TOKEN_BYTES),
    ) -> None:
        """`restarted` is called before the first registration with a new kubelet, `registered` after each try; `draw`
        makes the sockets' names.
        """
        self._settings = settings
        self._allocator = allocator
        self._calls = calls
        self._offers = offers
        self._restarted = restarted
        self._registered = registered
        self._draw = draw
        self._met: SocketIdentity | None = None
        self._served: list[tuple[ServedSocket, DevicePlugin]] = []
        """The last is the one that was registered last."""
        self._others = OtherSockets(settings.plugins, settings.resource_name)
        self._answered: SocketIdentity | None = None
        self._is_forgotten = False
        self._losses: list[float] = []

    @property
    def is_registered(self) -> bool:
        """Returns whether the kubelet that runs now has registered the plugin."""
        return self._answered is not None and self._answered == identity(self._settings.kubelet_socket)

    async def run(self) -> None:
        """Runs until cancelled; then the plugin's sockets are gone."""
        delay, problem, last = _FIRST_RETRY_SECONDS, "", None
        try:
            while True:
                kubelet = identity(self._settings.kubelet_socket)
                if kubelet != last:
                    # It lists its pods a second after it serves this socket, and refuses for good those whose GPUs no
                    # plugin has registered by then.
                    last, delay = kubelet, _FIRST_RETRY_SECONDS
                try:
                    await self._follow(kubelet)
                    delay, problem = _FIRST_RETRY_SECONDS, ""
                    pause = min(self._settings.poll_seconds, _LOOK_SECONDS if self._is_handover() else math.inf)
                except KubeletUnusable as error:
                    if str(error) != problem:
                        problem = str(error)
                        log.warning("%s; trying again", problem)
                    pause = delay = error.wait_seconds or min(2 * delay, _SLOWEST_RETRY_SECONDS)
                await self._pause(kubelet, pause)
        finally:
            await self._end()

    async def _follow(self, kubelet: SocketIdentity | None) -> None:
        """Registers if kubelet is new or has lost us. Raises KubeletUnusable."""
        if kubelet is None:
            return
        if self._due(kubelet) is _Due.NOTHING:
            return
        try:
            async with self._others.alone():
                if identity(self._settings.kubelet_socket) != kubelet:
                    return
                due = self._due(kubelet)
                if due in (_Due.LOST, _Due.UNHEARD):
                    self._note_loss()
                if due is not _Due.NOTHING:
                    if due is not _Due.NEW:
                        log.info("%s; registering again", due.value.format(self._settings.resource_name))
                    await self._register(kubelet)
        except CannotServe as error:
            raise KubeletUnusable(str(error), _LOOK_SECONDS) from error

    def _due(self, kubelet: SocketIdentity) -> "_Due":
        now = asyncio.get_running_loop().time()
        self._others.look(self._own_names(), now)
        if kubelet != self._answered:
            return _Due.NEW
        if self._others.is_taken or not self._served[-1][0].is_there:
            return _Due.LOST
        if self._is_given_up(now):
            return _Due.UNHEARD
        return _Due.LEFT if not self._others.has_later and self._is_left(now) else _Due.NOTHING

    async def _register(self, kubelet: SocketIdentity) -> None:
        """Raises KubeletUnusable and CannotServe."""
        if kubelet != self._met:
            self._met = kubelet
            await self._stop(self._served)
            self._served = []
            self._restarted()
        self._answered = None
        plugin = DevicePlugin(self._allocator, self._calls, self._offers)
        served = await ServedSocket.start(self._path(socket_name(self._settings.resource_name, self._draw())), plugin)
        self._served.append((served, plugin))
        try:
            await register(self._settings, served.name, options(self._allocator))
        except KubeletUnusable:
            await self._stop([self._served.pop()])
            self._registered(False)
            raise
        self._is_forgotten = bool(self._others.served)
        if self._is_forgotten:
            await self._be_forgotten()
        self._others.registered(asyncio.get_running_loop().time())
        self._answered = kubelet
        log.info("registered %s with kubelet", self._settings.resource_name)
        self._registered(True)
        await self._stop_unheard()

    async def _end(self) -> None:
        """Stops the sockets. A plugin that kubelet has forgotten registers once more before, because kubelet before
        1.37 would count on its GPUs.
        """
        self._others.look(self._own_names(), asyncio.get_running_loop().time())
        if self._is_forgotten and self._answered is not None and not self._others.served:
            with suppress(KubeletUnusable, CannotServe):
                async with self._others.alone():
                    await self._register(self._answered)
        await self._stop(self._served)

    async def _be_forgotten(self) -> None:
        """Registers a socket that refuses kubelet's call: then kubelet before 1.37 no longer knows whose connection to
        close when another plugin's ends.
        """
        name = refusing_name(self._settings.resource_name, self._draw())
        refusing = await ServedSocket.start(self._path(name), _Refusing(self._allocator, self._calls, self._offers))
        try:
            with suppress(KubeletUnusable):
                await register(self._settings, refusing.name, options(self._allocator))
        finally:
            await refusing.stop()

    def _path(self, name: str) -> str:
        return f"{self._settings.plugins}/{name}"

    def _own_names(self) -> set[str]:
        return {each.name for each, _ in self._served}

    def _note_loss(self) -> None:
        """Raises KubeletUnusable where it happens again and again."""
        now = asyncio.get_running_loop().time()
        self._losses = [*(at for at in self._losses if now - at < _LOSS_SECONDS), now]
        if len(self._losses) > _MOST_LOSSES:
            folder, resource = self._settings.plugins, self._settings.resource_name
            problem = f"another process also serves {resource} in {folder} and takes it over again and again"
            raise KubeletUnusable(f"{problem}; remove it from this node", _TRUCE_SECONDS)

    def _is_given_up(self, now: float) -> bool:
        """Returns whether kubelet has closed its connection for good: at once while daemons come and go, else after the
        time that a kubelet may need to restart.
        """
        left_at = self._served[-1][1].left_at
        return left_at is not None and now - left_at >= (0 if self._is_handover() else self._settings.unheard_seconds)

    def _is_handover(self) -> bool:
        """Returns whether daemons are being replaced, or just were, or this one has just started."""
        return asyncio.get_running_loop().time() - self._others.changed_at < self._settings.unheard_seconds

    def _is_left(self, now: float) -> bool:
        """Returns whether another daemon of the resource has ended: one that came later, which kubelet may still call,
        or one that came earlier, a while ago, because kubelet notices its end a moment after its socket is gone.
        """
        is_over = now - self._others.changed_at >= self._settings.settled_seconds
        return self._others.later_ended or (self._others.earlier_ended and is_over)

    async def _stop_unheard(self) -> None:
        *earlier, last = self._served
        kept = [each for each in earlier if each[1].left_at is None][-_MOST_SOCKETS + 1 :]
        self._served = [*kept, last]
        await self._stop([each for each in earlier if each not in kept])

    async def _stop(self, served: list[tuple[ServedSocket, DevicePlugin]]) -> None:
        await asyncio.gather(*(each.stop() for each, _ in served))

    async def _pause(self, kubelet: SocketIdentity | None, seconds: float) -> None:
        """Waits for `seconds`, less when kubelet's socket changes meanwhile."""
        clock = asyncio.get_running_loop().time
        ends_at = clock() + seconds
        while (left := ends_at - clock()) > 0 and identity(self._settings.kubelet_socket) == kubelet:  # noqa: ASYNC110
            await asyncio.sleep(min(left, _LOOK_SECONDS))


class _Refusing(DevicePlugin):
    """Kubelet's first call to a plugin that registers fails."""

    async def GetDevicePluginOptions(  # noqa: N802
        self,
        request: pb.Empty,  # noqa: ARG002
        context: grpc.aio.ServicerContext[pb.Empty, pb.DevicePluginOptions],
    ) -> pb.DevicePluginOptions:
        await context.abort(
            grpc.StatusCode.FAILED_PRECONDITION, "this registration is refused on purpose: see the daemon's documents"
        )
        raise AssertionError


async def register(settings: KubeletSettings, endpoint: str, plugin: pb.DevicePluginOptions) -> None:
    """Makes one Register call. Raises KubeletUnusable."""
    # A new channel: a shared one would wait for gRPC's back-off after kubelet's restart.
    own_pool = [("grpc.use_local_subchannel_pool", 1)]
    request = pb.RegisterRequest(
        version=API_VERSION, endpoint=endpoint, resource_name=settings.resource_name, options=plugin
    )
    async with grpc.aio.insecure_channel(f"unix:{settings.kubelet_socket}", options=own_pool) as channel:
        try:
            await rpc.RegistrationStub(channel).Register(request, timeout=settings.register_seconds)
        except grpc.aio.AioRpcError as error:
            raise KubeletUnusable(
                f"kubelet did not take the registration on {settings.kubelet_socket}: {error.details()}"
            ) from error
