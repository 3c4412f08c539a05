"""Values for kinds of nodes: what the daemon is told, what it may do there, and when it comes and goes."""

from typing import Any

import pytest
import yaml

from daemonset import render
from daemonset.render import CannotRender, Manifest
from deviceplugin.configuration.table import TABLE, Configuration
from deviceplugin.container.driver_root import driver_root
from deviceplugin.container.edits import DeviceListStrategy
from program.settings.effective import File, SettingSources, resolve
from tests.daemonset.shipped import Container, containers, one
from tests.daemonset.test_least_privilege import DAEMON_FOLDERS, host_folders

pytestmark = pytest.mark.usefixtures("chart")
KINDS = sorted(path.stem for path in (render.CHART / "nodes").glob("*.yaml"))
WITHOUT_RUNTIME = {
    "gke": ("/home/kubernetes/bin/nvidia", "/host/home/kubernetes/bin/nvidia", "/"),
    "gpu-operator-driver": ("/run/nvidia/driver", "/host/run/nvidia/driver", "/run/nvidia/driver"),
    "host-driver": ("/", "/host", "/"),
}
"""The driver's folder on the host, where the daemon has it, and the folder above dev."""


def shipped(kind: str) -> list[Manifest]:
    return render.render("", "--values", str(render.CHART / "nodes" / f"{kind}.yaml"))


def daemon(manifests: list[Manifest]) -> Container:
    [found] = [each for each in containers(manifests) if each.spec["name"] == "device-plugin"]
    return found


def told(manifests: list[Manifest]) -> Configuration:
    text = one(manifests, "ConfigMap", "topogpu-device-plugin")["data"]["settings.yaml"]
    sources = SettingSources(flags={"node_name": "n"}, environment={}, own=File(name="settings.yaml", text=text))
    return resolve(TABLE, sources).configuration


def template(manifests: list[Manifest]) -> dict[str, Any]:
    spec: dict[str, Any] = one(manifests, "DaemonSet", "topogpu-device-plugin")["spec"]["template"]["spec"]
    return spec


