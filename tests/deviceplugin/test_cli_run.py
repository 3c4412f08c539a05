import asyncio
import signal
import sys
from pathlib import Path

from click.testing import CliRunner

from deviceplugin.cli.run import run
from simulation.apiserver import EmbeddedApiServer
from tests.deviceplugin.registration import kubelet_root


def test_a_missing_kubeconfig_is_one_sentence() -> None:
    answer = CliRunner().invoke(run, ["--node-name", "n", "--kubeconfig", "/nonexistent/kubeconfig"])
    assert answer.exit_code == 1
    assert "Traceback" not in answer.output
    assert "/nonexistent/kubeconfig" in answer.output


def test_an_unknown_strategy_is_refused_with_those_there_are() -> None:
    answer = CliRunner().invoke(run, ["--node-name", "n", "--device-list-strategy", "envvar,nope"])
    assert answer.exit_code == 2
    assert "envvar, volume-mounts, cdi-annotations, cdi-cri" in answer.output


async def test_without_a_driver_the_daemon_says_so_idles_and_stops_cleanly() -> None:
    async with kubelet_root() as root, EmbeddedApiServer() as server:
        config = write(Path(root, "kubeconfig"), server.kubeconfig())
        arguments = ["--node-name", "n", "--kubeconfig", config, "--kubelet-root", root]
        arguments += ["--nvml-library", "/nonexistent/libnvidia-ml.so.1", "--log-format", "json"]
        daemon = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "deviceplugin",
            "run",
            *arguments,
            stderr=asyncio.subprocess.PIPE,
        )
        assert daemon.stderr is not None
        try:
            async with asyncio.timeout(20):
                while "Cannot load the NVML library" not in (line := (await daemon.stderr.readline()).decode()):
                    assert line
            daemon.send_signal(signal.SIGTERM)
            rest = (await daemon.stderr.read()).decode()
            assert await daemon.wait() == 0
            assert "Traceback" not in rest
        finally:
            if daemon.returncode is None:
                daemon.kill()
                await daemon.wait()


def write(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)
