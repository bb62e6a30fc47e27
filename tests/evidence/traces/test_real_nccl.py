"""Recordings of NCCL 2.28.9 and torch 2.11: four ranks on one GPU, rank 2 of which sleeps or is killed.

Made by proving/benchmarks/investigate_nccl.py; RAS's answers and the dumps are as they came.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from prism.evidence.fusion import investigate
from prism.evidence.traces import find_hang, read_dump
from prism.evidence.traces.files import find_kind
from prism.evidence.traces.ras import find_laggards, parse_ras
from prism.evidence.traces.watchdog import find_behind

DATA = Path(__file__).parent / "data" / "nccl"


@pytest.mark.parametrize("name", ["sleep_ras.txt", "sleep_ras.json", "die_ras.txt", "die_ras.json"])
def test_ras_names_the_rank_that_sleeps_or_is_gone(name: str) -> None:
    found = find_laggards(parse_ras((DATA / name).read_text(), name))
    assert [m.rank for m in found[0].members] == [2]
    assert found[0].behind == (2 if "sleep" in name else None)
    assert find_kind(DATA / name) == "ras"


def test_a_kernel_that_never_ends_shows_in_no_count() -> None:
    assert find_laggards(parse_ras((DATA / "kernel_ras.txt").read_text(), "kernel")) == []


def test_the_watchdog_tells_who_was_behind_where_no_dump_was_written(tmp_path: Path) -> None:
    found = find_behind(sorted(DATA.glob("sleep_rank_*.log")))
    assert found is not None and (found.ranks, found.enqueued, found.most) == ((2,), 14, 16)
    assert find_behind([DATA / "sleep_rank_0.log", DATA / "sleep_rank_1.log"]) is None
    for path in DATA.glob("sleep_rank_*.log"):
        shutil.copy(path, tmp_path / path.name.removeprefix("sleep_"))
    assert {s.id for s in investigate(tmp_path).fused.culprits if s.type == "rank"} == {"2"}


@pytest.mark.parametrize("pattern", ["sleep_dump_*", "sleep_json_*"])
def test_dumps_of_the_debug_server_name_the_rank_that_sleeps(pattern: str) -> None:
    dumps = [read_dump(path) for path in sorted(DATA.glob(pattern))]
    found = find_hang(dumps)
    assert len(dumps) == 4 and (found.what, found.ranks, found.waiting) == ("absent", (2,), (0, 1, 3))
    without = find_hang([d for d in dumps if d.rank != 2])
    assert (without.what, without.ranks) == ("missing_dump", (2,))
