"""A job that hangs now: stacks, Flight Recorder by its pipe, RAS; nothing left behind."""

from __future__ import annotations

import json
import os
import pickle
import select
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from prism.cli.investigate import run_investigate
from prism.errors import InputError
from prism.evidence.fusion import collector
from prism.evidence.fusion.live import LiveJob, _list_commands, investigate_live
from prism.evidence.fusion.stop_clues import read_consensus
from prism.evidence.traces.consensus import find_apart
from prism.evidence.traces.stacks import RankStack, parse_threads

SLEEPER = "import time\ndef load_data():\n    print('ready', flush=True)\n    time.sleep(300)\n"
PROGRAM = (
    SLEEPER + "def train():\n    print('ready', flush=True)\n    time.sleep(300)\n"
    "import os\n{'1': load_data}.get(os.environ['RANK'], train)()\n"
)


@pytest.fixture
def ranks(tmp_path: Path) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Three processes that look like ranks: two wait at one line, rank 1 loads data."""
    running = []
    path = tmp_path / "train.py"
    path.write_text(PROGRAM)
    for rank in range(3):
        env = os.environ | {"RANK": str(rank)}
        running.append(subprocess.Popen([sys.executable, str(path)], env=env, stdout=subprocess.PIPE))
    for process in running:
        assert process.stdout is not None and process.stdout.readline() == b"ready\n"
    yield running
    for process in running:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def test_the_rank_that_is_elsewhere_is_named_with_its_line(ranks: list[subprocess.Popen[bytes]]) -> None:
    found = investigate_live(LiveJob(pids=tuple(p.pid for p in ranks)))
    named = {(s.type, s.id) for s in found.fused.culprits}
    if "py-spy failed" in str(found.clues) or "install py-spy" in str(found.clues):
        pytest.skip("py-spy may not look at processes here")
    assert ("rank", "1") in named and any(t == "program" and i.endswith("train.py:4") for t, i in named)


def test_a_stopped_process_is_named(ranks: list[subprocess.Popen[bytes]]) -> None:
    ranks[2].send_signal(19)
    os.waitid(os.P_PID, ranks[2].pid, os.WSTOPPED)
    found = investigate_live(LiveJob(pids=tuple(p.pid for p in ranks)))
    assert ("rank", "2") in {(s.type, s.id) for s in found.fused.culprits}


def test_ranks_of_another_job_of_the_same_launcher_are_left_alone(tmp_path: Path) -> None:
    running = []
    (tmp_path / "train.py").write_text(SLEEPER + "load_data()\n")
    try:
        for job, rank in (("1", 0), ("1", 1), ("2", 0)):
            env = os.environ | {"RANK": str(rank), "MASTER_ADDR": "h", "MASTER_PORT": job}
            words = [sys.executable, str(tmp_path / "train.py")]
            running.append(subprocess.Popen(words, env=env, stdout=subprocess.PIPE))
        for process in running:
            assert process.stdout is not None and process.stdout.readline() == b"ready\n"
        found = collector.find_ranks([running[0].pid], "")
        assert [(r["rank"], r["pid"]) for r in found] == [(0, running[0].pid), (1, running[1].pid)]
        every = [r for r in collector.find_ranks([running[0].pid], "", everything=True) if r["job"].startswith("h:")]
        assert [(r["job"], r["asked"]) for r in every] == [("h:1", True), ("h:2", False), ("h:1", True)]
    finally:
        for process in running:
            process.kill()
            process.communicate()


SPAWNER = """
import ctypes, multiprocessing, os, threading, time
def train(rank):
    thread = threading.Thread(target=time.sleep, args=(300,), daemon=True)
    thread.start()
    with open(f"/proc/self/task/{thread.native_id}/comm", "w") as name:
        name.write("pt_gloo_runloop")  # as the communication library names its threads
    os.write(1, b"ready\\n")
    time.sleep(300)
if __name__ == "__main__":
    ranks = [multiprocessing.get_context("fork").Process(target=train, args=(r,)) for r in range(3)]
    [r.start() for r in ranks]
    os.write(1, b"parent\\n")
    time.sleep(300)
