"""The first page adds up, names what cost most, and says what changed since the week before."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from pathlib import Path

import polars as pl
import pytest

from prism.datacenter.characterize import Characterization, CharacterizeOptions, characterize, compare, write_report
from prism.datacenter.characterize.comparison import measure
from prism.datacenter.characterize.first_page import (
    HEADS,
    action_rows,
    change_rows,
    loss_rows,
    node_rows,
    trend_rows,
    use_rows,
    wait_rows,
)

BEGIN = datetime(2024, 5, 6, tzinfo=UTC)
GPUS = 64


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four weeks of jobs of 8 GPUs; in the last, node n7 kills jobs, which wait an hour each."""
    rng = random.Random(5)
    rows = ["job_id,user,gpu_num,state,submit_time,start_time,end_time,reason,node_list"]
    for day in range(28):
        for slot in range(6):
            begin = BEGIN + timedelta(days=day, hours=4 * slot)
            node, bad = f"n{slot}", day >= 21 and slot == 5
            wait = timedelta(hours=1) if day >= 21 else timedelta(minutes=2)
            node = "n7" if bad else node
            state, reason = ("NODE_FAIL", "ECCError") if bad else ("COMPLETED", "")
            if day % 7 == 0 and slot == 0:
                state, reason = "FAILED", "KeyError"
            length = timedelta(minutes=rng.randrange(100, 160))
            cells = (
                day * 10 + slot,
                f"u{slot % 2}",
                8,
                state,
                begin,
                begin + wait,
                begin + wait + length,
                reason,
                node,
            )
            rows.append(",".join(str(cell) for cell in cells))
    path = tmp_path_factory.mktemp("weeks") / "trace.csv"
    path.write_text("\n".join(rows) + "\n")
    return path


@pytest.fixture(scope="module")
def report(trace: Path) -> Characterization:
    return characterize(trace, CharacterizeOptions(gpus=GPUS))


def jobs(trace: Path) -> pl.DataFrame:
    """The same jobs by plain code: hours, and weeks back from the last day."""
    table = pl.read_csv(trace, try_parse_dates=True)
    hours = (pl.col("end_time") - pl.col("start_time")).dt.total_seconds() / 3600 * pl.col("gpu_num")
    last = table["end_time"].max().date()  # type: ignore[union-attr]
    ago = (pl.lit(last) - pl.col("end_time").dt.date()).dt.total_days() // 7
    return table.with_columns(hours=hours, ago=ago)


def test_what_was_bought_is_used_or_idle(report: Characterization, trace: Path) -> None:
    page = report.overview
    table = jobs(trace)
    assert page.used_gpu_hours == pytest.approx(table["hours"].sum())
    assert page.bought_gpu_hours == pytest.approx(GPUS * (page.span_hours or 0))
    assert sum(part.gpu_hours for part in page.uses) == pytest.approx(page.bought_gpu_hours)
    uses = {part.name: part.gpu_hours for part in page.uses}
    failed = table.filter(pl.col("state") != "COMPLETED")["hours"].sum()
    assert uses["jobs that failed"] == pytest.approx(failed)
    losses = {loss.name: loss.gpu_hours for loss in page.losses}
    for reason in ("ECCError", "KeyError"):
        cost = table.filter(pl.col("reason") == reason)["hours"].sum()
        assert losses[f"failed jobs: {reason}"] == pytest.approx(cost)


def test_the_bad_node_is_named_with_its_cost(report: Characterization, trace: Path) -> None:
    table = jobs(trace).filter(pl.col("node_list") == "n7")
    node, failures, gpu_time = report.study.node_failures.row(0)
    assert (node, failures) == ("n7", table.height)
    assert gpu_time / 3600 == pytest.approx(table["hours"].sum())
    action = next(a for a in report.overview.actions if "n7" in a.what)
    assert 0 < action.worth_gpu_hours < table["hours"].sum()
    assert len(report.overview.actions) == 3
    worth = [a.worth_gpu_hours for a in report.overview.actions]
    assert worth == sorted(worth, reverse=True)


