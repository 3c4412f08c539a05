"""The manifests speak to the programs as they are: flags, variables, settings, ports and paths."""

import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from click.testing import CliRunner

from daemonset import render
from daemonset.render import Manifest
from deviceplugin.cli import main as device_plugin
from deviceplugin.configuration.table import TABLE as DAEMON
from proto.annotations import keys
from proto.annotations.keys import SUMS
from scheduler_ext.admission.containers import AdmissionSettings
from scheduler_ext.cli import main as scheduler
from scheduler_ext.cli.serving import POD_VARIABLES, RUNTIME_DIRECTORY
from scheduler_ext.configuration import TABLE as EXTENDER
from scheduler_ext.requests import RequestSettings, ResourceNames
from scheduler_ext.settings import BypassMode, CorePolicy
from tests.daemonset.shipped import (
    base,
    by_identity,
    container,
    containers,
    one,
    scheduler_configuration,
    settings,
)
from tests.scheduler_ext.admission.webhook_configuration import webhook_configuration

PROGRAMS = {"deviceplugin": device_plugin, "scheduler_ext": scheduler}
OF_NVIDIA_S_RUNTIME = {"NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES"}


def parsed(words: list[str]) -> dict[str, Any]:
    """Options by name, as the program's own parser reads the container's command. Raises click.UsageError."""
    python, module_flag, module, verb, *arguments = words
    assert (python, module_flag) == ("python", "-m")
    program = PROGRAMS[module]
    command = program.get_command(click.Context(program), verb)
    assert command is not None, verb
    parser = command.make_parser(click.Context(command))
    options, left, _ = parser.parse_args(args=arguments)
    assert left == []
    return options


def test_every_flag_is_one_that_the_program_has(manifests: list[Manifest]) -> None:
    ours = [each.spec for each in containers(manifests) if each.spec["command"][0] == "python"]
    assert ours
    for spec in ours:
        assert parsed([*spec["command"], *spec["args"]])


def test_a_flag_that_the_program_lacks_would_be_noticed() -> None:
    with pytest.raises(click.UsageError, match="--http_bnd"):
        parsed(["python", "-m", "scheduler_ext", "serve", "--http_bnd=:8080"])


def test_every_variable_is_one_that_somebody_reads(manifests: list[Manifest]) -> None:
    settings_of_both = (*DAEMON.settings.values(), *EXTENDER.settings.values())
    known = {name for setting in settings_of_both for name in setting.environment}
    known |= {*OF_NVIDIA_S_RUNTIME, *POD_VARIABLES, RUNTIME_DIRECTORY}
    for each in containers(manifests):
        assert {variable["name"] for variable in each.spec.get("env", ())} <= known, each.name


