"""`kubectl topogpu fit`."""

import click

from kubectl_topogpu import fit as fitting
from kubectl_topogpu.amounts import MEMORY, PERCENT, RequestedMemory
from kubectl_topogpu.cli.options import CommonOptions, with_options
from kubectl_topogpu.cluster import Wanted
from kubectl_topogpu.report import TableReport
from program.commands import WholeNumber
from proto.annotations.keys import GPU_POLICY, NODE_POLICY, USE_GPU_TYPE
from scheduler_ext.policies import GPU_WORDS, NodePolicy
from scheduler_ext.requests import read_request


@click.command()
@click.option("--gpus", type=WholeNumber(1, 256), default=1, show_default=True, help="GPUs of one pod.")
@click.option("--memory", type=MEMORY, metavar="AMOUNT", default=None,
              help="Memory of each GPU: 8192 (MiB), 8Gi, or 50% of it [default: all].")  # fmt: skip
@click.option("--cores", type=PERCENT, metavar="PERCENT", help="Cores of each GPU, such as 20% [default: no limit].")
@click.option("--gpu-policy", type=click.Choice(list(GPU_WORDS)),
              help="GPU policy of the pod.")  # fmt: skip
@click.option("--node-policy", type=click.Choice([each.value for each in NodePolicy]),
              help="Node policy of the pod.")  # fmt: skip
@click.option("--gpu-type", metavar="MODEL", help="A part of the GPU's model, such as A100.")
@with_options(selects="nodes", sorts=True)
def fit(
    options: CommonOptions, *, gpus: int, memory: RequestedMemory | None, cores: int | None, **annotations: str
) -> TableReport:
    """Show how many more pods of one shape fit, and on which nodes."""
    shape = fitting.FitShape(
        gpus=gpus,
        memory=memory or RequestedMemory(),
        cores=cores,
        annotations={_ANNOTATIONS[option]: value for option, value in annotations.items() if value},
    )
    pod = shape.pod(options.settings.names, options.namespace)
    read_request(pod, options.settings)  # a shape that cannot be read is refused before the cluster is
    return fitting.fit(options.cluster(Wanted(decisions=True, holders=False)), pod, options.nodes, options.order)


_ANNOTATIONS = {"gpu_policy": GPU_POLICY, "node_policy": NODE_POLICY, "gpu_type": USE_GPU_TYPE}
