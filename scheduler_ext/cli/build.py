"""Builds the values that the extender's parts need from the configuration."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from socket import gethostname

from program.settings.effective import Effective
from proto.kubernetes.client import ApiServer
from scheduler_ext.admission.settings import AdmissionSettings, BypassMode
from scheduler_ext.certificates.secret import SecretPlace
from scheduler_ext.configuration import DEFAULT_TIMEOUT_SECONDS, SchedulerConfiguration
from scheduler_ext.leadership.settings import LeaseSettings
from scheduler_ext.policies import alias_warnings
from scheduler_ext.requests import RequestSettings
from scheduler_ext.settings import (
    DEFAULT_SCHEDULER_NAME,
    LONGEST_LOCK_WAIT_SECONDS,
    ServeSettings,
    bind_deadline_seconds,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CertificatePaths:
    certificate: Path
    key: Path


def warnings(effective: Effective[SchedulerConfiguration]) -> Iterator[str]:
    """Yields warnings about the settings, with which the extender still starts."""
    configuration = effective.configuration
    yield from effective.warnings
    yield from alias_warnings(configuration.gpu_scheduler_policy.text)
    if (seconds := configuration.node_lock_retry_timeout) > LONGEST_LOCK_WAIT_SECONDS:
        longest = f"{LONGEST_LOCK_WAIT_SECONDS:g}s"
        yield (
            f"--node-lock-retry-timeout {seconds:g}s counts as {longest}: after that kube-scheduler gives up the bind"
        )


def request_settings(configuration: SchedulerConfiguration) -> RequestSettings:
    return RequestSettings(
        names=configuration.names,
        default_memory_mib=configuration.default_mem,
        default_cores=configuration.default_cores,
        memory_factor=configuration.memory_factor or 1,
        usual_pods=configuration.usual_pods,
        topology_levels=configuration.topology_levels,
        node_policy=configuration.node_scheduler_policy,
        gpu_policy=configuration.gpu_scheduler_policy,
        denies_bypass=configuration.deny_bypass is BypassMode.DENY,
        core_policy=configuration.gpu_core_policy.value,
    )


def serve_settings(configuration: SchedulerConfiguration) -> ServeSettings:
    lock_wait_seconds = min(configuration.node_lock_retry_timeout, LONGEST_LOCK_WAIT_SECONDS)
    return ServeSettings(
        scheduler_name=configuration.scheduler_name or DEFAULT_SCHEDULER_NAME,
        filter_returns=configuration.filter_returns,
        gpu_preemption=configuration.gpu_preemption,
        readyz_requires_leader=configuration.readyz_requires_leader,
        kube_scheduler_healthz=configuration.kube_scheduler_healthz,
        node_label_selector=configuration.node_label_selector,
        node_lock_ttl_seconds=configuration.node_lock_timeout,
        lock_wait_seconds=lock_wait_seconds,
        bind_deadline_seconds=bind_deadline_seconds(lock_wait_seconds),
        reservation_lease_seconds=configuration.reservation_lease,
        metrics_detail=configuration.metrics_detail,
        legacy_metrics=configuration.legacy_metrics,
    )


def lease_settings(configuration: SchedulerConfiguration, process: str | None) -> LeaseSettings:
    """Returns settings for the Lease. `process` is the one named in the journal of Bindings; None without a journal."""
    pod = {"pod_name": configuration.pod_name, "pod_namespace": configuration.pod_namespace}
    pod |= {"process": process} if process is not None else {}
    if not configuration.leader_elect:
        return LeaseSettings(**pod)
    return LeaseSettings(
        name=configuration.leader_elect_resource_name,
        namespace=configuration.lease_namespace,
        identity=gethostname(),
        **pod,
    )


def admission_settings(configuration: SchedulerConfiguration) -> AdmissionSettings:
    return AdmissionSettings(
        requests=request_settings(configuration),
        scheduler_name=configuration.scheduler_name or DEFAULT_SCHEDULER_NAME,
        force_overwrite_default_scheduler=configuration.force_overwrite_default_scheduler,
        default_gpus=configuration.default_gpu,
        core_policy=configuration.gpu_core_policy,
        runtime_class_name=configuration.runtime_class_name,
        overwrite_env=configuration.overwrite_env,
        deny_bypass=configuration.deny_bypass,
    )


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
        configuration=configuration.webhook_configuration,
        names=frozenset(configuration.webhook_service),
    )


async def connected(configuration: SchedulerConfiguration) -> ApiServer:
    """Returns a client of the API server. Raises ApiServerUnconfigured."""
    return await ApiServer.connect(
        configuration.kubeconfig or None,
        timeout_seconds=configuration.kube_timeout or DEFAULT_TIMEOUT_SECONDS,
        user_agent="topogpu-scheduler",
    )
