"""What namespaces hold and have held. No clock: the time of each look comes in."""

from collections.abc import Mapping

from scheduler_ext.status.view import NOTHING_HELD, Held

MOST_TEAMS = 1_000
"""Namespaces whose GPU-hours are remembered: those with the most."""


class Teams:
    """The sums of namespaces over all nodes, and their GPU-hours."""

    def __init__(self) -> None:
        self.held: dict[str, Mapping[str, Held]] = {}
        """The parts of each node that namespaces hold."""
        self.gpu_hours: dict[str, float] = {}
        self._sums: dict[str, Held] = {}
        self._looked_at = 0.0
        """The monotonic time of the last look."""

    def pass_until(self, now: float) -> None:
        """Adds the GPU-hours since the look before."""
        hours = (now - self._looked_at) / 3600 if self._looked_at else 0.0
        self.recall({namespace: held.gpus * hours for namespace, held in self._sums.items()})
        self._looked_at = now
        if len(self.gpu_hours) > MOST_TEAMS:
            most = sorted(self.gpu_hours, key=self.gpu_hours.__getitem__)[-MOST_TEAMS:]
            self.gpu_hours = {namespace: self.gpu_hours[namespace] for namespace in most}

    def recall(self, gpu_hours: Mapping[str, float]) -> None:
        """Adds GPU-hours to those known."""
        for namespace, hours in gpu_hours.items():
            self.gpu_hours[namespace] = self.gpu_hours.get(namespace, 0.0) + hours

    def add_up(self) -> None:
        """Counts again what each namespace holds."""
        self._sums = {}
        for teams in self.held.values():
            for namespace, held in teams.items():
                self._sums[namespace] = self._sums.get(namespace, NOTHING_HELD).plus(held)

    def shown(self) -> Mapping[str, tuple[int, float, int, float]]:
        """Returns pods, GPUs, MiB and GPU-hours of each namespace."""
        names = sorted(self._sums.keys() | self.gpu_hours.keys())
        every = ((name, self._sums.get(name, NOTHING_HELD)) for name in names)
        return {
            name: (each.pods, round(each.gpus, 2), each.memory, round(self.gpu_hours.get(name, 0.0), 1))
            for name, each in every
        }
