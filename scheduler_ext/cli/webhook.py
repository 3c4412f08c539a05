"""Flags of `serve` that concern the admission webhook, and its listener."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from functools import wraps
from ipaddress import ip_address
from pathlib import Path

import click

from program.address import ListenAddress, NoAddress, read_address
from proto.kubernetes.client import ApiServer
from scheduler_ext.admission.settings import AdmissionSettings, BypassMode, CorePolicy
from scheduler_ext.certificates.files import CertificateFiles
from scheduler_ext.certificates.secret import CertificateSecret, SecretPlace
from scheduler_ext.certificates.tls import ServingTls
from scheduler_ext.cli.options import Command, switch
from scheduler_ext.own_thread import in_own_thread
from scheduler_ext.requests import RequestSettings
from scheduler_ext.running import Applications, listening, now
from scheduler_ext.settings import (
    DEFAULT_SCHEDULER_NAME,
    SettingsError,
    checked_name,
)
from scheduler_ext.webhook_server import Certificate, kept_current

ADDRESS_FLAG = "--webhook-bind-address"


@dataclass(frozen=True, slots=True, kw_only=True)
class CertificatePaths:
    certificate: Path
    key: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookSettings:
    """Where the webhook listens, and with whose certificate. Without one there is no webhook."""

    address: ListenAddress
    certificate: CertificatePaths | SecretPlace | None
    client_ca: Path | None = None
    """PEM of the authorities of which a caller must show a certificate; without one every caller is answered."""
    admission: AdmissionSettings


def webhook_options(command: Command) -> Command:
    """Adds the webhook's flags below those of RequestSettings; the command gets them as one argument `webhook`."""

    @wraps(command)
    def with_webhook(
        *,
        requests: RequestSettings,
        scheduler_name: str,
        webhook_bind_address: str,
        webhook_client_ca_file: Path | None,
        cert_file: Path | None,
        key_file: Path | None,
        webhook_secret: str,
        webhook_configuration: str,
        webhook_service: tuple[str, ...],
        force_overwrite_default_scheduler: bool,
        default_gpu: int,
        gpu_core_policy: str,
        runtime_class_name: str,
        overwrite_env: bool,
        deny_bypass: str,
        **others: object,
    ) -> None:
        try:
            webhook = WebhookSettings(
                address=read_address(webhook_bind_address),
                client_ca=webhook_client_ca_file,
                certificate=_certificate(cert_file, key_file, webhook_secret, webhook_configuration, webhook_service),
                admission=AdmissionSettings(
                    requests=requests,
                    scheduler_name=scheduler_name or DEFAULT_SCHEDULER_NAME,
                    force_overwrite_default_scheduler=force_overwrite_default_scheduler,
                    default_gpus=default_gpu,
                    core_policy=CorePolicy(gpu_core_policy),
                    runtime_class_name=checked_name(runtime_class_name, "--runtime-class-name"),
                    overwrite_env=overwrite_env,
                    deny_bypass=BypassMode(deny_bypass),
                ),
            )
        except (SettingsError, NoAddress) as error:
            raise click.ClickException(str(error)) from error
        command(requests=requests, scheduler_name=scheduler_name, webhook=webhook, **others)

    wrapped: Command = with_webhook
    for option in reversed(_OPTIONS):
        wrapped = option(wrapped)
    return wrapped


@asynccontextmanager
async def serving_webhook(
    api: ApiServer, settings: WebhookSettings, applications: Applications, tls: ServingTls
) -> AsyncIterator[str]:
    """The URL of the webhook while it is served; empty without a certificate. Raises UnusableKeyPair or PortTaken."""
    certificate = _kept_in(api, settings.certificate, tls)
    if certificate is None:
        yield ""
        return
    webhook = applications.webhook(settings.admission)

    def listens() -> AbstractAsyncContextManager[str]:
        return listening(webhook, settings.address, ADDRESS_FLAG, tls.context)

    async with kept_current(certificate), in_own_thread(listens, "webhook") as url:
        yield url