"""


@pytest.mark.parametrize("env", [{}, {"SLURM_PROCID": "0"}])
def test_ranks_that_a_program_spawns_itself_are_found_below_it(tmp_path: Path, env: dict[str, str]) -> None:
    (tmp_path / "train.py").write_text(SPAWNER)
    words = [sys.executable, str(tmp_path / "train.py")]
    spawner = subprocess.Popen(words, env=os.environ | env, stdout=subprocess.PIPE, start_new_session=True)
    try:
        assert spawner.stdout is not None
        assert sorted(spawner.stdout.readline() for _ in range(4)) == [b"parent\n", *[b"ready\n"] * 3]
        found = collector.find_ranks([spawner.pid], "")
        assert [r["rank"] for r in found] == [0, 1, 2] and spawner.pid not in {r["pid"] for r in found}
        beside = collector.find_ranks([found[1]["pid"]], "")
        assert [r["pid"] for r in beside] == [r["pid"] for r in found]
    finally:
        os.killpg(spawner.pid, 9)
        spawner.communicate()


def test_what_a_rank_asks_of_the_kernel_is_told(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "shard")
    program = "print('ready', flush=True); open('shard').read()"
    process = subprocess.Popen([sys.executable, "-c", program], cwd=tmp_path, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None and process.stdout.readline() == b"ready\n"
        writer = os.open(tmp_path / "shard", os.O_WRONLY)  # returns once the reader has opened it
        told = ""
        while not told.startswith("reads"):
            assert process.poll() is None
            if not (told := collector.describe_call(process.pid, process.pid)):
                pytest.skip("the kernel does not tell what processes ask of it here")
        assert told == f"reads {tmp_path / 'shard'}"
        os.close(writer)
    finally:
        process.kill()
        process.communicate()


def write_dump(path: Path, seq: int) -> None:
    entry = {"pg_id": 0, "process_group": ("0", "default_pg"), "collective_seq_id": seq, "op_id": seq, "p2p_seq_id": 0,
             "profiling_name": "nccl:all_reduce", "input_sizes": [[4]], "input_dtypes": ["Float"], "time_created_ns": 5, "state": "scheduled"}  # fmt: skip
    path.write_bytes(pickle.dumps({"version": "2.9", "pg_config": {"0": {"ranks": "[0, 1]"}}, "entries": [entry]}))


def test_dumps_are_asked_for_through_the_pipe_and_removed(tmp_path: Path) -> None:
    env = {
        "TORCH_NCCL_DEBUG_INFO_PIPE_FILE": str(tmp_path / "pipe"),
        "TORCH_FR_DUMP_TEMP_FILE": str(tmp_path / "dump_"),
    }
    os.mkfifo(tmp_path / "pipe0.pipe")
    reader = os.open(tmp_path / "pipe0.pipe", os.O_RDONLY | os.O_NONBLOCK)

    def serve() -> None:  # as the recorder's thread does
        select.select([reader], [], [], 60)
        assert os.read(reader, 1) == b"1"
        write_dump(tmp_path / "dump_0", 7)

    thread = threading.Thread(target=serve)
    thread.start()
    dumps = collector.ask_for_dumps([{"rank": 0, "pid": 1, "env": env}, {"rank": 1, "pid": 2, "env": env}])
    thread.join(timeout=600)
    os.close(reader)
    assert set(dumps) == {1} and not (tmp_path / "dump_0").exists()


def test_a_pipe_that_nobody_reads_does_not_hold_the_collector(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe0.pipe")
    env = {"TORCH_NCCL_DEBUG_INFO_PIPE_FILE": str(tmp_path / "pipe")}
    assert collector.ask_for_dumps([{"rank": 0, "pid": 1, "env": env}]) == {}


def test_the_collector_needs_nothing_but_python() -> None:
    text = Path(collector.__file__).read_text()
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-", "1"], input=text, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0 and json.loads(done.stdout)["ranks"] == []


def test_other_hosts_are_asked_over_ssh_and_odd_names_are_refused() -> None:
    commands = _list_commands(LiveJob(pids=(7,), hosts=("n1", "n2")))
    assert (
        [c[0] for c in commands] == ["n1", "n2"] and commands[0][1][0] == "ssh" and commands[0][1][-2:] == ["7", "all"]
    )
    for bad in ("-oProxyCommand=x", "a b", "$(x)"):
        with pytest.raises(InputError, match="no name"):
            _list_commands(LiveJob(pids=(7,), hosts=(bad,)))


def test_pods_are_asked_by_exec_and_odd_names_are_refused() -> None:
    ((name, command),) = _list_commands(LiveJob(pods=("training/worker-0",)))
    assert name == "training/worker-0"
    assert command[:5] == ["kubectl", "exec", "-i", "-n", "training"] and command[5:7] == ["worker-0", "--"]
    for bad in ("-n", "a b", "x/y/z", "$(x)"):
        with pytest.raises(InputError, match="no name of a pod"):
            _list_commands(LiveJob(pods=(bad,)))


def test_no_rank_is_one_clear_line() -> None:
    with pytest.raises(InputError, match="no rank of that job"):
        investigate_live(LiveJob(pids=(2**22 + 1,)))


def test_ranks_that_all_wait_accuse_nobody() -> None:
    threads = parse_threads('Thread 1 (idle): "MainThread"\n    all_reduce (train.py:3)\n')
    ranks = [RankStack(rank=r, pid=r, state="S (sleeping)", threads=threads) for r in range(3)]
    assert all(not c.suspects for c in read_consensus(find_apart(ranks)))


def test_the_command_wants_a_folder_or_a_process() -> None:
    with pytest.raises(InputError, match="either the folder"):
        run_investigate()
