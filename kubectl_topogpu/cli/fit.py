"""`kubectl topogpu fit`."""

import click

from kubectl_topogpu import fit as fitting
from kubectl_topogpu.cli.options import CommonOptions, with_options
from kubectl_topogpu.cluster import Wanted
from kubectl_topogpu.report import TableReport
from program.commands import WholeNumber
from proto.annotations.keys import GPU_POLICY, NODE_POLICY, USE_GPU_TYPE
from scheduler_ext.policies import GPU_WORDS, NodePolicy
from scheduler_ext.requests import read_request


@click.command()
@click.option("--gpus", type=WholeNumber(1, 256), default=1, show_default=True, help="GPUs of one pod.")
@click.option("--memory", type=WholeNumber(1), metavar="MIB", help="Memory of each GPU [default: all].")
@click.option(
    "--memory-percent", type=WholeNumber(1, 100), metavar="PERCENT", help="Memory of each GPU, instead of --memory."
)
@click.option("--cores", type=WholeNumber(0, 100), metavar="PERCENT", help="Cores of each GPU [default: no limit].")
@click.option("--policy", "gpu_policy", type=click.Choice(list(GPU_WORDS)), help="GPU policy of the pod.")
@click.option("--node-policy", type=click.Choice([each.value for each in NodePolicy]), help="Node policy of the pod.")
@click.option("--type", "gpu_type", metavar="MODEL", help="A part of the GPU's model, such as A100.")
@with_options
def fit(
    asked: CommonOptions,
    *,
    gpus: int,
    memory: int | None,
    memory_percent: int | None,
    cores: int | None,
    gpu_policy: str | None,
    node_policy: str | None,
    gpu_type: str | None,
) -> TableReport:
    """Show how many more pods of one shape fit, and on which nodes."""
    if memory is not None and memory_percent is not None:
        raise click.UsageError("--memory and --memory-percent cannot be used together; give one")
    pod = fitting.pod_of(
        asked.settings.names,
        namespace=asked.namespace,
        gpus=gpus,
        memory_mib=memory,
        memory_percent=memory_percent,
        cores=cores,
        annotations={GPU_POLICY: gpu_policy or "", NODE_POLICY: node_policy or "", USE_GPU_TYPE: gpu_type or ""},
    )
    request = read_request(pod, asked.settings)
    if request is None:
        raise LookupError("the shape asks for no GPU")
    return fitting.fit(asked.cluster(Wanted(decisions=True, holders=False)), request)
