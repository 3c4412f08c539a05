"""Declares every setting of the extender once: flags, readers, `--print-config` and the manual derive from here."""

import re
from collections.abc import Iterator
from dataclasses import astuple, dataclass, replace
from functools import partial
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

from program.address import ListenAddress
from program.settings.declared import Setting, Table, item, part, setting
from program.settings.effective import Effective
from program.settings.kinds import (
    ADDRESS,
    DNS_NAME,
    DURATION,
    DURATION_OR_ZERO,
    OPTIONAL_ADDRESS,
    Parsed,
    Several,
    Switch,
    Text,
    Whole,
    Words,
    dns_name,
    path,
    words_of,
)
from program.settings.shared import kubeconfig, log_format, log_level, metrics_bind_address, resource_names
from scheduler_ext.admission.containers import AdmissionSettings
from scheduler_ext.domains.levels import LEVELS_PATTERN, read_levels, write_levels
from scheduler_ext.http.messages import is_local
from scheduler_ext.policies import GPU_POLICY_PATTERN, GPU_WORDS, NodePolicy, alias_warnings, parse_gpu_policy
from scheduler_ext.requests import RequestError, RequestSettings
from scheduler_ext.settings import (
    DEFAULT_SCHEDULER_NAME,
    BypassMode,
    CorePolicy,
    FilterReturns,
    LeaseSettings,
    MetricsDetail,
    ServeSettings,
)
from scheduler_ext.usual_pods import USUAL_PODS_PATTERN, read_usual_pods, write_usual_pods
from scheduler_ext.workload import seeds

_LABEL = re.compile(r"([A-Za-z0-9.-]+/)?[A-Za-z0-9]([\w.-]*[A-Za-z0-9])?=([A-Za-z0-9]([\w.-]*[A-Za-z0-9])?)?")
_LABELS_PATTERN = rf"\s*({_LABEL.pattern}\s*(,\s*{_LABEL.pattern}\s*)*)?"


def _read_label_selector(text: str) -> str:
    """Parses a selector of labels as the API server does. Raises ValueError."""
    parts = [part.strip() for part in text.split(",")] if text.strip() else []
    if not all(map(_LABEL.fullmatch, parts)):
        raise ValueError(f"{text!r} selects no label")
    return ",".join(parts)


def _read_local_url(text: str) -> str:
    """Parses a URL of this host. Raises ValueError."""
    where = urlsplit(text)
    host = where.hostname or ""
    if text and (where.scheme not in ("http", "https") or not (host == "localhost" or ip_address(host).is_loopback)):
        raise ValueError(f"{text!r} is not a URL of this host")
    return text


def _read_scheduler_name(text: str) -> str:
    """Parses a schedulerName. Raises ValueError."""
    if text and not re.fullmatch(DNS_NAME, text):
        raise ValueError(f"{text!r} names no scheduler")
    return text or DEFAULT_SCHEDULER_NAME


_LABELS = Parsed(expected="key=value, or a comma list", read=_read_label_selector, write=str, pattern=_LABELS_PATTERN)
_LOCAL_URL = Parsed(
    expected="a URL of this host, such as https://127.0.0.1:10259/healthz",
    read=_read_local_url,
    write=str,
    pattern=r"(https?://\S+)?",
)
_SCHEDULER_NAME = Parsed(
    expected="a name of lower-case letters, digits, - and .",
    read=_read_scheduler_name,
    write=str,
    pattern=f"({DNS_NAME})?",
)
_GPU_POLICY = Parsed(
    expected=f"{', '.join(GPU_WORDS)}, or a comma list of them",
    read=parse_gpu_policy,
    write=lambda policy: str(policy.text),
    pattern=GPU_POLICY_PATTERN,
    choices=GPU_WORDS,
)
_USUAL_PODS = Parsed(
    expected='kinds of pods such as "70 nvidia.com/gpu=1 cpu=4; 5 nvidia.com/gpu=8 cpu=96"',
    read=read_usual_pods,
    write=write_usual_pods,
    pattern=USUAL_PODS_PATTERN,
)
_LEVELS = Parsed(
    expected="labels from wide to narrow, such as topology.kubernetes.io/zone,kubernetes.io/hostname",
    read=read_levels,
    write=write_levels,
    pattern=LEVELS_PATTERN,
)
_OPTIONAL_NAME = dns_name("a name of lower-case letters, digits, - and .", optional=True)