def _kept_in(api: ApiServer, place: CertificatePaths | SecretPlace | None, tls: ServingTls) -> Certificate | None:
    match place:
        case CertificatePaths():
            files = CertificateFiles(place.certificate, place.key, tls)
            files.load()
            return files
        case SecretPlace():
            return CertificateSecret(api=api, place=place, tls=tls, now=now)
    return None


def _certificate(
    cert_file: Path | None, key_file: Path | None, secret: str, configuration: str, services: tuple[str, ...]
) -> CertificatePaths | SecretPlace | None:
    """Raises SettingsError for flags that do not go together."""
    of_files, of_secret = (cert_file, key_file), (secret, configuration, services)
    if any(of_files) and any(of_secret):
        raise SettingsError("--cert_file and --webhook-secret are two sources of one certificate; give one of them")
    if any(of_files):
        if cert_file is None or key_file is None:
            raise SettingsError("--cert_file and --key_file go together; give both")
        return CertificatePaths(certificate=cert_file, key=key_file)
    if not any(of_secret):
        return None
    namespace, _, name = secret.partition("/")
    if not (namespace and name and configuration and services):
        raise SettingsError(
            "a certificate of our own needs --webhook-secret namespace/name, --webhook-configuration and "
            "--webhook-service; give all three"
        )
    for service in services:
        _check_served(service)
    return SecretPlace(
        namespace=checked_name(namespace, "--webhook-secret"),
        name=checked_name(name, "--webhook-secret"),
        configuration=checked_name(configuration, "--webhook-configuration"),
        names=frozenset(services),
    )


def _check_served(service: str) -> None:
    """Raises SettingsError for what is neither a DNS name nor an address."""
    try:
        ip_address(service)
    except ValueError:
        checked_name(service, "--webhook-service")


_OPTIONS: tuple[Callable[[Command], Command], ...] = (
    click.option(
        ADDRESS_FLAG,
        default=":9443",
        show_default=True,
        help="Where the API server calls the admission webhook, by HTTPS, if there is a certificate.",
    ),
    click.option(
        "--webhook-client-ca-file",
        type=click.Path(path_type=Path),
        help="PEM of the authorities whose clients the webhook answers, the API server's own; without one it answers "
        "every caller.",
    ),
    click.option(
        "--cert_file",
        "--cert-file",
        "cert_file",
        type=click.Path(path_type=Path),
        help="PEM of the webhook's certificate; read again when it changes.",
    ),
    click.option(
        "--key_file", "--key-file", "key_file", type=click.Path(path_type=Path), help="PEM of the certificate's key."
    ),
    click.option(
        "--webhook-secret",
        default="",
        metavar="NAMESPACE/NAME",
        help="Instead of files: a Secret in which the webhook makes and renews a certificate of its own.",
    ),
    click.option(
        "--webhook-configuration",
        default="",
        metavar="NAME",
        help="MutatingWebhookConfiguration that gets the caBundle of our own certificate.",
    ),
    click.option(
        "--webhook-service",
        multiple=True,
        metavar="DNS",
        help="Name under which the API server calls the webhook, SERVICE.NAMESPACE.svc; may be repeated.",
    ),
    switch(
        "--force-overwrite-default-scheduler",
        default=True,
        show_default=True,
        help="Whether GPU pods that name default-scheduler become ours.",
    ),
    click.option(
        "--default-gpu",
        type=click.IntRange(min=0),
        default=1,
        show_default=True,
        help="GPUs of a container that asks for GPU memory or cores alone, set by the webhook; 0 adds none.",
    ),
    click.option(
        "--gpu-core-policy",
        type=click.Choice([policy.value for policy in CorePolicy]),
        default=CorePolicy.DEFAULT.value,
        show_default=True,
        help="GPU_CORE_UTILIZATION_POLICY of every container; default writes none.",
    ),
    click.option("--runtime-class-name", default="", help="runtimeClassName of GPU pods that have none."),
    switch(
        "--overwrite-env",
        show_default=True,
        help="Whether containers without GPUs get NVIDIA_VISIBLE_DEVICES=none.",
    ),
    click.option(
        "--deny-bypass",
        type=click.Choice([mode.value for mode in BypassMode]),
        default=BypassMode.DENY.value,
        show_default=True,
        help="What is done about environment variables that lift a GPU's limits: nothing, a warning, or a refusal.",
    ),
)
