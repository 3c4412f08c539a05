"""Names that people may have meant."""

import pytest

from program.words import nearest

KNOWN = ("1x-t4-vm", "4x-a100-pcie-80g-bridged", "4x-gh200", "dgx1v-8x-v100-32g", "dgx2-16x-v100-32g")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("4x-a100", "did you mean 4x-a100-pcie-80g-bridged? "),
        ("GH200", "did you mean 4x-gh200? "),
        ("v100", "did you mean dgx1v-8x-v100-32g or dgx2-16x-v100-32g? "),
        ("4x-gh20O", "did you mean 4x-gh200? "),
        ("rtx", ""),
        ("", ""),
        ("-", ""),
    ],
)
def test_names_that_have_it_in_them_go_before_those_that_are_alike(name: str, said: str) -> None:
    assert nearest(name, KNOWN) == said
