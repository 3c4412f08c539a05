"""What is booked and what containers were given, added up after every change, without the code of the two programs."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from simulation.kubelet.container import CreatedContainer
from simulation.recount import Amount, Held, holds, recount
from simulation.soak.oracle import CORES, MEMORY, VISIBLE, Capacity, overbooked, wrongly_given

Containers = Mapping[str, Mapping[str, CreatedContainer]]
"""By pod UID and name."""


class Observer:
    """`problems` has a sentence for every GPU over its capacity, and for every container with another's GPUs."""

    def __init__(
        self,
        pods: Callable[[], Iterable[Mapping[str, Any]]],
        containers: Callable[[], Containers],
        capacity: Capacity,
    ) -> None:
        self.problems: dict[str, None] = {}
        self._pods = pods
        self._containers = containers
        self._capacity = capacity
        self._judged: set[int] = set()

    def look(self) -> None:
        pods = list(self._pods())
        self._note(overbooked(pods, self._capacity))
        for uuid, amount in self.given().items():
            limit = self._capacity.get(uuid, (0, 0, 0))
            if any(has > may for has, may in zip(amount, limit, strict=True)):
                self._note([f"containers were given {amount} of {uuid}, which has {limit} replicas, MiB and cores"])
        bound = {pod["metadata"]["uid"]: pod for pod in pods if holds(pod)}
        for uid, containers in self._containers().items():
            for container in containers.values():
                # A container is judged once, by the decision that its pod had then.
                if uid in bound and id(container) not in self._judged:
                    self._judged.add(id(container))
                    self._note(wrongly_given(bound[uid], container.name, container.env, self._capacity))

    def booked(self) -> Held:
        """What the pods' annotations come to."""
        return recount(filter(holds, self._pods()))

    def given(self) -> Held:
        """What the containers that run were created with."""
        sums: dict[str, Amount] = defaultdict(lambda: (0, 0, 0))
        for containers in self._containers().values():
            for container in containers.values():
                for uuid, (replicas, mib, cores) in self._granted(container.env):
                    sums[uuid] = (sums[uuid][0] + replicas, sums[uuid][1] + mib, sums[uuid][2] + cores)
        return sums

    def _granted(self, env: Mapping[str, str]) -> Iterator[tuple[str, Amount]]:
        """Without a limit all memory of the GPU."""
        for place, uuid in enumerate(filter(None, env.get(VISIBLE, "").split(","))):
            mib = env.get(f"{MEMORY}_{place}", f"{self._capacity.get(uuid, (0, 0, 0))[1]}m").removesuffix("m")
            yield uuid, (1, int(mib), int(env.get(f"{CORES}_{place}", env.get(CORES, "0"))))

    def _note(self, problems: Iterable[str]) -> None:
        self.problems |= dict.fromkeys(problems)
