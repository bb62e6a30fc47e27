"""Every scheduler's and public trace's columns become the same jobs, and what is not known is said."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

from prism.datacenter.characterize import Characterization, CharacterizeOptions, characterize
from prism.datacenter.characterize.fields import parse_gpu_count, parse_lengths, parse_moments
from prism.datacenter.characterize.vocabulary import name_state, name_type
from prism.machine.hosts import expand_hosts

Write = Callable[..., Path]


def states_of(report: Characterization) -> dict[str, int]:
    return dict(report.study.states.group_by("state").agg(pl.col("jobs").sum()).iter_rows())


def noted(report: Characterization, text: str) -> bool:
    return any(text in note for note in report.notes)


def test_kalos_durations_that_count_from_submission_are_recounted_and_said(write_trace: Write) -> None:
    # The two sample rows of AcmeTrace's README: 18 and 82 s are end minus submit, 8 and 70 s end minus start.
    columns = "job_id,user,node_num,gpu_num,cpu_num,mem_per_pod_GB,shared_mem_per_pod,type,state,submit_time,start_time,end_time,fail_time,stop_time,duration,queue,gpu_time"
    rows = (
        "a,u,8,64,960,1000,100.0,Other,FAILED,2023-05-17 11:00:58+00:00,2023-05-17 11:01:08+00:00,2023-05-17 11:01:16+00:00,2023-05-17 11:01:16+00:00,,18,10.0,1152.0",
        "b,u,8,64,960,1000,100.0,Other,CANCELLED,2023-05-17 11:28:42+00:00,2023-05-17 11:28:54+00:00,2023-05-17 11:30:04+00:00,,2023-05-17 11:30:04+00:00,82,12.0,5248.0",
    )
    report = characterize(write_trace("\n".join((columns, *rows)) + "\n"))
    assert report.trace.columns.format == "acme-kalos"
    assert (report.study.summary.duration_s.min, report.study.summary.duration_s.max) == (8, 70)
    assert report.study.summary.gpu_hours == pytest.approx(64 * 78 / 3600)
    assert noted(report, "counts from submission, queueing included, in 2 of 2")
    assert noted(report, "GPU-time column is not GPUs times")


def test_sacct_output_keeps_jobs_drops_steps_and_reads_tres(write_trace: Write) -> None:
    text = """JobID|User|State|AllocTRES|Submit|Start|End|ElapsedRaw|NodeList|Reason
100|ann|COMPLETED|billing=16,cpu=16,gres/gpu=8,gres/gpu:a100=8,node=1|2024-01-01T10:00:00|2024-01-01T10:01:00|2024-01-01T11:01:00|3600|n01|None
100.batch||COMPLETED|cpu=16,gres/gpu=8|2024-01-01T10:01:00|2024-01-01T10:01:00|2024-01-01T11:01:00|3600|n01|
101|bob|CANCELLED by 1000|billing=4,cpu=4,mem=8G,node=1|2024-01-01T10:00:00|2024-01-01T10:00:00|2024-01-01T10:00:30|30|n02|None
102|bob|NODE_FAIL|gres/gpu:h100=16,node=2|2024-01-01T12:00:00|2024-01-01T12:00:00|2024-01-01T14:00:00|7200|n[01-02]|None
103|bob|PENDING||2024-01-01T12:00:00|Unknown|Unknown|0|None assigned|Priority
104|cy|RUNNING|gres/gpu=8,node=1|2024-01-01T12:00:00|2024-01-01T12:10:00|Unknown|60|n01|None
105|cy|OUT_OF_ME+|gres/gpu=4|2024-01-01T12:00:00|2024-01-01T12:00:00|2024-01-01T12:05:00|300|n03|None
"""
    report = characterize(write_trace(text, name="sacct.txt"))
    assert report.trace.columns.format == "slurm"
    assert report.study.summary.jobs == 6
    assert states_of(report) == {
        "completed": 1, "cancelled": 1, "node_fail": 1, "pending": 1, "running": 1, "out_of_memory": 1,
    }  # fmt: skip
    assert report.study.sizes["gpus"].to_list() == [4, 8, 16]
    assert noted(report, "1 rows are steps of jobs")
    assert noted(report, "1 jobs were running at the export")
    assert noted(report, "1 jobs were waiting at the export")
    assert noted(report, "Times carry no zone")
    # A pending reason is no failure reason, and node failures are infrastructure.
    assert set(report.study.failures["reason"]) == {"(not recorded)"}
    assert report.study.reliability.infrastructure_failures == 1
    assert report.study.node_failures.rows() == [("n01", 1, 57_600), ("n02", 1, 57_600), ("n03", 1, 1200)]
    assert report.study.summary.duration_s.max == 7200


def test_kubernetes_jobs_multiply_gpus_by_parallelism(write_trace: Write) -> None:
    text = """name,namespace,status,nvidia.com/gpu,parallelism,creationTimestamp,startTime,completionTime
