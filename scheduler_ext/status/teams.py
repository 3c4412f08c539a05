"""What namespaces hold and have held. No clock: the time of each look comes in."""

from collections.abc import Mapping

from scheduler_ext.status.view import NOTHING_HELD, Held

MOST_TEAMS = 1_000
"""Namespaces whose GPU-hours are remembered: those that hold GPUs, then those with the most hours."""
_PART_SECONDS = 60.0
_MOST_PARTS = 60


class Teams:
    """The sums of namespaces over all nodes, and their GPU-hours."""

    def __init__(self) -> None:
        self.held: dict[str, Mapping[str, Held]] = {}
        """The parts of each node that namespaces hold."""
        self.gpu_hours: dict[str, float] = {}
        self._sums: dict[str, Held] = {}
        self._looked_at = 0.0
        """The monotonic time of the last look."""
        self._parts: list[tuple[float, dict[str, float]]] = []
        """The GPU-hours that this process counted, by the beginning of the minute in seconds since 1970."""

    def pass_until(self, now: float, at: float) -> None:
        """Adds the GPU-hours since the look before. `at` is the same time in seconds since 1970."""
        seconds = now - self._looked_at if self._looked_at else 0.0
        self._looked_at = now
        counted = {namespace: held.gpus * seconds / 3600 for namespace, held in self._sums.items()}
        if not self._parts or at - self._parts[-1][0] > _PART_SECONDS:
            self._parts.append((at - seconds, {}))
        for known in (self.gpu_hours, self._parts[-1][1]):
            _add(known, counted)
        if len(self._parts) > _MOST_PARTS:
            (_, oldest), (_, second) = self._parts.pop(0), self._parts[0]
            _add(second, oldest)
        if len(self.gpu_hours) > MOST_TEAMS:
            self.gpu_hours = self._most(max(MOST_TEAMS, len(self._sums)))

    def recall(self, gpu_hours: Mapping[str, float], until: float) -> None:
        """Goes on with GPU-hours that a process counted until then. This process adds what it counted since."""
        found = dict(gpu_hours)
        for began, counted in self._parts:
            if began >= until:
                _add(found, counted)
        for namespace, hours in found.items():
            self.gpu_hours[namespace] = max(hours, self.gpu_hours.get(namespace, 0.0))

    def remembered(self) -> Mapping[str, float]:
        """Returns the GPU-hours for `recall` of a later process."""
        return self._most(MOST_TEAMS)

    def _most(self, most: int) -> dict[str, float]:
        kept = sorted(self.gpu_hours, key=lambda name: (name in self._sums, self.gpu_hours[name]))
        return {name: self.gpu_hours[name] for name in kept[-most:]}

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


def _add(hours: dict[str, float], more: Mapping[str, float]) -> None:
    for namespace, each in more.items():
        hours[namespace] = hours.get(namespace, 0.0) + each
