import pytest

from deviceplugin.container.edits import DeviceListStrategy
from deviceplugin.doctor.nvidia_runtime import RuntimeFacts, judge_runtime

ENVVAR, VOLUMES, ANNOTATIONS, CRI, FILES = DeviceListStrategy
PATH = "/etc/nvidia-container-runtime/config.toml"
BY_VARIABLE = "accept-nvidia-visible-devices-envvar-when-unprivileged"
BY_VOLUMES = "accept-nvidia-visible-devices-as-volume-mounts"
SHIPPED = """
#accept-nvidia-visible-devices-envvar-when-unprivileged = true
#swarm-resource = "DOCKER_RESOURCE_GPU"
disable-require = false
[nvidia-container-cli]
load-kmods = true
[nvidia-container-runtime]
mode = "auto"
[nvidia-container-runtime.modes.cdi]
annotation-prefixes = ["cdi.k8s.io/"]
"""
"""As the toolkit's packages install it, in short."""


@pytest.mark.parametrize(
    ("text", "strategies", "state", "words"),
    [
        (SHIPPED, (ENVVAR,), "ok", "gives containers the GPUs that they name"),
        (f"{BY_VARIABLE} = true", (ENVVAR,), "ok", "gives containers"),
        (f"{BY_VARIABLE} = false", (ENVVAR,), "problem", f"{BY_VARIABLE} = false, and device_list_strategy is envvar"),
        (f"{BY_VARIABLE} = false", (CRI,), "ok", "need not name GPUs"),
        (f"{BY_VARIABLE} = false", (ANNOTATIONS, CRI), "ok", "need not name GPUs"),
        (f"{BY_VARIABLE} = false", (FILES,), "ok", "need not name GPUs"),
        (SHIPPED, (VOLUMES,), "problem", f"{BY_VOLUMES} = false"),
        (f"{BY_VARIABLE} = false\n{BY_VOLUMES} = true", (VOLUMES, ENVVAR), "ok", "gives containers"),
        ('swarm-resource = "DOCKER_RESOURCE_GPU"', (ENVVAR,), "warning", "by that variable too, past the scheduler"),
        ("a = ", (ENVVAR,), "warning", f"{PATH} is not TOML"),
        (f'{BY_VARIABLE} = "false"', (ENVVAR,), "warning", f"a value of the wrong type for {BY_VARIABLE}"),
        (None, (ENVVAR,), "skipped", f"there is no {PATH}"),
        (None, (CRI,), "ok", "need not name GPUs"),
    ],
)
def test_whether_the_runtime_gives_containers_what_the_daemon_names(
    text: str | None, strategies: tuple[DeviceListStrategy, ...], state: str, words: str
) -> None:
    found = judge_runtime(RuntimeFacts(path=PATH, text=text), strategies)
    assert found.state == state
    assert words in found.explanation
    assert bool(found.remedy) == (state in ("warning", "problem"))
