"""`topogpu-device-plugin topo`."""

import click

from deviceplugin.cli.sources import machine_options, read_machine
from deviceplugin.machine.matrix import LinkView, as_json, as_text, view_machine, view_printed
from deviceplugin.machine.nvidia_smi import SmiError, parse_topology
from deviceplugin.machine.topology import build_topology
from program.output import print_json, print_text
from program.text_files import read_text


@click.command()
@click.option("--smi", metavar="FILE", help="Read the output of `nvidia-smi topo -m`; - is standard input.")
@machine_options
@click.option(
    "-o",
    "--output",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="For people or programs.",
)
def topo(smi: str | None, machine: str | None, nvml_library: str | None, sysfs_root: str, output: str) -> None:
    """Show how the GPUs of a machine are connected: link matrix, scores, GB/s.

    It reads NVML on this machine unless --smi or --machine names another source. The scheduler compares scores: 10
    (SYS) to 60 for the PCIe path plus 100 for every NVLink, also behind an NVSwitch. A printed matrix (--smi) hides the
    PCIe path of NVLink pairs, and has no speeds: there the score is the lowest possible one, and GB/s are unknown.
    """
    if smi is not None and machine is not None:
        raise click.UsageError("--smi and --machine cannot be used together; give one.")
    view = _printed(smi) if smi is not None else _read(machine, nvml_library, sysfs_root)
    if output == "json":
        print_json(as_json(view))
        for note in view.notes:
            click.echo(note, err=True)
    else:
        print_text(as_text(view))


def _printed(path: str) -> LinkView:
    try:
        return view_printed(parse_topology(read_text(path)))
    except SmiError as error:
        name = "standard input" if path == "-" else path
        raise click.ClickException(f"{name}: {error}") from error


def _read(machine: str | None, nvml_library: str | None, sysfs_root: str) -> LinkView:
    reading = read_machine(machine, nvml_library, sysfs_root)
    return view_machine(build_topology(reading), reading.problems)
