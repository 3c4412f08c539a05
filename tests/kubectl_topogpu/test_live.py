"""The commands on a cluster, through the real kubectl."""

import asyncio
import json
import shutil
import sys
import threading
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import psutil
import pytest
from click.testing import CliRunner, Result

from kubectl_topogpu import sources
from kubectl_topogpu.cli import main
from kubectl_topogpu.cli.completion import choices
from kubectl_topogpu.kubectl import Api, Connection, ObjectsUnreadable
from proto.annotations import keys
from simulation.apiserver import EmbeddedApiServer
from simulation.apiserver.faults import Fault
from tests.builders import node_json, pod_json

pytestmark = pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not in PATH")


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[EmbeddedApiServer]:
    async with EmbeddedApiServer() as server:
        for at in range(5):
            server.create(node_json(f"n{at}", gpus=2))
        held = pod_json("held")
        held["spec"]["nodeName"] = "n3"
        held["metadata"]["annotations"] = {keys.DEVICES_ALLOCATED: "GPU-n3-1,NVIDIA,1000,20:;"}
        server.create(held)
        server.create(pod_json("waits", memory_mib=50_000))
        (tmp_path / "kubeconfig").write_text(server.kubeconfig())
        yield server


async def ask(folder: Path, *arguments: str) -> tuple[int, str, str]:
    command = (sys.executable, "-m", "kubectl_topogpu", *arguments, "--kubeconfig", str(folder / "kubeconfig"))
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=pipe)
    out, err = await process.communicate()
    return process.returncode or 0, out.decode(), err.decode()


async def test_the_settings_of_the_extender_decide_and_the_answer_says_where_they_are_not_known(
    server: EmbeddedApiServer, tmp_path: Path
) -> None:
    unknown = "! no pod of the extender was found: policies and defaults are those of a new installation"
    _, out, _ = await ask(tmp_path, "fit", "--memory", "1000", "--cores", "0%")
    assert unknown in " ".join(out.split())
    labels = {"app.kubernetes.io/name": "topogpu", "app.kubernetes.io/component": "scheduler"}
    container = {"name": "extender", "image": "i", "args": ["serve", "--default-mem=20480", "--default-cores=50"]}
    server.create(
        {
            "kind": "Pod",
            "metadata": {"name": "extender", "namespace": "topogpu-system", "labels": labels},
            "spec": {"nodeName": "n0", "containers": [container]},
        }
    )
    _, out, _ = await ask(tmp_path, "fit")
    # Two of 20 GiB and 50 % on each of ten GPUs, but for the one with 1 000 MiB held.
    assert out.startswith("room for 19 pods of this shape, on 5 nodes\n")
    assert "extender" not in out


async def test_a_cluster_is_read_through_kubectl(server: EmbeddedApiServer, tmp_path: Path) -> None:
    status, out, err = await ask(tmp_path, "who", "held", "-o", "json")
    assert (status, err) == (0, "")
    assert [(row["node"], row["gpu"], row["cores_percent"]) for row in json.loads(out)] == [("n3", 1, 20)]
    _, out, _ = await ask(tmp_path, "why", "waits")
    assert "waits: no GPU is that large (on all 5 nodes)" in out
    assert "No GPU has 48.8 GiB: the largest has 40.0 GiB." in out


async def test_a_large_cluster_is_read_page_by_page(
    server: EmbeddedApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "PAGE", 2)

    def names() -> list[str]:
        with sources.live(Connection(kubeconfig=str(tmp_path / "kubeconfig"))) as source:
            return [node.metadata.name for node in source.objects().nodes]

    assert await asyncio.to_thread(names) == [f"n{at}" for at in range(5)]


