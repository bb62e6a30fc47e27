"""What records cannot show is said of each job, and nothing is found in it; doubly exported flows count once."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from plain_jobs import Made, PlainJob, make_jobs
from typer.testing import CliRunner

from prism.cli.main import app
from prism.observe import diagnose
from prism.observe.parallelism.layout_model import list_layouts
from prism.observe.report.words import say_nothing_found
from prism.observe.steps.visibility import drop_timeouts, judge_visibility
from prism.observe.traffic.table import Traffic

MS, SECOND = 10**6, 10**9


def export(flows: pl.DataFrame, idle_ns: int, active_ns: int) -> pl.DataFrame:
    """What an exporter with timeouts makes of messages: one record while traffic goes on, cut at the active timeout."""
    flows = flows.sort("src", "dst", "src_port", "start_ns")
    rows: list[tuple[int, int, int, int]] = []
    for (_, _, _), part in flows.with_row_index("row").group_by("src", "dst", "src_port", maintain_order=True):
        row, begin, until, size = -1, 0, 0, 0
        for at, start, end, sent in part.select("row", "start_ns", "end_ns", "bytes").iter_rows():
            if row < 0 or start - until > idle_ns or end - begin > active_ns:
                rows += [(row, begin, until, size)] if row >= 0 else []
                row, begin, size = at, start, 0
            until, size = max(until, end) if size else end, size + sent
        rows.append((row, begin, until, size))
    kept, begin_ns, until_ns, total = (list(column) for column in zip(*rows, strict=True))
    columns = {"start_ns": begin_ns, "end_ns": until_ns, "bytes": total}
    return flows[kept].with_columns(pl.Series(name, values) for name, values in columns.items()).sort("start_ns")


@pytest.fixture(scope="module")
def made() -> Made:
    pipe = PlainJob(dp=2, pp=4, gpus_per_host=1, microbatches=8, steps=60, queue_pairs=1, seed=4)
    ring = PlainJob(
        dp=8, gpus_per_host=1, microbatches=1, forward_s=0.1, buckets=4, steps=150, first_host=40, queue_pairs=1, seed=5
    )
    return make_jobs(pipe, ring)


def whole_seconds(flows: pl.DataFrame) -> pl.DataFrame:
    return flows.with_columns(pl.col("start_ns", "end_ns") // SECOND * SECOND).sort("start_ns")


@pytest.mark.parametrize(
    "coarse",
    [lambda f: export(f, 15 * SECOND, 15 * SECOND), lambda f: export(f, 60 * SECOND, 60 * SECOND), whole_seconds],
    ids=["15 s", "60 s", "whole seconds"],
)
def test_steps_that_cannot_be_seen_are_not_guessed(made: Made, coarse: object) -> None:
    found = diagnose(coarse(made.flows), made.topology)  # type: ignore[operator]
    assert len(found.jobs) == 2
    assert [job.steps.height for job in found.jobs] == [0, 0]
    assert found.findings == ()
    for job in found.jobs:
        assert any(note.startswith(f"{job.id}: steps cannot be seen") for note in found.notes)
    pipe = next(job for job in found.jobs if "10.0.0.1" in job.endpoints)
    # How much each pair sends still tells a pipeline, but not how many ranks are behind a NIC.
    assert (pipe.layout.dp.value, pipe.layout.pp.value) == (2, 4) and pipe.layout.confidence < 0.8
    assert "unknown" not in set(pipe.pairs["kind"])


def test_where_an_active_timeout_hides_steps_it_is_said_which_one_would_show_them(made: Made) -> None:
    cut, rounded = (diagnose(flows, made.topology) for flows in (
        export(made.flows, 15 * SECOND, 15 * SECOND), whole_seconds(made.flows)))  # fmt: skip
    advice = "to see them, the active timeout must be shorter than a step"
    for job in cut.jobs:
        assert any(
            note.startswith("steps cannot be seen (records are cut") and note.endswith(advice) for note in job.notes
        )
    assert not any(advice in note for note in rounded.notes)


def test_a_clean_bill_needs_steps(made: Made, tmp_path: object) -> None:
    folder = tmp_path  # type: ignore[assignment]
    export(made.flows, 60 * SECOND, 60 * SECOND).write_parquet(folder / "flows.parquet")  # type: ignore[operator]
    made.topology.write_csv(folder / "topology.csv")  # type: ignore[operator]
    told = CliRunner().invoke(app, ["diagnose", f"{folder}/flows.parquet", "--topology", f"{folder}/topology.csv"])
    assert "out of the ordinary" not in told.stdout
    assert "cannot be seen" in told.stdout


def test_a_clean_bill_needs_steps_that_can_be_compared_and_a_job_that_did_not_stop(made: Made) -> None:
    found = diagnose(made.flows, made.topology)
    healthy = replace(found, findings=())
    assert say_nothing_found(healthy).clean
    first, *others = healthy.jobs
    unclear = replace(first, visible=replace(first.visible, comparable=False))
    stopped = replace(first, life=replace(first.life, state="stopped"))
    for job, text in ((unclear, f"steps of {first.id} cannot be compared"), (stopped, f"{first.id} stopped in the")):
        told = say_nothing_found(replace(healthy, jobs=(job, *others)))
        assert not told.clean and text in told.text


def test_messages_that_an_idle_timeout_merges_leave_pairs_and_steps_right(made: Made) -> None:
    # Warm-up micro-batches follow each other in less than the timeout, the others do not.
    merged = export(made.flows, 30 * MS, SECOND)
    assert merged.height < made.flows.height
    sound, found = diagnose(made.flows, made.topology), diagnose(merged, made.topology)
    assert found.findings == ()
    for before, after in zip(sound.jobs, found.jobs, strict=True):
        assert abs(before.steps.height - after.steps.height) <= 1


@pytest.mark.parametrize("seen", [1, 6], ids=["all", "one endpoint of six"])
def test_flows_that_two_switches_export_count_once(made: Made, seen: int) -> None:
    rng = np.random.default_rng(2)
    late = [pl.Series(rng.integers(1_000, 9_000, made.flows.height)) for _ in range(2)]
    second = made.flows.with_columns(start_ns=pl.col("start_ns") + late[0], end_ns=pl.col("end_ns") + late[1])
    second = second.filter(pl.col("src").is_in(second["src"].unique().sort()[::seen].implode()))
    sound = diagnose(made.flows, made.topology)
    found = diagnose(pl.concat([made.flows, second]).sort("start_ns"), made.topology)
    assert any("exported twice" in note for note in found.notes)
    assert [job.layout.to_json() for job in found.jobs] == [job.layout.to_json() for job in sound.jobs]
    assert [job.steps.height for job in found.jobs] == [job.steps.height for job in sound.jobs]


def test_two_switches_may_cut_a_transfer_at_different_places(made: Made) -> None:
    """The second one ends a third of its records in the middle."""
    second = made.flows.with_columns(pl.col("start_ns", "end_ns") + 3_000)
    whole, cut = (second.filter((pl.int_range(pl.len()) % 3 == 0) == odd) for odd in (False, True))
    middle, half = (pl.col("start_ns") + pl.col("end_ns")) // 2, pl.col("bytes") // 2
    parts = [
        cut.with_columns(end_ns=middle, bytes=half),
        cut.with_columns(start_ns=middle, bytes=pl.col("bytes") - half),
    ]
    sound = diagnose(made.flows, made.topology)
    found = diagnose(pl.concat([made.flows, whole, *parts]).sort("start_ns"), made.topology)
    assert [job.layout.to_json() for job in found.jobs] == [job.layout.to_json() for job in sound.jobs]
    assert [job.steps.height for job in found.jobs] == [job.steps.height for job in sound.jobs]


@pytest.mark.parametrize("ranks", [7, 16, 24, 48])
def test_every_candidate_layout_has_as_many_ranks_as_the_job(ranks: int) -> None:
    layouts = list(list_layouts(ranks))
    assert {d.dp * d.pp * d.tp * d.cp for d in layouts} == {ranks}
    assert len(layouts) == len(set(layouts))


def _steps_of(lengths_s: list[float]) -> pl.DataFrame:
    ends = np.cumsum([round(s * 1e9) for s in lengths_s])
    starts = ends - np.array([round(s * 1e9) for s in lengths_s])
    return pl.DataFrame({"index": np.arange(len(ends), dtype=np.int32), "start_ns": starts, "end_ns": ends})


@pytest.mark.parametrize(
    ("lengths", "resolution_ns", "mostly_cut", "kept"),
    [
        ([20.0] * 7, 10**9, False, False),  # twice the timeout, in whole seconds
        ([20.0] * 7, 1, False, True),
        ([10.2] * 7, 1, True, False),
        ([6.4, 8.2, 18.1, 5.0, 12.0, 7.5, 16.0], 1, True, False),  # what cut records make of chance
        ([3.0, 3.02, 2.98, 3.01], 1, True, True),
    ],
)
def test_steps_that_a_timeout_makes_are_not_shown(
    lengths: list[float], resolution_ns: int, mostly_cut: bool, kept: bool
) -> None:
    empty = pl.DataFrame()
    traffic = Traffic(
        messages=empty, pairs=empty, endpoints=empty, resolution_ns=resolution_ns, active_ns=10_000_000_000
    )
    assert (drop_timeouts(traffic, _steps_of(lengths), mostly_cut).height > 0) == kept


def test_fine_records_show_the_layout_of_a_job_whose_steps_are_not_found(made: Made) -> None:
    found = diagnose(made.flows, made.topology)
    assert found.traffic is not None
    visible = judge_visibility(found.traffic, found.jobs[0].streams, found.jobs[0].steps.clear())
    assert visible.layout and not visible.steps and not visible.inside


def test_what_comes_twice_is_no_step(made: Made) -> None:
    found = diagnose(made.flows, made.topology)
    assert found.traffic is not None
    job = found.jobs[0]
    for num, seen in ((2, False), (3, True)):
        visible = judge_visibility(found.traffic, job.streams, job.steps.head(num))
        assert visible.steps == visible.layout == seen
        assert seen or "fewer than three times" in visible.notes[0]


@pytest.mark.parametrize(
    ("step_s", "resolution_ns", "seen"),
    [(12.0, SECOND, False), (37.0, SECOND, False), (101.0, SECOND, True), (37.0, 100 * MS, True), (0.4, MS, True)],
)
def test_whole_seconds_show_only_steps_of_a_hundred_of_them(
    made: Made, step_s: float, resolution_ns: int, seen: bool
) -> None:
    """Four steps of 9.2 s last for nearly 37 s, and so repeat better than each of them."""
    found = diagnose(made.flows, made.topology)
    assert found.traffic is not None
    traffic = replace(found.traffic, resolution_ns=resolution_ns)
    visible = judge_visibility(traffic, found.jobs[0].streams, _steps_of([step_s] * 7))
    assert visible.steps is seen
    assert seen or "steps cannot be seen (times are rounded to 1,000 ms" in visible.notes[0]