@pytest.mark.parametrize("kind", WITHOUT_RUNTIME)
def test_without_nvidias_runtime_the_daemon_is_privileged_and_gives_the_drivers_files_itself(kind: str) -> None:
    host, seen, dev = WITHOUT_RUNTIME[kind]
    manifests = shipped(kind)
    container, configuration = daemon(manifests), told(manifests)
    assert configuration.containers.strategies == (DeviceListStrategy.DRIVER_FILES,)
    root = driver_root(configuration.host)
    assert root is not None
    assert (root.host, root.mounted.rstrip("/") + root.host.rstrip("/"), configuration.host.dev_root) == (
        host,
        seen,
        dev,
    )
    folders = {host: (seen, True)} | ({"/dev": ("/dev", False)} if dev == "/" else {})
    assert host_folders(container.pod, container.spec) == DAEMON_FOLDERS | folders
    assert container.spec["securityContext"] == {"privileged": True, "readOnlyRootFilesystem": True}
    assert {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"} in container.spec["env"]
    [driver] = [mount for mount in container.spec["volumeMounts"] if mount["name"] == "driver"]
    assert driver["mountPropagation"] == "HostToContainer"


@pytest.mark.parametrize("kind", sorted(set(KINDS) - WITHOUT_RUNTIME.keys()))
def test_with_nvidias_runtime_the_daemon_stays_without_rights(kind: str) -> None:
    manifests = shipped(kind)
    assert told(manifests).host.driver_root == ""
    assert daemon(manifests).spec["securityContext"]["capabilities"] == {"drop": ["ALL"]}


@pytest.mark.parametrize(("kind", "file"), [("gpu-operator", "toolkit-ready"), ("gpu-operator-driver", "driver-ready")])
def test_the_gpu_operator_says_by_label_and_file_when_the_daemon_may_be_there(kind: str, file: str) -> None:
    spec = template(shipped(kind))
    assert spec["nodeSelector"]["nvidia.com/gpu.deploy.device-plugin"] == "true"
    [waits] = spec["initContainers"]
    assert waits["command"] == ["sh", "-c"]
    assert waits["args"][0].startswith(f"until [ -f /run/nvidia/validations/{file} ]; do ")
    [mount] = waits["volumeMounts"]
    assert (mount["mountPath"], mount["mountPropagation"]) == ("/run/nvidia/validations", "HostToContainer")


def test_an_operator_that_waits_for_its_clients_has_a_label_of_its_own_for_them() -> None:
    label = "gpuOperator.enabled=true,gpuOperator.nodeLabel=nvidia.com/gpu.deploy.client"
    selector = template(render.render("", "--set", label))["nodeSelector"]
    assert selector == {"kubernetes.io/os": "linux", "nvidia.com/gpu.deploy.client": "true"}


def test_hami_core_is_installed_before_and_with_the_operators_wait() -> None:
    spec = template(render.render("hami-core", "--set", "gpuOperator.enabled=true"))
    assert [each["name"] for each in spec["initContainers"]] == ["wait-for-driver", "hami-core", "install-hami-core"]


def test_a_strategy_that_is_set_stays() -> None:
    values = "devicePlugin.driver.root=/,devicePlugin.settings.device_list_strategy={cdi-cri}"
    assert told(render.render("", "--set", values)).containers.strategies == (DeviceListStrategy.CDI_CRI,)


def test_doctor_reads_the_configuration_of_nvidias_runtime_where_the_host_has_it() -> None:
    path = "/etc/nvidia-container-runtime/config.toml"
    manifests = render.render("", "--set", f"devicePlugin.nvidiaRuntimeConfig={path}")
    root = told(manifests).host.root
    [volume] = [each for each in template(manifests)["volumes"] if each["name"] == "nvidia-runtime-config"]
    [mount] = [each for each in daemon(manifests).spec["volumeMounts"] if each["name"] == volume["name"]]
    folder = "/etc/nvidia-container-runtime"
    assert volume["hostPath"] == {"path": folder, "type": "Directory"}
    assert (mount["mountPath"], mount["readOnly"]) == (root + folder, True)
    assert "nvidia-runtime-config" not in str(shipped("gpu-operator"))


def test_kubelets_configuration_is_mounted_alone_where_the_chart_names_it() -> None:
    paths = ["/var/lib/kubelet/config.yaml", "/etc/kubernetes/kubelet.conf.d/"]
    manifests = render.render("", "--set", "devicePlugin.kubeletConfig=" + "\\,".join(paths))
    read, mounts = told(manifests), daemon(manifests).spec["volumeMounts"]
    assert read.kubelet.configuration == ",".join(paths)
    found = {each["name"]: each.get("hostPath") for each in template(manifests)["volumes"]}
    for number, (path, kind) in enumerate(zip(paths, ("File", "Directory"), strict=True)):
        name = f"kubelet-config-{number}"
        assert found[name] == {"path": path, "type": kind}
        assert {"name": name, "mountPath": read.host.root + path, "readOnly": True} in mounts


def test_device_files_lie_on_the_host_or_with_the_driver() -> None:
    with pytest.raises(
        CannotRender, match=r"devicePlugin\.settings\.dev_root is neither / nor devicePlugin\.driver\.root"
    ):
        render.render(
            "", "--set", "devicePlugin.driver.root=/run/nvidia/driver,devicePlugin.settings.dev_root=/elsewhere"
        )


def test_each_kind_of_node_is_described() -> None:
    text = (render.HERE.parent / "docs" / "install.md").read_text()
    assert [kind for kind in KINDS if f"daemonset/chart/topogpu/nodes/{kind}.yaml" not in text] == []
    for kind in KINDS:
        assert yaml.safe_load((render.CHART / "nodes" / f"{kind}.yaml").read_text())
