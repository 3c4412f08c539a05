"""NVLinks and pair facts of GPUs as NVML reports them."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from deviceplugin.machine.readings import PairReading, PcieLevel, PeerStatus, SwitchEvidence
from deviceplugin.nvml.calls import NvmlCalls, bus_id_of

SWITCH_LINK_COUNT_FIELD = 147
COMMON_SPEED_FIELD = 90
LINK_SPEED_FIELD = 164
LINK_VERSION_FIELD = 166

HIDDEN_ADDRESS = "FFFFFFFF:FF:FF.0"
"""The other end of a link to a switch that this machine does not see."""

# NVML_P2P_CAPS_INDEX_READ is the tuple (0,) in nvidia-ml-py, which the call rejects.
P2P_READ = 0
P2P_NVLINK = 2


@dataclass(frozen=True, slots=True)
class Links:
    """The live links of one GPU. `peers` counts those to each address, `switch_links` those to NVSwitches."""

    peers: Mapping[str, int]
    switch_links: int
    evidence: SwitchEvidence
    version: int | None
    mbps: int | None


@dataclass(frozen=True, slots=True)
class _Link:
    number: int
    address: str
    remote_type: int


def address_key(bus_id: str) -> str:
    """Returns one spelling for addresses of four and of eight domain digits."""
    domain, _, rest = bus_id.strip().upper().partition(":")
    return f"{domain.zfill(8)}:{rest}"


def read_links(
    calls: NvmlCalls, handle: object, gpu_addresses: frozenset[str], is_switch: Callable[[str], bool]
) -> Links:
    """Raises GpuGone. `gpu_addresses` are the keys of this machine's GPUs."""
    links = _live_links(calls, handle)
    count, evidence = _switch_links(calls, handle, links, gpu_addresses, is_switch)
    first = links[0].number if links else 0
    return Links(
        peers=Counter(link.address for link in links),
        switch_links=count,
        evidence=evidence,
        version=_version(calls, handle, first) if links or count else None,
        mbps=_mbps(calls, handle, first) if links or count else None,
    )


def read_pair(calls: NvmlCalls, handles: tuple[object, object], links_there: int, links_back: int) -> PairReading:
    """Returns each fact by itself: a refusal leaves that one unknown. Raises GpuGone."""
    return PairReading(
        level=_level(calls, handles),
        links_there=links_there,
        links_back=links_back,
        p2p_nvlink=_peer_status(calls, handles, P2P_NVLINK),
        p2p_pcie=_peer_status(calls, handles, P2P_READ),
    )


def _live_links(calls: NvmlCalls, handle: object) -> tuple[_Link, ...]:
    """The loop ends where the driver refuses a link, not at a constant: the constant grew from 6 to 36."""
    found: list[_Link] = []
    for number in range(calls.pynvml.NVML_NVLINK_MAX_LINKS):
        state = calls.ask_or(None, "nvmlDeviceGetNvLinkState", handle, number)
        if state is None:
            break
        if state:
            found.append(_link(calls, handle, number))
    return tuple(found)


def _link(calls: NvmlCalls, handle: object, number: int) -> _Link:
    pci: Any = calls.ask_or(None, "nvmlDeviceGetNvLinkRemotePciInfo", handle, number)
    unknown = calls.pynvml.NVML_NVLINK_DEVICE_TYPE_UNKNOWN
    address = bus_id_of(pci) if pci is not None else ""
    return _Link(
        number=number,
        address=address_key(address) if address else "",
        remote_type=calls.ask_or(unknown, "nvmlDeviceGetNvLinkRemoteDeviceType", handle, number),
    )


def _switch_links(
    calls: NvmlCalls,
    handle: object,
    links: tuple[_Link, ...],
    gpu_addresses: frozenset[str],
    is_switch: Callable[[str], bool],
) -> tuple[int, SwitchEvidence]:
    count = calls.field(handle, SWITCH_LINK_COUNT_FIELD)
    if count is not None:
        return count, SwitchEvidence.FIELD
    of_type = sum(link.remote_type == calls.pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH for link in links)
    if of_type:
        return of_type, SwitchEvidence.TYPE
    inferred = sum(
        link.remote_type == calls.pynvml.NVML_NVLINK_DEVICE_TYPE_UNKNOWN
        and link.address not in gpu_addresses
        and (link.address == HIDDEN_ADDRESS or (link.address != "" and is_switch(link.address)))
        for link in links
    )
    return inferred, SwitchEvidence.ADDRESS if inferred else SwitchEvidence.NONE


def _version(calls: NvmlCalls, handle: object, link: int) -> int | None:
    version = calls.field(handle, LINK_VERSION_FIELD, link)
    answer: int | None = version or calls.ask_or(None, "nvmlDeviceGetNvLinkVersion", handle, link)
    return answer


def _mbps(calls: NvmlCalls, handle: object, link: int) -> int | None:
    return calls.field(handle, LINK_SPEED_FIELD, link) or calls.field(handle, COMMON_SPEED_FIELD)


def _level(calls: NvmlCalls, handles: tuple[object, object]) -> PcieLevel | None:
    level = calls.ask_or(None, "nvmlDeviceGetTopologyCommonAncestor", *handles)
    return PcieLevel(level) if level in set(PcieLevel) else None


def _peer_status(calls: NvmlCalls, handles: tuple[object, object], kind: int) -> PeerStatus:
    unknown = calls.pynvml.NVML_P2P_STATUS_UNKNOWN
    status = calls.ask_or(unknown, "nvmlDeviceGetP2PStatus", *handles, kind)
    if status == unknown:
        return PeerStatus.UNREADABLE
    return PeerStatus.OK if status == calls.pynvml.NVML_P2P_STATUS_OK else PeerStatus.REFUSED
