"""Reads the objects that kubectl's generators send as protobuf, such as `kubectl create namespace` (pure).

Source: the envelope `k8s\\0` with runtime.Unknown, and the field numbers, of k8s.io/api and k8s.io/apimachinery 0.37,
generated.proto. Only what kubectl fills in is known; an object with more is refused, never cut.
"""

import base64
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from simulation.apiserver.errors import ApiRefusal, JsonObject, bad_request

MEDIA_TYPE = "application/vnd.kubernetes.protobuf"
_MAGIC = b"k8s\x00"
_MESSAGES = {
    "Unknown": "typeMeta=1:TypeMeta raw=2:bytes",
    "TypeMeta": "apiVersion=1 kind=2",
    "ObjectMeta": "name=1 generateName=2 namespace=3 uid=5 resourceVersion=6 labels=11{} "
    "annotations=12{} ownerReferences=13:OwnerReference[] finalizers=14[]",
    "OwnerReference": "kind=1 name=3 uid=4 apiVersion=5 controller=6:bool blockOwnerDeletion=7:bool",
    "Namespace": "metadata=1:ObjectMeta",
    "ResourceQuota": "metadata=1:ObjectMeta spec=2:ResourceQuotaSpec",
    "ResourceQuotaSpec": "hard=1:Quantity{} scopes=2[]",
    "ConfigMap": "metadata=1:ObjectMeta data=2{} binaryData=3:bytes{} immutable=4:bool",
    "Secret": "metadata=1:ObjectMeta data=2:bytes{} type=3 stringData=4{} immutable=5:bool",
    "ServiceAccount": "metadata=1:ObjectMeta",
    "PriorityClass": "metadata=1:ObjectMeta value=2:number globalDefault=3:bool description=4 preemptionPolicy=5",
    "PodDisruptionBudget": "metadata=1:ObjectMeta spec=2:PodDisruptionBudgetSpec",
    "PodDisruptionBudgetSpec": "minAvailable=1:IntOrString selector=2:LabelSelector maxUnavailable=3:IntOrString",
    "LabelSelector": "matchLabels=1{}",
    "Eviction": "metadata=1:ObjectMeta deleteOptions=2:DeleteOptions",
    "DeleteOptions": "gracePeriodSeconds=1:number preconditions=2:Preconditions propagationPolicy=4 dryRun=5[]",
    "Preconditions": "uid=1 resourceVersion=2",
    "Deployment": "metadata=1:ObjectMeta spec=2:DeploymentSpec",
    "DeploymentSpec": "replicas=1:number selector=2:LabelSelector template=3:PodTemplateSpec",
    "Job": "metadata=1:ObjectMeta spec=2:JobSpec",
    "JobSpec": "parallelism=1:number completions=2:number activeDeadlineSeconds=3:number template=6:PodTemplateSpec "
    "backoffLimit=7:number ttlSecondsAfterFinished=8:number completionMode=9 suspend=10:bool",
    "CronJob": "metadata=1:ObjectMeta spec=2:CronJobSpec",
    "CronJobSpec": "schedule=1 startingDeadlineSeconds=2:number concurrencyPolicy=3 suspend=4:bool "
    "jobTemplate=5:JobTemplateSpec",
    "JobTemplateSpec": "metadata=1:ObjectMeta spec=2:JobSpec",
    "PodTemplateSpec": "metadata=1:ObjectMeta spec=2:PodSpec",
    "PodSpec": "containers=2:Container[] restartPolicy=3 terminationGracePeriodSeconds=4:number dnsPolicy=6 "
    "nodeSelector=7{} schedulerName=19 initContainers=20:Container[] tolerations=22:Toleration[] priorityClassName=24",
    "Toleration": "key=1 operator=2 value=3 effect=4 tolerationSeconds=5:number",
    "Container": "name=1 image=2 command=3[] args=4[] ports=6:ContainerPort[] env=7:EnvVar[] resources=8:Resources "
    "terminationMessagePath=13 imagePullPolicy=14 terminationMessagePolicy=20",
    "ContainerPort": "name=1 containerPort=3:number protocol=4",
    "EnvVar": "name=1 value=2",
    "Resources": "limits=1:Quantity{} requests=2:Quantity{}",
    "Quantity": "string=1",
    "IntOrString": "type=1:number intVal=2:number strVal=3",
    "SelfSubjectAccessReview": "metadata=1:ObjectMeta spec=2:SelfSubjectAccessReviewSpec",
    "SelfSubjectAccessReviewSpec": "resourceAttributes=1:ResourceAttributes "
    "nonResourceAttributes=2:NonResourceAttributes",
    "ResourceAttributes": "namespace=1 verb=2 group=3 version=4 resource=5 subresource=6 name=7",
    "NonResourceAttributes": "path=1 verb=2",
}
"""Each field with its number, its type where it is no text, `[]` for a list and `{}` for a map by text."""


