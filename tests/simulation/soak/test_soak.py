from datetime import UTC, datetime

import pytest

from simulation.soak.soak import MACHINES, SoakSettings, run_soak

SLOW = frozenset({"pods deleted by force", "programs stopped for a while", "API server away"})
"""Steps after which the cluster takes up to two minutes to settle."""


@pytest.mark.needs_compiler
async def test_a_short_soak_finds_no_violation_and_settles() -> None:
    settings = SoakSettings(seconds=8, seed=7, machines=MACHINES[1:], without=SLOW, sees_slots_go=False)
    report = await run_soak(settings, print, lambda: datetime.now(UTC))  # noqa: TID251 - the soak's clock
    assert report.violations == ()
    assert report.counts["containers judged"] > 0
