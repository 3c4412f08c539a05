"""Settings that both programs have: each is declared once, with one name."""

from collections.abc import Mapping
from typing import Any

from program.address import ListenAddress
from program.settings.declared import Alias, Setting, setting
from program.settings.kinds import OPTIONAL_ADDRESS, RESOURCE, Switch, Whole, Words, path

DEBUG_VERBOSITY = 4
"""From here on klog's lines are for debugging, by Kubernetes' convention."""
_LEVELS = ("debug", "info", "warning", "error")


def resource_names(**more: Any) -> Mapping[str, Setting]:
    """Returns the settings of the resources that containers request. `more` are attributes of each setting."""
    return {
        field: Setting(
            kind=RESOURCE,
            help=f"The resource for {what}.",
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


def kubeconfig(**more: Any) -> Any:
    """Declares the field `kubeconfig` of a table."""
    return setting(
        "",
        path(optional=True),
        "How the API server is reached. Empty: KUBECONFIG, ~/.kube/config, or the cluster that the pod runs in.",
        environment=(),
        **more,
    )


def metrics_bind_address(port: int, **more: Any) -> Any:
    """Declares the field `metrics_bind_address` of a table."""
    return setting(
        ListenAddress(host=None, port=port),
        OPTIONAL_ADDRESS,
        "The address of /metrics for Prometheus, and of /healthz and /readyz for kubelet. Empty: they are not served.",
        **more,
    )


def log_format(**more: Any) -> Any:
    """Declares the field `log_format` of a table."""
    return setting("text", Words(words=("text", "json")), "Log lines for people or for programs.", **more)


def log_level(**more: Any) -> Any:
    """Declares the field `log_level` of a table."""
    debug = Alias(kind=Switch(), means=lambda on: "debug" if on else None, flags=("--debug",))
    verbosity = Alias(
        kind=Whole(minimum=0), means=lambda level: "debug" if level >= DEBUG_VERBOSITY else None, flags=("-v", "--v")
    )
    return setting(
        "info",
        Words(words=_LEVELS),
        f"The least severe messages that are logged. --debug is debug, and so is HAMi's -v {DEBUG_VERBOSITY} or more.",
        aliases=(debug, verbosity),
        **more,
    )
