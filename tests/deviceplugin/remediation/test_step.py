"""GPUs that stay unhealthy and the pods on them, played minute by minute in virtual time."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deviceplugin.remediation.step import (
    Effect,
    Event,
    Evict,
    Evicted,
    EvictionRefused,
    Holder,
    Needless,
    Paused,
    RemediationState,
    Remembered,
    Seen,
    Sign,
    Spared,
    Tell,
    lasting,
    next_look,
    spoken,
    step,
)
from deviceplugin.settings import RemediationSettings, Remedy
from tests.playbook import converse

T0 = datetime(2030, 1, 1, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
EVICT = RemediationSettings(remedies=(Remedy.EVICT,))
GPUS = tuple(f"GPU-{letter}" for letter in "abcdefgh")


def sign(gpu: str, problem: str = "it does not answer", *, missing: bool = False) -> Sign:
    return Sign(name=f"name of {gpu}", problem=problem, missing=missing)


def holder(name: str, *gpus: str, waits: bool = False, leaves_at: datetime | None = None, priority: int = 0) -> Holder:
    return Holder(
        uid=f"uid-{name}",
        namespace="ns",
        pod=name,
        gpus=frozenset(gpus),
        waits=waits,
        leaves_at=leaves_at,
        priority=priority,
    )


def seen(*ill: str, well: int = 7, holders: Sequence[Holder] = ()) -> Seen:
    return Seen(ill={gpu: sign(gpu) for gpu in ill}, well=well, holders=holders)


@dataclass
class Play:
    """A script's state, with what was to be done."""

    settings: RemediationSettings = EVICT
    state: RemediationState = field(default_factory=RemediationState)
    now: datetime = T0
    effects: tuple[Effect, ...] = ()

    def take(self, minutes: float, *events: Event) -> list[str]:
        """At so many minutes after T0; the pods that are to be evicted."""
        self.now = T0 + minutes * MINUTE
        done: list[Effect] = []
        for event in events:
            self.state, effects = step(self.state, event, self.now, self.settings)
            done += effects
        self.effects = tuple(done)
        return [effect.holder.pod for effect in done if isinstance(effect, Evict)]

    @property
    def told(self) -> list[str]:
        return [effect.notice.message for effect in self.effects if isinstance(effect, Tell)]

    @property
    def lasting(self) -> tuple[str, ...]:
        return lasting(self.state, self.now, self.settings)


def test_a_pod_is_evicted_from_a_gpu_that_has_been_ill_for_ten_minutes() -> None:
    play, view = Play(), seen("GPU-a", holders=[holder("p", "GPU-a"), holder("q", "GPU-b")])
    assert play.take(0, view) == []
    assert play.take(9.9, view) == []
    assert (play.lasting, play.told) == ((), [])
    assert play.take(10, view) == ["p"]
    assert play.lasting == ("GPU-a",)
    lasting = "name of GPU-a has been unhealthy for 10 min: it does not answer."
    told = [f"{lasting} Pods on it: ns/p", f"{lasting} The pod is to be evicted unless the GPU recovers"]
    assert play.told == told
    assert play.take(10.1, Evicted("uid-p")) == []
    assert play.told == ["evicted from the node, because name of GPU-a is unhealthy: it does not answer"]
    assert play.take(11, view) == []


@pytest.mark.parametrize(
    ("remedies", "evicted"),
    [
        ((), []),
        ((Remedy.REPORT,), []),
        ((Remedy.TAINT_ANY,), []),
        ((Remedy.EVICT_WAITING,), ["waits"]),
        ((Remedy.EVICT,), ["waits", "runs"]),
    ],
)
def test_how_far_it_goes_is_a_setting(remedies: tuple[Remedy, ...], evicted: list[str]) -> None:
    play = Play(replace(EVICT, remedies=remedies, at_once=9))
    view = seen("GPU-a", holders=[holder("runs", "GPU-a"), holder("waits", "GPU-a", waits=True)])
    play.take(0, view)
    assert play.take(10, view) == evicted
    assert play.lasting == ("GPU-a",)


