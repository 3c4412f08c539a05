"""The Kustomize base and what its components add, rendered from the chart, and the chart's README.

`python -m daemonset.render` writes them; with `--check` it only lists those that are out of date.
"""

import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from daemonset import chart_readme, helm

HERE = Path(__file__).parent
CHART = HERE / "chart" / "topogpu"
NAMESPACE = "topogpu-system"
KUBERNETES = "v1.37.1"
"""The Kubernetes release of the base and of its kube-scheduler."""
OTHER_RELEASES = {"kubernetes-1.29": "v1.29.15"}
"""Variants for another release than the base."""
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_COMPONENT = "app.kubernetes.io/component"
_HEADER = "# Rendered from daemonset/chart/topogpu by `make manifests`; change it there.\n"

Identity = tuple[str, str, str]


class CannotRender(Exception):
    """Helm failed; the message is its output."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """One object: its identity, and its text as in the chart, comments included."""

    content: dict[str, Any]
    text: str

    @property
    def identity(self) -> Identity:
        """Returns kind, namespace, name."""
        metadata = self.content["metadata"]
        return self.content["kind"], metadata.get("namespace", ""), metadata["name"]

    @property
    def component(self) -> str:
        return str(self.content["metadata"]["labels"][_COMPONENT])


def variants() -> list[str]:
    """Names of the chart's other values files; each is also a Kustomize overlay."""
    return sorted(path.name.removesuffix("-values.yaml") for path in (CHART / "ci").glob("*-values.yaml"))


def render(variant: str = "", *arguments: str) -> list[Manifest]:
    """Returns every object of the base, or of a variant. Raises CannotRender, NoHelm."""
    values = ["--values", str(CHART / "ci" / f"{variant}-values.yaml")] if variant else []
    release = OTHER_RELEASES.get(variant, KUBERNETES)
    namespace = ("--namespace", NAMESPACE, "--set", "namespace.create=true")
    return template("--skip-tests", *namespace, "--kube-version", release, *values, *arguments)


def template(*arguments: str) -> list[Manifest]:
    """Runs `helm template` on the chart. Raises CannotRender, NoHelm."""
    command = [str(helm.find()), "template", "topogpu", str(CHART), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CannotRender(done.stderr.strip())
    return split(done.stdout)


def split(text: str) -> list[Manifest]:
    """Returns the objects in the output of Helm or Kustomize."""
    texts = [re.sub(r"\A# Source: .*\n", "", part) for part in re.split(r"^---\n", text, flags=re.MULTILINE)]
    return [
        Manifest(content=content, text=f"{part.strip()}\n") for part in texts if (content := yaml.load(part, _LOADER))
    ]


def files() -> dict[Path, str]:
    """Returns the files to commit: the chart's README, the base by component, and what each variant adds."""
    base = render()
    there = {manifest.identity for manifest in base}
    written = {
        HERE / "base" / f"{name}.yaml": _joined(base, name) for name in sorted({each.component for each in base})
    }
    for variant in variants():
        added = [manifest for manifest in render(variant) if manifest.identity not in there]
        if added:
            written[HERE / "components" / variant / "added.yaml"] = _HEADER + "---\n".join(each.text for each in added)
    written[chart_readme.README] = chart_readme.text()
    return written


def _joined(manifests: Sequence[Manifest], component: str) -> str:
    return _HEADER + "---\n".join(each.text for each in manifests if each.component == component)


def out_of_date(wanted: dict[Path, str]) -> list[Path]:
    """Returns files that differ, are missing, or are no longer rendered."""
    there = {*(HERE / "base").glob("*.yaml"), *(HERE / "components").glob("*/added.yaml")}
    stale = {path for path in there - wanted.keys() if path.name != "kustomization.yaml"}
    differing = {path for path, text in wanted.items() if not path.exists() or path.read_text() != text}
    return sorted(stale | differing)


def main(check: bool) -> None:
    helm.build()
    wanted = files()
    for path in out_of_date(wanted):
        if check:
            print(f"{path.relative_to(HERE.parent)} is out of date: run 'make manifests'", file=sys.stderr)
        elif path in wanted:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(wanted[path])
        else:
            path.unlink()
    if check and out_of_date(wanted):
        raise SystemExit(1)


if __name__ == "__main__":
    try:
        main(sys.argv[1:] == ["--check"])
    except helm.NoHelm as problem:
        print(f"{problem}.", file=sys.stderr)
        raise SystemExit(helm.NOTHING_TO_BUILD_WITH) from None
    except (CannotRender, helm.HelmBuildFailed) as problem:
        raise SystemExit(str(problem)) from None
