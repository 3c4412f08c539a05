"""The plugin decides by the settings that the extender runs with, read of the arguments of its pod."""

from dataclasses import replace

from kubectl_topogpu.extender import EXTENDER_LABELS, found_extender
from proto.annotations.keys import SCHEDULER_ROLE
from proto.kubernetes.objects import Container, Pod
from scheduler_ext.policies import NodePolicy, parse_gpu_policy
from scheduler_ext.requests import RequestSettings, ResourceNames
from tests.builders import pod


def extender(*args: str, name: str = "e", namespace: str = "topogpu-system", leads: bool = False) -> Pod:
    made = pod(Container(name="extender", args=["serve", *args]), name=name, namespace=namespace, phase="Running")
    made.metadata.labels = {**EXTENDER_LABELS, **({SCHEDULER_ROLE: "leader"} if leads else {})}
    made.spec.node_name = "n"
    return made


def test_flags_of_either_spelling_are_the_settings_and_others_are_left_out() -> None:
    found = found_extender(
        [
            extender(
                *("--node-scheduler-policy=spread", "--gpu-scheduler-policy", "topology-aware", "--default-mem=3000"),
                *("--resource-name=example.com/gpu", "--http_bind=127.0.0.1:8080", "--leader-elect"),
            )
        ]
    )
    plain = RequestSettings()
    assert found.note == ""
    assert found.settings == replace(
        plain,
        names=replace(ResourceNames(), count="example.com/gpu"),
        node_policy=NodePolicy.SPREAD,
        gpu_policy=parse_gpu_policy("topology-aware"),
        default_memory_mib=3000,
    )


def test_the_replica_that_decides_counts_where_they_differ() -> None:
    pods = [extender("--default-cores=1", name="a"), extender("--default-cores=2", name="b", leads=True)]
    assert found_extender(pods).settings.default_cores == 2


def test_what_is_not_known_is_said() -> None:
    for pods, note in (
        ([], "no pod of the extender was found: policies and defaults are those of a new installation"),
        ([extender(), extender(namespace="ml", name="f")], "pods of several namespaces look like the extender (ml/f, "),
        ([extender("--default-mem=much")], "the settings of pod topogpu-system/e cannot be read ("),
        ([extender("--config=/etc/x")], "pod topogpu-system/e reads settings from a file (--config) that is not read"),
    ):
        found = found_extender(pods)
        assert found.note.startswith(note)
        assert found.settings == RequestSettings()
