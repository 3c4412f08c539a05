"""Kueue's controller with its definitions and webhooks: found, or built once with Go from its module.

`python -m tests.cluster.kueue RELEASE` builds it, for the newest release of Kubernetes only.
"""

import base64
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from scheduler_ext.certificates.issue import issue
from tests.cluster.binaries import BuildFailed, NoBinaries, cache, module_source, printed, releases
from tests.cluster.control_plane import ControlPlane, Program, free_port, status, wait

MODULE, VERSION = "sigs.k8s.io/kueue", "v0.19.2"
RELEASE = releases()[-1]
"""Of Kubernetes: no other is tried."""
PROGRAM, DEFINITIONS, WEBHOOKS = "kueue", "crds", "webhooks.yaml"
NAMESPACE = "kueue-system"
_STAMP = f"-s -w -X {MODULE}/pkg/version.GitVersion={VERSION}"
_QUEUED = ("clusterqueue", "cohort", "resourceflavor", "workload", "job.kb.io")
"""Beginnings of the names of the webhooks that queues of Jobs need, without their first letter."""
_OWN_ETC = """mount -t tmpfs none /etc && mkdir -p /etc/kueue/metrics/certs \
&& cp "$0"/tls.* /etc/kueue/metrics/certs && exec "$@" """
"""With certificates that it did not make, Kueue reads those of its metrics there, whatever its configuration has."""


def find() -> Path:
    """A folder with PROGRAM, DEFINITIONS and WEBHOOKS. Raises NoBinaries."""
    folder = cache("kueue") / VERSION
    if all((folder / each).exists() for each in (PROGRAM, DEFINITIONS, WEBHOOKS)):
        return folder
    raise NoBinaries(f"{folder} has no {PROGRAM}: run `make test-cluster` where Go is installed, which builds it once")


def build() -> Path:
    """`find`, and where that fails builds with Go: minutes on two cores. Raises NoBinaries, BuildFailed."""
    try:
        return find()
    except NoBinaries:
        if shutil.which("go") is None:
            raise
    folder = cache("kueue") / VERSION
    partial = folder.parent / f"{folder.name}.partial"
    print(f"building Kueue {VERSION} into {folder}, once ...", file=sys.stderr, flush=True)
    source = module_source(MODULE, VERSION)
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    # By its own list of dependencies, which lies beside the source.
    command = ["go", "build", "-mod=readonly", "-trimpath", "-o", str(partial / PROGRAM), "-ldflags", _STAMP]
    environment = {**os.environ, "CGO_ENABLED": "0"}
    if subprocess.run([*command, "./cmd/kueue"], cwd=source, env=environment, check=False).returncode:
        raise BuildFailed(f"{MODULE} {VERSION} could not be built: see Go's own words above")
    components = source / "config" / "components"
    (partial / DEFINITIONS).mkdir()
    for definition in (components / "crd" / "bases").glob("*.yaml"):
        (partial / DEFINITIONS / definition.name).write_bytes(definition.read_bytes())
    (partial / WEBHOOKS).write_bytes((components / "webhook" / "manifests.yaml").read_bytes())
    partial.rename(folder)
    return folder


@contextmanager
def running(plane: ControlPlane, folder: Path, changes: dict[str, Any]) -> Iterator[Program]:
    """Kueue in front of the control plane, for Jobs; `changes` of its configuration."""
    found, port, health = find(), free_port(), free_port()
    folder.mkdir()
    issued = issue(frozenset({"127.0.0.1"}), datetime.now(UTC))  # noqa: TID251 - real handshakes look at the real clock
    (folder / "tls.crt").write_bytes(issued.certificate)
    (folder / "tls.key").write_bytes(issued.key)
    configuration = {
        "namespace": NAMESPACE,
        "health": {"healthProbeBindAddress": f"127.0.0.1:{health}"},
        "metrics": {"bindAddress": "0"},
        "webhook": {"host": "127.0.0.1", "port": port, "certDir": str(folder)},
        "leaderElection": {"leaderElect": False},
        "internalCertManagement": {"enable": False},
        "integrations": {"frameworks": ["batch/job"]},
        **changes,
    }
    (folder / "kueue.yaml").write_text(yaml.safe_dump(configuration))
    webhooks = list(_webhooks(found / WEBHOOKS, port, base64.b64encode(issued.authorities).decode()))
    (folder / "webhooks.yaml").write_text(yaml.safe_dump_all(webhooks))
    plane.kubectl("create", "namespace", NAMESPACE)
    plane.kubectl("apply", "--server-side", "-f", str(found / DEFINITIONS))
    plane.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=60s")
    plane.kubectl("apply", "-f", str(folder / "webhooks.yaml"))
    flags = ["--config", str(folder / "kueue.yaml"), "--kubeconfig", plane.kubeconfig()]
    own_etc = ["unshare", "-rm", "sh", "-c", _OWN_ETC, str(folder)]
    command = [*own_etc, str(found / PROGRAM), *flags, "--feature-gates=VisibilityOnDemand=false"]
    program = Program(command, folder / "kueue.log")
    try:
        wait(program, lambda: status(f"http://127.0.0.1:{health}/readyz") == 200)
        wait(program, lambda: _listens(port))
        yield program
        program.check_running()
    finally:
        program.stop()


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _webhooks(manifests: Path, port: int, authorities: str) -> Iterator[dict[str, Any]]:
    """Kueue's own webhooks, as URLs: there are no Services here."""
    for document in yaml.safe_load_all(manifests.read_text()):
        document["metadata"]["name"] = f"kueue-{document['metadata']['name']}"
        document["webhooks"] = [each for each in document["webhooks"] if each["name"][1:].startswith(_QUEUED)]
        for each in document["webhooks"]:
            path = each["clientConfig"]["service"]["path"]
            each["clientConfig"] = {"url": f"https://127.0.0.1:{port}{path}", "caBundle": authorities}
        yield document


if __name__ == "__main__":
    if sys.argv[1:] in ([], [RELEASE]):
        printed(build)
