"""Quotas with scopes hold for the pods that Kubernetes counts under them, and for no others."""

import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proto.kubernetes.objects import Pod, ResourceQuota
from scheduler_ext.cli.state import StateError, read_snapshot
from scheduler_ext.cluster.accounting import Footprint
from scheduler_ext.cluster.ledger import Ledger
from scheduler_ext.cluster.snapshot import Quota, quota_for
from scheduler_ext.debugging import encode_snapshot
from scheduler_ext.decide.decision import decide
from scheduler_ext.decide.index import NodeIndex
from scheduler_ext.decide.preempt import decide_without
from scheduler_ext.quota_class import quota_class
from scheduler_ext.requests import RequestSettings, read_request
from simulation.recount import DEVICES_ALLOCATED
from tests.builders import as_json, container, pod
from tests.scheduler_ext.cluster.ledgers import ledger
from tests.scheduler_ext.quota_recount import counted, counts

Json = dict[str, Any]


def quota_json(
    name: str, memory_mib: int, *expressions: Json, scopes: tuple[str, ...] = (), hard: Json | None = None
) -> Json:
    limits = {"limits.nvidia.com/gpumem": str(memory_mib), **(hard or {})}
    selector = {"scopeSelector": {"matchExpressions": list(expressions)}} if expressions else {}
    metadata = {"name": name, "namespace": "default"}
    return {"metadata": metadata, "spec": {"hard": limits, "scopes": list(scopes), **selector}}


def priority(operator: str, *values: str) -> Json:
    return {"scopeName": "PriorityClass", "operator": operator, "values": list(values)}


def waiting(memory_mib: int, **spec: Any) -> Pod:
    return pod(container(gpu="1", gpumem=str(memory_mib)), **spec)


def bound(name: str, memory_mib: int, gpu: str = "G0", **facts: Any) -> Pod:
    annotations = {DEVICES_ALLOCATED: f"{gpu},NVIDIA,{memory_mib},0:;"}
    return pod(container(gpu="1", gpumem=str(memory_mib)), name=name, annotations=annotations, node_name="n", **facts)


def quota(written: Json) -> ResourceQuota:
    return msgspec.convert(written, ResourceQuota)


def made_with(*written: Json) -> tuple[Ledger, Callable[[Pod], bool]]:
    """And whether a pod fits: every way to decide says the same."""
    made = ledger()
    made.quotas.replace(quota(each) for each in written)
    index = NodeIndex(made)

    def fits(asking: Pod) -> bool:
        request = read_request(asking, RequestSettings())
        assert request is not None
        nodes = {
            decide(request, made.snapshot(), ["n"]).node,
            index.choose(request, ["n"]).node,
            decide_without(made, request, priority=0, node="n", gone=()).node,
        }
        (node,) = nodes
        return node is not None

    return made, fits


def test_a_pod_is_held_by_the_quota_of_its_priority_class_alone() -> None:
    low, high = quota_json("low", 1000, priority("In", "low")), quota_json("high", 5000, priority("In", "high"))
    made, fits = made_with(low, high)
    assert fits(waiting(4000, priority_class_name="high"))
    assert not fits(waiting(4000, priority_class_name="low"))
    assert fits(waiting(8000))
    made.apply_pod(bound("a", 2000, priority_class_name="high"))
    assert not fits(waiting(4000, priority_class_name="high"))
    assert fits(waiting(1000, priority_class_name="low"))


def test_a_pod_has_to_be_within_every_quota_that_counts_it() -> None:
    made, fits = made_with(
        quota_json("all", 9000),
        quota_json("some", 4000, scopes=("BestEffort", "NotTerminating")),
        quota_json("more", 10**6),
    )
    made.apply_pod(bound("a", 5500, active_deadline_seconds=60))
    assert not fits(waiting(3600)), "of all 9000, 3500 are left"
    assert fits(waiting(3500))
    made.remove_pod("uid-a")
    assert not fits(waiting(4100)), "of those for some 4000 are left"
    assert fits(waiting(8000, active_deadline_seconds=60))


