"""Where ranks stand and who stands apart, and which missing rank belongs to which group: what tells a hang's root apart from its victims."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from prism.evidence.fusion.stop_clues import read_consensus, read_log_ends
from prism.evidence.traces.consensus import find_apart
from prism.evidence.traces.files import find_kind
from prism.evidence.traces.flight_recorder import Dump, parse_dump
from prism.evidence.traces.hang import find_hang
from prism.evidence.traces.late_calls import find_late_rank
from prism.evidence.traces.members import find_neighbours, infer_members
from prism.evidence.traces.places import place_ranks
from prism.evidence.traces.rank_logs import RankLog, find_ahead, read_rank_logs
from prism.evidence.traces.stacks import RankStack, Thread, find_last_line, parse_look, parse_threads, read_stacks
from prism.recover.supervise.stacks import find_py_spy, take_stacks

MAIN = 'Thread 7 (idle): "MainThread"\n'
WAITS = MAIN + "    all_reduce (torch/distributed/distributed_c10d.py:3252)\n    train (train.py:9)\n"
RECEIVES = MAIN + "    recv (torch/distributed/distributed_c10d.py:2799)\n    train (train.py:8)\n"
LOADS = MAIN + "    load (train.py:4)\n" + 'Thread 8 (idle): "watch"\n    wait (threading.py:331)\n'


BACKWARD = MAIN + "    _run (torch/autograd/graph.py:979)\n    train (train.py:7)\n"


def stack(rank: int, text: str, state: str = "S (sleeping)") -> RankStack:
    return RankStack(rank=rank, pid=rank, state=state, threads=parse_threads(text))


def gloo(rank: int, *signs: tuple[str, int, int, int], pending: bool = True) -> Dump:
    """A gloo dump of calls (group, seq, elements, milliseconds); all but the last have ended."""
    entries = [
        {
            "pg_id": 0,
            "process_group": (group, ""),
            "collective_seq_id": seq,
            "op_id": seq,
            "profiling_name": "gloo:all_reduce",
            "input_sizes": [[size]],
            "input_dtypes": ["Float"],
            "time_created_ns": ms * 1_000_000,
            "retired": not (pending and at == len(signs) - 1),
        }
        for at, (group, seq, size, ms) in enumerate(signs)
    ]
    return parse_dump({"entries": entries, "pg_config": {"": {"ranks": "[]"}}}, rank=rank, where=f"dump_{rank}")


def step(group: str, number: int, at_ms: int) -> list[tuple[str, int, int, int]]:
    return [(group, number, 8, 100 * number + at_ms), ("0", number, 1, 100 * number + 50)]


def steps(group: str, at_ms: int, num: int = 4) -> list[tuple[str, int, int, int]]:
    return [call for number in range(1, num + 1) for call in step(group, number, at_ms)]


def test_a_process_that_ended_because_it_lost_a_peer_is_not_to_blame() -> None:
    waits = [stack(r, WAITS) for r in range(2)]
    ended = stack(2, "", "Z (zombie)")
    (died,) = read_consensus(find_apart([*waits, ended]))
    assert [s.id for s in died.suspects] == ["2"] and "ended" in died.what
    (found,) = read_consensus(find_apart([*waits, ended], lost_peer={2}))
    assert not found.suspects


def test_a_missing_rank_belongs_to_the_group_whose_distances_it_keeps() -> None:
    seen = {"0": {0, 2, 4, 5}, "a": {0, 2}, "b": {4, 5}}
    assert infer_members(seen, [1, 3]) == {"0": (0, 1, 2, 3, 4, 5), "a": (0, 1, 2), "b": (3, 4, 5)}
    # Rank 7 alone left a dump of its group; the others are pairs of neighbours.
    pairs = {"0": {0, 1, 2, 3, 4, 5, 7}, "a": {0, 1}, "b": {2, 3}, "c": {4, 5}, "d": {7}}
    assert infer_members(pairs, [6])["d"] == (6, 7)


def test_neighbours_are_at_the_same_place_of_the_next_stage() -> None:
    members = {"0": tuple(range(6)), "a": (0, 1), "b": (2, 3), "c": (4, 5)}
    assert find_neighbours(members, 3) == (1, 5) and find_neighbours(members, 0) == (2,)


def test_a_held_rank_is_distinguished_from_one_whose_dump_was_lost_in_another_group() -> None:
    ahead = [gloo(r, *steps("a", 10), *step("a", 5, 10)) for r in (0, 2)]
    waits = [gloo(r, *steps("b", 10), ("b", 5, 8, 510)) for r in (4, 5)]
    found = find_hang([*ahead, *waits], world_size=6)
    assert (found.what, found.ranks) == ("missing_dump", (3,))


def test_of_two_absent_ranks_the_one_is_named_whose_call_used_to_come_first() -> None:
    # Ranks 0 and 2 are both absent; rank 2 receives from rank 0, so its call always came 20 ms later.
    first = [gloo(0, *steps("a", 10), pending=False), gloo(1, *steps("a", 10), ("a", 5, 8, 510))]
    later = [gloo(2, *steps("b", 30), pending=False), gloo(3, *steps("b", 30), ("b", 5, 8, 530))]
    assert find_hang([*first, *later]).ranks == (0,)


def test_two_ends_of_a_message_cannot_be_told_apart_without_stacks() -> None:
    first = [gloo(0, *steps("a", 10), pending=False), gloo(1, *steps("a", 10), ("a", 5, 8, 510))]
    later = [gloo(2, *steps("b", 10), pending=False), gloo(3, *steps("b", 10), ("b", 5, 8, 510))]
    assert find_hang([*first, *later]).ranks == (0, 2)
    assert find_hang([*first, *later], known_places={0: "message"}).ranks == (2,)


def test_a_neighbour_that_went_on_without_its_message_is_the_root() -> None:
    ahead = [gloo(r, *steps("a", 10), *step("a", 5, 10)) for r in (0, 1)]
    held = [gloo(2, *steps("b", 10), ("b", 5, 8, 510)), gloo(3, *steps("b", 10), pending=False)]
    assert find_hang([*ahead, *held], known_places={3: "message"}).ranks == (1,)


def test_a_rank_that_receives_for_a_later_step_left_a_collective_out(tmp_path: Path) -> None:
    world = [("0", n, 1, 100 * n) for n in range(1, 6)]
    dumps = [gloo(0, *world, ("0", 6, 1, 600)), gloo(1, *world, pending=False)]
    for rank, step_number in ((0, 5), (1, 6)):
        (tmp_path / f"rank_{rank}.log").write_text(f"step 1 loss 2\nstep {step_number} loss 1\n")
    ahead = find_ahead(read_rank_logs(tmp_path.iterdir()))
    assert ahead == [1]
    assert find_hang(dumps, known_places={1: "message"}, ahead=ahead).ranks == (1,)
    assert find_hang(dumps, known_places={1: "message"}).ranks == (0,)


def test_a_rank_that_failed_in_a_collective_did_not_complete_it() -> None:
    dumps = [gloo(r, *steps("a", 10), ("a", 5, 8, 510), pending=False) for r in (0, 1)]
    alone = find_hang(dumps, world_size=3)
    found = find_hang(dumps, world_size=3, known_places=dict.fromkeys((0, 1), "collective"))
    assert (found.what, found.ranks) == (alone.what, alone.ranks) == ("missing_dump", (2,))
    assert alone.confidence < 0.7 < found.confidence


def test_ranks_of_a_job_that_runs_or_that_all_left_dumps_are_not_said_to_have_ended() -> None:
    runs = [gloo(r, *steps("a", 10, num=4 + 2 * r), pending=False) for r in (0, 1)]
    assert find_hang(runs, world_size=3).what == "none"
    assert find_hang([gloo(r, *steps("a", 10), pending=False) for r in range(3)]).what == "none"


def test_last_calls_that_differ_were_not_completed_though_they_are_off_the_list() -> None:
    dumps = [gloo(r, *steps("a", 10), ("a", 5, 4 if r == 2 else 8, 510), pending=False) for r in (0, 2, 3)]
    found = find_hang(dumps)
    assert (found.what, found.ranks) == ("mismatch", (2,))


@pytest.mark.parametrize(("gap_ms", "named"), [(40, (3,)), (100, (0, 1, 2))])
def test_a_rank_that_comes_alone_and_sooner_than_ever_left_something_out(gap_ms: int, named: tuple[int, ...]) -> None:
    world = [("0", n, 1, 100 * n) for n in range(1, 6)]
    dumps = [gloo(r, *world, pending=False) for r in range(3)]
    found = find_hang([*dumps, gloo(3, *world, ("0", 6, 1, 500 + gap_ms))])
    assert found.ranks == named and found.confidence < 0.7


def test_ranks_that_were_alive_when_others_hung_did_not_die_first() -> None:
    lost = [RankLog(rank=r, error="RuntimeError: Connection closed by peer", lost_peer=True) for r in (2, 3)]
    silent = [RankLog(rank=r, error="", lost_peer=False) for r in (0, 1)]
    assert [s.id for s in read_log_ends([*silent, *lost])[0].suspects] == ["0", "1"]
    assert [s.id for s in read_log_ends([*silent, *lost], {1, 2, 3})[0].suspects] == ["0"]
    assert read_log_ends([*silent, *lost], {0, 1, 2, 3}) == []


@pytest.mark.parametrize(
    ("texts", "apart"),
    [
        ([WAITS, WAITS, LOADS], (2,)),
        ([BACKWARD, LOADS, BACKWARD, LOADS], (1, 3)),  # those in the framework wait for those outside of it
        ([BACKWARD, WAITS, BACKWARD, BACKWARD], (1,)),  # another collective than the others'
        ([LOADS, BACKWARD, LOADS, LOADS], (1,)),  # the line may be one that waits for a GPU
        ([WAITS, RECEIVES, WAITS], (1,)),
    ],
)
def test_the_ranks_that_do_not_stand_where_the_others_wait_are_apart(texts: list[str], apart: tuple[int, ...]) -> None:
    found = find_apart([stack(rank, text) for rank, text in enumerate(texts)])
    assert found.apart[0].ranks == apart and found.apart[0].confidence > 0.5


def test_a_clue_of_stacks_names_rank_line_and_what_it_does() -> None:
    reads = RankStack(rank=2, pid=9, host="n1", threads=(Thread(name="MainThread", frames=parse_threads(LOADS)[0].frames,
                      doing="reads /data/shard-7"),))  # fmt: skip
    clue = read_consensus(find_apart([stack(0, BACKWARD), stack(1, BACKWARD), reads]))[0]
    assert [s.id for s in clue.suspects] == ["2", "train.py:4"]
    assert "rank 2 at train.py:4, reads /data/shard-7 (process 9 on n1)" in clue.text


def look(rank: int, *lines: int) -> RankStack:
    looks = [[{"name": "MainThread", "frames": [["train", "/job/train.py", line]]}] for line in lines]
    return parse_look({"rank": rank, "pid": rank, "state": "S", "looks": looks})


def test_ranks_that_stand_elsewhere_at_each_look_do_not_hang() -> None:
    found = find_apart([look(0, 3, 5), look(1, 3, 4), look(2, 7, 7)])
    assert found.moves and not found.apart and read_consensus(found)[0].shows == "slow"
    assert find_apart([look(0, 3, 3), look(1, 3, 3), look(2, 7, 7)]).apart[0].ranks == (2,)


def test_a_rank_is_in_a_message_where_it_stands_at_another_line_than_its_last_call() -> None:
    dumps = [gloo(r, *steps("a", 10), pending=False) for r in range(3)]
    entries = [d.calls[-1].line for d in dumps]
    assert entries == ["", "", ""]  # a dump without lines says nothing of where a rank waits
    stacks = [stack(0, WAITS), stack(1, RECEIVES), stack(2, LOADS)]
    called = [replace(d, calls=(*d.calls[:-1], replace(d.calls[-1], line="/job/train.py:9"))) for d in dumps]
    assert place_ranks(called, stacks, find_apart(stacks), ()) == {1: "message", 2: "elsewhere"}


def test_a_traceback_says_at_which_line_a_rank_was(tmp_path: Path) -> None:
    frame = '  File "/x/train.py", line 8, in train\n    recv()\n'
    frame += '  File "/x/site-packages/torch/distributed/distributed_c10d.py", line 2799, in recv\n    work.wait()\n'
    text = "Traceback (most recent call last):\n" + frame + "RuntimeError: Connection closed by peer\n"
    assert find_last_line(text) == "/x/train.py:8" and find_last_line("no error") == ""
    (tmp_path / "rank_3.log").write_text(text)
    assert read_rank_logs(tmp_path.iterdir())[0].line == "/x/train.py:8"


def test_what_supervise_writes_is_read_back_with_its_rank(tmp_path: Path) -> None:
    if find_py_spy() is None:
        pytest.skip("needs py-spy")
    program = tmp_path / "train.py"
    program.write_text("import time\ndef load():\n    print('ready', flush=True)\n    time.sleep(300)\nload()\n")
    process = subprocess.Popen([sys.executable, str(program)], stdout=subprocess.PIPE, env={"RANK": "5"})
    try:
        assert process.stdout is not None and process.stdout.readline() == b"ready\n"
        take_stacks([process.pid], tmp_path / "stacks.txt")
    finally:
        process.kill()
        process.communicate()
    if "py-spy failed" in (tmp_path / "stacks.txt").read_text():
        pytest.skip("py-spy may not look at processes here")
    assert find_kind(tmp_path / "stacks.txt") == "stacks"
    found = read_stacks([tmp_path / "stacks.txt"])
    assert [(s.rank, s.place) for s in found] == [(5, "program")] and found[0].line.endswith("train.py:4")


@pytest.mark.parametrize(("late_ms", "named"), [(40, 2), (4, None)])
def test_a_rank_that_comes_late_to_collectives_that_complete_is_named(late_ms: int, named: int | None) -> None:
    dumps = [
        gloo(r, *[("0", n, 8, 500 * n + (late_ms if r == 2 else r)) for n in range(1, 12)], pending=False)
        for r in range(4)
    ]
    found = find_late_rank(dumps)
    assert (found.rank if found else None) == named and find_hang(dumps).what == "none"
