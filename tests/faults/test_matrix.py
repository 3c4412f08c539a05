from collections import Counter

from tests.faults.document import PAGE, document, written_times
from tests.faults.faults import FAULTS
from tests.faults.matrix import REASONS, cells
from tests.faults.steps import Step


def test_every_fault_has_a_cell_for_every_step_or_a_reason() -> None:
    assert Counter((cell.fault.name, cell.step) for cell in cells()) == Counter(
        (fault.name, step) for fault in FAULTS for step in Step
    )
    assert {cell.reason for cell in cells()} == {"", *REASONS}


def test_the_page_is_that_of_the_matrix() -> None:
    page = PAGE.read_text()
    assert page == document(written_times(page), page), "run make docs-reliability"
