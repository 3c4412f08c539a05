"""Gets the account of a pod from the running extender, and prints it (edge)."""

import asyncio

import aiohttp
import click
import msgspec

from program.output import print_text
from program.words import printable
from proto.decoding import decoded
from scheduler_ext.capacity.account import Account
from scheduler_ext.cli.answers import explanation_table

_SECONDS = 15.0


def print_account(url: str, question: dict[str, str], *, as_json: bool) -> None:
    """Prints the account of the pod that `question` names by name and namespace. Raises click.ClickException."""
    body = asyncio.run(_ask(url, question))
    if as_json:
        click.echo(body)
        return
    try:
        account = decoded(body, Account)
    except msgspec.DecodeError as error:
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
    _say(f"pod {account.pod} {account.sentence}")
    if account.said and account.said_seconds_ago is not None:
        _say(f"decided {account.said_seconds_ago:.0f} s ago: {account.said}")
    for line in account.history:
        _say(f"  {line}")
    if not account.nodes:
        return
    _say("nodes as they are now, without this pod:")
    print_text(explanation_table(account.nodes))
    if account.more_nodes:
        _say(f"and {account.more_nodes} more nodes")
    if account.popular:
        _say("fgd leaves room for the pods that came most often:")
    for line in account.popular:
        _say(f"  {line}")


def _say(line: str) -> None:
    """Prints the line without control characters: parts of the text are from annotations of other pods."""
    click.echo(printable(" ".join(line.splitlines())))
