"""The manifests draw the lines where the programs expect them."""

import re
from typing import Any

import pytest

from daemonset import render
from proto.annotations import keys
from proto.environment import LIFTING_PREFIXES, PRELOADING, lifting
from scheduler_ext.requests import ResourceNames
from scheduler_ext.settings import DEFAULT_SCHEDULER_NAME, CorePolicy
from tests.cluster.shipped import DAEMON, SCHEDULER, documents
from tests.daemonset.shipped import one
from tests.scheduler_ext.admission.webhook_conditions import container_chooses_gpus, harmful

NODE_KEYS = {
    keys.NODE_REGISTER,
    keys.NODE_SCORE,
    keys.NODE_HANDSHAKE,
    keys.NODE_ALLOCATION,
    keys.NODE_LIMITS,
    keys.NODE_SIMULATED,
    keys.NODE_NUMA,
    keys.NODE_LOCK,
    keys.NODE_LOCK_UID,
    keys.NODE_UNDECIDED,
    keys.NODE_LABELS,
}


def policy(name: str) -> dict[str, Any]:
    [found] = [each for each in documents("ValidatingAdmissionPolicy") if each["metadata"]["name"] == f"topogpu-{name}"]
    spec: dict[str, Any] = found["spec"]
    return spec


def texts(spec: dict[str, Any]) -> set[str]:
    """Everything in quotes in its expressions."""
    parts = (*spec.get("variables", ()), *spec["validations"])
    return {text for part in parts for text in re.findall(r"'([^']*)'", part["expression"])}


def test_every_policy_fails_closed_and_is_in_force() -> None:
    policies = {each["metadata"]["name"]: each["spec"] for each in documents("ValidatingAdmissionPolicy")}
    bindings = documents("ValidatingAdmissionPolicyBinding")
    assert {spec["failurePolicy"] for spec in policies.values()} == {"Fail"}
    assert {each["spec"]["policyName"] for each in bindings} == set(policies)
    assert all(each["spec"]["validationActions"] == ["Deny"] for each in bindings)


def test_the_policies_know_every_key_that_the_programs_write() -> None:
    written = {*keys.POD_WRITTEN_KEYS, keys.POD_WRITTEN_PREFIX}
    assert written <= texts(policy("pod-annotations"))
    assert written <= texts(policy("binding-annotations"))
    assert texts(policy("node-annotations")) & NODE_KEYS == NODE_KEYS
    assert texts(policy("device-plugin-nodes")) & NODE_KEYS == NODE_KEYS
    assert texts(policy("scheduler-nodes")) & NODE_KEYS == {keys.NODE_LOCK, keys.NODE_LOCK_UID}
    of_daemon = {keys.BIND_PHASE, keys.DEVICES_TO_ALLOCATE, keys.MEMORY_RESIZE}
    assert texts(policy("device-plugin-pods")) & written == of_daemon
    of_scheduler = {keys.REQUEUE, keys.SET_ASIDE, keys.DEVICES_ALLOCATED, keys.MEMORY_RESIZE}
    assert texts(policy("scheduler-pods")) & written == of_scheduler
    assert keys.MEMORY_WISH in texts(policy("scheduler-pods"))


def test_the_policy_judges_variables_by_the_rules_of_the_webhook() -> None:
    chooses, lifts, _ = (re.sub(r"\s+", " ", each["expression"]) for each in policy("bypass")["validations"])
    assert chooses == f"!variables.containers.exists(c, {container_chooses_gpus(ResourceNames())})"
    rules = harmful("c.env", {**lifting(CorePolicy.DEFAULT.value), **PRELOADING})
    amounts = " || ".join(f"e.name.startsWith('{prefix}')" for prefix in LIFTING_PREFIXES)
    lifted = f"has(c.env) && ({rules} || c.env.exists(e, {amounts}))"
    assert lifts == f"!variables.hasGpus || !variables.containers.exists(c, {lifted})"


def test_the_policy_knows_the_resources_and_the_label_that_lead_past_the_scheduler() -> None:
    resources = {value for name, value in vars(keys).items() if name.startswith("RESOURCE_")}
    resources -= {*keys.SUMS}  # a sum alone gives a pod no GPU, and its Node's total rises by it
    assert resources | {keys.WEBHOOK, keys.WEBHOOK_IGNORE, DEFAULT_SCHEDULER_NAME} <= texts(policy("bypass"))


def test_only_webhook_metrics_and_probes_are_on_the_network() -> None:
    allowed = {
        each["metadata"]["name"]: {port["port"] for rule in each["spec"]["ingress"] for port in rule["ports"]}
        for each in documents("NetworkPolicy")
    }
    assert allowed == {SCHEDULER: {9443, 9395}, DAEMON: {9394}}
    [deployment] = documents("Deployment")
    template = deployment["spec"]["template"]["spec"]
    containers = {each["name"]: each for each in template["containers"]}
    assert "--http_bind=127.0.0.1:8080" in containers["extender"]["args"]
    assert {port["containerPort"] for port in containers["extender"]["ports"]} == {9443, 9395}
    assert not template.get("hostNetwork")
    [daemonset] = documents("DaemonSet")
    assert not daemonset["spec"]["template"]["spec"].get("hostNetwork")
    targets = {port["targetPort"] for each in documents("Service") for port in each["spec"]["ports"]}
    assert targets == {"webhook", "metrics"}


@pytest.mark.usefixtures("chart")
@pytest.mark.parametrize(("service", "port"), [("false", None), ("true", 9396)])
def test_a_status_page_for_other_hosts_brings_its_rights_and_its_port(service: str, port: int | None) -> None:
    manifests = render.render("", "--set", f"statusPage.enabled=true,statusPage.service.enabled={service}")
    policy, role = one(manifests, "NetworkPolicy", SCHEDULER), one(manifests, "ClusterRole", SCHEDULER)
    ports = [each["port"] for rule in policy["spec"]["ingress"] for each in rule["ports"]]
    reviews = {"tokenreviews", "subjectaccessreviews"}
    granted = reviews & {resource for rule in role["rules"] for resource in rule["resources"]}
    assert (set(ports) - {9443, 9395}, granted) == (({port}, reviews) if port else (set(), set()))
