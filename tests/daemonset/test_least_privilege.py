"""What our pods may do on a node: as little as they work with, unless a named feature asks for more."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from daemonset import render
from daemonset.render import Manifest
from deviceplugin.cli.build import POD_NAMESPACE
from deviceplugin.doctor.cluster import Right, daemon_rights
from deviceplugin.node.labels import FEATURE_LABEL
from deviceplugin.settings import REMEDIATION_LEASE, RemediationSettings, Remedy
from proto import __version__
from tests.daemonset.shipped import containers, one, pods

DAEMON_FOLDERS = {
    "/var/lib/kubelet/device-plugins": ("/var/lib/kubelet/device-plugins", False),
    "/var/lib/kubelet/pod-resources": ("/var/lib/kubelet/pod-resources", True),
    "/var/run/cdi": ("/var/run/cdi", False),
    "/sys/fs/cgroup": ("/host/sys/fs/cgroup", False),
}
"""By path on the host: where it is in the container, and whether read-only there."""
HAMI_CORE_FOLDERS = {
    "/usr/local/vgpu": ("/usr/local/vgpu", False),
}


def host_folders(pod: Any, container: Any) -> dict[str, tuple[str, bool]]:
    paths = {volume["name"]: volume["hostPath"]["path"] for volume in pod["volumes"] if "hostPath" in volume}
    mounts = {mount["name"]: mount for mount in container.get("volumeMounts", ()) if mount["name"] in paths}
    return {paths[name]: (mount["mountPath"], mount.get("readOnly", False)) for name, mount in mounts.items()}


def uses_hami_core(manifests: list[Manifest]) -> bool:
    return any(container.spec["name"] == "hami-core" for container in containers(manifests))


def test_no_container_is_privileged(manifests: list[Manifest]) -> None:
    for container in containers(manifests):
        rights = container.spec["securityContext"]
        assert rights["allowPrivilegeEscalation"] is False, container.name
        assert rights["readOnlyRootFilesystem"] is True, container.name
        cleans_up = container.name.endswith("/device-plugin") and uses_hami_core(manifests)
        added = {"add": ["DAC_OVERRIDE", "FOWNER"]} if cleans_up else {}
        assert rights["capabilities"] == {"drop": ["ALL"], **added}, container.name
        assert not rights.get("privileged"), container.name
        assert container.effective("seccompProfile") == {"type": "RuntimeDefault"}, container.name


def test_only_the_daemon_and_its_installer_are_root(manifests: list[Manifest]) -> None:
    root = {container.name for container in containers(manifests) if container.effective("runAsUser") == 0}
    others = [container for container in containers(manifests) if container.name not in root]
    assert root <= {"topogpu-device-plugin/device-plugin", "topogpu-device-plugin/install-hami-core"}
    assert all(
        container.effective("runAsUser") == 65532 and container.effective("runAsNonRoot") for container in others
    )


def test_no_pod_shares_the_host_s_namespaces(manifests: list[Manifest]) -> None:
    for name, pod in pods(manifests):
        shared = [key for key in ("hostPID", "hostIPC", "hostNetwork", "shareProcessNamespace") if pod.get(key)]
        assert shared == [], name
        assert [port for each in pod["containers"] for port in each.get("ports", ()) if "hostPort" in port] == [], name


def test_only_the_host_s_folders_that_are_used_are_mounted(manifests: list[Manifest]) -> None:
    hami_core = uses_hami_core(manifests)
    expected = {"topogpu-device-plugin/device-plugin": DAEMON_FOLDERS}
    if hami_core:
        expected["topogpu-device-plugin/device-plugin"] = DAEMON_FOLDERS | HAMI_CORE_FOLDERS
        expected["topogpu-device-plugin/install-hami-core"] = {"/usr/local/vgpu": ("/usr/local/vgpu", False)}
    found = {container.name: host_folders(container.pod, container.spec) for container in containers(manifests)}
    assert {name: folders for name, folders in found.items() if folders} == expected
    mounted = {path for folders in found.values() for path in folders}
    declared = {
        volume["hostPath"]["path"] for _, pod in pods(manifests) for volume in pod["volumes"] if "hostPath" in volume
    }
    assert declared == mounted


def test_every_container_says_what_it_needs(manifests: list[Manifest]) -> None:
    for container in containers(manifests):
        assert set(container.spec["resources"]["requests"]) == {"cpu", "memory"}, container.name
        assert "memory" in container.spec["resources"]["limits"], container.name


def test_images_are_pinned(manifests: list[Manifest]) -> None:
    images = {container.spec["image"] for container in containers(manifests)}
    assert images <= {
        f"topogpu:{__version__}",
        "docker.io/projecthami/hami:v2.10.0",
        "registry.k8s.io/kube-scheduler:v1.37.1",
        "registry.k8s.io/kube-scheduler:v1.29.15",
    }


def test_our_own_pods_outlive_pressure_and_are_not_held_up_by_our_webhook(manifests: list[Manifest]) -> None:
    classes = {name: pod["priorityClassName"] for name, pod in pods(manifests)}
    assert classes == {"topogpu-device-plugin": "system-node-critical", "topogpu-scheduler": "system-cluster-critical"}
    for kind, name in (("DaemonSet", "topogpu-device-plugin"), ("Deployment", "topogpu-scheduler")):
        labels = one(manifests, kind, name)["spec"]["template"]["metadata"]["labels"]
        assert labels["hami.io/webhook"] == "ignore"


def test_the_verbs_are_on_loopback_and_no_service_leads_to_them(manifests: list[Manifest]) -> None:
    [extender] = [each.spec for each in containers(manifests) if each.spec["name"] == "extender"]
    assert "--http_bind=127.0.0.1:8080" in extender["args"]
    assert {port["name"]: port["containerPort"] for port in extender["ports"]} == {"webhook": 9443, "metrics": 9395}
    assert dict(_service_ports(manifests)) == {
        "topogpu-device-plugin": [(9394, "metrics")],
        "topogpu-scheduler": [(9395, "metrics")],
        "topogpu-webhook": [(443, "webhook")],
    }


def _service_ports(manifests: list[Manifest]) -> Iterator[tuple[str, list[tuple[int, str]]]]:
    for manifest in manifests:
        if manifest.content["kind"] == "Service":
            ports = [(port["port"], port["targetPort"]) for port in manifest.content["spec"]["ports"]]
            yield manifest.content["metadata"]["name"], ports


@pytest.mark.usefixtures("chart")
def test_the_host_s_process_ids_are_seen_for_the_metrics_of_processes_only() -> None:
    changed = render.render("", "--set", "devicePlugin.processMetrics=true")
    assert {name: pod.get("hostPID", False) for name, pod in pods(changed)} == {
        "topogpu-device-plugin": True,
        "topogpu-scheduler": False,
    }


@pytest.mark.usefixtures("chart")
def test_the_daemon_gets_the_selinux_type_that_the_nodes_ask_for() -> None:
    changed = render.render("", "--set", "devicePlugin.seLinuxOptions.type=spc_t")
    assert {name: pod["securityContext"].get("seLinuxOptions") for name, pod in pods(changed)} == {
        "topogpu-device-plugin": {"type": "spc_t"},
        "topogpu-scheduler": None,
    }


@pytest.mark.usefixtures("chart")
def test_mig_needs_the_capability_that_nvidia_s_runtime_asks_for() -> None:
    changed = render.render("", "--set", "devicePlugin.settings.mig_strategy=mixed")
    added = {each.name: each.spec["securityContext"]["capabilities"].get("add") for each in containers(changed)}
    assert {name: what for name, what in added.items() if what} == {
        "topogpu-device-plugin/device-plugin": ["SYS_ADMIN"]
    }


@pytest.mark.usefixtures("chart")
def test_further_specs_of_cdi_are_read_where_gpus_are_named_by_cdi() -> None:
    changed = render.render("", "--set", "devicePlugin.settings.device_list_strategy={cdi-cri}")
    [daemon] = [each for each in containers(changed) if each.spec["name"] == "device-plugin"]
    assert host_folders(daemon.pod, daemon.spec) == DAEMON_FOLDERS | {"/etc/cdi": ("/etc/cdi", True)}


@pytest.mark.usefixtures("chart")
def test_folders_of_another_kubelet() -> None:
    folders = "devicePlugin.kubeletRoot=/k,devicePlugin.cdiDirectory=/c,hamiCore.enabled=true,hamiCore.hookPath=/opt"
    changed = render.render("", "--set", folders)
    [daemon] = [each for each in containers(changed) if each.spec["name"] == "device-plugin"]
    assert host_folders(daemon.pod, daemon.spec) == {
        "/k/device-plugins": ("/k/device-plugins", False),
        "/k/pod-resources": ("/k/pod-resources", True),
        "/c": ("/c", False),
        "/sys/fs/cgroup": ("/host/sys/fs/cgroup", False),
        "/opt/vgpu": ("/opt/vgpu", False),
    }
    assert "/usr/local" not in json.dumps([manifest.content for manifest in changed])


@pytest.mark.usefixtures("chart")
@pytest.mark.parametrize(
    ("values", "is_read_only"),
    [
        ("devicePlugin.settings.limits={hami-core,unenforced}", True),
        ("devicePlugin.settings.limits=none,devicePlugin.configs.mig.mig_strategy=mixed", True),
        ("devicePlugin.settings.limits=none,devicePlugin.configs.new.limits=driver", False),
    ],
)
def test_control_groups_are_writable_if_any_settings_let_the_driver_limit(values: str, is_read_only: bool) -> None:
    changed = render.render("", "--set", values)
    [daemon] = [each for each in containers(changed) if each.spec["name"] == "device-plugin"]
    assert host_folders(daemon.pod, daemon.spec)["/sys/fs/cgroup"] == ("/host/sys/fs/cgroup", is_read_only)


@pytest.mark.usefixtures("chart")
def test_hami_core_that_is_on_the_nodes_already_is_mounted_and_not_installed() -> None:
    changed = render.render("", "--set", "hamiCore.enabled=true,hamiCore.install=false")
    assert {container.spec["name"] for container in containers(changed)} == {
        "device-plugin",
        "extender",
        "kube-scheduler",
    }
    [daemon] = [each for each in containers(changed) if each.spec["name"] == "device-plugin"]
    assert host_folders(daemon.pod, daemon.spec) == DAEMON_FOLDERS | HAMI_CORE_FOLDERS


@pytest.mark.usefixtures("chart")
def test_labels_of_nodes_may_be_written_only_where_the_daemon_writes_them() -> None:
    def rule(*options: str) -> str:
        policy = one(render.render("", *options), "ValidatingAdmissionPolicy", "topogpu-device-plugin-nodes")
        [found] = [each for each in policy["spec"]["validations"] if "labelsAfter" in each["expression"]]
        return str(found["expression"])

    is_feature_label = f"k.matches('{FEATURE_LABEL}')"
    assert rule().count(is_feature_label) == 1
    assert rule("--set", "devicePlugin.settings.features={gpu-labels}").count(is_feature_label) == 2


def rights(manifests: list[Manifest], account: str) -> set[Right]:
    """What the roles grant to a service account."""
    found = [manifest.content for manifest in manifests]
    roles = {(one["kind"], one["metadata"]["name"]): one["rules"] for one in found if one["kind"].endswith("Role")}
    return {
        Right(verb, resource, one["metadata"].get("namespace", ""), group, name)
        for one in found
        if one["kind"].endswith("RoleBinding") and account in [subject["name"] for subject in one["subjects"]]
        for rule in roles[one["roleRef"]["kind"], one["roleRef"]["name"]]
        for verb in rule["verbs"]
        for resource in rule["resources"]
        for group in rule["apiGroups"]
        for name in rule.get("resourceNames", [""])
    }


@pytest.mark.usefixtures("chart")
@pytest.mark.parametrize("remedy", ["off", *Remedy, "{taint-any,evict}"])
def test_the_daemon_may_evict_pods_only_where_it_is_set_to(remedy: str) -> None:
    changed = render.render("", "--set", f"devicePlugin.settings.remediation={remedy}")
    lease = (RemediationSettings().lease_namespace, REMEDIATION_LEASE)
    granted = rights(changed, "topogpu-device-plugin")
    evicts = "evict" in remedy
    remedies = (Remedy.EVICT,) if evicts else ()
    assert granted == set(daemon_rights(RemediationSettings(remedies=remedies)))
    leases = [one.identity for one in changed if one.content["kind"] == "Lease"]
    assert leases == ([("Lease", *lease)] if evicts else [])
    [daemon] = [each for each in containers(changed) if each.name == "topogpu-device-plugin/device-plugin"]
    assert (POD_NAMESPACE in [variable["name"] for variable in daemon.spec["env"]]) is evicts
