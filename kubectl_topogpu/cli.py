"""The commands of `kubectl topogpu`."""

import time
from collections.abc import Callable
from functools import wraps
from pathlib import Path

import click

from kubectl_topogpu import fit as fitting
from kubectl_topogpu import top as tree
from kubectl_topogpu import topo as links
from kubectl_topogpu import waste as unasked
from kubectl_topogpu import who as holding
from kubectl_topogpu import why as reasons
from kubectl_topogpu.cluster import Cluster, GpuNode, read_cluster
from kubectl_topogpu.kubectl import Connection, Unreadable, from_file, live, namespace
from kubectl_topogpu.report import Output, Report
from program.commands import Commands
from program.output import print_text
from program.words import printable
from proto import __version__
from scheduler_ext.policies import GPU_WORDS, NodePolicy
from scheduler_ext.requests import RequestError, RequestSettings, read_request

_WATCH_SECONDS = 2.0

_FROM = "Read what `kubectl get nodes,pods,resourcequotas -A -o json` printed; - is standard input."

Command = Callable[..., Report]


class Source:
    """The source of objects: the cluster, or a file. It reads only what a command needs."""

    def __init__(self, connection: Connection, file: str, chosen_namespace: str) -> None:
        self._connection = connection
        self._file = file
        self._namespace = chosen_namespace

    def cluster(self) -> Cluster:
        """Raises Unreadable."""
        return read_cluster(from_file(self._file) if self._file else live(self._connection), RequestSettings())

    def namespace(self) -> str:
        """Raises Unreadable."""
        return self._namespace or ("default" if self._file else namespace(self._connection))


def _options(command: Command) -> Callable[..., None]:
    """Adds the options of every command; the command returns the report of a source."""

    @click.option(
        "-o",
        "--output",
        type=click.Choice([each.value for each in Output]),
        default=Output.TEXT.value,
        show_default=True,
    )
    @click.option("--from", "file", metavar="FILE", default="", type=click.Path(allow_dash=True), help=_FROM)
    @click.option("--kubeconfig", default="", help="As kubectl's.")
    @click.option("--context", "kube_context", default="", help="As kubectl's.")
    @click.option(
        "-n", "--namespace", "chosen", default="", help="Namespace of pods that are named without one, as in kubectl."
    )
    @click.option("-w", "--watch", is_flag=True, help=f"Show it again every {_WATCH_SECONDS:g} s.")
    @wraps(command)
    def with_options(
        *,
        output: str,
        file: str,
        kubeconfig: str,
        kube_context: str,
        chosen: str,
        watch: bool,
        **arguments: object,
    ) -> None:
        source = Source(Connection(kubeconfig=kubeconfig, context=kube_context), file, chosen)
        if watch and file:
            raise click.UsageError("--watch cannot be used with --from: a file does not change")
        while True:
            try:
                report = command(source, **arguments)
            except (Unreadable, LookupError, RequestError) as error:
                raise click.ClickException(printable(str(error))) from error
            if watch:
                click.clear()
            _show(report, Output(output))
            if not watch:
                return
            time.sleep(_WATCH_SECONDS)

    return with_options


def _show(report: Report, output: Output) -> None:
    if output in (Output.TEXT, Output.WIDE):
        print_text(report.text(output is Output.WIDE))
        return
    click.echo(report.encoded(output), nl=False)


def _node(cluster: Cluster, name: str) -> GpuNode:
    node = cluster.node(name)
    if node is None:
        raise LookupError(f"node {name} has no GPUs of TopoGPU or HAMi; `kubectl topogpu top` lists those that have")
    return node


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="kubectl-topogpu")
def main() -> None:
    """Show who holds which GPU, why a pod waits, and what still fits.

    It reads nodes, pods and quotas through kubectl, or from a file. It changes nothing and needs no server.

    \b
      kubectl topogpu top                    nodes, their GPUs, and the pods on them
      kubectl topogpu why train-0 -n ml      why it waits, and what would help
      kubectl topogpu fit --gpus 2 --memory 8000
    """


