"""Rules and dashboard ask for what the programs serve, every rule is explained, and promtool agrees with them."""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import yaml

from daemonset import render
from scheduler_ext.settings import ServeSettings
from tests.daemonset.monitoring.promql import asked
from tests.daemonset.shipped import one
from tests.metrics_reference import daemon_families, extender_families, telemetry_families

ROOT = Path(__file__).parents[3]
MONITORING = ROOT / "daemonset/monitoring"
RULES: list[dict[str, Any]] = [
    rule for group in yaml.safe_load((MONITORING / "alerts.yaml").read_text())["groups"] for rule in group["rules"]
]
SCRAPED = {"instance", "job", "le"}
"""Labels that Prometheus adds, or a histogram has; the monitors of the chart add `node` to what daemons serve."""
LABELS = {
    series: SCRAPED | set(family.labels) | added
    for families, added in (
        (daemon_families(), {"node"}),
        (telemetry_families(), {"node"}),
        (extender_families(), set[str]()),
    )
    for family in families
    for series in family.series
}


def panels() -> Iterator[tuple[str, str]]:
    """Title and expression."""
    dashboard = json.loads((MONITORING / "dashboard.json").read_text())
    for panel in dashboard["panels"]:
        for target in panel.get("targets", []):
            yield panel["title"], target["expr"]
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "query":
            metric, label = re.fullmatch(r"label_values\((\w+), (\w+)\)", variable["definition"]).groups()  # type: ignore[union-attr]
            yield variable["name"], f"sum by ({label}) ({metric})"


def promtool() -> str:
    """The program, or a visible skip."""
    cached = Path.home() / ".cache/topogpu/promtool/promtool"
    found = shutil.which("promtool") or (str(cached) if os.access(cached, os.X_OK) else "")
    return found or pytest.skip("promtool is not installed: `make promtool` fetches it")


ASKED = [*panels(), *((rule["alert"], rule["expr"]) for rule in RULES)]


@pytest.mark.parametrize(("title", "expression"), ASKED, ids=[title for title, _ in ASKED])
def test_every_metric_asked_for_is_served_and_has_the_labels(title: str, expression: str) -> None:
    wanted = asked(expression)
    assert wanted.metrics
    assert wanted.metrics <= LABELS.keys()
    assert wanted.labels <= set().union(*(LABELS[metric] for metric in wanted.metrics))


@pytest.mark.parametrize("rule", RULES, ids=[rule["alert"] for rule in RULES])
def test_every_alert_is_explained_and_speaks_of_labels_that_its_metrics_have(rule: dict[str, Any]) -> None:
    address, _, anchor = rule["annotations"]["runbook_url"].partition("#")
    path = address.partition("/blob/main/")[2]
    headings = re.findall(r"^### (.+)$", (ROOT / path).read_text(encoding="utf-8"), re.MULTILINE)
    assert (rule["alert"] in headings, anchor) == (True, rule["alert"].lower())
    told = " ".join(rule["annotations"].values())
    known = set().union(*(LABELS[metric] for metric in asked(rule["expr"]).metrics))
    assert set(re.findall(r"\$labels\.(\w+)", told)) <= known


def test_runbooks_run_programs_in_the_pods_that_have_them() -> None:
    text = (ROOT / "docs/metrics.md").read_text(encoding="utf-8")
    assert re.findall(r"`topogpu-(?:device-plugin|scheduler) [^`]*`|^[$#] topogpu-.*", text, re.MULTILINE) == []


