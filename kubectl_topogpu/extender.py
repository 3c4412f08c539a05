"""The settings that the extender of a cluster runs with, from the arguments of its pod. No IO."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from proto.annotations.keys import SCHEDULER_ROLE
from proto.kubernetes.objects import Pod
from scheduler_ext.requests import RequestSettings

EXTENDER_LABELS = {"app.kubernetes.io/name": "topogpu", "app.kubernetes.io/component": "scheduler"}
_CONTAINER = "extender"
_FILES = ("--config", "--device-config-file")
_DEFAULTS = "policies and defaults are those of a new installation"


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundExtender:
    """The settings of the extender, and a note of what is not known of them; empty if all are."""

    settings: RequestSettings = field(default_factory=RequestSettings)
    note: str = ""


def is_extender(pod: Pod) -> bool:
    return all(pod.metadata.labels.get(name) == value for name, value in EXTENDER_LABELS.items())


def found_extender(pods: Iterable[Pod]) -> FoundExtender:
    """Returns the settings of the extender among these pods, of the replica that decides if they differ."""
    running = [pod for pod in pods if is_extender(pod) and not pod.has_ended and pod.spec.node_name]
    if not running:
        return FoundExtender(note=f"no pod of the extender was found: {_DEFAULTS}")
    if len({pod.metadata.namespace for pod in running}) > 1:
        # Anyone who may create pods can write these labels.
        named = ", ".join(sorted(f"{pod.metadata.namespace}/{pod.metadata.name}" for pod in running))
        return FoundExtender(note=f"pods of several namespaces look like the extender ({named}): {_DEFAULTS}")
    pod = max(running, key=lambda each: each.metadata.labels.get(SCHEDULER_ROLE) == "leader")
    arguments = next((each.command + each.args for each in pod.spec.containers if each.name == _CONTAINER), list[str]())
    return _of_arguments(f"{pod.metadata.namespace}/{pod.metadata.name}", arguments)


def _of_arguments(pod: str, arguments: Sequence[str]) -> FoundExtender:
    # It takes a part of a second, which help and completion do without.
    from program.settings.effective import ConfigurationError, SettingSources, resolve  # noqa: PLC0415
    from scheduler_ext.configuration import TABLE  # noqa: PLC0415

    given = dict(_flags(arguments))
    if unread := [flag for flag in _FILES if flag in given]:
        note = f"pod {pod} reads settings from a file ({unread[0]}) that is not read here: only its flags count"
    else:
        note = ""
    of_requests = {
        key: given[flag]
        for key, setting in TABLE.settings.items()
        for flag in setting.flags
        if TABLE.part_of(key) == "requests" and flag in given
    }
    try:
        found = resolve(TABLE, SettingSources(flags=of_requests, environment={})).configuration.requests
    except ConfigurationError as error:
        return FoundExtender(note=f"the settings of pod {pod} cannot be read ({error}): {_DEFAULTS}")
    return FoundExtender(settings=found, note=note)


def _flags(arguments: Sequence[str]) -> Iterator[tuple[str, str]]:
    for at, argument in enumerate(arguments):
        flag, equals, text = argument.partition("=")
        if not flag.startswith("--"):
            continue
        following = arguments[at + 1] if at + 1 < len(arguments) else ""
        yield flag, text if equals else following
