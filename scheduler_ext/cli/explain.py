"""`topogpu-scheduler explain`: asks the running extender where a pod is and why, or what it waits for."""

import asyncio
import sys

import aiohttp
import click
import msgspec
from rich.console import Console

from scheduler_ext.cli.answers import explanation_table
from scheduler_ext.scheduling.account import Account

_WIDE = 1000
_SECONDS = 15.0


@click.command()
@click.argument("pod")
@click.option("-n", "--namespace", default="default", show_default=True)
@click.option("--url", default="http://127.0.0.1:8080", show_default=True,
              help="Where the extender listens. It answers only callers on its own host: run this beside it or "
      "behind kubectl port-forward.")  # fmt: skip
@click.option("--output", type=click.Choice(["json", "text"]), default="text", show_default=True)
def explain(*, pod: str, namespace: str, url: str, output: str) -> None:
    """Show where this pod is and why, or why it is pending.

    Shows the last decision, and what every node with GPUs has for the pod now. It does not check taints, selectors and
    CPUs: those are kube-scheduler's business.
    """
    body = asyncio.run(_ask(url.rstrip("/"), {"pod": pod, "namespace": namespace}))
    if output == "json":
        click.echo(body)
        return
    try:
        account = msgspec.json.decode(body, type=Account)
    except (msgspec.DecodeError, UnicodeError) as error:
        raise click.ClickException(f"{url} does not answer as this version of the extender: {error}") from error
    _show(account)


async def _ask(url: str, question: dict[str, str]) -> bytes:
    try:
        timeout = aiohttp.ClientTimeout(total=_SECONDS)
        async with (
            aiohttp.ClientSession(timeout=timeout) as http,
            http.get(f"{url}/debug/explain", params=question) as response,
        ):
            body = await response.read()
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
        reason = str(error) or "no answer in time"
        raise click.ClickException(f"the extender at {url} cannot be reached: {reason}") from error
    if response.status != 200:
        text = " ".join(body[:500].decode(errors="replace").split())
        raise click.ClickException(text or f"{url} answered {response.status}")
    return body


def _show(account: Account) -> None:
    click.echo(f"pod {account.pod} {account.sentence}")
    if account.said and account.said_seconds_ago is not None:
        click.echo(f"decided {account.said_seconds_ago:.0f} s ago: {account.said}")
    for line in account.story:
        click.echo(f"  {line}")
    if not account.nodes:
        return
    click.echo("nodes as they are now, without this pod:")
    # In a pipe the table is never wrapped: a program or a pager reads it.
    console = Console(file=sys.stdout, highlight=False, width=None if sys.stdout.isatty() else _WIDE)
    console.print(explanation_table(account.nodes))
    if account.more_nodes:
        click.echo(f"and {account.more_nodes} more nodes")
    if account.popular:
        click.echo("fgd leaves room for the pods that came most often:")
    for line in account.popular:
        click.echo(f"  {line}")