train-a,ml,Succeeded,8,4,2024-05-01T00:00:00Z,2024-05-01T00:00:10Z,2024-05-01T01:00:10Z
train-b,ml,Failed,8,,2024-05-01T00:00:00Z,2024-05-01T00:00:10Z,2024-05-01T00:01:10Z
train-c,ml,Active,2,1,2024-05-01T00:00:00Z,2024-05-01T00:00:10Z,<none>
"""
    report = characterize(write_trace(text))
    assert report.trace.columns.format == "kubernetes"
    assert report.study.sizes["gpus"].to_list() == [2, 8, 32]
    assert states_of(report) == {"completed": 1, "failed": 1, "running": 1}


def test_pai_tasks_without_a_header_are_recognised(write_trace: Write) -> None:
    text = """job1,worker,2,Terminated,1000.0,2000.0,600.0,29.3,50.0,T4
job2,ps,1,Failed,1000.0,1100.0,600.0,29.3,100.0,V100
job3,worker,1,Running,1000.0,,600.0,29.3,,T4
"""
    report = characterize(write_trace(text))
    assert report.trace.columns.format == "pai"
    assert report.study.sizes["gpus"].to_list() == [1]
    assert report.study.summary.gpu_jobs == 2
    assert report.study.summary.duration_s.max == 1000
    assert noted(report, "1 jobs give no GPU count")
    assert noted(report, "bare numbers")


def test_philly_json_spans_all_attempts_of_a_job(tmp_path: Path) -> None:
    def attempt(start: str, end: str | None, gpus: int) -> dict[str, object]:
        return {
            "start_time": start,
            "end_time": end,
            "detail": [{"ip": "m1", "gpus": [f"gpu{i}" for i in range(gpus)]}],
        }

    jobs = [
        {"jobid": "a", "user": "u", "vc": "v", "status": "Pass", "submitted_time": "2017-10-01 00:00:00",
         "attempts": [attempt("2017-10-01 00:10:00", "2017-10-01 01:00:00", 2), attempt("2017-10-01 02:00:00", "2017-10-01 03:00:00", 4)]},
        {"jobid": "b", "user": "u", "vc": "v", "status": "Killed", "submitted_time": "2017-10-01 00:00:00", "attempts": []},
    ]  # fmt: skip
    path = tmp_path / "cluster_job_log"
    path.write_text(json.dumps(jobs))
    report = characterize(path)
    assert report.trace.columns.format == "philly"
    assert states_of(report) == {"completed": 1, "cancelled": 1}
    assert report.study.summary.duration_s.max == 10_200  # 00:10 to 03:00
    assert report.study.summary.queue_s.max == 600
    assert report.study.summary.max_gpus == 4
    # 2 GPUs for 50 minutes and 4 for an hour; the hour between the attempts held none.
    assert report.study.summary.gpu_hours == pytest.approx(2 * 50 / 60 + 4)


def test_helios_columns_are_read(write_trace: Write) -> None:
    text = """job_id,user,vc,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue
