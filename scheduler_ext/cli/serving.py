"""Runs the extender: its parts and ports, from start to stop, with the values that they need from the configuration."""

import asyncio
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from socket import gethostname

import click

from program.address import ListenAddress
from program.shared_page import OPEN
from program.tasks import show_stacks_on_signal, until_first
from proto.kubernetes.client import ApiServer
from proto.kubernetes.errors import ApiServerUnconfigured
from scheduler_ext.admission.containers import WEBHOOK_PATH, AdmissionSettings
from scheduler_ext.certificates.secret import CertificateSecret, SecretPlace
from scheduler_ext.certificates.tls import CertificateFiles, ServingTls, UnusableKeyPair
from scheduler_ext.configuration import TABLE, SchedulerConfiguration, is_loopback
from scheduler_ext.extender_parts import now
from scheduler_ext.http.server import PortTaken, in_own_thread, listening, listening_to_kube_scheduler
from scheduler_ext.running import Applications, PartFailed, running_extender
from scheduler_ext.settings import LeaseSettings, SettingsError
from scheduler_ext.verbs.journal import JournalFiles
from scheduler_ext.webhook_server import Certificate, kept_current

POD_VARIABLES = ("POD_NAME", "POD_NAMESPACE")
"""Variables with name and namespace of the pod, which the leader labels. They are empty outside a pod."""


RUNTIME_DIRECTORY = "RUNTIME_DIRECTORY"
"""systemd's name for a folder that lasts from process to process, until the machine stops."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CertificatePaths:
    certificate: Path
    key: Path


def lease_settings(configuration: SchedulerConfiguration, process: str | None) -> LeaseSettings:
    """Returns the settings of the election with the names of host, pod and process. `process` is the one named in the
    journal of Bindings; None without a journal.
    """
    pod_name, pod_namespace = (os.environ.get(variable, "") for variable in POD_VARIABLES)
    return replace(
        configuration.lease,
        identity=gethostname(),
        process=process or configuration.lease.process,
        pod_name=pod_name,
        pod_namespace=pod_namespace,
    )


def runtime_directory() -> Path | None:
    """Returns the folder of the Bindings under way; None without one."""
    named = os.environ.get(RUNTIME_DIRECTORY, "")
    return Path(named) if named else None


def history_place(lease: LeaseSettings) -> str:
    """Returns namespace and name of the ConfigMap with the history of the status page; empty without a Lease."""
    return f"{lease.namespace}/{lease.name}-status-history" if lease.elects else ""


def admission_settings(configuration: SchedulerConfiguration) -> AdmissionSettings:
    return replace(configuration.admission, requests=configuration.requests)


def certificate_place(configuration: SchedulerConfiguration) -> CertificatePaths | SecretPlace | None:
    """Returns where the webhook's certificate is; None if there is none, and so no webhook."""
    if configuration.cert_file:
        return CertificatePaths(certificate=Path(configuration.cert_file), key=Path(configuration.key_file))
    if not configuration.webhook_secret:
        return None
    namespace, _, name = configuration.webhook_secret.partition("/")
    return SecretPlace(
        namespace=namespace,
        name=name,
        # The API server calls the Service, and a browser calls this host through a forwarded port of the status page.
        names=frozenset({f"{name}.{namespace}.svc", "localhost", "127.0.0.1"}),
    )


async def connected(configuration: SchedulerConfiguration) -> ApiServer:
    """Returns a client of the API server. Raises ApiServerUnconfigured."""
    return await ApiServer.connect(configuration.kubeconfig or None, user_agent="topogpu-scheduler")


log = logging.getLogger(__name__)

_SWITCH_SECONDS = 0.0005
"""After this time a thread that writes metrics or an explanation yields to kube-scheduler's answers. Python's default
of 5 ms is longer than an answer takes.
"""


