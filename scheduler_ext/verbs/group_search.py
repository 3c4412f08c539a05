"""Finds GPUs for all missing members of a group, or for none, at kube-scheduler's question about one of them."""

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from scheduler_ext.capacity.rooms import constraint_of, shortage
from scheduler_ext.cluster.events import Decided, GroupUndone
from scheduler_ext.cluster.gangs import Gang, MissingMember
from scheduler_ext.cluster.records import PodRecord, RecordState
from scheduler_ext.cluster.state import Cluster
from scheduler_ext.decide.decision import NodeChoice
from scheduler_ext.decide.index import NodeIndex
from scheduler_ext.decide.reasons import Reason, joined
from scheduler_ext.domains.levels import Domains, DomainWish, rank_of
from scheduler_ext.domains.plan import DomainPlacement, NoDomain, Room, no_domain, placements
from scheduler_ext.membership import group_of
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
        search = _DomainSearch(self.index, self.levels, wish, node_names, iter(range(MOST_TRIED)))
        found = next(search.solutions(kinds, beside, {}, rooms), None)
        if wish is None or not wish.required:
            return None if found is None else MemberNodes(by_uid=found, others=node_names)
        if found is None:
            return no_domain(rooms, len(kinds[0]), wish, beside)
        domains = {room.node: room.domains.get(wish.level) for room in rooms}
        own = {domains[node] for node in found.values()}
        return MemberNodes(by_uid=found, others=[name for name in node_names if domains.get(name) in own])


@dataclass(frozen=True, slots=True)
class _DomainSearch:
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


MOST_REFUSED = 8
"""The shapes of members that are refused before a search ends: each of them costs a look at all nodes."""
MOST_AHEAD = 256
"""The most members for which GPUs are found at one question. Those of a larger group are found at later ones."""


class _Refusals:
    """The refusals of one search. No member fits where one like it was refused, so each shape is refused once; after
    `MOST_REFUSED` of them every further member is.
    """

    def __init__(self) -> None:
        self._refused: dict[Hashable, NodeChoice] = {}

    def like(self, member: MissingMember) -> NodeChoice | None:
        """Returns the refusal that holds for the member; None if it has to be tried."""
        if len(self._refused) >= MOST_REFUSED:
            return next(iter(self._refused.values()))
        return self._refused.get(_alike(member)) if self._refused else None

    def add(self, member: MissingMember, refusal: NodeChoice) -> None:
        self._refused[_alike(member)] = refusal


def _alike(member: MissingMember) -> Hashable:
    request = member.request
    return kind_of(member), request.policies.gpu, request.quota_class, member.pod.spec.priority or 0


@dataclass(frozen=True, slots=True)
class _MemberChoices:
    """The choices for the members that fit, by UID, and the refusals of others. `alone` is the refusal of the pod in
    question if no member fitted before it.
    """

    choices: Mapping[str, NodeChoice]
    refusals: Sequence[NodeChoice]
    alone: NodeChoice | None


