"""Whatever is lost, late or restarted, the GPUs of a Binding that may still be carried out are never free.

The binder is the extender's own; what it asks is answered here, in any order, by an API server that may carry a Binding
out after its answer was lost. Each node has one GPU of one slot.
"""

import asyncio
from collections.abc import Callable, Collection
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from proto.extender import BindingArgs
from proto.kubernetes.objects import Node, Pod
from scheduler_ext.cluster.events import Applied, Listed
from scheduler_ext.cluster.pod_index import PodName
from scheduler_ext.cluster.state import Cluster
from scheduler_ext.decide.index import NodeIndex
from scheduler_ext.settings import ServeSettings
from scheduler_ext.verbs.bind import Binder
from scheduler_ext.verbs.bind_actions import BindRun
from scheduler_ext.verbs.bind_decision import BindRefused, decide_read, decide_unread
from scheduler_ext.verbs.filter_decision import FilterDecision
from scheduler_ext.verbs.live_cluster import LiveCluster
from scheduler_ext.verbs.state_machine import (
    GIVING_UP,
    TABLE,
    BindAttempt,
    BindEffect,
    BindEvent,
    BindState,
    SentBinding,
)
from tests.binding_document import PAGE, document
from tests.builders import container, node, pod
from tests.scheduler_ext.gpus import device, request

NODES = ("a", "b")
PODS = ("p", "q", "r")
UNTIL = 1e9
SETTINGS = ServeSettings(bind_deadline_seconds=UNTIL)
_OVER = frozenset({BindState.BOUND, BindState.REFUSED, BindState.OVERTAKEN})


def test_the_document_shows_the_table() -> None:
    page = PAGE.read_text()
    assert page == document(page), "run make docs-binding"


def test_every_state_is_reached_and_left_and_every_attempt_can_end() -> None:
    arrows = {(state, to) for (state, _), row in TABLE.items() for to in _targets(row.to)}
    assert {to for _, to in arrows} == {*BindState} - {BindState.DECIDING, BindState.RECOVERING}
    assert {state for state, _ in arrows} == {*BindState} - _OVER
    ends = {*_OVER}
    while more := {state for state, to in arrows if to in ends} - ends:
        ends |= more
    assert ends == {*BindState}


def _targets(to: BindState | None) -> tuple[BindState, ...]:
    return (to,) if to is not None else tuple(state for state, _ in GIVING_UP.values())


@dataclass
class Question:
    run: BindRun | None
    attempt: BindAttempt
    effect: BindEffect
    answer: "asyncio.Future[BindEvent]"


class Played:
    """In place of `BindActions`: what is asked waits here until a rule answers it."""

    def __init__(self, at_api: Callable[[str], str | None]) -> None:
        self._at_api = at_api
        self.asked: list[Question] = []
        self.unlocked: set[int] = set()

    async def performed(self, run: BindRun, question: BindEffect) -> BindEvent:
        return await self._ask(Question(run, run.attempt, question, asyncio.get_running_loop().create_future()))

    async def settled(self, attempt: BindAttempt, under_way: Collection[PodName]) -> BindEvent:
        return await self._ask(
            Question(None, attempt, BindEffect.CHECK_LATER, asyncio.get_running_loop().create_future())
        )

    async def _ask(self, question: Question) -> BindEvent:
        self.asked.append(question)
        return await question.answer

    async def unlock(self, attempt: BindAttempt) -> None:
        self.unlocked.add(attempt.number)

    async def found(self, attempt: BindAttempt) -> Pod | None:
        bound = self._at_api(attempt.pod.name)
        return None if bound is None else asking(attempt.pod.name, bound)


def asking(name: str, bound: str = "") -> Pod:
    return pod(container(gpu=1), name=name, node_name=bound)