def test_nothing_is_explained_that_is_no_alert() -> None:
    headings = re.findall(r"^### (TopoGPU\w+)$", (ROOT / "docs/metrics.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert headings == [rule["alert"] for rule in RULES]


def test_every_alert_has_a_test_in_which_it_fires() -> None:
    tests = yaml.safe_load((MONITORING / "alerts_test.yaml").read_text())["tests"]
    fired = {case["alertname"] for test in tests for case in test["alert_rule_test"] if case.get("exp_alerts")}
    assert fired == {rule["alert"] for rule in RULES}


def test_bucket_limits_in_rules_are_those_of_the_histograms() -> None:
    from deviceplugin.metrics import metrics as daemon
    from scheduler_ext.metrics import counters as extender

    limits = {str(limit) for limit in (*daemon._CALL_SECONDS, *extender._SECONDS)}
    used = {limit for _, expression in ASKED for limit in re.findall(r'le="([\d.]+)"', expression)}
    assert used <= limits


def test_a_wait_for_a_node_lock_is_told_before_binds_give_it_up() -> None:
    (limit,) = {
        limit for _, expression in ASKED for limit in re.findall(r'node_lock_wait_\w+\{le="([\d.]+)"', expression)
    }
    assert float(limit) < ServeSettings().lock_wait_seconds


@pytest.mark.parametrize("arguments", [("check", "rules", "alerts.yaml"), ("test", "rules", "alerts_test.yaml")])
def test_promtool_agrees(arguments: tuple[str, ...]) -> None:
    done = subprocess.run([promtool(), *arguments], cwd=MONITORING, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_promtool_reads_the_expressions_of_the_dashboard(tmp_path: Path) -> None:
    rules = [
        {"record": f"panel_{number}", "expr": expression.replace("$__rate_interval", "5m")}
        for number, (_, expression) in enumerate(panels())
    ]
    (tmp_path / "panels.yaml").write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    command = [promtool(), "check", "rules", "panels.yaml"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.usefixtures("chart")
def test_the_chart_leads_runbooks_to_where_they_are_read() -> None:
    address = "https://docs.example.com/topogpu/alerts.html"
    shown = render.template("--set", f"monitoring.enabled=true,monitoring.runbooks={address}")
    groups = one(shown, "PrometheusRule", "topogpu")["spec"]["groups"]
    led = [rule["annotations"]["runbook_url"] for group in groups for rule in group["rules"]]
    assert led == [f"{address}#{rule['alert'].lower()}" for rule in RULES]


@pytest.mark.usefixtures("chart")
def test_the_dashboard_is_a_config_map_for_grafanas_sidecar_where_it_is_wanted() -> None:
    wanted = render.template(
        "--set", "monitoring.dashboard.enabled=true,monitoring.dashboard.annotations.grafana_folder=GPUs"
    )
    found = one(wanted, "ConfigMap", "topogpu-dashboard")
    assert found["data"] == {"topogpu.json": (MONITORING / "dashboard.json").read_text()}
    assert found["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert found["metadata"]["annotations"] == {"grafana_folder": "GPUs"}
    assert "topogpu-dashboard" not in {each.content["metadata"]["name"] for each in render.template()}


def test_grafanas_own_schema_knows_every_field_of_the_dashboard() -> None:
    """Read and written again by the classes that Grafana generates from its schema: what it does not know is lost."""
    sdk = "grafana_foundation_sdk"
    pytest.importorskip(sdk, reason="Grafana's schema is not installed: `make test` installs it")
    parts = ("cog.plugins", "cog.encoder", "models.dashboard")
    plugins, encoder, models = (import_module(f"{sdk}.{part}") for part in parts)
    plugins.register_default_plugins()
    dashboard = json.loads((MONITORING / "dashboard.json").read_text())
    known = json.loads(encoder.JSONEncoder(sort_keys=True).encode(models.Dashboard.from_json(dashboard)))
    # Grafana writes a variable's query a second time under this name, which its schema of this release leaves out.
    lost = set(lost_fields(dashboard, known, "dashboard")) - {
        f"dashboard.templating.list[{number}].definition" for number in range(len(dashboard["templating"]["list"]))
    }
    assert lost == set()


def lost_fields(before: Any, after: Any, where: str) -> Iterator[str]:
    match before, after:
        case dict(), dict():
            for key, value in before.items():
                yield from lost_fields(value, after.get(key), f"{where}.{key}")
        case list(), list() if len(before) == len(after):
            for number, (one, other) in enumerate(zip(before, after, strict=True)):
                yield from lost_fields(one, other, f"{where}[{number}]")
        case _ if before != after:
            yield where
