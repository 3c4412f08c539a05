"""Settings that both programs have: each is declared once, with one name."""

from collections.abc import Mapping
from typing import Any

from program.settings.declared import Setting
from program.settings.kinds import RESOURCE


def resource_names(**more: Any) -> Mapping[str, Setting]:
    """Returns the settings of the resources that containers request. `more` are attributes of each setting."""
    return {
        field: Setting(
            kind=RESOURCE,
            help=f"The resource by which containers ask for {what}.",
            key=key,
            device_config=place,
            **more,
        )
        for field, key, place, what in (
            ("count", "resource_name", "nvidia.resourceCountName", "GPUs"),
            ("memory", "resource_mem", "nvidia.resourceMemoryName", "memory of each GPU"),
            (
                "memory_percentage",
                "resource_mem_percentage",
                "nvidia.resourceMemoryPercentageName",
                "a percentage of each GPU's memory",
            ),
            ("cores", "resource_cores", "nvidia.resourceCoreName", "percent of each GPU's cores"),
            ("priority", "resource_priority", "nvidia.resourcePriorityName", "a priority of their GPU tasks"),
        )
    }
