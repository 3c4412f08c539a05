"""The Job that is shipped for sweeps: each index performs its slice, and all slices make the whole."""

from pathlib import Path
from typing import Any

import yaml
from click.testing import CliRunner

from proto import __version__
from simulation.cli import main
from simulation.plan.merge import read_reports
from tests.simulation.plan.test_plan import STATE

JOB = Path(__file__).parents[3] / "simulation" / "plan" / "job.yaml"
INDEX = "$(JOB_COMPLETION_INDEX)"


def job() -> dict[str, Any]:
    return next(each for each in yaml.safe_load_all(JOB.read_text()) if each["kind"] == "Job")


def arguments(container: dict[str, Any], index: int, volume: Path) -> list[str]:
    """As kubelet expands them, with a small question in place of the sweep."""
    module, *given = [text.replace(INDEX, str(index)).replace("/plan/", f"{volume}/") for text in container["args"]]
    assert module == "simulation"
    return [*given, "--count=5"]


def perform(container: dict[str, Any], index: int, volume: Path) -> None:
    answer = CliRunner(catch_exceptions=False).invoke(main, arguments(container, index, volume))
    assert answer.exit_code == 0, answer.output


def test_each_index_performs_its_slice_and_together_they_are_the_whole(tmp_path: Path) -> None:
    spec = job()["spec"]
    (container,) = spec["template"]["spec"]["containers"]
    (tmp_path / "state.json").write_bytes(Path(STATE).read_bytes())
    for index in range(spec["completions"]):
        perform(container, index, tmp_path)
    report = read_reports(str(tmp_path / "slices"))
    assert len(report.outcomes) == report.runs == 20
    assert len({outcome.run for outcome in report.outcomes}) == 20


def test_there_are_as_many_slices_as_completions() -> None:
    spec = job()["spec"]
    (container,) = spec["template"]["spec"]["containers"]
    (slice_,) = [each for each in container["args"] if each.startswith("--slice=")]
    assert spec["completionMode"] == "Indexed"
    assert slice_ == f"--slice={INDEX}/{spec['completions']}"
    assert spec["completions"] == spec["parallelism"]


def test_the_image_of_the_job_is_of_this_version() -> None:
    (container,) = job()["spec"]["template"]["spec"]["containers"]
    assert container["image"] == f"topogpu-simulation:{__version__}"
    assert f"topogpu:{__version__}" in (JOB.parent / "Dockerfile").read_text()
