import pytest

from deviceplugin.doctor.finding import FindingState
from deviceplugin.doctor.totals import judge_totals, judge_without_totals
from deviceplugin.settings import TotalNames
from proto.annotations import keys
from proto.kubernetes.objects import DeviceClass, DeviceClassSpec, Node, ObjectMeta
from tests.builders import node

TOTALS = {keys.RESOURCE_MEMORY: 1000, keys.RESOURCE_CORES: 200}
HAZARD = DeviceClass(
    metadata=ObjectMeta(name="gpu.nvidia.com"), spec=DeviceClassSpec(extended_resource_name=keys.RESOURCE_COUNT)
)


def test_totals_that_stand_are_told() -> None:
    found = judge_totals(node(gpumem="1k", gpucores="200"), TOTALS, daemon_serves=True)
    assert (found.state, found.explanation) == (
        FindingState.OK,
        "The Node has 1000 nvidia.com/gpumem and 200 nvidia.com/gpucores in all.",
    )


def test_totals_that_a_running_daemon_has_not_written_are_a_problem() -> None:
    found = judge_totals(node(gpumem="5"), TOTALS, daemon_serves=True)
    assert found.state is FindingState.PROBLEM
    assert "5 nvidia.com/gpumem and none nvidia.com/gpucores where its GPUs have 1000" in found.explanation
    assert judge_totals(node(), TOTALS, daemon_serves=False).state is FindingState.SKIPPED


@pytest.mark.parametrize(
    ("said", "classes", "state", "words"),
    [
        (node(), (), FindingState.OK, "no DeviceClass is for nvidia.com/gpu"),
        (
            node(),
            (HAZARD,),
            FindingState.PROBLEM,
            "because of DeviceClass gpu.nvidia.com kube-scheduler (from 1.36 on)",
        ),
        (node(), None, FindingState.WARNING, "could not be read"),
        (node(gpumem="5"), (), FindingState.PROBLEM, "still has nvidia.com/gpumem"),
    ],
)
def test_without_totals_a_device_class_for_our_resource_is_a_problem(
    said: Node, classes: tuple[DeviceClass, ...] | None, state: FindingState, words: str
) -> None:
    found = judge_without_totals(said, TotalNames(), keys.RESOURCE_COUNT, classes)
    assert (found.state, words in found.explanation) == (state, True), found
