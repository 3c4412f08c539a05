"""Chooses the nodes of a group: the smallest domain that holds all of it, or as few domains as can be.

Input and output are plain values. A room is a node with the number of the group's pods for which it has GPUs.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from scheduler_ext.domains.levels import Domains, DomainWish, word


@dataclass(frozen=True, slots=True)
class Room:
    node: str
    members: int
    """The number of pods of the group that fit on the node."""
    domains: Domains


@dataclass(frozen=True, slots=True, kw_only=True)
class DomainPlacement:
    """A node for each missing member, in an order in which neighbours are near each other. `level` and `domain` name
    the domain that holds all of them; both are empty if none does.
    """

    level: str
    domain: str
    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NoDomain:
    """No domain of the required level holds the missing members. `largest` is the most that one has room for. Its text
    is the end of a sentence about the group.
    """

    level: str
    missing: int
    largest: int
    exists: bool
    """False if no node is in a domain of the level."""
    whole_nodes: bool
    """True if no node has room for two of them."""
    others: int = 0
    """The number of domains that the other members are in: the missing ones must be in the same."""

    def __str__(self) -> str:
        name, missing, room = word(self.level), self.missing, self.largest
        if not self.exists:
            return f"needs one {name}, and no node that is offered has the label {self.level}"
        wanted = f"{missing} {'node' if missing == 1 else 'nodes'} of" if self.whole_nodes else f"room for {missing} in"
        has = f"has {room}" if self.whole_nodes else f"has room for {room}"
        if self.others > 1:
            return f"needs one {name}; its other pods are in {self.others}"
        if self.others:
            return f"needs {wanted} the {name} of its other pods, which {has}"
        return f"needs {wanted} one {name}; the largest free {name} {has}"


@dataclass(frozen=True, slots=True)
class _Domain:
    name: str
    rooms: tuple[Room, ...]
    members: int


def no_domain(rooms: Sequence[Room], missing: int, wish: DomainWish, beside: Sequence[Domains] = ()) -> NoDomain:
    """Returns the refusal of members that no domain of the level has room for."""
    found = [domain for domain in _domains(rooms, wish.level) if _has_all(domain, (wish.level,), beside)]
    return NoDomain(
        level=wish.level,
        missing=missing,
        largest=max((domain.members for domain in found), default=0),
        exists=any(wish.level in room.domains for room in rooms),
        whole_nodes=all(room.members <= 1 for room in rooms),
        others=len({each.get(wish.level, "") for each in beside}),
    )


def placements(
    rooms: Sequence[Room],
    missing: int,
    levels: Sequence[str],
    wish: DomainWish | None = None,
    beside: Sequence[Domains] = (),
) -> Iterator[DomainPlacement]:
    """Yields every domain that holds the missing members, the one to take first: the narrowest level, and of that the
    domain with the least room, so that large ones stay free. What is yielded last are all nodes, unless a domain is
    required.

    `rooms` come in the order in which equal nodes are taken. `beside` are the domains of the members that have a node
    already.
    """
    required = wish.level if wish is not None and wish.required else ""
    free = [room for room in rooms if room.members > 0 and (not required or required in room.domains)]
    first = levels.index(required) if required else 0
    for position in range(len(levels) - 1, first - 1, -1):
        level = levels[position]
        found = _domains(free, level, required)
        fitting = [each for each in found if each.members >= missing and _has_all(each, (level, required), beside)]
        for domain in sorted(fitting, key=lambda each: (each.members, len(each.rooms), each.name)):
            nodes = _fill(domain.rooms, missing, _filled_by(levels[position + 1 :], wish), beside)
            yield DomainPlacement(level=level, domain=domain.name, nodes=tuple(nodes))
    if not required and sum(room.members for room in free) >= missing:
        nodes = _fill(free, missing, _filled_by(levels, wish), beside)
        yield DomainPlacement(level="", domain="", nodes=tuple(nodes))


def _filled_by(levels: Sequence[str], wish: DomainWish | None) -> Sequence[str]:
    """Returns the levels by which a larger domain is filled: the preferred one, and those that are narrower."""
    return levels if wish is None or wish.level not in levels else levels[levels.index(wish.level) :]


def _has_all(domain: _Domain, levels: Iterable[str], beside: Sequence[Domains]) -> bool:
    own = domain.rooms[0].domains
    return all(each.get(level) == own.get(level) for level in levels for each in beside)


def _domains(rooms: Sequence[Room], level: str, within: str = "") -> list[_Domain]:
    """Returns the domains of the level, each within one domain of the level `within`."""
    found: dict[tuple[str, str], list[Room]] = {}
    for room in rooms:
        name = room.domains.get(level)
        if name is not None:
            found.setdefault((name, room.domains.get(within, "")), []).append(room)
    return [_Domain(name, tuple(each), sum(room.members for room in each)) for (name, _), each in found.items()]


def _fill(rooms: Sequence[Room], missing: int, levels: Sequence[str], beside: Sequence[Domains]) -> Iterator[str]:
    """Yields a node for each missing member: of as few domains of the first level as can be, and in each of them of as
    few of the next. Domains with other members come before all others. A node in no domain of the level is alone.
    """
    if not levels:
        for alone, taken in _fewest([_alone(room) for room in rooms], missing):
            yield from [alone.rooms[0].node] * taken
        return
    level, *narrower = levels
    parts = _domains(rooms, level)
    if not parts:
        yield from _fill(rooms, missing, narrower, beside)
        return
    parts += [_alone(room) for room in rooms if level not in room.domains]
    begun = {each.get(level) for each in beside}
    for part in [each for each in parts if each.name in begun]:
        yield from _fill(part.rooms, min(part.members, missing), narrower, beside)
        missing -= min(part.members, missing)
    for part, taken in _fewest([each for each in parts if each.name not in begun], missing):
        yield from _fill(part.rooms, taken, narrower, beside)


def _alone(room: Room) -> _Domain:
    return _Domain("", (room,), room.members)


def _fewest(parts: Sequence[_Domain], missing: int) -> Iterator[tuple[_Domain, int]]:
    """Yields the fewest parts that hold the missing members, and how many each takes: the largest first, and last the
    smallest that holds the rest.
    """
    if missing <= 0:
        return
    left = sorted(parts, key=lambda each: -each.members)
    for number, part in enumerate(left):
        if part.members >= missing:
            yield (
                min((each for each in left[number:] if each.members >= missing), key=lambda each: each.members),
                missing,
            )
            return
        yield part, part.members
        missing -= part.members
