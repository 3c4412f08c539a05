"""HAMi's device plugin as its DaemonSet runs it, in a root file system of its own: its paths are fixed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from simulation.nvml.machine_file import MACHINE_FILE_VARIABLE

_OF_THE_HOST = ("bin", "sbin", "lib", "lib64", "usr", "etc", "dev", "proc", "sys")
_SCRIPT = """set -e
mount -t tmpfs tmpfs "$ROOT"
cd "$ROOT"
for name in {host}; do
  if [ -L /$name ]; then cp -a /$name $name; elif [ -e /$name ]; then mkdir $name; mount --rbind /$name $name; fi
done
mkdir -p tmp run var/lib/kubelet/device-plugins var/run/cdi config driver opt/node
mount -t tmpfs tmpfs usr/local
mount --bind "$KUBELET" var/lib/kubelet/device-plugins
mount --bind "$CDI" var/run/cdi
mount --bind "$OWN" opt/node
if [ -d sys/bus/pci/devices ]; then mount --bind "$SYSFS" sys/bus/pci/devices; fi
cp "$LIBRARY" driver/libnvidia-ml.so.1
cp "$PROGRAM" opt/plugin
cp "$OWN/device-config.yaml" device-config.yaml
cp "$OWN/config.json" config/config.json
exec chroot . /opt/plugin "$@"
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """Folders and files of one simulated node. In `own` are the machine that its library shows, `machine`, and the
    plugin's files: `kubeconfig`, which names files of that folder as they are seen inside, and its two configurations.
    """

    root: Path
    own: Path
    device_plugins: Path
    cdi: Path
    pci_devices: Path
    library: Path


INSIDE = "/opt/node"
"""Where the plugin sees the folder `own`."""


def command(node: Node, program: Path, arguments: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    """For root. The process that is started becomes the plugin."""
    folders = {
        "ROOT": node.root,
        "OWN": node.own,
        "KUBELET": node.device_plugins,
        "CDI": node.cdi,
        "SYSFS": node.pci_devices,
        "LIBRARY": node.library,
        "PROGRAM": program,
    }
    inside = {
        "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
        "KUBECONFIG": f"{INSIDE}/kubeconfig",
        "LD_LIBRARY_PATH": "/driver",
        MACHINE_FILE_VARIABLE: f"{INSIDE}/machine",
    }
    variables = [f"{name}={value}" for name, value in (*environment.items(), *inside.items(), *folders.items())]
    script = _SCRIPT.format(host=" ".join(_OF_THE_HOST))
    return ["env", "-i", *variables, "unshare", "--mount", "sh", "-c", script, "plugin", *arguments]
