"""Kernels run in Python while that is cheaper, compiled from then on, and with the same answer."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

from prism.kernel import Kernel, kernel


@kernel
def add_up(values: np.ndarray) -> float:
    """A sum, in order."""
    total = 0.0
    for value in values:
        total += value
    return total


@kernel
def double(values: np.ndarray) -> float:
    """Calls another kernel."""
    return 2 * add_up(values)


def test_a_small_call_compiles_nothing_and_a_large_one_does_with_the_same_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # What an earlier run of this test left on disk would be loaded, once another test has imported numba.
    monkeypatch.setattr("prism.kernel._is_on_disk", lambda dispatcher: False)
    small, large = np.arange(100.0), np.arange(200_000.0)
    assert double(small) == 2 * small.sum()
    assert isinstance(double, Kernel)
    assert not getattr(double._compiled, "overloads", ())
    assert double(large) == 2 * large.sum()
    assert double.compiled.overloads
    assert double(small) == 2 * small.sum()


def test_narrow_numbers_do_not_wrap_around_in_python() -> None:
    assert add_up(np.array([2**32 - 1, 1], np.uint32)) == 2**32


def test_kernels_run_where_numba_compiles_nothing() -> None:
    code = "import numpy as np; from prism.observe.jobs.grouping import connect as f; a = np.arange(99_999); print(f(100_000, a, a + 1)[-1])"
    environment = {**os.environ, "NUMBA_DISABLE_JIT": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "0"), done.stderr[-300:]
