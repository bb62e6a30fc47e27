"""Copies of staged states on another host: who holds whose, and a run that survives the loss of a host's memory."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

from prism.recover.checkpoint.peers import Fetch, find_distance, plan_fetches


@pytest.mark.parametrize(
    ("hosts", "distance"),
    [("a", 0), ("aa", 0), ("ab", 1), ("aabb", 2), ("abab", 1), ("aabbcc", 2), ("aaab", 0), ("aaabbb", 3)],
)
def test_a_copy_is_always_on_another_host(hosts: str, distance: int):
    assert find_distance(list(hosts)) == distance


def test_the_newest_state_that_can_be_made_whole_is_fetched():
    old, new = (5, 1), (10, 2)
    told = [({old, new}, {}), (set(), {0: {new}}), ({old, new}, {1: {old}}), ({old, new}, {})]
    assert plan_fetches(told) == [Fetch(rank=1, holder=2, key=old)]  # nobody has the newer one of rank 1
    told[3] = ({old, new}, {1: {new}})
    assert plan_fetches(told) == [Fetch(rank=1, holder=3, key=new)]


def test_nothing_is_fetched_where_every_rank_has_its_own_or_a_state_is_lost():
    assert plan_fetches([({(5, 1)}, {}), ({(5, 1)}, {0: {(5, 1)}})]) == []
    assert plan_fetches([({(5, 1)}, {}), (set(), {0: {(5, 1)}})]) == []


PROGRAM = """
import os, sys, traceback, torch, torch.distributed as dist
from pathlib import Path
from prism.recover.checkpoint import CheckpointConfig, Checkpointer, TrainState

def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())  # in one piece: all ranks write to the same pipe

def train(folder, steps, rank):
    os.environ["PRISM_HOST"] = host = "a" if rank < 2 else "b"
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous-{steps}", rank=rank, world_size=4)
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    config = CheckpointConfig(
        folder=folder / "checkpoints", interval_steps=3, memory_dir=folder / host, writer="thread", peer_copies=True
    )
    checkpointer = Checkpointer(config)
    state = {"train": TrainState(model, optimizer), f"own-{rank}": {"number": -1}}
    restored = checkpointer.restore(state)
    own = state[f"own-{rank}"]["number"]
    say("RESTORED", rank, restored.step if restored else None, restored.source if restored else None, own)
    for step in range(restored.step + 1 if restored else 1, steps + 1):
        optimizer.zero_grad()
        model(torch.randn(4, 8, generator=torch.Generator().manual_seed(step))).square().mean().backward()
        optimizer.step()
        state[f"own-{rank}"] = {"number": 100 * rank + step}
        if checkpointer.should_save(step):
            checkpointer.save(step, state)
    checkpointer.close(keep_memory=True)
    say("ENDED", rank, checkpointer._peers.trouble or "copied", repr(float(model.weight.sum())))

pids = []
for rank in range(4):
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            train(Path(sys.argv[1]), int(sys.argv[2]), rank)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    pids.append(pid)
sys.exit(max(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids))
"""


def run(folder: Path, steps: int) -> list[str]:
    """Four ranks on two hosts, each host with memory of its own."""
    words = [sys.executable, "-c", PROGRAM, str(folder), str(steps)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3_000:]
    return done.stdout.splitlines()


@pytest.mark.slow
def test_a_host_whose_memory_is_lost_gets_it_back_from_the_other(tmp_path: Path):
    first = run(tmp_path, 6)
    assert sum("copied" in line for line in first) == 4, first
    shutil.rmtree(tmp_path / "b")  # the host is gone, with all that its ranks had staged and all it held for others
    again = run(tmp_path, 9)
    assert sorted(line for line in again if line.startswith("RESTORED")) == [
        f"RESTORED {rank} 6 memory {100 * rank + 6}" for rank in range(4)
    ]
    undisturbed = tmp_path / "undisturbed"
    undisturbed.mkdir()
    assert {line.split()[-1] for line in again if "ENDED" in line} == {
        line.split()[-1] for line in run(undisturbed, 9) if "ENDED" in line
    }
