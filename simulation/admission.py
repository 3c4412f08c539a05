"""The extender's webhook in the embedded API server: it completes and refuses pods as in a cluster (pure).

The quotas of a namespace are left to the extender's decision.
"""

from collections.abc import Sequence

from proto.admission import PodReview
from proto.decoding import converted
from proto.kubernetes.objects import Pod
from scheduler_ext.admission.admit import admit
from scheduler_ext.admission.containers import AdmissionSettings
from simulation.apiserver import patches
from simulation.apiserver.errors import ApiRefusal, JsonObject

_WEBHOOK = "gpus.topogpu.io"
_SETTINGS = AdmissionSettings()


def admitted(pod: JsonObject) -> tuple[JsonObject, Sequence[str]]:
    """Returns the pod as the webhook completes it, and its warnings. Raises ApiRefusal."""
    review = PodReview(object=pod, pod=converted(pod, Pod), namespace=pod["metadata"]["namespace"])
    verdict = admit(review, _SETTINGS)
    if not verdict.allowed:
        message = f'admission webhook "{_WEBHOOK}" denied the request: {verdict.message}'
        raise ApiRefusal(verdict.code, "Forbidden" if verdict.code == 403 else "", message)
    return patches.json_patch(pod, list(verdict.patch)), verdict.warnings
