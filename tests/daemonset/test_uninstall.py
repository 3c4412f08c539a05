"""The manifest that cleans the nodes reaches whatever the daemon's manifest let the daemon write."""

import asyncio
import sys
from pathlib import Path
from typing import Any

import yaml

from daemonset import render
from daemonset.render import Manifest
from deviceplugin.removal import annotations_of_ours
from proto.annotations import keys
from proto.kubernetes.objects import Node, ObjectMeta
from simulation.apiserver import EmbeddedApiServer
from tests.daemonset.shipped import Container, base, container, one
from tests.deviceplugin.gpus import NODE

FOLDER = render.HERE / "uninstall"
HOST = "/host"
CONTROL_GROUPS = "/sys/fs/cgroup"
"""The kernel's own: what the daemon sets there ends with the control groups of the containers."""


def uninstall() -> list[Manifest]:
    kustomization = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())
    return [each for name in kustomization["resources"] for each in render.split((FOLDER / name).read_text())]


def host_folders(pod: Any, spec: Any) -> dict[str, str]:
    """Where a container has the host's folders that it may write: mount path by the host's."""
    paths = {volume["name"]: volume["hostPath"]["path"] for volume in pod["volumes"] if "hostPath" in volume}
    mounts = [mount for mount in spec["volumeMounts"] if mount["name"] in paths and not mount.get("readOnly")]
    return {paths[mount["name"]]: mount["mountPath"] for mount in mounts}


def written_by_the_daemon() -> set[str]:
    """The host's folders, in the base and where HAMi-core is installed."""
    daemon = container(base(), "topogpu-device-plugin/device-plugin")
    component = yaml.safe_load((render.HERE / "components/hami-core/device-plugin.yaml").read_text())
    hami_core = component["spec"]["template"]["spec"]
    folders = {
        *host_folders(daemon.pod, daemon.spec),
        *(path for spec in hami_core["containers"] for path in host_folders(hami_core, spec)),
    }
    return folders - {CONTROL_GROUPS}


def test_every_folder_that_the_daemon_writes_is_mounted_where_it_is_looked_for() -> None:
    cleaner = container(uninstall(), "topogpu-uninstall/uninstall-node")
    mounted = host_folders(cleaner.pod, cleaner.spec)
    assert all(there == HOST + here for here, there in mounted.items())
    assert f"--host-root={HOST}" in cleaner.spec["args"]
    reached = {path for path in written_by_the_daemon() for folder in mounted if f"{path}/".startswith(f"{folder}/")}
    assert reached == written_by_the_daemon() != set()


def test_it_runs_where_the_daemon_ran_with_its_image_and_name() -> None:
    daemon, cleaner = (
        container(manifests, name)
        for manifests, name in (
            (base(), "topogpu-device-plugin/device-plugin"),
            (uninstall(), "topogpu-uninstall/uninstall-node"),
        )
    )
    for key in ("serviceAccountName", "nodeSelector"):
        assert cleaner.pod[key] == daemon.pod[key]
    simulated = {"matchExpressions": [{"key": keys.NODE_SIMULATED, "operator": "In", "values": ["true"]}]}
    assert _labelled(cleaner) == [*_labelled(daemon), simulated]
    assert {spec["image"] for spec in (*cleaner.pod["initContainers"], *cleaner.pod["containers"])} == {
        daemon.spec["image"]
    }
    account = one(base(), "ServiceAccount", "topogpu-device-plugin")["metadata"]
    ours = one(uninstall(), "ServiceAccount", "topogpu-device-plugin")["metadata"]
    assert (ours["name"], ours["namespace"]) == (account["name"], account["namespace"])


def test_the_daemons_policy_lets_it_take_away_what_it_takes_away() -> None:
    policy = one(base(), "ValidatingAdmissionPolicy", "topogpu-device-plugin-nodes")
    told = " ".join(rule["expression"] for rule in policy["spec"]["validations"])
    written = (
        keys.NODE_REGISTER,
        keys.NODE_SCORE,
        keys.NODE_ALLOCATION,
        keys.NODE_LIMITS,
        keys.NODE_SIMULATED,
        keys.NODE_NUMA,
        keys.NODE_UNDECIDED,
        keys.NODE_HANDSHAKE,
        keys.NODE_LABELS,
    )
    everything = dict.fromkeys(written, "")
    node = Node(metadata=ObjectMeta(annotations={**everything, keys.NODE_LOCK: "l", keys.NODE_LOCK_UID: "l,uid"}))
    assert len(annotations_of_ours(node)) == 11
    assert all(f"'{key}'" in told for key in annotations_of_ours(node))


async def test_its_role_is_what_the_command_asks_for(tmp_path: Path) -> None:
    cleaner = container(uninstall(), "topogpu-uninstall/uninstall-node").spec
    async with EmbeddedApiServer() as server:
        annotations = {keys.NODE_ALLOCATION: "slots"}
        totals = {"capacity": {keys.RESOURCE_MEMORY: "1"}}
        metadata = {"name": NODE, "annotations": annotations}
        server.create({"apiVersion": "v1", "kind": "Node", "metadata": metadata, "status": totals})
        (tmp_path / "kubeconfig").write_text(server.kubeconfig())
        _, *words = cleaner["command"]
        arguments = [argument.replace(HOST, str(tmp_path)) for argument in cleaner["args"]]
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, *words, *arguments),
            env={"NODE_NAME": NODE, "KUBECONFIG": str(tmp_path / "kubeconfig")},
            stdout=asyncio.subprocess.DEVNULL,
        )
        assert await process.wait() == 0
        asked = {(one.verb, f"{one.resource}/{one.subresource}".rstrip("/")) for one in server.requests}
    rules = one(uninstall(), "ClusterRole", "topogpu-uninstall")["rules"]
    assert asked == {(verb, resource) for rule in rules for resource in rule["resources"] for verb in rule["verbs"]}


def _labelled(each: Container) -> list[Any]:
    """The labels of the Nodes where it runs."""
    required = each.pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    terms: list[Any] = required["nodeSelectorTerms"]
    return terms
