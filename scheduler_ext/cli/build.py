"""Builds the values that the extender's parts need from the configuration."""

import os
from dataclasses import dataclass, replace
from pathlib import Path
from socket import gethostname

from proto.kubernetes.client import ApiServer
from scheduler_ext.admission.settings import AdmissionSettings
from scheduler_ext.certificates.secret import SecretPlace
from scheduler_ext.configuration import SchedulerConfiguration
from scheduler_ext.settings import LeaseSettings

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
