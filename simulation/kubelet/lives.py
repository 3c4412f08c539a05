"""The time for which containers on paper run, and their end (pure).

A command of `sleep`, `true`, `false` and `exit` has its usual meaning. Other containers of pods that may end, such as
those of Jobs, work for a while and succeed; those of pods that are restarted always run until the pod is deleted.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

WORK_SECONDS = 600.0
"""The time that a container works whose command is not understood: longer than a reader of the tour looks at it."""
_SHELLS = {"sh", "bash", "ash"}
_STEP = re.compile(r"(?:sleep (\d+(?:\.\d+)?)s?|exit (\d{1,3})|(true)|(false))")


@dataclass(frozen=True, slots=True)
class Ending:
    after_seconds: float
    exit_code: int


@dataclass(frozen=True, slots=True)
class Life:
    """The ending of each app container by name. The pod is over when all of them are."""

    endings: Mapping[str, Ending]
    restart_policy: str

    @property
    def seconds(self) -> float:
        return max(ending.after_seconds for ending in self.endings.values())

    @property
    def starts_again(self) -> bool:
        failed = any(ending.exit_code for ending in self.endings.values())
        return self.restart_policy == "Always" or (self.restart_policy == "OnFailure" and failed)


def life(pod: Mapping[str, Any]) -> Life | None:
    """Returns the life of a pod (JSON); None for one that runs until it is deleted."""
    spec = pod["spec"]
    policy = spec.get("restartPolicy") or "Always"
    endings = {}
    for container in spec["containers"]:
        ending = _ending([*(container.get("command") or ()), *(container.get("args") or ())])
        if ending is None and policy == "Always":
            return None
        endings[container["name"]] = ending or Ending(WORK_SECONDS, 0)
    return Life(endings, policy)


def _ending(words: Sequence[str]) -> Ending | None:
    """Returns the ending of a command that is understood."""
    if len(words) == 3 and words[0].rpartition("/")[2] in _SHELLS and words[1] == "-c":
        steps = [step.strip() for step in re.split(r";|&&|\n", words[2]) if step.strip()]
    else:
        steps = [" ".join(words)]
    seconds = 0.0
    code = 0
    for step in steps:
        found = _STEP.fullmatch(step.removeprefix("/bin/"))
        if found is None:
            return None
        slept, left, _, failed = found.groups()
        seconds += float(slept or 0)
        code = int(left) if left else int(bool(failed))
        if left:
            break
    return Ending(seconds, code) if steps else None
