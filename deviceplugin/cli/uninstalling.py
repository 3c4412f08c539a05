"""Removes for `uninstall-node` what the daemon wrote for this node."""

import asyncio
import os
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import astuple, dataclass
from pathlib import Path

import click

from deviceplugin.apiserver import USER_AGENT
from deviceplugin.cli.named import in_use
from deviceplugin.configuration.table import Configuration
from deviceplugin.container.cdi_files import CDI_DIRECTORIES
from deviceplugin.container.edits import CDI_KIND, CDI_STRATEGIES
from deviceplugin.container.folder_removal import remove_folder
from deviceplugin.container.hami_core_names import LOCK_DIRECTORY
from deviceplugin.doctor.kubelet import SocketState
from deviceplugin.doctor.node_facts import socket_facts
from deviceplugin.node.labels import labels_of_ours
from deviceplugin.removal.cluster import read_node, read_pods, remove_health, remove_metadata, remove_totals
from deviceplugin.removal.plan import (
    Folders,
    Found,
    Ours,
    annotations_of_ours,
    health_of_ours,
    is_plugin_socket,
    paths_of_ours,
    refusals,
    totals_of_ours,
)
from proto.kubernetes.client import ApiServer
from proto.kubernetes.errors import ApiError, ApiServerUnconfigured, ApiUnreachable
from proto.kubernetes.objects import Node, Pod


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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Taken:
    """Names of what is removed from the Node."""

    totals: tuple[str, ...] = ()
    health: tuple[str, ...] = ()
    """The condition and the taint."""
    labels: tuple[str, ...] = ()
    annotations: tuple[str, ...] = ()


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
    names = configuration.total_names
    if dry_run:
        taken = _Taken()
        if cluster.node:
            taken = _Taken(
                totals=totals_of_ours(cluster.node, names),
                health=health_of_ours(cluster.node),
                labels=tuple(labels_of_ours(cluster.node)),
                annotations=annotations_of_ours(cluster.node),
            )
        _print("Would remove", configuration, taken, paths)
        return in_the_way
    if in_the_way and not force:
        return [*in_the_way, "Nothing was removed; --force removes whatever it can reach."]
    taken, problem = await _take_off(configuration)
    kept = remove(paths, folders.hami_core)
    _print("Removed", configuration, taken, [path for path in paths if path not in kept])
    problems = [*([problem] if problem else []), *kept.values()]
    if not (problems or taken != _Taken() or paths):
        click.echo("Nothing of TopoGPU is left.")
    return problems


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


async def _take_off(configuration: Configuration) -> tuple[_Taken, str]:
    """Returns what was removed, and what failed.

    It removes totals first: the annotations show that they are ours.
    """
    name = configuration.agent.node_name
    totals: tuple[str, ...] = ()
    try:
        async with await _api_server(configuration) as api:
            totals = await remove_totals(api, name, configuration.total_names)
            health = await remove_health(api, name)
            labels, annotations = await remove_metadata(api, name)
            return _Taken(totals=totals, health=health, labels=labels, annotations=annotations), ""
    except _NO_ANSWER as error:
        left = "annotations" if totals else "totals and annotations"
        return _Taken(totals=totals), f"The {left} of node {name} could not be removed: {str(error).rstrip('.')}."


async def _api_server(configuration: Configuration) -> ApiServer:
    return await ApiServer.connect(
        configuration.kubeconfig or None, timeout_seconds=_API_SECONDS, user_agent=USER_AGENT
    )


def _print(done: str, configuration: Configuration, taken: _Taken, paths: Sequence[str]) -> None:
    for resource in taken.totals:
        click.echo(f"{done} {resource} from the capacity of node {configuration.agent.node_name}.")
    for word in taken.health:
        click.echo(f"{done} {word} of node {configuration.agent.node_name}.")
    for label in taken.labels:
        click.echo(f"{done} label {label} of node {configuration.agent.node_name}.")
    for key in taken.annotations:
        click.echo(f"{done} annotation {key} of node {configuration.agent.node_name}.")
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
