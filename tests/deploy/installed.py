"""What every test of a whole cluster does as its user: install, wait until all is ready, and ask."""

from daemonset import render
from proto import __version__
from tests.deploy.cluster import Cluster

SYSTEM = "-n topogpu-system"
CHART = str(render.CHART)
IMAGE = f"--set image.repository=registry.example.com/topogpu --set image.tag={__version__}"
REPLICAS = "80"
"""Of eight GPUs, ten each."""


def helm_installs(cluster: Cluster, *more: str, chart: str = CHART) -> None:
    words = [f"install topogpu {chart} --namespace topogpu-system --create-namespace", IMAGE, *more]
    cluster.helm(" ".join(words))
    rolled_out(cluster)


def rolled_out(cluster: Cluster) -> None:
    cluster.kubectl(f"{SYSTEM} rollout status daemonset/topogpu-device-plugin --timeout 180s")
    cluster.kubectl(f"{SYSTEM} rollout status deployment/topogpu-scheduler --timeout 180s")
    cluster.until(lambda: offered(cluster) == REPLICAS, "the Node offers its GPUs")
    cluster.until(lambda: trusted(cluster), "the API server trusts the webhook's certificate")


def helm_uninstalls(cluster: Cluster) -> None:
    cluster.helm("uninstall topogpu --namespace topogpu-system --wait")
    cluster.until(lambda: not cluster.items(f"pods {SYSTEM}"), "all pods of ours have ended")


def offered(cluster: Cluster) -> str:
    """As install.md asks for it."""
    columns = "custom-columns=GPUS:.status.allocatable.nvidia\\.com/gpu"
    return cluster.kubectl(f"get nodes --no-headers -o '{columns}'").strip()


def trusted(cluster: Cluster) -> bool:
    """The extender has written whom to trust into every webhook."""
    webhooks = cluster.get("mutatingwebhookconfiguration topogpu-webhook")["webhooks"]
    return all(webhook["clientConfig"].get("caBundle") for webhook in webhooks)


def daemon(cluster: Cluster) -> str:
    """The name of its pod."""
    return pods_of(cluster, "device-plugin")[0]


def pods_of(cluster: Cluster, component: str) -> list[str]:
    found = cluster.items(f"pods {SYSTEM} -l app.kubernetes.io/component={component}")
    return [pod["metadata"]["name"] for pod in found if "deletionTimestamp" not in pod["metadata"]]


def holder(cluster: Cluster) -> str:
    """The replica that decides."""
    lease = cluster.get(f"lease topogpu-scheduler {SYSTEM}")
    return str(lease["spec"]["holderIdentity"])