@pytest.mark.parametrize("command", ["fit", "why", "top"])
async def test_an_answer_that_does_not_count_quotas_says_so(
    server: EmbeddedApiServer, tmp_path: Path, command: str
) -> None:
    server.inject(Fault(resources=frozenset({"resourcequotas"}), status=403))
    assert "! ResourceQuotas do not count here" in (await ask(tmp_path, command))[1]
    _, out, err = await ask(tmp_path, command, "-o", "json")
    assert "! ResourceQuotas do not count here" in err
    json.loads(out)


async def test_a_cluster_that_cannot_be_asked_is_told_in_kubectls_words(tmp_path: Path) -> None:
    async with EmbeddedApiServer() as server:
        (tmp_path / "kubeconfig").write_text(server.kubeconfig())
    status, out, err = await ask(tmp_path, "top")
    assert (status, out) == (1, "")
    assert "refused" in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["topo"], ["n0", "n1", "n2", "n3", "n4"]),
        (["why"], ["held", "waits"]),
        (["who"], ["n0", "n1", "n2", "n3", "n4", "held", "waits"]),
        (["top", "-n"], ["default", "kube-node-lease", "kube-public", "kube-system"]),
    ],
)
async def test_names_of_the_cluster_complete(
    server: EmbeddedApiServer, tmp_path: Path, words: list[str], offered: list[str]
) -> None:
    command, *rest = words
    given = [command, "--kubeconfig", str(tmp_path / "kubeconfig"), *rest, ""]
    assert await asyncio.to_thread(choices, given) == [*offered, ":4"]


async def test_pods_that_wait_are_listed_by_reason(server: EmbeddedApiServer, tmp_path: Path) -> None:
    server.create(pod_json("waits-too", memory_mib=50_000))
    _, out, _ = await ask(tmp_path, "why", "-A")
    assert out.splitlines()[0] == "default/waits, default/waits-too (1 × 50 000 MiB)"
    _, out, _ = await ask(tmp_path, "why", "-n", "kube-system")
    assert out.startswith("no pod of namespace kube-system waits for GPUs\n")


async def test_a_pod_without_gpus_holds_none(server: EmbeddedApiServer, tmp_path: Path) -> None:
    status, out, err = await ask(tmp_path, "who", "waits")
    assert (status, out, err) == (0, "pod waits holds no GPU\n", "")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["why", "wait"], "there is no pod default/wait; did you mean waits?"),
        (["who", "-n", "defalt"], "there is no namespace defalt; did you mean default?"),
        (["topo", "n33"], "node n33 has no GPUs of TopoGPU or HAMi; did you mean n3?"),
        (["who", "hold"], "'hold' is not a node with GPUs, a GPU (node/index or UUID), or a pod of namespace default; "
                          "did you mean held?"),
    ],
)  # fmt: skip
async def test_a_name_that_is_not_there_is_answered_with_the_nearest(
    server: EmbeddedApiServer, tmp_path: Path, arguments: list[str], sentence: str
) -> None:
    assert await ask(tmp_path, *arguments) == (1, "", f"Error: {sentence}\n")


async def test_a_server_that_is_no_api_server_is_named_as_such(tmp_path: Path) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), SimpleHTTPRequestHandler) as other:
        other.daemon_threads = True
        threading.Thread(target=other.serve_forever, args=(0.01,), daemon=True).start()
        (tmp_path / "kubeconfig").write_text(kubeconfig(f"http://127.0.0.1:{other.server_address[1]}"))
        status, _, err = await ask(tmp_path, "top")
        other.shutdown()
    assert status == 1
    assert "is no Kubernetes API server, check the context: 404" in err