def test_a_gpu_that_recovers_in_between_begins_again() -> None:
    play, view = Play(), seen("GPU-a", holders=[holder("p", "GPU-a")])
    converse(
        play.take,
        (0, view, []),
        (9, seen(well=8, holders=[holder("p", "GPU-a")]), []),
        (9.5, view, []),
        (19, view, []),
        (19.5, view, ["p"]),
        (20, seen(well=8, holders=[holder("p", "GPU-a")]), []),
    )
    assert (play.lasting, play.state.attempts) == ((), {})


def test_pods_leave_one_after_the_other_those_that_wait_first_then_the_least_important() -> None:
    pods = [holder("low", "GPU-a"), holder("high", "GPU-a", priority=9), holder("stuck", "GPU-a", waits=True)]
    play = Play()
    play.take(0, seen("GPU-a", holders=pods))
    assert play.take(10, seen("GPU-a", holders=pods)) == ["stuck"]
    pods[2] = replace(pods[2], leaves_at=T0 + 11 * MINUTE)
    assert play.take(10.5, Evicted("uid-stuck"), seen("GPU-a", holders=pods)) == []
    assert play.take(11, seen("GPU-a", holders=pods[:2])) == ["low"]
    assert play.take(12, Evicted("uid-low"), seen("GPU-a", holders=pods[1:2])) == ["high"]


def test_a_pod_that_cannot_be_ended_holds_the_others_up_for_a_while_only() -> None:
    leaving = holder("stuck", "GPU-a", leaves_at=T0 + 10 * MINUTE)
    view = seen("GPU-a", holders=[leaving, holder("p", "GPU-a")])
    play = Play()
    converse(play.take, (0, view, []), (14.9, view, []), (15, view, ["p"]))


def test_a_refused_pod_is_tried_again_more_and_more_slowly_and_others_meanwhile() -> None:
    view = seen("GPU-a", holders=[holder("p", "GPU-a")])
    play, tried, minutes = Play(), [], 0.0
    play.take(0, view)
    while minutes < 120:
        if play.take(minutes, view):
            tried.append(minutes)
            play.take(minutes, EvictionRefused("uid-p", "the budget needs it"))
            assert play.told[0].startswith(
                "name of GPU-a is unhealthy: it does not answer; the pod is not evicted: the "
            )
        minutes += 1
    assert tried == [10, 11, 13, 17, 25, 41, 71, 101]
    both = seen("GPU-a", holders=[holder("p", "GPU-a"), holder("q", "GPU-a")])
    assert play.take(120, both) == ["q"]


def test_a_spared_pod_is_never_asked_about_again_and_its_owner_is_told_why() -> None:
    view = seen("GPU-a", holders=[holder("p", "GPU-a")])
    play = Play()
    converse(
        play.take,
        (0, view, []),
        (10, view, ["p"]),
        (10, Spared("uid-p", "it has no controller that would make it again"), []),
    )
    assert play.told == [
        "name of GPU-a is unhealthy: it does not answer; the pod is not evicted, because it has no controller that "
        "would make it again. Delete it to have it placed again"
    ]
    assert play.take(999, view) == []


def test_an_eviction_that_was_needless_is_thought_of_again_only_after_a_while() -> None:
    view = seen("GPU-a", holders=[holder("p", "GPU-a")])
    play = Play()
    play.take(0, view)
    assert play.take(10, view) == ["p"]
    assert play.take(10, Needless("uid-p"), view) == []
    assert play.take(10.1, view) == []
    assert play.take(10.2, view) == ["p"]


def test_a_pod_whose_eviction_always_turns_out_to_be_needless_leaves_the_turn_to_others() -> None:
    view = seen("GPU-a", holders=[holder("a", "GPU-a"), holder("b", "GPU-a", priority=1)])
    play, asked = Play(), list[str]()
    play.take(0, view)
    for look in range(6 * 60):
        for pod in play.take(10 + look / 6, view):
            asked.append(pod)
            play.take(10 + look / 6, Needless(f"uid-{pod}"))
    assert 5 < asked.count("a") < 12
    assert asked.count("b") > 5


