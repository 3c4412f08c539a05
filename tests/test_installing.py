"""What `make` installs is fetched with the system's own trust."""

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("target", ["demo", "test", "coverage"])
def test_no_target_hides_the_authorities_from_what_it_installs(tmp_path: Path, target: str) -> None:
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\nenv > {tmp_path}/environment\nexit 1\n")
    python.chmod(0o755)
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("SSL_CERT", "MAKE"))}
    command = ["make", target, f"PYTHON={python}", f"VENV={tmp_path}/venv"]
    assert subprocess.run(command, cwd=ROOT, env=clean, capture_output=True, check=False).returncode != 0
    assert "\nSSL_CERT" not in "\n" + (tmp_path / "environment").read_text()
