"""Peak memory of CPU ranks is counted as torch's own allocator reports it, distributed tensors included."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from prism.emulate.inside.calling_group import Request, count_scratch
from prism.emulate.inside.memory import StorageCounter

ROOT = Path(__file__).parents[2]
SCRIPT = Path(__file__).parent / "scripts" / "counted.py"
SIZES = ["--width", "128", "--layers", "4", "--length", "64", "--batch", "8", "--vocab", "512", "--device", "cpu"]


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["--data fsdp", "--data hsdp", "--data fsdp --tp 2"])
def test_what_is_counted_is_what_the_allocator_hands_out(layout: str) -> None:
    done = subprocess.run([sys.executable, str(SCRIPT), *SIZES, *layout.split()], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["counted"] == pytest.approx(found["allocated"], rel=0.001)


@pytest.mark.slow
def test_real_gloo_ranks_hold_what_is_counted(tmp_path: Path) -> None:
    script = [str(ROOT / "examples" / "gpt" / "train.py"), *SIZES, "--data", "fsdp", "--steps", "2"]
    wrapper = [str(ROOT / "proving" / "benchmarks" / "emulate_cpu_peak.py"), str(tmp_path / "peak")]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    subprocess.run([*torchrun, *wrapper, *script], check=True, capture_output=True)
    emulate = [sys.executable, "-m", "prism.cli.main", "emulate", "--world-size", "2", "--no-measure-host", "--json"]
    done = subprocess.run([*emulate, "--", *script], check=True, capture_output=True, text=True)
    (counted,) = {kind["peak_allocated_bytes"] for kind in json.loads(done.stdout)["classes"]}
    for rank in range(2):
        assert counted == pytest.approx(int((tmp_path / f"peak.{rank}").read_text()), rel=0.01)


def test_memory_that_a_backend_takes_for_one_call_raises_the_peak_and_nothing_else() -> None:
    with StorageCounter() as counter:
        kept = torch.empty(1024, dtype=torch.uint8)
        counter.note_scratch(4096)
        counter.note_scratch(512)
    assert (counter.peak, counter.current) == (1024 + 4096, kept.numel())


@pytest.mark.parametrize(
    ("kind", "shapes", "is_root", "scratch"),
    [
        ("all_gather", [8, 4], False, 32),  # the gathered whole
        ("reduce_scatter", [4, 8], False, 32),  # a copy of the input
        ("reduce_scatter", [4, 4, 4], False, 16),  # of a list: one chunk
        ("gather", [4, 4, 4], True, 32),
        ("gather", [4], False, 0),
        ("all_reduce", [8], False, 0),
    ],
)
def test_gloo_takes_buffers_of_its_own(kind: str, shapes: list[int], is_root: bool, scratch: int) -> None:
    request = Request(kind=kind, tensors=[torch.zeros(n) for n in shapes], bytes=32, sync=True)
    assert count_scratch(request, is_root=is_root) == scratch
