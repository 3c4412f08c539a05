"""`topogpu-scheduler explain`: shows what the running extender knows of a pod: where it is and why, or why it waits."""

import click


@click.command()
@click.argument("pod")
@click.option("-n", "--namespace", default="default", show_default=True)
@click.option("--url", default="http://127.0.0.1:8080", show_default=True,
              help="Where the extender listens. It answers only callers on its own host: run this beside it or "
      "behind kubectl port-forward.")  # fmt: skip
@click.option("-o", "--output", type=click.Choice(["json", "text"]), default="text", show_default=True)
def explain(*, pod: str, namespace: str, url: str, output: str) -> None:
    """Show where this pod is and why, or why it is pending.

    Shows the last decision, and what every node with GPUs has for the pod now. It does not check taints, selectors and
    CPUs: those are kube-scheduler's business.
    """
    # Imported here, because it takes a quarter of a second that the help does not need.
    from scheduler_ext.cli.explaining import print_account  # noqa: PLC0415

    print_account(url.rstrip("/"), {"pod": pod, "namespace": namespace}, as_json=output == "json")
