"""What is shipped, read back: the committed base, and what the chart renders."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import yaml

from daemonset import render
from daemonset.render import Identity, Manifest

Object = dict[str, Any]


@cache
def base() -> list[Manifest]:
    """The committed files that the base's kustomization names."""
    folder = render.HERE / "base"
    resources = yaml.safe_load((folder / "kustomization.yaml").read_text())["resources"]
    return [manifest for name in resources for manifest in render.split((folder / name).read_text())]


@cache
def rendered(variant: str) -> list[Manifest]:
    return render.render(variant)


def by_identity(manifests: Sequence[Manifest]) -> dict[Identity, Object]:
    return {manifest.identity: manifest.content for manifest in manifests}


def one(manifests: Sequence[Manifest], kind: str, name: str) -> Object:
    (found,) = [
        each.content for each in manifests if (each.content["kind"], each.content["metadata"]["name"]) == (kind, name)
    ]
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """One container of one of our pods, and the pod it is in."""

    workload: str
    pod: Object
    spec: Object

    @property
    def name(self) -> str:
        return f"{self.workload}/{self.spec['name']}"

    def effective(self, key: str) -> object:
        """Of the security contexts, the container's own before its pod's."""
        return self.spec.get("securityContext", {}).get(key, self.pod.get("securityContext", {}).get(key))


def containers(manifests: Sequence[Manifest]) -> Iterator[Container]:
    for workload, pod in pods(manifests):
        for spec in (*pod.get("initContainers", ()), *pod["containers"]):
            yield Container(workload=workload, pod=pod, spec=spec)


def pods(manifests: Sequence[Manifest]) -> Iterator[tuple[str, Object]]:
    for manifest in manifests:
        template = (
            manifest.content.get("spec", {}).get("template") if manifest.content["kind"] != "PrometheusRule" else None
        )
        if template is not None:
            yield manifest.content["metadata"]["name"], template["spec"]


def container(manifests: Sequence[Manifest], name: str) -> Container:
    """`topogpu-scheduler/extender`."""
    (found,) = [each for each in containers(manifests) if each.name == name]
    return found


def settings(manifests: Sequence[Manifest]) -> Object:
    """The node daemon's."""
    document: Object = yaml.safe_load(one(manifests, "ConfigMap", "topogpu-device-plugin")["data"]["settings.yaml"])
    return document


def scheduler_configuration(manifests: Sequence[Manifest]) -> Object:
    """The KubeSchedulerConfiguration."""
    document: Object = yaml.safe_load(one(manifests, "ConfigMap", "topogpu-kube-scheduler")["data"]["config.yaml"])
    return document
