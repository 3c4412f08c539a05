"""Reads how kubelet aligns CPUs and devices from its configuration files. Pure.

Source of names and defaults: k8s.io/kubelet/config/v1beta1, KubeletConfiguration.
"""

from typing import Any

import msgspec
import yaml

from proto.annotations.node_numa import TopologyPolicy, TopologyScope
from proto.decoding import converted

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class ConfigurationUnreadable(Exception):
    """The file is no KubeletConfiguration; the message is one clause."""


class KubeletAlignment(msgspec.Struct, frozen=True, rename="camel"):
    """The fields of kubelet's configuration that decide which CPUs and devices go together."""

    topology_manager_policy: TopologyPolicy = TopologyPolicy.NONE
    topology_manager_scope: TopologyScope = TopologyScope.CONTAINER
    cpu_manager_policy: str = "none"

    @property
    def aligns(self) -> bool:
        """Returns whether containers of guaranteed pods get whole CPUs of their own, beside their devices."""
        return self.cpu_manager_policy == "static" and self.topology_manager_policy.aligns


def decode_configuration(*texts: bytes) -> KubeletAlignment:
    """Reads YAML or JSON. What a later text has counts before an earlier one. Raises ConfigurationUnreadable."""
    merged: dict[object, object] = {}
    try:
        for text in texts:
            document = yaml.load(text, _Loader)  # noqa: S506 - safe
            if not isinstance(document, dict) or document.get("kind") != "KubeletConfiguration":
                raise ConfigurationUnreadable("is no KubeletConfiguration")
            merged |= document
        # An empty text and null are the default, as for kubelet.
        own = {key: value for key, value in merged.items() if isinstance(key, str) and value not in ("", None)}
        return converted(own, KubeletAlignment)
    # ValueError: a text that looks like a date or a number and is none.
    except (yaml.YAMLError, ValueError, RecursionError, msgspec.ValidationError) as error:
        raise ConfigurationUnreadable(f"cannot be read: {error}") from error
