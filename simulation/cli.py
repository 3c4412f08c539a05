"""`topogpu-sim`: machines without GPUs, and the whole path running on them.

What takes long to load is imported by the command that needs it, so that Ctrl-C is answered from the start.
"""

import os
import signal
import sys

import click

from program.commands import LazyCommands, RealNumber, WholeNumber
from proto import __version__
from simulation.words import FAULTS
from simulation.workload import SHAPES

_MOST_NODES = 64
_MOST_PODS = 2000
_MOST_LOAD = 600
_MOST_SOAK_MINUTES = 24 * 60
_INTERRUPTED = 130


@click.group(
    cls=LazyCommands,
    context_settings={"help_option_names": ["-h", "--help"]},
    lazy={
        "plan": ("simulation.plan.command", "What policies would do on a cluster that is recorded or described."),
        "replay": ("simulation.replay_command", "Take the decisions of recorded clusters, a line of JSON for each."),
        "topo": ("simulation.machine_commands", "Show how the GPUs of a described machine are connected."),
        "devices": ("simulation.machine_commands", "List the GPUs of a described machine."),
    },
)
@click.version_option(__version__, prog_name="topogpu-sim")
def main() -> None:
    """Simulate GPU machines: the real daemons and the real scheduler extender, without any GPU or cluster.

    Start with `topogpu-sim demo`, which runs once, or `topogpu-sim up`, which keeps running.

    Shell completion: eval "$(_TOPOGPU_SIM_COMPLETE=bash_source topogpu-sim)"
    """


_machines = click.option(
    "--machine",
    "machines_",
    metavar="NAME|FILE",
    multiple=True,
    help="Kind of machine, or set of machines; any number of times. `topogpu-sim machines` lists them; a file holds a "
    "description (YAML).",
)
_nodes = click.option(
    "--nodes",
    type=WholeNumber(1, _MOST_NODES),
    default=None,
    help="Nodes; the kinds of machine in turn [default: one of each].",
)
_api_port = click.option(
    "--api-port", type=WholeNumber(0, 65535), default=0, help="Port of the API server; 0 takes a free one."
)
_kubeconfig = click.option(
    "--kubeconfig",
    envvar="KUBECONFIG",
    show_envvar=True,
    default="",
    help="The kubeconfig that `topogpu-sim up` names.",
)


@main.command()
@click.option("--json", "json_", is_flag=True, help="Print one JSON object on stdout instead of the report.")
@_machines
@_nodes
@click.option(
    "--pods",
    type=WholeNumber(1, _MOST_PODS),
    default=len(SHAPES),
    show_default=True,
    help="Pods; the shapes in turn.",
)
@_api_port
@click.option("--keep", is_flag=True, help="Keep the directory with logs, kubeconfig and checkpoints.")
def demo(*, json_: bool, machines_: tuple[str, ...], nodes: int | None, pods: int, api_port: int, keep: bool) -> None:
    """Run the whole path, from GPU to container, and verify it: exit status 1 if anything differs from the decision."""
    _leave_at_once_on_signals()
    from simulation.commands import run_demo_command  # noqa: PLC0415
    from simulation.demo import DemoSettings  # noqa: PLC0415 - takes a second

    settings = DemoSettings(machines=_few(machines_), nodes=nodes, pods=pods, api_port=api_port, keep=keep)
    sys.exit(run_demo_command(settings, json_=json_))


@main.command()
@_machines
@_nodes
@click.option(
    "--load",
    type=RealNumber(0, _MOST_LOAD),
    default=0.0,
    help="Pods that arrive each minute and are deleted again [default: none].",
)
@click.option("--seed", type=int, default=0, help="Another load of the same size.")
@_api_port
def up(*, machines_: tuple[str, ...], nodes: int | None, load: float, seed: int, api_port: int) -> None:
    """Run a simulated cluster until Ctrl-C, for kubectl and `kubectl topogpu`. Ctrl-C stops and removes it."""
    _leave_at_once_on_signals()
    from simulation.commands import run_up_command  # noqa: PLC0415
    from simulation.up import UpSettings  # noqa: PLC0415 - takes a second

    run_up_command(UpSettings(machines=_few(machines_), nodes=nodes, load=load, seed=seed, api_port=api_port))


