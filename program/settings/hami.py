"""Reads HAMi's two configuration files, unchanged, for both programs.

Keys and their meaning as in HAMi 2.10: `device-config.yaml` (`pkg/device`, chart template `device-configmap.yaml`; its
`flags` are those of NVIDIA/k8s-device-plugin `api/config/v1`) and each node's entry of `config.json`.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from operator import attrgetter
from typing import Final

from program.settings.declared import Alias, Setting
from program.settings.documents import Unreadable, read_json, read_yaml
from program.settings.notes import Note, Problem, Settings, Warned, did_you_mean, from_file, shown

DEVICE_CONFIG: Final[Mapping[str, frozenset[str]]] = {
    section: frozenset(names.split())
    for section, names in {
        "": """
            nvidia flags imex
            amd awsneuron biren cambricon enflame hygon iluvatar iluvatars kunlun lupine metax mthreads vastai vnpus
            resources sharing version
        """,
        "nvidia": """
            resourceCountName resourceMemoryName resourceMemoryPercentageName resourceCoreName resourcePriorityName
            overwriteEnv defaultMemory defaultCores defaultGPUNum memoryFactor gpuCorePolicy runtimeClassName
            deviceSplitCount deviceMemoryScaling deviceCoreScaling preConfiguredDeviceMemory libCudaLogLevel
            enableNumaTopology disableCoreLimit migProfileAllowlist knownMigGeometries
        """,
        "flags": """
            plugin migStrategy nvidiaDevRoot gdrcopyEnabled gdsEnabled mofedEnabled
            failOnInitError mpsRoot nvidiaDriverRoot useNodeFeatureAPI deviceDiscoveryStrategy gfd
        """,
        "imex": "channelIDs required",
        "flags.plugin": """
            deviceListStrategy passDeviceSpecs
            deviceIDStrategy cdiAnnotationPrefix nvidiaCTKPath nvidiaCDIHookPath containerDriverRoot
        """,
    }.items()
}
"""Every key of `device-config.yaml` by its section. Each program takes the places that its settings name."""

NODE_CONFIG: Final[Mapping[str, frozenset[str]]] = {
    "": frozenset(
        (
            *("name", "devicesplitcount", "devicememoryscaling", "devicecorescaling", "preconfigureddevicememory"),
            *("operatingmode", "migstrategy", "libcudaloglevel", "enablenumatopology", "filterdevices"),
            "enablegetpreferredallocation",
        )
    ),
    "filterdevices": frozenset({"uuid", "index"}),
}
"""Keys of a node's entry. Kubelet always gets the preferred GPUs, so HAMi's switch for that has no use."""

Places = Mapping[str, tuple[Setting, Alias | None]]
"""Settings by place in a file, with the alias that has the place."""

_READ_SECTIONS = ("nvidia", "flags", "imex")


def from_device_config(settings: Settings, text: str, file: str) -> Iterator[Note]:
    """Reads HAMi's `device-config.yaml`. It must have one of the sections that either program reads."""
    try:
        tree = read_yaml(text, file)
    except Unreadable as error:
        yield Problem(str(error))
        return
    places = _places(settings, attrgetter("device_config"))
    if tree and tree.keys() <= settings.keys():
        yield Problem(f"{file} is this program's own configuration, not HAMi's: give it as --config")
    elif tree.keys().isdisjoint(_READ_SECTIONS):
        yield Problem(f"{file}: has no section nvidia, flags or imex; is it HAMi's device-config.yaml?")
    else:
        yield from _walk(tree, f"{file}: ", places, DEVICE_CONFIG, unset=("",))


def from_node_config(settings: Settings, text: str, file: str, node_name: str) -> Iterator[Note]:
    """Reads HAMi's `config.json`: every entry of this node, in order. Keys match in any case, as in Go."""
    try:
        tree = read_json(text, file)
    except Unreadable as error:
        yield Problem(str(error))
        return
    for key in sorted(tree.keys() - {"nodeconfig"}):
        yield Warned(f"{file}: {key} is known neither to HAMi nor here{did_you_mean(key, ['nodeconfig'])}")
    entries = tree.get("nodeconfig") or []
    if not isinstance(entries, list):
        yield Problem(f"{file}: nodeconfig: expected a list with an entry for each node")
        return
    places = _places(settings, attrgetter("node_config"))
    for number, entry in enumerate(entries):
        if isinstance(entry, dict) and entry.get("name") == node_name:
            # Go's JSON reader leaves a zero where nothing is written.
            yield from _walk(entry, f"{file}: nodeconfig[{number}].", places, NODE_CONFIG, unset=("", 0))


def _places(settings: Settings, place: Callable[[Setting | Alias], str]) -> Places:
    """Returns the settings and their aliases by place in one of the files."""
    found: dict[str, tuple[Setting, Alias | None]] = {}
    for setting in settings.values():
        found |= {place(setting): (setting, None)} | {place(alias): (setting, alias) for alias in setting.aliases}
    return {name: each for name, each in found.items() if name}


def _value(
    place: tuple[Setting, Alias | None], written: object, origin: str, unset: Collection[object]
) -> Iterator[Note]:
    """Yields what a value sets. HAMi writes an unset one as one of `unset`, where that is not a valid value."""
    setting, alias = place
    for note in from_file(setting, written, origin, alias):
        if isinstance(note, Problem) and written in unset:
            yield Warned(f"{origin} is {written!r}, which HAMi takes as not written, and so does this program")
        else:
            yield note


def _walk(
    tree: Mapping[str, object],
    where: str,
    places: Places,
    known: Mapping[str, frozenset[str]],
    *,
    unset: Collection[object],
) -> Iterator[Note]:
    """Reads every known section: its values and its unknown keys. A null counts as not written."""
    for section, names in known.items():
        content = _at(tree, section)
        if content is None:
            continue
        if not isinstance(content, dict):
            yield Problem(f"{where}{section} is {shown(content)}; expected keys with values")
            continue
        for key, written in content.items():
            place = f"{section}.{key}" if section else str(key)
            if place in places and written is not None:
                yield from _value(places[place], written, f"{where}{place}", unset)
            elif key not in names:
                yield Warned(f"{where}{place} is known neither to HAMi nor here{did_you_mean(str(key), names)}")


def _at(tree: Mapping[str, object], section: str) -> object:
    """Returns the value at the dotted place; None if it or a section above it is missing."""
    found: object = tree
    for name in section.split(".") if section else ():
        found = found.get(name) if isinstance(found, dict) else None
    return found
