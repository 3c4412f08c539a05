"""Asks the real nvidia-ml-py everything, in its own process: NVML is one machine per process.

Argument: the library's path. Prints one JSON object.
"""

import ctypes
import json
import sys
from collections.abc import Callable
from typing import Any

import pynvml


def asked(call: Callable[..., Any], *arguments: object) -> Any:
    """The answer, or the error's number as `"error N"`."""
    try:
        return call(*arguments)
    except pynvml.NVMLError as e:
        return f"error {e.value}"


def memory(info: Any) -> Any:
    return info if isinstance(info, str) else {name: getattr(info, name) for name, *_ in info._fields_}


def link(handle: Any, number: int) -> list[Any]:
    remote = asked(pynvml.nvmlDeviceGetNvLinkRemotePciInfo, handle, number)
    return [
        asked(pynvml.nvmlDeviceGetNvLinkState, handle, number),
        remote if isinstance(remote, str) else remote.busId,
        asked(pynvml.nvmlDeviceGetNvLinkRemoteDeviceType, handle, number),
    ]


def field(handle: Any, number: int, scope: int = 0) -> Any:
    values = asked(pynvml.nvmlDeviceGetFieldValues, handle, [(number, scope)])
    if isinstance(values, str):
        return values
    return values[0].value.uiVal if values[0].nvmlReturn == 0 else f"error {values[0].nvmlReturn}"


def field_type(handle: Any, number: int) -> Any:
    value = pynvml.nvmlDeviceGetFieldValues(handle, [number])[0]
    return value.valueType if value.nvmlReturn == 0 else f"error {value.nvmlReturn}"


def fabric(handle: Any) -> Any:
    info = pynvml.c_nvmlGpuFabricInfo_v2_t()
    answer = asked(pynvml.nvmlDeviceGetGpuFabricInfoV, handle, ctypes.byref(info))
    if isinstance(answer, str):
        return answer
    return [info.state, info.status, bytes(info.clusterUuid).hex(), info.cliqueId]


def mig(gpu: Any, place: int) -> Any:
    handle = asked(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, gpu, place)
    if isinstance(handle, str):
        return handle
    uuid = pynvml.nvmlDeviceGetUUID(handle)
    by_uuid = asked(pynvml.nvmlDeviceGetHandleByUUID, uuid)
    size = pynvml.nvmlDeviceGetAttributes(handle)
    return {
        "uuid": uuid,
        "by_uuid": by_uuid if isinstance(by_uuid, str) else pynvml.nvmlDeviceGetUUID(by_uuid),
        "name": pynvml.nvmlDeviceGetName(handle),
        "gi": pynvml.nvmlDeviceGetGpuInstanceId(handle),
        "ci": pynvml.nvmlDeviceGetComputeInstanceId(handle),
        "memory": memory(pynvml.nvmlDeviceGetMemoryInfo(handle)),
        "memory_v2": memory(pynvml.nvmlDeviceGetMemoryInfo(handle, pynvml.nvmlMemory_v2)),
        "slices": [size.gpuInstanceSliceCount, size.computeInstanceSliceCount, size.memorySizeMB],
        "is_mig": pynvml.nvmlDeviceIsMigDeviceHandle(handle).value,
        "parent": pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle)),
        "as_a_gpu": asked(pynvml.nvmlDeviceGetPciInfo, handle),
    }


