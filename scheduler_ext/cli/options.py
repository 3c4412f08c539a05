"""Flags that `serve` and `decide` share: how pods are read, and by what they are placed."""

from collections.abc import Callable
from functools import wraps
from pathlib import Path

import click

from proto.annotations import keys
from scheduler_ext.device_config import KEYS, DeviceConfigError, read_device_config
from scheduler_ext.policies import PolicyError, parse_gpu_policy, parse_node_policy
from scheduler_ext.requests import MOST_GPU_CONTAINERS, MOST_GPUS, RequestSettings, ResourceNames
from scheduler_ext.settings import SettingsError, checked_resource

Command = Callable[..., None]


def request_options(command: Command) -> Command:
    """Adds the flags of RequestSettings; the command gets them as one argument `requests`."""

    @wraps(command)
    def with_requests(
        *,
        node_scheduler_policy: str,
        gpu_scheduler_policy: str,
        default_mem: int,
        default_cores: int,
        memory_factor: int,
        node_topology: str,
        max_gpu_containers: int,
        max_gpus_per_container: int,
        resource_name: str,
        resource_mem: str,
        resource_mem_percentage: str,
        resource_cores: str,
        resource_priority: str,
        **others: object,
    ) -> None:
        flags = {
            "--resource-name": resource_name,
            "--resource-mem": resource_mem,
            "--resource-mem-percentage": resource_mem_percentage,
            "--resource-cores": resource_cores,
            "--resource-priority": resource_priority,
        }
        try:
            count, memory, memory_percentage, cores, priority = (
                checked_resource(name, flag) for flag, name in flags.items()
            )
            _refuse_ambiguous(tuple(flags.values()))
            requests = RequestSettings(
                names=ResourceNames(
                    count=count, memory=memory, memory_percentage=memory_percentage, cores=cores, priority=priority
                ),
                default_memory_mib=default_mem,
                default_cores=default_cores,
                memory_factor=memory_factor,
                node_policy=parse_node_policy(node_scheduler_policy),
                gpu_policy=parse_gpu_policy(gpu_scheduler_policy),
                node_topology=node_topology == "on",
                most_gpu_containers=max_gpu_containers,
                most_gpus=max_gpus_per_container,
            )
        except (PolicyError, SettingsError) as error:
            raise click.ClickException(str(error)) from error
        command(requests=requests, **others)

    wrapped: Command = with_requests
    for option in reversed(_OPTIONS):
        wrapped = option(wrapped)
    return wrapped


def switch(*flags: str, default: bool = False, **attributes: object) -> Callable[[Command], Command]:
    """An option for true or false that may be written as Go's flags are: alone, or with `=true`."""
    return click.option(*flags, type=bool, is_flag=False, flag_value=True, default=default, **attributes)  # type: ignore[arg-type]


def _read_device_config(context: click.Context, _: click.Parameter, file: str | None) -> None:
    """What the file says stands in for flags that are not given."""
    if file is None:
        return
    try:
        config = read_device_config(Path(file).read_text(encoding="utf-8"), file)
    except DeviceConfigError as error:
        raise click.ClickException(str(error)) from error
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "is not UTF-8 text"
        raise click.ClickException(f"{file}: cannot be read: {reason}") from error
    for warning in config.warnings:
        click.echo(f"warning: {warning}", err=True)
    for option in context.command.params:
        if option.name in config.defaults:
            _check_default(context, option, config.defaults[option.name], f"{file}: nvidia.{KEYS[option.name]}")
    context.default_map = {**(context.default_map or {}), **config.defaults}


def _check_default(context: click.Context, option: click.Parameter, value: object, where: str) -> None:
    """What would be blamed on a flag that nobody gave is said of the file."""
    try:
        option.type_cast_value(context, value)
        if option.name is not None and option.name.startswith("resource_"):
            checked_resource(str(value), where)
    except click.BadParameter as error:
        raise click.ClickException(f"{where}: {error.message}") from error
    except SettingsError as error:
        raise click.ClickException(str(error)) from error


def _name_option(flag: str, default: str, counted: str) -> Callable[[Command], Command]:
    return click.option(
        flag, default=default, show_default=True, help=f"Resource by which containers ask for {counted}."
    )


_OPTIONS: tuple[Callable[[Command], Command], ...] = (
    click.option(
        "--device-config-file",
        metavar="FILE",
        is_eager=True,
        expose_value=False,
        callback=_read_device_config,
        help="HAMi's device-config.yaml; its section nvidia stands in for flags that are not given.",
    ),
    click.option("--node-scheduler-policy", default="binpack", show_default=True, help="binpack or spread."),
    click.option(
        "--gpu-scheduler-policy",
        default="spread",
        show_default=True,
        help="binpack, spread, topology-aware, mutex, numa, or a comma list of them.",
    ),
    click.option(
        "--node-topology",
        type=click.Choice(["on", "off"]),
        default="on",
        show_default=True,
        help="Whether a topology-aware pod of several GPUs goes first to the node that connects them best; off is "
        "HAMi's order of nodes.",
    ),
    click.option(
        "--default-mem",
        type=click.IntRange(min=0),
        default=0,
        show_default=True,
        help="MiB for a container that asks for no GPU memory; 0 gives it the whole GPU.",
    ),
    click.option(
        "--default-cores",
        type=click.IntRange(0, 100),
        default=0,
        show_default=True,
        help="Percent of a GPU's cores for a container that asks for none; 0 sets no limit.",
    ),
    click.option(
        "--memory-factor",
        type=click.IntRange(min=1),
        default=1,
        show_default=True,
        help="MiB that one unit of requested GPU memory, and of a quota for it, stands for.",
    ),
    click.option(
        "--max-gpu-containers",
        type=click.IntRange(min=1),
        default=MOST_GPU_CONTAINERS,
        show_default=True,
        help="Containers of one pod that may ask for GPUs, init containers included; a pod with more is refused.",
    ),
    click.option(
        "--max-gpus-per-container",
        type=click.IntRange(min=1),
        default=MOST_GPUS,
        show_default=True,
        help="GPUs that one container may ask for; a pod that asks for more is refused.",
    ),
    _name_option("--resource-name", keys.RESOURCE_COUNT, "GPUs"),
    _name_option("--resource-mem", keys.RESOURCE_MEMORY, "memory of each GPU"),
    _name_option("--resource-mem-percentage", keys.RESOURCE_MEMORY_PERCENTAGE, "a percentage of each GPU's memory"),
    _name_option("--resource-cores", keys.RESOURCE_CORES, "percent of each GPU's cores"),
    _name_option("--resource-priority", keys.RESOURCE_PRIORITY, "a task priority on their GPUs"),
)


def _refuse_ambiguous(names: tuple[str, ...]) -> None:
    """Raises SettingsError for a name that stands for two things."""
    for name in names:
        if names.count(name) > 1:
            raise SettingsError(f"{name!r} names two resources; each --resource-… flag needs a name of its own")