@dataclass(frozen=True, slots=True)
class _MessageField:
    name: str
    type: str
    form: str
    """Empty, `[]` or `{}`."""


def _read_messages() -> Mapping[str, Mapping[int, _MessageField]]:
    pattern = re.compile(r"(\w+)=(\d+)(?::(\w+))?(\[\]|\{\})?")
    return {
        name: {int(number): _MessageField(field, kind, form) for field, number, kind, form in pattern.findall(fields)}
        for name, fields in _MESSAGES.items()
    }


_KNOWN = _read_messages()


def decoded(body: bytes) -> JsonObject:
    """Returns the object as JSON has it. Raises ApiRefusal."""
    if not body.startswith(_MAGIC):
        raise bad_request("the body of the request is no protobuf of Kubernetes")
    envelope = _message("Unknown", body.removeprefix(_MAGIC))
    named = envelope.get("typeMeta", {})
    if named.get("kind") not in _KNOWN:
        raise _not_read(f"objects of kind {named.get('kind')}")
    return {**named, **_message(named["kind"], base64.b64decode(envelope.get("raw", "")))}


def _not_read(what: str) -> ApiRefusal:
    how = "send it as JSON: kubectl ... --dry-run=client -o json | kubectl create -f -"
    return ApiRefusal(
        415, "UnsupportedMediaType", f"this API server is simulated and reads no {what} from protobuf; {how}"
    )


def _message(name: str, body: bytes) -> JsonObject:
    """Returns the fields of a message that are not empty: Kubernetes writes those that were left out, too."""
    known, found = _KNOWN[name], dict[str, Any]()
    for number, value in _fields(body):
        field = known.get(number)
        if field is None:
            if not _is_empty(value):
                raise _not_read(f"field {number} of {name}")
        elif field.form == "{}":
            entry = dict(_fields(_bytes(value)))
            found.setdefault(field.name, {})[_bytes(entry.get(1, b"")).decode()] = _value(field, entry.get(2, b""))
        elif field.form == "[]":
            found.setdefault(field.name, []).append(_value(field, value))
        elif (read := _value(field, value)) not in ("", {}) and read is not False:
            found[field.name] = read
    return found


def _is_empty(value: int | bytes) -> bool:
    """Returns whether nothing was filled in: no value, or an object whose fields are all empty."""
    if isinstance(value, int):
        return value == 0
    try:
        return all(_is_empty(inner) for _, inner in _fields(value))
    except ApiRefusal:
        return False


def _value(field: _MessageField, value: int | bytes) -> Any:
    if field.type in {"number", "bool"}:
        return bool(value) if field.type == "bool" else value
    content = _bytes(value)
    if not field.type:
        return content.decode()
    if field.type == "bytes":
        return base64.b64encode(content).decode()
    found = _message(field.type, content)
    if field.type == "Quantity":
        return found.get("string", "0")
    if field.type == "IntOrString":
        return found.get("strVal", "") if found.get("type") else found.get("intVal", 0)
    return found


def _bytes(value: int | bytes) -> bytes:
    if isinstance(value, int):
        raise bad_request("the body of the request has a number where its kind has a text or an object")
    return value


def _fields(body: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yields field numbers and values; numbers are varints, all else has a length. Raises ApiRefusal."""
    place = 0
    while place < len(body):
        key, place = _varint(body, place)
        if key & 7 == 0:
            number, place = _varint(body, place)
            yield key >> 3, number
        elif key & 7 == 2:
            length, place = _varint(body, place)
            if place + length > len(body):
                raise bad_request("the body of the request ends within a field")
            yield key >> 3, body[place : place + length]
            place += length
        else:
            raise bad_request("the body of the request has a field of a type that Kubernetes' objects do not have")


def _varint(body: bytes, place: int) -> tuple[int, int]:
    """Returns a number, negative ones in 64 bits as two's complement, and where it ends."""
    number = shift = 0
    while place < len(body) and shift < 64:
        byte = body[place]
        number |= (byte & 0x7F) << shift
        place, shift = place + 1, shift + 7
        if byte < 0x80:
            return (number if number < 1 << 63 else number - (1 << 64)), place
    raise bad_request("the body of the request ends within a number")
