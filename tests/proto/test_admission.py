"""AdmissionReview on the wire."""

import base64
import json
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from proto.admission import (
    LONGEST_WITH_NULLS,
    AdmissionError,
    AdmissionVerdict,
    PodReview,
    ReviewIdentity,
    decode_review,
    denied,
    encode_answer,
    failed,
)
from proto.kubernetes.objects import ObjectMeta, Pod

POD = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "creationTimestamp": None}}
READ = Pod(metadata=ObjectMeta(name="p"))


def question(**changes: Any) -> bytes:
    request = {"uid": "u", "operation": "CREATE", "namespace": "ns", "object": POD, "dryRun": False}
    review = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}
    return json.dumps(review | changes).encode()


def written(review: PodReview) -> Any:
    return json.loads(msgspec.json.encode(review.object))


@pytest.mark.parametrize("version", ["admission.k8s.io/v1", "admission.k8s.io/v1beta1"])
def test_a_question_of_either_version_is_answered_in_it(version: str) -> None:
    review = decode_review(question(apiVersion=version))
    identity = ReviewIdentity(uid="u", api_version=version)
    shown = replace(review, object=written(review))
    assert shown == PodReview(identity=identity, operation="CREATE", namespace="ns", object=POD, pod=READ)
    assert json.loads(encode_answer(review.identity, AdmissionVerdict(allowed=True))) == {
        "apiVersion": version,
        "kind": "AdmissionReview",
        "response": {"uid": "u", "allowed": True, "status": {"code": 200}},
    }


def test_without_a_version_it_is_v1() -> None:
    body = json.dumps({"request": {"uid": "u", "object": POD}}).encode()
    assert decode_review(body).identity == ReviewIdentity(uid="u")


def test_nulls_of_go_are_absent_and_stay_where_they_are_in_the_json() -> None:
    pod = {"kind": "Pod", "metadata": {"labels": None}, "spec": {"containers": [{"name": "a", "env": None}]}}
    review = decode_review(question(request={"uid": None, "name": None, "userInfo": {"groups": None}, "object": pod}))
    assert (review.identity.uid, written(review), review.pod.spec.containers[0].env) == ("", pod, [])


def test_a_pod_with_more_containers_than_any_has_is_not_read() -> None:
    spec = {"containers": [{"name": "c"}] * 200, "initContainers": [{"name": "i"}] * 57}
    with pytest.raises(AdmissionError, match="spec has 257 containers; a pod with more than 256 is not read"):
        decode_review(question(request={"object": POD | {"spec": spec}}))


@pytest.mark.parametrize(
    ("pod", "problem"),
    [
        (
            {"spec": {"containers": [{"resources": {"limits": {f"r{n}": "1" for n in range(5000)}}}] * 3}},
            "its containers' resources have [0-9]+ bytes; a pod with more than 131072 there is not read",
        ),
        (
            {"metadata": {"annotations": {f"a{n}": "" for n in range(60_000)}}},
            "metadata.annotations has [0-9]+ bytes; a pod with more than 524288 there is not read",
        ),
        (
            {"metadata": {"labels": {f"a{n}": "" for n in range(60_000)}}},
            "metadata.labels has [0-9]+ bytes; a pod with more than 524288 there is not read",
        ),
    ],
)
def test_a_pod_with_more_names_than_any_has_is_not_read(pod: Any, problem: str) -> None:
    with pytest.raises(AdmissionError, match=problem):
        decode_review(question(request={"object": pod}))


def test_nulls_in_a_large_pod_are_not_looked_for() -> None:
    large = {"metadata": {"name": None}, "spec": {"x": "y" * LONGEST_WITH_NULLS}}
    with pytest.raises(AdmissionError, match=r"not a pod: Expected `str`, got `null` - at `\$.metadata.name`"):
        decode_review(question(request={"object": large}))


@pytest.mark.parametrize("pod", [{"metadata": None, "spec": None}, {"spec": {"containers": None}}, {}])
def test_a_pod_of_nulls_is_an_empty_one(pod: Any) -> None:
    assert decode_review(question(request={"object": pod})).pod == Pod()


def test_the_namespace_of_the_request_counts_then_the_pods_then_default() -> None:
    own = POD | {"metadata": {"namespace": "own"}}
    assert decode_review(question(request={"object": own, "namespace": "asked"})).namespace == "asked"
    assert decode_review(question(request={"object": own})).namespace == "own"
    assert decode_review(question(request={"object": POD})).namespace == "default"


def test_a_patch_travels_in_base64_beside_warnings() -> None:
    operation = {"op": "remove", "path": "/metadata/labels/a~1b"}
    verdict = AdmissionVerdict(allowed=True, message="m", patch=(operation,), warnings=("w",))
    response = json.loads(encode_answer(ReviewIdentity(uid="u"), verdict))["response"]
    assert json.loads(base64.b64decode(response.pop("patch"))) == [operation]
    assert response == {
        "uid": "u",
        "allowed": True,
        "status": {"code": 200, "message": "m"},
        "patchType": "JSONPatch",
        "warnings": ["w"],
    }


@pytest.mark.parametrize(
    ("verdict", "status"),
    [
        (denied("no"), {"code": 403, "message": "no", "reason": "Forbidden"}),
        (failed("broken"), {"code": 500, "message": "broken"}),
        (failed("large", 413), {"code": 413, "message": "large"}),
    ],
)
def test_a_refusal_has_code_and_words(verdict: AdmissionVerdict, status: dict[str, object]) -> None:
    response = json.loads(encode_answer(ReviewIdentity(uid="u"), verdict))["response"]
    assert response == {"uid": "u", "allowed": False, "status": status}


@pytest.mark.parametrize(
    ("body", "uid", "problem"),
    [
        (b" ", "", "the request body is empty"),
        (b"{", "", "the request body is not an AdmissionReview: "),
        (b"[]", "", "the request body is not an AdmissionReview: "),
        (question(apiVersion="admission.k8s.io/v2"), "", "admission.k8s.io/v2 AdmissionReview is not answered here"),
        (question(kind="Pod"), "", "admission.k8s.io/v1 Pod is not answered here"),
        (question(request=None), "", "request: missing"),
        (question(request={"uid": "u"}), "u", "request.object is not a pod: "),
        (question(request={"uid": "u", "object": [1]}), "u", "request.object is not a pod: "),
        (question(request={"uid": "u", "object": {"kind": "Node"}}), "u", "request.object is a Node"),
        (
            question(request={"uid": "u", "object": {"spec": {"containers": [{"name": 1}]}}}),
            "u",
            "request.object is not a pod: Expected `str`, got `int` - at `$.spec.containers[0].name`",
        ),
    ],
)
def test_what_cannot_be_read_is_a_sentence_with_the_uid_if_there_is_one(body: bytes, uid: str, problem: str) -> None:
    with pytest.raises(AdmissionError) as caught:
        decode_review(body)
    assert str(caught.value).startswith(problem)
    assert (caught.value.code, caught.value.identity.uid) == (400, uid)
