"""Chooses the nodes of all missing members of a group together, by the domains of the nodes."""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from scheduler_ext.cluster.gangs import MissingMember
from scheduler_ext.decide.index import NodeIndex
from scheduler_ext.domains.levels import Domains
from scheduler_ext.domains.plan import DomainPlacement, NoDomain, Room, no_domain, placements
from scheduler_ext.domains.wish import DomainWish, rank_of
from scheduler_ext.requests import GpuRequest

MOST_TRIED = 16
"""Domains that are tried for a group of several kinds of members before it counts as too large."""
MOST_KINDS = 4
"""Kinds of members that differ in a plan. The members of a group of more kinds count as its largest."""

NodesOfMembers = Mapping[str, str]
"""The node of each member, by UID."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberNodes:
    """The nodes of members. `others` are the nodes where a member may go instead."""

    by_uid: NodesOfMembers
    others: Sequence[str]


@dataclass(frozen=True, slots=True)
class GroupDomains:
    index: NodeIndex
    levels: Sequence[str]
    """The labels that name domains, from wide to narrow."""

    def nodes_of(
        self, members: Sequence[MissingMember], node_names: Sequence[str], placed: Sequence[str]
    ) -> MemberNodes | NoDomain | None:
        """Returns a node for each member among `node_names`; a refusal if a required domain has no room for them. None
        if the policies decide, because no domains are known or because the members do not fit.

        `placed` are the nodes of the group's other members.
        """
        wish = next((each.request.wish for each in members if each.request.wish is not None), None)
        if wish is None and not self.index.has_domains():
            return None
        kinds = _kinds(members)
        beside = self.index.domains(placed)
        rooms = self.index.rooms(kinds[0][0].request, node_names)
        attempt = _Attempt(self.index, self.levels, wish, node_names, iter(range(MOST_TRIED)))
        found = next(attempt.solutions(kinds, beside, {}, rooms), None)
        if wish is None or not wish.required:
            return None if found is None else MemberNodes(by_uid=found, others=node_names)
        if found is None:
            return no_domain(rooms, len(kinds[0]), wish, beside)
        domains = {room.node: room.domains.get(wish.level) for room in rooms}
        own = {domains[node] for node in found.values()}
        return MemberNodes(by_uid=found, others=[name for name in node_names if domains.get(name) in own])


@dataclass(frozen=True, slots=True)
class _Attempt:
    index: NodeIndex
    levels: Sequence[str]
    wish: DomainWish | None
    node_names: Sequence[str]
    tries: Iterator[int]
    """The tries that are left."""

    def solutions(
        self,
        kinds: Sequence[Sequence[MissingMember]],
        beside: Sequence[Domains],
        taken: Mapping[str, Sequence[GpuRequest]],
        rooms: Sequence[Room],
    ) -> Iterator[NodesOfMembers]:
        """Yields nodes for the members of each kind; `taken` are the requests of other kinds, by node."""
        members, *others = kinds
        found: Iterator[DomainPlacement] = placements(rooms, len(members), self.levels, self.wish, beside)
        if not others:
            yield from (_by_rank(members, each) for each in found)
            return
        domains = {room.node: room.domains for room in rooms}
        for placement, _ in zip(found, self.tries, strict=False):
            own = _by_rank(members, placement)
            now = {**taken}
            for member in members:
                now[own[member.uid]] = (*now.get(own[member.uid], ()), member.request)
            near = (*beside, *(domains[node] for node in placement.nodes))
            left = self.index.rooms(others[0][0].request, self._within(domains, placement), now)
            yield from ({**own, **rest} for rest in self.solutions(others, near, now, left))

    def _within(self, domains: Mapping[str, Domains], placement: DomainPlacement) -> Sequence[str]:
        """Returns the nodes where the other members may go."""
        if self.wish is None or not self.wish.required:
            return self.node_names
        level = self.wish.level
        own = domains[placement.nodes[0]][level]
        return [name for name in self.node_names if domains.get(name, {}).get(level) == own]


def _kinds(members: Sequence[MissingMember]) -> list[list[MissingMember]]:
    """Returns the members by what they request, those with most GPUs first."""
    kinds: dict[Hashable, list[MissingMember]] = {}
    for member in sorted(members, key=size_of, reverse=True):
        kinds.setdefault(kind_of(member), []).append(member)
    found = list(kinds.values())
    return found if len(found) <= MOST_KINDS else [[member for kind in found for member in kind]]


def kind_of(member: MissingMember) -> Hashable:
    """Returns what members have in common that fit on the same GPUs."""
    request = member.request
    return request.needs, request.kinds, request.filter, request.numa_bound


def size_of(member: MissingMember) -> tuple[int, int]:
    needs = [need for need in member.request.needs if need is not None]
    return sum(need.count for need in needs), sum(need.count * need.memory_mib for need in needs)


def _by_rank(members: Sequence[MissingMember], placement: DomainPlacement) -> dict[str, str]:
    """Returns the node of each member: consecutive ones are near each other."""
    ranked = sorted(members, key=lambda each: rank_of(each.pod.metadata.name, each.pod.metadata.labels))
    return {member.uid: node for member, node in zip(ranked, placement.nodes, strict=True)}
