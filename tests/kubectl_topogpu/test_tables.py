"""Text fits the terminal: nothing is cut, and what is left out is named."""

import fcntl
import json
import os
import pty
import struct
import subprocess
import sys
import termios
from collections.abc import Callable
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from kubectl_topogpu import fit, top, topo, waste, who
from kubectl_topogpu.cluster import GpuCluster, Objects, read_cluster
from kubectl_topogpu.report import TableReport
from kubectl_topogpu.waiting import waiting
from kubectl_topogpu.why import why
from proto.annotations import keys
from proto.annotations.pod_devices import encode_pod_devices
from proto.devices import DeviceShare, PairScores
from proto.kubernetes.objects import Pod, PodStatus
from scheduler_ext.requests import RequestSettings
from tests.builders import container, node, pod
from tests.scheduler_ext.gpus import device

LONG = "a-node-pool-with-a-long-name-in-a-large-cluster-7f9c"
SETTINGS = RequestSettings()


def held(name: str, gpu: int) -> Pod:
    shares = ((DeviceShare(uuid=device(gpu).uuid, memory_mib=8000, cores=30),),)
    holder = pod(container(gpu=1, gpumem=8000), name=name, node_name=LONG)
    holder.metadata.uid = name
    holder.metadata.annotations = {keys.DEVICES_ALLOCATED: encode_pod_devices(shares)}
    holder.status = PodStatus(phase="Running")
    return holder


def waits() -> Pod:
    return pod(container(gpu=12, gpumem=39_000), name="waits-for-a-dozen-gpus-of-one-node")


def cluster() -> GpuCluster:
    gpus = [device(at) for at in range(16)]
    scores: PairScores = {a.uuid: {b.uuid: 1800 for b in gpus if b is not a} for a in gpus}
    pods = [held(f"trains-a-large-language-model-{at}", at) for at in range(6)]
    return read_cluster(Objects(nodes=(node(LONG, gpus, scores),), pods=(*pods, waits())), SETTINGS)


SHAPE = pod(container(gpu=2, gpumem=1000))
REPORTS: dict[str, Callable[[GpuCluster], TableReport | None]] = {
    "top": lambda each: top.top(each, each.nodes, top.Level.PODS),
    "top nodes": lambda each: top.top(each, each.nodes, top.Level.NODES),
    "who": lambda each: who.holders_of(each, LONG),
    "why": lambda each: why(each, waits()),
    "why placed": lambda each: why(each, held("trains-a-large-language-model-0", 0)),
    "why all": lambda each: waiting(each, ""),
    "fit": lambda each: fit.fit(each, SHAPE),
    "topo": lambda each: topo.topo(each.nodes[0], each),
    "topo all": topo.domains,
    "waste": waste.waste,
    "frag": waste.frag,
}


def drawn(report: TableReport | None, width: int, *, wide: bool = False) -> str:
    assert report is not None
    text = StringIO()
    Console(file=text, width=width, highlight=False, markup=False, emoji=False).print(report.text(wide))
    return text.getvalue()


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("width", [80, 120, 200])
@pytest.mark.parametrize("name", REPORTS)
def test_text_fits_the_terminal_and_keeps_every_row(name: str, width: int, wide: bool) -> None:
    narrow = drawn(REPORTS[name](cluster()), width, wide=wide)
    assert max(map(len, narrow.splitlines())) <= width
    assert LONG in narrow.replace("\n", "") or name in ("frag", "why all", "topo all")
    piped = drawn(REPORTS[name](cluster()), 1000, wide=wide)
    assert "Left out" not in piped
    gpus = [line.split()[0:2] for line in piped.splitlines() if line.strip().startswith("GPU ")]
    assert [line.split()[0:2] for line in narrow.splitlines() if line.strip().startswith("GPU ")][: len(gpus)] == gpus


def test_columns_that_do_not_fit_are_named_and_wide_stacks_them_instead() -> None:
    narrow = drawn(REPORTS["top"](cluster()), 80)
    assert "Left out for lack of room: cores, replicas, state. -o wide shows all." in narrow
    for at in range(6):
        assert f"trains-a-large-language-model-{at}" in narrow
    stacked = drawn(REPORTS["top"](cluster()), 80, wide=True)
    assert "Left out" not in stacked
    assert stacked.count("1 × 8 000 MiB") == 6


def in_a_terminal(columns: int, file: Path, **environment: str) -> str:
    """What `top` prints in a terminal of so many columns."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    command = [sys.executable, "-m", "kubectl_topogpu", "top", "--state", str(file)]
    inherited = {key: value for key, value in os.environ.items() if key not in ("COLUMNS", "NO_COLOR", "CI")}
    environment = {**inherited, "TERM": "xterm", **environment}
    with subprocess.Popen(command, stdout=theirs, stdin=subprocess.DEVNULL, env=environment):
        os.close(theirs)
        found = b""
        while True:
            try:
                part = os.read(ours, 65_536)
            except OSError:
                break
            if not part:
                break
            found += part
    os.close(ours)
    return found.decode(environment.get("PYTHONIOENCODING", "utf-8"))


@pytest.fixture
def state(tmp_path: Path) -> Path:
    from tests.kubectl_topogpu.test_commands import state_of

    file = tmp_path / "state.json"
    file.write_text(json.dumps(state_of("65-full-nodes")))
    return file


def test_a_terminal_has_colours_unless_no_color_is_set(state: Path) -> None:
    assert "\x1b[" in in_a_terminal(100, state)
    plain = in_a_terminal(100, state, NO_COLOR="1")
    assert "\x1b[3" not in plain
    assert "█" in plain


def test_a_terminal_with_ascii_alone_gets_ascii(state: Path) -> None:
    text = in_a_terminal(100, state, PYTHONIOENCODING="ascii")
    assert "#####" in text
    assert "....." in text