def test_after_too_many_evictions_no_pod_is_asked_about_before_one_is_left() -> None:
    view = seen("GPU-a", holders=[holder("p", "GPU-a"), holder("q", "GPU-a")])
    play = Play()
    converse(
        play.take,
        (0, view, []),
        (10, view, ["p"]),
        (10, Paused("uid-p", T0 + 40 * MINUTE), []),
        (39.9, view, []),
        (40, view, ["p"]),
    )


def test_while_most_gpus_are_ill_no_pod_is_evicted_before_the_longer_time() -> None:
    pods = [holder(gpu, gpu) for gpu in GPUS]
    play, all_ill = Play(replace(EVICT, at_once=9)), seen(*GPUS, well=0, holders=pods)
    play.take(0, all_ill)
    assert play.take(59.9, all_ill) == []
    assert set(play.lasting) == set(GPUS)
    assert play.take(60, all_ill) == sorted(GPUS)


def test_gpus_that_are_left_over_when_the_driver_is_back_begin_again() -> None:
    pods = [holder(gpu, gpu) for gpu in GPUS]
    play = Play(replace(EVICT, at_once=9))
    play.take(0, seen(*GPUS, well=0, holders=pods))
    some = seen("GPU-a", "GPU-b", well=6, holders=pods)
    converse(play.take, (30, some, []), (39.9, some, []), (40, some, ["GPU-a", "GPU-b"]))


def test_while_the_driver_cannot_be_asked_no_pod_that_runs_is_evicted() -> None:
    pods = [holder("runs", "GPU-a"), holder("waits", "GPU-b", waits=True)]
    play, blind = Play(replace(EVICT, at_once=9)), replace(seen(*GPUS, well=0, holders=pods), is_blind=True)
    play.take(0, blind)
    play.take(10, blind)
    assert [told.split()[2] for told in play.told if "is to be evicted" in told] == ["GPU-b"]
    assert play.take(60, blind) == ["waits"]
    assert play.take(6000, Evicted("uid-waits"), blind) == []
    # It can be asked again, and says that one GPU is lost.
    one = seen("GPU-a", holders=pods[:1])
    converse(play.take, (6001, one, []), (6010.9, one, []), (6011, one, ["runs"]))


def test_evictions_stop_when_the_driver_fails_meanwhile() -> None:
    pods = [holder(f"p{gpu}", gpu) for gpu in GPUS]
    play = Play()
    converse(
        play.take,
        (0, seen("GPU-a", holders=pods), []),
        (10, seen("GPU-a", holders=pods), ["pGPU-a"]),
        (10, EvictionRefused("uid-pGPU-a", "no"), []),
        (12, seen(*GPUS, well=0, holders=pods), []),
        (60, seen(*GPUS, well=0, holders=pods), []),
        (72, seen(*GPUS, well=0, holders=pods), ["pGPU-a"]),
    )


def test_a_restart_forgets_nothing_and_looks_for_a_minute_itself_before_it_evicts() -> None:
    view = seen("GPU-a", holders=[holder("p", "GPU-a")])
    play = Play()
    play.take(60, Remembered({"GPU-a": T0}))
    assert play.lasting == ("GPU-a",)
    # Health has polled nothing yet.
    assert play.take(60, seen(well=8, holders=view.holders)) == []
    assert play.lasting == ("GPU-a",)
    converse(play.take, (60.5, view, []), (61.4, view, []), (61.5, view, ["p"]))
    assert play.state.ill["GPU-a"].since == T0


def test_what_is_well_a_minute_after_a_restart_is_well() -> None:
    play = Play()
    play.take(60, Remembered({"GPU-a": T0}), seen(well=8))
    play.take(60.9, seen(well=8))
    assert play.lasting == ("GPU-a",)
    play.take(61, seen(well=8))
    assert not play.state.ill