class Daemons(BaseHTTPRequestHandler):
    """An API server with one node and its daemon, which serves the use `page`: a body, or one that does not end, or
    comes byte by byte.
    """

    page: bytes | None = b""
    pause = 0.0

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        labels = {"app.kubernetes.io/name": "topogpu", "app.kubernetes.io/component": "device-plugin"}
        daemon = pod_json("daemon") | {"status": {"phase": "Running"}}
        daemon["metadata"]["labels"] = labels
        daemon["spec"] |= {"nodeName": "n1"}
        daemon["spec"]["containers"][0]["ports"] = [{"name": "metrics", "containerPort": 9394}]
        lists = {"nodes": [node_json("n1", gpus=1)], "pods": [daemon], "resourcequotas": []}
        one = path.endswith("/pods/daemon")
        if not path.endswith("/pods/daemon:9394/proxy/usage"):
            body = json.dumps(daemon if one else {"items": lists[path.rpartition("/")[2]]}).encode()
        elif self.page is not None:
            body = self.page
        else:
            self.send_response(200)
            self.end_headers()
            with suppress(OSError):
                while True:
                    self.wfile.write(b"#\n" * (1 if self.pause else 65_536))
                    time.sleep(self.pause)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        return


USE = b'{"node":"n1","gpus":{"GPU-n1-0":{"memory":2048}}}'


@pytest.mark.parametrize(
    ("page", "pause", "shown"),
    [
        (USE, 0.0, "2.0 GiB, ? %"),
        (None, 0.0, "it has more than 256 KiB"),
        (None, 0.02, "it takes more than 0.2 s"),
        (USE.replace(b"n1", b"n2"), 0.0, "the daemon there is another node's"),
    ],
    ids=["read", "endless", "slow", "of another node"],
)
def test_what_is_in_use_is_read_from_the_daemon_if_that_is_honest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, page: bytes | None, pause: float, shown: str
) -> None:
    monkeypatch.setattr(sources, "USE_SECONDS", 0.2)
    monkeypatch.setattr(Daemons, "page", page)
    monkeypatch.setattr(Daemons, "pause", pause)
    result = used(tmp_path)
    assert result.exit_code == 0
    assert shown in result.stdout


def test_daemons_are_asked_for_a_minute_at_most(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Daemons, "page", USE)
    monkeypatch.setattr(sources, "MOST_SECONDS", -1)
    assert "its daemon was not asked" in used(tmp_path).stdout


def kubeconfig(address: str) -> str:
    return (
        f"apiVersion: v1\nkind: Config\nclusters: [{{name: c, cluster: {{server: '{address}'}}}}]\n"
        "contexts: [{name: c, context: {cluster: c, user: u}}]\nusers: [{name: u, user: {}}]\ncurrent-context: c\n"
    )


def used(folder: Path) -> Result:
    with ThreadingHTTPServer(("127.0.0.1", 0), Daemons) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        address = f"http://127.0.0.1:{server.server_address[1]}"
        (folder / "kubeconfig").write_text(kubeconfig(address))
        result = CliRunner().invoke(main, ["top", "--used", "--kubeconfig", str(folder / "kubeconfig")])
        server.shutdown()
        return result


@pytest.mark.parametrize("name", ["ä", "held?x=1", "a b", "..", "held\n", ""])
def test_a_word_that_no_pod_can_be_called_is_not_asked_for(tmp_path: Path, name: str) -> None:
    with ThreadPoolExecutor(1) as threads:
        nowhere = sources.Live(Api(str(tmp_path / "no-socket")), Connection(), threads)
        assert nowhere.pod("default", name) is None
        assert nowhere.pod(name, "held") is None
        with pytest.raises(ObjectsUnreadable):
            nowhere.pod("default", "held-0.a")


async def test_kubectl_ends_with_the_plugin_even_if_that_is_killed(server: EmbeddedApiServer, tmp_path: Path) -> None:
    command = (sys.executable, "-m", "kubectl_topogpu", "top", "-w", "--kubeconfig", str(tmp_path / "kubeconfig"))
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    await process.stdout.readline()
    children = psutil.Process(process.pid).children(recursive=True)
    assert any("proxy" in child.cmdline() for child in children)
    process.kill()
    await process.wait()
    _, alive = await asyncio.to_thread(psutil.wait_procs, children, 20)
    assert alive == []
