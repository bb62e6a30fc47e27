"""Two timelines compared: the parts add up, and a planted difference is put where it is."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from typer.testing import CliRunner

from prism.cli.main import app
from prism.errors import InputError
from prism.evidence.fusion import compare_timelines
from prism.records.spans import SPANS


def make_timeline(
    *, slow_rank: int | None = None, compute_ms: float = 10.0, reduce_ms: float = 4.0, only_step: int | None = None,
    extra_ms: float = 3.0, overlap_ms: float = 0.0, noise: float = 0.0, seed: int = 0, ranks: int = 4, steps: int = 6,
) -> pl.DataFrame:  # fmt: skip
    """Ranks that compute, wait for the slowest and reduce together."""
    rng = np.random.default_rng(seed)
    rows, begin = [], 0.0
    for step in range(steps):
        own = compute_ms + noise * rng.standard_normal(ranks)
        if slow_rank is not None and (only_step is None or step == only_step):
            own[slow_rank] += extra_ms
        ready = begin + own.max()
        for rank in range(ranks):
            parts = [("compute", "forward", begin, begin + own[rank]), ("wait", "wait", begin + own[rank], ready)]
            parts.append(("dp", "all_reduce 1", ready - overlap_ms, ready + reduce_ms - overlap_ms))
            rows += [("j", rank, "main", k, n, step, int(a * 1e6), int(b * 1e6), None, None) for k, n, a, b in parts]
        begin = ready + reduce_ms - overlap_ms
    return pl.DataFrame(rows, schema=SPANS.required, orient="row")


@pytest.mark.parametrize(
    ("change", "kind", "rank", "step"),
    [
        ({"slow_rank": 2}, "compute", 2, None),
        ({"reduce_ms": 6.0}, "dp all_reduce", None, None),
        ({"compute_ms": 12.0}, "compute", None, None),
        ({"slow_rank": 1, "only_step": 3, "extra_ms": 20.0}, "compute", 1, 3),
    ],
)
def test_a_planted_difference_is_put_where_it_is_and_the_parts_add_up(
    change: dict[str, float], kind: str, rank: int | None, step: int | None
) -> None:
    found = compare_timelines(make_timeline(), make_timeline(**change))  # type: ignore[arg-type]
    assert sum(p.ms for p in found.parts) == pytest.approx(found.difference_ms, rel=1e-6)
    top = found.parts[0]
    assert (top.kind, top.rank, top.step) == (kind, rank, step)
    assert found.difference_ms > 0


def test_lost_overlap_is_communication_and_not_compute() -> None:
    found = compare_timelines(make_timeline(overlap_ms=3.0), make_timeline())
    assert found.parts[0].kind == "dp all_reduce" and found.parts[0].ms == pytest.approx(3.0, rel=0.01)


@pytest.mark.parametrize("steps", [5, 6, 12])
def test_nothing_is_told_where_only_noise_differs(steps: int) -> None:
    for seed in range(40):
        pair = (make_timeline(noise=0.5, seed=n, steps=steps) for n in (seed, seed + 100))
        found = compare_timelines(*pair)
        assert found.is_noise and all(p.kind == "noise" for p in found.parts), (steps, seed, found.parts[:2])
        assert sum(p.ms for p in found.parts) == pytest.approx(found.difference_ms, abs=1e-9)


@pytest.mark.parametrize("clock_ms", [0.0, 7_200_000.0])
def test_a_rank_whose_host_comes_late_is_blamed_and_not_those_that_wait_in_the_collective(clock_ms: float) -> None:
    def record(gap_ms: float) -> pl.DataFrame:
        """Profiles show a collective from the arrival of each rank, and nothing while a host sleeps."""
        rows = []
        for step in range(6):
            begin, late = step * 200.0, 5.0 + gap_ms
            for rank in range(3):
                off = clock_ms if rank == 2 else 0.0
                came = begin + (late if rank == 1 else 5.0)
                parts = [("step", "step", begin, begin + late + 4), ("compute", "gemm", came - 5, came),
                         ("unknown", "all_reduce", came, begin + late + 4)]  # fmt: skip
                for kind, name, a, b in parts:
                    times = (int((a + off) * 1e6), int((b + off) * 1e6))
                    rows.append(("j", rank, kind, kind, name, step, *times, None, None))
        return pl.DataFrame(rows, schema=SPANS.required, orient="row")

    found = compare_timelines(record(1.0), record(31.0))
    assert (found.parts[0].kind, found.parts[0].rank) == ("idle", 1)
    assert found.parts[0].ms == pytest.approx(30.0) and found.difference_ms == pytest.approx(30.0)
    assert sum(p.ms for p in found.parts) == pytest.approx(found.difference_ms)


def test_a_timeline_without_steps_is_one_clear_line() -> None:
    empty = make_timeline().with_columns(step=pl.lit(None, pl.Int32))
    with pytest.raises(InputError, match="expected: no span belongs to a step"):
        compare_timelines(empty, make_timeline())


def test_the_command_takes_files_and_folders_and_prints_the_contract(tmp_path: Path) -> None:
    (tmp_path / "before").mkdir()
    make_timeline().write_parquet(tmp_path / "before" / "timeline.parquet")
    make_timeline(slow_rank=2).write_parquet(tmp_path / "after.parquet")
    done = CliRunner().invoke(app, ["compare", str(tmp_path / "before"), str(tmp_path / "after.parquet"), "--json"])
    document = json.loads(done.stdout)
    assert done.exit_code == 0 and document["parts"][0]["rank"] == 2
    assert sum(p["ms"] for p in document["parts"]) == pytest.approx(document["difference_ms"])


def test_a_timeline_beside_itself_is_not_called_shorter(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    make_timeline().write_parquet(path)
    told = CliRunner().invoke(app, ["compare", str(path), str(path)]).output
    assert "no difference" in told and "shorter" not in told
