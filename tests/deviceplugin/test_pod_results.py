"""Work for each pod is done once, however much news comes."""

from deviceplugin.pod_results import PodResults
from proto.kubernetes.objects import Pod
from tests.builders import pod


def test_only_pods_that_changed_are_worked_on_again() -> None:
    worked: list[str] = []

    def work(each: Pod, word: str) -> str:
        worked.append(each.metadata.uid)
        return f"{word} {each.metadata.uid}"

    results, pods = PodResults(work), {uid: pod(uid=uid) for uid in "abc"}
    for _ in range(5):
        assert results.of(pods, "see") == ("see a", "see b", "see c")
    assert worked == ["a", "b", "c"]
    pods = {**pods, "b": pod(uid="b"), "d": pod(uid="d")}
    del pods["c"]
    assert results.of(pods, "see") == ("see a", "see b", "see d")
    assert worked == ["a", "b", "c", "b", "d"]
    assert results.of(pods, "hear") == ("hear a", "hear b", "hear d")
    assert len(worked) == 8
