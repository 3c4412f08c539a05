"""Whatever happens in whatever order, the ledger is the sum of what the objects say and what was promised.

The cluster is the JSON of its objects, changed by the rules; the watch delivers it later, or loses it and lists anew.
State, index and binder are the extender's own; only the API server behind the binder is played.
TOPOGPU_NIGHTLY=1 makes the histories a thousand.
"""

import asyncio
import os
from collections import Counter
from datetime import UTC, datetime
from typing import Any

import msgspec
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from proto.annotations import keys
from proto.annotations.undecided_pods import decode_undecided, encode_undecided
from proto.devices import DeviceUUID
from proto.extender import BindingArgs
from proto.kubernetes.objects import Node, ObjectMeta, Pod, ResourceQuota, ResourceQuotaSpec
from scheduler_ext.cluster.bound import OUTLIVING_SECONDS, outlives
from scheduler_ext.cluster.events import Applied, Listed, Nominated, PodWatch, RecordEvent, Removed, Wake, unperformed
from scheduler_ext.cluster.records import RecordState
from scheduler_ext.cluster.snapshot import NodeUsage
from scheduler_ext.cluster.state import Cluster
from scheduler_ext.decide.index import NodeIndex
from scheduler_ext.requests import RequestSettings, read_request
from scheduler_ext.settings import ServeSettings
from scheduler_ext.verbs.bind import Binder
from scheduler_ext.verbs.bind_actions import BindActions
from scheduler_ext.verbs.binding_sender import BindingSender
from scheduler_ext.verbs.filter_decision import FilterDecision
from scheduler_ext.verbs.live_cluster import LiveCluster
from simulation.recount import NONE, Amount, allocated, annotations, holds, moments, peak, recount, requested
from tests.builders import node_json
from tests.scheduler_ext.played_cluster import Cluster as PlayedCluster
from tests.scheduler_ext.played_cluster import Json, copied, pod_json

NIGHTLY = os.environ.get("TOPOGPU_NIGHTLY") == "1"
NODES = ("a", "b")
GPUS, SLOTS, MEMORY_MIB, CORES = 2, 2, 1000, 100
WHOLE: Amount = (SLOTS, MEMORY_MIB, CORES)
SETTINGS = ServeSettings(
    bind_deadline_seconds=0.01, reservation_lease_seconds=60, bound_lease_seconds=600, settle_seconds=0
)
LONGEST_LAG_SECONDS = 500.0
"""The longest delay of a watch that works, in seconds: shorter than the lease of a reservation that was sent."""

HAPPENINGS = (
    "runs",
    "runs its apps",
    "succeeds",
    "fails",
    "fails running",
    "is deleted",
    "is deleted by force",
    "goes",
)

several = st.integers(0, 99)
containers = st.builds(
    lambda count, memory, cores: {
        keys.RESOURCE_COUNT: str(count),
        keys.RESOURCE_MEMORY: str(memory),
        keys.RESOURCE_CORES: str(cores),
    },
    st.integers(1, 2),
    st.sampled_from([100, 400, 500, 1000]),
    st.sampled_from([0, 30, 50, 100]),
)
kinds = st.sampled_from(["init", "sidecar", "app"])
pods = st.lists(st.tuples(kinds, containers), min_size=1, max_size=3)
moods = st.sampled_from(["well", "well", "well", "refuses", "silent", "loses answers"])
"""Of the API server at a bind."""


