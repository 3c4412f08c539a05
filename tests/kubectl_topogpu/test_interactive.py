"""`top -i` on a terminal, by textual's own pilot."""

import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from kubectl_topogpu.cluster import Objects, read_cluster
from kubectl_topogpu.kubectl import ObjectsUnreadable
from kubectl_topogpu.views import MOST_ROWS, Narrowing, Observed, View, ViewChoice, age, table
from kubectl_topogpu.waiting import waiting
from proto.annotations import keys
from proto.annotations.pod_devices import encode_pod_devices
from proto.devices import DeviceShare
from proto.kubernetes.objects import Pod, PodStatus
from scheduler_ext.requests import RequestSettings
from tests.builders import container, node, pod
from tests.polling import until
from tests.scheduler_ext.gpus import device

textual = pytest.importorskip("textual")
from textual.pilot import Pilot  # noqa: E402
from textual.widgets import DataTable, Input, Static  # noqa: E402

from kubectl_topogpu.interactive import TopApp  # noqa: E402 - optional


def held(name: str, on: str, gpu: int, memory_mib: int) -> Pod:
    shares = ((DeviceShare(uuid=device(gpu).uuid, memory_mib=memory_mib, cores=30),),)
    holder = pod(container(gpu=1, gpumem=memory_mib), name=name, uid=name, node_name=on)
    holder.metadata.annotations = {keys.DEVICES_ALLOCATED: encode_pod_devices(shares)}
    holder.status = PodStatus(phase="Running")
    return holder


def observed(*more: Pod) -> Observed:
    """`small` has GPUs 0 and 1, the second broken; `large` has GPUs 2 to 5."""
    nodes = (
        node("small", [device(0), replace(device(1), healthy=False)]),
        node("large", [device(at) for at in range(2, 6)]),
    )
    pods = (held("train", "large", 2, 8000), held("notebook", "small", 0, 30_000), *more)
    cluster = read_cluster(Objects(nodes=nodes, pods=pods), RequestSettings())
    return Observed(cluster=cluster, nodes=cluster.nodes, waiting=waiting(cluster, "").rows)


def waits(name: str = "waits") -> Pod:
    return pod(container(gpu=8), name=name, uid=name)


@dataclass
class Clock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


@asynccontextmanager
async def on_a_terminal(
    read: Callable[[], Observed], clock: Clock | None = None, every: float = 0
) -> AsyncIterator[Pilot[None]]:
    app = TopApp(read, ViewChoice(), now=clock or Clock(), every=every)
    async with app.run_test(size=(140, 30)) as pilot:
        await until(lambda: "reading" not in line(pilot, "#age"))
        yield pilot


def line(pilot: Pilot[None], name: str) -> str:
    return str(pilot.app.query_one(name, Static).content)


def shown(pilot: Pilot[None]) -> DataTable[Any]:
    return pilot.app.query_one(DataTable)


def order(pilot: Pilot[None]) -> str:
    app: Any = pilot.app
    return str(app.choice.order)


def names(pilot: Pilot[None]) -> list[str]:
    """The first cells of all rows."""
    found = shown(pilot)
    return [str(found.get_row_at(at)[0]) for at in range(found.row_count)]


async def test_keys_lead_to_nodes_gpus_pods_and_waiting_pods() -> None:
    async with on_a_terminal(lambda: observed(waits())) as pilot:
        assert names(pilot) == ["large", "small"]
        assert line(pilot, "#summary") == (
            "2 nodes, 6 GPUs, 3 free, 1 out of service, 15 % of the memory held, 1 pod waiting"
        )
        await pilot.press("2")
        assert names(pilot) == ["large"] * 4 + ["small"] * 2
        await pilot.press("3")
        assert names(pilot) == ["default/train", "default/notebook"]
        await pilot.press("4")
        assert names(pilot) == ["default/waits"]


async def test_a_search_narrows_as_it_is_typed_and_escape_takes_it_back() -> None:
    async with on_a_terminal(observed) as pilot:
        await pilot.press("3", "slash", *"note")
        assert names(pilot) == ["default/notebook"]
        await pilot.press("enter")
        assert pilot.app.focused is shown(pilot)
        assert "with 'note'" in line(pilot, "#age")
        await pilot.press("escape")
        assert len(names(pilot)) == 2
        assert pilot.app.query_one(Input).value == ""


