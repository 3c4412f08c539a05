"""What the webhook is told by its flags."""

from dataclasses import dataclass, field
from enum import StrEnum

from scheduler_ext.requests import RequestSettings
from scheduler_ext.settings import DEFAULT_SCHEDULER_NAME


class CorePolicy(StrEnum):
    """When libvgpu.so limits cores."""

    DEFAULT = "default"
    """As the library decides; nothing is written."""
    FORCE = "force"
    DISABLE = "disable"


class BypassMode(StrEnum):
    """What is done about environment variables that lift limits."""

    OFF = "off"
    AUDIT = "audit"
    """A warning for the pod's author."""
    DENY = "deny"


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionSettings:
    """How pods are completed. Texts left empty write nothing."""

    requests: RequestSettings = field(default_factory=RequestSettings)
    scheduler_name: str = DEFAULT_SCHEDULER_NAME
    force_overwrite_default_scheduler: bool = True
    """Off, pods that name `default-scheduler` count as another scheduler's, and every pod does after defaulting."""
    default_gpus: int = 1
    """For a container that asks for memory or cores alone; 0 adds none."""
    core_policy: CorePolicy = CorePolicy.DEFAULT
    runtime_class_name: str = ""
    overwrite_env: bool = False
    """Whether a container without GPUs is kept from seeing any."""
    deny_bypass: BypassMode = BypassMode.DENY
