"""What only a CUDA device can show; `make test-gpu` runs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from prism.emulate.capturing import CaptureConfig, capture_job
from prism.emulate.launch import LaunchConfig

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

TRAIN = Path(__file__).parents[2] / "examples" / "gpt" / "train.py"
SIZE = ("--width", "256", "--layers", "2", "--steps", "5", "--device", "cuda", "--backend", "gloo", "--vocab", "1024")


def test_a_held_stream_ends_when_its_op_is_due() -> None:
    from prism.emulate.inside.pacing import Rule, StreamPacer

    pacer = StreamPacer()
    pacer.issue(Rule("all_reduce", 8, 0, 0, 1_000_000), 0, lane=1)  # compiles the kernel
    torch.cuda.synchronize()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    pacer.issue(Rule("all_reduce", 8, 1, 0, 2_000_000), 1, lane=2)
    pacer.issue(Rule("all_reduce", 8, 1, 3_000_000, 1_000_000), 2, lane=3)
    end.record()
    torch.cuda.synchronize()
    # 2 ms, then peers that come 3 ms after its end, then 1 ms.
    assert begin.elapsed_time(end) == pytest.approx(6.0, rel=0.03)


@pytest.mark.parametrize("data", ["ddp", "fsdp"])
def test_ranks_request_as_much_memory_as_real_ones(data: str, tmp_path: Path) -> None:
    arguments = (str(TRAIN), *SIZE, "--data", data)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    subprocess.run(
        [*command, *arguments, "--times", str(tmp_path / "times")], check=True, capture_output=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    real = json.loads((tmp_path / "times.0").read_text())
    launch = LaunchConfig(script=arguments, world_size=2, gpus_per_node=2)
    captures = capture_job(CaptureConfig(launch=launch, iterations=2, warmup=2)).captures
    assert captures[0].memory.requested == pytest.approx(real["peak_requested"], rel=1e-4)
    # The allocator hands a block out whole where less than 1 MiB of it would be left.
    assert abs(captures[0].memory.allocated - real["peak_allocated"]) <= 2 << 20
