"""`topogpu-device-plugin topo`."""

import click

from deviceplugin.cli.sources import driver_options, read_machine
from deviceplugin.machine.matrix import LinkView, as_json, as_text, view_machine
from deviceplugin.machine.topology import build_topology
from program.commands import output_option
from program.output import print_json, print_text


@click.command()
@driver_options
@output_option()
def topo(nvml_library: str | None, host_root: str, output: str) -> None:
    """Show how the GPUs of this machine are connected: link matrix, scores, GB/s.

    The scheduler compares scores: 10 (SYS) to 60 for the PCIe path plus 100 for every NVLink, also behind an NVSwitch.
    """
    reading = read_machine(nvml_library, host_root)
    print_links(view_machine(build_topology(reading), reading.problems), output)


def print_links(view: LinkView, output: str) -> None:
    if output == "json":
        print_json(as_json(view))
        for note in view.notes:
            click.echo(note, err=True)
    else:
        print_text(as_text(view))
