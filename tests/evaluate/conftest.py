"""Fixtures of the evaluation tests."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # workers import jobs from here


@pytest.fixture(params=["local", pytest.param("ray", marks=pytest.mark.ray)])
def open_any_engine(request: pytest.FixtureRequest) -> Callable[[], Any]:
    """How each engine is opened."""
    if request.param == "local":
        from prism.evaluate.engines import LocalEngine

        return LocalEngine
    pytest.importorskip("ray")
    from prism.evaluate.engines.ray_engine import RayEngine

    return lambda: RayEngine(None, 4)
