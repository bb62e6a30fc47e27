"""Settings and fixtures that all tests share."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# Each worker of the suite has a core to itself. Read by OpenMP when it is first loaded, which is later than this.
os.environ.setdefault("OMP_NUM_THREADS", "1")

settings.register_profile("prism", deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("prism")

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Real data that is not shipped; tests on it are skipped where it is not at hand."""
    folder = Path(os.environ.get("PRISM_DATA", ROOT.parent / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip(f"needs the data folder; set PRISM_DATA (looked in {folder})")
    return folder
