"""The extender's webhook in the embedded API server."""

from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from simulation.admission import admitted
from simulation.apiserver import EmbeddedApiServer
from tests.builders import pod_json


@pytest.fixture
async def server() -> AsyncIterator[EmbeddedApiServer]:
    async with EmbeddedApiServer() as serving:
        serving.webhooks.append(admitted)
        yield serving


async def created(server: EmbeddedApiServer, pod: dict[str, Any]) -> tuple[int, Any, list[str]]:
    """Status, answer and warnings."""
    url = f"{server.url}/api/v1/namespaces/default/pods"
    async with aiohttp.ClientSession() as session, session.post(url, json=pod) as response:
        return response.status, await response.json(), response.headers.getall("Warning", [])


def asking(name: str, **limits: str) -> dict[str, Any]:
    pod = pod_json(name, gpus=0, scheduler_name="")
    pod["spec"]["containers"][0]["resources"] = {
        "limits": {f"nvidia.com/{key}": value for key, value in limits.items()}
    }
    return pod


async def test_a_pod_with_gpus_gets_the_scheduler_and_the_number_that_it_left_out(server: EmbeddedApiServer) -> None:
    status, pod, warnings = await created(server, asking("p", gpumem="3000"))
    container = pod["spec"]["containers"][0]["resources"]
    assert (status, pod["spec"]["schedulerName"], warnings) == (201, "topogpu-scheduler", [])
    assert (container["limits"]["nvidia.com/gpu"], container["requests"]["nvidia.com/gpu"]) == ("1", "1")
    _, other, _ = await created(server, asking("q"))
    assert other["spec"]["schedulerName"] == "default-scheduler"


async def test_a_misspelt_annotation_is_warned_about_once(server: EmbeddedApiServer) -> None:
    pod = asking("p", gpu="1")
    pod["metadata"]["annotations"] = {"hami.io/gpu-scheduler-polici": "spread"}
    _, _, [warning] = await created(server, pod)
    assert "did you mean hami.io/gpu-scheduler-policy?" in warning
    assert (await created(server, asking("q", gpu="1")))[2] == []


async def test_what_the_webhook_refuses_is_not_stored(server: EmbeddedApiServer) -> None:
    status, answer, _ = await created(server, asking("p", gpu="1", gpumem="8Gi"))
    assert (status, server.store.objects("pods")) == (500, [])
    assert answer.get("reason", "") == ""  # as kube-apiserver passes on what a webhook writes
    assert answer["message"].startswith('admission webhook "gpus.topogpu.io" denied the request: ')
    assert answer["message"].endswith("8 GiB is written 8192")
