"""Lists for `allocations` which containers hold which GPUs, and whether the sources agree."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Group, RenderableType
from rich.text import Text

from deviceplugin.apiserver import USER_AGENT
from deviceplugin.cli.named import in_use
from deviceplugin.configuration.table import Configuration
from deviceplugin.container.cdi import slot_in
from deviceplugin.doctor.agreement import Row, Sources, Verdict, Word, agreement
from deviceplugin.records.checkpoint_file import CHECKPOINT_NAME
from deviceplugin.records.holdings import CheckpointUnreadable, Holding, ListedContainer, decode_checkpoint
from deviceplugin.records.pod_resources import PodResources, PodResourcesUnavailable
from deviceplugin.settings import KubeletSettings
from deviceplugin.slots.slot import SPEC_FILE
from program.output import print_json, print_text
from program.tables import Column, FittingTable
from program.words import model
from proto.annotations.errors import AnnotationError
from proto.annotations.keys import NODE_ALLOCATION, NODE_LIMITS, NODE_REGISTER
from proto.annotations.memory_resize import resize_words
from proto.annotations.node_allocation import AllocationMode, decode_mode
from proto.annotations.node_register import decode_register
from proto.devices import Device, DeviceUUID
from proto.kubernetes.client import ApiServer
from proto.kubernetes.errors import ApiError, ApiServerUnconfigured, ApiUnreachable
from proto.kubernetes.objects import NODES, PODS, Node, Pod

ANSWER_SECONDS = 3.0
_MARKS = {
    Word.AGREES: Text("✓", "green"),
    Word.UNKNOWN: Text("?", "yellow"),
    Word.SILENT: Text("–"),
}
_EITHER = "Run this on the node, as root, where the daemon runs, with the daemon's options."


@dataclass(frozen=True, slots=True)
class _PodsAndNode:
    node: Node | None = None
    pods: tuple[Pod, ...] | None = None


def list_allocations(given: dict[str, str | None], output: str) -> bool:
    """Prints who holds what. Returns whether all readable sources agree, and one can be read."""
    configuration = in_use(given).configuration
    problems: list[str] = []
    sources = asyncio.run(_read(configuration, problems))
    rows = agreement(sources)
    if output == "json":
        printed = {"limits": sources.limits, "allocations": [_as_json(row) for row in rows], "problems": problems}
        print_json({**printed, "resizes": _resizes(sources)})
    else:
        print_text(_as_text(rows, sources, problems, wide=output == "wide"))
    unknown = sources.recorded is None and sources.listed is None
    return not unknown and all(row.agrees for row in rows)


async def _read(configuration: Configuration, problems: list[str]) -> Sources:
    """Reads the sources. `problems` receives a sentence for every source that cannot be read."""
    kubelet = configuration.kubelet
    cluster, listed = await asyncio.gather(_ask_api_server(configuration, problems), _ask_kubelet(kubelet, problems))
    recorded = _read_checkpoint(kubelet, problems)
    by_slots = _is_by_slots(cluster.node, recorded)
    return Sources(
        resource=kubelet.resource_name,
        by_slots=by_slots,
        recorded=recorded,
        listed=listed,
        pods=cluster.pods,
        inventory={device.uuid: device for device in _registered(cluster.node)},
        limits="" if cluster.node is None else cluster.node.metadata.annotations.get(NODE_LIMITS, ""),
        spec=_read_spec(configuration.agent.cdi_directory, problems) if by_slots else None,
    )


async def _ask_api_server(configuration: Configuration, problems: list[str]) -> _PodsAndNode:
    name = configuration.agent.node_name
    if not name:
        problems.append("The name of this node is unknown, so the API server was not asked. Give --node-name.")
        return _PodsAndNode()
    try:
        async with (
            asyncio.timeout(ANSWER_SECONDS),
            await ApiServer.connect(
                configuration.kubeconfig or None, timeout_seconds=ANSWER_SECONDS, user_agent=USER_AGENT
            ) as api,
        ):
            pods = await api.list_page(PODS, field_selector=f"spec.nodeName={name}", limit=0)
            return _PodsAndNode(await api.get(NODES, name), tuple(pods.items))
    except (ApiError, ApiUnreachable, ApiServerUnconfigured, TimeoutError) as error:
        why = str(error).rstrip(".") or f"no answer within {ANSWER_SECONDS:g} s"
        problems.append(f"The decisions for the pods of node {name} cannot be read: {why}.")
        return _PodsAndNode()


async def _ask_kubelet(kubelet: KubeletSettings, problems: list[str]) -> tuple[ListedContainer, ...] | None:
    try:
        socket, resource = kubelet.pod_resources_socket, kubelet.resource_name
        return await PodResources(socket, resource, deadline_seconds=ANSWER_SECONDS).listed()
    except PodResourcesUnavailable as error:
        problems.append(f"Kubelet's pod-resources cannot be asked: {error}. {_EITHER}")
        return None


def _read_checkpoint(kubelet: KubeletSettings, problems: list[str]) -> tuple[Holding, ...] | None:
    path = Path(kubelet.root, "device-plugins", CHECKPOINT_NAME)
    try:
        return decode_checkpoint(path.read_bytes())
    except OSError as error:
        problems.append(f"Kubelet's checkpoint {path} cannot be read: {error.strerror}. {_EITHER}")
    except CheckpointUnreadable as error:
        problems.append(f"{path}: {error}.")
    return None


def _read_spec(directory: str, problems: list[str]) -> bytes | None:
    path = Path(directory, SPEC_FILE)
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""
    except OSError as error:
        problems.append(f"The CDI spec of the slots, {path}, cannot be read: {error.strerror}.")
        return None


def _is_by_slots(node: Node | None, recorded: tuple[Holding, ...] | None) -> bool:
    """Returns the mode that the daemon published; if the Node cannot be read, kubelet's memory of slots decides."""
    if node is None:
        return any(slot_in(entry.cdi_devices) for entry in recorded or ())
    return decode_mode(node.metadata.annotations.get(NODE_ALLOCATION)) is AllocationMode.SLOTS


