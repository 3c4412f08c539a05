"""`topogpu-scheduler serve`: the extender beside kube-scheduler."""

import asyncio
import logging
import os
import signal
import socket
import sys
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import click

from program.address import ListenAddress, NoAddress, read_address
from program.tasks import until_first
from proto.kubernetes.errors import ApiServerUnconfigured
from scheduler_ext.admission.registration import PATH
from scheduler_ext.binding.sent_files import SentFiles
from scheduler_ext.certificates.tls import ServingTls, UnusableKeyPair
from scheduler_ext.cli.api_server import ApiSettings, api_options
from scheduler_ext.cli.logs import log_options
from scheduler_ext.cli.options import request_options, switch
from scheduler_ext.cli.webhook import WebhookSettings, serving_webhook, webhook_options
from scheduler_ext.leadership.lease import LeaseSettings
from scheduler_ext.policies import alias_warnings
from scheduler_ext.requests import RequestSettings
from scheduler_ext.running import (
    PartFailed,
    PortTaken,
    listening,
    listening_to_kube_scheduler,
    running_extender,
)
from scheduler_ext.settings import (
    DEFAULT_SCHEDULER_NAME,
    LONGEST_LOCK_WAIT_SECONDS,
    FilterReturns,
    MetricsDetail,
    ServeSettings,
    SettingsError,
    bind_deadline_seconds,
    checked_local_url,
    checked_name,
    parse_duration,
    parse_label_selector,
)

log = logging.getLogger(__name__)

_METRICS_FLAG = "--metrics-bind-address"
_SWITCH_SECONDS = 0.0005
"""So soon the thread that writes metrics or an explanation lets kube-scheduler be answered; Python's own 5 ms are more
than an answer takes.
"""


@click.command()
@click.option("--http_bind", "--http-bind", "http_bind", default="127.0.0.1:8080", show_default=True,
              help="Where kube-scheduler calls us; port 0 takes a free one.")  # fmt: skip
@click.option(_METRICS_FLAG, default=":9395", show_default=True,
              help="Where Prometheus finds /metrics, and kubelet /healthz and /readyz; empty serves none.")  # fmt: skip
@api_options
@click.option(
    "--scheduler-name",
    default="",
    help="schedulerName of GPU pods, and source of our events; topogpu-scheduler when empty.",
)
@click.option("--filter-returns", type=click.Choice([each.value for each in FilterReturns]), default="one",
              show_default=True, help="The best node; or up to 32 of the best, for kube-scheduler to choose among "
              "with /prioritize. The GPUs are reserved on each.")  # fmt: skip
@switch("--gpu-preemption", show_default=True, help="Evict pods of lower priority, within their PodDisruptionBudgets, "
        "for a pod that lacks nothing but GPUs: kube-scheduler does not.")  # fmt: skip
@request_options
@webhook_options
@click.option("--node-label-selector", default="",
              help="Give out GPUs of nodes with these labels only: key=value, or a comma list.")  # fmt: skip
@click.option("--node-lock-timeout", envvar="HAMI_NODELOCK_EXPIRE", default="5m", show_default=True,
              help="After this long another pod may take over a node's lock.")  # fmt: skip
@click.option("--node-lock-retry-timeout", default="18s", show_default=True,
              help="How long a bind waits for a lock that another pod holds; 0 refuses it at once.")  # fmt: skip
@click.option("--reservation-lease", default="60s", show_default=True,
              help="How long GPUs are held for a pod between /filter and /bind, at most.")  # fmt: skip
@switch("--leader-elect", show_default=True, help="Decide only while the kube-scheduler on this host holds the lease.")
@click.option("--leader-elect-resource-name", default="", help="Name of kube-scheduler's lease.")
@click.option("--leader-elect-resource-namespace", default="", help="Namespace of kube-scheduler's lease.")
@switch("--readyz-requires-leader", show_default=True, help="Answer /readyz with 503 while another replica decides.")
@click.option("--binding-directory", metavar="FOLDER", default="",
              help="Where Bindings are written down until they are answered: a folder in memory that outlives this "
              "process, for the next one to go on at once after a crash.")  # fmt: skip
@click.option("--kube-scheduler-healthz", metavar="URL", default="",
              help="/healthz of the kube-scheduler beside us. /healthz/kube-scheduler then says whether it and we are "
              "healthy: for its liveness probe.")  # fmt: skip
@click.option("--metrics-detail", type=click.Choice([each.value for each in MetricsDetail]), default="pods",
              show_default=True, help="What has series of its own on /metrics; nodes always have.")  # fmt: skip
@switch("--legacy-metrics", show_default=True,
        help="Also write metrics under the names they had before HAMi 2.9.")  # fmt: skip
