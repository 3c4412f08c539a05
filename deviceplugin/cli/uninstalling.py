"""Removes for `uninstall-node` what the daemon wrote for this node."""

import asyncio
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import astuple, dataclass
from functools import partial
from itertools import chain
from pathlib import Path

import click

from deviceplugin.apiserver import USER_AGENT
from deviceplugin.cli.named import in_use
from deviceplugin.configuration.table import Configuration
from deviceplugin.container.cdi_files import CDI_DIRECTORIES
from deviceplugin.container.container_folders import remove_folder
from deviceplugin.container.edits import CDI_KIND, CDI_STRATEGIES
from deviceplugin.container.hami_core_names import LOCK_DIRECTORY
from deviceplugin.doctor.kubelet import SocketState
from deviceplugin.doctor.node_facts import socket_facts
from deviceplugin.node.desired import NO_TIME, Desired, patch_of
from deviceplugin.removal import (
    Folders,
    Found,
    Ours,
    is_plugin_socket,
    metadata_of_ours,
    paths_of_ours,
    refusals,
    status_of_ours,
    words_of,
)
from proto.kubernetes.client import ApiServer
from proto.kubernetes.errors import ApiError, ApiServerUnconfigured, ApiUnreachable, Conflict, NotFound
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


def find(folders: Folders, ours: Ours) -> Found:
    """Raises OSError for a folder that is there and cannot be read."""
    names = {folder: tuple(os.listdir(folder)) for folder in set(astuple(folders)) if os.path.isdir(folder)}
    sockets = (f"{folders.plugins}/{name}" for name in names.get(folders.plugins, ()) if is_plugin_socket(name, ours))
    served = tuple(path for path in sockets if socket_facts(path).state is SocketState.CONNECTS)
    return Found(names=names, served=served)


def remove(paths: Sequence[str], emptied: str) -> Mapping[str, str]:
    """Returns a sentence for each path that is still there. The folder `emptied` goes too, if nothing is left in it."""
    kept = {}
    for path in paths:
        try:
            _remove(path)
        except OSError as error:
            kept[path] = f"{error.filename or path} cannot be removed: {error.strerror or error}."
    with suppress(OSError):
        Path(emptied).rmdir()
    return kept


def _remove(path: str) -> None:
    """Never follows a symbolic link: tenants write in some of these folders. What is gone already is fine."""
    with suppress(FileNotFoundError):
        if os.path.isdir(path) and not os.path.islink(path):
            remove_folder(path)
        else:
            os.unlink(path)


_API_SECONDS = 10.0
_NO_ANSWER = (ApiError, ApiUnreachable, ApiServerUnconfigured)


@dataclass(frozen=True, slots=True, kw_only=True)
class _ReadCluster:
    node: Node | None = None
    pods: Collection[Pod] = ()
    problem: str = ""


def uninstall(given: dict[str, str | None], *, dry_run: bool, force: bool) -> None:
    """Raises click.ClickException with what prevented it or failed."""
    configuration = in_use(given).configuration
    if not configuration.agent.node_name:
        raise click.UsageError("Give --node-name: the Node whose annotations are removed.")
    problems = asyncio.run(_uninstall(configuration, dry_run=dry_run, force=force))
    if problems:
        raise click.ClickException("\n".join(problems))


async def _uninstall(configuration: Configuration, *, dry_run: bool, force: bool) -> Sequence[str]:
    """Returns what prevents the removal, or what failed."""
    folders, ours = _folders(configuration), _ours(configuration)
    try:
        found = find(folders, ours)
    except OSError as error:
        return (f"{error.filename} cannot be read: {error.strerror}. Run this as root.",)
    cluster = await _ask(configuration)
    paths = paths_of_ours(folders, found, ours)
    in_the_way = [cluster.problem] if cluster.problem else []
    in_the_way += refusals(configuration.agent.node_name, cluster.pods, found, configuration.kubelet.resource_name)
    name = configuration.agent.node_name
    if dry_run:
        of_node = [] if cluster.node is None else [words_of(part(cluster.node)) for part in _parts(configuration)]
        _print("Would remove", name, chain.from_iterable(of_node), paths)
        return in_the_way
    if in_the_way and not force:
        return [*in_the_way, "Nothing was removed; --force removes whatever it can reach."]
    taken: list[str] = []
    problem = await _take_off(configuration, taken)
    kept = remove(paths, folders.hami_core)
    _print("Removed", name, taken, [path for path in paths if path not in kept])
    problems = [*([problem] if problem else []), *kept.values()]
    if not (problems or taken or paths):
        click.echo("Nothing of TopoGPU is left.")
    return problems


def _parts(configuration: Configuration) -> tuple[Callable[[Node], Desired], ...]:
    """Returns what is ours in each part of the Node. The status comes first: the annotations show that it is ours."""
    return partial(status_of_ours, names=configuration.total_names), metadata_of_ours


async def _ask(configuration: Configuration) -> _ReadCluster:
    name = configuration.agent.node_name
    try:
        async with await _api_server(configuration) as api:
            node, pods = await read_node(api, name), await read_pods(api, name)
    except _NO_ANSWER as error:
        return _ReadCluster(problem=f"Cannot read which pods have GPUs of node {name}: {str(error).rstrip('.')}.")
    if node is None:
        click.echo(f"There is no node {name} in the cluster.")
    return _ReadCluster(node=node, pods=pods)


async def _take_off(configuration: Configuration, taken: list[str]) -> str:
    """Returns what failed. `taken` gets what was removed, in words."""
    name = configuration.agent.node_name
    try:
        async with await _api_server(configuration) as api:
            for part in _parts(configuration):
                taken += await remove_part(api, name, part)
    except _NO_ANSWER as error:
        return f"Not all of ours could be removed from node {name}: {str(error).rstrip('.')}."
    return ""


async def _api_server(configuration: Configuration) -> ApiServer:
    return await ApiServer.connect(
        configuration.kubeconfig or None, timeout_seconds=_API_SECONDS, user_agent=USER_AGENT
    )


def _print(done: str, node: str, of_node: Iterable[str], paths: Iterable[str]) -> None:
    for word in of_node:
        click.echo(f"{done} {word} of node {node}.")
    for path in paths:
        click.echo(f"{done} {path}.")


def _folders(configuration: Configuration) -> Folders:
    host_root = configuration.host.root.rstrip("/")
    return Folders(
        slots=host_root + configuration.agent.cdi_directory,
        specs=host_root + CDI_DIRECTORIES[-1],
        hami_core=f"{host_root}{configuration.agent.hook_path}/vgpu",
        locks=host_root + LOCK_DIRECTORY,
        plugins=f"{host_root}{configuration.kubelet.root}/device-plugins",
    )


def _ours(configuration: Configuration) -> Ours:
    generates = not CDI_STRATEGIES.isdisjoint(configuration.containers.strategies)
    return Ours(resource=configuration.kubelet.resource_name, cdi_kind=CDI_KIND if generates else "")
