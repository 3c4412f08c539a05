"""`topogpu-scheduler decide`: takes decisions on files, without a cluster."""

import sys

import click

from program.settings.options import GroupedCommand, read_configuration, setting_options
from scheduler_ext.configuration import REQUESTS, TABLE


@click.command(name="decide", cls=GroupedCommand)
@click.option(
    "--state",
    "state_file",
    type=click.Path(allow_dash=True),
    help="Output of `kubectl get nodes,pods,resourcequotas -A -o json`; - reads standard input.",
)
@click.option(
    "--snapshot",
    "snapshot_file",
    type=click.Path(allow_dash=True),
    help="Instead of --state: the extender's answer to /debug/snapshot; - reads standard input.",
)
@click.option(
    "-f",
    "--filename",
    "pod_files",
    type=click.Path(allow_dash=True),
    multiple=True,
    help="The pods to place, as JSON or YAML: Pods, or Deployments, Jobs and other objects with a pod template; "
    "- reads standard input. It may be given several times.",
)
@click.option("-o", "--output", type=click.Choice(["json", "text"]), default="text", show_default=True)
@click.option(
    "--explain", is_flag=True, help="Show the reason for every node: its score, or what each of its GPUs lacks."
)
@click.option("--node-names", default="", help="Comma list of the nodes to consider [default: all in the state].")
@setting_options(TABLE, groups=(REQUESTS,))
def decide(
    *,
    state_file: str | None,
    snapshot_file: str | None,
    pod_files: tuple[str, ...],
    output: str,
    explain: bool,
    node_names: str,
    **given: object,
) -> None:
    """Show where these pods would go, and why not elsewhere.

    Takes the same decisions as `serve` would on this state, and changes nothing. Several pods are placed one after the
    other, each beside those before it.

    Exit status: 0 when every pod fits, 1 when one does not, 2 when the input cannot be used.
    """
    # Imported here, because it takes a third of a second that the help does not need.
    from scheduler_ext.cli import deciding  # noqa: PLC0415

    effective = read_configuration(TABLE, given)
    if state_file is not None and snapshot_file is not None:
        raise click.UsageError("--state and --snapshot both describe the cluster; give one of them")
    names = tuple(name.strip() for name in node_names.split(",") if name.strip())
    options = deciding.DecideOptions(
        cluster_file=snapshot_file or state_file,
        is_snapshot=snapshot_file is not None,
        pod_files=pod_files,
        node_names=names,
        explain=explain,
        as_json=output == "json",
    )
    sys.exit(deciding.answer_files(options, effective))
