"""Makes the specs of the slots of one pod: what each of its containers gets."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from deviceplugin.allocation.kept_answers import why_unlimited
from deviceplugin.allocation.sources import AllocationSources
from deviceplugin.container.edits import DeviceListStrategy, container_facts
from deviceplugin.container.hami_core import CannotLimit, prepared_edits, ran_without
from deviceplugin.container.limit_hook import by_nvidia, without_limit_hook, without_nvidias_hook
from deviceplugin.container.limits import is_limited
from deviceplugin.container.own_variables import unreplaced
from deviceplugin.limits.driver import DriverLimits
from deviceplugin.records.holdings import Holding
from deviceplugin.resizing.step import size_now
from deviceplugin.slots.files import SlotFiles, Spec
from deviceplugin.slots.proof import ProvenPod, ProvenSlot
from deviceplugin.slots.slot import applied, refused
from proto.devices import ContainerShares, Device, DeviceUUID
from proto.kubernetes.objects import Pod


@dataclass(frozen=True, slots=True)
class PreparedSlot:
    """The spec of a slot for a container. `driver_mib` is the memory to which the driver limits it."""

    container: str
    spec: Spec
    driver_mib: Mapping[DeviceUUID, int] = field(default_factory=dict)


class SlotPreparation:
    """Prepares slots from what is known of the node."""

    def __init__(self, sources: AllocationSources, files: SlotFiles, driver: DriverLimits) -> None:
        self._own = sources.own
        self._gpus = sources.gpus
        self._files = files
        self._driver = driver
        self._settings = sources.settings
        # The device files too: a systemd or CPU manager that writes the cgroup again knows only those of the spec.
        self._allocation = replace(sources.containers, pass_device_specs=True)
        self._resource_priority = sources.resource_priority
        self._resource = sources.resource

    def sizes(self, proven: ProvenPod) -> Mapping[str, ContainerShares]:
        """Returns what the driver gives the container of each slot, which may be less than what the pod holds: another
        size may be about to be written.
        """
        uid = proven.pod.metadata.uid
        limited = {} if self._own.pods_known else self._driver.of_pod(uid)
        found = {}
        for slot in proven.slots:
            name = proven.pod.all_containers[slot.position].name
            # An earlier daemon's state may be older than the last change of the limits.
            before = limited[name].limits_mib if name in limited else None
            pod = self._own.pods.get(uid, proven.pod)
            found[slot.name] = size_now(pod, slot.position, slot.shares, self._resource, before)
        return found

    def of(
        self,
        recorded: Sequence[Holding],
        ids: frozenset[str],
        proven: ProvenPod,
        sizes: Mapping[str, ContainerShares],
    ) -> Mapping[str, PreparedSlot]:
        """Makes the specs of the slots. None of their containers runs, so their folders are emptied. Blocks. Raises
        CannotLimit or CannotWriteSpec.
        """
        known = self._gpus.kept_by_uuid() if proven.is_kept else self._gpus.by_uuid()
        others = why_unlimited(
            *(tuple(ids), recorded, {proven.pod.metadata.uid: proven.pod}),
            self._gpus.with_own_memory(known),
            settings=self._settings,
            resource=self._resource,
        )
        if others:
            raise CannotLimit(others)
        return {slot.name: self._one(proven.pod, slot, sizes[slot.name], known) for slot in proven.slots}

    def _one(
        self, pod: Pod, slot: ProvenSlot, size: ContainerShares, known: Mapping[DeviceUUID, Device]
    ) -> PreparedSlot:
        container = pod.all_containers[slot.position]
        has_run = bool(pod.container_id(container.name))
        facts = replace(container_facts(pod.metadata.uid, container, self._resource_priority), has_run=has_run)
        hardware = self._gpus.inventory.hardware
        if slot.problem:
            by_files = DeviceListStrategy.DRIVER_FILES in self._allocation.strategies
            edits = refused(slot.problem, hardware.driver_mounts if by_files else ())
            return PreparedSlot(facts.name, self._files.spec(slot.name, edits))
        if ran_without(self._settings, facts):
            known = self._gpus.with_own_memory(known)
        facts_of = known, facts, self._allocation, hardware
        edits = applied(prepared_edits(size, *facts_of, node=self._settings, no_driver=self._driver.problem))
        is_part = is_limited(size, known)
        limited = is_part and not self._settings.allows_unheld
        if problem := unreplaced(
            *(facts.name, facts.env, edits.env), limited=limited, by_driver=bool(edits.driver_mib)
        ):
            raise CannotLimit(problem)
        spec = self._files.spec(slot.name, edits)
        if len(set(edits.driver_mib.values())) == 1 and by_nvidia(spec, tuple(edits.driver_mib)):
            spec = without_limit_hook(spec)
        elif is_part:
            spec = without_nvidias_hook(spec)
        return PreparedSlot(facts.name, spec, edits.driver_mib)
