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
from prism.emulate.inside.pacing import Rule, Schedule, StreamPacer
from prism.emulate.inside.plan import FaultPlan, RunPlan
from prism.emulate.launch import LaunchConfig, run_ranks
from prism.errors import ScriptError

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

HELD = Path(__file__).parent / "scripts" / "held.py"
STAGED = Path(__file__).parents[2] / "proving" / "benchmarks" / "emulate_staged_gloo.py"
TRAIN = Path(__file__).parents[2] / "examples" / "gpt" / "train.py"
SIZE = ("--width", "256", "--layers", "2", "--steps", "5", "--device", "cuda", "--backend", "gloo", "--vocab", "1024")


def test_a_held_stream_ends_when_its_op_is_due() -> None:
    pacer = StreamPacer(Schedule([]))
    pacer.put(Rule("all_reduce", 8, 0, 0, 1_000_000), 0, "1")  # compiles the kernel
    torch.cuda.synchronize()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    pacer.put(Rule("all_reduce", 8, 1, 0, 2_000_000), 1, "2")
    pacer.put(Rule("all_reduce", 8, 1, 3_000_000, 1_000_000), 2, "3")
    end.record()
    torch.cuda.synchronize()
    # 2 ms, then peers that come 3 ms after its end, then 1 ms.
    assert begin.elapsed_time(end) == pytest.approx(6.0, rel=0.03)


@pytest.mark.parametrize("layout", [("--data", "ddp"), ("--data", "fsdp"), ("--pp", "2")], ids=lambda x: x[1])
def test_every_rank_holds_as_much_memory_as_a_real_one(layout: tuple[str, ...], tmp_path: Path) -> None:
    arguments = (str(TRAIN), *SIZE, *layout)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(STAGED)]
    subprocess.run(
        [*command, *arguments, "--times", str(tmp_path / "times")],
        check=True,
        capture_output=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    launch = LaunchConfig(script=arguments, world_size=2, gpus_per_node=2)
    captures = capture_job(CaptureConfig(launch=launch, iterations=2, warmup=2)).captures
    for rank in (0, 1):
        real = json.loads((tmp_path / f"times.{rank}").read_text())
        emulated = captures[rank].memory
        assert (emulated.allocated, emulated.requested) == (real["peak_allocated"], real["peak_requested"])


def _run_held(folder: Path, *faults: FaultPlan) -> dict[str, object]:
    """The loop among peers whose all-reduce takes 30 ms."""
    schedule = folder / "schedule.json"
    rule = {"kind": "all_reduce", "bytes": 4 << 20, "back": 0, "gap_ns": 0, "duration_ns": 30_000_000}
    schedule.write_text(json.dumps({"rules": [rule]}))
    plan = RunPlan(
        rank=0, world_size=8, gpus_per_node=8, output="", iterations=1000, live_ranks=(0,), schedule=str(schedule),
        faults=faults,
    )  # fmt: skip
    config = LaunchConfig(script=(str(HELD), str(folder / "figures")), world_size=8, timeout_s=60)
    run_ranks(config, plan, [0])
    figures: dict[str, object] = json.loads((folder / "figures").read_text())
    return figures


def test_a_live_rank_is_held_on_its_stream_and_its_host_is_not(tmp_path: Path) -> None:
    figures = _run_held(tmp_path)
    assert sorted(figures["step_ms"])[3] == pytest.approx(30, rel=0.1)  # type: ignore[call-overload]
    assert sorted(figures["host_ms"])[3] < 10  # type: ignore[call-overload]
    if figures["held_ms"] == -1:
        pytest.skip("the profiler may not see kernels on this machine")
    assert figures["held_ms"] == pytest.approx(30, rel=0.05)  # a profiler shows the target's timeline


def test_a_peer_that_hangs_ends_the_live_rank_as_the_watchdog_would(tmp_path: Path) -> None:
    with pytest.raises(ScriptError, match=r"exit code -6") as caught:
        _run_held(tmp_path, FaultPlan(kind="hang", rank=5, step=2))
    assert "Watchdog caught collective operation timeout" in caught.value.output


def test_a_script_that_needs_more_memory_than_the_gpu_has_is_reported(tmp_path: Path) -> None:
    script = tmp_path / "huge.py"
    script.write_text(
        "import torch, torch.distributed as dist\ndist.init_process_group('nccl')\n"
        "kept = [torch.empty(1 << 33, device='cuda') for _ in range(64)]\n"
    )
    with pytest.raises(ScriptError, match="rank 0 needs more memory than this GPU has") as caught:
        run_ranks(
            LaunchConfig(script=(str(script),), world_size=4),
            RunPlan(rank=0, world_size=4, gpus_per_node=8, output=""),
            [0],
        )
    assert "huge.py" in caught.value.output


def test_torchs_own_context_parallelism_runs() -> None:
    script = Path(__file__).parent / "scripts" / "context.py"
    launch = LaunchConfig(script=(str(script),), world_size=4, timeout_s=60)
    captures = capture_job(CaptureConfig(launch=launch, ranks=(1,), iterations=2, warmup=2)).captures
    kinds = {entry.what for entry in captures[1].entries if entry.is_communication}
    assert kinds & {"all_gather", "all_to_all", "send"}  # keys and values travel, whichever way torch chooses