def test_a_pod_that_was_leaving_at_a_restart_takes_its_room() -> None:
    view = seen("GPU-a", holders=[holder("going", "GPU-a", leaves_at=T0 + 62 * MINUTE), holder("p", "GPU-a")])
    play = Play()
    play.take(60, Remembered({"GPU-a": T0}), view)
    assert play.take(62, view) == []


def test_a_lost_gpu_that_tells_no_uuid_after_a_restart_has_been_ill_as_long_as_before() -> None:
    place = "GPU 2 at 0000:41:00.0"
    play = Play()
    converse(
        play.take,
        (60, Remembered({"GPU-c": T0}), []),
        (60, Seen(ill={place: sign(place, missing=True)}, well=7), []),
        (62, Seen(ill={place: sign(place, missing=True)}, well=7), []),
    )
    assert {key: each.since for key, each in play.state.ill.items()} == {place: T0}


def test_a_missing_gpu_that_only_a_pod_named_stays_ill_when_the_pod_is_gone() -> None:
    place, view = "GPU 2 at 0000:41:00.0", Seen(ill={"GPU-c": sign("GPU-c", missing=True)}, well=7)
    play = Play()
    play.take(0, view)
    play.take(14, view)
    assert len(play.told) == 1
    play.take(15, Seen(ill={place: sign(place, missing=True)}, well=7))
    assert (play.lasting, play.told) == ((place,), [])


def test_a_time_that_is_remembered_from_the_future_is_now() -> None:
    play = Play()
    play.take(0, Remembered({"GPU-a": T0 + timedelta(days=400)}))
    assert play.state.ill["GPU-a"].since == T0


def test_it_looks_again_when_time_alone_may_change_something() -> None:
    play = Play(replace(EVICT, after=timedelta(seconds=3)))
    play.take(0, seen(well=8))
    assert next_look(play.state, T0, play.settings) is None
    play.take(0, seen("GPU-a"))
    assert next_look(play.state, T0, play.settings) == T0 + timedelta(seconds=3)
    later = T0 + MINUTE
    assert next_look(play.state, later, play.settings) == later + timedelta(seconds=10)


@pytest.mark.parametrize(
    ("span", "words"), [(timedelta(seconds=90), "90 s"), (timedelta(minutes=10), "10 min"), (timedelta(hours=2), "2 h")]
)
def test_spans_are_spoken_in_whole_units(span: timedelta, words: str) -> None:
    assert spoken(span) == words


