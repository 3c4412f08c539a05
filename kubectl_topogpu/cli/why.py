"""`kubectl topogpu why`."""

import click

from kubectl_topogpu import waiting
from kubectl_topogpu import why as reasons
from kubectl_topogpu.cli.completion import PODS
from kubectl_topogpu.cli.options import CommonOptions, with_options
from kubectl_topogpu.cluster import Wanted
from kubectl_topogpu.report import TableReport
from proto.annotations.keys import NODE_POLICY
from scheduler_ext.policies import NodePolicy


@click.command()
@click.argument("pod", required=False, shell_complete=PODS)
@with_options(selects="pods")
def why(options: CommonOptions, pod: str | None) -> TableReport:
    """Explain why POD ([NAMESPACE/]NAME) waits and what would help, or why it has its node and its GPUs.

    Without POD, the pods of the namespace that wait, by reason. It checks only the nodes' GPUs. kube-scheduler checks
    CPUs, memory, taints and selectors.
    """
    if pod is None:
        cluster = options.cluster(Wanted(decisions=True, fgd=True, waiting=True))
        return waiting.waiting(cluster, "" if options.everywhere else options.namespace)
    if options.selects:
        raise click.UsageError("--selector cannot be used with POD: it selects among the pods that wait")
    found = options.pod(pod)
    fgd = found.metadata.annotations.get(NODE_POLICY) == NodePolicy.FGD
    return reasons.why(options.cluster(Wanted(decisions=True, fgd=fgd)), found)
