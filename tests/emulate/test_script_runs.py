"""Scripts under Prism's process group: values beside real gloo, scale, and everything that goes wrong."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import polars as pl
import pytest

from prism.emulate import CaptureConfig, EmulateConfig, LaunchConfig, emulate, run_live
from prism.emulate.capture import Capture
from prism.emulate.comparing import CallsDifferError, check_calls
from prism.emulate.inside.plan import FaultPlan, RunPlan
from prism.emulate.launch import Launcher, run_ranks
from prism.errors import BadConfigError, GraphError, PrismError, ScriptError

SCRIPTS = Path(__file__).parent / "scripts"
EXAMPLES = Path(__file__).parents[2] / "examples" / "gpt"
TINY = ("--width", "32", "--heads", "2", "--layers", "2", "--length", "16", "--batch", "4", "--vocab", "64")


def run_real(script: Path, num: int, *arguments: str) -> None:
    """The script on real ranks, over gloo, with the environment of torchrun."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    command = [sys.executable, "-W", "ignore", str(SCRIPTS / "real_ranks.py"), str(num), str(script), *arguments]
    subprocess.run(command, check=True, env=environment, capture_output=True, timeout=600)


def run_alone(script: Path, world: int, *arguments: str, **changes: Any) -> dict[int, Capture]:
    """One live rank of a large world."""
    config = LaunchConfig(script=(str(script), *arguments), world_size=world, timeout_s=changes.pop("timeout_s", 900))
    plan = RunPlan(rank=0, world_size=world, gpus_per_node=8, output="", live_ranks=(0,), track_memory=False, warmup=1)
    return run_ranks(config, replace(plan, **{"iterations": 5, **changes}), [0]).captures


