"""Fixtures of the evaluation tests."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # workers import jobs from here

from ray_nodes import RayNodes


@pytest.fixture(params=["local", pytest.param("ray", marks=pytest.mark.ray)])
def open_any_engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Any]:
    """How each engine is opened; Ray's workers look for the jobs of the tests on PYTHONPATH."""
    if request.param == "local":
        from prism.evaluate.run.engines import LocalEngine

        return LocalEngine
    pytest.importorskip("ray")
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)
    from prism.evaluate.run.engines.ray_engine import RayEngine

    return lambda: RayEngine(None, 1)  # fewer CPUs than the tests start workers


@pytest.fixture(scope="module")
def ray_nodes() -> Iterator[RayNodes]:
    """Two Ray nodes begun with `ray start`, ended with the tests of a file."""
    pytest.importorskip("ray")
    nodes = RayNodes()
    try:
        nodes.start()
        yield nodes
    finally:
        nodes.stop()
