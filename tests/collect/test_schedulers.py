"""Jobs as real schedulers list them: sacct and squeue of Slurm 22.05, pods of kubectl, and tables of one's own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prism.collect.schedulers import ask_scheduler, read_degrees, read_scheduled, read_text
from prism.errors import InputError
from prism.records.scheduled import ScheduledJob

SLURM = Path(__file__).parent.parent / "observe/data/scheduler"
SACCT = Path(__file__).parent.parent / "datacenter/characterize/data/sacct"
S = 10**9


@pytest.mark.parametrize("name", ["squeue.txt", "squeue_long.txt", "squeue_start.txt", "squeue.json"])
def test_what_squeue_writes_is_read_without_jobs_that_wait(name: str) -> None:
    jobs = read_scheduled(SLURM / name)
    assert [(job.hosts, job.running, job.end_ns) for job in jobs] == [(("n1", "n2"), True, None), (("n3",), True, None)]


@pytest.mark.parametrize("name", ["squeue_start.txt", "squeue.json"])
def test_starts_and_layouts_of_squeue_are_kept_and_a_time_limit_is_no_end(name: str) -> None:
    first = read_scheduled(SLURM / name)[0]
    assert first.start_ns is not None
    assert first.end_ns is None
    assert first.degrees == {"tp": 8, "pp": 2}


@pytest.mark.parametrize("name", ["parsable.txt", "parsable2.txt", "sacct.json"])
def test_what_sacct_writes_is_read_without_its_steps(name: str) -> None:
    jobs = {job.name.split()[0]: job for job in read_scheduled(SACCT / name)}
    assert jobs["1"].hosts == ("node-1",)
    assert jobs["1"].gpus == 4
    assert (jobs["1"].end_ns or 0) - (jobs["1"].start_ns or 0) == 3 * S
    assert jobs["4"].running
    assert jobs["4"].end_ns is None
    assert not any("." in name for name in jobs)


@pytest.mark.parametrize("name", ["default.txt", "cut.txt", "headerless.txt"])
def test_a_table_without_hosts_says_what_to_export(name: str) -> None:
    with pytest.raises(InputError, match=r"line 1: no column of .*NodeList"):
        read_scheduled(SACCT / name)


def test_pods_of_one_job_are_its_hosts() -> None:
    pods = [_pod(f"train-worker-{i}", f"node-{i}", "train") for i in range(2)] + [_pod("web", "node-9", None, gpus=0)]
    pods.append({**_pod("waits", None, "later"), "status": {"phase": "Pending"}})
    jobs = read_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": pods}), "pods.json")
    assert jobs[0] == ScheduledJob(
        name="ml/train", hosts=("node-0", "node-1"), start_ns=1772359200 * S, gpus=16, degrees={"tp": 8}, running=True
    )
    assert [job.name for job in jobs] == ["ml/train", "ml/web"]


def _pod(name: str, host: str | None, job: str | None, gpus: int = 8) -> dict[str, object]:
    labels = {"training.kubeflow.org/job-name": job} if job else {}
    return {
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "ml", "labels": labels, "annotations": {"prism/layout": "tp=8"} if job else {}},
        "spec": {"nodeName": host, "containers": [{"resources": {"limits": {"nvidia.com/gpu": str(gpus)}}}]},
        "status": {"phase": "Running", "startTime": "2026-03-01T10:00:00Z"},
    }  # fmt: skip


def test_rows_of_one_job_at_one_time_are_joined_and_later_runs_are_apart() -> None:
    text = "job,host,start,end,gpus\na,n1,1772359200,1772359300,8\na,n2,1772359200,1772359300,8\na,n1,1772359400,,8\n"
    jobs = read_text(text, "jobs.csv")
    assert [(job.hosts, job.gpus, job.end_ns) for job in jobs] == [
        (("n1", "n2"), 16, 1772359300 * S),
        (("n1",), 8, None),
    ]


def test_a_layout_is_read_from_a_column_or_a_comment() -> None:
    assert read_text('job,hosts,layout\na,"n[1-2]","tp=8, pp=4"\n', "x")[0].degrees == {"tp": 8, "pp": 4}
    assert read_degrees("run 7: TP=2 ep:8, steps=100") == {"tp": 2, "ep": 8}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "holds no jobs"),
        ("job,host,start\na,n1,yesterday\n", "line 2: 'yesterday' is no time"),
        ("job,host,gpus\na,n1,many\n", "line 2: gpus is 'many'"),
        ("job,host,start,end\na,n1,1772359300,1772359200\n", "line 2: the job ends before it starts"),
        ('{"jobs": 3}', "JSON without a list of jobs"),
        ('{"jobs": [', "not JSON"),
        ('job,host\n"a\nb,n1\n', "quoted value|not a table"),
    ],
)
def test_a_bad_table_is_one_clear_line(text: str, said: str) -> None:
    with pytest.raises(InputError, match=said) as told:
        read_text(text, "jobs.csv")
    assert "\n" not in str(told.value)


@given(st.text(max_size=300))
def test_whatever_a_table_holds_is_read_or_refused(text: str) -> None:
    for form in (text, "job,host,start\n" + text, '{"jobs": [' + json.dumps({"job_id": 1, "nodes": text}) + "]}"):
        try:
            jobs = read_text(form, "x")
        except InputError:
            continue
        assert all(job.hosts for job in jobs)


def test_a_scheduler_that_cannot_be_asked_is_one_clear_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(InputError, match=r"--jobs slurm: squeue cannot be run"):
        ask_scheduler("slurm")
