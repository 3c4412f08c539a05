"""Examines the node for `doctor`, and prints what is found."""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime

import click
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from deviceplugin.cli.build import build_nvml, of_this_pod
from deviceplugin.cli.named import in_use, read
from deviceplugin.configuration.table import Configuration
from deviceplugin.container.container_folders import is_writable
from deviceplugin.container.driver_root import driver_root
from deviceplugin.container.edits import CDI_STRATEGIES, cdi_names
from deviceplugin.container.hami_core import find_hami_core
from deviceplugin.container.limits import Backends
from deviceplugin.doctor.cluster import daemon_rights
from deviceplugin.doctor.cluster_facts import cluster_facts
from deviceplugin.doctor.diagnose import NodeFacts, diagnose
from deviceplugin.doctor.driver import DriverAnswer, judge_unhealthy
from deviceplugin.doctor.finding import Finding, FindingState, ok, problem, warning
from deviceplugin.doctor.node_facts import (
    cdi_facts,
    driver_facts,
    driver_files_facts,
    other_sockets,
    runtime_facts,
    socket_facts,
    why_no_limits,
)
from deviceplugin.host_paths import cgroups, containerd_socket, proc
from deviceplugin.machine.discovery import discover_devices
from deviceplugin.machine.readings import MachineReading
from deviceplugin.mode.trial import ask_enable_cdi
from deviceplugin.plugin_sockets import plugin_socket
from program.output import print_json, print_text
from program.settings.effective import Effective

_CONFIGURATION = "Configuration"
_DRIVER_SECONDS = 6.0
_API_SECONDS = 3.0
_MARKS = {
    FindingState.OK: ("✓", "green"),
    FindingState.WARNING: ("!", "yellow"),
    FindingState.PROBLEM: ("✗", "red"),
    FindingState.SKIPPED: ("–", ""),
}
_INDENT = 4
_NO_NAME = "unnamed"
"""A node name with which the other settings can be read."""


def examine(given: dict[str, str | None], *, as_json: bool) -> bool:
    """Prints what is found. Returns whether there is a problem."""
    findings = _findings(given)
    if as_json:
        print_json(_as_json(findings))
    else:
        print_text(_as_text(findings))
    return _count(findings, FindingState.PROBLEM) > 0


def _findings(given: dict[str, str | None]) -> tuple[Finding, ...]:
    try:
        effective = in_use(given)
    except click.ClickException as error:
        wrong = problem(
            _CONFIGURATION,
            f"The daemon would not start: {error.format_message()}.",
            "Correct it. The checks below use the settings that can be read, and defaults for the others.",
        )
        return (wrong, *asyncio.run(_examine(_readable(given))))
    return (*_configuration(effective), *asyncio.run(_examine(effective.configuration)))


def _readable(given: Mapping[str, str | None]) -> Configuration:
    """Returns the flags that can be read, each beside the defaults; only defaults where the fault is elsewhere."""
    name = given.get("node_name")
    kept: dict[str, str | None] = {"node_name": name or _NO_NAME}
    try:
        found = read(kept)
    except click.ClickException:
        return Configuration()
    for setting, value in given.items():
        with suppress(click.ClickException):
            found = read({**kept, setting: value} if value is not None else kept)
            kept |= {setting: value} if value is not None else {}
    configuration = found.configuration
    return configuration if name else replace(configuration, agent=replace(configuration.agent, node_name=""))


def _configuration(effective: Effective[Configuration]) -> tuple[Finding, ...]:
    if not effective.warnings:
        return (ok(_CONFIGURATION, f"It can be read; the node is {effective.configuration.agent.node_name}."),)
    return tuple(
        warning(
            _CONFIGURATION, f"{sentence}.", "Remove it, or correct it; run --print-config shows the effective settings."
        )
        for sentence in effective.warnings
    )


async def _examine(configuration: Configuration) -> tuple[Finding, ...]:
    remediation = of_this_pod(configuration).remediation
    seen, cluster = await asyncio.gather(
        _node_facts(configuration),
        cluster_facts(
            configuration.kubeconfig or None,
            configuration.agent.node_name,
            daemon_rights(remediation),
            timeout_seconds=_API_SECONDS,
        ),
    )
    now = datetime.now(UTC)  # noqa: TID251 - the only clock of this command
    found = diagnose(configuration, seen, cluster, now=now)
    return (*found, judge_unhealthy(cluster.node, cluster.pods, remediation, configuration.kubelet.resource_name))


async def _node_facts(configuration: Configuration) -> NodeFacts:
    (driver, machine), enable_cdi = await asyncio.gather(
        driver_facts(build_nvml(configuration), str(proc(configuration.host.root)), _DRIVER_SECONDS),
        ask_enable_cdi(containerd_socket(configuration.host.root)),
    )
    seen = await asyncio.to_thread(_look_around, configuration, driver, machine)
    no_driver = await why_no_limits(build_nvml(configuration), cgroups(configuration.host.root), _DRIVER_SECONDS)
    return replace(seen, enable_cdi=enable_cdi, backends=replace(seen.backends, no_driver=no_driver))


def _look_around(configuration: Configuration, driver: DriverAnswer, machine: MachineReading | None) -> NodeFacts:
    """Examines sockets and files; blocks."""
    settings = configuration.kubelet
    folder = configuration.agent.cdi_directory
    root = driver_root(configuration.host)
    plugin = plugin_socket(settings.plugins, settings.resource_name)
    return NodeFacts(
        driver=driver,
        driver_files=driver_files_facts(root) if root is not None else None,
        machine=machine,
        kubelet=socket_facts(settings.kubelet_socket),
        pod_resources=socket_facts(settings.pod_resources_socket),
        plugin=socket_facts(plugin),
        other_sockets=other_sockets(settings.plugins, settings.resource_name, plugin),
        backends=Backends(hami_core=find_hami_core(configuration.agent.hook_path)),
        enable_cdi=None,
        nvidia_runtime=runtime_facts(configuration.host.root, driver),
        cdi=cdi_facts(_cdi_names(configuration, machine)),
        slots_problem="" if is_writable(folder) else f"the CDI folder {folder} cannot be written",
    )


def _cdi_names(configuration: Configuration, machine: MachineReading | None) -> tuple[str, ...]:
    """Returns the driver files that containers will get."""
    if machine is None or not CDI_STRATEGIES.intersection(configuration.containers.strategies):
        return ()
    uuids = [device.uuid for device in discover_devices(machine, configuration.sharing)]
    return cdi_names(uuids, configuration.containers)


def _as_json(findings: tuple[Finding, ...]) -> object:
    counts = {f"{state.value}s": _count(findings, state) for state in (FindingState.PROBLEM, FindingState.WARNING)}
    return {**counts, "findings": findings}


def _as_text(findings: tuple[Finding, ...]) -> RenderableType:
    lines: list[RenderableType] = []
    for finding in findings:
        mark, style = _MARKS[finding.state]
        lines.append(Text.assemble((mark, style), " ", (finding.title, "bold"), f": {finding.explanation}"))
        if finding.remedy:
            lines.append(Padding(Text(f"→ {finding.remedy}"), (0, 0, 0, _INDENT), expand=False))
    problems, warnings = _count(findings, FindingState.PROBLEM), _count(findings, FindingState.WARNING)
    return Group(*lines, Text(f"\n{_counted(problems, 'problem')}, {_counted(warnings, 'warning')}."))


def _count(findings: tuple[Finding, ...], state: FindingState) -> int:
    return sum(finding.state is state for finding in findings)


def _counted(number: int, word: str) -> str:
    return f"{number or 'no'} {word}{'' if number == 1 else 's'}"
