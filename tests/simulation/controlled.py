"""A cluster without IO for tests of workloads: the embedded API server, the stand-in controllers and a clock."""

from datetime import UTC, datetime, timedelta
from typing import Any

from simulation.apiserver import EmbeddedApiServer
from simulation.controllers import turns
from simulation.controllers.jobs import JobRecord
from simulation.controllers.running import objects_of, perform

BEGIN = datetime(2030, 1, 1, tzinfo=UTC)
RUNNING = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
CONTAINER = {"name": "main", "image": "i:1"}


class World:
    """An API server without HTTP, a clock, and what controllers remember."""

    def __init__(self) -> None:
        self.now = BEGIN
        self.server = EmbeddedApiServer(now=lambda: self.now)
        self.records: dict[str, JobRecord] = {}

    def turn(self, times: int = 3) -> None:
        for _ in range(times):
            steps, self.records = turns.turn(objects_of(self.server), self.records, self.now)
            for step in steps:
                perform(self.server, step)
            self.now += timedelta(seconds=1)

    def all(self, plural: str) -> list[dict[str, Any]]:
        return self.server.store.objects(plural)

    def pods(self, phase: str = "") -> list[str]:
        found = [pod for pod in self.all("pods") if not phase or pod["status"]["phase"] == phase]
        return [pod["metadata"]["name"] for pod in found]

    def become(self, status: dict[str, Any], *names: str) -> None:
        for name in names:
            self.server.patch("pods", name, {"status": status}, namespace="default", subresource="status")

    def run_all(self) -> None:
        self.become(RUNNING, *self.pods("Pending"))

    def change(self, plural: str, name: str, spec: dict[str, Any]) -> None:
        self.server.patch(plural, name, {"spec": spec}, namespace="default")

    def status(self, plural: str, name: str) -> dict[str, Any]:
        found = self.server.store.get(plural, "default", name)
        assert found is not None
        status: dict[str, Any] = found["status"]
        return status


def deployment(replicas: int, image: str = "i:1", strategy: dict[str, Any] | None = None) -> dict[str, Any]:
    template = {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [CONTAINER | {"image": image}]}}
    spec = {"replicas": replicas, "selector": {"matchLabels": {"app": "web"}}, "template": template}
    return {
        "kind": "Deployment",
        "metadata": {"name": "web"},
        "spec": spec | ({"strategy": strategy} if strategy else {}),
    }


def job(**spec: Any) -> dict[str, Any]:
    template = {"spec": {"restartPolicy": "Never", "containers": [CONTAINER]}}
    return {"kind": "Job", "metadata": {"name": "batch"}, "spec": {"template": template} | spec}


def owner(kind: str, name: str, **spec: Any) -> dict[str, Any]:
    template = {"metadata": {"labels": {"app": name}}, "spec": {"containers": [CONTAINER]}}
    selector = {"matchLabels": {"app": name}}
    return {"kind": kind, "metadata": {"name": name}, "spec": {"selector": selector, "template": template} | spec}


def with_image(item: dict[str, Any], image: str) -> dict[str, Any]:
    template = item["spec"]["template"]
    return {"template": template | {"spec": {"containers": [CONTAINER | {"image": image}]}}}


def node(name: str, **spec: Any) -> dict[str, Any]:
    ready = {"conditions": [{"type": "Ready", "status": "True"}]}
    return {
        "kind": "Node",
        "metadata": {"name": name, "labels": {"gpu": str(name != "c")}},
        "spec": spec,
        "status": ready,
    }


def cron_job(**spec: Any) -> dict[str, Any]:
    schedule = {"schedule": "*/2 * * * *", "jobTemplate": {"spec": job()["spec"]}}
    return {"kind": "CronJob", "metadata": {"name": "report"}, "spec": schedule | spec}
