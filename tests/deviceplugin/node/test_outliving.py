"""Pods that were deleted while their containers ran, as the daemon tells them on its Node."""

import asyncio
import threading
from collections.abc import Collection, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest

from deviceplugin.allocation.decision import TakenPart
from deviceplugin.allocation.sources import AllocationSources
from deviceplugin.apiserver import OwnNode
from deviceplugin.changes import Changes
from deviceplugin.configuration.table import Configuration
from deviceplugin.gpus import Gpus
from deviceplugin.inventory import Inventory
from deviceplugin.node.contributors import OutlivingPods
from deviceplugin.node.outliving import (
    Departures,
    after_look,
    after_pods,
    first,
    outliving_of,
    read_outliving,
)
from deviceplugin.own_threads import OwnThreads
from deviceplugin.pod_cgroups import PodCgroups
from deviceplugin.records.checkpoint_file import checkpoint_reader
from deviceplugin.settings import AgentSettings
from proto.annotations.keys import NODE_OUTLIVING
from proto.annotations.outliving_pods import Outliving, decode_outliving, encode_outliving
from proto.devices import DeviceUUID
from proto.kubernetes.client import ApiServer
from proto.kubernetes.objects import Node, ObjectMeta, Pod, PodStatus
from simulation.apiserver import EmbeddedApiServer
from tests.deviceplugin.daemon_rig import daemon
from tests.deviceplugin.gpus import NODE, PAIR, A, bound_pod, share
from tests.polling import until

UIDS = tuple(f"{number:08x}-1111-2222-3333-444444444444" for number in range(3))
ONE, TWO, THREE = UIDS
HELD = {A: TakenPart(1, 2000, 30)}
NOW = datetime(2030, 1, 1, tzinfo=UTC)
STATIC = "0123456789abcdef0123456789abcdef"


def pods(*uids: str, phase: str = "Running") -> Mapping[str, Pod]:
    return {
        uid: Pod(metadata=ObjectMeta(name=uid, namespace="team", uid=uid), status=PodStatus(phase=phase))
        for uid in uids
    }


def held_by(_: Pod) -> Mapping[DeviceUUID, TakenPart]:
    return HELD


def known(*uids: str, version: int = 10, written: Outliving | None = None) -> Departures:
    return after_look(first(pods(*uids), version, written), uids)


def test_a_pod_that_leaves_while_it_runs_is_named_until_nothing_of_it_runs() -> None:
    left = after_pods(known(ONE, TWO), pods(TWO), 12, held_by)
    runs = after_look(left, (ONE, TWO))
    assert outliving_of(runs) == Outliving(12, {ONE: {A: (1, 2000, 30)}}, {ONE: f"team/{ONE}"})
    assert runs.is_due
    ended = after_look(after_pods(runs, pods(TWO), 13, held_by), (TWO,))
    assert (outliving_of(ended), ended.is_due) == (Outliving(12), False)


def test_deletions_of_a_lost_history_are_not_known() -> None:
    """The API server was restored from a backup: the next pod may be deleted at a version that it gave before."""
    assert outliving_of(after_pods(known(ONE, version=900), pods(ONE), 12, held_by)) == Outliving(12)


def test_one_that_had_ended_when_it_left_is_no_news() -> None:
    before = replace(known(ONE), known=pods(ONE, phase="Succeeded"))
    assert outliving_of(after_pods(before, {}, 12, held_by)) == Outliving(10)


def test_a_new_life_names_whatever_runs_and_knows_what_the_one_before_wrote() -> None:
    written = Outliving(7, {ONE: {A: (1, 2000, 30)}, TWO: {A: (1, 1, 1)}})
    found = after_look(first(pods(), 10, written), (ONE, THREE, STATIC))
    assert outliving_of(found) == Outliving(10, {ONE: {A: (1, 2000, 30)}, THREE: {}})


def test_what_the_node_says_of_outliving_pods_can_be_read_again() -> None:
    node = Node(metadata=ObjectMeta(annotations={NODE_OUTLIVING: encode_outliving(outliving_of(known(ONE)))}))
    assert read_outliving(node) == Outliving(10)
    assert read_outliving(Node(metadata=ObjectMeta(annotations={NODE_OUTLIVING: "?"}))) is None


