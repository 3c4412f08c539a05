"""`topogpu-sim topo` and `topogpu-sim devices`: what the node daemon's commands show, of a machine that is not here."""

import click

from deviceplugin.cli.machine import print_gpus, print_links
from deviceplugin.machine.matrix import view_machine
from deviceplugin.machine.readings import MachineReading
from deviceplugin.machine.topology import build_topology
from program.commands import output_option
from program.settings.options import read_text
from simulation import machines
from simulation.machines.described import describe_reading
from simulation.machines.description import read_machine_description
from simulation.machines.nvidia_smi import SmiError, parse_topology
from simulation.machines.printed import view_printed

_HELP = "A machine that `topogpu-sim machines` lists, or a description (YAML); - is standard input."


@click.command()
@click.option("--machine", metavar="NAME|FILE", required=True, help=_HELP)
@output_option(wide=True)
def devices(machine: str, output: str) -> None:
    """List the GPUs of a described machine and their MIG devices: model, memory, NUMA node, address and health."""
    print_gpus(_reading(machine), output)


@click.command()
@click.option("--machine", metavar="NAME|FILE", help=_HELP)
@click.option("--smi", metavar="FILE", help="What `nvidia-smi topo -m` printed on a machine; - is standard input.")
@output_option()
def topo(machine: str | None, smi: str | None, output: str) -> None:
    """Show how the GPUs of a described machine, or of a printed matrix, are connected: link matrix, scores, GB/s.

    A printed matrix hides the PCIe path of NVLink pairs, and has no speeds: there the score is the lowest possible one,
    and GB/s are unknown.
    """
    if machine is not None and smi is None:
        reading = _reading(machine)
        print_links(view_machine(build_topology(reading), reading.problems), output)
    elif smi is not None and machine is None:
        try:
            print_links(view_printed(parse_topology(read_text(smi))), output)
        except SmiError as error:
            raise click.ClickException(f"{'standard input' if smi == '-' else smi}: {error}") from error
    else:
        raise click.UsageError("give --machine or --smi, and not both")


def _reading(machine: str) -> MachineReading:
    """Returns the reading of a name, a file, or standard input. Raises click.ClickException."""
    try:
        is_here = machine != "-"
        found = machines.load(machine) if is_here else read_machine_description(read_text("-"), "standard input")
    except machines.MachineDescriptionError as error:
        raise click.ClickException(str(error)) from error
    return describe_reading(found)