def test_of_each_amount_the_quota_that_leaves_least_decides() -> None:
    full = Quota(memory_mib=10_000, gpus=2, used=Footprint(1, 9_000, 70))
    small = Quota(memory_mib=2_000, cores=50, used=Footprint(0, 500, 10))
    assert quota_for(quota_class(Pod()), (full, small)) == Quota(
        memory_mib=10_000, cores=50, gpus=2, used=Footprint(1, 9_000, 10)
    )
    assert quota_for(quota_class(Pod()), ()) is None


def test_gpus_of_a_quota_with_scopes_hold_for_its_pods_however_they_are_written() -> None:
    _, fits = made_with(
        quota_json("low", 10**6, priority("In", "low"), hard={"requests.nvidia.com/gpu": "0"}),
        quota_json("none", 10**6, priority("DoesNotExist"), hard={"limits.nvidia.com/gpu": "0"}),
    )
    assert not fits(waiting(1, priority_class_name="low"))
    assert not fits(waiting(1))
    assert fits(waiting(1, priority_class_name="high"))


def test_a_quota_that_changes_its_scopes_counts_the_pods_it_holds_for_now() -> None:
    made, fits = made_with(quota_json("q", 3000, priority("In", "low")))
    made.apply_pod(bound("a", 2000, priority_class_name="low"))
    made.apply_pod(bound("b", 3000, gpu="G1", priority_class_name="high"))
    assert fits(waiting(1000, priority_class_name="low"))
    made.quotas.apply(quota(quota_json("q", 3000, priority("In", "high"))))
    assert not fits(waiting(1, priority_class_name="high"))
    assert fits(waiting(4000, priority_class_name="low"))
    made.quotas.apply(quota(quota_json("q", 6000)))
    assert not fits(waiting(1001))
    made.quotas.remove(quota(quota_json("q", 6000)))
    assert fits(waiting(6000))


def test_a_pod_that_gets_a_deadline_is_counted_elsewhere_from_then_on() -> None:
    made, fits = made_with(quota_json("q", 3000, scopes=("NotTerminating",)))
    made.apply_pod(bound("a", 2500))
    assert not fits(waiting(1000))
    made.apply_pod(bound("a", 2500, active_deadline_seconds=60))
    assert fits(waiting(1000))


@pytest.mark.parametrize("end", ["Succeeded", "Failed"])
def test_a_pod_that_ended_counts_under_no_quota(end: str) -> None:
    made, fits = made_with(quota_json("low", 1000, priority("In", "low")))
    made.apply_pod(bound("a", 1000, priority_class_name="low"))
    assert not fits(waiting(1000, priority_class_name="low"))
    made.apply_pod(bound("a", 1000, phase=end, priority_class_name="low"))
    assert fits(waiting(1000, priority_class_name="low"))


def test_evicting_frees_only_the_quotas_that_count_the_victim() -> None:
    made, _ = made_with(quota_json("low", 2000, priority("In", "low")))
    made.apply_pod(bound("low", 1000, priority_class_name="low"))
    made.apply_pod(bound("high", 1000, gpu="G1", priority_class_name="high"))
    request = read_request(waiting(2000, priority_class_name="low"), RequestSettings())
    assert request is not None
    assert decide_without(made, request, priority=9, node="n", gone=["uid-low"]).node == "n"
    assert decide_without(made, request, priority=9, node="n", gone=["uid-high"]).node is None


@pytest.mark.parametrize(
    ("scope", "said"),
    [
        ({"scopeName": "Weekdays", "operator": "Exists"}, "scope 'Weekdays': expected PriorityClass"),
        (priority("Gt", "low"), "scope PriorityClass: operator 'Gt'"),
        (priority("In"), "scope PriorityClass: operator In needs values"),
    ],
)
def test_a_quota_whose_scope_cannot_be_read_holds_for_all_pods_and_is_a_problem(scope: Json, said: str) -> None:
    made, fits = made_with(quota_json("q", 1000, scope))
    assert not fits(waiting(1001, priority_class_name="high"))
    (problem,) = made.problems().values()
    assert problem.startswith(said)
    made.quotas.apply(quota(quota_json("q", 1000, scope, priority("In", "low"))))
    assert fits(waiting(1001, priority_class_name="high")), "the other scope of the quota can be read"