@dataclass
class World:
    """A node whose GPUs fall ill and recover, whose pods come, and whose API server answers as it likes."""

    settings: RemediationSettings
    remedy: RemediationState = field(default_factory=RemediationState)
    now: datetime = T0
    ill: dict[str, datetime] = field(default_factory=dict)
    remembered: dict[str, datetime] = field(default_factory=dict)
    restarted_at: datetime = T0 - MINUTE
    pods: dict[str, Holder] = field(default_factory=dict)
    asked: list[Holder] = field(default_factory=list)

    def look(self) -> None:
        view = seen(*self.ill, well=len(GPUS) - len(self.ill), holders=tuple(self.pods.values()))
        self.remedy, effects = step(self.remedy, view, self.now, self.settings)
        chosen = [effect.holder for effect in effects if isinstance(effect, Evict)]
        for each in chosen:
            self._is_right(each)
        self.asked += chosen
        assert len(self._leaving()) <= self.settings.at_once

    def _leaving(self) -> set[str]:
        gone = {each.uid for each in self.pods.values() if each.leaves_at is not None}
        return {each.uid for each in self.asked} | gone

    def _is_right(self, chosen: Holder) -> None:
        assert Remedy.EVICT in self.settings.remedies or (self.settings.evicts and chosen.waits)
        assert self.pods[chosen.uid].leaves_at is None
        assert chosen.uid not in {each.uid for each in self.asked}
        ages = [self.now - self.ill[gpu] for gpu in chosen.gpus if gpu in self.ill]
        assert max(ages, default=timedelta()) >= self.settings.after
        if 2 * len(self.ill) > len(GPUS):
            assert self.now - max(self.ill.values()) >= self.settings.most_after

    def answer(self, how: str) -> None:
        if not self.asked:
            return
        pod = self.asked.pop()
        answers: dict[str, Event] = {
            "evicted": Evicted(pod.uid),
            "refused": EvictionRefused(pod.uid, "no"),
            "spared": Spared(pod.uid, "no"),
            "needless": Needless(pod.uid),
            "paused": Paused(pod.uid, self.now + 20 * MINUTE),
        }
        if how == "evicted":
            self.pods[pod.uid] = replace(pod, leaves_at=self.now + timedelta(seconds=30))
        self.remedy, _ = step(self.remedy, answers[how], self.now, self.settings)

    def fall_ill(self, gpu: str) -> None:
        """One that was ill before a restart counts as ill all the time, until the restart is a minute ago."""
        known = self.remembered if self.now < self.restarted_at + MINUTE else {}
        self.ill.setdefault(gpu, known.get(gpu, self.now))

    def restart(self) -> None:
        self.remembered = {gpu: each.since for gpu, each in self.remedy.ill.items()}
        self.restarted_at = self.now
        self.remedy, _ = step(RemediationState(), Remembered(self.remembered), self.now, self.settings)
        self.asked = []

    def wait(self, seconds: int) -> None:
        """Looking every ten seconds, as the daemon does; an eviction is answered in between."""
        for _ in range(0, seconds, 10):
            self.now += timedelta(seconds=10)
            self.pods = {
                uid: pod for uid, pod in self.pods.items() if pod.leaves_at is None or self.now < pod.leaves_at
            }
            self.look()


gpus = st.sampled_from(GPUS)
moves = st.one_of(
    st.tuples(st.just("ill"), st.sets(gpus, min_size=1)),
    st.tuples(st.just("well"), st.sets(gpus, min_size=1)),
    st.tuples(st.just("pod"), st.tuples(st.sets(gpus, min_size=1, max_size=2), st.booleans())),
    st.tuples(st.just("answer"), st.sampled_from(["evicted", "evicted", "refused", "spared", "needless", "paused"])),
    st.tuples(st.just("wait"), st.sampled_from([10, 100, 700, 4000])),
    st.tuples(st.just("restart"), st.none()),
)


@given(
    st.lists(moves, max_size=30),
    st.lists(st.sampled_from(Remedy), max_size=2).map(tuple),
    st.integers(1, 3),
)
def test_whatever_happens_no_pod_goes_without_need_and_never_too_many(
    script: list[tuple[str, object]], remedies: tuple[Remedy, ...], at_once: int
) -> None:
    world = World(replace(EVICT, remedies=remedies, at_once=at_once))
    for number, (what, which) in enumerate(script):
        match what, which:
            case "ill", set():
                for gpu in which:
                    world.fall_ill(gpu)
            case "well", set():
                world.ill = {gpu: since for gpu, since in world.ill.items() if gpu not in which}
            case "pod", (set() as held, bool() as waits):
                pod = holder(f"p{number}", *sorted(held), waits=waits)
                world.pods[pod.uid] = pod
            case "answer", str():
                world.answer(which)
            case "wait", int():
                world.wait(which)
            case _:
                world.restart()
        world.look()


@given(st.integers(1, 12), st.integers(1, 3))
def test_pods_that_may_go_do_go(pods: int, at_once: int) -> None:
    world = World(replace(EVICT, at_once=at_once), ill={"GPU-a": T0})
    world.pods = {f"uid-p{number}": holder(f"p{number}", "GPU-a") for number in range(pods)}
    world.look()
    world.wait(600)
    for _ in range(pods):
        while world.asked:
            world.answer("evicted")
        world.wait(40)
    assert world.pods == {}
