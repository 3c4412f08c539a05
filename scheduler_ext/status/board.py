"""The page's values as they are now, with a number for each change, so that each reader gets only what it lacks.

Looks enter, and messages of an event stream leave. No clock, no connection. A message is a JSON object:

- `full`: forget everything known before. Further messages with the rest of the nodes follow.
- `at`: the time of the poll, in seconds since 1970.
- `head`: the totals, see `_head`.
- `nodes`: the nodes that changed, by name (`view.Node`), or null for one that is gone.
- `use`: who really uses the GPUs of the nodes, where that changed notably (`shown_use.ShownUse`), or null where it is
  no longer known.
- `waiting`: groups of pods that wait (`waiting.ShownGroup`), if they changed.
- `happened`: what happened to pods since (`view.Happened`), oldest first.
- `teams`: the namespaces that have held GPUs: pods, GPUs and MiB that they hold, and GPU-hours since the extender
  began to look. A part of a GPU counts as the larger of its parts of memory and cores.
- `history`: samples since, oldest first: time, memory held and total, cores held and total, idle GPUs, waiting pods.

Its `id` names the process and the number of the last change in it. A reader that comes back with it gets the rest.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import takewhile
from typing import Annotated, TypeVar

import msgspec

from proto.daemon_usage import NodeUse
from proto.decoding import decoded
from proto.devices import DeviceUUID
from scheduler_ext.capacity.unused import Unused, unused
from scheduler_ext.status.shown_use import ShownUse, is_news, shown_use
from scheduler_ext.status.teams import Teams
from scheduler_ext.status.view import Poll, ShownNode, happened_of, held_of, node_of

T = TypeVar("T")

MOST_HAPPENED = 200
SAMPLE_SECONDS = 10.0
CLOCK_SET_SECONDS = 1.0
"""The most seconds between two clocks, beyond what passes while both are read, before one counts as set."""
SAMPLES = 360
"""One hour of samples."""
MOST_GONE = 1_000
"""Nodes that went and are remembered, for readers that still show them."""
NODES_AT_ONCE = 100
"""Nodes of one message: the first ones are painted while the others are on their way."""

_encode = msgspec.json.Encoder().encode


class Board:
    """The values of the page, for its readers. Ids contain `process`, so that an id of another process is not
    understood.
    """

    def __init__(self, process: str) -> None:
        self._process = process
        self.number = 0
        """The number of the last change."""
        self._nodes: dict[str, tuple[int, bytes]] = {}
        """The value of each node and the number of its last change, in the order of these numbers. A node that is gone
        is `null`.
        """
        self._gone = 0
        self._complete_from = 0
        """Readers that saw less may show a node that is gone and forgotten here."""
        self._broken: dict[str, str] = {}
        self._sums: dict[str, Unused] = {}
        self._indices: dict[str, Mapping[DeviceUUID, int]] = {}
        self._uses: dict[str, tuple[int, bytes]] = {}
        """The use of each node's GPUs, in the same order; `null` where it is no longer known."""
        self._used: dict[str, tuple[NodeUse, ShownUse]] = {}
        """The last reading of each node, and the last one that was news."""
        self._head = (-1, b"{}")
        self._teams = (0, b"{}")
        self._by_namespace = Teams()
        self._waiting = (0, b"[]")
        self._happened: deque[tuple[int, bytes]] = deque(maxlen=MOST_HAPPENED)
        self._history: deque[tuple[int, bytes]] = deque(maxlen=SAMPLES)
        self._recalled_until = -1.0
        self._sampled_at = 0.0
        self._at = 0.0
        self._zero = 0.0
        """The time at which the monotonic clock was 0, in seconds since 1970."""

    @property
    def id(self) -> str:
        """Returns the id of a reader that has seen everything."""
        return f"{self._process}-{self.number}"

    def apply(self, poll: Poll) -> bool:
        """Records a poll. Returns whether anything is new."""
        before, self.number, self._at = self.number, self.number + 1, poll.at
        zero = self._zero_of(poll)
        self._by_namespace.pass_until(poll.monotonic, poll.at)
        changed = self._apply_nodes(poll)
        if poll.nodes or poll.gone or changed:
            self._by_namespace.add_up()
        changed |= self._apply_uses(poll)
        changed |= self._put_if_new("_teams", _encode(self._by_namespace.shown()))
        changed |= self._put_if_new("_waiting", _encode([each.shown for each in poll.waiting]))
        changed |= self._put_if_new("_head", _encode(self._totals(poll)))
        for each in poll.happened:
            entry = happened_of(each, self._indices.get(each.node, {}), seconds_since_1970=zero)
            self._happened.append((self.number, _encode(entry)))
        # The clock may be set back. Time since the start is not.
        if not self._history or poll.monotonic - self._sampled_at >= SAMPLE_SECONDS:
            self._sampled_at, changed = poll.monotonic, True
            self._history.append((self.number, self._sample(poll)))
        if not (changed or poll.happened):
            self.number = before
            return False
        return True

    def _zero_of(self, poll: Poll) -> float:
        """Returns the same time until the clock is set: otherwise the times of pods would differ a little in
        each poll.
        """
        zero = poll.at - poll.monotonic
        if abs(zero - self._zero) > CLOCK_SET_SECONDS:
            self._zero = zero
        return self._zero

    def remembered(self) -> bytes:
        """Returns the history and the GPU-hours, for `recall` of a later process."""
        samples = b",".join(sample for _, sample in self._history)
        return b'{"history":[' + samples + b'],"gpu_hours":' + _encode(self._by_namespace.remembered()) + b"}"

    def recall(self, written: bytes) -> None:
        """Goes on with what was remembered, unless that is older than what is known already. Nothing is taken of what
        cannot be read.
        """
        try:
            found = decoded(written, _Remembered)
        except msgspec.DecodeError:
            return
        until = found.history[-1][0] if found.history else 0.0
        if until <= self._recalled_until:
            return
        self._recalled_until = until
        # Readers have some of it already, so all of them get everything.
        self.number += 1
        self._complete_from = self.number
        before = [(self.number, _encode(sample)) for sample in found.history]
        # Another leader may have seen the same time as this process.
        since = [(self.number, sample) for _, sample in self._history if msgspec.json.decode(sample)[0] > until]
        self._history = deque([*before, *since], maxlen=SAMPLES)
        self._by_namespace.recall(found.gpu_hours, until)

    def messages(self, seen: str) -> Iterator[bytes]:
        """Returns what a reader lacks that has `seen` this id; everything for a reader that saw nothing. The messages
        are of this moment, even if they are read later.
        """
        number = self._number_in(seen)
        full = number is None
        after = -1 if number is None else number
        nodes = _later(reversed(self._nodes.items()), after, lambda item: item[1][0])
        if full:
            nodes = [item for item in nodes if item[1][1] != _GONE]
        first, rest = nodes[:NODES_AT_ONCE], nodes[NODES_AT_ONCE:]
        uses = _later(reversed(self._uses.items()), after, lambda item: item[1][0])
        fields = [b'"at":' + _encode(self._at), b'"nodes":' + _object(first)]
        if full:
            fields.insert(0, b'"full":true')
        for name, (changed, value) in (("head", self._head), ("teams", self._teams), ("waiting", self._waiting)):
            if changed > after:
                fields.append(_encode(name) + b":" + value)
        for name, entries in (("happened", self._happened), ("history", self._history)):
            later = _later(reversed(entries), after, lambda entry: entry[0])
            if later:
                fields.append(_encode(name) + b":[" + b",".join(entry[1] for entry in later) + b"]")
        more = [*_pieces(b'{"nodes":', rest), *_pieces(b'{"use":', uses)]
        return self._written(b"{" + b",".join(fields) + b"}", more, self.id)

    def beat(self, age: float) -> bytes:
        """Returns a message without news: the reader learns that the connection lives, and the seconds since the last
        look.
        """
        return _message(_encode({"age": round(age, 1)}))

    @staticmethod
    def _written(first: bytes, more: "Sequence[_Piece]", last_id: str) -> Iterator[bytes]:
        yield _message(first, "" if more else last_id)
        for at, (opening, piece) in enumerate(more, 1):
            yield _message(opening + _object(piece) + b"}", last_id if at == len(more) else "")

    def _number_in(self, seen: str) -> int | None:
        process, _, number = seen.rpartition("-")
        if process != self._process or not (number.isascii() and number.isdigit()) or len(number) > 18:
            return None
        return int(number) if self._complete_from <= int(number) <= self.number else None

    # Nodes

    def _apply_nodes(self, poll: Poll) -> bool:
        changed = False
        for name, found in poll.nodes.items():
            self._by_namespace.held[name] = held_of(found)
            changed |= self._put(name, node_of(found), unused(found.usage))
        for name, problem in poll.broken.items():
            if self._broken.get(name) != problem:
                self._by_namespace.held.pop(name, None)
                changed |= self._put(name, ShownNode(problem=problem), Unused())
        mended = self._broken.keys() - poll.broken.keys() - poll.nodes.keys()
        for name in {*poll.gone, *mended} - poll.broken.keys():
            changed |= self._drop(name)
        self._broken = dict(poll.broken)
        if self._gone > MOST_GONE:
            self._nodes = {name: each for name, each in self._nodes.items() if each[1] != _GONE}
            self._gone, self._complete_from = 0, self.number
        return changed

    def _put(self, name: str, node: ShownNode, sums: Unused) -> bool:
        self._sums[name] = sums
        self._indices[name] = {DeviceUUID(gpu.uuid): gpu.index for gpu in node.gpus}
        return self._note(name, _encode(node))

    def _drop(self, name: str) -> bool:
        for kept in (self._sums, self._indices, self._by_namespace.held):
            kept.pop(name, None)
        return name in self._nodes and self._note(name, _GONE)

    def _note(self, name: str, value: bytes) -> bool:
        _, before = self._nodes.get(name, (0, b""))
        if before == value:
            return False
        self._nodes.pop(name, None)
        self._nodes[name] = self.number, value
        self._gone += (value == _GONE) - (before == _GONE)
        return True

    def _apply_uses(self, poll: Poll) -> bool:
        """Records the readings that are news. Those of nodes that are not registered are left out."""
        changed = False
        found = {name: use for name, use in poll.uses.nodes.items() if name in self._indices}
        for name, use in found.items():
            read, before = self._used.get(name, (None, None))
            if use is read:
                continue
            now = shown_use(use, self._indices[name], poll.at)
            news = before is None or is_news(before, now)
            self._used[name] = use, now if news or before is None else before
            if news:
                changed |= self._put_use(name, _encode(now))
        for name in self._used.keys() - found.keys():
            del self._used[name]
            if name in self._indices:
                changed |= self._put_use(name, _GONE)
            else:  # readers forget it with the node
                self._uses.pop(name, None)
        return changed

    def _put_use(self, name: str, value: bytes) -> bool:
        self._uses.pop(name, None)
        self._uses[name] = self.number, value
        return True

    def _put_if_new(self, part: str, value: bytes) -> bool:
        if getattr(self, part)[1] == value:
            return False
        setattr(self, part, (self.number, value))
        return True

    # Totals

    def _totals(self, poll: Poll) -> object:
        sums = self._sum()
        return {
            **asdict(poll.standing),
            "nodes": len(self._sums),
            "gpus": sums.gpus,
            "idle": sums.idle_gpus,
            "lost": sums.not_serving_gpus,
            "memory": (sums.held_memory_mib, sums.memory_mib),
            "cores": (sums.held_cores, sums.cores),
            "shared_memory": sums.unused_memory_mib,
            "stranded_memory": sums.stranded_memory_mib,
            "waiting": poll.waiting_total,
            "fits": poll.fits,
            "use_problem": poll.uses.problem,
        }

    def _sum(self) -> Unused:
        return Unused(*map(sum, zip(*self._sums.values(), strict=True))) if self._sums else Unused()

    def _sample(self, poll: Poll) -> bytes:
        sums = self._sum()
        held = (sums.held_memory_mib, sums.memory_mib, sums.held_cores, sums.cores)
        return _encode((round(poll.at, 1), *held, sums.idle_gpus, poll.waiting_total))