@main.command()
@click.argument("nodes", nargs=-1)
@click.option("--level", type=click.Choice([each.value for each in tree.Level]), default="pods", show_default=True,
              help="Level of detail.")  # fmt: skip
@_options
def top(source: Source, nodes: tuple[str, ...], level: str) -> Report:
    """Show nodes, their GPUs, and the pods that hold them: memory, cores and slots."""
    cluster = source.cluster()
    return tree.top(cluster, [_node(cluster, name) for name in nodes] or cluster.nodes, tree.Level(level))


@main.command()
@click.argument("target")
@_options
def who(source: Source, target: str) -> Report:
    """Show who holds TARGET: a node, a GPU (NODE/INDEX, or the beginning of its UUID), or a pod."""
    return holding.who(source.cluster(), target, source.namespace())


@main.command()
@click.argument("pod")
@_options
def why(source: Source, pod: str) -> Report:
    """Explain why POD ([NAMESPACE/]NAME) waits and what would help, or why it has its node.

    It checks only the nodes' GPUs. kube-scheduler checks CPUs, memory, taints and selectors.
    """
    cluster = source.cluster()
    name = pod if "/" in pod else f"{source.namespace()}/{pod}"
    if name not in cluster.pods:
        raise LookupError(f"there is no pod {name}")
    return reasons.why(cluster, cluster.pods[name])


@main.command()
@click.option("--gpus", type=click.IntRange(1, 256), default=1, show_default=True, help="GPUs of one pod.")
@click.option("--memory", type=click.IntRange(1), metavar="MIB", help="Memory of each GPU [default: all].")
@click.option(
    "--memory-percent", type=click.IntRange(1, 100), metavar="PERCENT", help="Memory of each GPU, instead of --memory."
)
@click.option("--cores", type=click.IntRange(0, 100), metavar="PERCENT", help="Cores of each GPU [default: no limit].")
@click.option("--policy", "gpu_policy", type=click.Choice(list(GPU_WORDS)), help="GPU policy of the pod.")
@click.option("--node-policy", type=click.Choice([each.value for each in NodePolicy]), help="Node policy of the pod.")
@click.option("--type", "gpu_type", metavar="MODEL", help="A part of the GPU's model, such as A100.")
@_options
def fit(
    source: Source,
    *,
    gpus: int,
    memory: int | None,
    memory_percent: int | None,
    cores: int | None,
    gpu_policy: str | None,
    node_policy: str | None,
    gpu_type: str | None,
) -> Report:
    """Show how many more pods of one shape fit, and on which nodes."""
    if memory is not None and memory_percent is not None:
        raise click.UsageError("--memory and --memory-percent cannot be used together; give one")
    cluster = source.cluster()
    pod = fitting.pod_of(
        cluster.settings.names,
        namespace=source.namespace(),
        gpus=gpus,
        memory_mib=memory,
        memory_percent=memory_percent,
        cores=cores,
        gpu_policy=gpu_policy or "",
        node_policy=node_policy or "",
        gpu_type=gpu_type or "",
    )
    request = read_request(pod, cluster.settings)
    if request is None:
        raise LookupError("the shape asks for no GPU")
    return fitting.fit(cluster, request)


@main.command()
@click.argument("node")
@click.option("--svg", metavar="FILE", help="Write an SVG drawing to FILE instead.")
@_options
def topo(source: Source, node: str, svg: str | None) -> Report:
    """Show how the GPUs of NODE are connected, and who holds them."""
    found = _node(source.cluster(), node)
    if svg:
        try:
            Path(svg).write_text(links.topo_svg(found), encoding="utf-8")
        except OSError as error:
            raise Unreadable(f"{svg}: {error.strerror or error}") from error
    return links.topo(found)


@main.command()
@_options
def waste(source: Source) -> Report:
    """Show memory that no pod asked for: idle, unused, and stranded where no pod can get it."""
    return unasked.waste(source.cluster())


@main.command()
@_options
def frag(source: Source) -> Report:
    """Show how large a request still fits: whole GPUs together on a node, and the largest share."""
    return unasked.frag(source.cluster())
