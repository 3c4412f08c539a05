"""Takes a decision: one node and the GPUs of every container, or why no node fits."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from proto.devices import PodShares
from proto.kubernetes.objects import Node
from scheduler_ext.cluster.ledger import Ledger
from scheduler_ext.cluster.registered import UNREGISTERED
from scheduler_ext.cluster.snapshot import Snapshot, quota_for
from scheduler_ext.decide.fgd import Fragmentation
from scheduler_ext.decide.misfit import Misfit, NotOffered, refusals_of
from scheduler_ext.decide.place import place
from scheduler_ext.decide.reasons import joined
from scheduler_ext.decide.score import (
    NodeScore,
    Preference,
    compares_connections,
    connected,
    gpus_of,
    is_spared,
    node_score,
    preference,
)
from scheduler_ext.policies import NodePolicy
from scheduler_ext.requests import GpuRequest, RequestSettings

NO_NODE_OFFERED = "no node was offered"


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The result for each node of the question. `fits` has its score before this pod, `misfits` why the pod does not
    fit there.
    """

    node: str | None
    shares: PodShares = ()
    fits: Mapping[str, NodeScore] = field(default_factory=dict)
    misfits: Mapping[str, Misfit | NotOffered] = field(default_factory=dict)
    connections: Mapping[str, int] = field(default_factory=dict)
    """The sum of the pair scores between the GPUs that the pod would get, for nodes that fit, if links decide."""
    levels: Mapping[str, int] = field(default_factory=dict)
    """The quality of the placement from 0 to 100, for nodes that fit; only with node policy `fgd`."""
    preferences: Mapping[str, Preference] = field(default_factory=dict)
    """The keys of the nodes that fit: the one with the smallest is taken."""
    error: str = ""
    """A sentence if no node was offered. Otherwise the nodes have their own reasons."""

    @property
    def scores(self) -> Mapping[str, float]:
        return {name: score.total for name, score in self.fits.items()}

    @property
    def ranked(self) -> list[str]:
        """Returns the nodes that fit in the order in which they would be taken."""
        return [name for _, _, name in sorted(self.preferences.values())]

    @property
    def failed(self) -> Mapping[str, str]:
        """Returns the reason of each node that does not fit, in HAMi's words. They are made at each call."""
        return {name: misfit.reason for name, misfit in self.misfits.items()}


def decide(request: GpuRequest, snapshot: Snapshot, node_names: Collection[str]) -> Decision:
    """Chooses the best node of `node_names` that fits, by `preference`, and the pod's GPUs there."""
    quota = quota_for(request.quota_class, snapshot.quotas.get(request.namespace, ()))
    placed: dict[str, PodShares] = {}
    fits: dict[str, NodeScore] = {}
    misfits: dict[str, Misfit | NotOffered] = {}
    for name in node_names:
        usage = snapshot.nodes.get(name)
        if usage is None:
            misfits[name] = NotOffered(snapshot.unregistered.get(name, UNREGISTERED))
            continue
        shares = place(request, usage, quota)
        if isinstance(shares, Misfit):
            misfits[name] = shares
        else:
            placed[name] = shares
            fits[name] = node_score(usage.gpus)
    if not fits:
        error = "" if node_names else NO_NODE_OFFERED
        return Decision(node=None, misfits=misfits, error=error)
    connections = {}
    if compares_connections(request):
        connections = {
            name: connected(shares, snapshot.nodes[name].node.pair_scores) for name, shares in placed.items()
        }
    levels = _levels(request, snapshot, placed)
    policy, gpus = request.policies.node, gpus_of(request)

    def key(name: str) -> Preference:
        spared = is_spared(snapshot.nodes[name], gpus)
        return preference(policy, name, fits[name].total, connections.get(name, 0), levels.get(name, 0), spared=spared)

    preferences = {name: key(name) for name in fits}
    _, _, node = min(preferences.values())
    return Decision(
        node=node,
        shares=placed[node],
        fits=fits,
        misfits=misfits,
        connections=connections,
        levels=levels,
        preferences=preferences,
    )


def decide_anywhere(request: GpuRequest, snapshot: Snapshot) -> Decision:
    """Decides among all nodes that offer GPUs or should: those without a register are no nodes with GPUs."""
    unable = (name for name, reason in snapshot.unregistered.items() if reason != UNREGISTERED)
    return decide(request, snapshot, sorted({*snapshot.nodes, *unable}))


def decide_on_empty(request: GpuRequest, nodes: Sequence[Node], settings: RequestSettings) -> Decision:
    """Decides among these nodes as if nothing ran on them."""
    ledger = Ledger(settings)
    ledger.replace_nodes(nodes)
    return decide(request, ledger.snapshot(), [node.metadata.name for node in nodes])


def _levels(request: GpuRequest, snapshot: Snapshot, placed: Mapping[str, PodShares]) -> Mapping[str, int]:
    """Returns the levels of the nodes; empty unless the node policy is `fgd`."""
    if request.policies.node is not NodePolicy.FGD:
        return {}
    stranding = Fragmentation(snapshot.workload)
    return {
        name: stranding.level(request, stranding.site(snapshot.nodes[name], snapshot.hosts.get(name)), shares)
        for name, shares in placed.items()
    }


MOST_NODES_NAMED = 20
"""If more nodes than this fit, only the score of the chosen one is named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """The number of offered nodes that fit, and their scores. If many fit, only the score of the chosen one
    is there.
    """

    fitting: int = 0
    unknown: int = 0
    """Number of nodes that were not judged. The chosen node is better in any case."""
    scores: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeChoice:
    """A decision without the reasons why nodes failed when one fits: in a large cluster no reader needs them.

    `tally` counts when it is called, usually before the next choice: kube-scheduler does not wait for it.
    """

    node: str | None
    shares: PodShares = ()
    failed: Mapping[str, str] = field(default_factory=dict)
    """The reasons of the nodes where evicting other pods may help, if none fits. `unresolvable` has the other nodes."""
    unresolvable: Mapping[str, str] = field(default_factory=dict)
    words: Callable[[], Mapping[str, str]] = field(default=dict, compare=False)
    """Returns the reasons for people by node, as far as nodes were judged; call it before the next choice."""
    misfit: Callable[[str], Misfit | NotOffered | None] = field(default=lambda _: None, compare=False)
    """Judges one node again, for its figures."""
    error: str = ""
    group: str = ""
    """A sentence about the pod's group if not all of it fits."""
    tally: Callable[[], Tally] = field(default=Tally, compare=False)


def choice_of(decision: Decision) -> NodeChoice:
    if decision.node is None:
        misfits, refusals = decision.misfits, refusals_of(decision.misfits)
        return NodeChoice(
            node=None,
            failed=refusals.failed,
            unresolvable=refusals.unresolvable,
            words=lambda: {name: joined(each.words()) for name, each in misfits.items()},
            misfit=misfits.get,
            error=decision.error,
        )
    scores = decision.scores
    named = scores if len(scores) <= MOST_NODES_NAMED else {decision.node: scores[decision.node]}
    tally = Tally(fitting=len(scores), scores=named)
    return NodeChoice(node=decision.node, shares=decision.shares, tally=lambda: tally)
