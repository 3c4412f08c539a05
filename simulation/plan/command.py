"""`topogpu-sim plan`: its options."""

import os
from dataclasses import fields
from typing import Any

import click

from program.commands import RealNumber, WholeNumber
from program.settings.options import GroupedCommand, read_configuration, setting_options
from scheduler_ext.configuration import REQUESTS, TABLE
from simulation.words import DEFAULT_POLICIES, MOST_PODS, HostPolicy


@click.command(name="plan", cls=GroupedCommand)
@click.option("--cluster", help="The cluster in words, such as 8x:dgx-a100,20x:1x-t4-vm; or a CSV file of nodes.")
@click.option(
    "--state",
    type=click.Path(allow_dash=True),
    help="The cluster as `kubectl get nodes,pods,resourcequotas -A -o json` wrote it; - reads standard input.",
)
@click.option(
    "--snapshot",
    type=click.Path(allow_dash=True),
    help="The cluster as the extender answers /debug/snapshot. It has no names of pods.",
)
@click.option(
    "-f", "--filename", "pods", multiple=True, help="Pods to place: a YAML, JSON or CSV file; may be repeated."
)
@click.option("--mix", default="", help="Pods to generate: shares of kinds of work, such as notebook=50,training-8=5.")
@click.option("--count", type=WholeNumber(1, MOST_PODS), default=1000, show_default=True, help="Pods of the mix.")
@click.option(
    "--copies", type=WholeNumber(1, 1000), default=1, show_default=True, help="How often each pod of --filename comes."
)
@click.option(
    "--fill",
    type=RealNumber(0, 1000),
    help="Then draw more of these pods at random, until all ask for this percentage of all GPUs.",
)
@click.option(
    "--replay", is_flag=True, help="Pods come and go at their times, and wait if there is no room. Else none leaves."
)
@click.option(
    "--policy",
    "policies",
    multiple=True,
    help="A policy for nodes and GPUs to compare, such as fgd/fgd; may be repeated "
    f"[default: {', '.join(DEFAULT_POLICIES)}].",
)
@click.option("--seeds", default="", help="Random orders of the pods, such as 1-10 "
              "[default: the order of the files; five orders of a small mix].")  # fmt: skip
@click.option(
    "--cpu-pods",
    type=click.Choice([each.value for each in HostPolicy]),
    default=HostPolicy.LEAST_ALLOCATED.value,
    show_default=True,
    help="How kube-scheduler places pods without GPUs.",
)
@click.option("--add-nodes", default="", help="Also these machines, such as 4x:hgx-h100.")
@click.option("--drain", multiple=True, help="Without this node: its pods need another one; may be repeated.")
@click.option(
    "--advise",
    is_flag=True,
    help="Instead: the fewest pods to move so that waiting pods find room, and pods without GPUs that should leave "
    "GPU nodes. Moves nothing.",
)
@click.option(
    "--together",
    is_flag=True,
    help="Instead: place the waiting pods as a batch, in the best order that is found, and show what that gains.",
)
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True)
@click.option("--each-pod", is_flag=True, help="In JSON: the node and the GPUs of every pod.")
@click.option("--json", "json_", type=click.Path(dir_okay=False), help="Write the JSON to this file, for --merge.")
@click.option("--html", type=click.Path(dir_okay=False), help="Write a report with charts to this file.")
@click.option("--svg", type=click.Path(dir_okay=False), help="Write the chart that compares policies to this file.")
@click.option(
    "--processes",
    type=WholeNumber(1, 256),
    default=os.cpu_count() or 1,
    help="Runs at the same time [default: one for each CPU].",
)
@click.option("--slice", "slice_", default="", help="Perform only a part of the runs: INDEX/COUNT, from 0.")
@click.option("--merge", "merged", type=click.Path(), help="Only merge the JSON reports in this folder.")
@setting_options(TABLE, groups=(REQUESTS,))
def plan(**given: Any) -> None:
    """Show what policies would do on a cluster, without touching one.

    Takes the decisions with the extender's own code. Pods come one by one, and kube-scheduler's part is simulated.
    """
    # Imported here, because it takes half a second that the help does not need.
    from simulation.plan.planned import PlanOptions, answer  # noqa: PLC0415

    options = PlanOptions(**{each.name: given.pop(each.name) for each in fields(PlanOptions)})
    answer(options, read_configuration(TABLE, given))
