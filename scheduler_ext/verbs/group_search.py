"""Finds GPUs for all missing members of a group, or for none, at kube-scheduler's question about one of them."""

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from proto.kubernetes.objects import Pod
from scheduler_ext.capacity.group_room import constraint_of, shortage
from scheduler_ext.cluster.events import Decided, GroupUndone
from scheduler_ext.cluster.gangs import Gang, MissingMember, group_of
from scheduler_ext.cluster.records import PodRecord, RecordState
from scheduler_ext.cluster.state import Cluster
from scheduler_ext.decide.decision import NodeChoice
from scheduler_ext.decide.reasons import Reason, joined
from scheduler_ext.domains.plan import NoDomain
from scheduler_ext.requests import GpuRequest
from scheduler_ext.verbs.group_domains import GroupDomains, MemberNodes, kind_of, size_of

MOST_REFUSED = 8
"""The shapes of members that are refused before a search ends: each of them costs a look at all nodes."""
MOST_AHEAD = 256
"""The most members for which GPUs are found at one question. Those of a larger group are found at later ones."""


class _Full:
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


@dataclass(frozen=True, slots=True)
class GroupSearch:
    """`chosen` decides for one pod of a priority among nodes, at a time in monotonic seconds."""

    cluster: Cluster
    domains: GroupDomains
    chosen: Callable[[GpuRequest, int, Collection[str], float], NodeChoice]

    def together(
        self,
        gang: Gang,
        asked: MissingMember,
        node_names: Sequence[str],
        placed: Sequence[str],
        *,
        now: float,
        until: float,
    ) -> NodeChoice:
        """Returns the decision for this member, with the GPUs of all that are missing held until `until`. If not all
        of them fit, it is a refusal, and nothing more is held than before.
        """
        members = gang.missing(asked, placed, self.cluster.requests)
        before = [record for each in members if (record := self._reserved(each.uid)) is not None]
        before += self.cluster.ledger.records.of(RecordState.KEPT)
        # A domain has to hold all of them, also those for whom GPUs are found later.
        every = members[: gang.needed - len(placed)]
        where = self.domains.nodes_of(every, node_names, self._nodes(asked.pod, placed, node_names))
        if isinstance(where, NoDomain):
            return _in_no_domain(gang.group, where, node_names)
        first = every[:MOST_AHEAD]
        found = _choose(first, members[len(first) :], asked, self._tries(where, node_names, now, until))
        if not found.refusals:
            return found.choices[asked.uid]
        self.cluster.record(GroupUndone([each.uid for each in members], before), now)
        if found.alone is not None:
            return found.alone
        why = self._shortage(gang, asked.request, len(placed) + len(found.choices), node_names)
        return _refused(found.refusals[0], why, node_names)

    def near(
        self, asked: MissingMember, node_names: Sequence[str], placed: Sequence[str], now: float
    ) -> NodeChoice | None:
        """Returns the decision for one more member near the others, or a refusal if it must be in their domain and has
        no room there. None if the policies decide.
        """
        nodes = self._nodes(asked.pod, placed, node_names)
        if not nodes and asked.request.wish is None:
            return None
        where = self.domains.nodes_of([asked], node_names, nodes)
        if isinstance(where, NoDomain):
            return _in_no_domain(group_of(asked.pod), where, node_names)
        if where is None:
            return None
        priority = asked.pod.spec.priority or 0
        choice = self.chosen(asked.request, priority, [where.by_uid[asked.uid]], now)
        return choice if choice.node is not None else self.chosen(asked.request, priority, where.others, now)

    def end_split(self, asked: MissingMember, node_names: Sequence[str], now: float) -> None:
        """Frees what was decided ahead for a group whose nodes have to be in one domain and are not any more: their
        labels have changed.
        """
        wish = asked.request.wish
        if wish is None or not wish.required:
            return
        uids = [asked.uid, *self.cluster.ledger.groups.placed(asked.pod, node_names)]
        found = self.domains.index.domains(self._nodes(asked.pod, uids, node_names))
        if len({each.get(wish.level) for each in found}) > 1:
            ahead = [each.uid for each in filter(None, map(self._reserved, uids)) if each.pending.ahead]
            self.cluster.record(GroupUndone(ahead, ()), now)

    def _nodes(self, pod: Pod, placed: Sequence[str], node_names: Sequence[str]) -> Sequence[str]:
        """Returns the nodes of the members that are bound, and of those `placed` among these nodes."""
        names = frozenset(node_names)
        records = filter(None, map(self._reserved, placed))
        reserved = (next((node for node in each.nodes if node in names), each.node) for each in records)
        return [*self.cluster.gangs.nodes(group_of(pod)), *reserved]

    def _tries(
        self, where: MemberNodes | None, node_names: Sequence[str], now: float, until: float
    ) -> Callable[[MissingMember], NodeChoice]:
        """Returns a function that finds GPUs for one member after the other, and holds them."""
        names = dict.fromkeys(node_names if where is None else where.others)
        plan = {} if where is None else where.by_uid
        full = _Full()

        def tried(member: MissingMember) -> NodeChoice:
            choice = full.like(member)
            # Room that is kept for the member alone is none for others like it.
            if choice is None or self.cluster.ledger.records.kept(member.uid) is not None:
                choice = self._where_planned(member, plan.get(member.uid), names, now, until)
                if choice.node is None:
                    full.add(member, choice)
            return choice

        return tried

    def _where_planned(
        self, member: MissingMember, planned: str | None, node_names: Collection[str], now: float, until: float
    ) -> NodeChoice:
        """Places the member on its node of the plan. Without one, or if the node has no room after all, on another."""
        choice = None if planned is None else self._placed(member, [planned], now, until)
        return choice if choice is not None and choice.node else self._placed(member, node_names, now, until)

    def _placed(self, member: MissingMember, node_names: Collection[str], now: float, until: float) -> NodeChoice:
        cluster, pod = self.cluster, member.pod
        crowded = cluster.ledger.kubelet.refusing(pod, node_names)
        names = dict.fromkeys(name for name in node_names if name not in crowded) if crowded else node_names
        request = member.own_request
        choice = self.chosen(request, pod.spec.priority or 0, names, now)
        if choice.node is not None:
            earlier = self._reserved(member.uid)
            others = {} if earlier is None else {n: held for n, held in earlier.decided.items() if n != choice.node}
            decided = Decided(member.uid, pod, choice.node, choice.shares, until, others, request, ahead=True)
            cluster.record(decided, now)
        return choice

    def _shortage(self, gang: Gang, request: GpuRequest, fit: int, node_names: Sequence[str]) -> str:
        level = constraint_of(gang)
        # With a constraint the nodes of one question are those of one domain.
        domains = {self.cluster.ledger.nodes.domains(name).get(level, "") for name in node_names if level}
        return shortage(gang, request, fit, level, domains.pop() if len(domains) == 1 else "")

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
