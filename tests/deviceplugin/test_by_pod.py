"""Work for each pod is done once, however much news comes."""

from deviceplugin.by_pod import ByPod
from proto.kubernetes.objects import Pod
from tests.builders import pod


def test_only_pods_that_changed_are_worked_on_again() -> None:
    worked: list[str] = []

    def work(each: Pod, word: str) -> str:
        worked.append(each.metadata.uid)
        return f"{word} {each.metadata.uid}"

    by_pod, pods = ByPod(work), {uid: pod(uid=uid) for uid in "abc"}
    for _ in range(5):
        assert by_pod.of(pods, "see") == ("see a", "see b", "see c")
    assert worked == ["a", "b", "c"]
    pods = {**pods, "b": pod(uid="b"), "d": pod(uid="d")}
    del pods["c"]
    assert by_pod.of(pods, "see") == ("see a", "see b", "see d")
    assert worked == ["a", "b", "c", "b", "d"]
    assert by_pod.of(pods, "hear") == ("hear a", "hear b", "hear d")
    assert len(worked) == 8
