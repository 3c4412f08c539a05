import pytest

from tests.faults.matrix import Cell
from tests.faults.recovering import params, recover

pytestmark = [pytest.mark.needs_compiler, pytest.mark.timeout(600)]


@pytest.mark.parametrize("cell", params("programs"))
async def test_everything_recovers_from_a_fault_of_the_programs(cell: Cell) -> None:
    await recover(cell)
