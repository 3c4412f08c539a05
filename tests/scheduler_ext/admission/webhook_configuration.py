"""The MutatingWebhookConfiguration that the chart has to render.

Match conditions (CEL, Kubernetes 1.28 and later) limit its scope. While the webhook is down, other pods can still be
created. It covers pods that request GPUs, that name GPUs in their environment, or that carry what only the scheduler
writes.
"""

from collections.abc import Sequence

from proto.admission import Json
from proto.annotations import keys
from scheduler_ext.admission.containers import TEMPLATES_PATH, WEBHOOK_PATH, AdmissionSettings
from scheduler_ext.settings import BypassMode, CorePolicy
from tests.scheduler_ext.admission.webhook_conditions import chooses_gpus, mentions_gpus, mentions_owned

GPU_WEBHOOK = "gpus.topogpu.io"
OWNED_WEBHOOK = "annotations.topogpu.io"
BYPASS_WEBHOOK = "bypass.topogpu.io"
REST_WEBHOOK = "environment.topogpu.io"
TEMPLATES_WEBHOOK = "templates.topogpu.io"

_IGNORED = {"matchExpressions": [{"key": keys.WEBHOOK, "operator": "NotIn", "values": [keys.WEBHOOK_IGNORE]}]}


def webhook_configuration(
    name: str,
    client: Json,
    settings: AdmissionSettings,
    excluded_namespaces: Sequence[str] = (),
    exempt_namespaces: Sequence[str] = (),
) -> Json:
    """Returns the configuration object. `client` is the clientConfig: a service or a URL. Without path it gets ours.

    Pods without GPUs in `exempt_namespaces` may see every GPU.
    """
    if "service" in client:
        client = {**client, "service": {"path": WEBHOOK_PATH, **client["service"]}}
    names = settings.requests.names
    gpus = mentions_gpus(names)
    selectors = {"namespaceSelector": _namespaces(excluded_namespaces), "objectSelector": _IGNORED}
    others = selectors | {"namespaceSelector": _namespaces([*excluded_namespaces, *exempt_namespaces])}
    webhooks = [
        _webhook(GPU_WEBHOOK, client, "Fail", gpus, selectors),
        # There are no selectors: a label on the pod must not bypass the webhook.
        _webhook(OWNED_WEBHOOK, client, "Fail", mentions_owned(), {}),
    ]
    if settings.requests.deny_bypass is not BypassMode.OFF:
        answered = "Fail" if settings.requests.deny_bypass is BypassMode.DENY else "Ignore"
        webhooks.append(_webhook(BYPASS_WEBHOOK, client, answered, f"!({gpus}) && ({chooses_gpus(names)})", others))
    if settings.overwrite_env or settings.requests.core_policy is not CorePolicy.DEFAULT:
        webhooks.append(_webhook(REST_WEBHOOK, client, "Ignore", f"!({gpus})", others))
    if settings.gpu_sums:
        webhooks.append(_templates(client, _namespaces(excluded_namespaces)))
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": name},
        "webhooks": webhooks,
    }


def _webhook(name: str, client: Json, failure_policy: str, condition: str, selectors: Json) -> Json:
    return {
        "name": name,
        "clientConfig": client,
        "rules": [
            {
                "apiGroups": [""],
                "apiVersions": ["v1"],
                "operations": ["CREATE"],
                "resources": ["pods"],
                "scope": "Namespaced",
            }
        ],
        "matchConditions": [{"name": "concerned", "expression": condition}],
        **selectors,
        "failurePolicy": failure_policy,
        "matchPolicy": "Equivalent",
        # Another webhook may add a container after us. A second call does not repeat changes.
        "reinvocationPolicy": "IfNeeded",
        "sideEffects": "None",
        # A webhook that hangs must not delay pods for long that it cannot refuse.
        "timeoutSeconds": 10 if failure_policy == "Fail" else 2,
        "admissionReviewVersions": ["v1", "v1beta1"],
    }


def _templates(client: Json, namespaces: Json) -> Json:
    """The webhook for Jobs that Kueue queues."""
    if "service" in client:
        client = {"service": {**client["service"], "path": TEMPLATES_PATH}}
    else:
        client = {**client, "url": client["url"].replace(WEBHOOK_PATH, TEMPLATES_PATH)}
    queued = {"matchExpressions": [{"key": "kueue.x-k8s.io/queue-name", "operator": "Exists"}]}
    selectors = {"namespaceSelector": namespaces, "objectSelector": queued}
    webhook = _webhook(TEMPLATES_WEBHOOK, client, "Ignore", "", selectors)
    del webhook["matchConditions"]
    rule = {"apiGroups": ["batch"], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["jobs"]}
    return webhook | {"rules": [rule | {"scope": "Namespaced"}]}


def _namespaces(excluded: Sequence[str]) -> Json:
    if not excluded:
        return _IGNORED
    by_name = {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": list(excluded)}
    return {"matchExpressions": [*_IGNORED["matchExpressions"], by_name]}
