"""What kubelet counts of a pod's requests at admission.

Kubelet knows nothing of single GPUs. For a plain pod it counts no more than is charged to GPUs here, so beside plain
pods every pod that fits is admitted. Other pods differ. 150 percent of cores are charged as 100. A percentage beside an
amount of memory is not charged, and neither is what containers without GPUs name. Where such a pod is, kubelet's own
sums decide too.

Sums of whole GPUs and percentages count the smallest GPU that was known when the pod was made. On a smaller one, which
came later, kubelet counts more than is charged.
"""

from collections.abc import Mapping, Sequence

from msgspec import Struct, field

from proto.annotations.keys import DEVICES_ALLOCATED, SUMS
from proto.kubernetes.objects import Container, Pod
from proto.kubernetes.requests import requested as requested_of
from proto.quantity import QuantityError, integer_quantity
from scheduler_ext.requests import RequestError, RequestSettings, ResourceNames, gpu_count, read_needs

_Amounts = Mapping[str, str | int | float]


class KubeletTotals(Struct, frozen=True):
    """A pod's requests by resource, as kubelet counts them. `plain` is true if they are no more than what is charged to
    GPUs.
    """

    amounts: Mapping[str, int] = field(default_factory=dict)
    plain: bool = True
    gpu_mib: int = 0
    """The pod is plain on GPUs with so many MiB."""


NO_TOTALS = KubeletTotals()


def totals_of(pod: Pod, settings: RequestSettings) -> KubeletTotals:
    """Returns the requests of a pod for the memory and cores of GPUs; `NO_TOTALS` for an ended pod."""
    names = settings.names
    ours = (names.memory, names.memory_percentage, names.cores, *SUMS)
    requested = [(each, _amounts_of(each)) for each in pod.all_containers]
    naming = [(each, amounts) for each, amounts in requested if not amounts.keys().isdisjoint(ours)]
    if not naming or pod.has_ended:
        return NO_TOTALS
    named = {name for _, amounts in naming for name in amounts}
    amounts = {name: requested_of(pod, name) for name in ours if name in named}
    is_charged = not pod.spec.node_name or DEVICES_ALLOCATED in pod.metadata.annotations
    plain = is_charged and all(_is_plain(each, amounts, names) for each, amounts in naming)
    gpu_mib: int | None = 0 if named.isdisjoint(SUMS) else _counted_gpu(naming, settings)
    return KubeletTotals(
        {name: amount for name, amount in amounts.items() if amount}, plain and gpu_mib is not None, gpu_mib or 0
    )


def _counted_gpu(naming: Sequence[tuple[Container, _Amounts]], settings: RequestSettings) -> int | None:
    """Returns the MiB of the smallest GPU on which no container's sum exceeds what is charged; None without one."""
    least = 0
    try:
        needs = read_needs([each for each, _ in naming], settings)
        sums = [[integer_quantity(amounts.get(name, 0)) for name in SUMS] for _, amounts in naming]
    except (RequestError, QuantityError):
        return None
    for need, (memory_mib, cores) in zip(needs, sums, strict=True):
        if not (memory_mib or cores):
            continue
        if need is None or cores > need.count * need.reserved_cores:
            return None
        of_each = -(-memory_mib // need.count)
        if need.is_relative:
            least = max(least, -(-of_each * 100 // (need.memory_percentage or 1)))
        elif of_each > need.memory_mib:
            return None
    return least


def _is_plain(container: Container, requested: _Amounts, names: ResourceNames) -> bool:
    try:
        memory, percent, cores = [
            integer_quantity(requested[name]) if name in requested else 0
            for name in (names.memory, names.memory_percentage, names.cores)
        ]
    except QuantityError:
        return False
    return gpu_count(container, names) > 0 and cores <= 100 and percent <= 100 and not (memory and percent)


def _amounts_of(container: Container) -> _Amounts:
    return {**container.resources.limits, **container.resources.requests}
