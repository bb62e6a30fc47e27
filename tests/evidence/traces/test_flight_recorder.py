"""Flight Recorder dumps: both forms, recorded hangs, and what must never be run."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prism.errors import InputError
from prism.evidence.traces import find_hang, read_dump, read_dumps
from prism.evidence.traces.files import find_kind
from prism.evidence.traces.flight_recorder import Dump, parse_dump


def entry(
    group: str, seq: int, *, ended: bool, name: str = "nccl:all_reduce", size: int = 10, at: int = 0
) -> dict[str, Any]:
    return {
        "pg_id": int(group), "process_group": (group, "a group"), "collective_seq_id": seq, "op_id": seq, "p2p_seq_id": 0,
        "profiling_name": name, "input_sizes": [[size]], "input_dtypes": ["Float"], "time_created_ns": 1000 + at + seq,
        "state": "completed" if ended else "scheduled", "is_p2p": False,
    }  # fmt: skip


def dump(rank: int, *entries: dict[str, Any], groups: dict[str, list[int]] | None = None) -> Dump:
    config = {name: {"name": name, "desc": "", "ranks": str(ranks)} for name, ranks in (groups or {}).items()}
    return parse_dump({"entries": list(entries), "pg_config": config}, rank=rank, where=f"dump_{rank}")


def test_recorded_hangs_name_the_ranks_that_were_harmed(shared_data: Path) -> None:
    truth = json.loads((shared_data / "flight_recorder" / "truth.json").read_text())
    for case, told in truth.items():
        found = find_hang(read_dumps((shared_data / "flight_recorder" / case).glob("_dump_*")))
        assert list(found.ranks) == told["injected_ranks"]


def test_the_rank_that_did_not_come_is_the_root_and_not_those_that_wait_for_its_victims() -> None:
    # Rank 3 sleeps. Rank 2 waits for it in group 2, ranks 0 and 1 wait for rank 2 in the world.
    groups = {"0": [0, 1, 2, 3], "2": [2, 3]}
    waits = entry("0", 5, ended=False)
    dumps = [
        dump(0, entry("0", 4, ended=True), waits, groups=groups),
        dump(1, entry("0", 4, ended=True), waits, groups=groups),
        dump(2, entry("0", 4, ended=True), entry("2", 7, ended=False), groups=groups),
        dump(3, entry("0", 4, ended=True), entry("2", 6, ended=True), groups=groups),
    ]
    found = find_hang(dumps)
    assert (found.what, found.ranks) == ("absent", (3,))
    assert found.waiting == (0, 1, 2)


def test_a_rank_without_a_dump_is_blamed_only_where_all_others_entered() -> None:
    groups = {"0": [0, 1, 2]}
    entered = [dump(r, entry("0", 5, ended=False), groups=groups) for r in (0, 2)]
    assert find_hang(entered).ranks == (1,)
    late = [entered[0], dump(2, entry("0", 4, ended=True), groups=groups)]
    found = find_hang(late)
    assert found.ranks == (2,) and found.missing == (1,)


def test_the_odd_one_out_is_named_when_ranks_call_different_things() -> None:
    groups = {"0": [0, 1, 2]}
    size = [dump(r, entry("0", 5, ended=False, size=11 if r == 1 else 10), groups=groups) for r in range(3)]
    found = find_hang(size)
    assert (found.what, found.ranks) == ("mismatch", (1,)) and "another size" in found.text
    kind = [
        dump(r, entry("0", 5, ended=False, name="nccl:barrier" if r == 2 else "nccl:all_reduce"), groups=groups)
        for r in range(3)
    ]
    assert find_hang(kind).ranks == (2,)


def test_uneven_all_to_alls_are_no_mismatch() -> None:
    groups = {"0": [0, 1]}
    dumps = [dump(r, entry("0", 5, ended=False, name="nccl:all_to_all", size=r), groups=groups) for r in range(2)]
    assert find_hang(dumps).what == "stuck"


def test_ranks_that_wait_for_each_other_in_two_groups_are_a_deadlock() -> None:
    groups = {"1": [0, 1], "2": [0, 1]}
    dumps = [dump(0, entry("1", 3, ended=False), groups=groups), dump(1, entry("2", 3, ended=False), groups=groups)]
    found = find_hang(dumps)
    assert (found.what, found.ranks) == ("deadlock", (0, 1))


def test_a_message_waits_for_the_end_that_did_not_come() -> None:
    groups = {"0": [0, 1, 2]}
    receive = {**entry("0", 0, ended=False, name="nccl:recv 1<-0"), "is_p2p": True}
    found = find_hang(
        [dump(0, entry("0", 1, ended=True), groups=groups), dump(1, receive, groups=groups), dump(2, groups=groups)]
    )
    assert found.ranks == (0,)


def test_nothing_unfinished_is_no_hang() -> None:
    assert find_hang([dump(r, entry("0", 5, ended=True)) for r in range(2)]).what == "none"


def test_how_far_a_rank_came_is_read_from_the_status_where_it_has_no_calls() -> None:
    config = {"0": {"ranks": "[0, 1]"}, "7": {"ranks": "[0, 1]"}}
    status = {
        "0": {"last_enqueued_collective": 4, "last_completed_collective": 4},
        "3": {"last_enqueued_collective": 8, "last_completed_collective": 8},
    }
    idle = parse_dump({"entries": [], "pg_config": config, "pg_status": status}, rank=1, where="d")
    assert idle.enqueued == {"0": 4, "7": 8}


def test_a_pickle_that_would_run_code_is_refused_and_nothing_is_run(tmp_path: Path) -> None:
    mark = tmp_path / "ran"

    class Hostile:
        def __reduce__(self) -> Any:
            return os.system, (f"touch {mark}",)

    path = tmp_path / "dump_0"
    path.write_bytes(pickle.dumps({"entries": [Hostile()], "version": "2.9"}))
    assert find_kind(path) == "dumps"
    with pytest.raises(InputError, match="plain"):
        read_dump(path)
    assert not mark.exists()


@given(st.binary(max_size=200))
def test_any_bytes_end_in_a_dump_or_one_line(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.mktemp("fuzz") / "dump_3"
    path.write_bytes(data)
    try:
        assert read_dump(path).rank == 3
    except InputError as error:
        assert "\n" not in str(error) and str(path) in str(error)


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=10,
)


@given(st.dictionaries(st.sampled_from(["entries", "pg_config", "pg_status", "version"]), PLAIN))
def test_any_plain_document_ends_in_a_dump_or_one_line(document: dict[str, Any]) -> None:
    try:
        found = parse_dump(document, rank=0, where="d")
        assert find_hang([found]).what
    except InputError as error:
        assert "\n" not in str(error)


def test_two_jobs_in_one_folder_are_reported(tmp_path: Path) -> None:
    for name in ("a_dump_0", "b_dump_0"):
        (tmp_path / name).write_bytes(pickle.dumps({"entries": []}))
    with pytest.raises(InputError, match="one folder per job"):
        read_dumps(tmp_path.iterdir())


def gloo(rank: int, *signs: tuple[str, int, int], pending: bool = True) -> Dump:
    """Calls of a gloo dump, (group, seq, size); all but the last are retired, and members are not listed."""
    entries = []
    for at, (group, seq, size) in enumerate(signs):
        made = entry("0", seq, ended=False, name="gloo:all_reduce", size=size)
        last = at == len(signs) - 1
        entries.append(
            {**made, "process_group": (group, ""), "time_created_ns": 1000 + at, "retired": not (last and pending)}
        )
    return parse_dump({"entries": entries, "pg_config": {"": {"ranks": "[]"}}}, rank=rank, where=f"dump_{rank}")


STEPS = [("dp", 1, 8), ("0", 1, 1), ("dp", 2, 8), ("0", 2, 1), ("dp", 3, 8), ("0", 3, 1)]


def test_a_rank_that_breaks_its_own_pattern_is_the_root_of_a_deadlock() -> None:
    usual = [gloo(r, *STEPS, ("dp", 4, 8)) for r in range(3)]
    swapped = gloo(3, *STEPS, ("0", 4, 1))
    found = find_hang([*usual, swapped])
    assert (found.what, found.ranks) == ("deadlock", (3,))


def test_the_rank_that_sends_another_size_is_distinguished_from_its_only_peer() -> None:
    found = find_hang([gloo(0, *STEPS, ("dp", 4, 8)), gloo(1, *STEPS, ("dp", 4, 17))])
    assert (found.what, found.ranks) == ("mismatch", (1,))


def test_a_call_that_gloo_retired_is_open_where_a_member_did_not_enter_it() -> None:
    early = [gloo(r, *STEPS, ("dp", 4, 8), pending=False) for r in range(2)]
    assert find_hang([*early, gloo(2, *STEPS, pending=False)]).what == "none"
    found = find_hang([early[0], gloo(1, *STEPS, ("dp", 4, 8)), gloo(2, *STEPS, pending=False)])
    assert (found.what, found.ranks) == ("absent", (2,)) and found.waiting == (0, 1)


def test_a_rank_without_a_dump_halfway_between_the_members_is_the_root() -> None:
    found = find_hang([gloo(r, *STEPS, ("dp", 4, 8)) for r in (0, 2)], world_size=3)
    assert (found.what, found.ranks) == ("missing_dump", (1,))