CHART = "scheduler.settings.{flag}"
REQUESTS = "Requests and policies"
"""The settings that decide where a pod goes."""
OBSERVATION = "Metrics and logs"
_setting = partial(setting, environment=())
_connection = partial(_setting, group="Addresses and API server")
_webhook = partial(_setting, group="Webhook")

_of_part = partial(Setting, environment=())
_request = partial(_of_part, group=REQUESTS, chart=CHART)
_of_webhook = partial(_of_part, group="Webhook")
_of_placement = partial(_of_part, group="Placement")
_of_election = partial(_of_part, group="Leader election and health")

_REQUESTS: Any = part(
    RequestSettings,
    node_policy=_request(
        kind=words_of(NodePolicy),
        help="Which fitting node is preferred: binpack the fullest, spread the emptiest, fgd where least is stranded.",
        key="node_scheduler_policy",
    ),
    gpu_policy=_request(
        kind=_GPU_POLICY,
        help=f"Which of the GPUs that fit go first: {', '.join(GPU_WORDS)}, or a comma list of them.",
        key="gpu_scheduler_policy",
    ),
    usual_pods=_request(
        kind=_USUAL_PODS,
        help="Kinds of pods that usually come, and how many, for policy fgd: they count as if they had run before "
        "others.",
    ),
    default_memory_mib=_request(
        kind=Whole(minimum=0),
        help="MiB for a container that asks for no GPU memory; 0 gives it the whole GPU.",
        key="default_mem",
        unit="MiB",
        device_config="nvidia.defaultMemory",
    ),
    default_cores=_request(
        kind=Whole(minimum=0, maximum=100),
        help="Percent of a GPU's cores for a container that asks for none; 0 sets no limit.",
        device_config="nvidia.defaultCores",
    ),
    memory_factor=_request(
        kind=Whole(minimum=0, zero=1),
        help="MiB in one unit of requested GPU memory, and of a quota for it; 0 is 1.",
        device_config="nvidia.memoryFactor",
    ),
    topology_levels=_request(
        kind=_LEVELS,
        help="Labels of nodes that name domains, from wide to narrow: a group of pods goes into the smallest domain "
        "that holds it. Empty: groups go by the policies alone.",
    ),
    names=resource_names(group=REQUESTS, environment=()),
    scheduler_name=_of_placement(
        kind=_SCHEDULER_NAME,
        help=f"schedulerName of GPU pods, and source of our events; {DEFAULT_SCHEDULER_NAME} when empty.",
    ),
    core_policy=_of_webhook(
        kind=words_of(CorePolicy),
        help="GPU_CORE_UTILIZATION_POLICY of every container; default writes none. With disable, set "
        "disable_core_limit of the daemons too, as the chart does.",
        key="gpu_core_policy",
        device_config="nvidia.gpuCorePolicy",
        chart=CHART,
    ),
    deny_bypass=_of_webhook(
        kind=words_of(BypassMode),
        help="Reaction to environment variables that choose GPUs or lift limits. off: none. audit: the webhook warns. "
        "deny: the webhook and /filter refuse.",
        chart=CHART,
    ),
)

_SERVE: Any = part(
    ServeSettings,
    filter_returns=_of_placement(
        kind=words_of(FilterReturns),
        help="one: the best node. all: up to 32 of the best, for kube-scheduler to choose among with /prioritize. The "
        "GPUs are reserved on each.",
        chart=CHART,
    ),
    set_aside_after_seconds=_of_placement(
        kind=DURATION_OR_ZERO,
        help="After this time of waiting a node is set aside for a pod, or nodes for a group, that needs at least half "
        "of its GPUs; 0 sets none aside.",
        chart=CHART,
    ),
    node_label_selector=_of_placement(kind=_LABELS, help="Give out only GPUs of nodes with these labels.", chart=CHART),
    node_lock_ttl_seconds=_of_placement(
        kind=DURATION,
        help="Age at which another pod may take over a node's lock.",
        key="node_lock_timeout",
        environment=("HAMI_NODELOCK_EXPIRE",),
        chart=CHART,
    ),
    reservation_lease_seconds=_of_placement(
        kind=DURATION,
        help="Longest time for which GPUs are held for a pod between /filter and /bind.",
        key="reservation_lease",
        chart=CHART,
    ),
    kube_scheduler_healthz=_of_election(
        kind=_LOCAL_URL,
        help="/healthz of the kube-scheduler beside us. /healthz/kube-scheduler then reports the health of both: for "
        "its liveness probe.",
    ),
    metrics_detail=_of_part(
        kind=words_of(MetricsDetail),
        help="What has series of its own on /metrics: pods and GPUs, GPUs, or only nodes.",
        group=OBSERVATION,
        chart=CHART,
    ),
)