class Binds(RuleBasedStateMachine):
    """`bound` is where the API server has each pod; `in_flight` are Bindings that it may carry out yet."""

    @initialize()
    def begin(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.bound = dict.fromkeys(PODS, "")
        self.annotated: dict[str, Pod] = {}
        self.in_flight: list[tuple[str, str]] = []
        self.files: dict[str, SentBinding] = {}
        self.other_leads = False
        self.ended: dict[int, BindAttempt] = {}
        self.time = 0.0
        self.start()

    def start(self) -> None:
        self.live = LiveCluster(Cluster(), self.clock, lambda *_: None)
        self.state = self.live.state
        self.index = NodeIndex(self.state.ledger)
        self.live.apply(Listed(Node, [node(name, [device(0, replicas=1)]) for name in NODES]))
        self.list_pods()
        self.questions = Played(self.bound.get)
        files: Any = SimpleNamespace(
            left=tuple(self.files.values()),
            add=lambda sent: self.files.update({sent.uid: sent}),
            remove=lambda uid: self.files.pop(uid, None),
            clear=self.files.clear,
        )
        questions: Any = self.questions
        self.binder = Binder(
            cluster=self.live, actions=questions, settings=SETTINGS, lock_waited=lambda _: None, files=files
        )
        self.answers: dict[str, asyncio.Task[str]] = {}
        self.loop.run_until_complete(self.binder.recover())
        self.turn()

    def clock(self) -> float:
        """Time passes between any two looks at it: a lease may end between two steps of one bind."""
        self.time += 1.0
        return self.time

    def list_pods(self) -> None:
        self.live.apply(Listed(Pod, [self.at_api(name) for name, bound in self.bound.items() if bound is not None]))

    def at_api(self, name: str) -> Pod:
        return self.annotated.get(name) or asking(name)

    def turn(self) -> None:
        for _ in range(5):
            self.loop.run_until_complete(asyncio.sleep(0))
        self.answers = {name: task for name, task in self.answers.items() if not task.done()}

    def carry_out(self, name: str, to: str) -> None:
        """A Binding carries the decision, and finds the pod unbound or fails."""
        if self.bound.get(name) == "":
            self.bound[name] = to
            self.annotated[name] = pod(
                container(gpu=1),
                name=name,
                node_name=to,
                annotations={"hami.io/vgpu-devices-allocated": "G0,NVIDIA,1000,0:;"},
            )

    # kube-scheduler

    @precondition(lambda self: not self.other_leads and len(self.answers) < len(PODS))
    @rule(
        name=st.sampled_from(PODS),
        direct=st.sampled_from([None, None, *NODES]),
        lease_seconds=st.sampled_from([2.0, 3.0, 4.0, 5.0, UNTIL]),
    )
    def bind(self, name: str, direct: str | None, lease_seconds: float) -> None:
        """To the node that `/filter` offers, or to one that it did not."""
        if name in self.answers or self.bound.get(name) is None:
            return
        chosen, asked = direct, asking(name)
        if chosen is None and not (chosen := self.state.ledger.records.sent_to(f"uid-{name}")):
            answer = FilterDecision(self.index, self.state, lease_seconds).reserve(
                asked, request(asked), list(NODES), self.clock()
            )
            chosen = (answer.result.node_names or [""])[0]
        if chosen:
            args = BindingArgs(pod_name=name, pod_namespace="default", pod_uid=f"uid-{name}", node=chosen)
            self.answers[name] = self.loop.create_task(self.binder.bind(args))
            self.turn()

    # What is asked is answered

    @precondition(lambda self: self.questions.asked)
    @rule(which=st.integers(0, 9), mood=st.sampled_from(["well", "lost", "late", "429", "no", "cut"]))
    def answer(self, which: int, mood: str) -> None:
        question = self.questions.asked.pop(which % len(self.questions.asked))
        name, to = question.attempt.pod.name, question.attempt.node
        question.answer.set_result(self.event(question, name, to, mood))
        self.turn()

    @precondition(lambda self: self.questions.asked)
    @rule(mood=st.sampled_from(["well", "lost", "late", "late", "429", "no", "cut"]))
    def go_on(self, mood: str) -> None:
        """With the last attempt, without trouble until it sends, and once more."""
        while self.questions.asked and self.questions.asked[-1].effect not in {BindEffect.SEND, BindEffect.CHECK_LATER}:
            self.answer(len(self.questions.asked) - 1, "well")
        if self.questions.asked and self.questions.asked[-1].effect is BindEffect.SEND:
            self.answer(len(self.questions.asked) - 1, mood)

    def event(self, question: Question, name: str, to: str, mood: str) -> BindEvent:
        effect, run = question.effect, question.run
        if run is None:
            return self.looked(question.attempt, name, to, mood)
        run.problem = mood
        if effect is BindEffect.SEND:
            return self.sent(name, to, mood)
        if mood != "well":
            return BindEvent.CUT_OFF if mood == "cut" else BindEvent.STOPPED
        return self.well(effect, run, name, to)

    def well(self, effect: BindEffect, run: BindRun, name: str, to: str) -> BindEvent:
        if effect in {BindEffect.GET_PERMISSION, BindEffect.GET_PERMISSION_LATER} and self.other_leads:
            return BindEvent.STOPPED
        match effect:
            case BindEffect.DECIDE:
                return self.decided(run, name, to)
            case BindEffect.READ:
                return self.read(name, to)
        passed = {BindEffect.TAKE_TURN: BindEvent.TURN, BindEffect.TAKE_LOCK: BindEvent.LOCKED}
        return passed.get(effect, BindEvent.PERMITTED)

    def decided(self, run: BindRun, name: str, to: str) -> BindEvent:
        now, bound = self.clock(), self.bound.get(name)
        read = None if bound is None else asking(name, bound)
        try:
            known = decide_unread(self.state, run.attempt, now=now, until=UNTIL)
            run.attempt, event = known or decide_read(self.state, run.attempt, read, now=self.clock(), until=UNTIL)
        except BindRefused as error:
            return error.event
        return BindEvent.LOCK_NEEDED if event is BindEvent.DECIDED and to == "b" else event

    def read(self, name: str, to: str) -> BindEvent:
        bound = self.bound.get(name)
        if bound == "":
            return BindEvent.NOT_BOUND
        return BindEvent.HAS_NODE if bound == to else BindEvent.IMPOSSIBLE

    def sent(self, name: str, to: str, mood: str) -> BindEvent:
        bound = self.bound.get(name)
        if mood in {"late", "cut"} and bound is not None:
            self.in_flight.append((name, to))
            return BindEvent.LOST if mood == "late" else BindEvent.CUT_OFF
        if mood in {"429", "no"}:
            return BindEvent.TURNED_AWAY if mood == "429" else BindEvent.STOPPED
        if bound is None:
            return BindEvent.IMPOSSIBLE
        if bound and mood == "well":
            return BindEvent.CONFLICT
        self.carry_out(name, to)
        return BindEvent.LOST if mood == "lost" else BindEvent.TAKEN

    def looked(self, attempt: BindAttempt, name: str, to: str, mood: str) -> BindEvent:
        """So late that the API server has dropped what this attempt sent."""
        open_for = self.state.ledger.records.reserved(attempt.uid)
        is_open = open_for is not None and open_for.sent_by == attempt.number
        if mood != "well":
            return BindEvent.UNKNOWN if is_open else BindEvent.OVERTAKEN
        if self.bound.get(name) == to:
            return BindEvent.HAS_NODE
        if not is_open:
            return BindEvent.OVERTAKEN
        if attempt.pod in self.binder.under_way:
            return BindEvent.UNKNOWN
        self.in_flight = [each for each in self.in_flight if each[0] != name]
        return BindEvent.NOT_BOUND

    # The API server, the watch, other processes

    @precondition(lambda self: self.in_flight)
    @rule(which=st.integers(0, 9))
    def answer_comes_late(self, which: int) -> None:
        self.carry_out(*self.in_flight.pop(which % len(self.in_flight)))

    @rule(name=st.sampled_from(PODS))
    def watch_shows(self, name: str) -> None:
        if self.bound.get(name) is not None:
            self.live.apply(Applied(self.at_api(name)))

    @precondition(lambda self: not self.other_leads)
    @rule()
    def restart(self) -> None:
        """The process is killed, and the next one finds its files."""
        for task in asyncio.all_tasks(self.loop):
            task.cancel()
        self.turn()
        self.start()

    @precondition(lambda self: not self.answers and (self.other_leads or not self.in_flight))
    @rule(name=st.sampled_from(PODS), to=st.sampled_from(NODES))
    def change_the_leader(self, name: str, to: str) -> None:
        """The next one begins when nothing of this one is on its way, and binds by what the API server has."""
        if self.other_leads:
            self.binder.forget_sent()
            self.loop.run_until_complete(self.binder.drop_reservations())
            self.list_pods()
        elif to not in self.bound.values():
            self.carry_out(name, to)
        self.other_leads = not self.other_leads

    def teardown(self) -> None:
        """Every attempt ends, and an attempt that gave up holds no lock."""
        if not hasattr(self, "loop"):
            return
        for _ in range(100):
            if not self.questions.asked:
                break
            self.answer(0, "cut" if self.questions.asked[0].run is not None else "well")
        assert not self.questions.asked
        assert not self.answers
        self.loop.run_until_complete(self.binder.finish())
        for task in asyncio.all_tasks(self.loop):
            task.cancel()
        self.turn()
        self.loop.close()

    @invariant()
    def no_gpu_is_promised_twice(self) -> None:
        if not hasattr(self, "loop"):
            return
        for name in NODES:
            there = {each for each, bound in self.bound.items() if bound == name}
            there |= {each for each, to in self.in_flight if to == name and self.bound.get(each) == ""}
            assert len(there) <= 1, (name, there)

    @invariant()
    def what_may_be_carried_out_is_reserved(self) -> None:
        if not hasattr(self, "loop") or self.other_leads:
            return
        for name, to in self.in_flight:
            if self.bound.get(name) == "":
                assert self.state.ledger.records.sent_to(f"uid-{name}") == to


TestBinds = Binds.TestCase
TestBinds.settings = settings(
    stateful_step_count=40, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much]
)