def test_the_daemon_takes_its_settings_without_a_word(manifests: list[Manifest], tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text(yaml.safe_dump(settings(manifests)))
    done = CliRunner().invoke(device_plugin, ["run", "--config", str(file), "--node-name", "n", "--print-config"])
    assert (done.exit_code, done.stderr) == (0, "")
    assert yaml.safe_load(done.stdout).items() >= settings(manifests).items()


@pytest.mark.usefixtures("chart")
def test_every_setting_of_the_daemon_may_be_given_but_those_that_volumes_and_ports_hang_on() -> None:
    schema = yaml.safe_load((render.CHART / "values.schema.json").read_text())
    own = {
        *("node_name", "kubeconfig", "kubelet_root", "cdi_directory", "hook_path", "metrics_bind_address", "host_root"),
        *("resource_name", "resource_mem", "resource_mem_percentage", "resource_cores", "resource_priority"),
        *("driver_root", "nvml_library", "kubelet_config"),
    }
    offered = set(schema["properties"]["devicePlugin"]["properties"]["settings"]["properties"])
    assert offered == DAEMON.settings.keys() - own


@pytest.mark.usefixtures("chart")
def test_every_flag_that_may_be_given_is_one_of_the_extender_s() -> None:
    schema = yaml.safe_load((render.CHART / "values.schema.json").read_text())
    offered = schema["properties"]["scheduler"]["properties"]["settings"]["properties"]
    assert {f"--{name}" for name in offered} <= {flag for each in EXTENDER.settings.values() for flag in each.flags}


def test_kube_scheduler_calls_the_extender_where_it_listens(manifests: list[Manifest]) -> None:
    given = extender_options(manifests)
    configuration = scheduler_configuration(manifests)
    [extender] = configuration["extenders"]
    assert extender["urlPrefix"] == f"http://{given['http_bind']}"
    options = ("name", "mem", "mem_percentage", "cores", "priority")
    assert [each["name"] for each in extender["managedResources"]] == [
        *(given[f"resource_{name}"] for name in options),
        *SUMS,
    ]
    assert len(options) == len(fields(ResourceNames))
    assert all(each["ignoredByScheduler"] for each in extender["managedResources"])
    assert [each["schedulerName"] for each in configuration["profiles"]] == [given["scheduler_name"]]


def test_both_look_at_the_same_lease(manifests: list[Manifest]) -> None:
    given = extender_options(manifests)
    election = scheduler_configuration(manifests)["leaderElection"]
    assert given["leader_elect"] == "true"
    assert (election["resourceName"], election["resourceNamespace"]) == (
        given["leader_elect_resource_name"],
        given["leader_elect_resource_namespace"],
    )
    assert election["leaderElect"] is True


def test_probes_and_services_lead_to_ports_that_there_are(manifests: list[Manifest]) -> None:
    for each in containers(manifests):
        # By name a probe finds its own container's ports alone.
        ports = {port["name"] for port in each.spec.get("ports", ())} | numbers(each.pod)
        probes = [each.spec[probe]["httpGet"] for probe in each.spec if probe.endswith("Probe")]
        assert {probe["port"] for probe in probes} <= ports, each.name
        assert {probe["path"] for probe in probes} <= {"/healthz", "/healthz/kube-scheduler", "/readyz"}
    exposed = {port["name"] for each in containers(manifests) for port in each.spec.get("ports", ())}
    services = [each.content for each in manifests if each.content["kind"] == "Service"]
    assert {port["targetPort"] for service in services for port in service["spec"]["ports"]} <= exposed


def numbers(pod: dict[str, Any]) -> set[int]:
    return {port["containerPort"] for spec in pod["containers"] for port in spec.get("ports", ())}


def test_kube_scheduler_lives_only_while_its_extender_does(manifests: list[Manifest]) -> None:
    extender, scheduler = (container(manifests, f"topogpu-scheduler/{name}") for name in ("extender", "kube-scheduler"))
    [metrics] = [port["containerPort"] for port in extender.spec["ports"] if port["name"] == "metrics"]
    asked = {"path": "/healthz/kube-scheduler", "port": metrics}
    assert [scheduler.spec[f"{probe}Probe"]["httpGet"] for probe in ("startup", "liveness")] == [asked, asked]
    [own] = [port["containerPort"] for port in scheduler.spec["ports"]]
    assert extender_options(manifests)["kube_scheduler_healthz"] == f"https://127.0.0.1:{own}/healthz"


def test_ports_are_those_of_the_programs() -> None:
    serve = {key: str(setting.default) for key, setting in EXTENDER.settings.items()}
    extender = container(base(), "topogpu-scheduler/extender").spec["ports"]
    assert {f":{port['containerPort']}" for port in extender} == {
        serve["webhook_bind_address"],
        serve["metrics_bind_address"],
    }
    daemon = container(base(), "topogpu-device-plugin/device-plugin").spec["ports"]
    assert [f":{port['containerPort']}" for port in daemon] == [str(DAEMON.settings["metrics_bind_address"].default)]


def requests(**changes: Any) -> AdmissionSettings:
    return AdmissionSettings(requests=RequestSettings(**changes))


@pytest.mark.usefixtures("chart")
@pytest.mark.parametrize(
    ("values", "admission", "excluded"),
    [
        ({}, AdmissionSettings(), ()),
        ({"scheduler.settings.deny-bypass": "off"}, requests(deny_bypass=BypassMode.OFF), ()),
        ({"scheduler.settings.deny-bypass": "audit"}, requests(deny_bypass=BypassMode.AUDIT), ()),
        ({"scheduler.settings.features": "{overwrite-env}"}, AdmissionSettings(overwrite_env=True), ()),
        ({"scheduler.settings.gpu-core-policy": "force"}, requests(core_policy=CorePolicy.FORCE), ()),
        ({"webhook.excludedNamespaces": "{a,b}"}, AdmissionSettings(), ("a", "b")),
        ({"gpuSums.enabled": "true"}, AdmissionSettings(gpu_sums=True), ()),
        (
            {"resourceNames.count": "example.com/gpu", "resourceNames.priority": "example.com/p"},
            requests(names=ResourceNames(count="example.com/gpu", priority="example.com/p")),
            (),
        ),
    ],
)
def test_the_webhook_is_registered_as_the_extender_would(
    values: dict[str, str], admission: AdmissionSettings, excluded: tuple[str, ...]
) -> None:
    changed = render.render("", *(word for key, value in values.items() for word in ("--set", f"{key}={value}")))
    client = {"service": {"namespace": render.NAMESPACE, "name": "topogpu-webhook"}}
    exempt = ("kube-system", "gpu-operator", render.NAMESPACE)
    found = one(changed, "MutatingWebhookConfiguration", "topogpu-webhook")
    del found["metadata"]["labels"]
    assert plain(found) == plain(webhook_configuration("topogpu-webhook", client, admission, excluded, exempt))


def plain(value: Any) -> Any:
    """White space in an expression means nothing."""
    match value:
        case dict():
            return {key: plain(inner) for key, inner in value.items()}
        case list() | tuple():
            return [plain(inner) for inner in value]
        case str():
            return re.sub(r"\s+", " ", value).strip()
    return value


@pytest.mark.usefixtures("chart")
@pytest.mark.parametrize(
    ("values", "unlimited"),
    [
        ("scheduler.settings.gpu-core-policy=disable", True),
        ("scheduler.settings.gpu-core-policy=force", None),
        ("scheduler.settings.gpu-core-policy=disable,devicePlugin.settings.disable_core_limit=false", False),
    ],
)
def test_daemons_limit_no_cores_where_the_webhook_lifts_that_for_every_container(
    values: str, unlimited: bool | None
) -> None:
    assert settings(render.render("", "--set", values)).get("disable_core_limit") is unlimited


def test_the_extender_keeps_its_certificate_where_the_manifests_put_it() -> None:
    given, manifests = extender_options(base()), by_identity(base())
    namespace, secret = given["webhook_secret"].split("/")
    assert ("Secret", namespace, secret) in manifests
    assert ("MutatingWebhookConfiguration", "", secret) in manifests
    assert ("Service", namespace, secret) in manifests


def test_own_pods_carry_the_label_that_the_webhook_ignores() -> None:
    labels = one(base(), "DaemonSet", "topogpu-device-plugin")["spec"]["template"]["metadata"]["labels"]
    assert labels[keys.WEBHOOK] == keys.WEBHOOK_IGNORE


@pytest.mark.usefixtures("chart")
def test_with_all_nodes_returned_kube_scheduler_scores_and_asks_for_ours() -> None:
    changed = render.render("", "--set", "scheduler.settings.filter-returns=all,scheduler.preemption=false")
    [extender] = scheduler_configuration(changed)["extenders"]
    verbs = {key: value for key, value in extender.items() if key.endswith("Verb")}
    assert verbs == {"filterVerb": "filter", "prioritizeVerb": "prioritize", "bindVerb": "bind"}
    assert extender_options(changed)["filter_returns"] == "all"


@pytest.mark.usefixtures("chart")
def test_kube_scheduler_asks_about_pods_without_gpus_only_if_it_shall() -> None:
    assert len(scheduler_configuration(base())["extenders"]) == 1
    changed = render.render("", "--set", "scheduler.prioritizeWithoutGpus=true")
    every, without = scheduler_configuration(changed)["extenders"]
    assert every["urlPrefix"] == without["urlPrefix"]
    assert {key: value for key, value in without.items() if key.endswith("Verb")} == {
        "prioritizeVerb": "prioritize-without-gpus"
    }
    assert "managedResources" not in without
    assert without["ignorable"] is True


def extender_options(manifests: list[Manifest]) -> dict[str, Any]:
    spec = container(manifests, "topogpu-scheduler/extender").spec
    return parsed([*spec["command"], *spec["args"]])


@pytest.mark.usefixtures("chart")
def test_the_extender_gets_its_settings_as_they_are_written() -> None:
    given = ("default-mem=5000000", "features={legacy-metrics,gpu-preemption}", "gpu-scheduler-policy=topology-aware")
    flags = ",".join(f"scheduler.settings.{one}" for one in given)
    options = extender_options(render.render("", "--set", flags))
    assert {name: options[name] for name in ("default_mem", "features", "gpu_scheduler_policy")} == {
        "default_mem": "5000000",
        "features": "legacy-metrics,gpu-preemption",
        "gpu_scheduler_policy": "topology-aware",
    }


@pytest.mark.usefixtures("chart")
def test_named_configurations_are_mounted_and_read(tmp_path: Path) -> None:
    given = "devicePlugin.configs.mig.mig_strategy=mixed,devicePlugin.defaultConfig=mig"
    changed = render.render("", "--set", given)
    files = one(changed, "ConfigMap", "topogpu-device-plugin-configs")["data"]
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    [daemon] = [each.spec for each in containers(changed) if each.spec["name"] == "device-plugin"]
    [folder] = [argument for argument in daemon["args"] if argument.startswith("--configs=")]
    assert folder.removeprefix("--configs=") in {mount["mountPath"] for mount in daemon["volumeMounts"]}
    [default] = [argument for argument in daemon["args"] if argument.startswith("--default-config=")]
    words = ["run", f"--configs={tmp_path}", f"--config-name={default.partition('=')[2]}", "--node-name=n"]
    done = CliRunner().invoke(device_plugin, [*words, "--print-config"])
    assert yaml.safe_load(done.stdout)["mig_strategy"] == "mixed"


@pytest.mark.usefixtures("chart")
def test_sums_are_a_feature_of_both_programs_under_every_named_configuration() -> None:
    given = "gpuSums.enabled=true,devicePlugin.configs.a.features={gds},devicePlugin.configs.b.device_split_count=2"
    changed = render.render("", "--set", given)
    named = one(changed, "ConfigMap", "topogpu-device-plugin-configs")["data"]
    assert yaml.safe_load(named["a.yaml"]) == {"features": ["gds", "gpu-sums"]}
    assert yaml.safe_load(named["b.yaml"]) == {"device_split_count": 2}
    assert (settings(changed)["features"], extender_options(changed)["features"]) == (["gpu-sums"], "gpu-sums")


@pytest.mark.usefixtures("chart")
@pytest.mark.parametrize("given", ["configs.a.remediation=evict", "configs.a.nothing=1", "configs.-a.log_level=info"])
def test_a_named_configuration_has_no_settings_that_volumes_and_rights_hang_on(given: str) -> None:
    with pytest.raises(render.CannotRender, match="specifications of the schema"):
        render.render("", "--set", f"devicePlugin.{given}")


@pytest.mark.usefixtures("chart")
@pytest.mark.parametrize(
    "given",
    [
        "rollingUpdate.maxUnavailable=1",
        "rollingUpdate.maxSurge=0",
        "rollingUpdate.maxSurge=0%",
        "type=Recreate",
        "rollingUpdate.maxSurge=lots",
        "rollingUpdate.minReady=1",
    ],
)
def test_a_way_to_replace_daemons_that_kubernetes_refuses_is_refused_by_the_chart(given: str) -> None:
    with pytest.raises(render.CannotRender, match="specifications of the schema"):
        render.render("", "--set", f"devicePlugin.updateStrategy.{given}")


@pytest.mark.usefixtures("chart")
@pytest.mark.parametrize(
    "given", [("maxSurge=0", "maxUnavailable=10%"), ("maxSurge=0", "maxUnavailable=1"), ("maxSurge=100%",)]
)
def test_other_ways_to_replace_daemons_can_be_chosen(given: tuple[str, ...]) -> None:
    path = "devicePlugin.updateStrategy.rollingUpdate"
    changed = render.render("", "--set", ",".join(f"{path}.{each}" for each in given))
    daemon = one(changed, "DaemonSet", "topogpu-device-plugin")
    assert {f"{key}={value}" for key, value in daemon["spec"]["updateStrategy"]["rollingUpdate"].items()} >= set(given)
