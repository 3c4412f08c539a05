"""Changes the driver's limits of containers that run, and reads what they use (edge)."""

from collections.abc import Mapping

from deviceplugin.limits.driver import DriverLimits, Limited, bytes_of
from deviceplugin.nvml.memory_limits import MemoryLimit, MemoryLimits, is_slow, not_set
from proto.devices import DeviceUUID

STARTS_AGAIN = None
"""The container has ended, starts again, or its GPU does not answer in time: look again later."""


class LimitChanges:
    """Without `memory` the driver limits nothing."""

    def __init__(self, driver: DriverLimits, memory: MemoryLimits | None) -> None:
        self._driver = driver
        self._memory = memory

    async def used_bytes(self, pod_uid: str) -> Mapping[str, Mapping[DeviceUUID, int]]:
        """Returns what each container of the pod uses of each of its GPUs whose limit holds."""
        limited = {name: each for name, each in self._driver.of_pod(pod_uid).items() if each.group}
        if self._memory is None or not limited:
            return {}
        answers = await self._memory.read({each.group: tuple(each.limits_mib) for each in limited.values()})
        return {
            name: {
                gpu: answer.used_bytes
                for gpu, answer in answers[each.group].items()
                if isinstance(answer, MemoryLimit) and answer.holds(bytes_of(each.limits_mib)[gpu])
            }
            for name, each in limited.items()
        }

    async def set(self, pod_uid: str, container: str, limits_mib: Mapping[DeviceUUID, int]) -> str | None:
        """Has the driver hold a running container to other limits. Returns why it does not, empty if it does, or
        `STARTS_AGAIN`.
        """
        async with self._driver.writing:
            limited = self._driver.of_pod(pod_uid).get(container)
            if limited is None or not limited.group or self._memory is None:
                return STARTS_AGAIN
            refusals = await self._memory.set(limited.group, bytes_of(limits_mib))
            problem = not_set(refusals)
            if not problem:
                try:
                    return "" if await self._driver.change((pod_uid, container), limited, limits_mib) else STARTS_AGAIN
                except OSError as error:
                    problem = f"the limits of the container cannot be written: {error}"
            await self._set_back(self._memory, limited)
            return STARTS_AGAIN if any(map(is_slow, refusals.values())) else problem

    @staticmethod
    async def _set_back(memory: MemoryLimits, limited: Limited) -> None:
        """Some of the GPUs may have taken the new limits. What fails here is set again at the next look at limits."""
        await memory.set(limited.group, bytes_of(limited.limits_mib))
