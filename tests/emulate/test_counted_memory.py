"""Peak memory of CPU ranks is counted as torch's own allocator reports it, distributed tensors included."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent / "scripts" / "counted.py"
SIZES = ["--width", "128", "--layers", "4", "--length", "64", "--batch", "8", "--vocab", "512", "--device", "cpu"]


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["--data fsdp", "--data hsdp", "--data fsdp --tp 2"])
def test_what_is_counted_is_what_the_allocator_hands_out(layout: str) -> None:
    done = subprocess.run([sys.executable, str(SCRIPT), *SIZES, *layout.split()], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["counted"] == pytest.approx(found["allocated"], rel=0.001)