def test_weeks_are_those_that_plain_code_counts(report: Characterization, trace: Path) -> None:
    assert report.weeks is not None
    table = jobs(trace)
    failed = table.filter(pl.col("state") != "COMPLETED")
    trend = report.weeks.trend
    assert trend["gpu_hours"].sum() == pytest.approx(table["hours"].sum())
    by_week = {ago: part for (ago,), part in table.group_by("ago")}
    for ago, row in enumerate(reversed(trend.to_dicts())):
        assert row["jobs"] == by_week[ago].height
        assert row["lost_gpu_hours"] == pytest.approx(failed.filter(pl.col("ago") == ago)["hours"].sum())
    changes = {(c["of"], c["name"]): c for c in report.weeks.changes.to_dicts()}
    bad = table.filter(pl.col("reason") == "ECCError")
    for ago, name in ((0, "now"), (1, "before")):
        expected = bad.filter(pl.col("ago") == ago)["hours"].sum()
        assert changes["failure", "ECCError"][name] == pytest.approx(expected)
        assert changes["node", "n7"][name] == pytest.approx(expected)
    assert changes["cluster", "mean queueing"]["now"] > changes["cluster", "mean queueing"]["before"]


def test_users_are_ranked_by_what_their_jobs_waited_for(report: Characterization, trace: Path) -> None:
    wait = (pl.col("start_time") - pl.col("submit_time")).dt.total_seconds() / 3600 * pl.col("gpu_num")
    plain = (
        jobs(trace).group_by("user").agg(waited=wait.sum().round(6)).sort("waited", "user", descending=[True, False])
    )
    found = report.study.waits.select("user", "waiting_gpu_hours")
    assert found["user"].to_list() == plain["user"].to_list()
    assert found["waiting_gpu_hours"].to_list() == pytest.approx(plain["waited"].to_list())


def test_the_page_opens_with_the_first_page_and_clips_nothing(report: Characterization, tmp_path: Path) -> None:
    write_report([report], compare([report]), tmp_path)
    page = (tmp_path / "report.html").read_text()
    assert page.index("GPU-hours bought") < page.index("Lost, and to what") < page.index("What to do first")
    assert page.index("What changed since the week before") < page.index("the workload in figures")
    assert "more rows in the CSV" not in page
    names = ("uses", "losses", "actions", "waits", "occupancy", "weeks", "changes")
    assert all((tmp_path / "csv" / "trace" / f"{name}.csv").is_file() for name in names)
    for rows, name in (
        (use_rows(report), "use"), (loss_rows(report), "loss"), (action_rows(report), "action"), (node_rows(report), "node"),
        (wait_rows(report), "wait"), (trend_rows(report), "trend"), (change_rows(report), "change"),
    ):  # fmt: skip
        assert rows and all(len(row) == len(HEADS[name]) for row in rows)


def test_sizes_come_in_order_and_not_as_words(tmp_path: Path) -> None:
    rows = "\n".join(f"{gpus},done,{length}" for gpus, length in ((1024, 5), (8, 50), (128, 20), (2, 90), (16, 1)))
    path = tmp_path / "t.csv"
    path.write_text(f"gpus,state,duration\n{rows}\n")
    lengths = characterize(path).study.lengths.filter((pl.col("by") == "size") & (pl.col("measure") == "duration_s"))
    assert lengths["group"].to_list() == ["2", "8", "16", "128", "1024"]


def test_a_trace_of_days_has_no_week_to_compare_with_and_one_without_times_no_weeks(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("gpus,state,start,end\n8,done,2024-01-01 00:00:00,2024-01-02 00:00:00\n")
    short = characterize(path)
    assert short.weeks is not None and short.weeks.changes.is_empty()
    path.write_text("gpus,state,duration\n8,done,60\n")
    bare = characterize(path)
    assert bare.weeks is None and bare.overview.bought_gpu_hours is None
    assert [row[0] for row in use_rows(bare)] == ["used by jobs", "  jobs that completed"]


def test_submissions_and_lengths_do_not_say_how_many_gpus_were_in_use_nor_how_jobs_ended(tmp_path: Path) -> None:
    rows = [f"{day},2024-01-{day:02d} 00:00:00,3600,8,vc{day % 7}" for day in range(1, 29)]
    path = tmp_path / "t.csv"
    path.write_text("\n".join(["job,submit_time,duration,gpus,cluster", *rows]) + "\n")
    report = characterize(path, CharacterizeOptions(gpus=64))
    assert report.study.summary.gpu_hours == 28 * 8
    assert report.study.capacity is None, "not 0 % of 64 GPUs allocated"
    assert report.weeks is None, "not 0 GPU-hours a week"
    assert [name for name, value in measure(report.study).items() if value is None and "queue" not in name] == [
        f"{state}{of}" for state in ("completed", "cancelled", "failed") for of in ("_pct", "_gpu_time_pct")
    ]
    assert not [line for line in compare([report]).differences if "completed" in line or "failed" in line]
    assert any("7 clusters" in note and "and 2 more" in note for note in report.notes)
