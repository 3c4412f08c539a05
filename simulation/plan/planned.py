"""The work of `topogpu-sim plan`: reads the question, performs its runs, and writes the report (edge)."""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryFile

import click
import msgspec

from deviceplugin.container.atomic_file import write_atomically
from program.output import print_json, print_text
from program.settings.effective import Effective
from program.words import counted, printable
from proto.annotations.errors import AnnotationError
from proto.kubernetes.objects import PodGroup
from scheduler_ext.cli.pods import read_pods
from scheduler_ext.cli.state import StateError, read_document, read_documents, read_text
from scheduler_ext.configuration import SchedulerConfiguration, warnings
from scheduler_ext.policies import PolicyError, parse_gpu_policy, parse_node_policy
from scheduler_ext.requests import RequestSettings
from simulation.plan import machines, mixes, recorded, traces
from simulation.plan.advise import Advice
from simulation.plan.advise import advise as advise_on
from simulation.plan.groups import copied_group, copied_pod, incomplete
from simulation.plan.merge import MergeError, read_reports
from simulation.plan.objects import Arrival, Described, WholePod, arrival_of
from simulation.plan.outcome import PlanReport, PlanRun
from simulation.plan.page import chart_of, page
from simulation.plan.progress import shown_progress
from simulation.plan.question import Kinds, Question
from simulation.plan.runs import TooManyPods, check_number, in_order
from simulation.plan.tables import advice_text, joint_text, report_text
from simulation.plan.together import Joint, place_together
from simulation.plan.workers import WorkerLost, perform
from simulation.words import DEFAULT_POLICIES, MOST_PODS, HostPolicy

