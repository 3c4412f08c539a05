"""The options that every command has, and how its report is shown."""

import gc
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from functools import cached_property, partial, wraps
from typing import Any

import click

from kubectl_topogpu.cli.completion import CONTEXTS, NAMESPACES
from kubectl_topogpu.cluster import GpuCluster, GpuNode, Objects, Wanted, read_cluster
from kubectl_topogpu.extender import FoundExtender, found_extender
from kubectl_topogpu.kubectl import Connection, ObjectsUnreadable
from kubectl_topogpu.report import Output, TableReport, UnknownOrder
from kubectl_topogpu.sources import Recorded, Source, live
from program.output import print_text
from program.words import nearest, printable
from proto.kubernetes.objects import Pod
from proto.kubernetes.selectors import LabelSelector, SelectorError, label_selector
from scheduler_ext.requests import RequestError, RequestSettings

_WATCH_SECONDS = 2.0

_STATE = "Read what `kubectl get nodes,pods,resourcequotas -A -o json` printed; - is standard input."


class CommonOptions:
    """The source of objects, and the options that all commands have."""

    def __init__(self, source: Source, given: "GivenOptions", selects: str) -> None:
        self.source = source
        self.everywhere = given.everywhere
        self.output = Output(given.output)
        self.order = given.order
        """The key by which rows are sorted; empty for the usual order."""
        self.nodes: Collection[str] | None = None
        """The nodes that `--selector` selects in the cluster that was read; None without one."""
        self.notes: tuple[str, ...] = ()
        """What the last answer does not count."""
        self.is_recorded = bool(given.file)
        """True for a file, which does not change."""
        self._selector = given.selector
        self._selects = selects
        self._namespace = given.chosen

    @cached_property
    def extender(self) -> FoundExtender:
        """Returns what the extender runs with. Raises Unreadable."""
        return found_extender(self.source.extenders())

    @property
    def settings(self) -> RequestSettings:
        """Returns the extender's settings. Raises Unreadable."""
        return self.extender.settings

    def cluster(self, wanted: Wanted) -> GpuCluster:
        """Raises Unreadable."""
        objects = self.source.objects()
        # A file need not have the pods of all namespaces, and only what is decided here depends on defaults.
        says_defaults = wanted.decisions and self.extender.note and not self.is_recorded
        self.notes = (*objects.notes, *([self.extender.note] if says_defaults else []))
        selected = label_selector(self._selector)
        if not self._selector:
            return read_cluster(objects, self.settings, wanted)
        if self._selects == "nodes":
            names = {node.metadata.name for node in objects.nodes if selected(node.metadata.labels)}
            self.nodes = names
            found = read_cluster(objects, self.settings, wanted)
            return replace(found, nodes=tuple(node for node in found.nodes if node.name in names))
        return _of_pods(objects, selected, self.settings, wanted)

    @property
    def selects(self) -> bool:
        """Returns whether `--selector` was given."""
        return bool(self._selector)

    @property
    def chosen_namespace(self) -> str:
        """Returns the namespace given by `-n`; empty without it, or for all namespaces."""
        return "" if self.everywhere else self._namespace

    @property
    def namespace(self) -> str:
        """Returns the namespace of pods that are named without one. Raises Unreadable."""
        if not self._namespace:
            self._namespace = self.source.namespace()
        return self._namespace

    def named(self, pod: str) -> tuple[str, str]:
        """Returns namespace and name of `[namespace/]name`. Raises Unreadable."""
        namespace, _, name = pod.rpartition("/")
        return (namespace or self.namespace), name

    def pod(self, text: str) -> Pod:
        """Raises Unreadable, and LookupError if there is no such pod."""
        namespace, name = self.named(text)
        found = self.source.pod(namespace, name)
        if found is None:
            raise LookupError(f"there is no pod {namespace}/{name}{meant(name, [*self.source.pod_names(namespace)])}")
        return found


def meant(name: str, known: Collection[str]) -> str:
    """Returns `; did you mean train-0?`, or nothing."""
    return f"; {nearest(name, known)}".rstrip(" ;")


def _of_pods(objects: Objects, selected: LabelSelector, settings: RequestSettings, wanted: Wanted) -> GpuCluster:
    """Returns the cluster, of whose pods only the selected ones are shown. All count."""
    names = set[str]()

    def noticed() -> Iterator[Pod]:
        for pod in objects.pods:
            if selected(pod.metadata.labels):
                names.add(pod.full_name)
            yield pod

    found = read_cluster(replace(objects, pods=noticed()), settings, wanted)
    nodes = tuple(
        replace(
            node,
            gpus=tuple(
                replace(gpu, holders=tuple(each for each in gpu.holders if each.pod in names)) for gpu in node.gpus
            ),
        )
        for node in found.nodes
    )
    return replace(found, nodes=nodes, pods=tuple(pod for pod in found.pods if pod.full_name in names))