def test_a_snapshot_that_was_written_down_tells_the_same_pods_apart() -> None:
    made, _ = made_with(quota_json("low", 1000, priority("In", "low"), scopes=("BestEffort",)))
    written = encode_snapshot(made.snapshot())
    assert read_snapshot(json.loads(written), "file") == made.snapshot()
    with pytest.raises(StateError, match="file: scope 'Fullmoon': expected PriorityClass, "):
        read_snapshot(json.loads(written.replace(b"BestEffort", b"Fullmoon")), "file")


SCOPES = st.one_of(
    st.sampled_from(["NotTerminating", "Terminating", "BestEffort", "NotBestEffort", "CrossNamespacePodAffinity"]).map(
        lambda name: {"scopeName": name, "operator": "Exists"}
    ),
    st.builds(
        lambda operator, values: priority(operator, *values),
        st.sampled_from(["In", "NotIn"]),
        st.lists(st.sampled_from(["low", "high"]), min_size=1, unique=True),
    ),
    st.sampled_from(["Exists", "DoesNotExist"]).map(priority),
)
AFFINITY = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"namespaces": ["other"]}]}}
SPECS = st.fixed_dictionaries(
    {},
    optional={
        "priorityClassName": st.sampled_from(["low", "high", "other"]),
        "activeDeadlineSeconds": st.just(60),
        "affinity": st.just(AFFINITY),
        "resources": st.sampled_from([{"requests": {"cpu": "1"}}, {"limits": {"memory": "0"}}]),
    },
)
NAMES = st.sampled_from(["a", "b", "c"])
EVENTS = st.one_of(
    st.tuples(st.just("pod"), st.builds(bound, NAMES, st.sampled_from([1000, 2500])).map(as_json)),
    st.tuples(st.just("end"), NAMES),
    st.tuples(st.just("gone"), NAMES),
    st.tuples(
        st.just("quota"),
        st.builds(lambda name, scopes: quota_json(name, 10**5, *scopes), NAMES, st.lists(SCOPES, max_size=2)),
    ),
    st.tuples(st.just("no quota"), NAMES),
)


@given(st.lists(st.tuples(EVENTS, SPECS), max_size=15), SPECS)
def test_each_quota_counts_what_a_naive_recount_finds(
    history: list[tuple[tuple[str, Any], Json]], asking: Json
) -> None:
    made = ledger()
    pods: dict[str, Json] = {}
    quotas: dict[str, Json] = {}
    for (event, fact), spec in history:
        match event:
            case "pod":
                name = fact["metadata"]["name"]
                pods[name] = fact | {"spec": fact["spec"] | spec}
                made.apply_pod(msgspec.convert(pods[name], Pod))
            case "end" if fact in pods:
                pods[fact] = pods[fact] | {"status": {"phase": "Succeeded"}}
                made.apply_pod(msgspec.convert(pods[fact], Pod))
            case "gone":
                pods.pop(fact, None)
                made.remove_pod(f"uid-{fact}")
            case "quota":
                quotas[fact["metadata"]["name"]] = fact
                made.quotas.apply(quota(fact))
            case "no quota" if fact in quotas:
                made.quotas.remove(quota(quotas.pop(fact)))
        used = [each.used for each in made.snapshot().quotas.get("default", ())]
        sums = [counted(each, pods.values()) for each in quotas.values()]
        assert [(each.replicas, each.memory_mib, each.cores) for each in used] == sums
        wanted = as_json(waiting(1))
        wanted["spec"] |= asking
        mine = [memory for each, (_, memory, _) in zip(quotas.values(), sums, strict=True) if counts(each, wanted)]
        decides = made.quotas.left("default", quota_class(msgspec.convert(wanted, Pod)))
        assert (None if decides is None else decides.used.memory_mib) == max(mine, default=None)
