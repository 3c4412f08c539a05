"""`kubectl topogpu resize`."""

import time
from collections.abc import Iterator

import click

from kubectl_topogpu.amounts import MEMORY, RequestedMemory
from kubectl_topogpu.cli.completion import CONTEXTS, NAMESPACES, PODS
from kubectl_topogpu.kubectl import Connection, ObjectsUnreadable, annotate, namespace, read_pod
from program.commands import RealNumber
from program.words import printable
from proto.annotations.errors import AnnotationError
from proto.annotations.keys import DEVICES_ALLOCATED, MEMORY_WISH
from proto.annotations.memory_resize import (
    ENDED,
    ResizeAnswer,
    ResizeState,
    answer_in,
    answer_words,
    encode_wish,
    wished,
)
from proto.annotations.pod_devices import aligned, decode_pod_devices
from proto.kubernetes.objects import Pod
from scheduler_ext.requests import RequestSettings, gpu_count

_PAUSE_SECONDS = 0.3
_UNANSWERED = "no answer yet: the container may not run, or the node's daemon be away, older, or HAMi's"


@click.command()
@click.argument("pod", shell_complete=PODS)
@click.option("--memory", type=MEMORY, metavar="AMOUNT", required=True,
              help="Memory of each GPU of the container: 8192 (MiB) or 8Gi.")  # fmt: skip
@click.option("--container", "name", metavar="NAME", default="", help="The container, where several have GPUs.")
@click.option("--timeout", type=RealNumber(0, 86_400), default=60.0, show_default=True, metavar="SECONDS",
              help="How long to wait for the answer. The wish stays after that.")  # fmt: skip
@click.option("-n", "--namespace", "chosen", default="", shell_complete=NAMESPACES, help="As kubectl's.")
@click.option("--kubeconfig", default="", type=click.Path(), help="As kubectl's.")
@click.option("--context", "kube_context", default="", shell_complete=CONTEXTS, help="As kubectl's.")
def resize(
    pod: str, *, memory: RequestedMemory, name: str, timeout: float, chosen: str, kubeconfig: str, kube_context: str
) -> None:
    """Change the GPU memory of POD ([NAMESPACE/]NAME) while it runs.

    It writes the annotation topogpu.io/gpu-memory, and waits for the answer. Only memory that NVIDIA's driver limits
    can change.
    """
    if memory.mib is None:
        raise click.UsageError("--memory is an amount such as 8Gi here: the GPUs of a percentage may differ")
    connection = Connection(kubeconfig=kubeconfig, context=kube_context)
    before, _, plain = pod.rpartition("/")
    try:
        where = before or chosen or namespace(connection)
        found = read_pod(connection, where, plain)
        # The stamp makes it another wish than one that was refused before.
        wish = encode_wish({name: memory.mib}, time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()))
        _check(found, wish)
        annotate(connection, where, plain, MEMORY_WISH, wish)
        _show(_answers(connection, where, plain, wish, timeout))
    except AnnotationError as error:
        raise click.ClickException(printable(error.problem)) from error
    except (ObjectsUnreadable, LookupError) as error:
        raise click.ClickException(printable(str(error))) from error


def _check(pod: Pod, wish: str) -> None:
    """Refuses what cannot be meant before anything is written. Raises LookupError and AnnotationError."""
    value = pod.metadata.annotations.get(DEVICES_ALLOCATED, "")
    if not value or not pod.spec.node_name or pod.has_ended:
        raise LookupError(f"pod {pod.metadata.namespace}/{pod.metadata.name} holds no GPU")
    containers, names = pod.all_containers, RequestSettings().names
    shares = decode_pod_devices(DEVICES_ALLOCATED, value, len(containers))
    wished(wish, [each.name for each in containers], aligned(shares, [gpu_count(each, names) for each in containers]))


def _answers(connection: Connection, where: str, name: str, wish: str, seconds: float) -> Iterator[ResizeAnswer | None]:
    """Yields each answer, at last None if there is no last one in time. Raises LookupError if the wish was replaced."""
    until, last = time.monotonic() + seconds, None
    while True:
        pod = read_pod(connection, where, name)
        if pod.metadata.annotations.get(MEMORY_WISH) != wish:
            raise LookupError("somebody has replaced the wish, or taken it back")
        answer = answer_in(pod.metadata.annotations)
        if answer is not None and answer.wish == wish and answer != last:
            yield (last := answer)
            if answer.state in ENDED:
                return
        if time.monotonic() >= until:
            yield None
            return
        time.sleep(_PAUSE_SECONDS)


def _show(answers: Iterator[ResizeAnswer | None]) -> None:
    """Prints the answers. Raises ClickException unless the last one is `done`."""
    words = _UNANSWERED
    for answer in answers:
        if answer is None:
            raise click.ClickException(printable(f"not done in time: {words}; the wish stays until it is taken back"))
        words = answer_words(answer)
        if answer.state is ResizeState.REFUSED:
            raise click.ClickException(printable(words))
        click.echo(printable(words))
