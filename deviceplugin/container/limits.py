"""Decides what holds a container to its parts of GPUs, out of what the node has."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from deviceplugin.container.edits import ContainerFacts, HamiCore, NoHamiCore
from proto.annotations.node_limits import HOLDS, Backend, Holds, NodeLimits, limits_with
from proto.devices import ContainerShares, Device, DeviceShare, DeviceUUID
from proto.environment import DISABLE_CONTROL, lifted_by

_BEFORE = NoHamiCore("the setting limits of its daemon leaves it out")


@dataclass(frozen=True, slots=True, kw_only=True)
class Backends:
    """The backends of a node. `no_driver` is why the driver holds nothing, as a clause; empty if it does."""

    hami_core: HamiCore | NoHamiCore
    no_driver: str = "it was not asked"

    @property
    def there(self) -> frozenset[Backend]:
        return frozenset(
            ([Backend.HAMI_CORE] if isinstance(self.hami_core, HamiCore) else [])
            + ([] if self.no_driver else [Backend.DRIVER])
        )

    def only(self, wanted: frozenset[Backend]) -> "Backends":
        """Returns these backends without those that are not wanted."""
        is_out = isinstance(self.hami_core, HamiCore) and Backend.HAMI_CORE not in wanted
        hami_core = _BEFORE if is_out else self.hami_core
        no_driver = self.no_driver if Backend.DRIVER in wanted else self.no_driver or _BEFORE.problem
        return replace(self, hami_core=hami_core, no_driver=no_driver)


@dataclass(frozen=True, slots=True, kw_only=True)
class Enforcement:
    """The backends that hold a container to its shares."""

    driver_mib: Mapping[DeviceUUID, int] = field(default_factory=dict)
    """The memory to which the driver limits it, for each of its GPUs; empty if it does not."""
    hami_core: HamiCore | None = None
    """None also where nothing has to hold it."""
    problem: str = ""
    """The reason why nothing holds it to some of them, as a sentence; empty if something does, or need not."""


def limits_of(found: Backends, requested: frozenset[Backend], unenforced: bool) -> NodeLimits:
    """Returns what holds the containers that start on this node from now on."""
    return limits_with(found.there & requested, allows_unheld=unenforced)


def is_limited(shares: ContainerShares, inventory: Mapping[DeviceUUID, Device]) -> bool:
    """Returns whether something must hold a container to these shares: whether one of them is a part of a GPU.

    MIG instances need nothing: the hardware limits a container to its instance. Nor do whole GPUs, and HAMi-core would
    harm them: it counts the first GPU that a process sees as the container's first. Of several workers with a GPU each,
    only one would get memory.
    """
    return bool(_parts(shares, inventory))


def enforcement(
    shares: ContainerShares, inventory: Mapping[DeviceUUID, Device], container: ContainerFacts, found: Backends
) -> Enforcement:
    """Returns what holds a container to its shares, and what does not. `found` is what may.

    A container that ran with a backend keeps it where it is there: what is chosen for newcomers is theirs. HAMi-core
    does not hold a process to parts of several GPUs once CUDA_VISIBLE_DEVICES chooses among them, as launchers of one
    process for each GPU do. A container that has run with them is not refused at its restart.
    """
    lifted = DISABLE_CONTROL in lifted_by(container.env)
    several = len(shares) > 1 and not container.has_run
    order = sorted(
        found.there, key=lambda backend: (backend not in container.held_before, list(Backend).index(backend))
    )

    def holder(holds: Callable[[Holds], bool]) -> Backend | None:
        for backend in order:
            able = HOLDS[backend]
            if holds(able) and (able.several or not several) and not (able.in_process and lifted):
                return backend
        return None

    memory = any(inventory[each.uuid].is_part_of_memory(_memory_mib(each, inventory)) for each in shares)
    cores = any(inventory[each.uuid].is_part_of_cores(each.cores) for each in shares)
    by_memory, by_cores = holder(lambda able: able.memory), holder(lambda able: able.cores)
    holders = {*([by_memory] if memory else []), *([by_cores] if cores else [])}
    problem = ""
    if None in holders:
        unheld = "memory" if memory and by_memory is None else "cores"
        problem = _problem(shares, inventory, container, found, unheld)
    needed = Backend.HAMI_CORE in holders or bool(problem)
    return Enforcement(
        driver_mib=(
            {share.uuid: _memory_mib(share, inventory) for share in shares if not inventory[share.uuid].is_mig}
            if Backend.DRIVER in holders
            else {}
        ),
        hami_core=found.hami_core if needed and isinstance(found.hami_core, HamiCore) else None,
        problem=problem,
    )


def _problem(
    shares: ContainerShares,
    inventory: Mapping[DeviceUUID, Device],
    container: ContainerFacts,
    found: Backends,
    unheld: str,
) -> str:
    driver = "the driver holds no cores" if unheld == "cores" else f"the driver does not ({found.no_driver})"
    if DISABLE_CONTROL in lifted_by(container.env):
        library, remedy = f"{DISABLE_CONTROL} turns HAMi-core's limits off", f"remove {DISABLE_CONTROL}"
    elif isinstance(found.hami_core, NoHamiCore):
        library, remedy = f"HAMi-core does not ({found.hami_core.problem})", "install HAMi-core"
    else:
        library = f"HAMi-core does not hold parts of several GPUs, here of {len(shares)}"
        remedy = "ask for one GPU in each container"
    part = _parts(shares, inventory)[0]
    amounts = f"{_memory_mib(part, inventory)} MiB" + (f", {part.cores} %" if part.cores else "")
    return (
        f"container {container.name} was given a part of {part.uuid} ({amounts}), and nothing on this node holds it to "
        f"its {unheld}: {driver}, and {library}; ask for whole GPUs, {remedy}, or add unenforced to the daemon's "
        "limits"
    )


def _parts(shares: ContainerShares, inventory: Mapping[DeviceUUID, Device]) -> list[DeviceShare]:
    return [each for each in shares if inventory[each.uuid].is_part(_memory_mib(each, inventory), each.cores)]


def _memory_mib(share: DeviceShare, inventory: Mapping[DeviceUUID, Device]) -> int:
    """Returns the memory of a share in MiB; a share without a size is the whole GPU."""
    return share.memory_mib or inventory[share.uuid].memory_mib
