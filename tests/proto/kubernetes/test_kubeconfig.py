from pathlib import Path

import pytest

from proto.kubernetes.client import ApiServer
from proto.kubernetes.errors import ApiServerUnconfigured
from proto.kubernetes.kubeconfig import load_configuration
from tests.proto.kubernetes.scripted_server import write_kubeconfig


@pytest.fixture(autouse=True)
def nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Neither a kubeconfig nor a cluster."""
    for name in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


async def url_of(kubeconfig: str | None = None) -> str:
    api = await ApiServer.connect(kubeconfig)
    await api.close()
    return api.url


async def test_the_argument_comes_before_the_variable_before_the_home(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "home/.kube").mkdir(parents=True)
    write_kubeconfig(tmp_path / "home/.kube/config", "http://home:1")
    assert await url_of() == "http://home:1"
    write_kubeconfig(tmp_path / "variable", "http://variable:1")
    monkeypatch.setenv("KUBECONFIG", f"{tmp_path / 'missing'}:{tmp_path / 'variable'}")
    assert await url_of() == "http://variable:1"
    write_kubeconfig(tmp_path / "argument", "http://argument:1/")
    assert await url_of(str(tmp_path / "argument")) == "http://argument:1"


async def sentence_of(kubeconfig: str | None = None) -> str:
    with pytest.raises(ApiServerUnconfigured) as caught:
        await ApiServer.connect(kubeconfig)
    sentence = str(caught.value)
    assert "\n" not in sentence
    assert sentence.endswith(".")
    return sentence


async def test_nothing_configured_says_what_to_do() -> None:
    assert "give --kubeconfig, set KUBECONFIG, or run inside a cluster" in await sentence_of()


async def test_a_named_file_that_is_missing_is_never_passed_over(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert await sentence_of("/no/such") == "The kubeconfig /no/such is missing or is not a file: check --kubeconfig."
    monkeypatch.setenv("KUBECONFIG", "/no/such/either")
    assert await sentence_of() == "The kubeconfig /no/such/either is missing or is not a file: check KUBECONFIG."


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("", "is not a kubeconfig"),
        ("just text", "is not a kubeconfig"),
        ("[1, 2]", "is not a kubeconfig"),
        ("a: [b", "cannot be used: while parsing"),
        ("\x00", "cannot be used"),
        ("current-context: x", "cannot be used"),
        ("clusters: 3\ncurrent-context: x", "cannot be used"),
    ],
)
async def test_a_broken_file_is_named_with_the_reason(tmp_path: Path, content: str, reason: str) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text(content)
    sentence = await sentence_of(str(path))
    assert str(path) in sentence
    assert reason in sentence


async def test_a_cluster_without_a_server_and_a_broken_certificate(tmp_path: Path) -> None:
    path = tmp_path / "kubeconfig"
    write_kubeconfig(path, "")
    assert "names no server" in await sentence_of(str(path))
    for server in ("", ":6443", "x:99999", "x..y", "[::1", "x" * 64):
        write_kubeconfig(path, f"https://{server}")
        assert "names no server" in await sentence_of(str(path))
    write_kubeconfig(path, "https://x:1")
    path.write_text(path.read_text().replace('"https://x:1"', '"https://x:1", certificate-authority-data: "eHh4"'))
    assert "certificates" in await sentence_of(str(path))


async def test_a_folder_is_no_kubeconfig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path))
    assert await sentence_of() == f"The kubeconfig {tmp_path} is missing or is not a file: check KUBECONFIG."


@pytest.mark.parametrize(
    ("server", "bypassed", "proxy"),
    [
        ("api.example", "", "http://proxy:3128"),
        ("api.example", "other,api.example", None),
        ("10.96.0.1", "10.0.0.0/16, 10.96.0.0/12", None),
        ("10.96.0.1", "10.0.0.0/16,fd00::/8", "http://proxy:3128"),
        ("[fd00::1]", ".svc,fd00::/8", None),
    ],
)
async def test_the_environments_proxy_is_taken_once_unless_the_server_is_excepted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, server: str, bypassed: str, proxy: str | None
) -> None:
    monkeypatch.setenv("http_proxy", "proxy:3128")
    monkeypatch.setenv("no_proxy", bypassed)
    write_kubeconfig(tmp_path / "config", f"http://{server}:1")
    configuration, _ = await load_configuration(str(tmp_path / "config"))
    assert configuration.proxy == proxy