@log_options
def serve(
    *,
    http_bind: str,
    metrics_bind_address: str,
    api: ApiSettings,
    scheduler_name: str,
    filter_returns: str,
    gpu_preemption: bool,
    requests: RequestSettings,
    webhook: WebhookSettings,
    node_label_selector: str,
    node_lock_timeout: str,
    node_lock_retry_timeout: str,
    reservation_lease: str,
    leader_elect: bool,
    leader_elect_resource_name: str,
    leader_elect_resource_namespace: str,
    readyz_requires_leader: bool,
    binding_directory: str,
    kube_scheduler_healthz: str,
    metrics_detail: str,
    legacy_metrics: bool,
) -> None:
    """Answer kube-scheduler's /filter, /prioritize, /preempt and /bind until told to stop (SIGTERM or Ctrl-C).

    Reads nodes, pods and quotas from the API server, keeps count of every GPU's shares in memory, and writes each
    decision once, with the Binding. /readyz answers 200 as soon as everything has been listed.
    """
    try:
        verbs = read_address(http_bind)
        metrics = read_address(metrics_bind_address) if metrics_bind_address else None
        lock_wait_seconds = _lock_wait_seconds(node_lock_retry_timeout)
        settings = ServeSettings(
            scheduler_name=checked_name(scheduler_name, "--scheduler-name") or DEFAULT_SCHEDULER_NAME,
            filter_returns=FilterReturns(filter_returns),
            gpu_preemption=gpu_preemption,
            readyz_requires_leader=readyz_requires_leader,
            kube_scheduler_healthz=checked_local_url(kube_scheduler_healthz, "--kube-scheduler-healthz"),
            node_label_selector=parse_label_selector(node_label_selector),
            node_lock_ttl_seconds=parse_duration(node_lock_timeout),
            lock_wait_seconds=lock_wait_seconds,
            bind_deadline_seconds=bind_deadline_seconds(lock_wait_seconds),
            reservation_lease_seconds=parse_duration(reservation_lease),
            metrics_detail=MetricsDetail(metrics_detail),
            legacy_metrics=legacy_metrics,
        )
        lease = _lease(leader_elect_resource_name, leader_elect_resource_namespace, leader_elect=leader_elect)
        files = SentFiles(Path(binding_directory)) if binding_directory else None
        if files is not None:
            lease = replace(lease, process=files.process)
        for warning in alias_warnings(requests.gpu_policy.text):
            log.warning("%s", warning)
        serving = _serve(
            verbs=verbs,
            metrics=metrics,
            api=api,
            settings=settings,
            requests=requests,
            lease=lease,
            files=files,
            webhook=webhook,
        )
        asyncio.run(serving)
    except (SettingsError, NoAddress, ApiServerUnconfigured, PortTaken, UnusableKeyPair, PartFailed) as error:
        raise click.ClickException(str(error)) from error


def _lock_wait_seconds(text: str) -> float:
    """Raises SettingsError."""
    seconds = parse_duration(text, may_be_zero=True)
    if seconds > LONGEST_LOCK_WAIT_SECONDS:
        log.warning(
            "--node-lock-retry-timeout %s counts as %gs: after that kube-scheduler gives up the bind",
            *(text, LONGEST_LOCK_WAIT_SECONDS),
        )
    return min(seconds, LONGEST_LOCK_WAIT_SECONDS)


def _lease(name: str, namespace: str, *, leader_elect: bool) -> LeaseSettings:
    """Raises SettingsError for an election without a lease."""
    pod_name, pod_namespace = os.environ.get("POD_NAME", ""), os.environ.get("POD_NAMESPACE", "")
    if not leader_elect:
        return LeaseSettings(pod_name=pod_name, pod_namespace=pod_namespace)
    checked_name(name, "--leader-elect-resource-name")
    namespace = checked_name(namespace, "--leader-elect-resource-namespace") or pod_namespace
    if not name or not namespace:
        missing = "--leader-elect-resource-namespace" if name else "--leader-elect-resource-name"
        raise SettingsError(f"--leader-elect needs {missing}: the lease that kube-scheduler holds")
    return LeaseSettings(
        name=name,
        namespace=namespace,
        identity=socket.gethostname(),
        pod_name=pod_name,
        pod_namespace=pod_namespace,
    )


async def _serve(
    *,
    verbs: ListenAddress,
    metrics: ListenAddress | None,
    api: ApiSettings,
    settings: ServeSettings,
    requests: RequestSettings,
    lease: LeaseSettings,
    files: SentFiles | None,
    webhook: WebhookSettings,
) -> None:
    sys.setswitchinterval(_SWITCH_SECONDS)
    stop = asyncio.Event()
    for name in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(name, stop.set)
    tls = ServingTls(webhook.client_ca)
    client = await api.connect()

    def certified() -> bool:
        return webhook.certificate is None or tls.ready

    async with AsyncExitStack() as stack:
        stack.push_async_callback(client.close)
        extender = running_extender(client, settings, requests, lease, certified, files=files)
        applications = await stack.enter_async_context(extender)
        if metrics is not None:
            url = await stack.enter_async_context(listening(applications.metrics, metrics, _METRICS_FLAG))
            log.info("metrics are served on %s/metrics", url)
        url = await stack.enter_async_context(serving_webhook(client, webhook, applications, tls))
        if url:
            log.info("the webhook is served on %s%s", url, PATH)
        url = await stack.enter_async_context(listening_to_kube_scheduler(applications.verbs, verbs, "--http_bind"))
        click.echo(f"listening on {url}")
        await until_first(stop.wait(), applications.failed.wait())
        log.info("stopping")
        if applications.failed.is_set():
            raise PartFailed(
                "A part of the extender has failed, and nothing true can be answered without it: see above."
            )