def serve_until_stopped(configuration: SchedulerConfiguration) -> None:
    """Serves until SIGTERM or SIGINT. Raises click.ClickException."""
    try:
        asyncio.run(_serve(configuration))
    except (SettingsError, ApiServerUnconfigured, PortTaken, UnusableKeyPair, PartFailed) as error:
        raise click.ClickException(str(error)) from error


async def _serve(configuration: SchedulerConfiguration) -> None:
    sys.setswitchinterval(_SWITCH_SECONDS)
    show_stacks_on_signal()
    stop = asyncio.Event()
    for name in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(name, stop.set)
    client_ca = configuration.webhook_client_ca_file
    files = JournalFiles(folder) if (folder := runtime_directory()) is not None else None
    tls = ServingTls(Path(client_ca) if client_ca else None)
    certificate = certificate_place(configuration)
    client = await connected(configuration)

    def certified() -> bool:
        return certificate is None or tls.ready

    async with AsyncExitStack() as stack:
        stack.push_async_callback(client.close)
        extender = running_extender(
            client,
            configuration.serve,
            configuration.requests,
            lease_settings(configuration, files.process if files is not None else None),
            certified,
            files=files,
        )
        applications = await stack.enter_async_context(extender)
        if (metrics := configuration.metrics_bind_address) is not None:
            url = await stack.enter_async_context(
                listening(applications.metrics, metrics, _flag("metrics_bind_address"), patience=OPEN)
            )
            log.info("metrics are served on %s/metrics", url)
        if (kept := _kept_in(client, certificate, tls)) is not None:
            url = await stack.enter_async_context(_serving_webhook(configuration, kept, applications, tls))
            log.info("the webhook is served on %s%s", url, WEBHOOK_PATH)
        if (status := configuration.status_bind_address) is not None:
            url = await stack.enter_async_context(
                _serving_status_page(applications, status, tls, history_place(configuration.lease))
            )
            log.info("the status page is served on %s/", url)
        verbs = listening_to_kube_scheduler(applications.verbs, configuration.http_bind, _flag("http_bind"))
        click.echo(f"listening on {await stack.enter_async_context(verbs)}")
        await until_first(stop.wait(), applications.failed.wait())
        log.info("stopping")
        if applications.failed.is_set():
            raise PartFailed("A part of the extender failed, and no answer is correct without it. See the log above.")


@asynccontextmanager
async def _serving_webhook(
    configuration: SchedulerConfiguration, certificate: Certificate, applications: Applications, tls: ServingTls
) -> AsyncIterator[str]:
    """Yields the URL of the webhook while it is served. Raises PortTaken."""
    webhook = applications.webhook(admission_settings(configuration))

    def listens() -> AbstractAsyncContextManager[str]:
        return listening(webhook, configuration.webhook_bind_address, _flag("webhook_bind_address"), tls.context)

    async with kept_current(certificate), in_own_thread(listens, "webhook") as url:
        yield url


def _serving_status_page(
    applications: Applications, address: ListenAddress, tls: ServingTls, history: str
) -> AbstractAsyncContextManager[str]:
    """Yields the URL of the page while it is served. Raises PortTaken."""
    is_open = not is_loopback(address)
    page = applications.status_page(for_other_hosts=is_open, history=history)
    context = tls.for_any_client().context if is_open else None
    return in_own_thread(lambda: listening(page, address, _flag("status_bind_address"), context), "status page")


def _kept_in(api: ApiServer, place: CertificatePaths | SecretPlace | None, tls: ServingTls) -> Certificate | None:
    """Returns the certificate kept in `place`; None without a place. Raises UnusableKeyPair."""
    match place:
        case CertificatePaths():
            files = CertificateFiles(place.certificate, place.key, tls)
            files.load()
            return files
        case SecretPlace():
            return CertificateSecret(api=api, place=place, tls=tls, now=now)
    return None


def _flag(key: str) -> str:
    return TABLE.settings[key].flags[0]
