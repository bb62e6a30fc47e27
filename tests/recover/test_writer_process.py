"""The writer as a process, with scripts as people write them: no guard, killed, warned, without memory."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from prism.recover.catalog import Catalog  # noqa: E402
from prism.recover.checkpoint import CheckpointConfig, Checkpointer, uploads, writer_process  # noqa: E402

HEAD = """
import os, sys, time, torch
from pathlib import Path
from prism.recover.checkpoint import CheckpointConfig, Checkpointer, Health
print("main runs", flush=True)
torch.set_num_threads(1)
one = Checkpointer(CheckpointConfig(folder=Path("c"), memory_dir=Path("m"), interval_steps=STEPS))
"""
SAVER = """
for step in range(1, 4):
    one.save(step, {"w": torch.full((2_000_000,), float(step))})
    print("saved", step, flush=True)
"""
LOADER = """
class Numbers(torch.utils.data.Dataset):
    def __len__(self): return 100_000
    def __getitem__(self, i):
        time.sleep(0.01)
        return torch.tensor(float(i))

state = {"w": torch.zeros(4), "n": 0}
for step, batch in enumerate(torch.utils.data.DataLoader(Numbers(), batch_size=2, num_workers=2), 1):
    state["n"] = step
    print("step", step, flush=True)
    reason = one.should_save(step)
    if reason:
        one.save(step, state, Health(loss=1.0))
        print("saving", step, flush=True)
    if reason == "preemption":
        break
one.close()
print("left in order", flush=True)
"""


class Program:
    """A script in a folder and session of its own, with its log."""

    def __init__(self, folder: Path, text: str, steps: int) -> None:
        self.folder = folder
        (folder / "m").mkdir()
        (folder / "train.py").write_text(HEAD.replace("STEPS", str(steps)) + text)
        self.log = folder / "log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "train.py"], cwd=folder, stdout=log, stderr=log, start_new_session=True
            )

    def wait_for(self, text: str, limit_s: float = 600.0) -> None:
        deadline = time.monotonic() + limit_s
        while text not in self.log.read_text():
            assert time.monotonic() < deadline and self.process.poll() is None, self.log.read_text()
            time.sleep(0.02)

    def catalog(self) -> Catalog:
        return Catalog(self.folder / "c")

    def writers(self) -> list[int]:
        """Processes that still have this folder's staged bytes or log open."""
        found = []
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                command = (entry / "cmdline").read_bytes() if entry.name.isdigit() else b""
                if b"writer_process" in command and (entry / "cwd").readlink() == self.folder:
                    found.append(int(entry.name))
        return found

    def wait_for_writers(self, limit_s: float = 600.0) -> None:
        deadline = time.monotonic() + limit_s
        while self.writers():
            assert time.monotonic() < deadline
            time.sleep(0.05)

    def end(self) -> None:
        """Leave nothing behind."""
        self.process.kill()
        self.process.wait()
        for pid in self.writers():
            os.kill(pid, signal.SIGKILL)


@dataclass(frozen=True)
class Killed:
    """A trainer that was killed with a save staged: its writer before, and what both left."""

    program: Program
    writer_variables: list[bytes]
    writer_is_apart: bool  # in a session of its own


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Killed]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PRISM_ATTEMPT_KEY", "mark")
        text = SAVER + "time.sleep(600)"  # still there when it is killed
        program = Program(tmp_path_factory.mktemp("killed"), text, steps=1)
    try:
        program.wait_for("saved 3")
        (pid,) = program.writers()
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        is_apart = os.getsid(pid) != os.getsid(program.process.pid)
        os.kill(program.process.pid, signal.SIGKILL)
        program.process.wait()
        program.wait_for_writers()
        yield Killed(program, variables, is_apart)
    finally:
        program.end()


@pytest.fixture
def start(tmp_path: Path):
    programs: list[Program] = []

    def begin(text: str, steps: int = 1) -> Program:
        programs.append(Program(tmp_path, text, steps))
        return programs[-1]

    yield begin
    for program in programs:
        program.end()


def test_a_script_without_a_main_guard_is_run_once_and_killed_with_a_save_staged_loses_nothing(killed: Killed):
    """The writer finishes for a trainer that was killed, commits, and leaves without a word in the log."""
    assert [entry.step for entry in killed.program.catalog().entries()] == [1, 2, 3]
    text = killed.program.log.read_text()
    assert text.split("\n") == ["main runs", "saved 1", "saved 2", "saved 3", ""]


def test_an_order_that_was_sent_just_before_the_trainer_died_is_not_lost(monkeypatch):
    """The writer looks for an order, finds none, and is held up; meanwhile one is sent and the trainer dies."""
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    asked = itertools.count()

    def parent() -> int:
        if next(asked) == 0:
            return 7
        socket.send_fds(here, [b"order"], [os.memfd_create("order"), os.memfd_create("staged")])
        return 1

    monkeypatch.setattr(writer_process.os, "getppid", parent)
    monkeypatch.setattr(writer_process, "open_delivery", lambda descriptors: len(descriptors))
    with here, there:
        assert writer_process.Trainer(there, 7).next_delivery() == 2


