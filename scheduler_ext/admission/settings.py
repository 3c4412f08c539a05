"""Settings of the webhook, read from its flags."""

from dataclasses import dataclass, field
from enum import StrEnum

from scheduler_ext.requests import RequestSettings
from scheduler_ext.settings import DEFAULT_SCHEDULER_NAME


class CorePolicy(StrEnum):
    """The time at which libvgpu.so limits cores."""

    DEFAULT = "default"
    """The library decides; nothing is written."""
    FORCE = "force"
    DISABLE = "disable"


class BypassMode(StrEnum):
    """What happens to pods with environment variables that lift limits."""

    OFF = "off"
    AUDIT = "audit"
    """Warn the pod's author."""
    DENY = "deny"


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionSettings:
    """The completion of pods. An empty text writes nothing."""

    requests: RequestSettings = field(default_factory=RequestSettings)
    scheduler_name: str = DEFAULT_SCHEDULER_NAME
    force_overwrite_default_scheduler: bool = True
    """False means that a pod that names `default-scheduler` counts as another scheduler's. After defaulting
    every pod names it.
    """
    default_gpus: int = 1
    """GPUs for a container that requests only memory or cores; 0 adds none."""
    core_policy: CorePolicy = CorePolicy.DEFAULT
    runtime_class_name: str = ""
    overwrite_env: bool = False
    """True if a container without GPUs is kept from seeing any."""
    deny_bypass: BypassMode = BypassMode.DENY
