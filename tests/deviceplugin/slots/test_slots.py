import re
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deviceplugin.container.cdi import qualified, slot_in
from deviceplugin.container.edits import ContainerEdits
from deviceplugin.slots.slot import Start, named, over
from proto.kubernetes.objects import ContainerStatus
from tests.deviceplugin.gpus import A, bound_pod, share
from tests.playbook import converse

NAMES = st.from_regex(r"[0-9a-f]{32}", fullmatch=True)


@given(NAMES)
def test_an_answer_of_allocate_shows_no_gpu_and_names_a_valid_cdi_device(slot: str) -> None:
    assert named(slot) == ContainerEdits(
        env={"NVIDIA_VISIBLE_DEVICES": "topogpu-slot-not-applied"}, cdi_devices=(f"topogpu.io/slot={slot}",)
    )
    assert re.fullmatch("[A-Za-z0-9]([A-Za-z0-9_.:-]*[A-Za-z0-9])?", slot)


@given(NAMES)
def test_the_slot_is_found_among_the_devices_of_an_answer(slot: str) -> None:
    assert slot_in(["nvidia.com/gpu=all", qualified(slot)]) == slot
    assert slot_in(["nvidia.com/gpu=all"]) == ""


@pytest.mark.parametrize(
    ("now", "known_id", "is_over"),
    [
        (101.9, "", False),
        (102.0, "", True),
        (102.0, "containerd://1", False),
        (249.9, "containerd://1", False),
        (250.0, "containerd://1", True),
    ],
)
def test_a_slot_is_over_when_its_container_was_created_or_kubelet_would_ask_again(
    now: float, known_id: str, *, is_over: bool
) -> None:
    pod = bound_pod("p", ((share(A),),))
    pod.status.container_statuses = [ContainerStatus(name="c0", container_id="containerd://1")]
    starts = {"s": Start(pod_uid="uid-p", container="c0", known_id=known_id, since=100.0)}
    assert over(starts, {"uid-p": pod}, now) == (frozenset({"s"}) if is_over else frozenset())


def test_a_slot_of_a_pod_that_is_not_known_waits_for_its_time() -> None:
    starts = {"s": Start(pod_uid="uid-p", container="c0", known_id="", since=100.0)}
    assert [over(starts, {}, now) for now in (249.0, 250.0)] == [frozenset(), frozenset({"s"})]


@dataclass(frozen=True)
class KubeletStarts:
    """PreStartContainer for a container that has this id so far."""

    slot: str
    known_id: str = ""


@dataclass(frozen=True)
class RuntimeCreates:
    """The pod's status shows this container id."""

    container_id: str


def test_a_slot_is_kept_from_each_start_until_its_container_is_created() -> None:
    pod, starts = bound_pod("p", ((share(A),),)), dict[str, Start]()

    def machine(now: float, event: KubeletStarts | RuntimeCreates | str) -> list[str]:
        if isinstance(event, KubeletStarts):
            starts[event.slot] = Start(pod_uid="uid-p", container="c0", known_id=event.known_id, since=now)
        elif isinstance(event, RuntimeCreates):
            pod.status.container_statuses = [ContainerStatus(name="c0", container_id=event.container_id)]
        gone = sorted(over(starts, {"uid-p": pod}, now))
        for slot in gone:
            del starts[slot]
        return [f"remove {slot}" for slot in gone]

    converse(
        machine,
        (0, KubeletStarts("s"), []),
        (5, RuntimeCreates("containerd://1"), ["remove s"]),
        (60, KubeletStarts("s", "containerd://1"), []),
        (61, RuntimeCreates("containerd://2"), []),
        (62, "two seconds later", ["remove s"]),
        (100, KubeletStarts("s", "containerd://2"), []),
        (249, "the runtime is silent", []),
        (250, "kubelet would call again", ["remove s"]),
    )
