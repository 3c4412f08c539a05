"""How long pods run by their commands, and how they end."""

from typing import Any

import pytest

from simulation.kubelet.lives import WORK_SECONDS, Ending, life


def pod(*words: str, policy: str = "Never") -> dict[str, Any]:
    return {"spec": {"restartPolicy": policy, "containers": [{"name": "c", "command": list(words)}]}}


@pytest.mark.parametrize(
    ("words", "ending"),
    [
        (("sleep", "3"), Ending(3.0, 0)),
        (("/bin/sleep", "0.5s"), Ending(0.5, 0)),
        (("true",), Ending(0.0, 0)),
        (("false",), Ending(0.0, 1)),
        (("sh", "-c", "sleep 2; exit 3"), Ending(2.0, 3)),
        (("/bin/bash", "-c", "sleep 1 && sleep 2"), Ending(3.0, 0)),
        (("sh", "-c", "exit 4; sleep 9"), Ending(0.0, 4)),
        (("torchrun", "train.py"), Ending(WORK_SECONDS, 0)),
        ((), Ending(WORK_SECONDS, 0)),
    ],
)
def test_a_command_does_what_it_says(words: tuple[str, ...], ending: Ending) -> None:
    found = life(pod(*words))
    assert found is not None
    assert found.endings == {"c": ending}


@pytest.mark.parametrize(
    ("policy", "word", "again"),
    [
        ("Never", "false", False),
        ("OnFailure", "true", False),
        ("OnFailure", "false", True),
        ("Always", "true", True),
    ],
)
def test_the_restart_policy_decides_whether_containers_start_again(policy: str, word: str, again: bool) -> None:
    found = life(pod(word, policy=policy))
    assert found is not None
    assert found.starts_again is again


def test_a_service_runs_until_its_pod_is_deleted() -> None:
    assert life(pod("python", "serve.py", policy="Always")) is None
