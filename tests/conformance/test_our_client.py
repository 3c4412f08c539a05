"""What both halves rely on of an API server: the embedded one and the real one answer alike."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from datetime import UTC, datetime
from typing import TypeVar

import pytest

from proto.kubernetes.client import ApiServer, Bookmark, Opened
from proto.kubernetes.errors import Conflict, Gone, Invalid, NotFound
from proto.kubernetes.events import EventRecorder
from proto.kubernetes.objects import (
    EVENTS,
    LEASES,
    NODES,
    PODS,
    SELF_SUBJECT_ACCESS_REVIEWS,
    AccessReviewSpec,
    Binding,
    Container,
    Lease,
    LeaseSpec,
    Notice,
    ObjectMeta,
    ObjectReference,
    Pod,
    PodSpec,
    ResourceAttributes,
    Resources,
    SelfSubjectAccessReview,
)
from proto.kubernetes.reflector import Interrupted, ObjectApplied, ObjectRemoved, ReflectorPace, Replaced, reflect
from tests.cluster.peers import Peer

NOW = datetime(2030, 1, 1, tzinfo=UTC)
T = TypeVar("T")


def a_pod(name: str, **annotations: str) -> Pod:
    container = Container(name="main", image="example.com/work:1", resources=Resources(limits={"nvidia.com/gpu": 1}))
    return Pod(
        metadata=ObjectMeta(name=name, annotations=annotations),
        spec=PodSpec(containers=[container], scheduler_name="nobody"),
    )


def a_binding(pod: Pod, node: str, *, uid: str = "") -> Binding:
    metadata = ObjectMeta(
        name=pod.metadata.name,
        namespace=pod.metadata.namespace,
        uid=uid or pod.metadata.uid,
        annotations={"hami.io/vgpu-node": node},
        labels={"hami.io/vgpu-node": node},
    )
    return Binding(metadata=metadata, target=ObjectReference(api_version="v1", kind="Node", name=node))


async def soon(changes: AsyncGenerator[T, None]) -> T:
    async with asyncio.timeout(30):
        return await anext(changes)


async def test_pages_show_one_moment_and_make_one_list(api: ApiServer, namespace: str) -> None:
    for number in range(5):
        await api.create(PODS, a_pod(f"p{number}"), namespace=namespace)
    first = await api.list_page(PODS, namespace=namespace, limit=2)
    await api.create(PODS, a_pod("p4-later"), namespace=namespace)
    second = await api.list_page(PODS, namespace=namespace, limit=10, continue_=first.metadata.continue_)
    assert [pod.metadata.name for pod in first.items] == ["p0", "p1"]
    assert [pod.metadata.name for pod in second.items] == ["p2", "p3", "p4"]
    assert first.metadata.resource_version == second.metadata.resource_version
    assert second.metadata.continue_ == ""
    async with aclosing(reflect(api, PODS, namespace=namespace, pace=ReflectorPace(page_size=2))) as changes:
        listed = await soon(changes)
    assert isinstance(listed, Replaced)
    assert [pod.metadata.name for pod in listed.objects] == ["p0", "p1", "p2", "p3", "p4", "p4-later"]


async def test_a_continued_list_from_before_a_compaction_is_answered_410(
    peer: Peer, api: ApiServer, namespace: str
) -> None:
    for number in range(3):
        await api.create(PODS, a_pod(f"p{number}"), namespace=namespace)
    first = await api.list_page(PODS, namespace=namespace, limit=1)
    await peer.stop()
    await peer.start()
    await api.create(PODS, a_pod("later"), namespace=namespace)
    await peer.compact()
    with pytest.raises(Gone) as refusal:
        await api.list_page(PODS, namespace=namespace, limit=1, continue_=first.metadata.continue_)
    assert refusal.value.reason == "Expired"


async def test_a_reflector_sees_pods_come_change_and_go(api: ApiServer, namespace: str) -> None:
    async with aclosing(reflect(api, PODS, namespace=namespace)) as changes:
        assert await soon(changes) == Replaced(())
        created = await api.create(PODS, a_pod("p"), namespace=namespace)
        assert await soon(changes) == ObjectApplied(created)
        patched = await api.patch(PODS, "p", {"metadata": {"annotations": {"a": "b"}}}, namespace=namespace)
        assert await soon(changes) == ObjectApplied(patched)
        assert int(patched.metadata.resource_version) > int(created.metadata.resource_version)


async def test_a_pod_is_marked_as_being_deleted_before_it_is_gone(peer: Peer, api: ApiServer, namespace: str) -> None:
    created = await api.create(PODS, a_pod("p"), namespace=namespace)
    async with aclosing(reflect(api, PODS, namespace=namespace)) as changes:
        assert isinstance(await soon(changes), Replaced)
        status, _ = await peer.send("DELETE", f"/api/v1/namespaces/{namespace}/pods/p")
        assert status == 200
        marked, gone = await soon(changes), await soon(changes)
    assert isinstance(marked, ObjectApplied)
    assert marked.object.metadata.deletion_timestamp
    assert isinstance(gone, ObjectRemoved)
    versions = [each.metadata.resource_version for each in (created, marked.object, gone.object)]
    assert versions == sorted(set(versions), key=int)


@pytest.mark.parametrize("anything_written", [True, False])
async def test_a_watch_is_told_that_nothing_happened_only_if_something_happened_elsewhere(
    peer: Peer, api: ApiServer, namespace: str, anything_written: bool
) -> None:
    elsewhere = await peer.namespace(f"{namespace}-elsewhere")
    created = await api.create(PODS, a_pod("p"), namespace=namespace)
    position = created.metadata.resource_version

    async def watched() -> list[object]:
        watch = api.watch(
            PODS, namespace=namespace, resource_version=position, timeout_seconds=peer.bookmarked_watch_seconds
        )
        async with aclosing(watch) as events:
            return [event async for event in events]

    watching = asyncio.create_task(watched())
    # Again and again: the real server tells only of what was written once it had begun to watch.
    written: list[Pod] = []
    while anything_written and not watching.done():
        written.append(await api.create(PODS, a_pod(f"p{len(written)}"), namespace=elsewhere))
        await asyncio.sleep(0.3)
    if anything_written:
        told = [int(each.resource_version) for each in await watching if isinstance(each, Bookmark)]
        assert told[-1] >= int(written[0].metadata.resource_version)
    else:
        assert await watching == [Opened()]


async def test_a_position_from_before_a_restart_and_a_compaction_is_listed_again(
    peer: Peer, api: ApiServer, namespace: str
) -> None:
    before = await api.list_page(PODS, namespace=namespace)
    for number in range(3):
        await api.create(PODS, a_pod(f"p{number}"), namespace=namespace)
    await peer.stop()
    await peer.compact()
    await peer.start()
    watch = api.watch(PODS, namespace=namespace, resource_version=before.metadata.resource_version)
    async with aclosing(watch) as events:
        assert await soon(events) == Opened()
        with pytest.raises(Gone) as refusal:
            await soon(events)
    assert refusal.value.reason == "Expired"


async def test_a_reflector_outlives_a_restart_of_the_api_server(peer: Peer, api: ApiServer, namespace: str) -> None:
    seen: dict[str, Pod] = {}
    interruptions = 0
    await api.create(PODS, a_pod("before"), namespace=namespace)
    async with aclosing(reflect(api, PODS, namespace=namespace)) as changes:
        assert isinstance(await soon(changes), Replaced)
        await peer.stop()
        while not interruptions:
            interruptions += isinstance(await soon(changes), Interrupted)
        await peer.start()
        await api.create(PODS, a_pod("after"), namespace=namespace)
        while "after" not in seen:
            match await soon(changes):
                case Replaced(objects):
                    seen = {pod.metadata.name: pod for pod in objects}
                case ObjectApplied(pod):
                    seen[pod.metadata.name] = pod


async def test_a_patch_on_a_stale_version_is_a_conflict(api: ApiServer, namespace: str) -> None:
    created = await api.create(PODS, a_pod("p"), namespace=namespace)
    await api.patch(PODS, "p", {"metadata": {"annotations": {"a": "1"}}}, namespace=namespace)
    stale = {"metadata": {"annotations": {"a": "2"}, "resourceVersion": created.metadata.resource_version}}
    with pytest.raises(Conflict) as refusal:
        await api.patch(PODS, "p", stale, namespace=namespace)
    assert refusal.value.reason == "Conflict"


async def test_a_patch_meant_for_an_earlier_pod_of_the_name_is_invalid(api: ApiServer, namespace: str) -> None:
    created = await api.create(PODS, a_pod("p"), namespace=namespace)
    mine = {"metadata": {"annotations": {"a": "1"}, "uid": created.metadata.uid}}
    assert (await api.patch(PODS, "p", mine, namespace=namespace)).metadata.annotations == {"a": "1"}
    other = {"metadata": {"annotations": {"a": "2"}, "uid": "11111111-2222-4333-8444-555555555555"}}
    with pytest.raises(Invalid) as refusal:
        await api.patch(PODS, "p", other, namespace=namespace)
    assert refusal.value.reason == "Invalid"
    assert "metadata.uid: Invalid value" in str(refusal.value)
    with pytest.raises(NotFound, match="404 NotFound"):
        await api.patch(PODS, "nobody", mine, namespace=namespace)


async def test_a_patch_that_changes_nothing_makes_no_version_and_null_removes(api: ApiServer, namespace: str) -> None:
    created = await api.create(PODS, a_pod("p", a="1", b="2"), namespace=namespace)
    same = await api.patch(PODS, "p", {"metadata": {"annotations": {"a": "1"}}}, namespace=namespace)
    assert same.metadata.resource_version == created.metadata.resource_version
    less = await api.patch(PODS, "p", {"metadata": {"annotations": {"a": None}}}, namespace=namespace)
    assert less.metadata.annotations == {"b": "2"}


async def test_a_binding_sets_node_annotations_and_in_newer_releases_labels_in_one_write(
    peer: Peer, api: ApiServer, namespace: str
) -> None:
    pod = await api.create(PODS, a_pod("p", mine="kept"), namespace=namespace)
    async with aclosing(reflect(api, PODS, namespace=namespace)) as changes:
        assert isinstance(await soon(changes), Replaced)
        await api.bind(a_binding(pod, "some-node"))
        change = await soon(changes)
    assert isinstance(change, ObjectApplied)
    bound = change.object
    assert bound.spec.node_name == "some-node"
    assert bound.metadata.annotations == {"mine": "kept", "hami.io/vgpu-node": "some-node"}
    assert bound.metadata.labels == ({"hami.io/vgpu-node": "some-node"} if await peer.minor() >= 35 else {})
    assert [(each.type, each.status) for each in bound.status.conditions] == [("PodScheduled", "True")]


@pytest.mark.parametrize("case", ["bound already", "another uid", "nobody"])
async def test_a_binding_that_comes_too_late_is_refused(api: ApiServer, namespace: str, case: str) -> None:
    pod = await api.create(PODS, a_pod("p"), namespace=namespace)
    binding = a_binding(pod, "some-node")
    match case:
        case "bound already":
            await api.bind(binding)
        case "another uid":
            binding.metadata.uid = "11111111-2222-4333-8444-555555555555"
        case "nobody":
            binding.metadata.name = "nobody"
    with pytest.raises(NotFound if case == "nobody" else Conflict):
        await api.bind(binding)


async def test_a_pods_node_cannot_be_patched(api: ApiServer, namespace: str) -> None:
    await api.create(PODS, a_pod("p"), namespace=namespace)
    with pytest.raises(Invalid) as refusal:
        await api.patch(PODS, "p", {"spec": {"nodeName": "n"}}, namespace=namespace)
    assert refusal.value.reason == "Invalid"


async def test_a_pod_enters_the_watch_of_its_node_when_it_is_bound(api: ApiServer, namespace: str) -> None:
    pod = await api.create(PODS, a_pod("p"), namespace=namespace)
    selector = "spec.nodeName=its-node"
    async with aclosing(reflect(api, PODS, namespace=namespace, field_selector=selector)) as changes:
        assert await soon(changes) == Replaced(())
        await api.bind(a_binding(pod, "its-node"))
        change = await soon(changes)
    assert isinstance(change, ObjectApplied)
    assert change.object.metadata.uid == pod.metadata.uid


async def test_a_node_is_followed_by_its_name_and_its_status_is_written_apart(
    peer: Peer, api: ApiServer, namespace: str
) -> None:
    name = f"node-of-{namespace}"
    await peer.create("/api/v1/nodes", {"metadata": {"name": name}, "status": {"capacity": {"cpu": "8"}}})
    async with aclosing(reflect(api, NODES, field_selector=f"metadata.name={name}")) as changes:
        listed = await soon(changes)
        assert isinstance(listed, Replaced)
        assert [node.status.capacity for node in listed.objects] == [{"cpu": "8"}]
        ignored = await api.patch(NODES, name, {"status": {"capacity": {"cpu": "9"}}})
        assert ignored.status.capacity == {"cpu": "8"}
        written = await api.patch(NODES, name, {"status": {"capacity": {"cpu": "9"}}}, subresource="status")
        assert written.status.capacity == {"cpu": "9"}
        assert await soon(changes) == ObjectApplied(written)


async def test_annotations_of_more_than_256_kib_are_refused(api: ApiServer, namespace: str) -> None:
    await api.create(PODS, a_pod("p"), namespace=namespace)
    with pytest.raises(Invalid) as refusal:
        await api.patch(PODS, "p", {"metadata": {"annotations": {"a": "x" * 262144}}}, namespace=namespace)
    assert refusal.value.reason == "Invalid"


async def test_events_are_accepted_and_found_by_the_object_they_are_about(api: ApiServer, namespace: str) -> None:
    pod = await api.create(PODS, a_pod("p"), namespace=namespace)
    subject = ObjectReference(api_version="v1", kind="Pod", name="p", namespace=namespace, uid=pod.metadata.uid)
    recorder = EventRecorder(api=api, component="topogpu-scheduler", now=lambda: NOW, monotonic=lambda: 0.0)
    recorder.record(subject, Notice(reason="FilteringFailed", message="no node, " * 200))
    await recorder.flush(10)
    page = await api.list_page(EVENTS, namespace=namespace, field_selector=f"involvedObject.uid={pod.metadata.uid}")
    assert [(event.reason, event.type, event.count, len(event.message)) for event in page.items] == [
        ("FilteringFailed", "Warning", 1, 1024)
    ]


async def test_a_lease_is_followed_to_the_microsecond(api: ApiServer, namespace: str) -> None:
    spec = LeaseSpec(holder_identity="a_1", lease_duration_seconds=15, renew_time="2030-01-01T00:00:00.000000Z")
    selector = "metadata.name=scheduler"
    async with aclosing(reflect(api, LEASES, namespace=namespace, field_selector=selector)) as changes:
        assert await soon(changes) == Replaced(())
        lease = await api.create(LEASES, Lease(metadata=ObjectMeta(name="scheduler"), spec=spec), namespace=namespace)
        assert lease.spec == spec
        assert await soon(changes) == ObjectApplied(lease)
        renewed = {"spec": {"renewTime": "2030-01-01T00:00:02.123456Z"}}
        again = await api.patch(LEASES, "scheduler", renewed, namespace=namespace)
        assert again.spec.renew_time == "2030-01-01T00:00:02.123456Z"
        assert await soon(changes) == ObjectApplied(again)


async def test_whoever_may_do_something_is_told_so(api: ApiServer) -> None:
    asked = SelfSubjectAccessReview(
        spec=AccessReviewSpec(resource_attributes=ResourceAttributes(verb="patch", resource="nodes"))
    )
    assert (await api.create(SELF_SUBJECT_ACCESS_REVIEWS, asked)).status.allowed
