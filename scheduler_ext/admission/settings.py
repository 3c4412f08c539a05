"""Settings of the webhook."""

from dataclasses import dataclass, field

from scheduler_ext.requests import RequestSettings

WEBHOOK_PATH = "/webhook"
TEMPLATES_PATH = f"{WEBHOOK_PATH}/templates"


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionSettings:
    """The completion of pods. An empty text writes nothing."""

    requests: RequestSettings = field(default_factory=RequestSettings)
    force_overwrite_default_scheduler: bool = True
    """False means that a pod that names `default-scheduler` counts as another scheduler's. After defaulting
    every pod names it.
    """
    default_gpus: int = 1
    """GPUs for a container that requests only memory or cores; 0 adds none."""
    runtime_class_name: str = ""
    overwrite_env: bool = False
    """True if a container without GPUs is kept from seeing any."""
    gpu_sums: bool = False
    """True if containers get the sums of their GPUs' memory and cores as resources."""