MOST_SEEDS = 1000
OWN_ORDERS = 5
"""Orders of generated pods, if none are given: an answer has an interval then."""
MOST_PLACED = 20_000
"""Pods that all these runs may place: a few seconds."""
_PROBLEMS = (
    StateError,
    machines.UnknownMachine,
    mixes.UnknownWork,
    traces.TraceError,
    PolicyError,
    MergeError,
    WorkerLost,
    TooManyPods,
    AnnotationError,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOptions:
    """The options as the command line has them."""

    cluster: str | None
    state: str | None
    snapshot: str | None
    pods: Sequence[str]
    mix: str
    count: int
    copies: int
    fill: float | None
    replay: bool
    policies: Sequence[str]
    seeds: str
    cpu_pods: str
    add_nodes: str
    drain: Sequence[str]
    advise: bool
    together: bool
    output: str
    each_pod: bool
    json_: str | None
    html: str | None
    svg: str | None
    processes: int
    slice_: str
    merged: str | None


def answer(options: PlanOptions, effective: Effective[SchedulerConfiguration]) -> None:
    """Prints. Raises click.ClickException."""
    for warning in warnings(effective):
        click.echo(f"warning: {warning}", err=True)
    settings = effective.configuration.requests
    _check_paths((options.json_, options.html, options.svg))
    try:
        if options.merged is not None:
            report = read_reports(options.merged)
        else:
            as_it_is, waiting = _cluster(options.cluster, options.state, options.snapshot, settings)
            found = as_it_is
            if options.add_nodes:
                found = found.beside(machines.read_cluster(options.add_nodes, "added-"))
            found, moved = recorded.drain(found, options.drain)
            arrivals = [*moved, *waiting]
            for file in options.pods:
                pods, groups = _pods(file, settings, options.copies)
                arrivals += pods
                found = replace(found, groups=(*found.groups, *groups))
            if options.mix:
                arrivals += mixes.read_mix(options.mix, options.count, 1, settings.names)
            if not (arrivals or options.advise or options.drain):
                raise click.UsageError(
                    "there is no pod to place; give --filename, --mix, or a --state with waiting pods"
                )
            found = replace(found, notes=(*found.notes, *incomplete(found, arrivals)))
            question = Question(
                cluster=found,
                before=as_it_is if options.add_nodes or options.drain else None,
                arrivals=tuple(arrivals),
                settings=settings,
                hosts=HostPolicy(options.cpu_pods),
                replays=options.replay,
                fill=options.fill,
                homes=options.each_pod,
            )
            if options.advise or options.together:
                _answer_for_now(question, options, settings)
                return
            report = _performed(question, _runs(options, question), options.slice_, options.processes)
    except _PROBLEMS as error:
        raise click.ClickException(str(error)) from error
    _tell(report.notes)
    _write(report, options.output, options.json_, options.html, options.svg)


def _answer_for_now(question: Question, options: PlanOptions, settings: RequestSettings) -> None:
    """Prints advice, or a batch, for the cluster at one moment. Raises PolicyError and TooManyPods."""
    name = "--advise" if options.advise else "--together"
    if options.advise and options.together:
        raise click.UsageError("--advise moves pods, --together places those that wait: give one of them")
    if options.html or options.svg or options.json_ or options.each_pod or len(options.policies) > 1:
        raise click.UsageError(f"{name} goes with one --policy at most, and prints only")
    if options.seeds or options.slice_ or options.replay:
        raise click.UsageError(f"{name} looks at one moment, without --seeds, --slice and --replay")
    run = PlanRun(policy=_policy(options.policies[0]) if options.policies else _own_policy(settings))
    words = _in_words(question, Kinds(question))
    with shown_progress("searching") as shown:
        search = advise_on if options.advise else place_together
        answer: Advice | Joint = search(question, run, words, lambda part: shown(part, ""))
    _tell(answer.notes)
    if options.output == "json":
        print_json(answer)
    else:
        print_text(advice_text(answer) if isinstance(answer, Advice) else joint_text(answer))


def _tell(notes: Iterable[str]) -> None:
    for note in notes:
        click.echo(f"note: {printable(note)}", err=True)


def _own_policy(settings: RequestSettings) -> str:
    return f"{settings.node_policy}/{settings.gpu_policy.text}"


def _cluster(
    words: str | None, state: str | None, snapshot: str | None, settings: RequestSettings
) -> tuple[Described, list[Arrival]]:
    """Returns the cluster, and its pods that wait."""
    if sum(each is not None for each in (words, state, snapshot)) != 1:
        raise click.UsageError("describe one cluster: give --cluster, --state or --snapshot")
    if state is not None:
        return recorded.read_objects(read_document(state), state, settings)
    if snapshot is not None:
        return recorded.from_snapshot(read_document(snapshot), snapshot, settings), []
    words = words or ""
    if words.endswith(".csv"):
        return traces.read_nodes(read_text(words), words), []
    return machines.read_cluster(words), []


def _pods(file: str, settings: RequestSettings, copies: int) -> tuple[Sequence[Arrival], Sequence[PodGroup]]:
    """Returns the pods of a file, each so many times, and the groups that it describes. Raises TooManyPods."""
    if file.endswith(".csv"):
        rows = traces.read_pods(read_text(file), file, settings.names)
        check_number(len(rows) * copies)
        return [each for each in rows for _ in range(copies)], ()
    documents = read_documents(file)
    pods, groups = read_pods(documents, file, WholePod, MOST_PODS), recorded.groups_in(documents, file)
    check_number(len(pods) * copies)
    return (
        [arrival_of(copied_pod(pod, number)) for pod in pods for number in range(copies)],
        [copied_group(group, number) for group in groups for number in range(copies)],
    )


def _runs(options: PlanOptions, question: Question) -> list[PlanRun]:
    """Returns every policy with every seed, and the same for the cluster as it is if nodes are added or drained. Raises
    PolicyError.
    """
    different = dict.fromkeys(map(_policy, options.policies or DEFAULT_POLICIES))
    clusters = (True, False) if question.before is not None else (False,)
    return [
        PlanRun(policy=policy, seed=seed, before=before)
        for seed in _seeds(options, len(different) * len(clusters))
        for policy in different
        for before in clusters
    ]


def _seeds(options: PlanOptions, runs_of_each: int) -> Sequence[int | None]:
    """Returns None for pods in their own order. Pods that are drawn have none: a small plan draws some."""
    if not options.seeds:
        drawn = options.mix and not options.pods and options.fill is None
        few = runs_of_each * OWN_ORDERS * options.count <= MOST_PLACED
        return range(1, OWN_ORDERS + 1) if drawn and few else [None]
    first, _, last = map(_number, options.seeds.partition("-"))
    if "-" not in options.seeds:
        last = first
    if first is None or last is None or not 0 <= last - first < MOST_SEEDS:
        wanted = f"expected a number, or the first and the last, such as 1-10, and {MOST_SEEDS} at most"
        raise click.UsageError(f"--seeds {options.seeds[:40]}: {wanted}")
    return range(first, last + 1)


def _number(text: str) -> int | None:
    """Returns None if the text is no number of at most nine digits."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 9 else None


def _policy(text: str) -> str:
    """Returns the size as NODES/GPUS. One word is meant for both. Raises PolicyError."""
    node, slash, gpu = text.partition("/")
    gpu = gpu if slash else node
    parse_node_policy(node, f"--policy {text}")
    parse_gpu_policy(gpu, f"--policy {text}")
    return f"{node}/{gpu}"


def _sliced(runs: Sequence[PlanRun], slice_: str) -> Sequence[PlanRun]:
    if not slice_:
        return runs
    index, _, count = map(_number, slice_.partition("/"))
    if index is None or count is None or index >= count:
        raise click.UsageError(f"--slice {slice_[:40]}: expected INDEX/COUNT with an index from 0, such as 0/10")
    return runs[index::count]


def _performed(question: Question, runs: Sequence[PlanRun], slice_: str, processes: int) -> PlanReport:
    """Performs the runs."""
    kinds = Kinds(question)
    mine = _sliced(runs, slice_)
    for each in mine[:1]:
        in_order(question, each, kinds)
    parts = dict.fromkeys(mine, 0.0)
    with shown_progress("placing") as shown:

        def progress(each: PlanRun, part: float) -> None:
            parts[each] = part
            ended = sum(one >= 1 for one in parts.values())
            shown(sum(parts.values()) / len(mine), f"{ended} of {counted(len(mine), 'run')}")

        outcomes = perform(question, mine, processes, progress)
    return PlanReport(
        question=_in_words(question, kinds),
        fingerprint=_fingerprint(question),
        nodes=len(question.cluster.nodes),
        gpus=kinds.gpus,
        runs=len(runs),
        notes=question.cluster.notes,
        outcomes=outcomes,
    )


def _in_words(question: Question, kinds: Kinds) -> str:
    cluster, moved = question.cluster, sum(bool(each.came_from) for each in question.arrivals)
    coming = len(question.arrivals) - moved
    parts = [f"{counted(len(cluster.nodes), 'node')} with {counted(kinds.gpus, 'GPU')}"]
    parts += [f"{counted(len(cluster.held), 'pod')} already there"] * bool(cluster.held)
    parts += [f"{counted(moved, 'pod')} to place on another node"] * bool(moved)
    parts += [f"{counted(coming, 'pod')} to place{' for a time' if question.replays else ''}"] * bool(coming)
    parts += [f"and more of them, until they ask for {question.fill or 0:g} % of all GPUs"] * bool(question.fill)
    return ", ".join(parts)


def _fingerprint(question: Question) -> str:
    """Returns the same for the same question, whatever the runs."""
    cluster = question.cluster
    told = [
        [cluster.nodes, cluster.held, cluster.quotas],
        [(each.name, each.kind, each.at, each.lasts, each.came_from) for each in question.arrivals],
        [question.before and [each.metadata.name for each in question.before.nodes]],
        [question.settings, question.hosts, question.replays, question.fill],
    ]
    return hashlib.sha256(msgspec.msgpack.encode(told, order="sorted")).hexdigest()[:16]


def _write(report: PlanReport, output: str, json_: str | None, html: str | None, svg: str | None) -> None:
    for file, make in ((json_, _as_json), (html, page), (svg, chart_of)):
        if file is not None:
            with _writing(file):
                _write_file(Path(file), make(report).encode())
    if output == "json":
        print_json(report)
    else:
        print_text(report_text(report))


def _check_paths(files: Iterable[str | None]) -> None:
    """Checks the paths before the runs, which may take long."""
    for file in files:
        if file is not None:
            with _writing(file):
                path = Path(file)
                path.parent.mkdir(parents=True, exist_ok=True)
                if not path.exists() or path.is_file():
                    TemporaryFile(dir=path.parent).close()


@contextmanager
def _writing(file: str) -> Iterator[None]:
    """Raises ClickException in place of OSError."""
    try:
        yield
    except OSError as error:
        raise click.ClickException(f"{file}: cannot be written: {error.strerror}") from error


def _write_file(path: Path, content: bytes) -> None:
    """Writes the file whole or not at all, unless it is a device such as /dev/stdout. Raises OSError."""
    if path.exists() and not path.is_file():
        path.write_bytes(content)
    else:
        write_atomically(path, content)


def _as_json(report: PlanReport) -> str:
    return msgspec.json.encode(report).decode()
