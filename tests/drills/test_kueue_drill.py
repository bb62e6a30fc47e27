"""Jobs dispatched to two real Kubernetes API servers with Kueue's kinds, while both and the dispatcher fail."""

from __future__ import annotations

from pathlib import Path

import pytest

from drills.kueue_drill import run_drill, why_not


@pytest.mark.slow
@pytest.mark.skipif(why_not() is not None, reason=why_not() or "")
def test_every_job_is_taken_and_run_exactly_once(tmp_path: Path) -> None:
    found = run_drill(tmp_path, 24, limit_s=600.0)
    assert found.kills and found.faults == 4
    assert len(found.held) == 24 and set(found.held.values()) == {1}
    assert len(found.ran) == 24 and set(found.ran.values()) == {1}
