"""The webhook of `topogpu-scheduler serve` as a process, its certificate made by itself."""

import asyncio
import base64
import os
import re
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

import aiohttp
import pytest
from click.testing import CliRunner

from proto.admission import Json
from scheduler_ext.admission.containers import AdmissionSettings
from scheduler_ext.certificates.issue import issue
from scheduler_ext.cli.serve import serve
from simulation.apiserver import EmbeddedApiServer
from tests.polling import until
from tests.scheduler_ext.admission.pods import container, envelope, opened, pod
from tests.scheduler_ext.admission.webhook_configuration import webhook_configuration

OURS = ("--webhook-secret", "kube-system/cert")
NOW = datetime.now(UTC)  # noqa: TID251 - real handshakes look at the real clock


@asynccontextmanager
async def serving(server: EmbeddedApiServer, folder: Path, *flags: str) -> AsyncIterator[str]:
    """The URL of the webhook."""
    kubeconfig = folder / "config"
    kubeconfig.write_text(server.kubeconfig())
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "scheduler_ext", "serve", "--http_bind", "127.0.0.1:0", "--metrics-bind-address", ""),
        *("--webhook-bind-address", "127.0.0.1:0", "--kubeconfig", str(kubeconfig), *flags),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    try:
        assert process.stderr is not None
        async with asyncio.timeout(120):
            while not (found := re.search(rb"the webhook is served on (\S+)", await process.stderr.readline())):
                assert not process.stderr.at_eof()
        yield found[1].decode()
        process.terminate()
        _, errors = await asyncio.wait_for(process.communicate(), 120)
        assert (process.returncode, b"Traceback" in errors) == (0, False)
    finally:
        if process.returncode is None:
            process.kill()


async def answer(url: str, authorities: bytes, shown: Json) -> Json:
    trust = ssl.create_default_context(cadata=authorities.decode())
    headers = {"Content-Type": "application/json"}
    async with (
        aiohttp.ClientSession(headers=headers) as http,
        http.post(url, data=envelope(shown), ssl=trust) as response,
    ):
        read: Json = opened(await response.read())["response"]
        return read


async def test_it_makes_a_certificate_that_the_api_server_trusts_and_completes_pods(tmp_path: Path) -> None:
    async with EmbeddedApiServer() as server:
        server.create(webhook_configuration("cert", {"url": "https://127.0.0.1/webhook"}, AdmissionSettings()))

        def bundle() -> str:
            configuration = server.store.get("mutatingwebhookconfigurations", "", "cert")
            assert configuration is not None
            return str(configuration["webhooks"][0]["clientConfig"].get("caBundle", ""))

        async def trusted() -> bool:
            return bool(bundle())

        flags = (*OURS, "--default-gpu", "2", "--scheduler-name", "mine", "--gpu-core-policy", "force")
        async with serving(server, tmp_path, *flags) as url:
            await until(trusted)
            response = await answer(url, base64.b64decode(bundle()), pod(container(gpumem="1000")))
            assert {operation["path"]: operation["value"] for operation in response["patch"]} == {
                "/spec/schedulerName": "mine",
                "/spec/containers/0/resources/limits/nvidia.com~1gpu": "2",
                "/spec/containers/0/env": [{"name": "GPU_CORE_UTILIZATION_POLICY", "value": "force"}],
            }


async def test_it_serves_the_certificate_of_files(tmp_path: Path) -> None:
    theirs = issue(frozenset({"127.0.0.1"}), NOW)
    certificate, key = tmp_path / "tls.crt", tmp_path / "tls.key"
    certificate.write_bytes(theirs.certificate)
    key.write_bytes(theirs.key)
    async with EmbeddedApiServer() as server:
        flags = ("--cert_file", str(certificate), "--key_file", str(key), "--deny-bypass", "deny")
        async with serving(server, tmp_path, *flags) as url:
            shown = pod(container(gpu="1", env={"CUDA_DISABLE_CONTROL": "true"}))
            response = await answer(url, theirs.authorities, shown)
            assert response["status"]["message"] == (
                "container main: env CUDA_DISABLE_CONTROL: can lift the limits of a shared GPU; remove it"
            )


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (("--cert_file", "/nowhere/a"), "--cert_file and --key_file go together; give both"),
        (("--cert_file", "a", "--key_file", "b", *OURS), "--cert_file and --webhook-secret are two sources of one"),
        (("--webhook-secret", "name"), "flag --webhook-secret is 'name'; expected namespace/name"),
        (("--webhook-bind-address", "9443"), "flag --webhook-bind-address is '9443'; expected host:port"),
    ],
)
def test_flags_that_do_not_go_together_are_one_sentence(flags: tuple[str, ...], sentence: str) -> None:
    result = CliRunner().invoke(serve, list(flags))
    assert result.exit_code == 2
    assert result.stderr.rpartition("Error: ")[2].startswith(sentence)


def test_files_that_cannot_be_used_are_one_sentence(tmp_path: Path) -> None:
    kubeconfig = tmp_path / "config"
    kubeconfig.write_text(EmbeddedApiServer(port=1).kubeconfig())
    flags = ("--cert_file", "/nowhere/a", "--key_file", "/nowhere/b", "--kubeconfig", str(kubeconfig))
    command = [sys.executable, "-m", "scheduler_ext", "serve", "--http_bind", "127.0.0.1:0"]
    result = subprocess.run(
        [*command, "--metrics-bind-address", "", "--log-level", "error", *flags],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert (result.returncode, result.stderr) == (
        1,
        "Error: /nowhere/a, /nowhere/b: /nowhere/a cannot be read: no such file or directory\n",
    )
