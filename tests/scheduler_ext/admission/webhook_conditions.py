"""Conditions in CEL, by which the API server selects the pods that it sends to the webhook. The chart's policy about
variables contains the same texts.
"""

import json
from collections.abc import Mapping, Sequence

from proto.annotations import keys
from proto.devices import MIG_RESOURCE_PREFIX
from proto.environment import CHOOSING, LEGACY_VERSION, VISIBLE_DEVICES
from scheduler_ext.admission.admit import LABELS
from scheduler_ext.requests import ResourceNames

_LEGACY = {LEGACY_VERSION: ("",)}


def mentions_gpus(names: ResourceNames) -> str:
    """Returns CEL for whether a container limits one of our resources. The API server accepts no request for them
    without a limit.
    """
    ours = cel((names.count, names.memory, names.memory_percentage, names.cores, names.priority))
    return _some_container(f"has(c.resources) && has(c.resources.limits) && c.resources.limits.exists(r, r in {ours})")


def mentions_owned() -> str:
    """Returns CEL for whether the pod carries what only the scheduler and the daemon write."""
    annotation = f"k in {cel(keys.POD_WRITTEN_KEYS)} || k.startsWith('{keys.POD_WRITTEN_PREFIX}')"
    return (
        f"(has(object.metadata.annotations) && object.metadata.annotations.exists(k, {annotation})) || "
        f"(has(object.metadata.labels) && object.metadata.labels.exists(k, k in {cel(LABELS)}))"
    )


def chooses_gpus(names: ResourceNames) -> str:
    """Returns CEL for whether a container's environment shows it GPUs past the scheduler."""
    return _some_container(container_chooses_gpus(names))


def container_chooses_gpus(names: ResourceNames) -> str:
    """Returns CEL for whether the environment of container `c` does so, as proto.environment.chosen_by judges."""
    asked = f"(r == '{names.count}' || r.startsWith('{MIG_RESOURCE_PREFIX}')) && string(c.resources.limits[r]) != '0'"
    answered = f"has(c.resources) && has(c.resources.limits) && c.resources.limits.exists(r, {asked})"
    unanswered = f"!c.env.exists(e, e.name == '{VISIBLE_DEVICES}') && !({answered})"
    return f"has(c.env) && ({harmful('c.env', CHOOSING)} || ({harmful('c.env', _LEGACY)} && {unanswered}))"


def harmful(env: str, rules: Mapping[str, Sequence[str]]) -> str:
    """Returns CEL for whether the list of variables `env` has one that is in `rules` with another value than there."""
    value = "has(e.valueFrom) || !((has(e.value) ? e.value : '') in rules[e.name])"
    return f"[{cel(rules)}].exists(rules, {env}.exists(e, e.name in rules && ({value})))"


def cel(value: Mapping[str, Sequence[str]] | Sequence[str]) -> str:
    """Lists and maps of strings, written as JSON with single quotes."""
    return json.dumps(dict(value) if isinstance(value, Mapping) else list(value)).replace('"', "'")


def _some_container(condition: str) -> str:
    lists = ("containers", "initContainers")
    return " || ".join(f"(has(object.spec.{each}) && object.spec.{each}.exists(c, {condition}))" for each in lists)
