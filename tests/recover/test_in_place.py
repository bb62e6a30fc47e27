"""Restarts inside living processes: who takes whose place, and that training goes on to the bit."""

from __future__ import annotations

import atexit
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from prism.recover.checkpoint.inplace.member import RestartTraining  # noqa: E402
from prism.recover.checkpoint.inplace.nursery import can_fork  # noqa: E402
from prism.recover.checkpoint.inplace.phases import Phases, sum_up  # noqa: E402
from prism.recover.checkpoint.inplace.processes import open_host  # noqa: E402
from prism.recover.checkpoint.inplace.roster import Roster, RosterConfig  # noqa: E402
from prism.recover.checkpoint.uploads import Uploads, _Open  # noqa: E402

EXAMPLE = Path(__file__).parents[2] / "examples" / "recover" / "in_place.py"


def running(num_ranks: int, *names: str, **settings) -> Roster:
    roster = Roster(RosterConfig(num_ranks=num_ranks, **settings))
    for name in names:
        roster.join(name)
    roster.next_generation()
    return roster


def test_training_begins_when_enough_have_booted():
    roster = Roster(RosterConfig(num_ranks=2))
    roster.join("a")
    assert roster.next_generation() is None
    roster.join("b")
    assert roster.next_generation().members == ("a", "b")
    assert roster.next_generation() is None


def test_a_spare_takes_the_rank_of_the_dead_and_the_others_keep_theirs():
    roster = running(3, "a", "b", "c", "spare")
    roster.die("b")
    assert roster.next_generation().members == ("a", "spare", "c")
    assert "rank 1 was lost" in roster.reason


def test_without_a_spare_the_world_waits_for_one():
    roster = running(2, "a", "b")
    roster.die("a")
    assert roster.next_generation() is None
    roster.join("late")
    assert roster.next_generation().members == ("late", "b")


def test_a_dead_spare_changes_nothing():
    roster = running(2, "a", "b", "spare")
    roster.die("spare")
    assert roster.next_generation() is None


def test_an_error_that_blames_a_peer_is_not_held_against_the_rank():
    roster = running(2, "a", "b")
    for _ in range(10):
        roster.fail("a", roster.number, "another rank was lost", own=False)
        assert roster.next_generation() is not None
    assert roster.outcome is None


def test_a_broken_connection_is_explained_by_a_death():
    roster = running(2, "a", "b", "spare")
    roster.fail("a", 1, "connection reset by peer", own=False)
    assert not roster.explained
    roster.die("b")
    assert roster.explained and roster.next_generation().members == ("a", "spare")


def test_the_same_error_of_the_program_ends_it():
    roster = running(2, "a", "b", max_same_failures=3)
    for _ in range(3):
        assert roster.outcome is None
        roster.fail("a", roster.number, "TypeError: x", own=True)
        roster.next_generation()
    assert roster.outcome == 1 and "TypeError" in roster.reason


def test_late_reports_of_an_earlier_generation_do_not_count():
    roster = running(2, "a", "b", "spare")
    roster.die("b")
    roster.next_generation()
    roster.fail("a", 1, "connection closed", own=False)
    assert roster.next_generation() is None


def test_restarts_are_limited():
    roster = running(1, "a", max_restarts=2)
    for name in "bcd":
        roster.join(name)
        roster.die({"b": "a", "c": "b", "d": "c"}[name])
        roster.next_generation()
    assert roster.outcome == 1


def test_it_is_over_when_every_rank_has_finished():
    roster = running(2, "a", "b")
    roster.finish("a")
    assert roster.outcome is None
    roster.finish("b")
    assert roster.outcome == 0


MEMBER_PROGRAM = """
import os, sys, time
from pathlib import Path
member = os.environ["PRISM_INPLACE_MEMBER"]
Path(sys.argv[1], member).write_text(f"{__name__} {sys.argv[1:]} {os.environ['PRISM_INPLACE_STORE']} {sys.path[0]}")
while member != "0-1":
    time.sleep(0.05)
"""


@pytest.mark.parametrize("preload", [True, False])
def test_members_run_the_program_as_python_would_and_their_ends_are_seen(tmp_path: Path, preload: bool):
    script = tmp_path / "program.py"
    script.write_text(MEMBER_PROGRAM)
    host = open_host([str(script), str(tmp_path)], "127.0.0.1:1", 0, preload=preload)
    host.start()
    host.start()
    dead: list[str] = []
    while not (dead and (tmp_path / "0-2").exists()):
        dead += host.collect_dead()
        time.sleep(0.02)
    assert dead == ["0-1"] and len(host.pids()) == 1 and not host.empty
    host.signal(signal.SIGTERM)
    host.wait(600)
    assert host.empty
    expected = f"__main__ {[str(tmp_path)]} 127.0.0.1:1 {tmp_path}"
    assert {(tmp_path / name).read_text() for name in ("0-1", "0-2")} == {expected}


def test_a_program_with_flags_of_python_boots_alone():
    assert can_fork(["train.py", "-u"]) and can_fork(["-m", "train"])
    assert not can_fork(["-u", "train.py"]) and not can_fork(["-m"])


def test_a_restart_is_measured_by_its_slowest_rank():
    survivor = {"times": {"noticed": 10.1, "left": 10.5, "called": 10.6, "connected": 11.0}, "cpu_s": 0.25}
    spare = {"times": {"called": 10.7, "connected": 10.9}, "cpu_s": 0.5}
    restart = sum_up([survivor, spare], lost_s=10.0)
    assert {name: round(value, 3) for name, value in restart.latest.items()} == {
        "noticed": 0.1,
        "left": 0.5,
        "called": 0.7,
        "connected": 1.0,
    }
    assert restart.cpu_s == 0.75 and "connected 1.00 s" in str(restart)