1,u1,vc1,8,64,1,COMPLETED,2020-04-01 00:00:00,2020-04-01 00:00:05,2020-04-01 00:10:05,600,5
2,u2,vc1,1,8,1,TIMEOUT,2020-04-01 00:00:00,2020-04-01 00:00:00,2020-04-01 00:00:50,50,0
"""
    report = characterize(write_trace(text))
    assert report.trace.columns.format == "helios"
    assert states_of(report) == {"completed": 1, "timeout": 1}
    assert report.study.types["type"].to_list() == ["(no type)"]


def test_a_table_with_lengths_instead_of_times_is_studied_without_them(write_trace: Write) -> None:
    report = characterize(
        write_trace("name,gpus,status,run time,wait time\na,8,success,01:00:00,60\nb,4,error,1-00:00:00,5\n")
    )
    assert report.study.summary.duration_s.max == 86_400
    assert report.study.summary.queue_s.max == 60
    assert report.study.capacity is None
    assert noted(report, "The trace does not say when jobs started and ended: no capacity")


def test_parquet_gives_the_same_report_as_csv(two_hundred_jobs: Path, tmp_path: Path) -> None:
    path = tmp_path / "jobs.parquet"
    pl.read_csv(two_hundred_jobs, try_parse_dates=True).write_parquet(path)
    as_csv, as_parquet = characterize(two_hundred_jobs), characterize(path)
    assert as_parquet.study.lengths.equals(as_csv.study.lengths)
    assert as_parquet.study.sizes.equals(as_csv.study.sizes)


def test_gzip_is_unpacked(two_hundred_jobs: Path, tmp_path: Path) -> None:
    import gzip

    path = tmp_path / "jobs.csv.gz"
    path.write_bytes(gzip.compress(two_hundred_jobs.read_bytes()))
    assert characterize(path).study.summary.jobs == 200


def test_unmapped_states_and_types_are_reported_not_guessed(write_trace: Write) -> None:
    row = ("2024-01-01 00:00:00", "2024-01-01 00:00:00", "2024-01-01 00:01:00")
    report = characterize(
        write_trace([("1", "u", 8, "Robotics", "EXPLODED", *row), ("2", "u", 8, "pre-training", "done", *row)])
    )
    assert states_of(report) == {"unknown": 1, "completed": 1}
    assert dict(report.intake.unknown_states) == {"EXPLODED": 1}
    assert dict(report.intake.site_types) == {"Robotics": 1}
    assert set(report.study.types["type"]) == {"Robotics", "Pretrain"}
    assert noted(report, "'EXPLODED' (1)")
    assert noted(report, "'Robotics' (1)")


def test_time_zones_decide_the_hour_of_arrival(write_trace: Write) -> None:
    row = ("1", "u", 8, "Eval", "COMPLETED", "2024-07-01 00:30:00", "2024-07-01 00:30:00", "2024-07-01 00:31:00")
    path = write_trace([row])
    utc, shanghai = characterize(path), characterize(path, CharacterizeOptions(time_zone="Asia/Shanghai"))
    for report in (utc, shanghai):  # the wall clock that was written is the wall clock that is shown
        assert report.study.arrivals.filter(pl.col("jobs") > 0).rows() == [(1, 0, 1)]
    aware = write_trace([(*row[:5], *(f"{t}+00:00" for t in row[5:]))], name="aware.csv")
    shown = characterize(aware, CharacterizeOptions(time_zone="Asia/Shanghai"))
    assert shown.study.arrivals.filter(pl.col("jobs") > 0).rows() == [(1, 8, 1)]


def test_mixed_offsets_are_each_honoured(write_trace: Write) -> None:
    rows = [
        (
            "1",
            "u",
            8,
            "Eval",
            "COMPLETED",
            "2024-01-01 08:00:00+08:00",
            "2024-01-01 00:00:10Z",
            "2024-01-01 01:00:10.5+01:00",
        ),
    ]
    report = characterize(write_trace(rows))
    assert report.study.summary.queue_s.max == 10
    assert report.study.summary.duration_s.max == 0.5
    assert noted(report, "Times mix UTC offsets")


def test_clusters_in_one_trace_are_told_apart(write_trace: Write) -> None:
    times = ("2024-01-01 00:00:00", "2024-01-01 00:00:00", "2024-01-01 00:01:00")
    columns = ("cluster", "job_id", "gpu_num", "state", "submit_time", "start_time", "end_time")
    path = write_trace([("east", "1", 8, "COMPLETED", *times), ("west", "1", 4, "FAILED", *times)], columns=columns)
    both, west = characterize(path), characterize(path, CharacterizeOptions(cluster="West"))
    assert both.study.summary.jobs == 2
    assert not noted(both, "repeat an earlier one")  # the same id in two clusters is two jobs
    assert noted(both, "holds 2 clusters")
    assert west.study.sizes["gpus"].to_list() == [4]
    assert noted(west, "1 rows of other clusters")


def test_repeated_job_ids_are_reported(write_trace: Write) -> None:
    times = ("2024-01-01 00:00:00", "2024-01-01 00:00:00", "2024-01-01 00:01:00")
    report = characterize(write_trace([("1", "u", 8, "Eval", "COMPLETED", *times)] * 3))
    assert report.study.summary.jobs == 3
    assert noted(report, "2 job ids repeat")


def test_columns_that_repeat_the_times_are_checked_on_the_first_rows_of_a_long_trace(
    write_trace: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    from prism.datacenter.characterize import reading as characterization

    monkeypatch.setattr(characterization, "_PROBED_ROWS", 5)
    columns = ("job_id", "user", "gpu_num", "type", "state", "submit_time", "start_time", "end_time", "duration")
    times = ("2024-01-01 00:00:00", "2024-01-01 00:00:10", "2024-01-01 00:01:10")
    rows: list[tuple[object, ...]] = [(i, "u", 8, "Eval", "COMPLETED", *times, 70) for i in range(20)]
    report = characterize(write_trace(rows, columns=columns))
    assert noted(report, "in 5 of 5 jobs that waited, of the first 5")
    assert report.study.summary.duration_s.max == 60
    # A later job without times makes the column count after all.
    rows.append((20, "u", 8, "Eval", "COMPLETED", times[0], "", "", 99))
    report = characterize(write_trace(rows, columns=columns))
    assert report.study.summary.duration_s.max == 99
    assert noted(report, "in 20 of 20 jobs that waited;")


@pytest.mark.parametrize(
    ("text", "gpus"),
    [
        ("8", 8), ("8.0", 8), ("0.5", 0.5), ("8xA100", 8), ("8 x H100-SXM", 8), ("A100x8", 8), ("gpu:4", 4), ("gpu:a100:4(S:0-1)", 4),
        ("gres/gpu=16,gres/gpu:a100=16", 16), ("cpu=8,gres/gpu:a100=4,gres/gpu:v100=2", 6), ("cpu=8", 0),
        ("billing=8,cpu=4,mem=3G", 0), ("nvidia.com/gpu: 4", 4), ("many", None), ("-1", None), ("nan", None),
    ],
)  # fmt: skip
def test_gpu_counts_are_read_in_every_known_form(text: str, gpus: float | None) -> None:
    assert parse_gpu_count(text) == gpus


def test_lengths_and_moments_are_read_in_every_known_form() -> None:
    lengths = parse_lengths(pl.Series(["1-02:03:04", "00:10", "01:00:00.5", "7", "", None, "2 days, 01:00:00"]))
    assert lengths.to_list() == [93_784, 10, 3600.5, 7, None, None, 176_400]
    text = pl.Series(
        ["2023-03-01T00:18:22Z", "2023/03/01 00:18:22+0000", "2023-03-01 00:18", "2023-02-30 00:00:00", "soon"]
    )
    moments = parse_moments(text, None).ns
    assert moments[0] == moments[1] == moments[2] + 22_000_000_000
    assert moments[3:].to_list() == [None, None]
    assert parse_moments(pl.Series(["1677629902", "1677629902.5"]), None).ns[0] == 1_677_629_902_000_000_000
    assert parse_moments(pl.Series(["1677629902000"]), None).ns[0] == 1_677_629_902_000_000_000


def test_words_have_one_meaning_or_none() -> None:
    assert name_state("CANCELLED by 1234") == "cancelled"
    assert name_state("CANCELLED+") == "cancelled"
    assert name_state("OUT_OF_ME+") == "out_of_memory"
    assert name_state("no idea") is None
    assert name_type("Fine-Tuning") == "SFT"
    assert name_type("Robotics") is None


def test_host_lists_are_expanded() -> None:
    assert expand_hosts("n[01-03,7],gpu9") == ["n01", "n02", "n03", "n7", "gpu9"]
    assert expand_hosts("None assigned") == []


def test_reasons_span_states_and_jobs_without_one_keep_their_state(write_trace: Write) -> None:
    text = """job_id,gpus,state,duration,reason,time_to_restart
1,8,FAILED,100,CUDAError,30
2,8,TIMEOUT,300,CUDAError,90
3,8,NODE_FAIL,50,,
4,8,FAILED,10,,
5,8,COMPLETED,10,,
"""
    failures = characterize(write_trace(text)).study.failures
    rows = {(r["reason"], r["state"]): r for r in failures.to_dicts()}
    assert set(rows) == {("CUDAError", "several"), ("(not recorded)", "node_fail"), ("(not recorded)", "failed")}
    cuda = rows["CUDAError", "several"]
    assert (cuda["count"], cuda["ttf_mean_s"], cuda["restart_mean_s"], cuda["restart_median_s"]) == (2, 200, 60, 60)
    assert rows["(not recorded)", "node_fail"]["category"] == "infrastructure"
