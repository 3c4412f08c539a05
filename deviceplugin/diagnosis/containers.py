"""What containers need besides the GPUs: HAMi-core and CDI.

CDI in device plugins: on by default in kubelet since 1.29 (feature gate DevicePluginCDIDevices); containerd resolves
CDI names since 1.7 with enable_cdi, since 2.0 by default (containerd, docs/cri/config.md); CRI-O since 1.23.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from deviceplugin.container.cdi import missing_sentence
from deviceplugin.container.edits import DeviceListStrategy
from deviceplugin.diagnosis.finding import Finding, listed, ok, problem, skipped, warning
from deviceplugin.reporting import AllocationMode

HOOK = "HAMi-core"
CDI = "CDI"
CDI_SPECS = "CDI specifications"

CDI_STRATEGIES = frozenset({DeviceListStrategy.CDI_ANNOTATIONS, DeviceListStrategy.CDI_CRI})
_KUBELET_WITH_CDI = (1, 29)
_ENABLE_CDI = re.compile(r"^\s*enable_cdi\s*=\s*(true|false)", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class HookFacts:
    """What lies in `<hook path>/vgpu`."""

    folder: str
    library: str = ""
    """Path of the library; empty if there is none."""
    preload: str | None = None
    """Text of ld.so.preload; None if there is none."""


def judge_hook(facts: HookFacts, containers_per_gpu: int) -> Finding:
    preload = f"{facts.folder}/ld.so.preload"
    install = "Install HAMi-core: topogpu-device-plugin install-hook --from DIR, DIR holding libvgpu.so."
    no_limits = "so no limit of memory or cores holds in containers"
    if facts.library and facts.preload is not None:
        named = facts.preload.split()
        if f"{facts.folder}/libvgpu.so" in named:
            return ok(HOOK, f"{facts.library} is installed.")
        return problem(
            HOOK, f"{preload} names {listed(named)} and not {facts.folder}/libvgpu.so, {no_limits}.", install
        )
    if facts.library:
        return problem(HOOK, f"{facts.library} is there and {preload} is not, {no_limits}.", install)
    if facts.preload is not None:
        return problem(HOOK, f"{preload} is there and {facts.folder}/libvgpu.so is not, {no_limits}.", install)
    missing = f"There is no libvgpu.so in {facts.folder}, {no_limits}"
    if containers_per_gpu == 1:
        return warning(HOOK, f"{missing}; with one container for each GPU that may be wanted.", install)
    return problem(HOOK, f"{missing}, although up to {containers_per_gpu} share a GPU.", install)


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeFacts:
    """Versions as the Node tells them; empty if unknown."""

    kubelet: str = ""
    runtime: str = ""
    """`containerd://2.1.0`."""
    enable_cdi: bool | None = None
    """As containerd's own file says; None where it says nothing or cannot be read."""


def enable_cdi(config: str) -> bool | None:
    """What a containerd config.toml says of CDI."""
    found = _ENABLE_CDI.search(config)
    return None if found is None else found[1] == "true"


def judge_cdi(facts: RuntimeFacts, strategies: Sequence[DeviceListStrategy], mode: AllocationMode) -> Finding:
    by_strategy = not CDI_STRATEGIES.isdisjoint(strategies)
    if not facts.runtime and facts.enable_cdi is None:
        return skipped(CDI, "The versions of kubelet and the container runtime are not known without the Node.")
    off, doubt = _why_off(facts), _doubt(facts)
    if not off and doubt:
        return warning(CDI, doubt, "Use containerd 2 or CRI-O, or set enable_cdi = true for containerd 1.7.")
    if not off:
        return ok(CDI, f"Kubelet {facts.kubelet or '?'} and {facts.runtime or 'the runtime'} resolve CDI devices.")
    if by_strategy or mode is AllocationMode.SLOTS:
        user = f"--device-list-strategy is {', '.join(strategies)}" if by_strategy else "allocation is by slots"
        return problem(
            CDI,
            f"{off}, but {user}: containers start without GPUs or not at all.",
            "Turn CDI on, or set --device-list-strategy to envvar and --allocation to immediate.",
        )
    return warning(
        CDI,
        f"{off}. Allocation is immediate and needs the node lock; GPUs are handed over by --device-list-strategy "
        f"{', '.join(strategies)}.",
        "To serve without the node lock, turn CDI on: kubelet 1.29 and containerd 2.0, or 1.7 with enable_cdi = true.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CdiFolderFacts:
    directories: tuple[str, ...]
    missing: tuple[str, ...]
    """Names that containers will be given and no specification defines."""
    writable: bool
    """The last folder, which the daemon generates into."""


def judge_cdi_specs(facts: CdiFolderFacts, strategies: Sequence[DeviceListStrategy]) -> Finding:
    if not CDI_STRATEGIES.intersection(strategies):
        return ok(CDI_SPECS, f"None are needed for --device-list-strategy {', '.join(strategies)}.")
    if facts.missing:
        return problem(
            CDI_SPECS,
            missing_sentence(facts.missing, facts.directories, "nobody has generated one."),
            "Generate it with nvidia-ctk cdi generate, with UUIDs as names and the vendor and class of --cdi-kind.",
        )
    if not facts.writable:
        return warning(
            CDI_SPECS,
            f"{facts.directories[-1]} cannot be written, so specifications of GPUs that come later are not generated.",
            f"Mount {facts.directories[-1]} of the host into the daemon's container, writable.",
        )
    return ok(CDI_SPECS, f"Every GPU is defined in {' or '.join(facts.directories)}.")


def _why_off(facts: RuntimeFacts) -> str:
    """The beginning of a sentence; empty when nothing speaks against CDI."""
    kubelet = _version(facts.kubelet)
    name, _, version = facts.runtime.partition("://")
    if kubelet and kubelet < _KUBELET_WITH_CDI:
        return f"CDI is off in kubelet {facts.kubelet}, which has it by default since 1.29"
    if facts.enable_cdi is False:
        return "CDI is switched off in containerd's configuration (enable_cdi = false)"
    if name == "containerd" and (1, 0) < _version(version) < (1, 7):
        return f"containerd {version} knows no CDI"
    return "Kubelet's Docker runtime knows no CDI" if name == "docker" else ""


def _doubt(facts: RuntimeFacts) -> str:
    """One sentence; empty where nothing is left open."""
    name, _, version = facts.runtime.partition("://")
    if name == "containerd" and _version(version) < (2, 0) and facts.enable_cdi is None:
        return f"containerd {version} has CDI off unless its configuration turns it on, which cannot be seen from here."
    if name not in ("containerd", "cri-o", ""):
        return f"The container runtime {facts.runtime} is not known to resolve CDI devices."
    return ""


def _version(text: str) -> tuple[int, ...]:
    found = re.match(r"v?(\d+)\.(\d+)", text)
    return (int(found[1]), int(found[2])) if found else ()
