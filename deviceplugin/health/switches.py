"""The texts that switch health checks off and on, in the words of NVIDIA's device plugin."""

from deviceplugin.health.step import APPLICATION_XIDS, HealthSettings

DISABLE = "DP_DISABLE_HEALTHCHECKS"
ENABLE = "DP_ENABLE_HEALTHCHECKS"
_HIGHEST_XID = 0xFFFFFFFF


class HealthSwitchError(Exception):
    """A switch has an unknown word; the message has the switch, the word and what is allowed."""


def read_health_switches(
    disabled: str = "", enabled: str = "", *, disabled_name: str = DISABLE, enabled_name: str = ENABLE
) -> HealthSettings:
    """Reads comma lists: `disabled` of XIDs, `xids`, `fabric` or `all`; `enabled` of XIDs or `all`, which takes
    precedence.

    The names are for messages. Raises HealthSwitchError.
    """
    off_words, off_xids = _read(disabled, disabled_name, ("all", "xids", "fabric"))
    on_words, on_xids = _read(enabled, enabled_name, ("all",))
    return HealthSettings(
        xids=off_words.isdisjoint(("all", "xids")),
        fabric="fabric" not in off_words,
        signals="all" not in off_words or "all" in on_words,
        ignored_xids=APPLICATION_XIDS | off_xids,
        fatal_xids=on_xids,
        every_xid="all" in on_words,
    )


def _read(text: str, name: str, allowed: tuple[str, ...]) -> tuple[frozenset[str], frozenset[int]]:
    """Returns the words and the XIDs of one list."""
    entries = [entry.strip().lower() for entry in text.split(",") if entry.strip()]
    words = frozenset(entry for entry in entries if entry in allowed)
    return words, frozenset(_xid(entry, name, allowed) for entry in entries if entry not in allowed)


def _xid(entry: str, name: str, allowed: tuple[str, ...]) -> int:
    if not (entry.isascii() and entry.isdecimal() and len(entry) <= 10 and int(entry) <= _HIGHEST_XID):
        known = ", ".join(f"'{word}'" for word in allowed)
        raise HealthSwitchError(f"{name}: {entry!r} is not known; allowed are {known} and XID numbers such as 79")
    return int(entry)
