"""Two looks at the stacks of a silent job: who holds up whom."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from prism.evidence.traces.stacks import Frame, RankStack, Thread
from prism.recover.supervise.stacks import find_py_spy
from prism.recover.supervise.standstill import Glance, judge_looks, look_twice

COLLECTIVE = Frame("all_reduce", "torch/distributed/distributed_c10d.py", 1, True)
BACKWARD = Frame("_engine_run_backward", "torch/autograd/graph.py", 979, True)
PROGRAM_FRAME = Frame("step", "train.py", 9, False)


def rank(number: int, *frames: Frame, ticks: int = 0, state: str = "S") -> Glance:
    thread = Thread(name="MainThread", frames=frames)
    return Glance(stack=RankStack(rank=number, pid=number, state=state, threads=(thread,)), ticks=ticks)


def looks(*glances: Glance) -> dict[int, Glance]:
    return {glance.stack.pid: glance for glance in glances}


WAITING = (COLLECTIVE, PROGRAM_FRAME)


def test_a_rank_outside_of_what_all_others_wait_in_is_named():
    first = looks(rank(0, *WAITING), rank(1, PROGRAM_FRAME), rank(2, *WAITING))
    found = judge_looks(first, first)
    assert found.proven and found.outside == (1,) and "rank 1 at train.py:9" in found.text


def test_a_rank_that_is_stopped_holds_up_the_others():
    first = looks(rank(0, *WAITING), rank(1, *WAITING, state="T (stopped)"))
    assert judge_looks(first, first).outside == (1,)


def test_a_change_of_one_stack_is_work():
    read = Frame("read", "data.py", 3, False)
    first = looks(rank(0, *WAITING), rank(1, PROGRAM_FRAME))
    assert judge_looks(first, looks(rank(0, *WAITING), rank(1, read, PROGRAM_FRAME))).moved


def test_a_rank_that_sleeps_in_the_backward_pass_waits_and_one_that_computes_there_does_not():
    first = looks(rank(0, BACKWARD, PROGRAM_FRAME), rank(1, PROGRAM_FRAME))
    asleep = looks(rank(0, BACKWARD, PROGRAM_FRAME, ticks=1), rank(1, PROGRAM_FRAME, ticks=300))
    computing = looks(rank(0, BACKWARD, PROGRAM_FRAME, ticks=300), rank(1, PROGRAM_FRAME, ticks=300))
    assert judge_looks(first, asleep).outside == (1,)
    assert judge_looks(first, computing).outside == ()


@pytest.mark.parametrize("frames", [WAITING, (PROGRAM_FRAME,)])
def test_where_all_ranks_do_the_same_nobody_is_named(frames: tuple[Frame, ...]):
    first = looks(rank(0, *frames), rank(1, *frames))
    found = judge_looks(first, first)
    assert not found.moved and not found.proven


def test_stacks_that_cannot_be_read_prove_nothing():
    first = looks(rank(0, *WAITING), rank(1))
    assert not judge_looks(first, first).proven
    assert not judge_looks({}, {}).proven


PROGRAM = """
import sys, torch.distributed as dist
store = dist.TCPStore("127.0.0.1", int(sys.argv[2]), 2, sys.argv[1] == "0", wait_for_workers=False)
dist.init_process_group("gloo", store=store, rank=int(sys.argv[1]), world_size=2)
dist.barrier()
print("ready", flush=True)
if sys.argv[1] == "1":
    while True:
        pass
dist.barrier()
"""


@pytest.mark.skipif(find_py_spy() is None, reason="needs py-spy")
@pytest.mark.parametrize("how", ["spins", "is stopped"])
def test_a_real_rank_that_spins_or_is_stopped_is_found_by_two_looks(how: str, tmp_path: Path):
    pytest.importorskip("torch")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        free_port = probe.getsockname()[1]
    script = tmp_path / "train.py"
    script.write_text(PROGRAM)
    ranks = [
        subprocess.Popen(
            [sys.executable, str(script), str(number), str(free_port)],
            env=os.environ | {"RANK": str(number), "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
        )
        for number in range(2)
    ]
    try:
        for one in ranks:
            assert one.stdout is not None and one.stdout.readline() == b"ready\n"
        if how == "is stopped":
            ranks[1].send_signal(signal.SIGSTOP)
        for _ in range(20):  # rank 0 may not have reached its barrier at the first look
            found = look_twice(lambda: [one.pid for one in ranks])
            if found.proven:
                break
        assert found.outside == (1,)
    finally:
        for one in ranks:
            one.kill()
            one.communicate()