class Machine(RuleBasedStateMachine):
    """`seen` is what the watch has told, `promised` the last pods that were sent to a node, and to which; `shapes` are
    the pods as they were created. `tampered` are those whose annotation somebody else has changed, `shrunk` the nodes
    that lost a GPU; `given` is what kubelet gave to pods past the scheduler, slots by GPU, `outliving` those that were
    seen deleted while they ran, and until when they count.
    """

    binder: Binder

    @initialize(first=st.lists(pods, max_size=4))
    def begin(self, first: list[list[tuple[str, Json]]]) -> None:
        """With some pods: in many histories hypothesis leaves out the rules by which they arrive."""
        self.loop = asyncio.new_event_loop()
        self.cluster, self.now, self.lag, self.made = PlayedCluster(), 1000.0, 0.0, 0
        self.other_leads = False
        self.watch_is_lost = False
        self.tampered: set[str] = set()
        self.shrunk: set[str] = set()
        self.given: dict[str, dict[str, int]] = {}
        self.outliving: dict[str, tuple[Json, float]] = {}
        self.shapes: dict[str, Json] = {}
        self.promised: list[tuple[Json, str]] = []
        self.asked: list[tuple[str, Json]] = []
        for name in NODES:
            self.cluster.nodes[name] = node_json(name, gpus=GPUS, replicas=SLOTS, memory_mib=MEMORY_MIB)
        self.restart()
        for asked in first:
            self._arrive(asked)

    def teardown(self) -> None:
        if hasattr(self, "loop"):
            self.loop.run_until_complete(self.binder.finish())
            self.loop.close()

    # The extender

    async def forbidden(self) -> str:
        return "another replica leads" if self.other_leads else ""

    @precondition(lambda self: self.cluster.pods)
    @rule()
    def restart(self) -> None:
        """Nothing is left but what a fresh list says."""
        if hasattr(self, "binder"):
            self.loop.run_until_complete(self.binder.finish())
        self.outliving = {}
        requests = RequestSettings()
        self.known = LiveCluster(Cluster(requests), lambda: self.now, lambda *_: None)
        self.ledger = self.known.state.ledger
        self.index, self.requests = NodeIndex(self.ledger), requests
        questions = BindActions(
            api=self.cluster,  # type: ignore[arg-type]
            cluster=self.known,
            settings=SETTINGS,
            sender=BindingSender(self.cluster, SETTINGS.binding_seconds, lambda: self.now),  # type: ignore[arg-type]
            now=lambda: datetime.fromtimestamp(self.now, UTC),
            forbidden=self.forbidden,
        )
        self.binder = Binder(cluster=self.known, actions=questions, settings=SETTINGS, lock_waited=lambda _: None)
        quota = ResourceQuotaSpec(hard={"limits.nvidia.com/gpumem": 10**9})
        self.known.apply(Applied(ResourceQuota(metadata=ObjectMeta(name="q", namespace="default"), spec=quota)))
        self.relist()

    @precondition(lambda self: self.cluster.news)
    @rule()
    def relist(self) -> None:
        """The watch broke: what it had to tell is lost, and everything is listed."""
        self.cluster.news.clear()
        self.lag, self.watch_is_lost = 0.0, False
        self.seen = {pod["metadata"]["uid"]: copied(pod) for pod in self.cluster.pods.values()}
        self.seen_nodes = {name: copied(node) for name, node in self.cluster.nodes.items()}
        pods = [msgspec.convert(pod, Pod) for pod in self.seen.values()]
        nodes = [msgspec.convert(node, Node) for node in self.cluster.nodes.values()]
        self.known.apply(Listed(Node, nodes))
        self.known.apply(Listed(Pod, pods))
        self.known.apply(PodWatch(works=True))

    @precondition(lambda self: not self.watch_is_lost)
    @rule()
    def lose_the_watch(self) -> None:
        """The API server refuses it, as with 429 or 403, and still carries out Bindings."""
        self.watch_is_lost = True
        self.known.apply(PodWatch(works=False))

    @precondition(lambda self: self.watch_is_lost)
    @rule()
    def watch_again(self) -> None:
        """Where it was."""
        self.lag, self.watch_is_lost = 0.0, False
        self.known.apply(PodWatch(works=True))

    @precondition(lambda self: not self.watch_is_lost)
    @rule(count=st.integers(1, 4))
    def deliver(self, count: int) -> None:
        """The watch catches up by some of what happened."""
        for _ in range(min(count, len(self.cluster.news))):
            kind, item = self.cluster.news.popleft()
            self.tell_node(kind, item) if kind.startswith("node") else self.tell_pod(kind, item)
        if not self.cluster.news:
            self.lag = 0.0

    def tell_pod(self, kind: str, item: Json) -> None:
        pod = msgspec.convert(item, Pod)
        if kind == "pod gone":
            known = self.seen.pop(pod.metadata.uid, None)
            until = self.now + OUTLIVING_SECONDS if outlives(pod) else None
            if until is not None and known is not None:
                self.outliving[pod.metadata.uid] = known, until
            self.known.apply(Removed(pod))
        else:
            self.seen[pod.metadata.uid] = item
            self.known.apply(Applied(pod))

    def tell_node(self, kind: str, item: Json) -> None:
        node = msgspec.convert(item, Node)
        name = node.metadata.name
        if kind == "node gone":
            self.seen_nodes.pop(name, None)
            self.known.apply(Removed(node))
        else:
            self.seen_nodes[name] = item
            self.known.apply(Applied(node))

    # kube-scheduler

    @precondition(lambda self: not self.other_leads)
    @rule(asked=pods, never=st.booleans())
    def arrive(self, asked: list[tuple[str, Json]], *, never: bool) -> None:
        self._arrive(asked, restart_policy="Never" if never else "Always")

    @precondition(lambda self: not self.other_leads)
    @rule(asked=pods, replica=st.booleans(), mood=moods)
    def arrive_and_bind(self, asked: list[tuple[str, Json]], mood: str, *, replica: bool) -> None:
        """Often one more of a kind: what is chosen ahead is chosen for the next such pod."""
        pod, node = self._arrive(self.asked if replica and self.asked else asked)
        if node:
            self._bind(pod, node, mood)

    @precondition(lambda self: not self.other_leads)
    @rule(asked=pods, members=st.integers(2, 4), mood=moods)
    def arrive_as_a_group(self, asked: list[tuple[str, Json]], members: int, mood: str) -> None:
        """kube-scheduler asks about each, and binds all or none."""
        group = f"g{self.made}"
        placed = [self._arrive(asked, group=group) for _ in range(members)]
        if all(node for _, node in placed):
            for pod, node in placed:
                self._bind(pod, node, mood)

    @precondition(lambda self: not self.other_leads)
    @rule(asked=pods, members=st.integers(1, 3))
    def wait_in_permit(self, asked: list[tuple[str, Json]], members: int) -> None:
        """For the last one, about which kube-scheduler asks after another pod; this is their second attempt."""
        for pod in [self._arrive(asked, gang="gang")[0] for _ in range(members)]:
            self.filter(pod, list(NODES))
        self._arrive(asked)
        self._arrive(asked, gang="gang")

    @precondition(lambda self: self.promised)
    @rule(which=several, nominated=st.booleans())
    def let_go(self, which: int, *, nominated: bool) -> None:
        """kube-scheduler took its decision back, and says so on the pod."""
        name = self.promised[which % len(self.promised)][0]["metadata"]["name"]
        pod = copied(self.cluster.pods.get(name, {}))
        if not pod or pod["spec"].get("nodeName"):
            return
        condition = {
            "type": "PodScheduled",
            "status": "False",
            "reason": "x",
            "message": f"for the {self.now:g}th time",
        }
        pod["status"] = {"nominatedNodeName": "a"} if nominated else {"conditions": [condition]}
        self.cluster.write(pod)

    def _arrive(
        self,
        asked: list[tuple[str, Json]],
        restart_policy: str = "Always",
        group: str = "",
        gang: str = "",
    ) -> tuple[Json, str]:
        """The pod, and the node it is sent to; empty without one."""
        self.made, self.asked = self.made + 1, asked
        pod = pod_json(f"p{self.made}", asked, restart_policy=restart_policy)
        if group:
            pod["spec"]["schedulingGroup"] = {"podGroupName": group}
        if gang:
            pod["metadata"]["labels"] = {"scheduling.x-k8s.io/pod-group": gang}
        self.shapes[pod["metadata"]["uid"]] = pod
        self.cluster.write(pod)
        return pod, self.filter(pod, list(NODES))

    @precondition(lambda self: self.promised and not self.other_leads)
    @rule(which=several, nodes=st.permutations(NODES), most=st.integers(1, 2))
    def filter_again(self, which: int, nodes: list[str], most: int) -> None:
        """Also of pods that have a node, are over, or are gone: kube-scheduler may know less than everybody."""
        pod, _ = self.promised[which % len(self.promised)]
        self.filter(pod, nodes[:most])

    def sent_to(self, uid: str) -> str:
        self.ledger.expire(self.now)
        return self.ledger.records.sent_to(uid)

    def filter(self, pod: Json, names: list[str]) -> str:
        """As the extender answers: the node, empty without one."""
        asked = msgspec.convert(pod, Pod)
        request = read_request(asked, self.requests)
        assert request is not None
        lease_seconds = SETTINGS.reservation_lease_seconds
        decision = FilterDecision(self.index, self.known.state, lease_seconds)
        answer = decision.reserve(asked, request, names, self.now)
        self.index.look_ahead()
        if not answer.result.node_names:
            return ""
        self.promised = [*self.promised[-9:], (pod, answer.result.node_names[0])]
        return answer.result.node_names[0]

    @precondition(lambda self: self.promised)
    @rule(which=several, mood=moods)
    def bind(self, which: int, mood: str) -> None:
        self._bind(*self.promised[which % len(self.promised)], mood)

    @precondition(lambda self: self.promised)
    @rule(which=several, node=st.sampled_from(NODES))
    def bind_elsewhere(self, which: int, node: str) -> None:
        self._bind(self.promised[which % len(self.promised)][0], node, "well")

    def _bind(self, pod: Json, node: str, mood: str) -> None:
        metadata = pod["metadata"]
        args = BindingArgs(pod_name=metadata["name"], pod_namespace="default", pod_uid=metadata["uid"], node=node)
        self.cluster.mood = mood
        self.loop.run_until_complete(self.binder.bind(args))
        self.cluster.mood = "well"

    @rule()
    def settle(self) -> None:
        """Looks what became of the Bindings that were not answered."""
        for _ in range(5):
            self.loop.run_until_complete(asyncio.sleep(0))

    # Users, kubelet, controllers

    @precondition(lambda self: self.cluster.pods)
    @rule(which=several, happens=st.sampled_from(HAPPENINGS))
    def live(self, which: int, happens: str) -> None:
        pod = copied(list(self.cluster.pods.values())[which % len(self.cluster.pods)])
        match happens:
            case "goes" | "is deleted by force":
                if happens == "goes":
                    pod["status"].pop("containerStatuses", None)
                del self.cluster.pods[pod["metadata"]["name"]]
                self.cluster.news.append(("pod gone", pod))
                return
            case "is deleted":
                pod["metadata"]["deletionTimestamp"] = "2030-01-01T00:00:00Z"
            case "runs" | "runs its apps" if holds(pod) or is_undecided(pod):
                ended = pod["status"].get("initContainerStatuses", [])
                if happens == "runs its apps":
                    inits = pod["spec"]["initContainers"]
                    ended = [{"name": one["name"], "state": {"terminated": {"exitCode": 0}}} for one in inits]
                running = [{"name": one["name"], "state": {"running": {}}} for one in pod["spec"]["containers"]]
                pod["status"] = {
                    "phase": "Running",
                    "initContainerStatuses": ended,
                    "containerStatuses": running,
                }
            case "succeeds" | "fails" if pod["spec"].get("nodeName"):
                pod["status"] = {"phase": "Succeeded" if happens == "succeeds" else "Failed"}
            case "fails running" if pod["spec"].get("nodeName"):
                pod["status"]["phase"] = "Failed"
        self.cluster.write(pod)

    @precondition(lambda self: any(map(holds, self.cluster.pods.values())))
    @rule(which=several, gpu=st.integers(0, GPUS - 1), memory_mib=st.integers(0, 1500))
    def rewrite(self, which: int, gpu: int, memory_mib: int) -> None:
        """Somebody changes what a pod is said to hold."""
        held = [pod for pod in self.cluster.pods.values() if holds(pod)]
        pod = copied(held[which % len(held)])
        if pod["spec"]["nodeName"] in self.shrunk:
            return  # a pod that names a GPU that its node lacks holds what it held
        self.tampered.add(pod["metadata"]["uid"])
        gpus = [f"GPU-{pod['spec']['nodeName']}-{(gpu + at) % GPUS}" for at in range(GPUS)]
        entries = ("".join(f"{each},NVIDIA,{memory_mib},10:" for each in gpus[: len(old)]) for old in allocated(pod))
        pod["metadata"]["annotations"][keys.DEVICES_ALLOCATED] = "".join(f"{entry};" for entry in entries)
        self.cluster.write(pod)

    @rule(
        name=st.sampled_from(NODES),
        ids=st.lists(st.integers(0, GPUS - 1), min_size=1, max_size=2),
        runs=st.booleans(),
        told=st.booleans(),
    )
    def bind_past_the_scheduler(self, name: str, ids: list[int], *, runs: bool, told: bool) -> None:
        """Kubelet gives it whatever ids it has left."""
        alive = [pod for pod in self.cluster.pods.values() if pod["spec"].get("nodeName") == name]
        taken = sum(amount[0] for amount in recount(filter(holds, alive)).values())
        taken += sum(sum(self.given[pod["metadata"]["uid"]].values()) for pod in alive if is_undecided(pod))
        if taken + len(ids) > GPUS * SLOTS:
            return
        self.made += 1
        limits = {keys.RESOURCE_COUNT: str(len(ids))}
        pod = pod_json(f"p{self.made}", [("app", limits)], restart_policy="Always")
        pod["spec"]["nodeName"] = name
        self.given[pod["metadata"]["uid"]] = dict(Counter(f"GPU-{name}-{gpu}" for gpu in ids))
        self.cluster.write(pod)
        if told:
            self.the_daemon_tells(name, "all")
        if runs:
            self.live(list(self.cluster.pods).index(pod["metadata"]["name"]), "runs")

    @precondition(lambda self: self.given)
    @rule(name=st.sampled_from(NODES), knows=st.sampled_from(["all", "all", "some", "gone"]))
    def the_daemon_tells(self, name: str, knows: str) -> None:
        """What it knows of them, also of some that are gone."""
        node = copied(self.cluster.nodes.get(name, {}))
        if not node:
            return
        there = {uid: given for uid, given in self.given.items() if all(name in gpu for gpu in given)}
        told = {uid: there[uid] for uid in list(there)[: None if knows == "all" else len(there) // 2]}
        node["metadata"]["annotations"][keys.NODE_UNDECIDED] = "?" if knows == "gone" else word(told)
        self.cluster.write_node(node)

    @rule(name=st.sampled_from(NODES), becomes=st.sampled_from(["well", "unready", "cordoned", "smaller", "gone"]))
    def change_node(self, name: str, becomes: str) -> None:
        if becomes == "smaller":
            if self.tampered:
                return
            self.shrunk.add(name)
        node = node_json(name, gpus=1 if becomes == "smaller" else GPUS, replicas=SLOTS, memory_mib=MEMORY_MIB)
        if becomes == "gone":
            if self.cluster.nodes.pop(name, None) is not None:
                self.cluster.news.append(("node gone", node))
            return
        if becomes == "unready":
            node["status"]["conditions"] = [{"type": "Ready", "status": "False"}]
        if becomes == "cordoned":
            node["metadata"]["annotations"][keys.DEVICE_CORDON] = f"GPU-{name}-0"
        self.cluster.write_node(node)

    @rule(seconds=st.sampled_from([1.0, 30.0, 61.0, 300.0, 700.0]))
    def wait(self, seconds: float) -> None:
        """A lost watch brings nothing, however long it is lost."""
        if not self.watch_is_lost and self.lag + seconds > LONGEST_LAG_SECONDS:
            self.deliver(len(self.cluster.news))
        self.now += seconds
        self.lag += seconds if self.cluster.news and not self.watch_is_lost else 0.0

    @rule()
    def change_the_leader(self) -> None:
        """Taking the lease back, as `running` catches up."""
        if self.other_leads:
            self.loop.run_until_complete(self.binder.drop_reservations())
            self.relist()
        self.other_leads = not self.other_leads

    @precondition(lambda self: self.other_leads)
    @rule(asked=containers)
    def the_other_leader_binds(self, asked: Json) -> None:
        """It knows what the objects say and nothing of our promises."""
        other = Cluster(self.requests)
        nodes = [msgspec.convert(node, Node) for node in self.cluster.nodes.values()]
        pods = [msgspec.convert(pod, Pod) for pod in self.cluster.pods.values()]
        for listed in (Listed(Node, nodes), Listed(Pod, pods)):
            other.step(listed, self.now, unperformed(Wake, Nominated, RecordEvent))
        self.made += 1
        pod = pod_json(f"p{self.made}", [("app", asked)], restart_policy="Always")
        typed = msgspec.convert(pod, Pod)
        request = read_request(typed, self.requests)
        assert request is not None
        index = NodeIndex(other.ledger)
        answer = FilterDecision(index, other, 60.0).reserve(typed, request, list(NODES), self.now)
        reservation = other.ledger.records.reserved(request.uid)
        if answer.result.node_names and reservation is not None:
            held = "".join(f"{share.uuid},NVIDIA,{share.memory_mib},{share.cores}:" for share in reservation.shares[0])
            pod["spec"]["nodeName"] = reservation.node
            pod["metadata"]["annotations"] = {keys.DEVICES_ALLOCATED: f"{held};"}
            self.cluster.write(pod)

    # What always holds

    def promises(self) -> list[tuple[str, str, Any]]:
        """Every live reservation on each of its nodes: UID, node, and what each container is promised."""
        self.ledger.expire(self.now)
        found = []
        for uid in self.ledger.records.every():
            reservation = self.ledger.records.reserved(uid)
            if reservation is not None:
                assert reservation.until > self.now or reservation.sent_by
                for node in reservation.nodes:
                    held = [
                        {share.uuid: (1, share.memory_mib, share.cores) for share in container}
                        for container in reservation.decided[node]
                    ]
                    found.append((uid, node, held))
        return found

    @invariant()
    def the_ledger_is_the_sum_of_the_objects_and_the_promises(self) -> None:
        bound = {uid: pod for uid, pod in self.seen.items() if holds(pod)}
        self.outliving = {uid: (pod, until) for uid, (pod, until) in self.outliving.items() if until > self.now}
        outliving = [pod for pod, _ in self.outliving.values()]
        held = dict(recount([*bound.values(), *filter(holds, outliving)]))
        charged = [*held.values()]
        for uid, node, promised in self.promises():
            assert uid not in bound
            amounts = peak(moments(self.shapes[uid], promised))
            for gpu, amount in amounts.items():
                held[gpu] = plus(held.get(gpu, NONE), amount)
            if node == self.ledger.records.every()[uid].node:
                charged += amounts.values()
        taken = self.with_kept(held)
        for name, usage in self.ledger.snapshot().nodes.items():
            past = [pod for pod in (*self.seen.values(), *outliving) if is_undecided(pod) and is_on(pod, name)]
            if past:
                self.check_undecided(usage, past, taken)
                continue
            assert not usage.undecided
            for used in usage.gpus:
                assert (used.replicas, used.memory_mib, used.cores) == taken.get(used.device.uuid, NONE), (name, used)
        (quota,) = (quota.used for quota in self.ledger.snapshot().quotas["default"])
        total = NONE
        for amount in charged:
            total = plus(total, amount)
        assert (quota.replicas, quota.memory_mib, quota.cores) == total

    def with_kept(self, held: dict[str, Amount]) -> dict[str, Amount]:
        """Room that is kept for nominated pods counts as taken as well, up to the whole GPU."""
        taken, rooms = dict(held), self.ledger.records.of(RecordState.KEPT)
        for room in (room for room in rooms if self.ledger.records.reserved(room.uid) is None):
            for gpu, part in room.gpus.footprints.items():
                taken[gpu] = plus(taken.get(gpu, NONE), (part.replicas, part.memory_mib, part.cores))
        return {gpu: _at_most(amount, held.get(gpu, NONE)) for gpu, amount in taken.items()}

    def check_undecided(self, usage: NodeUsage, past: list[Json], held: dict[str, Amount]) -> None:
        """The GPUs of those that run are full; of the others as many replicas are taken as kubelet has given away."""
        value = self.seen_nodes[usage.node.name]["metadata"]["annotations"].get(keys.NODE_UNDECIDED, "?")
        told = {} if value == "?" else decode_undecided(value)
        offered = {used.device.uuid for used in usage.gpus}
        running = [pod["metadata"]["uid"] for pod in past if pod["status"].get("phase") == "Running"]
        full = {gpu for uid in running for gpu in self.given[uid]}
        known = all(uid in told and told[uid].keys() <= offered for uid in running)
        for used in usage.gpus:
            decided = held.get(used.device.uuid, NONE)
            if used.device.uuid in full or not known:
                most = tuple(max(pair) for pair in zip(decided, WHOLE, strict=True))
                assert (used.replicas, used.memory_mib, used.cores) == most
            else:
                assert (used.memory_mib, used.cores) == decided[1:]
                assert used.replicas >= decided[0]
        ids = sum(sum(self.given[pod["metadata"]["uid"]].values()) for pod in past)
        decided_slots = sum(held.get(uuid, NONE)[0] for uuid in offered)
        assert sum(used.replicas for used in usage.gpus) >= min(decided_slots + ids, SLOTS * len(offered))
        assert usage.undecided == tuple(sorted(f"default/{pod['metadata']['name']}" for pod in past))

    @invariant()
    def the_sums_for_kubelet_are_those_of_the_objects_and_the_promises(self) -> None:
        there = [(pod, pod["spec"]["nodeName"]) for pod in self.seen.values() if holds(pod) or is_undecided(pod)]
        there += [(self.shapes[uid], node) for uid, node, _ in self.promises()]
        sums: Counter[tuple[str, str]] = Counter()
        for pod, node in there:
            sums.update({(node, resource): amount for resource, amount in requested(pod).items()})
        assert self.ledger.kubelet._requested == dict(sums)

    @invariant()
    def what_the_watch_has_not_shown_is_still_promised(self) -> None:
        if self.other_leads:
            return
        promised = {(uid, node) for uid, node, _ in self.promises()}
        for pod in self.cluster.pods.values():
            uid = pod["metadata"]["uid"]
            if holds(pod) and not (uid in self.seen and holds(self.seen[uid])):
                assert (uid, pod["spec"]["nodeName"]) in promised

    @invariant()
    def only_a_binding_that_may_be_carried_out_ties_a_pod_to_its_node(self) -> None:
        tied = {uid for uid, _, _ in self.promises() if self.sent_to(uid)}
        assert tied <= self.cluster.sent

    @invariant()
    def no_gpu_is_given_out_beyond_what_it_has(self) -> None:
        alive = {**self.cluster.pods, **{pod["metadata"]["name"]: pod for pod, _ in self.outliving.values()}}
        ours = [pod for pod in alive.values() if holds(pod) and pod["metadata"]["uid"] not in self.tampered]
        for gpu, amount in recount(ours).items():
            assert all(taken <= most for taken, most in zip(amount, WHOLE, strict=True)), (gpu, amount)


def is_on(pod: Json, node: str) -> bool:
    return bool(pod["spec"].get("nodeName") == node)


def is_undecided(pod: Json) -> bool:
    """Of those past the scheduler alone: nobody takes an annotation away here."""
    runs = any("running" in one["state"] for one in pod["status"].get("containerStatuses", []))
    ended = pod["status"].get("phase") in ("Succeeded", "Failed") and not runs
    return bool(pod["spec"].get("nodeName")) and not ended and keys.DEVICES_ALLOCATED not in annotations(pod)


def word(told: dict[str, dict[str, int]]) -> str:
    given = {uid: {DeviceUUID(gpu): slots for gpu, slots in each.items()} for uid, each in told.items()}
    return encode_undecided(given)


def _at_most(amount: Amount, held: Amount) -> Amount:
    """The whole GPU, or what is held if that is more."""
    slots, memory_mib, cores = (
        min(each, max(whole, least)) for each, whole, least in zip(amount, WHOLE, held, strict=True)
    )
    return slots, memory_mib, cores


def plus(one: Amount, other: Amount) -> Amount:
    return (one[0] + other[0], one[1] + other[1], one[2] + other[2])


TestLedger = Machine.TestCase
TestLedger.settings = settings(
    max_examples=1_000 if NIGHTLY else settings().max_examples,
    stateful_step_count=40,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
