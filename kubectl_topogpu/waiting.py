"""`why` without a pod: the pods that wait for GPUs, grouped by what keeps them waiting. No IO."""

from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.text import Text

from kubectl_topogpu.cluster import GpuCluster, request_words
from kubectl_topogpu.report import Row, TableReport
from kubectl_topogpu.why import PodAccount, answer_for
from program.words import counted
from proto.kubernetes.objects import Pod
from scheduler_ext.capacity.pod_verdict import likeness_of

MOST_NAMED = 3
MOST_KINDS = 100
"""Different requests that are judged; pods of further ones are only counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Alike:
    """Pods of one namespace that request the same; `answer` is that of the first."""

    asks: str
    answer: PodAccount
    pods: tuple[str, ...]


def waiting(cluster: GpuCluster, namespace: str) -> TableReport:
    """Returns a row for each pod of the namespace that waits; of all namespaces without one."""
    pods = [pod for pod in cluster.pods if not namespace or (pod.metadata.namespace or "default") == namespace]
    kinds: dict[bytes, list[Pod]] = {}
    for pod in sorted(pods, key=lambda pod: pod.full_name):
        kinds.setdefault(likeness_of(pod), []).append(pod)
    largest = sorted(kinds.values(), key=lambda alike: (-len(alike), alike[0].full_name))
    found = [
        Alike(
            asks=request_words(alike[0], cluster.settings),
            answer=answer_for(cluster, alike[0], brief=True),
            pods=tuple(pod.full_name for pod in alike),
        )
        for alike in largest[:MOST_KINDS]
    ]
    rows: list[Row] = [
        {"pod": pod, "asks": each.asks, "why": each.answer.sentence, "reasons": _reasons(each.answer)}
        for each in found
        for pod in each.pods
    ]
    left = sum(map(len, largest[MOST_KINDS:]))
    return TableReport(rows=rows, named="pod", text=lambda wide: _text(found, len(pods), left, namespace, wide=wide))


def _reasons(answer: PodAccount) -> str:
    return "; ".join(f"{counted(len(each.nodes), 'node')}: {each.reason}" for each in answer.refused)


def _text(found: list[Alike], pods: int, left: int, namespace: str, *, wide: bool) -> RenderableType:
    if not pods:
        return Text(f"no pod of {f'namespace {namespace}' if namespace else 'any namespace'} waits for GPUs")
    lines: list[RenderableType] = []
    for each in found:
        named = each.pods if wide else each.pods[:MOST_NAMED]
        rest = f" and {len(each.pods) - len(named)} more" if len(named) < len(each.pods) else ""
        lines.append(Text.assemble((f"{', '.join(named)}{rest}", "bold"), f" ({each.asks})"))
        lines.append(Text(f"  {each.answer.sentence}"))
        lines += [Text(f"    {counted(len(group.nodes), 'node')}: {group.reason}") for group in each.answer.refused]
    lines.append(Text(f"{counted(pods, 'pod')}; kubectl topogpu why POD shows what would help", "dim"))
    if left:
        lines.append(Text(f"{counted(left, 'pod')} of further kinds not judged", "dim"))
    return Group(*lines)