def test_every_collective_leaves_what_gloo_leaves_when_ranks_are_equal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the current folder has a file called like a package: as under torchrun, it is not imported."""
    own = tmp_path / "own"
    own.mkdir()
    (own / "torch.py").write_text("raise SystemExit('a file of the current folder was run')")
    monkeypatch.chdir(own)
    run_real(SCRIPTS / "collectives.py", 2, str(tmp_path / "real.json"))
    run_alone(SCRIPTS / "collectives.py", 2, str(tmp_path / "emulated.json"))
    real, emulated = (json.loads((tmp_path / f"{name}.json").read_text()) for name in ("real", "emulated"))
    assert emulated == real


def test_small_values_that_differ_between_ranks_are_combined_as_gloo_combines_them(tmp_path: Path) -> None:
    run_real(SCRIPTS / "unlike.py", 3, str(tmp_path / "real"))
    config = LaunchConfig(script=(str(SCRIPTS / "unlike.py"), str(tmp_path / "emulated")), world_size=3)
    plan = RunPlan(rank=0, world_size=3, gpus_per_node=8, output="", live_ranks=(0, 1, 2), track_memory=False)
    run_ranks(config, plan, [0, 1, 2])
    for rank in range(3):
        real, emulated = (json.loads((tmp_path / f"{n}-{rank}.json").read_text()) for n in ("real", "emulated"))
        assert emulated == real


@pytest.mark.slow
def test_losses_under_ddp_are_those_of_a_real_run(tmp_path: Path) -> None:
    run_real(SCRIPTS / "ddp.py", 2, str(tmp_path / "real.json"))
    captures = run_alone(SCRIPTS / "ddp.py", 2, str(tmp_path / "emulated.json"), iterations=100)
    real, emulated = (json.loads((tmp_path / f"{name}.json").read_text()) for name in ("real", "emulated"))
    assert emulated == pytest.approx(real, rel=1e-5)
    calls = [e for e in captures[0].entries if e.is_communication]
    assert {e.what for e in calls} == {"all_gather", "broadcast", "all_reduce"}
    assert any(re.fullmatch(r"scripts/ddp.py:\d+", e.source) for e in calls)
    waited = [e.op for e in captures[0].entries if e.what == "wait"]
    assert len(waited) == len(set(waited)) > 6  # DDP's reducer waits by futures, once for each


def test_rank_0_of_8192_boots_within_45_s_and_1_gb(tmp_path: Path) -> None:
    script = tmp_path / "own" / "boot.py"
    script.parent.mkdir()
    script.write_text(
        "import sys, time, torch, torch.distributed as dist\n"
        "from torch.distributed.device_mesh import init_device_mesh\n"
        "began = time.process_time()\n"
        "dist.init_process_group('nccl')\n"
        "mesh = init_device_mesh('cpu', (8, 128, 8), mesh_dim_names=('pp', 'dp', 'tp'))\n"
        "x = torch.ones(4); dist.all_reduce(x, group=mesh['dp'].get_group())\n"
        "assert x[0] == 128 and dist.get_world_size() == 8192 and dist.get_backend() == 'nccl'\n"
        # Not ru_maxrss: a process inherits that from the one that started it.
        "peak = open('/proc/self/status').read().split('VmHWM:')[1].split()[0]\n"
        "open(sys.argv[1], 'w').write(f'{time.process_time() - began} {peak}')\n"
    )
    captures = run_alone(script, 8192, str(tmp_path / "figures"))
    seconds, kilobytes = map(float, (tmp_path / "figures").read_text().split())
    assert seconds < 45 and kilobytes < 1e6
    assert len(captures[0].groups) == 1 + 64 + 1024 + 1024


@pytest.mark.parametrize(
    ("what", "message", "shown"),
    [
        ("crash", "rank 0 failed in the script: KeyError: 'learning_rate'", "trouble.py"),
        pytest.param("early", "left the script with exit code 3", "", marks=pytest.mark.slow),
        pytest.param("rejects", "ValueError: this job needs 6 ranks", "raise ValueError", marks=pytest.mark.slow),
        pytest.param("unknown", "recv without a source cannot be emulated", "Traceback", marks=pytest.mark.slow),
        pytest.param("spawn", "starts its own ranks", "Traceback", marks=pytest.mark.slow),
    ],
)
def test_a_script_that_fails_is_told_in_one_line_and_keeps_its_own_output(what: str, message: str, shown: str) -> None:
    with pytest.raises(ScriptError, match=re.escape(message)) as caught:
        run_alone(SCRIPTS / "trouble.py", 4, what)
    assert "\n" not in str(caught.value)
    assert shown in caught.value.output


@pytest.mark.slow
def test_a_script_that_hangs_is_given_up() -> None:
    with pytest.raises(ScriptError, match="rank 0 did not finish in 12 s"):
        run_alone(SCRIPTS / "trouble.py", 4, "hang", timeout_s=12)


def test_a_rank_that_has_not_begun_when_time_is_up_has_printed_nothing(tmp_path: Path) -> None:
    launcher: Any = SimpleNamespace(_live={0: SimpleNamespace(log=tmp_path / "rank-0.log")})
    assert Launcher.log_of(launcher, 0) == ""
    (tmp_path / "rank-0.log").write_text("loading\n")
    assert Launcher.log_of(launcher, 0) == "loading\n"


@pytest.mark.slow
def test_a_fork_that_communicates_is_refused() -> None:
    with pytest.raises(ScriptError, match=r"a forked process calls barrier \(\S*scripts/trouble.py:\d+\)"):
        run_alone(SCRIPTS / "trouble.py", 4, "fork")


def _run_two(script: Path, text: str, **changes: Any) -> dict[int, Capture]:
    script.write_text(text)
    plan = RunPlan(rank=0, world_size=2, gpus_per_node=8, output="", track_memory=False)
    config = LaunchConfig(script=(str(script),), world_size=2, timeout_s=600)
    return run_ranks(config, replace(plan, live_ranks=(0, 1), **changes), [0, 1]).captures


def test_what_a_rank_writes_before_a_barrier_the_others_read_after_it(tmp_path: Path) -> None:
    text = (
        "import os, time, torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        f"path = '{tmp_path}/written'\n"
        "if dist.get_rank() == 1:\n"
        "    time.sleep(1)\n"
        "    open(path, 'w').write('ready')\n"
        "dist.barrier()\n"
        "assert open(path).read() == 'ready'\n"
    )
    captures = _run_two(tmp_path / "train.py", text)
    assert [capture.status for capture in captures.values()] == ["ended", "ended"]


def test_indices_that_ranks_exchange_and_sums_that_only_the_root_gets_are_real(tmp_path: Path) -> None:
    text = (
        "import torch, torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "rank = dist.get_rank()\n"
        "ids = torch.tensor([1, 2, 103] if rank else [5, 101, 102, 104, 105])  # rows 100 and up belong to rank 1\n"
        "send = torch.bincount(ids // 100, minlength=2)\n"
        "take = torch.empty_like(send)\n"
        "dist.all_to_all_single(take, send)\n"
        "rows = torch.empty(int(take.sum()), dtype=torch.long)\n"
        "dist.all_to_all_single(rows, ids, take.tolist(), send.tolist())\n"
        "assert rows.tolist() == ([101, 102, 104, 105, 103] if rank else [5, 1, 2]), rows\n"
        "parts = [torch.zeros(int(n), dtype=torch.long) for n in take]\n"
        "dist.all_to_all(parts, list(ids.split(send.tolist())))\n"
        "assert torch.cat(parts).tolist() == rows.tolist()\n"
        "total = torch.tensor([rank + 1.0])\n"
        "dist.reduce(total, 0)\n"
        "assert rank or total.item() == 3\n"
    )
    captures = _run_two(tmp_path / "train.py", text)
    assert [capture.status for capture in captures.values()] == ["ended", "ended"]


def test_a_call_that_the_other_rank_never_makes_is_compared_though_it_is_in_no_iteration(tmp_path: Path) -> None:
    text = (
        "import torch, torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "large, opt = torch.ones(100_000), torch.optim.SGD([torch.ones(1, requires_grad=True)])\n"
        "for step in range(4):\n"
        "    if dist.get_rank() == 0 and step == 1:\n"
        "        dist.all_reduce(torch.ones(1))\n"
        "    dist.all_reduce(large)\n"
        "    opt.step()\n"
    )
    captures = _run_two(tmp_path / "train.py", text, steps=3)
    assert [(call.what, call.bytes) for call in captures[0].unmet] == [("all_reduce", 4)]
    with pytest.raises(CallsDifferError, match=r"rank \d calls all_reduce of [\d,]+ bytes \(.*train.py:[67]\)"):
        check_calls(captures)


def test_ranks_that_do_not_exist_are_refused() -> None:
    with pytest.raises(BadConfigError, match="rank 9 does not exist; the ranks are 0 to 3"):
        run_ranks(
            LaunchConfig(script=(str(SCRIPTS / "ddp.py"),), world_size=4),
            RunPlan(rank=0, world_size=4, gpus_per_node=8, output=""),
            [9],
        )


def _emulate(*script: str, world: int = 4, **changes: Any) -> Any:
    launch = LaunchConfig(script=script, world_size=world, timeout_s=600)
    capture = CaptureConfig(launch=launch, iterations=2, warmup=2, at_once=0, **{"quick": True, **changes})
    return emulate(EmulateConfig(capture=capture))


@pytest.mark.parametrize(
    ("what", "error", "message"),
    [
        ("silent", PrismError, "never called a collective"),
        (
            "extra",
            GraphError,
            r"rank 0 calls barrier \(\S*scripts/trouble.py:\d+\) where ranks 1, 2, 3 call all_reduce",
        ),
    ],
)
def test_jobs_that_cannot_be_put_together_say_why(what: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        _emulate(str(SCRIPTS / "trouble.py"), what)


def test_a_script_that_resumes_from_what_its_first_run_saved_is_predicted_from_that_run(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import os, torch, torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        f"path = '{tmp_path}/finished'\n"
        "weight = torch.ones(8, requires_grad=True)\n"
        "opt = torch.optim.SGD([weight])\n"
        "dist.broadcast(weight.data, 0)\n"
        "for step in range(0 if os.path.exists(path) else 6):\n"
        "    weight.sum().backward()\n"
        "    dist.all_reduce(weight.grad)\n"
        "    opt.step()\n"
        "    if step == 5:\n"
        "        os.system(f'touch {path}')\n"  # by a process that Prism does not see
        "dist.barrier()\n"
    )
    notes: list[str] = []
    emulation = _emulate(str(script), world=2, note=notes.append)
    assert emulation.prediction.headline_ms > 0
    assert any("as if it found its own checkpoint" in note for note in notes)


def test_files_of_the_user_are_as_before_and_new_ones_are_set_aside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    script = tmp_path / "train.py"
    script.write_text(
        "import os, shutil, torch, torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "weight = torch.ones(8, requires_grad=True)\n"
        "opt = torch.optim.SGD([weight])\n"
        "if not os.path.exists('new.pt'):\n"  # else there is nothing left to do
        "    os.makedirs('cache', exist_ok=True)\n"
        "    if dist.get_rank() == 0 and not os.path.exists('cache/data'):\n"
        "        open('cache/draft', 'w').close(); os.replace('cache/draft', 'cache/data')\n"
        "    log = open('log.txt', 'w')\n"
        "    losses = open(f'losses-{dist.get_rank()}.txt', 'a')\n"
        "    for step in range(12):\n"
        "        weight.sum().backward()\n"
        "        dist.all_reduce(weight.grad)\n"
        "        opt.step()\n"
        "        print(weight.sum(), file=losses, flush=True)\n"
        "        if dist.get_rank() == 0 and step == 2:\n"
        "            torch.save(weight, 'best.pt')\n"
        "            torch.save(weight, 'new.tmp'); os.replace('new.tmp', 'new.pt')\n"
        "            os.path.exists('old') and shutil.rmtree('old')\n"
        "            os.rename('run', 'run.1'); os.mkdir('run')\n"
        "            open('run/step', 'w').close()\n"
        "        dist.barrier()\n"
    )
    for name in ("best.pt", "log.txt", "old/step/weights", "run/first"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"the user's {name}")
    notes: list[str] = []
    emulation = _emulate(str(script), world=2, note=notes.append)
    assert emulation.prediction.headline_ms > 0
    assert not any("found its own checkpoint" in note for note in notes)
    kept = {str(path.relative_to(tmp_path)): path for path in tmp_path.rglob("*") if path.is_file()}
    new = {"best.pt", "log.txt", "losses-0.txt", "losses-1.txt", "new.pt", "run/step"}
    new = {f"emulated-files/{name}" for name in new}
    made = {"train.py", "cache/data"}  # what a script prepares before its first step may be data
    assert set(kept) == {"best.pt", "log.txt", "old/step/weights", "run/first", *new, *made}
    assert all(kept[name].read_text() == f"the user's {name}" for name in kept.keys() - new - made)


def test_what_a_program_without_steps_found_out_is_set_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("evaluate.py").write_text(
        "import os, torch, torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "os.path.exists('cache') or open('cache', 'w').close()\n"
        "total = torch.ones(1)\n"
        "dist.all_reduce(total)\n"
        "open('results.json', 'w').close()\n"
    )
    with pytest.raises(PrismError, match="cannot tell its iterations apart"):
        _emulate("evaluate.py", world=2)
    files = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert files == {"evaluate.py", "cache", "emulated-files/results.json"}


def test_iterations_that_take_turns_are_a_unit_of_two() -> None:
    steps = _emulate(str(SCRIPTS / "trouble.py"), "order").prediction.steps
    assert steps.unit == 2
    assert steps.plain_ms > 0 and len(steps.special) == 1
    assert "scripts/trouble.py" in steps.special[0].source or steps.special[0].ms < steps.plain_ms


def test_a_pipeline_of_two_stages_is_found_stitched_and_solved() -> None:
    emulation = _emulate(str(EXAMPLES / "train.py"), *TINY, "--pp", "2")
    assert emulation.stitched.classes.of_rank == (0, 0, 1, 1)
    assert sorted(emulation.captures) == [0, 2]
    assert emulation.prediction.headline_ms > 0
    assert emulation.prediction.split.bubble > 0
    sources = emulation.stitched.graph.ops["source"].drop_nulls().unique().to_list()
    assert any("gpt/train.py" in source for source in sources)


@pytest.fixture(scope="module")
def small_job() -> Any:
    """Four data-parallel ranks, captured."""
    return _emulate(str(SCRIPTS / "ddp.py"))


def test_live_ranks_wait_for_a_peer_that_gets_slow_at_a_step(small_job: Any) -> None:
    factor = 1500.0 / small_job.prediction.headline_ms
    runs = run_live(small_job, [0, 3], [FaultPlan(kind="slow", rank=2, step=3, factor=factor)])
    graph = small_job.stitched.graph
    peer = graph.ranks.filter(rank=2).join(graph.ops, on="class")
    meets = pl.col("seq").filter(pl.col("kind") == "all_reduce")
    between = pl.col("seq").is_between(meets.min(), meets.max())
    least_ms = peer.group_by("step").agg(pl.col("duration_ns").filter(between).sum())["duration_ns"].min() / 1e6
    assert [(run.rank, run.status) for run in runs] == [(0, "done"), (3, "done")]
    for run in runs:
        assert run.diverged == 2  # in its second step DDP tells all ranks how it cut the buckets, once
        # Both meet in two all-reduces in each step: what the slow peer computes between these is waited for.
        assert run.step_ms[-1] > factor * least_ms


@pytest.mark.slow
def test_a_live_rank_that_is_late_delays_the_other_live_one(small_job: Any, tmp_path: Path) -> None:
    late = tmp_path / "ddp.py"
    text = (SCRIPTS / "ddp.py").read_text()
    sleep = "    import os, time; time.sleep(0.12 * (os.environ['RANK'] == '3'))\n    loss.backward()"
    late.write_text(text.replace("    loss.backward()", sleep))
    launch = replace(small_job.config.capture.launch, script=(str(late),))
    config = replace(small_job.config, capture=replace(small_job.config.capture, launch=launch))
    (run, other) = run_live(replace(small_job, config=config), [0, 3])
    assert run.median_ms == pytest.approx(other.median_ms, rel=0.3)
    assert run.median_ms > 100  # rank 0 does not sleep, and waits for rank 3 that does


def test_a_live_rank_meets_the_death_of_a_peer(small_job: Any) -> None:
    (dead,) = run_live(small_job, [0], [FaultPlan(kind="die", rank=3, step=1)])
    assert dead.status == "crashed"
    assert "Connection closed by peer" in dead.reason
    assert "Traceback" in dead.log
    with pytest.raises(BadConfigError, match="rank 7 does not exist"):
        run_live(small_job, [7])


def test_a_temporary_folder_made_before_the_fork_outlives_the_first_rank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    launch = LaunchConfig(script=(str(SCRIPTS / "temporary_folder.py"),), world_size=4)
    result = emulate(EmulateConfig(capture=CaptureConfig(launch=launch, warmup=1, iterations=2)))
    assert sorted(result.captures)[0] == 0 and result.surveyed == 4
    assert not list(tmp_path.glob("prism-test-shared-*"))  # and is gone in the end
