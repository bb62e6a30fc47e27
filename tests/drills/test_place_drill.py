"""Jobs dispatched to two real Slurm clusters while both and the dispatcher fail run exactly once."""

from __future__ import annotations

from pathlib import Path

import pytest

from drills.place_drill import run_drill
from drills.slurm_cluster import why_no_slurm


@pytest.mark.slow
@pytest.mark.skipif(why_no_slurm() is not None, reason=why_no_slurm() or "")
def test_every_job_runs_exactly_once(tmp_path: Path) -> None:
    ran = run_drill(tmp_path, 40, limit_s=900.0)
    assert len(ran) == 40 and set(ran.values()) == {1}