def test_a_member_that_only_waited_has_no_loss_to_notice():
    phases = Phases()
    phases.pass_by("called")
    phases.pass_by("connected")
    assert list(phases.report()["times"]) == ["called", "connected"]


def test_a_rank_that_waits_for_its_writer_can_be_called_away():
    uploads = Uploads("thread", 1.0, lambda: Path("unused"), lambda written: None)
    uploads._open[1] = _Open(job=None, slot=SimpleNamespace(busy=True))
    ends: list[str] = []

    def wait() -> None:
        try:
            uploads.wait_oldest_part()
        except RestartTraining:
            ends.append("called away")

    waiting = threading.Thread(target=wait, daemon=True)
    waiting.start()
    while waiting.is_alive() and not ends:
        raised = ctypes.py_object(RestartTraining)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(waiting.ident), raised)
        waiting.join(1.0)
    atexit.unregister(uploads._finish_at_exit)
    assert ends == ["called away"]


# In generation 1 rank 1 dies before it connects; in generation 2 it is late to do so.
LOST_AND_LATE = """
import os, pathlib, time
import torch.distributed as dist
from prism.recover.checkpoint.inplace import member

connect, init = member.Member._connect, dist.init_process_group

def die_before(self, connections, place):
    if place.generation == 1 and place.rank == 1:
        os._exit(1)
    connect(self, connections, place)

def init_late(*given, **named):
    init(*given, **named)
    if named["rank"] == 1:
        time.sleep(2)
        pathlib.Path("connected").touch()

def train(place):
    all_connected = pathlib.Path("connected").exists()
    # One write for each line: two processes share this pipe.
    os.write(1, f"trains {os.environ['PRISM_INPLACE_MEMBER']} {place.generation} {all_connected}\\n".encode())

member.Member._connect, dist.init_process_group = die_before, init_late
member.run_in_place(train)
"""


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What a job says whose rank is lost before the group is there, and whose next one is late."""
    folder = tmp_path_factory.mktemp("lost-and-late")
    script = folder / "program.py"
    script.write_text(LOST_AND_LATE)
    command = [sys.executable, "-m", "prism.recover.checkpoint.inplace", "--ranks", "2", "--spares", "1", "--"]
    done = subprocess.run([*command, str(script)], capture_output=True, text=True, cwd=folder)
    assert done.returncode == 0, done.stderr[-2_000:]
    return done.stdout.splitlines()


def test_a_rank_that_waits_for_one_that_never_comes_keeps_its_process(told: list[str]):
    lines = sorted(line.split()[1:3] for line in told if line.startswith("trains"))
    assert len(lines) == 2 and all(generation == "2" for _, generation in lines), told
    assert len({name for name, _ in lines} - {"0-4"}) == 2, "a process was replaced that need not be"
    lost = next(line for line in told if line.startswith("generation 2"))
    assert "rank 1 was lost" in lost


def test_no_rank_begins_before_all_are_connected(told: list[str]):
    assert [line.split()[3] for line in told if line.startswith("trains")] == ["True", "True"], told


@pytest.mark.slow
def test_a_killed_rank_is_replaced_and_the_losses_are_the_same_to_the_bit(tmp_path: Path):
    command = [sys.executable, "-m", "prism.recover.checkpoint.inplace", "--ranks", "2", "--spares", "1", "--"]
    environment = os.environ | {"STEPS": "1500", "SAVE_EVERY": "25"}
    log = tmp_path / "log"
    with log.open("wb") as handle:
        process = subprocess.Popen(
            [*command, str(EXAMPLE)], cwd=tmp_path, env=environment, stdout=handle, stderr=handle
        )
    try:
        wait_for(log, "step 60 ", process)
        os.kill(find_member(process.pid, rank_of="1"), signal.SIGKILL)
        assert process.wait(400) == 0, log.read_text()[-2_000:]
    finally:
        process.kill()
        process.wait()
    text = log.read_text()
    assert "generation 2 starts from step" in text and "from memory" in text and "Traceback" not in text
    losses: dict[str, set[str]] = {}
    for line in text.splitlines():
        if line.startswith("step "):
            losses.setdefault(line.split()[1], set()).add(line.split()[3])
    assert len(losses) == 1_500 and all(len(found) == 1 for found in losses.values())


def wait_for(log: Path, text: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 600
    while text not in log.read_text():
        assert time.monotonic() < deadline and process.poll() is None, log.read_text()[-2_000:]
        time.sleep(0.05)


def find_member(parent: int, rank_of: str) -> int:
    """A process that trains: one with the memory of that rank in use."""
    for lock in Path("/dev/shm").glob(f"prism-*/rank-{int(rank_of):05d}/lock"):
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit() or not _descends(entry, parent):
                continue
            if any(_points_to(link, lock) for link in (entry / "fd").iterdir()):
                return int(entry.name)
    raise AssertionError("no member found")


def _descends(entry: Path, parent: int) -> bool:
    """Whether a process was started by another, or by one that this had started."""
    try:
        for _ in range(2):
            pid = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            if pid == parent:
                return True
            entry = Path("/proc") / str(pid)
    except OSError:
        pass
    return False


def _points_to(link: Path, target: Path) -> bool:
    try:
        return link.readlink() == target
    except OSError:
        return False
