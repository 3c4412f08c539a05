"""Notices for the Node's events: changes of its GPUs."""

from collections.abc import Iterator

from deviceplugin.gpus import Inventory
from proto.annotations.node_limits import NodeLimits
from proto.kubernetes.notices import Notice


def notices(before: Inventory, after: Inventory) -> Iterator[Notice]:
    """Returns a notice for every GPU that became unhealthy, recovered or is missing, and every pair whose directions
    now disagree.
    """
    if after.is_simulated and not before.is_simulated:
        yield Notice(reason="GPUsSimulated", message="the GPUs of this node are simulated: pods get no real GPU")
    known = {device.uuid for device in before.devices}
    for device in after.devices:
        problem = after.problems.get(device.uuid)
        name = f"GPU {device.index} ({device.uuid})"
        if problem is not None and before.problems.get(device.uuid) != problem:
            yield Notice(reason="GPUUnhealthy", message=f"{name} is unhealthy: {problem}", distinct=True)
        elif problem is None and device.uuid in known and device.uuid in before.problems:
            message = f"{name} is healthy again"
            yield Notice(reason="GPUHealthy", message=message, warning=False, distinct=True)
    for gpu in after.missing:
        if gpu not in before.missing:
            yield Notice(reason="GPUMissing", message=f"{gpu.name} cannot be used: {gpu.problem}", distinct=True)
    for sentence in after.disagreements:
        if sentence not in before.disagreements:
            yield Notice(reason="AsymmetricGPUP2PLink", message=sentence, distinct=True)


def untotalled(device_class: str, resource: str) -> Notice:
    """Warns of a DeviceClass that lets kubelet refuse pods of a Node without totals."""
    message = (
        f"DeviceClass {device_class} makes kube-scheduler refuse this node to pods that ask for memory, cores or "
        f"priority beside {resource}: the Node does not say that it has any. Set node_totals to true"
    )
    return Notice(reason="NodeTotalsMissing", message=message, distinct=True)


def unlimited(before: NodeLimits | None, now: NodeLimits | None) -> Notice | None:
    """Returns the notice of a node that begins to give out unlimited parts of GPUs, or whose HAMi-core has gone."""
    if now is NodeLimits.PARTLY_ENFORCED:
        message = (
            "containers may get parts of several GPUs, and HAMi-core does not hold them to these for sure: "
            "unenforced_shares is allow"
        )
        return Notice(reason="LimitsNotEnforced", message=message, distinct=True)
    if now is NodeLimits.UNENFORCED:
        message = (
            "containers get parts of GPUs, and nothing enforces their memory and cores: HAMi-core is not "
            "installed, and unenforced_shares is allow"
        )
        return Notice(reason="LimitsNotEnforced", message=message, distinct=True)
    if before is NodeLimits.HAMI_CORE and now is NodeLimits.NONE:
        message = "HAMi-core has gone: containers that were given a part of a GPU are not started any more"
        return Notice(reason="HAMiCoreGone", message=message, distinct=True)
    return None
