"""Settings of what makes a GPU unhealthy, and of what is done about it."""

import re
from typing import Any

from deviceplugin.configuration import MANY, of_health
from deviceplugin.health.step import HealthSettings
from deviceplugin.settings import RemediationSettings, Remedy
from program.settings.declared import Alias, Items, part
from program.settings.kinds import Number, Parsed, Seconds, Several, Text, words_of

_CHECK = "-?(?i:[0-9]{1,10}|all)|(?i:-(xids|fabric))"
_HIGHEST_XID = 0xFFFFFFFF


def _read_check(text: str) -> str:
    """Reads one item of the list in lower case, an XID without leading zeros. Raises ValueError."""
    if not re.fullmatch(_CHECK, text):
        raise ValueError(text)
    sign, word = ("-", text[1:].lower()) if text.startswith("-") else ("", text.lower())
    if not word.isdecimal():
        return sign + word
    if int(word) > _HIGHEST_XID:
        raise ValueError(text)
    return f"{sign}{int(word)}"


_HEALTH_CHECK = Parsed(
    expected="an XID or all, or with a hyphen before it an XID, all, xids or fabric",
    read=_read_check,
    write=str,
    pattern=_CHECK,
    numbers=True,
)


def _list_of(words: str, variable: str, sign: str) -> Alias:
    """Returns one of the two lists of NVIDIA's plugin, whose items have no sign."""
    pattern = f"[0-9]{{1,9}}|(?i:{words})"
    of = Text(expected=f"an XID, {' or '.join(words.split('|'))}", pattern=pattern)
    return Alias(
        kind=Several(of=of),
        means=lambda each: Items(tuple(_read_check(sign + one) for one in each)),
        environment=variable,
    )


HEALTH: Any = part(
    HealthSettings,
    checks=of_health(
        kind=Several(of=_HEALTH_CHECK),
        help="XIDs that make a GPU unhealthy although they are faults of applications; all: every XID. With a hyphen, "
        "what leaves it healthy: -79 this XID, -xids all of them, -fabric a GPU that is not registered with its NVLink "
        "fabric, -all everything. Names without a hyphen win.",
        key="health_checks",
        aliases=(
            _list_of("all|xids|fabric", "DP_DISABLE_HEALTHCHECKS", "-"),
            _list_of("all", "DP_ENABLE_HEALTHCHECKS", ""),
        ),
    ),
)

REMEDIATION: Any = part(
    RemediationSettings,
    remedies=of_health(
        kind=Several(of=words_of(Remedy), none="off"),
        help="What is done about GPUs that stay unhealthy. report: the Node's condition shows it. evict-waiting: also "
        "pods that wait for such a GPU are evicted. evict: also those that run on one. taint-all, taint-any: also the "
        "Node gets the taint topogpu.io/gpu-unhealthy:NoSchedule while all or any of its GPUs stay unhealthy.",
        key="remediation",
    ),
    after=of_health(
        kind=Seconds(of=Number(above=0, maximum=MANY)),
        help="How long a GPU must have been unhealthy before anything is done about it; for evictions while most GPUs "
        "of the node are, six times as long. After a tenth of it without a fault a GPU is healthy again.",
        key="remediation_seconds",
        unit="s",
    ),
)
