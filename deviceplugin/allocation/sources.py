"""The sources of allocators and of the Node's contributors: pods, GPUs, kubelet's checkpoint and settings."""

from dataclasses import dataclass

from deviceplugin.apiserver import OwnNode
from deviceplugin.changes import Changes
from deviceplugin.configuration.table import Configuration
from deviceplugin.container.edits import AllocationSettings
from deviceplugin.gpus import Gpus
from deviceplugin.records.holdings import ReadCheckpoint
from deviceplugin.settings import AgentSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocationSources:
    """The node's pods and GPUs, kubelet's checkpoint, and the settings."""

    own: OwnNode
    gpus: Gpus
    changes: Changes
    read_checkpoint: ReadCheckpoint
    configuration: Configuration

    @property
    def resource(self) -> str:
        """Returns the resource by which containers request GPUs."""
        return self.configuration.kubelet.resource_name

    @property
    def settings(self) -> AgentSettings:
        return self.configuration.agent

    @property
    def containers(self) -> AllocationSettings:
        return self.configuration.containers

    @property
    def resource_priority(self) -> str:
        return self.configuration.total_names.priority
