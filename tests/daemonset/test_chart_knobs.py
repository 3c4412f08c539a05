"""Names, labels, annotations, variables and objects of the administrator in the chart; its README and its test."""

import json
import re
import subprocess
from typing import Any

import pytest
import yaml

from daemonset import chart_readme, helm, render
from scheduler_ext.cli.serving import history_place
from scheduler_ext.settings import LeaseSettings
from tests.daemonset.shipped import container, containers, one, rendered, scheduler_configuration

pytestmark = pytest.mark.usefixtures("chart")
DOCUMENTS = render.HERE.parent / "docs"


def named(values: dict[str, Any]) -> list[render.Manifest]:
    return render.template("--namespace", "elsewhere", "--set-json", json.dumps(values))


def everything() -> list[render.Manifest]:
    parts = {"monitoring": {"enabled": True}, "statusPage": {"enabled": True, "viewers": ["gpu-users"]}}
    more = {"webhook": {"certManager": {"enabled": True}}, "scheduler": {"replicas": 2}, "namespace": {"create": True}}
    changed = {"fullnameOverride": "gpus", "nameOverride": "sharing", "commonLabels": {"team": "ml"}}
    return named(parts | more | changed | {"commonAnnotations": {"example.com/owner": "ml"}})


def test_every_object_has_the_prefix_the_labels_and_the_annotations() -> None:
    fixed = {("Namespace", "elsewhere")}
    for manifest in everything():
        metadata = manifest.content["metadata"]
        assert metadata["name"].startswith("gpus") or (manifest.content["kind"], metadata["name"]) in fixed
        assert metadata["labels"]["app.kubernetes.io/name"] == "sharing"
        assert (metadata["labels"]["team"], metadata["annotations"]["example.com/owner"]) == ("ml", "ml")


def test_names_within_objects_follow_the_prefix() -> None:
    found = everything()
    texts = [json.dumps(each.content) for each in found if each.content["kind"] not in ("ConfigMap", "PrometheusRule")]
    assert set(re.findall(r"\btopogpu-[a-z-]+", " ".join(texts))) <= {"topogpu-scheduler", "topogpu-configs"}
    accounts = {each.content["metadata"]["name"] for each in found if each.content["kind"] == "ServiceAccount"}
    assert {each.pod["serviceAccountName"] for each in containers(found)} == accounts
    deployment = one(found, "Deployment", "gpus-scheduler")
    selected = deployment["spec"]["selector"]["matchLabels"].items()
    assert selected <= deployment["spec"]["template"]["metadata"]["labels"].items()


def test_pods_get_their_own_labels_annotations_and_variables() -> None:
    variable = {"name": "HTTPS_PROXY", "value": "http://proxy:3128"}
    added = {"podLabels": {"a": "b"}, "podAnnotations": {"c": "d"}, "extraEnv": [variable]}
    accounts = {"serviceAccountAnnotations": {"e": "f"}}
    found = named({"scheduler": added | accounts, "devicePlugin": added | accounts})
    for kind, name, main in (("DaemonSet", "device-plugin", "device-plugin"), ("Deployment", "scheduler", "extender")):
        metadata = one(found, kind, f"topogpu-{name}")["spec"]["template"]["metadata"]
        assert (metadata["labels"]["a"], metadata["annotations"]["c"]) == ("b", "d")
        assert variable in container(found, f"topogpu-{name}/{main}").spec["env"]
        assert one(found, "ServiceAccount", f"topogpu-{name}")["metadata"]["annotations"] == {"e": "f"}


def test_more_objects_are_rendered_as_templates() -> None:
    added = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "mine", "namespace": "{{ .Release.Namespace }}"},
    }
    assert one(named({"extraObjects": [added]}), "ConfigMap", "mine")["metadata"]["namespace"] == "elsewhere"


