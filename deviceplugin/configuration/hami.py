"""HAMi's two configuration files, read as they are.

Keys and their meaning as in HAMi 2.10: `device-config.yaml` (`pkg/device`, chart template `device-configmap.yaml`; its
`flags` are those of NVIDIA/k8s-device-plugin `api/config/v1`) and each node's entry of `config.json`.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from deviceplugin.configuration.documents import Unreadable, read_json, read_yaml
from deviceplugin.configuration.notes import Note, Problem, Warned, did_you_mean, from_file, shown
from deviceplugin.configuration.table import SETTINGS, Setting

_UNUSED: Final[Mapping[str, frozenset[str]]] = {
    section: frozenset(names.split())
    for section, names in {
        "": """
            amd awsneuron biren cambricon enflame hygon iluvatar iluvatars kunlun lupine metax mthreads vastai vnpus
            resources sharing version
        """,
        "nvidia": """
            overwriteEnv defaultMemory defaultCores defaultGPUNum memoryFactor gpuCorePolicy runtimeClassName
            migProfileAllowlist knownMigGeometries
        """,
        "flags": """
            failOnInitError mpsRoot nvidiaDriverRoot useNodeFeatureAPI
            deviceDiscoveryStrategy gfd
        """,
        "imex": "required",
        "flags.plugin": """
            deviceIDStrategy cdiAnnotationPrefix nvidiaCTKPath nvidiaCDIHookPath containerDriverRoot
        """,
    }.items()
}
"""What `device-config.yaml` holds for the scheduler, its webhook, other vendors, or options not offered here."""

_UNUSED_OF_NODE: Final[Mapping[str, frozenset[str]]] = {
    "": frozenset({"name", "enablegetpreferredallocation"}),
    "filterdevices": frozenset(),
}
"""Kubelet is always told the preferred GPUs, so the switch for it has nothing to do."""


def from_device_config(text: str, file: str) -> Iterator[Note]:
    """HAMi's `device-config.yaml`: what its section `nvidia` and NVIDIA's `flags` say about the node."""
    try:
        tree = read_yaml(text, file)
    except Unreadable as error:
        yield Problem(str(error))
        return
    places = {setting.device_config: key for key, setting in SETTINGS.items() if setting.device_config}
    if tree and tree.keys() <= SETTINGS.keys():
        yield Problem(f"{file} is this daemon's own configuration, not HAMi's: give it as --config")
    else:
        yield from _walk(tree, f"{file}: ", places, _UNUSED)


def from_node_config(text: str, file: str, node_name: str) -> Iterator[Note]:
    """HAMi's `config.json`: every entry of this node, in order. Keys count in any case, as Go reads JSON."""
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
    places = {setting.node_config: key for key, setting in SETTINGS.items() if setting.node_config}
    for number, entry in enumerate(entries):
        if isinstance(entry, dict) and entry.get("name") == node_name:
            where = f"{file}: nodeconfig[{number}]."
            yield from _walk(entry, where, places, _UNUSED_OF_NODE, _from_entry)


def _from_entry(setting: Setting, written: object, origin: str) -> Note:
    """A zero value where it means something counts; where it cannot, it is HAMi's way of writing nothing."""
    note = from_file(setting, written, origin)
    if isinstance(note, Problem) and written in (0, ""):
        return Warned(f"{origin} is {written!r}, which HAMi takes as not written, and so does this daemon")
    return note


def _walk(
    tree: Mapping[str, object],
    where: str,
    places: Mapping[str, str],
    unused: Mapping[str, frozenset[str]],
    read: Callable[[Setting, object, str], Note] = from_file,
) -> Iterator[Note]:
    """Every section that `unused` names: its values and its unknown keys. No value (null) counts as not written."""
    for section, ignored in unused.items():
        content = _at(tree, section)
        if content is None:
            continue
        if not isinstance(content, dict):
            yield Problem(f"{where}{section} is {shown(content)}; expected keys with values")
            continue
        prefix = f"{section}." if section else ""
        names = {
            name.removeprefix(prefix) for name in (*places, *unused) if name.startswith(prefix) and name != section
        }
        known = ignored | {name for name in names if "." not in name}
        for key, written in content.items():
            if (place := f"{prefix}{key}") in places and written is not None:
                yield read(SETTINGS[places[place]], written, f"{where}{place}")
            elif key not in known:
                yield Warned(f"{where}{place} is known neither to HAMi nor here{did_you_mean(str(key), known)}")


def _at(tree: Mapping[str, object], section: str) -> object:
    """What lies at the dotted place; None if nothing or no section above it."""
    found: object = tree
    for name in section.split(".") if section else ():
        found = found.get(name) if isinstance(found, dict) else None
    return found
