"""Traps of the package name `proto`."""

from pathlib import Path

import proto


def test_proto_is_ours_and_not_the_one_of_proto_plus_or_of_the_tests() -> None:
    assert Path(str(proto.__file__)) == Path(__file__).resolve().parents[2] / "proto" / "__init__.py"