def test_the_status_page_s_service_leads_to_the_replica_that_decides() -> None:
    found = everything()
    service = one(found, "Service", "gpus-status")["spec"]
    labels = one(found, "Deployment", "gpus-scheduler")["spec"]["template"]["metadata"]["labels"]
    assert service["selector"].items() <= (labels | {"hami.io/scheduler-role": "leader"}).items()
    extender = container(found, "gpus-scheduler/extender").spec
    [port] = [each["containerPort"] for each in extender["ports"] if each["name"] == service["ports"][0]["targetPort"]]
    assert f"--status-bind-address=:{port}" in extender["args"]
    [subject] = one(found, "ClusterRoleBinding", "gpus-status")["subjects"]
    assert subject["name"] == "gpu-users"


def test_a_status_page_without_a_service_is_on_loopback() -> None:
    found = named({"statusPage": {"enabled": True, "service": {"enabled": False}}})
    assert "--status-bind-address=127.0.0.1:9396" in container(found, "topogpu-scheduler/extender").spec["args"]
    assert [each for each in found if each.content["metadata"]["name"] == "topogpu-status"] == []


def test_the_status_page_s_history_has_a_config_map_that_only_its_name_gives_rights_on() -> None:
    found = named({"statusPage": {"enabled": True}})
    assert "data" not in one(found, "ConfigMap", "topogpu-scheduler-status-history")
    election = scheduler_configuration(found)["leaderElection"]
    lease = LeaseSettings(elects=True, name=election["resourceName"], namespace=election["resourceNamespace"])
    assert history_place(lease) == "elsewhere/topogpu-scheduler-status-history"
    rules = [rule for each in found if each.content["kind"].endswith("Role") for rule in each.content["rules"]]
    [right] = [rule for rule in rules if "topogpu-scheduler-status-history" in rule.get("resourceNames", ())]
    assert (right["resources"], right["verbs"]) == (["configmaps"], ["get", "patch"])


def test_a_status_page_with_a_service_needs_the_webhook_s_certificate() -> None:
    with pytest.raises(render.CannotRender, match=r"statusPage\.service needs the webhook's certificate"):
        named({"statusPage": {"enabled": True}, "webhook": {"enabled": False}})


def test_helm_test_starts_a_pod_with_one_gpu() -> None:
    pod = one(named({}), "Pod", "topogpu-test")
    [tried] = pod["spec"]["containers"]
    assert (pod["metadata"]["annotations"]["helm.sh/hook"], tried["resources"]["limits"]["nvidia.com/gpu"]) == (
        "test",
        1,
    )
    assert pod["spec"]["schedulerName"] == "topogpu-scheduler"
    compile(tried["args"][0], "the test's program", "exec")


def test_notes_name_three_commands() -> None:
    command = [
        str(helm.find()),
        "install",
        "topogpu",
        str(render.CHART),
        "--dry-run=client",
        "--namespace",
        "elsewhere",
    ]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout.partition("NOTES:\n")[2]
    assert re.findall(r"^  ((?:helm test|kubectl topogpu) ?\w*)", told, re.MULTILINE) == [
        "helm test topogpu",
        "kubectl topogpu top",
        "kubectl topogpu why",
    ]


def test_the_readme_has_every_value_and_its_meaning() -> None:
    found = {each.path: each for each in chart_readme.values((render.CHART / "values.yaml").read_text("utf-8"))}
    assert chart_readme.README.read_text("utf-8") == chart_readme.text(), "run 'make manifests'"
    assert {"scheduler.settings", "statusPage.service.port", "webhook.certManager.issuerRef"} <= found.keys()
    schema = json.loads((render.CHART / "values.schema.json").read_text("utf-8"))
    assert {path.partition(".")[0] for path in found} == schema["properties"].keys() - {"global"}


def test_runbooks_are_sections_of_the_documents() -> None:
    rules = one(rendered("monitoring"), "PrometheusRule", "topogpu")["spec"]["groups"]
    runbooks = [rule["annotations"]["runbook_url"] for group in rules for rule in group["rules"]]
    assert runbooks
    for runbook in runbooks:
        address, _, anchor = runbook.partition("#")
        repository, _, page = address.partition("/blob/main/docs/")
        assert repository == yaml.safe_load((render.CHART / "Chart.yaml").read_text("utf-8"))["home"]
        headings = re.findall(r"^#+ (.+)$", (DOCUMENTS / page).read_text("utf-8"), re.MULTILINE)
        assert anchor in {heading.lower().replace(" ", "-") for heading in headings}
