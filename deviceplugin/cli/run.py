"""`topogpu-device-plugin run`: the daemon of one node."""

import asyncio
import json
import logging
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import click

from deviceplugin.agent import Agent, GpusUnavailable, Inventory
from deviceplugin.allocation import AllocationSettings, DeviceListStrategy
from deviceplugin.discovery import NodeSharing, discover_devices
from deviceplugin.nvml import Nvml, NvmlUnavailable
from deviceplugin.settings import AgentSettings, KubeletSettings
from deviceplugin.topology import build_topology, pair_scores
from proto.kubernetes.client import ApiServer, ApiServerUnconfigured


class _JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S%z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)


class _Strategies(click.ParamType[tuple[DeviceListStrategy, ...]]):
    """A comma list of device-list strategies."""

    name = "strategies"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[DeviceListStrategy, ...]:
        words = [word.strip() for word in str(value).split(",")]
        try:
            return tuple(DeviceListStrategy(word) for word in words)
        except ValueError:
            self.fail(f"{value!r}: expected a comma list of {', '.join(DeviceListStrategy)}.", param, ctx)


@click.command("run", context_settings={"show_default": True})
@click.option(
    "--node-name", envvar="NODE_NAME", required=True, show_envvar=True, help="The Node object of this machine."
)
@click.option(
    "--kubeconfig",
    metavar="FILE",
    help="Default: $KUBECONFIG, ~/.kube/config, or the cluster around us.",
)
@click.option(
    "--kubelet-root",
    envvar="KUBELET_ROOT",
    show_envvar=True,
    default="/var/lib/kubelet",
    type=click.Path(file_okay=False),
    help="Kubelet's folder; the sockets lie in its device-plugins.",
)
@click.option(
    "--nvml-library",
    envvar="NVML_LIBRARY",
    show_envvar=True,
    type=click.Path(dir_okay=False),
    help="Load this library instead of libnvidia-ml.so.1.",
)
@click.option(
    "--sysfs-root",
    envvar="SYSFS_ROOT",
    show_envvar=True,
    default="/sys",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where NUMA nodes are read.",
)
@click.option(
    "--resource-name",
    envvar="RESOURCE_NAME",
    show_envvar=True,
    default="nvidia.com/gpu",
    help="The resource pods ask for.",
)
@click.option(
    "--device-split-count",
    envvar="DEVICE_SPLIT_COUNT",
    show_envvar=True,
    default=10,
    type=click.IntRange(1),
    help="How many containers may share one GPU.",
)
@click.option(
    "--device-memory-scaling",
    envvar="DEVICE_MEMORY_SCALING",
    show_envvar=True,
    default=1.0,
    type=click.FloatRange(0, min_open=True),
    help="Advertised memory of a GPU as a multiple of what it has.",
)
@click.option(
    "--device-cores-scaling",
    envvar="DEVICE_CORES_SCALING",
    show_envvar=True,
    default=1.0,
    type=click.FloatRange(0, min_open=True),
    help="Advertised cores of a GPU as a multiple of 100 %.",
)
@click.option(
    "--device-list-strategy",
    envvar="DEVICE_LIST_STRATEGY",
    show_envvar=True,
    default="envvar",
    type=_Strategies(),
    help="How the container runtime learns the GPUs: envvar, volume-mounts, cdi-annotations, cdi-cri, or several.",
)
@click.option(
    "--hook-path",
    envvar="HOOK_PATH",
    show_envvar=True,
    default="/usr/local",
    help="HAMi-core is injected when it lies in the folder vgpu below this one.",
)
@click.option("--log-format", envvar="LOG_FORMAT", default="text", type=click.Choice(["text", "json"]))
@click.option(
    "--log-level",
    envvar="LOG_LEVEL",
    default="info",
    type=click.Choice(["debug", "info", "warning", "error"], case_sensitive=False),
)
def run(
    *,
    node_name: str,
    kubeconfig: str | None,
    kubelet_root: str,
    nvml_library: str | None,
    sysfs_root: Path,
    resource_name: str,
    device_split_count: int,
    device_memory_scaling: float,
    device_cores_scaling: float,
    device_list_strategy: tuple[DeviceListStrategy, ...],
    hook_path: str,
    log_format: str,
    log_level: str,
) -> None:
    """Serve this node's GPUs to kubelet and describe them on the Node.

    Reads the GPUs and their links through NVML, keeps them in the Node's annotations, and hands every container the
    GPUs that the scheduler decided for its pod. Without a driver or a GPU it says so and waits for them.
    SIGTERM and SIGINT stop it and remove its socket.
    """
    _set_up_logging(log_format, log_level)
    sharing = NodeSharing(
        split_count=device_split_count, memory_scaling=device_memory_scaling, core_scaling=device_cores_scaling
    )
    nvml = Nvml(nvml_library, sysfs_root=sysfs_root)

    def build(api: ApiServer) -> Agent:
        return Agent(
            api,
            gpu_reader(nvml, sharing),
            AgentSettings(node_name=node_name, hook_path=hook_path),
            allocation=AllocationSettings(strategies=device_list_strategy, oversubscribed=device_memory_scaling > 1),
            kubelet=KubeletSettings(root=kubelet_root, resource_name=resource_name),
        )

    try:
        asyncio.run(_run_until_signalled(kubeconfig, build))
    except* (ApiServerUnconfigured, GpusUnavailable) as errors:
        problem = "; ".join(map(str, errors.exceptions))
    else:
        problem = ""
    finally:
        nvml.close()
    if problem:
        raise click.ClickException(problem)


def gpu_reader(nvml: Nvml, sharing: NodeSharing) -> Callable[[], Inventory]:
    """A blocking reading of this machine. It raises GpusUnavailable without a driver or a GPU."""

    def read() -> Inventory:
        try:
            machine = nvml.read_machine()
        except NvmlUnavailable as error:
            raise GpusUnavailable(_sentence(str(error)), needs_restart=error.needs_restart) from error
        devices = discover_devices(machine, sharing)
        if not devices:
            raise GpusUnavailable("The NVIDIA driver shows no GPU that can be shared on this machine.")
        return Inventory(devices=devices, scores=pair_scores(build_topology(machine)))

    return read


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:].rstrip(".") + "."


async def _run_until_signalled(kubeconfig: str | None, build: Callable[[ApiServer], Agent]) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    api = await ApiServer.connect(kubeconfig, user_agent="topogpu-device-plugin")
    agent = asyncio.create_task(build(api).run())
    stopped = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({agent, stopped}, return_when=asyncio.FIRST_COMPLETED)
        if agent.done():
            agent.result()
    finally:
        stopped.cancel()
        agent.cancel()
        await asyncio.gather(agent, stopped, return_exceptions=True)
        await api.close()


def _set_up_logging(log_format: str, log_level: str) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        _JsonLines() if log_format == "json" else logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
    )
    logging.basicConfig(level=log_level.upper(), handlers=[handler], force=True)
