"""The page with the names of NVIDIA's DCGM exporter, at a separate path, so that no GPU is counted twice by accident.

The text is written here: prometheus_client ends the names of counters in `_total`, DCGM exporter's have no such end.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from deviceplugin.metrics.series import MOST_VGPUS
from deviceplugin.metrics.view import DaemonView
from deviceplugin.usage.telemetry import Instance, NodeTelemetry, Quantity, Telemetry, Values
from deviceplugin.usage.used import NodeSample, VgpuUsage, node_usage
from program.words import escaped_label
from proto.devices import DeviceUUID

TELEMETRY_CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
HOLDER = "topogpu_gpu_holder_info"
HOLDER_DOCUMENTATION = "1 for each container that holds a share of the GPU or MIG device."
AGE = "topogpu_telemetry_age_seconds"
AGE_DOCUMENTATION = "Age of the readings on this page."

Labels = Mapping[str, str]
_Series = tuple[Labels, float]


def telemetry_page(view: DaemonView, telemetry: NodeTelemetry, age_seconds: float | None) -> str:
    """Returns one series of each GPU, and of its framebuffer one of each MIG instance. Empty families are left out."""
    holders = _holders(view)
    series: dict[Quantity, list[_Series]] = defaultdict(list)
    for one in telemetry.gpus:
        for labels, values in _described(one, view, telemetry.driver, holders):
            for quantity, value in values.items():
                series[quantity].append((labels, value))
    parts = [_family(each, each.kind, each.documentation, series[each]) for each in Quantity if series[each]]
    parts.append(_family(HOLDER, "gauge", HOLDER_DOCUMENTATION, _held(holders)))
    if age_seconds is not None:
        parts.append(_family(AGE, "gauge", AGE_DOCUMENTATION, [({}, age_seconds)]))
    return "".join(parts)


def _described(
    one: Telemetry, view: DaemonView, driver: str, holders: Mapping[DeviceUUID, Sequence[VgpuUsage]]
) -> Iterator[tuple[Labels, Values]]:
    gpu = one.gpu
    labels = {
        "gpu": str(gpu.index),
        "UUID": gpu.uuid,
        "pci_bus_id": gpu.bus_id,
        "device": "" if gpu.minor is None else f"nvidia{gpu.minor}",
        "modelName": gpu.name,
        "Hostname": view.node_name,
        "DCGM_FI_DRIVER_VERSION": driver,
    }
    xid = {Quantity.XID_ERRORS: view.xids[gpu.uuid]} if gpu.uuid in view.xids else {}
    yield {**labels, **_only_holder(holders.get(gpu.uuid, ()))}, {**one.values, **xid}
    for instance in one.instances:
        names = {"GPU_I_PROFILE": instance.profile, "GPU_I_ID": str(instance.gi)}
        yield {**labels, **names, **_only_holder(_of_instance(instance, holders))}, instance.values


def _of_instance(instance: Instance, holders: Mapping[DeviceUUID, Sequence[VgpuUsage]]) -> Sequence[VgpuUsage]:
    return [holder for device in sorted(instance.devices) for holder in holders.get(device, ())]


def _only_holder(holders: Sequence[VgpuUsage]) -> Labels:
    """Returns the container of a GPU; none if shared, because its activity cannot be divided among containers."""
    if len(holders) != 1:
        return {}
    [holder] = holders
    return {"namespace": holder.namespace, "pod": holder.pod, "container": holder.container}


def _holders(view: DaemonView) -> Mapping[DeviceUUID, Sequence[VgpuUsage]]:
    """Returns the containers of each GPU, as decided for the pods."""
    indices = {device.uuid: device.index for device in view.devices}
    held: dict[DeviceUUID, list[VgpuUsage]] = defaultdict(list)
    for share in node_usage(view.pods.values(), NodeSample(), indices).vgpus[:MOST_VGPUS]:
        held[share.uuid].append(share)
    return held


def _held(holders: Mapping[DeviceUUID, Sequence[VgpuUsage]]) -> Iterator[_Series]:
    for uuid, shares in holders.items():
        for share in shares:
            who = {"namespace": share.namespace, "pod": share.pod, "container": share.container}
            yield {"UUID": uuid, **who}, 1


def _family(name: str, kind: str, documentation: str, series: Iterable[_Series]) -> str:
    lines = [f"# HELP {name} {documentation}", f"# TYPE {name} {kind}"]
    lines += [f"{name}{_written(labels)} {value}" for labels, value in series]
    return "\n".join(lines) + "\n"


def _written(labels: Labels) -> str:
    pairs = ",".join(f'{name}="{escaped_label(value)}"' for name, value in labels.items())
    return f"{{{pairs}}}" if pairs else ""