@main.command()
@click.option("--minutes", type=RealNumber(0.1, _MOST_SOAK_MINUTES), default=5.0, show_default=True)
@click.option("--seed", type=int, default=1, show_default=True, help="Another history.")
@_machines
def soak(*, minutes: float, seed: int, machines_: tuple[str, ...]) -> None:
    """Use and break a simulated cluster at random, and judge it by an oracle that shares no code with the programs.

    Exit status 1 when a GPU was over-booked, a container got something else than was decided, or something was left.
    As root, two extenders run, and the Lease changes its holder. The seed gives the order of what happens; how the
    programs interleave differs from run to run.
    """
    _leave_at_once_on_signals()
    from simulation.commands import run_soak_command  # noqa: PLC0415 - takes a second
    from simulation.soak.leaders import may_name_hosts  # noqa: PLC0415
    from simulation.soak.soak import MACHINES, SoakSettings  # noqa: PLC0415

    machines_ = _few(machines_) or MACHINES
    settings = SoakSettings(seconds=60 * minutes, seed=seed, machines=machines_, two_leaders=may_name_hosts())
    sys.exit(run_soak_command(settings))


_BREAK = """Break GPU (its index) of NODE in the cluster that `topogpu-sim up` runs. Faults add up until `mend`.

\b
""" + "\n".join(f"{name:11} {meaning}" for name, meaning in FAULTS.items())


@main.command("break", help=_BREAK)
@click.argument("node")
@click.argument("gpu", type=int)
@click.argument("faults", nargs=-1, required=True)
@_kubeconfig
def break_(*, node: str, gpu: int, faults: tuple[str, ...], kubeconfig: str) -> None:
    from simulation.breaking import broken  # noqa: PLC0415 - takes a while
    from simulation.breaking_command import change_machine  # noqa: PLC0415

    change_machine(kubeconfig, node, lambda machine: broken(machine, gpu, faults))


@main.command()
@click.argument("node")
@click.argument("gpu", type=int, required=False)
@_kubeconfig
def mend(*, node: str, gpu: int | None, kubeconfig: str) -> None:
    """Mend GPU (its index) of NODE, or all its GPUs: every fault of `break` is over.

    A GPU serves again when the daemon has seen it without a fault for 5 s (60 s in production).
    """
    from simulation.breaking import mended  # noqa: PLC0415 - takes a while
    from simulation.breaking_command import change_machine  # noqa: PLC0415

    change_machine(kubeconfig, node, lambda machine: mended(machine, gpu))


@main.command()
def machines() -> None:
    """List the machines, and sets of them, that can be simulated, as described from real ones."""
    from program.output import print_text  # noqa: PLC0415
    from program.tables import Column, FittingTable  # noqa: PLC0415
    from simulation import machines as catalogue  # noqa: PLC0415
    from simulation.machines.sets import SETS  # noqa: PLC0415
    from simulation.machines.yaml_tree import MachineDescriptionError  # noqa: PLC0415

    try:
        found = [(name, catalogue.load(name)) for name in catalogue.names()]
    except MachineDescriptionError as error:
        raise click.ClickException(str(error)) from error
    print_text(
        FittingTable(
            columns=(Column(title="machine"), Column(title="GPUs"), Column(title="what it is", wraps=True)),
            rows=[
                *((name, str(len(description.gpus)), description.title) for name, description in found),
                *((name, f"{sum(each.racks)} machines", each.title) for name, each in SETS.items()),
            ],
        )
    )


def _few(machines_: tuple[str, ...]) -> tuple[str, ...]:
    if len(machines_) > _MOST_NODES:
        raise click.UsageError(f"--machine is given {len(machines_)} times; at most {_MOST_NODES} nodes can run")
    return machines_


def _leave_at_once_on_signals() -> None:
    """Waits until the command answers them itself."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _leave_at_once)


def _leave_at_once(*_: object) -> None:
    """While the program is still being loaded nothing runs that would have to be stopped."""
    os.write(2, b"Interrupted; nothing had been started.\n")
    os._exit(_INTERRUPTED)
