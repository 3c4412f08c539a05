"""Pods that were deleted while their containers ran, as the daemon tells them on its Node."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from deviceplugin.allocation.capacity import Held
from deviceplugin.allocation.outliving import (
    Departures,
    after_look,
    after_pods,
    first,
    outliving_of,
    outliving_report,
    read_outliving,
)
from proto.annotations.keys import NODE_OUTLIVING
from proto.annotations.outliving_pods import Outliving, decode_outliving, encode_outliving
from proto.devices import DeviceUUID
from proto.kubernetes.objects import Node, ObjectMeta, Pod, PodStatus
from tests.deviceplugin.daemon_rig import daemon
from tests.deviceplugin.gpus import A
from tests.deviceplugin.registration import until

UIDS = tuple(f"{number:08x}-1111-2222-3333-444444444444" for number in range(3))
ONE, TWO, THREE = UIDS
HELD = {A: Held(1, 2000, 30)}
STATIC = "0123456789abcdef0123456789abcdef"


def pods(*uids: str, phase: str = "Running") -> Mapping[str, Pod]:
    return {uid: Pod(metadata=ObjectMeta(name=uid, uid=uid), status=PodStatus(phase=phase)) for uid in uids}


def held_by(_: Pod) -> Mapping[DeviceUUID, Held]:
    return HELD


def known(*uids: str, version: int = 10, written: Outliving | None = None) -> Departures:
    return after_look(first(pods(*uids), version, written), uids)


def test_a_pod_that_leaves_while_it_runs_is_named_until_nothing_of_it_runs() -> None:
    left = after_pods(known(ONE, TWO), pods(TWO), 12, held_by)
    runs = after_look(left, (ONE, TWO))
    assert outliving_of(runs) == Outliving(12, {ONE: {A: (1, 2000, 30)}})
    assert runs.is_due
    ended = after_look(after_pods(runs, pods(TWO), 13, held_by), (TWO,))
    assert (outliving_of(ended), ended.is_due) == (Outliving(12), False)


def test_one_that_had_ended_when_it_left_is_no_news() -> None:
    before = replace(known(ONE), known=pods(ONE, phase="Succeeded"))
    assert outliving_of(after_pods(before, {}, 12, held_by)) == Outliving(10)


def test_a_new_life_names_whatever_runs_and_knows_what_the_one_before_wrote() -> None:
    written = Outliving(7, {ONE: {A: (1, 2000, 30)}, TWO: {A: (1, 1, 1)}})
    found = after_look(first(pods(), 10, written), (ONE, THREE, STATIC))
    assert outliving_of(found) == Outliving(10, {ONE: {A: (1, 2000, 30)}, THREE: {}})


def test_the_node_is_written_on_change_only_and_what_it_says_can_be_read_again() -> None:
    departures = known(ONE)
    patch = outliving_report(Node(), departures).body
    assert patch == {"metadata": {"annotations": {NODE_OUTLIVING: encode_outliving(Outliving(10))}}}
    node = Node(metadata=ObjectMeta(annotations={NODE_OUTLIVING: encode_outliving(Outliving(10))}))
    assert outliving_report(node, departures).body is None
    assert read_outliving(node) == Outliving(10)
    assert outliving_report(node, None).body == {"metadata": {"annotations": {NODE_OUTLIVING: None}}}
    assert read_outliving(Node(metadata=ObjectMeta(annotations={NODE_OUTLIVING: "?"}))) is None


@pytest.mark.needs_compiler
async def test_the_daemon_names_a_pod_that_was_deleted_by_force_until_its_cgroup_is_empty(tmp_path: Path) -> None:
    async with daemon("--cgroup-root", str(tmp_path), runtime_version="containerd://2.4.2") as node:
        uids = {name: node.bind(name, gpu) for gpu, name in enumerate(("stays", "goes"))}
        assert not node.annotation(NODE_OUTLIVING)
        for uid in uids.values():
            folder = tmp_path / "kubepods" / f"pod{uid}"
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
        (tmp_path / "kubepods" / f"pod{uids['goes']}" / "cgroup.events").write_text("populated 0\n")
        await until(lambda: named() == set())
