"""Reads CPU lists of the kernel, and finds the host NUMA node of a GPU."""

from collections.abc import Collection, Iterable, Mapping, Sequence

from proto.devices import UNKNOWN_NUMA


def parse_cpu_list(text: str) -> frozenset[int]:
    """Returns the numbers of a list such as `0-3,8`; none for empty text. Raises ValueError for anything else."""
    numbers: set[int] = set()
    for part in text.strip().split(","):
        if part.strip():
            first, _, last = part.partition("-")
            numbers.update(range(int(first), int(last or first) + 1))
    return frozenset(numbers)


def format_cpu_list(numbers: Iterable[int]) -> str:
    """Returns the kernel's spelling: runs as `first-last`, joined by commas."""
    runs: list[tuple[int, int]] = []
    for number in sorted(set(numbers)):
        if runs and runs[-1][1] == number - 1:
            runs[-1] = (runs[-1][0], number)
        else:
            runs.append((number, number))
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def mask_bits(words: Sequence[int]) -> frozenset[int]:
    """Returns the numbers of the bits that are set in words of 64, the first word holding the lowest ones."""
    return frozenset(position * 64 + bit for position, word in enumerate(words) for bit in range(64) if word >> bit & 1)


def host_node(
    sysfs_node: int,
    memory_nodes: Collection[int],
    cpus: Collection[int],
    cpus_of_node: Mapping[int, Collection[int]],
) -> int:
    """Returns the NUMA node near a GPU, UNKNOWN_NUMA if nothing shows it.

    It takes the kernel's answer first, then the lowest node of the memory mask that has CPUs: GPU memory of Grace
    machines has separate nodes. Then follow the node of the lowest near CPU, and the only node there is.
    """
    if sysfs_node >= 0:
        return sysfs_node
    with_cpus = {node for node, own in cpus_of_node.items() if own}
    near = sorted(with_cpus & set(memory_nodes))
    if not near and cpus:
        near = [node for node in sorted(with_cpus) if min(cpus) in cpus_of_node[node]]
    if not near and len(with_cpus) == 1:
        near = sorted(with_cpus)
    return near[0] if near else UNKNOWN_NUMA