def gpu(handle: Any) -> dict[str, Any]:
    wrong = pynvml.c_nvmlGpuFabricInfo_v2_t()
    wrong.version = 0x0900FFFF
    uuid = pynvml.nvmlDeviceGetUUID(handle)
    return {
        "name": asked(pynvml.nvmlDeviceGetName, handle),
        "uuid": asked(pynvml.nvmlDeviceGetUUID, handle),
        "bus": pynvml.nvmlDeviceGetPciInfo(handle).busId,
        "pci_id": f"{pynvml.nvmlDeviceGetPciInfo(handle).pciDeviceId:08x}",
        "minor": asked(pynvml.nvmlDeviceGetMinorNumber, handle),
        "memory": memory(asked(pynvml.nvmlDeviceGetMemoryInfo, handle)),
        "memory_v2": memory(asked(pynvml.nvmlDeviceGetMemoryInfo, handle, pynvml.nvmlMemory_v2)),
        "memory_v9": memory(asked(pynvml.nvmlDeviceGetMemoryInfo, handle, 0x09000028)),
        "kind": [
            asked(pynvml.nvmlDeviceGetArchitecture, handle),
            asked(pynvml.nvmlDeviceGetBrand, handle),
            asked(pynvml.nvmlDeviceGetEccMode, handle),
        ],
        "cc": asked(pynvml.nvmlDeviceGetCudaComputeCapability, handle),
        "mig": asked(pynvml.nvmlDeviceGetMigMode, handle),
        "most_mig_devices": asked(pynvml.nvmlDeviceGetMaxMigDeviceCount, handle),
        "mig_devices": [mig(handle, place) for place in range(8)],
        "is_mig": asked(pynvml.nvmlDeviceIsMigDeviceHandle, handle).value,
        "instance": asked(pynvml.nvmlDeviceGetGpuInstanceId, handle),
        "own_numa": asked(pynvml.nvmlDeviceGetNumaNodeId, handle),
        "fabric": fabric(handle),
        "fabric_wrong_version": asked(pynvml.nvmlDeviceGetGpuFabricInfoV, handle, ctypes.byref(wrong)),
        "fields": {str(n): field(handle, n) for n in (90, 91, 147, 164, 165, 166, 230, 5555)},
        "types": {str(n): field_type(handle, n) for n in (4, 82, 83, 91, 138)},
        "links": [link(handle, n) for n in range(37)],
        "cpus": [hex(word) for word in pynvml.nvmlDeviceGetCpuAffinity(handle, 8)],
        "nodes": [hex(word) for word in pynvml.nvmlDeviceGetMemoryAffinity(handle, 2, 0)],
        "processes": asked(pynvml.nvmlDeviceGetComputeRunningProcesses, handle),
        "not_exported": asked(pynvml.nvmlDeviceGetFanSpeed, handle),
        "remapped": asked(pynvml.nvmlDeviceGetRemappedRows, handle),
        "pages_pending": asked(pynvml.nvmlDeviceGetRetiredPagesPendingStatus, handle),
        "uncorrected": asked(pynvml.nvmlDeviceGetTotalEccErrors, handle, 1, 0),
        "found_by_uuid": pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByUUID(uuid)) == uuid,
    }


def pair(first: Any, second: Any) -> list[Any]:
    return [
        asked(pynvml.nvmlDeviceGetTopologyCommonAncestor, first, second),
        asked(pynvml.nvmlDeviceGetP2PStatus, first, second, 2),
        asked(pynvml.nvmlDeviceGetP2PStatus, first, second, 4),
    ]


def main(library: str) -> None:
    pynvml.nvmlLib = ctypes.CDLL(library)
    pynvml.nvmlLib.nvmlErrorString.restype = ctypes.c_char_p
    before = asked(pynvml.nvmlDeviceGetCount)
    pynvml.nvmlInit()
    handles = [asked(pynvml.nvmlDeviceGetHandleByIndex, i) for i in range(pynvml.nvmlDeviceGetCount())]
    answers = {
        "before_init": before,
        "driver": pynvml.nvmlSystemGetDriverVersion(),
        "cuda": pynvml.nvmlSystemGetCudaDriverVersion(),
        "texts": [pynvml.nvmlLib.nvmlErrorString(code).decode() for code in (0, 16, 26, 999)],
        "past_the_last": asked(pynvml.nvmlDeviceGetHandleByIndex, len(handles)),
        "gpus": [h if isinstance(h, str) else gpu(h) for h in handles],
        "pairs": [
            pair(a, b)
            for a in handles
            for b in handles
            if a is not b and not isinstance(a, str) and not isinstance(b, str)
        ],
    }
    print(json.dumps(answers))


if __name__ == "__main__":
    main(sys.argv[1])
