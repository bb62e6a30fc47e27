"""Cases of hangs: what each rank calls fits together until the victim goes wrong, and a made case has what it says."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from proving.benchmarks.hangs.plan import KINDS, draw_case

CASES = [draw_case(seed) for seed in range(200)]


def test_a_seed_gives_one_case_and_both_halves_hold_every_kind() -> None:
    assert [draw_case(seed) for seed in range(200)] == CASES
    for half in (CASES[::2], CASES[1::2]):
        assert Counter(case.kind for case in half) == dict.fromkeys(KINDS, 10)
    assert {case.world_size for case in CASES} == {2, 4, 6, 8, 12, 16}


def test_ranks_of_a_group_call_the_same_collectives_and_every_send_has_its_receiver() -> None:
    for case in CASES:
        ops = {rank: case.list_ops(rank) for rank in range(case.world_size)}
        for name, ranks in case.groups.items():
            calls = {tuple(op.numel for op in ops[r] if op.group == name and op.call == "all_reduce") for r in ranks}
            assert len(calls) == 1, (case.seed, name)
        sent = {(r, op.peer) for r in ops for op in ops[r] if op.call == "send"}
        assert sent == {(op.peer, r) for r in ops for op in ops[r] if op.call == "recv"}


def test_the_fault_is_at_an_operation_of_the_victim_where_it_can_happen() -> None:
    for case in CASES:
        op = case.list_ops(case.victim)[case.at]
        assert case.kind != "deadlock" or case.list_ops(case.victim)[case.at + 1].group == "world"
        assert op.call == "all_reduce" or case.kind not in ("skip", "other", "size")


@pytest.mark.slow
def test_a_made_case_has_dumps_logs_and_the_truth(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    root = Path(__file__).parents[3]
    command = [sys.executable, "-m", "proving.benchmarks.hangs.make", str(tmp_path), "--seeds", "2:4"]
    subprocess.run(command, cwd=root, check=True, timeout=600)
    for place in (tmp_path / "open" / "case-002", tmp_path / "held-back" / "case-003"):
        truth = json.loads((place / "truth.json").read_text())
        assert truth["fired"] and truth["dumps"]
        assert len(list(place.glob("rank_*.log"))) == truth["world_size"]
        # Our own file of a moment ago; dumps from elsewhere are never unpickled.
        dump = pickle.loads((place / f"nccl_trace_rank_{truth['dumps'][0]}").read_bytes())
        assert dump["entries"], "the recorder was on"
