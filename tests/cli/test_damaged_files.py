"""Every command on damaged files: one clear line or a result, never an internal error."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

FUZZER = Path(__file__).parents[2] / "proving" / "benchmarks" / "cli_fuzz.py"


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_no_command_ends_with_an_internal_error(tmp_path: Path) -> None:
    words = [sys.executable, str(FUZZER), "--inputs", "150", "--seed", "77", "--keep", str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert "0 ended badly" in done.stdout
