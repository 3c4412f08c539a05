"""The chart is the one source: base and overlays say what it says."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

import proto
from daemonset import render
from daemonset.render import CannotRender, Identity
from tests.daemonset.shipped import by_identity, container, one

ROOT = render.HERE.parent
VARIANTS = render.variants()


def kustomize(kubectl: str, folder: Path) -> dict[Identity, Any]:
    done = subprocess.run([kubectl, "kustomize", str(folder)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return by_identity(render.split(done.stdout))


def unordered(value: Any) -> Any:
    """Volumes are known by their names; in which order patches leave them means nothing."""
    match value:
        case dict():
            return {
                key: sorted(inner, key=lambda one: one["name"])
                if key in ("volumes", "volumeMounts")
                else unordered(inner)
                for key, inner in value.items()
            }
        case list():
            return [unordered(inner) for inner in value]
    return value


@pytest.mark.usefixtures("chart")
def test_the_committed_manifests_are_what_the_chart_renders() -> None:
    assert [str(path.relative_to(ROOT)) for path in render.out_of_date(render.files())] == []


@pytest.mark.usefixtures("chart")
def test_the_base_is_the_chart_with_its_defaults(kubectl: str) -> None:
    assert kustomize(kubectl, render.HERE / "base") == by_identity(render.render())


@pytest.mark.usefixtures("chart")
@pytest.mark.parametrize("variant", VARIANTS)
def test_an_overlay_is_the_chart_with_the_values_of_its_name(variant: str, kubectl: str) -> None:
    built = kustomize(kubectl, render.HERE / "overlays" / variant)
    assert unordered(built) == unordered(by_identity(render.render(variant)))


@pytest.mark.usefixtures("chart")
def test_components_go_together(kubectl: str, tmp_path: Path) -> None:
    together = [name for name in VARIANTS if name not in render.OTHER_RELEASES]
    document = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": [relative(tmp_path, render.HERE / "base")],
        "components": [relative(tmp_path, render.HERE / "components" / name) for name in together],
    }
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(document))
    values = [word for name in together for word in ("--values", str(render.CHART / "ci" / f"{name}-values.yaml"))]
    assert unordered(kustomize(kubectl, tmp_path)) == unordered(by_identity(render.render("", *values)))


def relative(here: Path, there: Path) -> str:
    return "/".join([".."] * (len(here.resolve().parts) - 1) + list(there.parts[1:]))


def test_every_variant_has_its_overlay_and_component() -> None:
    for kind in ("overlays", "components"):
        assert sorted(path.parent.name for path in (render.HERE / kind).glob("*/kustomization.yaml")) == VARIANTS


def test_the_chart_has_the_version_of_the_programs() -> None:
    chart = yaml.safe_load((render.CHART / "Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (proto.__version__, proto.__version__)


@pytest.mark.usefixtures("chart")
@pytest.mark.parametrize(
    ("cluster", "image"),
    [
        ("v1.29.15", "registry.k8s.io/kube-scheduler:v1.29.15"),
        ("v1.33.2-gke.1000", "registry.k8s.io/kube-scheduler:v1.33.2"),
        ("v1.34.1+k3s1", "registry.k8s.io/kube-scheduler:v1.34.1"),
    ],
)
def test_helm_takes_the_kube_scheduler_of_the_cluster_s_version(cluster: str, image: str) -> None:
    rendered = render.template("--kube-version", cluster)
    assert container(rendered, "topogpu-scheduler/kube-scheduler").spec["image"] == image


@pytest.mark.usefixtures("chart")
def test_older_clusters_are_refused() -> None:
    with pytest.raises(CannotRender, match="chart requires kubeVersion"):
        render.template("--kube-version", "v1.28.0")


@pytest.mark.usefixtures("chart")
def test_another_namespace_is_named_everywhere() -> None:
    rendered = render.template("--namespace", "elsewhere", "--kube-version", render.KUBERNETES)
    assert render.NAMESPACE not in json.dumps([manifest.content for manifest in rendered])


@pytest.mark.usefixtures("chart")
def test_an_image_by_digest() -> None:
    digest = "sha256:" + "0" * 64
    rendered = render.render("", "--set", f"image.repository=example.com/topogpu,image.tag=v1,image.digest={digest}")
    image = container(rendered, "topogpu-scheduler/extender").spec["image"]
    assert image == f"example.com/topogpu:v1@{digest}"
    hami_core = render.render("hami-core", "--set", f"hamiCore.image.tag=,hamiCore.image.digest={digest}")
    image = container(hami_core, "topogpu-device-plugin/hami-core").spec["image"]
    assert image == f"docker.io/projecthami/hami@{digest}"


@pytest.mark.usefixtures("chart")
def test_names_of_an_identity_provider_are_texts_in_the_policies_whatever_is_in_them() -> None:
    rendered = render.render("", "--set-json", json.dumps({"policies": {"trustedGroups": ["CORP\\ops", 'o\'b "x"']}}))
    conditions = one(rendered, "ValidatingAdmissionPolicy", "topogpu-bindings")["spec"]["matchConditions"]
    assert conditions[1]["expression"].endswith(r"""exists(g, g in ['CORP\\ops', 'o\'b "x"'])""")


@pytest.mark.usefixtures("chart")
@pytest.mark.parametrize(
    ("setting", "complaint"),
    [
        ("image.tag=latest", "/image/tag"),
        ("image.digest=sha256:short", "/image/digest"),
        ("schedulr.replicas=2", "'schedulr' not allowed"),
        ("scheduler.replicas=0", "/scheduler/replicas"),
        ("scheduler.settings.filter-returns=some", "/scheduler/settings/filter-returns"),
        ("scheduler.settings.gpu-policy=spread", "'gpu-policy' not allowed"),
        ("scheduler.settings.default-cores=101", "/scheduler/settings/default-cores"),
        ("devicePlugin.settings.device_split_cout=4", "'device_split_cout' not allowed"),
        ("devicePlugin.settings.device_split_count=four", "/devicePlugin/settings/device_split_count"),
        ("devicePlugin.settings.kubelet_root=/k", "'kubelet_root' not allowed"),
        ("devicePlugin.kubeletRoot=kubelet", "/devicePlugin/kubeletRoot"),
        ("resourceNames.count=gpu", "/resourceNames/count"),
        ("scheduler.settings.deny-bypass=maybe", "/scheduler/settings/deny-bypass"),
        ("monitoring.interval=often", "/monitoring/interval"),
        ("policies.validationActions={Refuse}", "/policies/validationActions"),
        ("policies.validationActions={Deny,Warn}", "/policies/validationActions"),
        ("hamiCore.image.tag=", "/hamiCore/image/tag"),
        ("scheduler.settings.gpu-scheduler-policy=toplogy-aware", "/scheduler/settings/gpu-scheduler-policy"),
        ("simulation.machine=h200", "/simulation/machine"),
        ("devicePlugin.settings.features={gpu-sums}", "gpu-sums concern the whole chart: set gpuSums.enabled"),
    ],
)
def test_a_mistake_in_the_values_is_told_with_its_place(setting: str, complaint: str) -> None:
    with pytest.raises(CannotRender) as refusal:
        render.template("--set", setting)
    assert complaint in str(refusal.value)


@pytest.mark.usefixtures("chart")
@pytest.mark.parametrize(
    ("part", "kinds"),
    [
        ("rbac.create", {"ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"}),
        ("policies.enabled", {"ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"}),
        ("networkPolicy.enabled", {"NetworkPolicy"}),
        ("webhook.enabled", {"MutatingWebhookConfiguration", "Secret"}),
    ],
)
def test_what_is_switched_off_is_gone(part: str, kinds: set[str]) -> None:
    there = {manifest.content["kind"] for manifest in render.render()}
    left = {manifest.content["kind"] for manifest in render.render("", "--set", f"{part}=false")}
    assert there - left == kinds


@pytest.mark.usefixtures("chart")
def test_pods_are_started_anew_when_their_configuration_changes() -> None:
    def checksums(*arguments: str) -> list[str]:
        rendered = render.render("", *arguments)
        workloads = [
            one(rendered, "DaemonSet", "topogpu-device-plugin"),
            one(rendered, "Deployment", "topogpu-scheduler"),
        ]
        found = [workload["spec"]["template"]["metadata"]["annotations"] for workload in workloads]
        return [found[0]["checksum/settings"], found[1]["checksum/config"]]

    before = checksums()
    daemon = checksums("--set", "devicePlugin.settings.device_split_count=4")
    scheduler = checksums("--set", "scheduler.preemption=false")
    assert [now == then for now, then in zip(daemon, before, strict=True)] == [False, True]
    assert [now == then for now, then in zip(scheduler, before, strict=True)] == [True, False]
