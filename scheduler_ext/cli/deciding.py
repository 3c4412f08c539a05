"""Reads what `decide` is given, takes the decisions, and prints them."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import click
import msgspec

from program.output import print_text
from program.settings.effective import Effective
from proto.annotations.keys import DEVICES_ALLOCATED, POD_NODE
from proto.annotations.pod_devices import encode_pod_devices
from proto.kubernetes.objects import Pod
from scheduler_ext.cli.answers import PodDecision, answer_document, answer_text, answers_document
from scheduler_ext.cli.pods import read_pods
from scheduler_ext.cli.state import StateError, read_document, read_documents, read_snapshot, read_state
from scheduler_ext.cluster.accounting import NOTHING, effective
from scheduler_ext.cluster.ledger import Ledger
from scheduler_ext.cluster.snapshot import Snapshot
from scheduler_ext.configuration import SchedulerConfiguration, warnings
from scheduler_ext.decide.decision import Decision
from scheduler_ext.decide.decision import decide as decide_pod
from scheduler_ext.decide.explain import explain as explain_decision
from scheduler_ext.decide.place import with_pod
from scheduler_ext.decide.score import UNSCORED
from scheduler_ext.quota_class import are_in
from scheduler_ext.requests import GpuRequest, RequestError, RequestSettings, read_request


@dataclass(frozen=True, slots=True)
class StateWorld:
    """A cluster of objects. `names` are its nodes in the order of the document."""

    ledger: Ledger
    names: Sequence[str]

    def snapshot_for(self, pod: Pod) -> Snapshot:
        """Returns the cluster without the pod itself."""
        return self.ledger.snapshot_for(pod)

    def place(self, pod: Pod, _: GpuRequest, decision: Decision) -> None:
        """Places the pod where the decision puts it."""
        node, devices = decision.node or "", encode_pod_devices(decision.shares)
        annotations = {**pod.metadata.annotations, POD_NODE: node, DEVICES_ALLOCATED: devices}
        metadata = msgspec.structs.replace(pod.metadata, annotations=annotations)
        spec = msgspec.structs.replace(pod.spec, node_name=node)
        self.ledger.apply_pod(msgspec.structs.replace(pod, metadata=metadata, spec=spec))


class SnapshotWorld:
    """A cluster as the running extender wrote it."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.names: Sequence[str] = [*snapshot.nodes, *snapshot.unregistered]
        self._snapshot = snapshot

    def snapshot_for(self, _: Pod) -> Snapshot:
        """Returns all of it: a snapshot has no record of the pods that it counts."""
        return self._snapshot

    def place(self, _: Pod, request: GpuRequest, decision: Decision) -> None:
        if decision.node is None:
            return
        before = self._snapshot
        part = sum(effective(request.kinds, decision.shares).values(), NOTHING)
        quotas = tuple(
            replace(quota, used=quota.used + part) if are_in(request.quota_class, quota.scopes) else quota
            for quota in before.quotas.get(request.namespace, ())
        )
        usage = with_pod(before.nodes[decision.node], request, decision.shares)
        self._snapshot = replace(
            before,
            nodes={**before.nodes, decision.node: usage},
            quotas={**before.quotas, request.namespace: quotas},
        )


World = StateWorld | SnapshotWorld


ANY_NODE = "the pod asks for no GPU that TopoGPU gives out: kube-scheduler places it alone"
FITS, DOES_NOT_FIT, BAD_INPUT = 0, 1, 2
"""Exit statuses."""


class BadInput(click.ClickException):
    """The input cannot be used."""

    exit_code = BAD_INPUT


@dataclass(frozen=True, slots=True, kw_only=True)
class DecideOptions:
    """The command line. No `node_names` are all nodes."""

    cluster_file: str | None
    is_snapshot: bool
    pod_files: tuple[str, ...]
    node_names: tuple[str, ...]
    explain: bool
    as_json: bool


def answer_files(options: DecideOptions, effective: Effective[SchedulerConfiguration]) -> int:
    """Decides about the pods, prints the answers, and returns the exit status. Raises click.ClickException."""
    warn(warnings(effective))
    requests = effective.configuration.requests
    try:
        world, pods = _read_files(options, requests)
    except StateError as error:
        raise BadInput(str(error)) from error
    answers, problems = [], []
    for pod in pods:
        try:
            answers.append(_decide(pod, world, options, requests))
        except RequestError as error:
            answers.append(PodDecision(pod=pod.full_name, decision=Decision(node=None), error=str(error)))
            problems.append(str(error) if len(pods) == 1 else f"pod {pod.full_name}: {error}")
    if options.as_json:
        document = answer_document(answers[0]) if len(answers) == 1 else answers_document(answers)
        click.echo(json.dumps(document, ensure_ascii=False))
    elif len(answers) > len(problems):
        print_text(answer_text(answers))
    if problems:
        raise BadInput("; ".join(problems))
    return FITS if all(answer.decision.node is not None for answer in answers) else DOES_NOT_FIT


def _decide(pod: Pod, world: World, options: DecideOptions, settings: RequestSettings) -> PodDecision:
    """Takes the decision. Raises RequestError if the pod's request cannot be read."""
    request, names = read_request(pod, settings), options.node_names or tuple(world.names)
    if request is None:
        any_node = Decision(node=names[0], fits=dict.fromkeys(names, UNSCORED))
        return PodDecision(pod=pod.full_name, decision=any_node, note=ANY_NODE)
    warn(request.policies.warnings)
    snapshot = world.snapshot_for(pod)
    decision = decide_pod(request, snapshot, names)
    none_fits = f"none of {len(names)} nodes fits the pod" if decision.node is None else ""
    answer = PodDecision(
        pod=pod.full_name,
        decision=decision,
        request=request,
        usage=snapshot.nodes.get(decision.node or ""),
        explanation=explain_decision(request, decision) if options.explain else (),
        error=decision.error or none_fits,
    )
    world.place(pod, request, decision)
    return answer


def warn(sentences: Iterable[str]) -> None:
    for warning in sentences:
        click.echo(f"warning: {warning}", err=True)


def _read_files(options: DecideOptions, settings: RequestSettings) -> tuple[World, tuple[Pod, ...]]:
    """Returns the cluster and the pods of the files. Raises StateError."""
    cluster, option = options.cluster_file, "--snapshot" if options.is_snapshot else "--state"
    if cluster is None:
        raise StateError("--state is missing; give both --state and --filename")
    if not options.pod_files:
        raise StateError(f"--filename is missing; give both {option} and --filename")
    if [cluster, *options.pod_files].count("-") > 1:
        raise StateError(f"{option} and --filename cannot both be standard input; name a file for one of them")
    document = read_document(cluster)
    if options.is_snapshot:
        world: World = SnapshotWorld(read_snapshot(document, cluster))
    else:
        ledger, names = read_state(document, cluster, settings)
        # A node that offers nothing is in the answer, with the reason.
        named = {f"node {name}" for name in names}
        warn(f"{subject}: {problem}" for subject, problem in ledger.problems().items() if subject not in named)
        world = StateWorld(ledger, names)
    return world, tuple(pod for file in options.pod_files for pod in read_pods(read_documents(file), file, Pod))