_Amount = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
_At = Annotated[float, msgspec.Meta(ge=0, le=1e11)]
"""Seconds since 1970, of which a browser can make a date."""


class _Remembered(msgspec.Struct):
    history: list[tuple[_At, _Amount, _Amount, _Amount, _Amount, _Amount, _Amount]]
    gpu_hours: dict[str, Annotated[float, msgspec.Meta(ge=0, le=1e12)]]


_GONE = b"null"


def _later(newest_first: Iterable[T], number: int, number_of: Callable[[T], int]) -> list[T]:
    """Returns the entries after that number, oldest first."""
    return list(takewhile(lambda each: number_of(each) > number, newest_first))[::-1]


_Piece = tuple[bytes, Sequence[tuple[str, tuple[int, bytes]]]]
"""The beginning of a message, and what follows it."""


def _pieces(opening: bytes, values: Sequence[tuple[str, tuple[int, bytes]]]) -> Sequence[_Piece]:
    return [(opening, values[at : at + NODES_AT_ONCE]) for at in range(0, len(values), NODES_AT_ONCE)]


def _object(nodes: Sequence[tuple[str, tuple[int, bytes]]]) -> bytes:
    return b"{" + b",".join(_encode(name) + b":" + value for name, (_, value) in nodes) + b"}"


def _message(value: bytes, last_id: str = "") -> bytes:
    head = f"id: {last_id}\n".encode() if last_id else b""
    return head + b"data: " + value + b"\n\n"
