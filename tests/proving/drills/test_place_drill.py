"""Jobs dispatched to two real Slurm clusters while both and the dispatcher fail run exactly once."""

from __future__ import annotations

from pathlib import Path

import pytest

from proving.drills.place_drill import REACHES, run_drill, why_not


@pytest.mark.slow
@pytest.mark.parametrize("reach", REACHES)
def test_every_job_runs_exactly_once(reach: str, tmp_path: Path) -> None:
    reason = why_not(reach)
    if reason is not None:
        pytest.skip(reason)
    ran = run_drill(tmp_path, 40, limit_s=900.0, reach=reach)
    assert len(ran) == 40 and set(ran.values()) == {1}
