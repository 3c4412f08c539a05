"""`kubectl topogpu` on a real API server, with the rights that its document names and no others."""

import json
import os
import re
import subprocess
import sys
import uuid
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from proto.annotations import keys
from tests.builders import node_json, pod_json
from tests.cluster.control_plane import ControlPlane

pytestmark = pytest.mark.cluster

DOCUMENT = Path(__file__).parents[2] / "docs" / "kubectl.md"
(ROLE,) = re.findall(r"```yaml\n([^`]*?kind: ClusterRole\n.*?)```", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class User:
    """A service account that runs the plugin."""

    plane: ControlPlane
    kubeconfig: Path
    name: str
    node: str
    namespace: str

    def ask(self, *arguments: str) -> tuple[int, str, str]:
        """Exit status, output and errors."""
        folder = Path(self.plane.binary("kubectl")).parent
        done = subprocess.run(
            [sys.executable, "-m", "kubectl_topogpu", *arguments, "--kubeconfig", str(self.kubeconfig)],
            env={**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        return done.returncode, done.stdout, done.stderr

    def allow(self, role: str) -> None:
        made = yaml.safe_load(role)
        made["metadata"]["name"] = self.name
        (self.kubeconfig.parent / "role.yaml").write_text(yaml.safe_dump(made))
        self.plane.kubectl("apply", "-f", str(self.kubeconfig.parent / "role.yaml"))


@pytest.fixture
def user(plane: ControlPlane, tmp_path: Path) -> User:
    name = f"viewer-{uuid.uuid4().hex[:8]}"
    node, pod = node_json(name, gpus=2), pod_json("holds")
    pod["spec"]["nodeName"] = name
    pod["spec"]["containers"][0]["image"] = "example.com/none"
    pod["metadata"] = {
        "name": "holds",
        "namespace": name,
        "annotations": {keys.DEVICES_ALLOCATED: f"GPU-{name}-0,NVIDIA,1000,20:;"},
    }
    state = {"apiVersion": "v1", "kind": "List", "items": [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}},
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default", "namespace": name}},
        {"apiVersion": "v1", "kind": "Node", "metadata": node["metadata"]},
    ]}  # fmt: skip
    (tmp_path / "state.yaml").write_text(yaml.safe_dump(state))
    plane.kubectl("apply", "-f", str(tmp_path / "state.yaml"))
    offered = json.dumps({"status": node["status"]})
    plane.kubectl("patch", "node", name, "--subresource=status", "--type=merge", f"--patch={offered}")
    (tmp_path / "pod.yaml").write_text(yaml.safe_dump({"apiVersion": "v1", "kind": "Pod", **pod}))
    plane.kubectl("apply", "-f", str(tmp_path / "pod.yaml"))
    plane.kubectl("create", "clusterrolebinding", name, f"--clusterrole={name}", f"--serviceaccount={name}:default")
    token = plane.kubectl("create", "token", "default", f"--namespace={name}").strip()
    document = yaml.safe_load(Path(plane.kubeconfig()).read_text(encoding="utf-8"))
    document["users"][0]["user"] = {"token": token}
    (tmp_path / "kubeconfig").write_text(yaml.safe_dump(document), encoding="utf-8")
    return User(plane=plane, kubeconfig=tmp_path / "kubeconfig", name=name, node=name, namespace=name)


def test_the_documented_role_only_reads_and_is_enough(user: User) -> None:
    assert {verb for rule in yaml.safe_load(ROLE)["rules"] for verb in rule["verbs"]} == {"get", "list"}
    status, _, err = user.ask("top")
    assert status == 1
    assert "is forbidden" in err
    assert "the ClusterRole topogpu-view of docs/kubectl.md allows all that is needed" in err

    role = yaml.safe_load(ROLE)
    role["rules"][0]["resources"] = ["nodes", "pods"]
    user.allow(yaml.safe_dump(role))
    status, out, _ = user.ask("fit", "--memory", "1000", "-n", user.namespace)
    assert (status, user.node in out) == (0, True)
    _, out, _ = user.ask("top", user.node)
    assert "! ResourceQuotas do not count here: " in out

    user.allow(ROLE)
    for command in (["top", user.node], ["who", f"{user.node}/0"], ["why", "holds"], ["waste"], ["frag"]):
        status, out, err = user.ask(*command, "-n", user.namespace)
        assert (status, err) == (0, "")
        assert "ResourceQuotas" not in out
