"""What kubectl's generators send as protobuf; the real kubectl sends it in test_up."""

import pytest

from simulation.apiserver.errors import ApiRefusal
from simulation.apiserver.protobuf import decoded


def field(number: int, content: bytes | str | int) -> bytes:
    if isinstance(content, int):
        return bytes([number << 3]) + varint(content)
    body = content.encode() if isinstance(content, str) else content
    return bytes([number << 3 | 2]) + varint(len(body)) + body


def varint(number: int) -> bytes:
    head = b""
    while number > 0x7F:
        head += bytes([number & 0x7F | 0x80])
        number >>= 7
    return head + bytes([number])


def sent(kind: str, raw: bytes) -> bytes:
    return b"k8s\x00" + field(1, field(1, "v1") + field(2, kind)) + field(2, raw)


META = field(1, field(1, "n") + field(11, field(1, "k") + field(2, "v")) + field(8, b""))


def test_objects_are_read_without_what_was_left_empty() -> None:
    spec = field(2, field(1, field(1, "pods") + field(2, field(1, "3"))))
    status = field(3, b"")
    assert decoded(sent("ResourceQuota", META + spec + status)) == {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "n", "labels": {"k": "v"}},
        "spec": {"hard": {"pods": "3"}},
    }


def test_a_job_is_read_with_the_defaults_of_its_template() -> None:
    """`kubectl create job --from=cronjob/NAME` sends what it got from the API server."""
    container = field(1, "c") + field(2, "i") + field(13, "/dev/termination-log") + field(14, "Always")
    pod = field(2, container) + field(3, "Never") + field(4, 30) + b"\x9a\x01" + varint(1) + b"s"
    spec = field(6, field(2, pod)) + field(7, 6) + field(9, "NonIndexed") + field(10, 0)
    assert decoded(sent("Job", META + field(2, spec)))["spec"] == {
        "template": {
            "spec": {
                "containers": [
                    {
                        "name": "c",
                        "image": "i",
                        "terminationMessagePath": "/dev/termination-log",
                        "imagePullPolicy": "Always",
                    }
                ],
                "restartPolicy": "Never",
                "terminationGracePeriodSeconds": 30,
                "schedulerName": "s",
            }
        },
        "backoffLimit": 6,
        "completionMode": "NonIndexed",
    }


def test_a_pointer_to_zero_is_a_zero() -> None:
    spec = field(2, field(1, 0) + field(2, field(1, field(1, "a") + field(2, "b"))))
    assert decoded(sent("Deployment", META + spec))["spec"] == {"replicas": 0, "selector": {"matchLabels": {"a": "b"}}}


@pytest.mark.parametrize("written", [(field(1, 0) + field(2, 2), 2), (field(1, 1) + field(3, "50%"), "50%")])
def test_numbers_and_shares(written: tuple[bytes, int | str]) -> None:
    body, value = written
    assert decoded(sent("PodDisruptionBudget", META + field(2, field(1, body))))["spec"] == {"minAvailable": value}


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"{}", "no protobuf of Kubernetes"),
        (sent("Widget", META), "reads no objects of kind Widget from protobuf; send it as JSON"),
        (sent("ConfigMap", META + field(7, "more")), "reads no field 7 of ConfigMap"),
        (sent("ConfigMap", META)[:-3], "ends within"),
        (sent("ConfigMap", b"\x0d1234"), "a type that Kubernetes' objects do not have"),
        (sent("PriorityClass", b"\x12" + b"\x80" * 12), "ends within a number"),
        (sent("ConfigMap", field(2, 7)), "a number where its kind has a text"),
    ],
)
def test_what_cannot_be_read_is_refused_with_a_sentence(body: bytes, why: str) -> None:
    with pytest.raises(ApiRefusal, match=why):
        decoded(body)
