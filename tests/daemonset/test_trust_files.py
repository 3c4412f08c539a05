"""What other programs read about the security of this project: OpenVEX, Security Insights, workflows."""

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from daemonset.release import EXPLOITABILITY, ROOT

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
OURS = "https://github.com/topogpu/topogpu"


def insights() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((ROOT / "SECURITY-INSIGHTS.yml").read_text())
    return found


def texts(tree: object) -> list[str]:
    if isinstance(tree, dict):
        return [text for value in tree.values() for text in texts(value)]
    if isinstance(tree, list):
        return [text for value in tree for text in texts(value)]
    return [tree] if isinstance(tree, str) else []


def test_each_page_that_security_insights_names_is_in_this_repository() -> None:
    pages = [text.removeprefix(f"{OURS}/blob/main/") for text in texts(insights()) if text.startswith(f"{OURS}/blob/")]
    assert pages
    assert [page for page in pages if not (ROOT / page).is_file()] == []


def test_each_tool_that_security_insights_names_is_used_where_it_says() -> None:
    """A tool of the release or of the ordinary checks is named in a workflow, the Makefile or pyproject.toml."""
    used = "".join(path.read_text().lower() for path in [*WORKFLOWS, ROOT / "Makefile", ROOT / "pyproject.toml"])
    named = [tool["name"].lower() for tool in insights()["repository"]["security"]["tools"]]
    assert [name for name in named if name not in used] == []


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_each_action_of_a_workflow_is_pinned_by_a_commit_and_names_its_version(path: Path) -> None:
    uses = re.findall(r"uses: (.*)", path.read_text())
    assert [line for line in uses if not re.fullmatch(r"[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", line)] == []


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_may_only_read_unless_a_job_says_more(path: Path) -> None:
    assert yaml.safe_load(path.read_text())["permissions"] in ({}, {"contents": "read"})


def test_the_openvex_document_gives_a_reason_for_each_finding_that_cannot_harm() -> None:
    """The required fields are those of OpenVEX 0.2.0."""
    document = json.loads(EXPLOITABILITY.read_text())
    assert document["@context"] == "https://openvex.dev/ns/v0.2.0"
    assert {"@id", "author", "timestamp", "version"} <= document.keys()
    for statement in document["statements"]:
        assert statement["status"] == "not_affected"
        assert statement["justification"] == "vulnerable_code_not_in_execute_path"
        assert statement["impact_statement"].endswith(".")
    names = [statement["vulnerability"]["name"] for statement in document["statements"]]
    assert sorted(names) == sorted(set(names))


def test_the_programs_of_the_image_start_no_program_of_its_base() -> None:
    """The OpenVEX document relies on it. Only one module starts a program: kubectl, on a user's machine."""
    folders = ("program", "proto", "deviceplugin", "scheduler_ext", "kubectl_topogpu")
    found = subprocess.run(
        ["grep", "-rlE", r"\bsubprocess\b|create_subprocess|os\.(exec|spawn|system|popen)", "--include=*.py", *folders],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    assert sorted(found) == ["kubectl_topogpu/kubectl.py"]