def _choose(
    first: Sequence[MissingMember],
    spare: Sequence[MissingMember],
    own: MissingMember,
    tried: Callable[[MissingMember], NodeChoice],
) -> _MemberChoices:
    """Tries the largest of the first members at first. Spare ones replace those that are refused, but never `own`, the
    pod in question.
    """
    choices, refusals, others = dict[str, NodeChoice](), list[NodeChoice](), iter(spare)
    alone: NodeChoice | None = None
    for member in sorted(first, key=size_of, reverse=True):
        choice = tried(member)
        while choice.node is None and member.uid != own.uid and (other := next(others, None)) is not None:
            choice = tried(other)
        if choice.node is None:
            refusals.append(choice)
            alone = choice if member.uid == own.uid and not choices else alone
        else:
            choices[member.uid] = choice
    return _MemberChoices(choices, refusals, alone)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSearch:
    """One question about a member, at a time in monotonic seconds. What is decided for others is held until `until`.

    `chosen` decides for one pod of a priority among nodes.
    """

    cluster: Cluster
    domains: GroupDomains
    chosen: Callable[[GpuRequest, int, Collection[str], float], NodeChoice]
    member: MissingMember
    node_names: Sequence[str]
    now: float
    until: float

    def decide(self, gang: Gang | None) -> NodeChoice | None:
        """Decides for all members that are missing, or for one more near the others. None for a pod that policies place
        alone.
        """
        self._end_split()
        ahead = self._decided_ahead()
        if ahead is not None or (gang is None and self.member.request.wish is None):
            return ahead
        placed = self.cluster.ledger.groups.placed(self.member.pod, self.node_names)
        if gang is None or gang.needed - len(placed) < 2:
            return self._near(placed)
        return self._together(gang, placed)

    def _end_split(self) -> None:
        """Frees what was decided ahead for a group whose nodes have to be in one domain and are not any more: their
        labels have changed.
        """
        wish = self.member.request.wish
        if wish is None or not wish.required:
            return
        uids = [self.member.uid, *self.cluster.ledger.groups.placed(self.member.pod, self.node_names)]
        found = self.domains.index.domains(self._nodes(uids))
        if len({each.get(wish.level) for each in found}) > 1:
            ahead = [each.uid for each in filter(None, map(self._reserved, uids)) if each.pending.ahead]
            self.cluster.apply(GroupUndone(ahead, ()), self.now)

    def _decided_ahead(self) -> NodeChoice | None:
        """Returns what was decided for the pod with another member of its group; None if nothing was."""
        member, ledger = self.member, self.cluster.ledger
        ahead = ledger.groups.ahead(member.pod, self.node_names)
        if ahead is None:
            return None
        usage = ledger.nodes.usages().get(ahead.node)
        if ahead.uid == member.uid and usage is not None and usage.offers(ahead.shares):
            return NodeChoice(node=ahead.node, shares=ahead.shares)
        # A GPU went out of service since, or it is the place of a pod that did not exist. This one may need another.
        self.cluster.apply(GroupUndone((ahead.uid,), ()), self.now)
        choice = self._choose(member, [ahead.node])
        return None if choice.node is None else choice

    def _near(self, placed: Sequence[str]) -> NodeChoice | None:
        """Returns the decision for one more member near the others, or a refusal if it must be in their domain and has
        no room there. None if the policies decide.
        """
        member, nodes = self.member, self._nodes(placed)
        if not nodes and member.request.wish is None:
            return None
        where = self.domains.nodes_of([member], self.node_names, nodes)
        if isinstance(where, NoDomain):
            return _in_no_domain(group_of(member.pod), where, self.node_names)
        if where is None:
            return None
        choice = self._choose(member, [where.by_uid[member.uid]])
        return choice if choice.node is not None else self._choose(member, where.others)

    def _together(self, gang: Gang, placed: Sequence[str]) -> NodeChoice:
        """Returns the decision for this member, with the GPUs of all that are missing held. If not all of them fit, it
        is a refusal, and nothing more is held than before.
        """
        members = gang.missing(self.member, placed, self.cluster.requests)
        before = [record for each in members if (record := self._reserved(each.uid)) is not None]
        before += self.cluster.ledger.records.of(RecordState.KEPT)
        # A domain has to hold all of them, also those for whom GPUs are found later.
        every = members[: gang.needed - len(placed)]
        where = self.domains.nodes_of(every, self.node_names, self._nodes(placed))
        if isinstance(where, NoDomain):
            return _in_no_domain(gang.group, where, self.node_names)
        first = every[:MOST_AHEAD]
        found = _choose(first, members[len(first) :], self.member, self._tries(where))
        if not found.refusals:
            return found.choices[self.member.uid]
        self.cluster.apply(GroupUndone([each.uid for each in members], before), self.now)
        if found.alone is not None:
            return found.alone
        return _refused(found.refusals[0], self._shortage(gang, len(placed) + len(found.choices)), self.node_names)

    def _nodes(self, placed: Sequence[str]) -> Sequence[str]:
        """Returns the nodes of the members that are bound, and of those `placed` among the nodes of the question."""
        names = frozenset(self.node_names)
        records = filter(None, map(self._reserved, placed))
        reserved = (next((node for node in each.nodes if node in names), each.node) for each in records)
        return [*self.cluster.gangs.nodes(group_of(self.member.pod)), *reserved]

    def _tries(self, where: MemberNodes | None) -> Callable[[MissingMember], NodeChoice]:
        """Returns a function that finds GPUs for one member after the other, and holds them."""
        names = dict.fromkeys(self.node_names if where is None else where.others)
        plan = {} if where is None else where.by_uid
        refusals = _Refusals()

        def tried(member: MissingMember) -> NodeChoice:
            choice = refusals.like(member)
            # Room that is kept for the member alone is none for others like it.
            if choice is None or self.cluster.ledger.records.kept(member.uid) is not None:
                choice = self._where_planned(member, plan.get(member.uid), names)
                if choice.node is None:
                    refusals.add(member, choice)
            return choice

        return tried

    def _where_planned(self, member: MissingMember, planned: str | None, node_names: Collection[str]) -> NodeChoice:
        """Places the member on its node of the plan. Without one, or if the node has no room after all, on another."""
        choice = None if planned is None else self._placed(member, [planned])
        return choice if choice is not None and choice.node else self._placed(member, node_names)

    def _placed(self, member: MissingMember, node_names: Collection[str]) -> NodeChoice:
        cluster, pod = self.cluster, member.pod
        crowded = cluster.ledger.kubelet.refusing(pod, node_names)
        names = dict.fromkeys(name for name in node_names if name not in crowded) if crowded else node_names
        choice = self._choose(member, names)
        if choice.node is not None:
            earlier, request = self._reserved(member.uid), member.own_request
            others = {} if earlier is None else {n: held for n, held in earlier.decided.items() if n != choice.node}
            decided = Decided(member.uid, pod, choice.node, choice.shares, self.until, others, request, ahead=True)
            cluster.apply(decided, self.now)
        return choice

    def _choose(self, member: MissingMember, node_names: Collection[str]) -> NodeChoice:
        return self.chosen(member.own_request, member.pod.spec.priority or 0, node_names, self.now)

    def _shortage(self, gang: Gang, fit: int) -> str:
        level = constraint_of(gang)
        # With a constraint the nodes of one question are those of one domain.
        domains = {self.cluster.ledger.nodes.domains(name).get(level, "") for name in self.node_names if level}
        return shortage(gang, self.member.request, fit, level, domains.pop() if len(domains) == 1 else "")

    def _reserved(self, uid: str) -> PodRecord | None:
        return self.cluster.ledger.records.reserved(uid)


def _refused(choice: NodeChoice, why: str, node_names: Iterable[str]) -> NodeChoice:
    """Returns the refusal with one sentence for all nodes. Of the nodes the reasons for people stay."""
    words, sentence = choice.words, f"{Reason.GROUP}: {why}"
    return replace(
        choice,
        failed={name: sentence for name in node_names if name not in choice.unresolvable},
        unresolvable=dict.fromkeys(choice.unresolvable, sentence),
        words=lambda: {name: joined((why, each)) for name, each in words().items()},
        error="",
        group=why,
    )


def _in_no_domain(group: str, why: NoDomain, node_names: Iterable[str]) -> NodeChoice:
    """Returns a refusal. No pod is evicted for it: the room would have to be in one domain."""
    sentence = f"group {group} {why}"
    return NodeChoice(node=None, unresolvable=dict.fromkeys(node_names, f"{Reason.GROUP}: {sentence}"), group=sentence)
