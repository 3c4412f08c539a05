from dataclasses import replace

from scheduler_ext.cluster.waiting_pods import FORGOTTEN_SECONDS, LONGEST_PAUSE_SECONDS, PodQueue
from scheduler_ext.requests import GpuRequest
from tests.builders import container, pod
from tests.scheduler_ext.gpus import request


def asks(name: str) -> GpuRequest:
    return request(pod(container(gpu=1), name=name))


def due(waiting: PodQueue, now: float) -> list[str]:
    return [each.request.pod for each in waiting.due(now)]


def test_the_more_important_pod_comes_first_then_the_one_that_waits_longest() -> None:
    waiting = PodQueue()
    waiting.refused(asks("second"), 0, 1.0)
    waiting.refused(asks("third"), 0, 2.0)
    waiting.refused(asks("first"), 7, 3.0)
    waiting.refused(asks("second"), 0, 4.0)
    assert due(waiting, 5.0) == ["first", "second", "third"]


def test_a_pod_that_settled_is_not_tried() -> None:
    waiting = PodQueue()
    waiting.refused(asks("p"), 0, 1.0)
    waiting.remove("uid-p")
    waiting.remove("uid-p")
    assert (due(waiting, 9.0), len(waiting)) == ([], 0)


def test_a_pod_requeued_in_vain_is_left_alone_for_longer_each_time() -> None:
    waiting = PodQueue()
    waiting.refused(asks("p"), 0, 0.0)
    now, pauses = 0.0, []
    for _ in range(8):
        waiting.requeued("uid-p", now)
        waiting.refused(asks("p"), 0, now)
        until = next(at for second in range(1, 100) if waiting.is_due("uid-p", at := now + second))
        assert due(waiting, until - 0.1) == []
        assert due(waiting, until) == ["p"]
        pauses.append(until - now)
        now = until
    assert pauses == [1, 2, 4, 8, 16, 32, LONGEST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS]


def test_pods_requeued_in_vain_leave_their_turn_to_those_that_came_after_them() -> None:
    waiting = PodQueue()
    for number, name in enumerate(["vain", "new", "twice"]):
        waiting.refused(asks(name), 0, float(number))
    waiting.requeued("uid-vain", 3.0)
    for _ in range(2):
        waiting.requeued("uid-twice", 3.0)
    assert due(waiting, 100.0) == ["new", "vain", "twice"]


def test_a_changed_request_is_the_one_that_counts() -> None:
    waiting = PodQueue()
    waiting.refused(asks("p"), 0, 0.0)
    changed = replace(asks("p"), numa_bound=True)
    waiting.refused(changed, 0, 1.0)
    assert waiting.due(1.0)[0].request == changed


def test_a_pod_that_nobody_asks_about_any_more_waits_no_longer() -> None:
    """It was deleted while the watch was away, or while it was refused for the last time."""
    waiting = PodQueue()
    waiting.refused(asks("gone"), 0, 0.0)
    waiting.refused(asks("there"), 0, 0.0)
    waiting.refused(asks("there"), 0, 1.0)
    assert (due(waiting, FORGOTTEN_SECONDS), len(waiting)) == (["there"], 1)