def test_orders_of_a_trainer_that_died_before_it_read_an_answer_are_not_lost(monkeypatch):
    """The kernel then resets the connection, and still holds what the trainer had sent."""
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    monkeypatch.setattr(writer_process, "open_delivery", lambda descriptors: len(descriptors))
    trainer = writer_process.Trainer(there, os.getppid())
    with there:
        with here:
            for _ in range(2):
                socket.send_fds(here, [b"order"], [os.memfd_create("order"), os.memfd_create("staged")])
            trainer.tell(kind="part", number=1)
        assert [trainer.next_delivery() for _ in range(3)] == [2, 2, None]


def test_a_warning_to_every_process_ends_in_a_committed_save(start):
    """As Slurm sends it: also to loader workers and the writer, here during the very first write."""
    program = start(LOADER, steps=3)
    program.wait_for("saving 3")
    os.killpg(program.process.pid, signal.SIGTERM)
    for pid in program.writers():
        os.kill(pid, signal.SIGTERM)
    assert program.process.wait(600) == 0, program.log.read_text()
    text = program.log.read_text()
    assert "left in order" in text and "Traceback" not in text, text
    last = max(int(line.split()[1]) for line in text.splitlines() if line.startswith("saving"))
    assert program.catalog().last_good().step == last > 3
    program.wait_for_writers()


def test_memory_that_is_removed_during_the_first_write_is_written_all_the_same(start):
    program = start(SAVER.replace("range(1, 4)", "range(1, 2)") + "time.sleep(600)")
    program.wait_for("saved 1")
    for folder in (program.folder / "m").iterdir():
        shutil.rmtree(folder)
    deadline = time.monotonic() + 600
    while program.catalog().last_good() is None:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert program.catalog().last_good().step == 1


@pytest.mark.parametrize("trouble", ["never ready", "ends at once", "cannot be started", "killed later"])
def test_without_its_process_a_checkpoint_is_written_by_a_thread_which_says_so(
    tmp_path: Path, monkeypatch, caplog, trouble: str
):
    boot = {
        "never ready": "import time; time.sleep(600)",
        "ends at once": "",
        "killed later": "import socket, sys, json; s = socket.socket(fileno=int(sys.argv[1])); "
        "s.send(json.dumps({'kind': 'ready'}).encode()); s.recv(100)",
    }
    monkeypatch.setattr(uploads, "_BOOT", boot.get(trouble, ""))
    if trouble == "cannot be started":
        monkeypatch.setattr(sys, "executable", "/nowhere/python")
    config = CheckpointConfig(
        folder=tmp_path / "c", memory_dir=tmp_path, watch_signals=False, writer_start_s=1.0, interval_steps=1
    )
    one = Checkpointer(config)
    for step in (1, 2, 3):
        one.save(step, {"w": torch.full((10,), float(step))})
    one.wait_written()
    assert one.committed_step == 3 and one.last_error is None
    assert "writer process" in one.writer_fallback and one.writer_fallback in caplog.text
    one.close()
    assert [entry.step for entry in one.catalog.entries()] == [1, 2, 3]


def test_the_writer_carries_no_mark_of_the_attempt_and_no_gpu(killed: Killed):
    assert b"PRISM_ATTEMPT_KEY=mark" not in killed.writer_variables
    assert b"CUDA_VISIBLE_DEVICES=" in killed.writer_variables
    assert killed.writer_is_apart
    assert json.loads((killed.program.folder / "c" / "prism-checkpoints.json").read_text())["id"]


ENDING = """
import json, os, threading, time, torch
from prism.recover.checkpoint.threads import TorchThread

torch.set_num_threads(1)
source, copy, ended = torch.ones(2_000_000), torch.zeros(2_000_000), threading.Event()

def work():
    while not ended.is_set():
        copy.copy_(source)

codes = {"plain": [], "waited for": []}
for kind in [kind for kind in codes for _ in range(4)]:
    pid = os.fork()
    if pid == 0:
        plain = threading.Thread(target=work, daemon=True)
        (TorchThread("copy", work, stop=ended.set) if kind == "waited for" else plain).start()
        time.sleep(0.05)
        break  # and the program ends, with the thread inside a call of torch
    codes[kind].append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
else:
    print(json.dumps(codes))
"""


def test_a_thread_inside_torch_is_waited_for_before_the_program_ends():
    done = subprocess.run([sys.executable, "-c", ENDING], capture_output=True, text=True, timeout=600)
    codes = json.loads(done.stdout)
    # Why it is needed: without the wait the process aborts, at any of these ends.
    assert -signal.SIGABRT in codes["plain"] and "terminate called without an active exception" in done.stderr
    assert codes["waited for"] == [0] * 4, done.stderr[-1_000:]
