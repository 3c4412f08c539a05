"""The options that every command has, and how its report is shown."""

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps

import click

from kubectl_topogpu.cli.completion import CONTEXTS, NAMESPACES
from kubectl_topogpu.cluster import GpuCluster, GpuNode, Wanted, read_cluster
from kubectl_topogpu.kubectl import Connection, ObjectsUnreadable
from kubectl_topogpu.report import Output, TableReport
from kubectl_topogpu.sources import Recorded, Source, live
from program.output import print_text
from program.words import printable
from proto.kubernetes.objects import Pod
from scheduler_ext.requests import RequestError, RequestSettings

_WATCH_SECONDS = 2.0

_FROM = "Read what `kubectl get nodes,pods,resourcequotas -A -o json` printed; - is standard input."


class CommonOptions:
    """The source of objects, and the options that all commands have."""

    def __init__(self, source: Source, *, namespace: str, everywhere: bool, output: Output) -> None:
        self.source = source
        self.everywhere = everywhere
        self.output = output
        self.notes: tuple[str, ...] = ()
        """What the last answer does not count."""
        self._namespace = namespace

    @property
    def settings(self) -> RequestSettings:
        return RequestSettings()

    def cluster(self, wanted: Wanted) -> GpuCluster:
        """Raises Unreadable."""
        objects = self.source.objects()
        self.notes = objects.notes
        return read_cluster(objects, self.settings, wanted)

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
            raise LookupError(f"there is no pod {namespace}/{name}")
        return found


Command = Callable[..., TableReport]


def with_options(command: Command) -> Callable[..., None]:
    """Adds the options of every command. The command gets an `Asked` and its own arguments, and returns a report."""

    @click.option(
        "-o",
        "--output",
        type=click.Choice([each.value for each in Output]),
        default=Output.TEXT.value,
        show_default=True,
    )
    @click.option("--from", "file", metavar="FILE", default="", type=click.Path(allow_dash=True), help=_FROM)
    @click.option("--kubeconfig", default="", type=click.Path(), help="As kubectl's.")
    @click.option("--context", "kube_context", default="", shell_complete=CONTEXTS,
                  help="As kubectl's.")  # fmt: skip
    @click.option("-n", "--namespace", "chosen", default="", shell_complete=NAMESPACES,
                  help="Namespace of pods, as kubectl's.")  # fmt: skip
    @click.option("-A", "--all-namespaces", "everywhere", is_flag=True, help="Pods of all namespaces, as kubectl's.")
    @click.option("-w", "--watch", is_flag=True, help=f"Show it again every {_WATCH_SECONDS:g} s.")
    @wraps(command)
    def run(
        *,
        output: str,
        file: str,
        kubeconfig: str,
        kube_context: str,
        chosen: str,
        everywhere: bool,
        watch: bool,
        **arguments: object,
    ) -> None:
        gc.disable()  # hardly any of the many objects is in a cycle, and scanning them takes half as long as reading
        if watch and file:
            raise click.UsageError("--watch cannot be used with --from: a file does not change")
        try:
            with _source(Connection(kubeconfig=kubeconfig, context=kube_context), file) as source:
                asked = CommonOptions(source, namespace=chosen, everywhere=everywhere, output=Output(output))
                while True:
                    report = command(asked, **arguments)
                    if watch:
                        click.clear()
                    _show(report, asked)
                    if not watch:
                        return
                    del report
                    gc.collect()
                    time.sleep(_WATCH_SECONDS)
        except (ObjectsUnreadable, LookupError, RequestError) as error:
            raise click.ClickException(printable(str(error))) from error

    return run


@contextmanager
def _source(connection: Connection, file: str) -> Iterator[Source]:
    if file:
        yield Recorded(file)
        return
    with live(connection) as source:
        yield source


def _show(report: TableReport, asked: CommonOptions) -> None:
    for_people = asked.output in (Output.TEXT, Output.WIDE)
    if for_people:
        print_text(report.text(asked.output is Output.WIDE))
    else:
        click.echo(report.encoded(asked.output), nl=False)
    for note in asked.notes:
        click.secho(f"! {printable(note)}", fg="yellow", err=not for_people)


def node_of(cluster: GpuCluster, name: str) -> GpuNode:
    """Raises LookupError."""
    node = cluster.node(name)
    if node is None:
        raise LookupError(f"node {name} has no GPUs of TopoGPU or HAMi; `kubectl topogpu top` lists those that have")
    return node