_LEASE: Any = part(
    LeaseSettings,
    elects=_of_election(
        kind=Switch(), help="Decide only while the kube-scheduler on this host holds the lease.", key="leader_elect"
    ),
    name=_of_election(kind=_OPTIONAL_NAME, help="Name of kube-scheduler's lease.", key="leader_elect_resource_name"),
    namespace=_of_election(
        kind=_OPTIONAL_NAME, help="Namespace of kube-scheduler's lease.", key="leader_elect_resource_namespace"
    ),
)

_ADMISSION: Any = part(
    AdmissionSettings,
    force_overwrite_default_scheduler=_of_webhook(
        kind=Switch(),
        help="Whether GPU pods that name default-scheduler are given to this scheduler.",
        chart=CHART,
    ),
    default_gpus=_of_webhook(
        kind=Whole(minimum=0),
        help="GPUs of a container that asks only for GPU memory or cores, set by the webhook; 0 adds none.",
        key="default_gpu",
        device_config="nvidia.defaultGPUNum",
        chart=CHART,
    ),
    runtime_class_name=_of_webhook(
        kind=_OPTIONAL_NAME,
        help="runtimeClassName of GPU pods that have none.",
        device_config="nvidia.runtimeClassName",
        chart=CHART,
    ),
)


_PREEMPTION, _SUMS, _LEGACY_METRICS, _VOID = "gpu-preemption", "gpu-sums", "legacy-metrics", "overwrite-env"
_FEATURES: Any = _setting(
    (),
    Several(of=Words(words=(_PREEMPTION, _SUMS, _LEGACY_METRICS, _VOID))),
    "What is switched on. gpu-preemption: pods of lower priority are evicted, within their PodDisruptionBudgets, for a "
    "pod that lacks only GPUs: kube-scheduler does not. gpu-sums: the webhook gives containers sums of their GPUs' "
    "memory and cores as resources, for Kueue, quotas and autoscalers; the daemons need the same. legacy-metrics: "
    "metrics also under the names they had before HAMi 2.9. overwrite-env: containers without GPUs get "
    "NVIDIA_VISIBLE_DEVICES=void.",
    group="Placement",
    chart=CHART,
    aliases=(
        item(_LEGACY_METRICS, Switch(), flags=("--legacy-metrics",)),
        item(_VOID, Switch(), flags=("--overwrite-env",), device_config="nvidia.overwriteEnv"),
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfiguration:
    """The effective value of every setting, by the part of the extender that it is for."""

    http_bind: ListenAddress = _connection(
        ListenAddress(host="127.0.0.1", port=8080),
        ADDRESS,
        "The address that kube-scheduler calls; port 0 takes a free port.",
        flags=("--http_bind", "--http-bind"),
    )
    metrics_bind_address: ListenAddress | None = metrics_bind_address(
        9395, group="Addresses and API server", environment=()
    )
    status_bind_address: ListenAddress | None = _connection(
        None,
        OPTIONAL_ADDRESS,
        "The address of the status page, such as 127.0.0.1:9396. On an address that other hosts reach, it is served "
        "with the webhook's certificate, to users with the right to get /topogpu/status. Empty: there is no page.",
    )
    kubeconfig: str = kubeconfig(group="Addresses and API server")
    requests: RequestSettings = _REQUESTS
    features: tuple[str, ...] = _FEATURES
    serve: ServeSettings = _SERVE
    lease: LeaseSettings = _LEASE
    webhook_bind_address: ListenAddress = _webhook(
        ListenAddress(host=None, port=9443),
        ADDRESS,
        "The address of the admission webhook, by HTTPS, if there is a certificate.",
    )
    webhook_client_ca_file: str = _webhook(
        "",
        path(optional=True),
        "PEM of authorities: the webhook answers only clients with their certificates, such as the API server's. "
        "Empty answers every caller.",
    )
    cert_file: str = _webhook(
        "",
        path(optional=True),
        "PEM of the webhook's certificate; read again when it changes.",
        flags=("--cert_file", "--cert-file"),
    )
    key_file: str = _webhook(
        "", path(optional=True), "PEM of the certificate's key.", flags=("--key_file", "--key-file")
    )
    webhook_secret: str = _webhook(
        "",
        Text(expected="namespace/name", pattern=f"({DNS_NAME}/{DNS_NAME})?"),
        "Instead of files: a Secret in which the webhook makes and renews a certificate of its own. The Service and "
        "the MutatingWebhookConfiguration of the webhook have the Secret's name.",
    )
    admission: AdmissionSettings = _ADMISSION
    log_format: str = log_format(group=OBSERVATION, environment=(), chart=CHART)
    log_level: str = log_level(group=OBSERVATION, environment=(), chart=CHART)


def _completed(configuration: SchedulerConfiguration) -> SchedulerConfiguration:
    """Returns the configuration with the features in the parts that have them."""
    on = configuration.features
    return replace(
        configuration,
        serve=replace(configuration.serve, gpu_preemption=_PREEMPTION in on, legacy_metrics=_LEGACY_METRICS in on),
        admission=replace(configuration.admission, gpu_sums=_SUMS in on, overwrite_env=_VOID in on),
    )


def conflicts(configuration: SchedulerConfiguration) -> Iterator[str]:
    """Yields a sentence for each group of settings that exclude each other."""
    names = astuple(configuration.requests.names)
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield f"{name!r} names two resources; each --resource-… flag needs a name of its own"
    yield from _problems_of_usual_pods(configuration.requests)
    if configuration.lease.elects and not configuration.lease.name:
        yield "--leader-elect needs --leader-elect-resource-name: the lease that kube-scheduler holds"
    elif configuration.lease.elects and not configuration.lease.namespace:
        yield "--leader-elect needs --leader-elect-resource-namespace: the lease that kube-scheduler holds"
    of_files = (configuration.cert_file, configuration.key_file)
    if any(of_files) and configuration.webhook_secret:
        yield "--cert_file and --webhook-secret are two sources of one certificate; give one of them"
    elif any(of_files) and not all(of_files):
        yield "--cert_file and --key_file go together; give both"
    page = configuration.status_bind_address
    if page is not None and not is_loopback(page) and not any((*of_files, configuration.webhook_secret)):
        yield (
            f"--status-bind-address {page} is open to other hosts, so the page needs a certificate: give --cert_file "
            "and --key_file, or --webhook-secret; or choose 127.0.0.1"
        )


def is_loopback(address: ListenAddress) -> bool:
    """Returns whether only callers of the same host reach the address."""
    return address.host == "localhost" or is_local(address.host)


def _problems_of_usual_pods(requests: RequestSettings) -> Iterator[str]:
    try:
        tuple(seeds(requests))
    except RequestError as error:
        yield f"--usual-pods: {error.key} {error.problem}"


_STANDARD_ERROR = "log lines go to standard error; redirect that"
TABLE = Table(
    SchedulerConfiguration,
    conflicts,
    completed=_completed,
    without_effect={
        "profiling": "there is no Go profiler here; use py-spy, or the histograms of /metrics",
        **dict.fromkeys(("kube-qps", "kube-burst"), "one write is made for a pod, and none is held up"),
        "kube-timeout": "a call to the API server may take 10 s",
        "node-lock-retry-timeout": "a bind waits 18 s for a lock, and kube-scheduler ends the bind after 30 s",
        **dict.fromkeys(
            ("logtostderr", "alsologtostderr", "stderrthreshold", "log_dir", "log_file", "log_file_max_size"),
            _STANDARD_ERROR,
        ),
        **dict.fromkeys(("vmodule", "log_backtrace_at"), "use --log-level debug"),
        **dict.fromkeys(("add_dir_header", "skip_headers", "skip_log_headers", "one_output"), "use --log-format"),
    },
)


def warnings(effective: Effective[SchedulerConfiguration]) -> Iterator[str]:
    """Yields warnings about the settings, with which the extender still starts."""
    configuration = effective.configuration
    yield from effective.warnings
    yield from alias_warnings(configuration.requests.gpu_policy.text)
