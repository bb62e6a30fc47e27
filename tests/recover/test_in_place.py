"""Restarts inside living processes: who takes whose place, and that training goes on to the bit."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from prism.recover.checkpoint.inplace.roster import Roster, RosterConfig  # noqa: E402

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


@pytest.mark.slow
@pytest.mark.timeout(600)
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
    deadline = time.monotonic() + 300
    while text not in log.read_text():
        assert time.monotonic() < deadline and process.poll() is None, log.read_text()[-2_000:]
        time.sleep(0.05)


def find_member(parent: int, rank_of: str) -> int:
    """A process that trains: one with the memory of that rank in use."""
    for lock in Path("/dev/shm").glob(f"prism-*/rank-{int(rank_of):05d}/lock"):
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit() or f"PPid:\t{parent}\n" not in _status(entry):
                continue
            if any(_points_to(link, lock) for link in (entry / "fd").iterdir()):
                return int(entry.name)
    raise AssertionError("no member found")


def _status(entry: Path) -> str:
    try:
        return (entry / "status").read_text()
    except OSError:
        return ""


def _points_to(link: Path, target: Path) -> bool:
    try:
        return link.readlink() == target
    except OSError:
        return False
