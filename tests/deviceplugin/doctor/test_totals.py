from deviceplugin.doctor.annotations import judge_totals
from deviceplugin.doctor.finding import FindingState
from proto.annotations import keys
from tests.builders import node

TOTALS = {keys.RESOURCE_MEMORY: 1000, keys.RESOURCE_CORES: 200}


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
