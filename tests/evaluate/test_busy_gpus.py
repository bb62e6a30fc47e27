"""An evaluation beside training keeps off GPUs that others use, and takes its own processes for no neighbours."""

from __future__ import annotations

import os
import subprocess
import sys

from prism.evaluate.run.busy_gpus import BusyGpus, is_descendant
from prism.evaluate.run.engines.engine import WorkerSpec
from prism.evaluate.run.workers import WorkerPool


class Driver:
    """Answers as nvidia-smi does."""

    def __init__(self) -> None:
        self.apps = ""
        self.asked = 0

    def __call__(self, what: str, columns: str) -> str:
        self.asked += 1
        if self.apps == "gone":
            raise OSError
        return self.apps if what == "--query-compute-apps" else "GPU-a, 0\nGPU-b, 1\n"


def test_only_gpus_with_processes_of_others_are_busy_and_silence_changes_nothing() -> None:
    driver, now = Driver(), [0.0]
    neighbours = BusyGpus(driver, clock=lambda: now[0], own=os.getpid())
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        driver.apps = f"GPU-a, {child.pid}\nGPU-b, 1\nGPU-strange, 1\n"
        assert is_descendant(child.pid, os.getpid()) and not is_descendant(1, os.getpid())
        assert neighbours() == {1}
        driver.apps = "gone"
        assert neighbours() == {1} and driver.asked == 2
        now[0] = 5.0
        assert neighbours() == {1}
        driver.apps, now[0] = "", 10.0
        assert neighbours() == frozenset()
    finally:
        child.communicate(b"\n")


def test_workers_on_busy_gpus_make_way_and_come_back_when_those_are_free() -> None:
    pool = WorkerPool.__new__(WorkerPool)
    pool._workers = {f"w{g}": WorkerSpec(id=f"w{g}", node="n", gpus=(g,)) for g in range(4)}
    pool._duties, pool._lent, pool._node_states, pool._news = {}, [], {"n": None}, []
    started: list[tuple[int, ...]] = []
    pool._start_worker = lambda node, gpus: started.append(gpus)
    assert pool.give_to_training(0, frozenset({1, 2})) == ("w1", "w2")
    for worker in ("w1", "w2"):
        del pool._workers[worker]
    assert pool.give_to_training(0, frozenset({1, 2})) == ()
    pool.take_back(0, frozenset({2}))
    assert started == [(1,)]
    pool.take_back(0, frozenset())
    assert started == [(1,), (2,)]
