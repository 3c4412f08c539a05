"""What each backend holds stands in one table of the code, and the document shows the same."""

from pathlib import Path

from proto.annotations.node_limits import HOLDS

PAGE = Path(__file__).parents[1] / "docs" / "hami-core.md"


def test_the_document_says_which_backend_holds_what_as_the_table_of_the_code() -> None:
    rows = [line.strip("| \n").split(" | ") for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    shown = {row[0].split("`")[1]: row[1:] for row in rows if len(row) == 5}
    words = {True: "yes", False: "no"}
    assert shown == {
        backend.value: [words[each] for each in (holds.memory, holds.cores, holds.several, holds.in_process)]
        for backend, holds in HOLDS.items()
    }
