"""What a reader is sent: all at first, then only what changed."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from proto.kubernetes.objects import Pod
from scheduler_ext.cluster.pod_index import PodName
from scheduler_ext.requests import RequestSettings
from scheduler_ext.status.board import MOST_GONE, NODES_AT_ONCE, SAMPLES, Board
from scheduler_ext.status.history_object import LARGEST_BYTES
from scheduler_ext.status.teams import MOST_TEAMS
from scheduler_ext.status.view import Poll
from scheduler_ext.status.waiting import WaitingGroups
from tests.builders import pod_json
from tests.scheduler_ext.status.shown import MODELS, looked, node, running_pod

Json = dict[str, Any]


def read(messages: Iterable[bytes]) -> Iterator[tuple[str, Json]]:
    """Each message's id and its value."""
    for message in messages:
        lines = message.decode().removesuffix("\n\n").split("\n")
        fields = dict(line.split(": ", 1) for line in lines)
        yield fields.get("id", ""), json.loads(fields["data"])


class Reader:
    """As the page reads: it keeps what it was told, and the last id."""

    def __init__(self) -> None:
        self.seen = ""
        self.nodes: dict[str, Json] = {}
        self.head: Json = {}

    def catch_up(self, board: Board) -> list[Json]:
        values = []
        for identity, value in read(board.messages(self.seen)):
            values.append(value)
            if value.get("full"):
                self.nodes = {}
            for name, found in value.get("nodes", {}).items():
                if found is None:
                    self.nodes.pop(name, None)
                else:
                    self.nodes[name] = found
            self.head = value.get("head", self.head)
            self.seen = identity or self.seen
        return values


def poll(at: float, *bodies: Json, **others: Any) -> Poll:
    return Poll(monotonic=at, at=1_800_000_000 + at, nodes=looked(*bodies), **others)


def test_a_new_reader_gets_everything_and_then_only_what_changed() -> None:
    board, reader = Board("p"), Reader()
    board.apply(poll(0, node("a"), node("b")))
    (first,) = reader.catch_up(board)
    assert first["full"] is True
    assert set(first["nodes"]) == {"a", "b"}
    assert first["head"]["gpus"] == 16
    mib = MODELS[0][1]
    pod = running_pod("p", "b", (1, 2), memory_mib=mib, cores=100)
    board.apply(poll(1, node("b"), pod))
    (second,) = reader.catch_up(board)
    assert set(second) == {"at", "nodes", "head", "teams"}
    assert set(second["nodes"]) == {"b"}
    gpus = second["nodes"]["b"]["gpus"]
    assert [gpu["memory"][0] for gpu in gpus] == [0, mib, mib, 0, 0, 0, 0, 0]
    assert second["head"]["idle"] == 14


def test_a_look_without_news_is_not_sent() -> None:
    board = Board("p")
    assert board.apply(poll(0, node("a")))
    before = board.id
    assert not board.apply(poll(1, node("a")))
    assert board.id == before
    assert board.apply(replace(poll(11), nodes={}))  # the next sample of the history


def test_gpu_hours_of_namespaces_add_up_and_stay_once_their_pods_are_gone() -> None:
    board, reader = Board("p"), Reader()
    whole = MODELS[0][1]
    pods = [running_pod(f"p{gpu}", "a", (gpu,), memory_mib=whole, cores=50) for gpu in range(2)]
    held = looked(node("a"), *pods)
    names = {uid: PodName(namespace="ml", name=uid) for uid in held["a"].alone.held}
    board.apply(poll(0, node("a")))
    board.apply(replace(poll(1), nodes={"a": replace(held["a"], names=names)}))
    board.apply(poll(1 + 1800))
    (value,) = reader.catch_up(board)
    assert value["teams"] == {"ml": [2, 2.0, 2 * whole, 1.0]}
    board.apply(poll(1 + 3600, node("a")))
    assert reader.catch_up(board)[0]["teams"] == {"ml": [0, 0.0, 0, 2.0]}


def test_what_is_recalled_late_comes_before_what_was_seen_since_and_reaches_every_reader() -> None:
    earlier, board, reader = Board("p"), Board("q"), Reader()
    for number in range(SAMPLES):
        earlier.apply(poll(10 * number, node("a")))
    for number in range(2):
        board.apply(poll(10 * (SAMPLES + number), node("a")))
    reader.catch_up(board)
    board.recall(earlier.remembered())
    (value,) = reader.catch_up(board)
    assert value["full"] is True
    assert [sample[0] for sample in value["history"]] == [1_800_000_000 + 10 * at for at in range(2, SAMPLES + 2)]
    for nonsense in (
        b"",
        b"{}",
        b'{"history":[[1]],"gpu_hours":{}}',
        b'{"history":[[1e300,0,0,0,0,0,0]],"gpu_hours":{}}',
        b'{"history":[],"gpu_hours":{"a":"b"}}',
    ):
        before = board.id
        board.recall(nonsense)
        assert board.id == before


def test_hours_of_a_new_namespace_count_beside_a_full_list_of_those_that_ended() -> None:
    board = Board("p")
    hours = {f"old-{number}": 100.0 for number in range(MOST_TEAMS)}
    board.recall(msgspec.json.encode({"history": [], "gpu_hours": hours}))
    held = looked(node("a"), running_pod("p", "a", (0,), memory_mib=MODELS[0][1]))
    names = {uid: PodName(namespace="new", name="p") for uid in held["a"].alone.held}
    for at in range(0, 7201, 60):
        board.apply(replace(poll(at), nodes={"a": replace(held["a"], names=names)}))
    ((_, value),) = read(board.messages(""))
    assert value["teams"]["new"][3] == 2.0
    assert len(json.loads(board.remembered())["gpu_hours"]) == MOST_TEAMS