async def test_rows_are_sorted_by_the_next_column_and_reversed() -> None:
    async with on_a_terminal(observed) as pilot:
        await pilot.press("s", "s")
        assert order(pilot) == "gpus"
        assert names(pilot) == ["large", "small"]
        await pilot.press("S")
        assert names(pilot) == ["small", "large"]
        await pilot.press("2")
        assert order(pilot) == ""


async def test_a_filter_keeps_gpus_that_are_free_held_or_out_of_service() -> None:
    async with on_a_terminal(observed) as pilot:
        await pilot.press("2", "f")
        assert names(pilot) == ["large", "small"]
        await pilot.press("f")
        assert names(pilot) == ["large"] * 3
        await pilot.press("f")
        assert names(pilot) == ["small"]
        assert "only out of service" in line(pilot, "#age")
        await pilot.press("f")
        assert len(names(pilot)) == 6


async def test_enter_opens_a_node_and_a_gpu_and_escape_leads_back() -> None:
    async with on_a_terminal(observed) as pilot:
        await pilot.press("down", "enter")
        assert names(pilot) == ["small", "small"]
        await pilot.press("enter")
        assert names(pilot) == ["default/notebook"]
        await pilot.press("escape")
        assert names(pilot) == ["large", "small"]


async def test_what_is_shown_has_the_age_of_its_reading_and_a_failed_one_is_named() -> None:
    clock, broken = Clock(), [False]

    def read() -> Observed:
        if broken[0]:
            raise ObjectsUnreadable("the connection was refused")
        return observed()

    async with on_a_terminal(read, clock, every=5) as pilot:
        assert line(pilot, "#age").startswith("read 0 s ago")
        broken[0] = True
        clock.now = 7.0
        await until(lambda: line(pilot, "#age").startswith("OLD: read 7 s ago, and not since: the connection was"))
        assert pilot.app.query_one("#age").has_class("old")
        assert names(pilot) == ["large", "small"]
        broken[0] = False
        await pilot.press("r")
        await until(lambda: line(pilot, "#age").startswith("read 0 s ago"))


async def test_a_new_reading_keeps_the_row_that_is_chosen() -> None:
    pods: list[Pod] = []
    async with on_a_terminal(lambda: observed(*pods)) as pilot:
        await pilot.press("3", "down")
        pods.append(held("another", "large", 3, 1000))
        await pilot.press("r")
        await until(lambda: len(names(pilot)) == 3)
        assert names(pilot)[shown(pilot).cursor_row] == "default/notebook"


@pytest.mark.parametrize(
    ("seen", "now", "failure", "words"),
    [
        (None, 3.0, "", "reading the cluster …"),
        (None, 3.0, "refused", "not read yet: refused"),
        (Observed(cluster=observed().cluster, nodes=(), began=1.0), 4.0, "", "read 3 s ago"),
        (Observed(cluster=observed().cluster, nodes=(), began=1.0), 13.0, "", "OLD: read 12 s ago"),
    ],
)
def test_age_is_counted_from_the_beginning_of_a_reading(
    seen: Observed | None, now: float, failure: str, words: str
) -> None:
    assert age(seen, now, failure, every=5.0) == words


def test_a_search_sees_rows_that_are_not_drawn() -> None:
    many = observed(*(waits(f"w{at}") for at in range(MOST_ROWS + 5)))
    assert table(many, ViewChoice(view=View.WAITING)).left_out == 5
    (found,) = table(many, ViewChoice(view=View.WAITING, search=f"w{MOST_ROWS + 4}")).rows
    assert found[0] == f"default/w{MOST_ROWS + 4}"
    assert table(many, ViewChoice(narrowing=Narrowing.OUT)).rows[0][0] == "small"


def test_other_commands_do_not_import_textual(tmp_path: Path) -> None:
    program = (
        "import sys\nfrom kubectl_topogpu.cli import main\n"
        "main(['top', '--help'], standalone_mode=False)\n"
        "import kubectl_topogpu.cli.top, kubectl_topogpu.waiting\n"
        "sys.exit(any(name.partition('.')[0] == 'textual' for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False, capture_output=True).returncode == 0