def _registered(node: Node | None) -> tuple[Device, ...]:
    try:
        return () if node is None else tuple(decode_register(node.metadata.annotations.get(NODE_REGISTER, "")))
    except AnnotationError:
        return ()


def _as_text(rows: tuple[Row, ...], sources: Sources, problems: list[str], *, wide: bool) -> RenderableType:
    held = [Text(f"Parts of GPUs are held by: {sources.limits}.", "dim")] if sources.limits else []
    notes = [*held, *(Text(f"! {problem}", "yellow") for problem in problems)]
    if not rows:
        empty = "" if sources.recorded is None and sources.listed is None else "No container holds a GPU replica."
        return Group(*([Text(empty)] if empty else []), *notes)
    checked = [name for name in rows[0].verdicts if sources.by_slots or name != "CDI spec"]
    columns = [
        *(Column(title=title) for title in ("Pod", "Container", "GPU", "Limits", "Agree")),
        *(Column(title=name, rank=1) for name in checked),
    ]
    if wide:
        columns += [Column(title="UUID"), Column(title="Replicas"), *([Column(title="Slot")] * sources.by_slots)]
    table = FittingTable(
        columns=columns,
        rows=[_cells(row, sources, checked, wide=wide)[: len(columns)] for row in rows],
        everything=wide,
        more="--output wide shows all.",
    )
    resizes = [Text(f"pod {name}: {words}.", "yellow") for name, words in _resizes(sources).items()]
    return Group(table, *(Text(sentence, "red") for row in rows for sentence in _differences(row)), *resizes, *notes)


def _resizes(sources: Sources) -> Mapping[str, str]:
    """Returns how far wishes for other GPU memory have come, by pod."""
    found = {pod.full_name: resize_words(pod.metadata.annotations) for pod in sources.pods or () if not pod.has_ended}
    return {name: words for name, words in found.items() if words}


def _cells(row: Row, sources: Sources, checked: Sequence[str], *, wide: bool) -> tuple[str | Text, ...]:
    gpus = [_gpu(share.uuid, sources) for share in row.shares] or ["unknown"]
    limits = [f"{share.memory_mib or 'all'} MiB, {share.cores or 'any'} %" for share in row.shares] or ["unknown"]
    marks = [_MARKS.get(row.verdicts[name].word, Text("✗", "red")) for name in checked]
    agree = Text("yes", "green") if row.agrees else Text("no", "red")
    uuids = [share.uuid for share in row.shares]
    ids = ("\n".join(uuids), "\n".join(row.ids), row.slot) if wide else ()
    return (row.pod, row.container, "\n".join(gpus), "\n".join(limits), agree, *marks, *ids)


def _gpu(uuid: DeviceUUID, sources: Sources) -> str:
    """Returns index and model; the UUID where the Node's registration is not known."""
    device = sources.inventory.get(uuid)
    return str(uuid) if device is None else f"{device.index}  {model(device.type)}"


def _differences(row: Row) -> list[str]:
    return [
        f"✗ pod {row.pod}, container {row.container}: {name}: {verdict.difference}."
        for name, verdict in row.verdicts.items()
        if verdict.word is Word.DIFFERS
    ]


def _as_json(row: Row) -> Mapping[str, object]:
    namespace, _, pod = row.pod.rpartition("/")
    return {
        "namespace": namespace,
        "pod": pod,
        "container": row.container,
        "replicas": row.ids,
        "slot": row.slot or None,
        "gpus": [{"uuid": s.uuid, "memoryMiB": s.memory_mib, "cores": s.cores} for s in row.shares],
        "agreement": {name: _verdict(verdict) for name, verdict in row.verdicts.items()},
        "agrees": row.agrees,
    }


def _verdict(verdict: Verdict) -> Mapping[str, str]:
    return {"is": verdict.word.value, **({"difference": verdict.difference} if verdict.difference else {})}