def test_the_longest_history_and_the_hours_of_the_longest_names_are_within_what_is_read_again() -> None:
    board = Board("p")
    hours = {f"{number:063}": 1e12 / (number + 3) for number in range(MOST_TEAMS)}
    samples = [[1e11 - number / 10, *[2**53] * 6] for number in reversed(range(SAMPLES))]
    board.recall(msgspec.json.encode({"history": samples, "gpu_hours": hours}))
    assert len(json.loads(board.remembered())["history"]) == SAMPLES
    assert len(board.remembered()) <= LARGEST_BYTES


def test_a_clock_that_is_set_back_stops_no_history_and_one_that_differs_a_little_is_no_news() -> None:
    board, reader = Board("p"), Reader()
    waits = msgspec.convert(pod_json("p", memory_mib=0), Pod)
    waits.metadata.creation_timestamp = "2027-01-15T07:59:55Z"
    waiting = WaitingGroups(RequestSettings()).of({"uid-p": waits}, lambda _: None)
    known = poll(0, node("a"), waiting=waiting, waiting_total=1)
    board.apply(known)
    reader.catch_up(board)
    assert not board.apply(replace(known, monotonic=1.0, at=known.at + 1.004))
    board.apply(replace(known, monotonic=20.0, at=known.at + 20 - 3600))
    (value,) = reader.catch_up(board)
    assert [sample[0] for sample in value["history"]] == [known.at + 20 - 3600]
    assert "waiting" not in value


def test_a_reader_of_another_process_or_with_a_nonsense_id_gets_everything() -> None:
    board = Board("p")
    board.apply(poll(0, node("a")))
    for seen in ("q-1", "p-", "p-2", "p--1", "p-99999999999999999999", "p-١", "-", "p-1.0"):
        assert next(value for _, value in read(board.messages(seen)))["full"] is True
    assert [value for _, value in read(board.messages("p-1"))] == [{"at": 1_800_000_000, "nodes": {}}]


def test_a_large_cluster_comes_in_pieces_and_only_the_last_completes_it() -> None:
    board = Board("p")
    many = 2 * NODES_AT_ONCE + 1
    board.apply(poll(0, *(node(f"n{number}", gpus=1) for number in range(many))))
    pieces = list(read(board.messages("")))
    assert [len(value["nodes"]) for _, value in pieces] == [NODES_AT_ONCE, NODES_AT_ONCE, 1]
    assert [identity for identity, _ in pieces] == ["", "", "p-1"]


def test_a_node_that_breaks_says_why_and_comes_back() -> None:
    board, reader = Board("p"), Reader()
    board.apply(poll(0, node("a")))
    reader.catch_up(board)
    board.apply(poll(1, gone=("a",), broken={"a": "the node is not ready"}))
    reader.catch_up(board)
    assert reader.nodes == {"a": {"problem": "the node is not ready"}}
    assert reader.head["gpus"] == 0
    board.apply(poll(2, node("a")))
    reader.catch_up(board)
    assert len(reader.nodes["a"]["gpus"]) == 8
    board.apply(poll(3, gone=("a",)))
    reader.catch_up(board)
    assert reader.nodes == {}


def test_what_is_remembered_is_bounded_however_many_nodes_come_and_go() -> None:
    board, late = Board("p"), Reader()
    board.apply(poll(0, node("stays", gpus=1)))
    late.catch_up(board)
    for number in range(MOST_GONE + 2):
        board.apply(replace(poll(20.0 * number), nodes=looked(node(f"n{number}", gpus=1)), gone=(f"n{number - 1}",)))
    assert len(board._nodes) <= MOST_GONE + 2
    assert len(board._history) == SAMPLES
    (first, *_) = late.catch_up(board)
    assert first["full"] is True  # it may show nodes whose end was forgotten
    assert set(late.nodes) == {"stays", f"n{MOST_GONE + 1}"}


STEPS = st.lists(
    st.tuples(
        st.dictionaries(st.sampled_from("abcd"), st.integers(0, 4), max_size=4),  # pods on each node that is there
        st.sets(st.sampled_from("abcd")),  # of the others: broken
        st.booleans(),  # whether the slower reader reads now
    ),
    max_size=12,
)


@given(STEPS)
def test_however_seldom_a_reader_reads_it_shows_what_a_new_one_is_told(steps: list[Any]) -> None:
    board, slow = Board("p"), Reader()
    there: set[str] = set()
    for number, (pods, broken, reads) in enumerate(steps):
        bodies = [node(name, gpus=1) for name in pods]
        bodies += [
            running_pod(f"p{each}", name, (0,), memory_mib=100) for name, count in pods.items() for each in range(count)
        ]
        reasons = dict.fromkeys(broken - pods.keys(), f"broken {number}")
        board.apply(poll(number, *bodies, gone=tuple(there - pods.keys()), broken=reasons))
        there = set(pods)
        if reads:
            slow.catch_up(board)
    slow.catch_up(board)
    new = Reader()
    new.catch_up(board)
    assert slow.nodes == new.nodes
    assert slow.head == new.head
