"""`topogpu-device-plugin`: the node daemon, and commands for an administrator of a node."""

import click

from program.commands import LazyCommands
from proto import __version__

_COMMANDS = {
    "run": ("deviceplugin.cli.run", "Serve this node's GPUs to kubelet and describe them on the Node."),
    "topo": ("deviceplugin.cli.machine", "Show how the GPUs of a machine are connected."),
    "install-hami-core": (
        "deviceplugin.cli.install_hami_core",
        "Install HAMi-core here, or bring it up to date.",
    ),
    "doctor": ("deviceplugin.cli.node", "Find what keeps this node from serving its GPUs, and suggest what to do."),
    "allocations": (
        "deviceplugin.cli.node",
        "List which pods hold which GPU replicas, and whether all sources agree.",
    ),
    "uninstall-node": ("deviceplugin.cli.node", "Remove what the daemon wrote for this node."),
    "devices": ("deviceplugin.cli.machine", "List the GPUs of this machine as the daemon would advertise them."),
}


@click.group(
    cls=LazyCommands,
    lazy=_COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, prog_name="topogpu-device-plugin")
def main() -> None:
    """Run the TopoGPU node daemon, or inspect a node and its GPUs.

    \b
    topogpu-device-plugin run          on every GPU node, as its DaemonSet does
    topogpu-device-plugin doctor       problems of this node, and remedies
    topogpu-device-plugin devices      the GPUs of this machine
    topogpu-device-plugin topo         their links: matrix, scores and GB/s

    Options may be given in the environment; each command's help names the variable.
    Shell completion: eval "$(_TOPOGPU_DEVICE_PLUGIN_COMPLETE=bash_source topogpu-device-plugin)"
    """