Command = Callable[..., TableReport | None]
ShownCommand = Callable[..., None]


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenOptions:
    """The options that every command has, as they were typed."""

    output: str
    file: str
    kubeconfig: str
    kube_context: str
    chosen: str
    everywhere: bool
    watch: bool
    selector: str = ""
    order: str = ""


def with_options(*, selects: str = "", sorts: bool = False, names: bool = True) -> Callable[[Command], ShownCommand]:
    """Adds the options of every command. The command gets `CommonOptions` and its own arguments, and returns a report.

    `selects` is what `--selector` selects, `nodes` or `pods`; empty without that option. `names` is false for a report
    without nodes and pods.
    """
    forms = [each.value for each in Output if names or each is not Output.NAME]

    def added(command: Command) -> ShownCommand:
        @wraps(command)
        def run(**arguments: Any) -> None:
            # Hardly any of the many objects is in a cycle, and scanning them takes half as long as reading.
            gc.disable()
            given = GivenOptions(**{each.name: arguments.pop(each.name) for each in fields(GivenOptions)
                                    if each.name in arguments})  # fmt: skip
            _check(given)
            try:
                with _source(Connection(kubeconfig=given.kubeconfig, context=given.kube_context), given.file) as source:
                    options = CommonOptions(source, given, selects)
                    _repeat(partial(command, options, **arguments), options, given)
            except UnknownOrder as error:
                raise click.UsageError(printable(str(error))) from error
            except (ObjectsUnreadable, LookupError, RequestError) as error:
                raise click.ClickException(printable(str(error))) from error

        found: ShownCommand = run
        for option in reversed(_options(forms, selects, sorts=sorts)):
            found = option(found)
        return found

    return added


def _options(forms: Sequence[str], selects: str, *, sorts: bool) -> list[Callable[[ShownCommand], ShownCommand]]:
    return [
        click.option("-o", "--output", type=click.Choice(forms), default=Output.TEXT.value, show_default=True),
        *([click.option("-l", "--selector", default="",
                        help=f"Labels of {selects}, as kubectl's.")] if selects else []),
        *([click.option("--sort-by", "order", metavar="COLUMN", default="",
                        help="A column of -o csv, or its beginning: numbers from the largest, names from a.")]
          if sorts else []),
        click.option("-n", "--namespace", "chosen", default="", shell_complete=NAMESPACES,
                     help="Namespace of pods, as kubectl's."),
        click.option("-A", "--all-namespaces", "everywhere", is_flag=True,
                     help="Pods of all namespaces, as kubectl's."),
        click.option("-w", "--watch", is_flag=True, help=f"Show it again every {_WATCH_SECONDS:g} s."),
        click.option("--state", "file", metavar="FILE", default="", type=click.Path(allow_dash=True), help=_STATE),
        click.option("--kubeconfig", default="", type=click.Path(), help="As kubectl's."),
        click.option("--context", "kube_context", default="", shell_complete=CONTEXTS, help="As kubectl's."),
    ]  # fmt: skip


def _check(given: GivenOptions) -> None:
    if given.watch and given.file:
        raise click.UsageError("--watch cannot be used with --state: a file does not change")
    try:
        label_selector(given.selector)
    except SelectorError as error:
        raise click.UsageError(f"--selector: {error}") from error


def _repeat(report: Callable[[], TableReport | None], options: CommonOptions, given: GivenOptions) -> None:
    """Shows the report once, or until Ctrl-C. A command without one has shown all itself."""
    if given.chosen and not given.everywhere:
        options.source.check_namespace(given.chosen)
    while True:
        found = report()
        if found is None:
            return
        if given.watch:
            click.clear()
        _show(found, options)
        if not given.watch:
            return
        del found
        gc.collect()
        time.sleep(_WATCH_SECONDS)


@contextmanager
def _source(connection: Connection, file: str) -> Iterator[Source]:
    if file:
        yield Recorded(file)
        return
    with live(connection) as source:
        yield source


def _show(report: TableReport, options: CommonOptions) -> None:
    for_people = options.output in (Output.TEXT, Output.WIDE)
    if for_people:
        print_text(report.text(options.output is Output.WIDE))
    else:
        click.echo(report.encoded(options.output), nl=False)
    for note in options.notes:
        click.secho(f"! {printable(note)}", fg="yellow", err=not for_people)


def node_of(cluster: GpuCluster, name: str) -> GpuNode:
    """Raises LookupError."""
    node = cluster.node(name)
    if node is None:
        known = [each.name for each in cluster.nodes]
        hint = meant(name, known) or "; `kubectl topogpu top` lists those that have"
        raise LookupError(f"node {name} has no GPUs of TopoGPU or HAMi{hint}")
    return node