@pytest.mark.needs_compiler
async def test_the_daemon_names_a_pod_that_was_deleted_by_force_until_its_cgroup_is_empty(tmp_path: Path) -> None:
    cgroups = tmp_path / "sys/fs/cgroup"
    cgroups.mkdir(parents=True)
    async with daemon(host=tmp_path, runtime_version="containerd://2.4.2") as node:
        uids = {name: node.bind(name, gpu) for gpu, name in enumerate(("stays", "goes"))}
        assert not node.annotation(NODE_OUTLIVING)
        for uid in uids.values():
            folder = cgroups / "kubepods" / f"pod{uid}"
            folder.mkdir(parents=True)
            (folder / "cgroup.events").write_text("populated 1\n")
        # Any news has the daemon look again.
        node.bind("news", 2)
        await until(lambda: bool(node.annotation(NODE_OUTLIVING)))

        def named() -> set[str]:
            return set(decode_outliving(node.annotation(NODE_OUTLIVING)).pods)

        assert named() == set()
        node.server.delete("pods", "goes", namespace="default")
        await until(lambda: named() == {uids["goes"]})
        told = decode_outliving(node.annotation(NODE_OUTLIVING))
        assert set(told.pods[uids["goes"]]) == {node.uuid(1)}
        await node.kill()
        await node.start()
        await node.ready()
        assert named() == {uids["goes"]}
        (cgroups / "kubepods" / f"pod{uids['goes']}" / "cgroup.events").write_text("populated 0\n")
        await until(lambda: named() == set())


class SearchedCgroups(PodCgroups):
    """Knows the threads in which it was searched."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.threads = set[threading.Thread]()

    def populated(self, known: Collection[str]) -> frozenset[str] | None:
        self.threads.add(threading.current_thread())
        return super().populated(known)


async def test_the_control_groups_are_searched_off_the_loop_at_each_news_of_pods_however_short_after_one_in_vain(
    tmp_path: Path,
) -> None:
    async with EmbeddedApiServer() as server:
        server.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}})
        (tmp_path / "kubeconfig").write_text(server.kubeconfig())
        api = await ApiServer.connect(str(tmp_path / "kubeconfig"))
        changes = Changes()
        own = OwnNode(api, NODE, changes)
        configuration = Configuration(agent=AgentSettings(node_name=NODE))
        gpus = Gpus(lambda: Inventory(devices=PAIR), OwnThreads("nvml"), changes, configuration.agent)
        sources = AllocationSources(
            own=own,
            gpus=gpus,
            changes=changes,
            read_checkpoint=checkpoint_reader(str(tmp_path)),
            configuration=configuration,
        )
        cgroups = SearchedCgroups(tmp_path / "cgroup")
        outliving = OutlivingPods(sources, cgroups)
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(loop) for loop in (own.follow_node(), own.follow_pods(), gpus.run())]
            await until(lambda: own.node is not None and own.pods_known and gpus.known)
            assert await written(outliving) == set()
            pod = msgspec.to_builtins(bound_pod("goes", ((share(A),),), phase="Running"))
            server.create({"apiVersion": "v1", "kind": "Pod", **pod})
            await until(lambda: own.pods)
            (uid,) = own.pods
            folder = tmp_path / "cgroup" / "kubepods" / f"pod{uid}"
            folder.mkdir(parents=True)
            (folder / "cgroup.events").write_text("populated 1\n")
            assert await written(outliving) == set()
            server.delete("pods", "goes", namespace="default")
            await until(lambda: not own.pods)
            assert await written(outliving) == {uid}
            assert len(cgroups.threads) == 1
            assert threading.current_thread() not in cgroups.threads
            for task in tasks:
                task.cancel()
        await api.close()


async def written(outliving: OutlivingPods) -> set[str]:
    """The pods that it writes on the Node."""
    await outliving.look(Node())
    desired = outliving.desired(Node(), NOW)
    assert desired is not None
    value = desired.annotations[NODE_OUTLIVING]
    return set(decode_outliving(value).pods) if value else set()
