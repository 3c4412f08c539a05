import pytest

from proto.annotations import keys
from proto.annotations.mig_allocations import MigAllocation, encode_mig_allocations
from proto.devices import DeviceUUID, MigPlacement
from proto.kubernetes.objects import (
    Pod,
)
from scheduler_ext.cluster.ledger import Ledger
from scheduler_ext.decide.decision import decide
from tests.builders import container, node, pod
from tests.scheduler_ext.cluster.ledgers import bound, ledger, problem_of, used
from tests.scheduler_ext.gpus import device, request
from tests.scheduler_ext.mig_gpus import mig_device


def on_mig(name: str, text: str, *instances: tuple[str, int, int]) -> Pod:
    """A bound pod whose only container has these `(gpu, start, size)`."""
    there = bound(name, text)
    rows = tuple(
        MigAllocation(
            container=0,
            device=number,
            gpu=DeviceUUID(gpu),
            profile="2g.10gb",
            placement=MigPlacement(start=start, size=size),
        )
        for number, (gpu, start, size) in enumerate(instances)
    )
    if rows:
        there.metadata.annotations[keys.MIG_ALLOCATIONS] = encode_mig_allocations(rows)
    return there


def mig_ledger() -> Ledger:
    made = Ledger()
    made.replace_nodes([node("n", [mig_device(0), device(1)])])
    return made


def test_the_places_of_mig_instances_are_taken_while_their_pod_lives() -> None:
    made = mig_ledger()
    made.apply_pod(on_mig("a", "G0,NVIDIA,9856,29:G0,NVIDIA,9856,29:;", ("G0", 0, 2), ("G0", 2, 2)))
    gpu = made.snapshot().nodes["n"].gpus[0]
    assert gpu.placements == (MigPlacement(start=0, size=2), MigPlacement(start=2, size=2))
    assert (gpu.replicas, gpu.memory_mib, gpu.cores) == (2, 19712, 58)
    assert made.snapshot("uid-a").nodes["n"].gpus[0].placements == ()
    made.remove_pod("uid-a")
    assert made.snapshot().nodes["n"].gpus[0].placements == ()


def test_a_reservation_holds_its_places_before_anything_is_written() -> None:
    made, waiting = mig_ledger(), pod(container(gpu=1, gpumem=8000), name="a", annotations={keys.VGPU_MODE: "mig"})
    decision = decide(request(waiting), made.snapshot(), ["n"])
    made.reserve("uid-a", waiting, "n", decision.shares, until=60.0)
    assert made.snapshot().nodes["n"].gpus[0].placements == (MigPlacement(start=0, size=2),)


FULL_OF_SEVEN = (7, 40960, 100)


@pytest.mark.parametrize(
    "instances", [(), (("G0", 0, 2), ("G0", 2, 2)), (("G1", 0, 2),)], ids=["none", "too many", "another GPU's"]
)
def test_a_gpu_in_mig_mode_is_full_while_somebodys_instances_on_it_are_unknown(
    instances: tuple[tuple[str, int, int], ...],
) -> None:
    made = mig_ledger()
    made.apply_pod(on_mig("a", "G0,NVIDIA,9856,29:;", *instances))
    assert used(made) == [FULL_OF_SEVEN, (0, 0, 0)]


def test_mig_instances_that_cannot_be_read_are_a_problem_of_their_pod() -> None:
    made, broken = mig_ledger(), on_mig("a", "G0,NVIDIA,9856,29:;")
    broken.metadata.annotations[keys.MIG_ALLOCATIONS] = '[{"containerIndex":0}]'
    made.apply_pod(broken)
    assert used(made) == [FULL_OF_SEVEN, (0, 0, 0)]
    assert problem_of(made, "uid-a").startswith("hami.io/vgpu-mig-allocations: $[0]: ")


def test_a_gpu_out_of_mig_mode_with_instances_on_it_is_full() -> None:
    made = ledger()
    made.apply_pod(on_mig("a", "G1,NVIDIA,9856,29:;", ("G1", 0, 2)))
    assert used(made) == [(0, 0, 0), (10, 40960, 100)]


def test_an_instance_of_an_old_mig_template_fills_its_gpu() -> None:
    made = mig_ledger()
    made.apply_pod(bound("a", "G0[1-2],NVIDIA,10240,28:;"))
    assert used(made) == [FULL_OF_SEVEN, (0, 0, 0)]
    assert "MIG template of HAMi 2.9 or older" in problem_of(made, "uid-a")
