"""The container runtime of one node, on paper: what it made of each container, and the containers that are there."""

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from secrets import token_hex

from proto.kubernetes.objects import Container
from simulation.kubelet.container import (
    CdiOrder,
    CdiSpec,
    CreatedContainer,
    Phase,
    RuntimeManner,
    create_container,
    decode_cdi_spec,
)
from simulation.kubelet.device_manager import DeviceManager
from simulation.kubelet.runtime_hooks import remove_group, run_hooks


@dataclass(frozen=True, slots=True, kw_only=True)
class StandInSettings:
    """The settings of one node's kubelet and runtime."""

    api_url: str
    labels: Mapping[str, str] = field(default_factory=dict)
    plugins_by_path: bool = True
    """See DeviceManager."""
    runtime_version: str = "simulated://1"
    cdi_directories: Sequence[Path] = ()
    cdi_order: CdiOrder = CdiOrder.LAST
    cdi_lags: bool = False
    """The runtime's cache of CDI specs sees a change too late, as containerd's and CRI-O's may: each container sees the
    folder as it was for the one before.
    """
    image_env: Mapping[str, str] = field(default_factory=dict)
    """The environment of every image."""
    cgroups: Path | None = None
    """The folder below which the runtime makes control groups; then it runs the hooks of containers too."""


class PaperRuntime:
    """`created` holds, by pod UID, the containers in creation order; `there` those that have not ended, by name."""

    def __init__(self, settings: StandInSettings, devices: DeviceManager) -> None:
        self.created: dict[str, list[CreatedContainer]] = {}
        self.there: dict[str, dict[str, CreatedContainer]] = {}
        self._settings = settings
        self._manner = RuntimeManner(order=settings.cdi_order, image_env=settings.image_env, has_file=os.path.lexists)
        self._devices = devices
        self._cached: list[CdiSpec] = []

    def of(self, pod_uid: str) -> dict[str, CreatedContainer]:
        return self.there.setdefault(pod_uid, {})

    def ids(self, pod_uid: str) -> Mapping[str, str]:
        """Returns the ids of the pod's containers by name."""
        return {name: made.container_id for name, made in self.of(pod_uid).items()}

    async def create(self, pod_uid: str, container: Container, phase: Phase) -> CreatedContainer:
        """Makes the container, in place of one of the name that has ended. Raises CdiError."""
        held = [one for one in self._devices.held(pod_uid) if one.container == container.name]
        ids = [name for one in held for name in one.ids]
        answers = [one.response for one in held]
        made = create_container(container, phase, ids, answers, self._cdi_specs(), manner=self._manner)
        if self._settings.cgroups is not None:
            groups = self._settings.cgroups / "kubepods"
            before = self.of(pod_uid).get(container.name)
            if before is not None:
                remove_group(groups, pod_uid, before.container_id)
            made = replace(made, container_id=token_hex(32))
            await run_hooks(made.hooks, groups, pod_uid, made.container_id)
        self.created.setdefault(pod_uid, []).append(made)
        self.of(pod_uid)[made.name] = made
        return made

    def end(self, pod_uid: str) -> None:
        """Ends the pod's containers."""
        self.there.pop(pod_uid, None)
        if self._settings.cgroups is not None:
            shutil.rmtree(self._settings.cgroups / "kubepods" / f"pod{pod_uid}", ignore_errors=True)

    def _cdi_specs(self) -> list[CdiSpec]:
        files = [file for directory in self._settings.cdi_directories for file in sorted(directory.glob("*.json"))]
        found = [decode_cdi_spec(file.read_bytes()) for file in files]
        before, self._cached = self._cached, found
        return before if self._settings.cdi_lags else found
