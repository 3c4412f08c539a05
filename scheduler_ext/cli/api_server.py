"""Flags of `serve` that concern the API server: where it is, how long a call may take, how often is written."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps

import click

from proto.kubernetes.client import ApiServer
from proto.kubernetes.pace import Pace
from scheduler_ext.cli.options import Command
from scheduler_ext.settings import SettingsError

DEFAULT_TIMEOUT_SECONDS = 10
DEFAULT_BURST = 10
"""Of HAMi's client."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiSettings:
    """`writes` is None without a limit."""

    kubeconfig: str | None
    timeout_seconds: float
    writes: Pace | None

    async def connect(self) -> ApiServer:
        """Raises ApiServerUnconfigured."""
        return await ApiServer.connect(
            self.kubeconfig,
            timeout_seconds=self.timeout_seconds,
            user_agent="topogpu-scheduler",
            writes=self.writes,
        )


def api_options(command: Command) -> Command:
    """Adds the flags; the command gets them as one argument `api`."""

    @wraps(command)
    def with_api(
        *, kubeconfig: str | None, kube_timeout: int, kube_qps: float, kube_burst: int | None, **others: object
    ) -> None:
        try:
            writes = _pace(kube_qps, kube_burst)
        except SettingsError as error:
            raise click.ClickException(str(error)) from error
        timeout_seconds = kube_timeout or DEFAULT_TIMEOUT_SECONDS
        command(api=ApiSettings(kubeconfig=kubeconfig, timeout_seconds=timeout_seconds, writes=writes), **others)

    wrapped: Command = with_api
    for option in reversed(_OPTIONS):
        wrapped = option(wrapped)
    return wrapped


def _pace(per_second: float, burst: int | None) -> Pace | None:
    """Raises SettingsError."""
    if not math.isfinite(per_second):
        raise SettingsError(f"--kube-qps {per_second} is no number of writes a second; 0 does not limit them")
    if per_second > 0:
        return Pace(per_second=per_second, burst=burst or DEFAULT_BURST)
    if burst is not None:
        click.echo("warning: --kube-burst changes nothing without --kube-qps: writes are not limited", err=True)
    return None


_OPTIONS: tuple[Callable[[Command], Command], ...] = (
    click.option(
        "--kubeconfig", metavar="FILE", help="Default: $KUBECONFIG, ~/.kube/config, or the cluster around us."
    ),
    click.option(
        "--kube-timeout",
        type=click.IntRange(min=0),
        default=DEFAULT_TIMEOUT_SECONDS,
        show_default=True,
        help=f"Seconds that one call to the API server may take; 0 is {DEFAULT_TIMEOUT_SECONDS}.",
    ),
    click.option(
        "--kube-qps",
        type=float,
        default=0.0,
        show_default=True,
        help="Writes a second to the API server, events among them; 0 does not limit them.",
    ),
    click.option(
        "--kube-burst",
        type=click.IntRange(min=1),
        help=f"Writes at once after a pause, with --kube-qps; {DEFAULT_BURST} if not given.",
    ),
)
