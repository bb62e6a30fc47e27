"""Each public and live table, with its real column names, gives the figures that plain Polars code gives."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import polars as pl
import pytest

from prism.datacenter.characterize import Characterization, CharacterizeOptions, characterize, parse_choices
from prism.errors import BadFileError, BadRowError

SACCT = Path(__file__).parent / "data" / "sacct"
HOUR = 3600.0


@dataclass(frozen=True)
class Expected:
    """What the plain code found."""

    jobs: int
    gpu_jobs: int
    gpu_hours: float
    median_duration_s: float | None
    median_queue_s: float | None


def plain(table: pl.DataFrame) -> Expected:
    """The figures of a table of gpus, used_s (what jobs held their GPUs), duration_s and queue_s."""
    gpu = table.filter(pl.col("gpus") > 0)
    return Expected(
        jobs=table.height,
        gpu_jobs=gpu.height,
        gpu_hours=float((gpu["gpus"] * gpu["used_s"].fill_null(0)).sum()) / HOUR,
        median_duration_s=gpu["duration_s"].median(),  # type: ignore[arg-type]
        median_queue_s=gpu["queue_s"].median(),  # type: ignore[arg-type]
    )


def assert_figures(report: Characterization, expected: Expected) -> None:
    summary = report.study.summary
    assert (summary.jobs, summary.gpu_jobs) == (expected.jobs, expected.gpu_jobs)
    assert summary.gpu_hours == pytest.approx(expected.gpu_hours, rel=1e-9)
    assert summary.duration_s.median == pytest.approx(expected.median_duration_s)
    assert summary.queue_s.median == pytest.approx(expected.median_queue_s)
    if report.study.capacity is not None and report.intake.no_times == 0:
        # What quarter hours hold adds up to the GPU-hours of the jobs.
        capacity = report.study.capacity
        held = capacity.allocated_pct / 100 * capacity.gpus * capacity.span_hours
        assert held == pytest.approx(expected.gpu_hours, rel=1e-6, abs=1e-6)


def by_state(report: Characterization) -> dict[str, int]:
    return dict(report.study.states.group_by("state").agg(pl.col("jobs").sum()).iter_rows())


def noted(report: Characterization, text: str) -> bool:
    return any(text in note for note in report.notes)


def numbers(seed: int, rows: int = 60) -> random.Random:
    return random.Random(seed * 1000 + rows)


def seconds(name: str) -> pl.Expr:
    return pl.col(name).cast(pl.Float64, strict=False).fill_nan(None)


def write(path: Path, header: str, rows: list[tuple[object, ...]]) -> Path:
    path.write_text("\n".join([header, *(",".join(str(cell) for cell in row) for row in rows)]) + "\n")
    return path


def test_alibaba_2023_pods_share_gpus_and_end_while_running(tmp_path: Path) -> None:
    rng = numbers(1)
    header = (
        "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time"
    )
    rows: list[tuple[object, ...]] = []
    for i in range(60):
        gpus = rng.choice([0, 1, 1, 1, 8])
        share = 1000 if gpus > 1 else rng.choice([220, 500, 1000]) if gpus else 0
        born = rng.randrange(9_000_000, 12_000_000)
        phase = rng.choice(["Succeeded", "Running", "Failed", "Pending"])
        bound = "" if phase == "Pending" else born + rng.randrange(0, 50)
        kind = rng.choice(["LS", "BE", "Burstable"])
        gone = born + rng.randrange(60, 900_000)
        rows.append((f"openb-pod-{i:04}", 4000, 15258, gpus, share, "", kind, phase, born, gone, bound))
    path = write(tmp_path / "openb_pod_list_default.csv", header, rows)
    report = characterize(path)
    table = pl.read_csv(path, infer_schema=False)
    start, end = seconds("scheduled_time"), seconds("deletion_time")
    known = table.select(
        gpus=seconds("num_gpu") * seconds("gpu_milli") / 1000,
        duration_s=end - start,
        used_s=end - start,
        queue_s=start - seconds("creation_time"),
    )
    assert report.trace.columns.format == "alibaba-2023"
    assert_figures(report, plain(known))
    assert by_state(report)["running"] == table.filter(pl.col("pod_phase") == "Running").height
    assert set(report.study.types["type"]) == {"LS", "BE", "Burstable"}


def test_alibaba_2025_instances_outlive_the_trace_on_both_sides(tmp_path: Path) -> None:
    rng = numbers(2)
    header = (
        "instance_sn,role,app_name,cpu_request,cpu_limit,gpu_request,gpu_limit,rdma_request,rdma_limit,memory_request,"
        "memory_limit,disk_request,disk_limit,max_instance_per_node,creation_time,scheduled_time,deletion_time"
    )
    rows: list[tuple[object, ...]] = []
    for i in range(60):
        role = rng.choice(["CN", "HN"])
        gpus = 1 if role == "HN" else 0
        born = rng.choice(["", float(rng.randrange(1000, 2_000_000))])
        gone = rng.choice(["", float(rng.randrange(2_000_001, 3_000_000))])
        rows.append((f"instance_{i}", role, f"app_{i % 7}", 12, 12, gpus, gpus, 25, 25, 120.0, 120.0, 680.0, 800.0, 8,
                     born, born, gone))  # fmt: skip
    path = write(tmp_path / "disaggregated_DLRM_trace.csv", header, rows)
    report = characterize(path)
    table = pl.read_csv(path, infer_schema=False)
    times = ("creation_time", "scheduled_time", "deletion_time")
    last = table.select(pl.max_horizontal(*(seconds(name).max() for name in times))).item()
    start, end = seconds("scheduled_time"), seconds("deletion_time")
    known = table.select(
        gpus=seconds("gpu_request"),
        used_s=end.fill_null(last) - start.fill_null(0),
        duration_s=end - start.fill_null(0),
        queue_s=start - seconds("creation_time"),
    )
    assert report.trace.columns.format == "alibaba-2025"
    assert_figures(report, plain(known))
    assert noted(report, "gives no states")
    assert by_state(report)["running"] == table["deletion_time"].null_count() + (table["deletion_time"] == "").sum()


def test_alibaba_2026_spot_jobs_have_gpus_per_worker(tmp_path: Path) -> None:
    header = "job_name,organization,gpu_model,cpu_request,gpu_request,worker_num,submit_time,duration,job_type"
    rng = numbers(3)
    rows = [
        (i, i % 5, "A10", 20, rng.choice([1, 2, 8]), rng.choice([1, 16, 94]), rng.randrange(9_000_000), rng.randrange(60, 900_000),
         rng.choice(["HP", "Spot"]))
        for i in range(40)
    ]  # fmt: skip
    path = write(tmp_path / "job_info_df.csv", header, rows)
    report = characterize(path)
    table = pl.read_csv(path, infer_schema=False)
    gpus = seconds("gpu_request") * seconds("worker_num")
    used = seconds("duration")
    known = table.select(gpus=gpus, duration_s=used, used_s=used, queue_s=pl.lit(None, pl.Float64))
    assert report.trace.columns.format == "alibaba-2026-spot"
    assert report.study.summary.gpu_hours == pytest.approx(plain(known).gpu_hours)
    assert report.study.summary.queue_s.count == 0
    assert report.study.concentration.users == 5


def test_pai_tables_in_a_folder_are_joined(tmp_path: Path) -> None:
    rng = numbers(4)
    tasks: list[tuple[object, ...]] = []
    jobs: list[tuple[object, ...]] = []
    for i in range(50):
        born = rng.randrange(1_000_000, 5_000_000)
        end = float(born + rng.randrange(500, 90_000))
        state = rng.choice(["Terminated", "Failed", "Running"])
        jobs.append((f"job{i}", f"inst{i}", f"u{i % 9}", state, float(born), end if state != "Running" else ""))
        for role in ["worker", "ps"][: rng.choice([1, 2])]:
            start = float(born + rng.randrange(0, 400))
            plan = rng.choice([25.0, 50.0, 100.0, ""]) if role == "worker" else ""
            tasks.append((f"job{i}", role, float(rng.choice([1, 2, 8])), state, start, end, 600.0, 29.3, plan, "T4"))
    for name, rows in (("pai_task_table.csv", tasks), ("pai_job_table.csv", jobs)):
        (tmp_path / name).write_text("\n".join(",".join(str(cell) for cell in row) for row in rows) + "\n")
    report = characterize(tmp_path)
    task = pl.read_csv(tmp_path / "pai_task_table.csv", has_header=False, infer_schema=False)
    share = (seconds("column_8").fill_null(0) / 100 * seconds("column_2")).sum()
    by_job = task.group_by("column_0").agg(gpus=share, start=seconds("column_4").min())
    job = pl.read_csv(tmp_path / "pai_job_table.csv", has_header=False, infer_schema=False)
    table = job.join(by_job, on="column_0")
    last = max(seconds_max(table, "column_5"), seconds_max(table, "column_4"), table["start"].max())  # type: ignore[type-var]
    end = seconds("column_5")
    known = table.select(
        gpus=pl.col("gpus"),
        duration_s=end - pl.col("start"),
        used_s=end.fill_null(last) - pl.col("start"),
        queue_s=pl.col("start") - seconds("column_4"),
    )
    assert report.trace.columns.format == "pai-tables"
    assert_figures(report, plain(known))
    with pytest.raises(BadFileError, match=r"PAI's job table, which has no GPU counts; give the folder"):
        characterize(tmp_path / "pai_job_table.csv")


def seconds_max(table: pl.DataFrame, name: str) -> float:
    return float(table.select(seconds(name).max()).item())


@pytest.mark.parametrize(
    ("name", "header", "unit_s"),
    [
        ("muri", "job_id,num_gpu,submit_time,iterations,model_name,batch_size,duration,interval,iteration_time,resource_time_0,resource_time_1,resource_time_2,priority", 0.001),
        ("tiresias", "job_id,num_gpu,submit_time,iterations,model_name,duration,interval", 1),
        ("elasticflow", "job_id,submit_time,iteration,model_name,ddl,batch_size,num_gpu,duration", 1),
        ("chronus", "job_id,user,num_gpu,submit_time,iterations,model_name,duration,interval,expect_time_list,expect_value_list,best_effort,job_type", 1),
    ],
)  # fmt: skip
def test_tables_of_scheduling_papers_have_no_state_and_their_own_units(
    tmp_path: Path, name: str, header: str, unit_s: float
) -> None:
    rng = numbers(5)
    rows = []
    for i in range(50):
        length = rng.randrange(20, 400_000)
        cells = {
            "job_id": i, "user": f"vc_{i % 4}", "num_gpu": rng.choice([1, 2, 4, 8, 32]), "model_name": rng.choice(["bert", "vgg16"]),
            "submit_time": int(i * 1237 / unit_s), "duration": int(length / unit_s), "job_type": "strict",
        }  # fmt: skip
        rows.append(tuple(cells.get(column, 7) for column in header.split(",")))
    path = write(tmp_path / "trace.csv", header, rows)
    report = characterize(path)
    used = seconds("duration") * unit_s
    table = pl.read_csv(path, infer_schema=False).select(
        gpus=seconds("num_gpu"), duration_s=used, used_s=used, queue_s=pl.lit(None, pl.Float64)
    )
    expected = plain(table)
    assert report.trace.columns.format == name
    assert report.study.summary.gpu_hours == pytest.approx(expected.gpu_hours)
    assert report.study.summary.duration_s.median == pytest.approx(expected.median_duration_s)
    assert by_state(report) == {"unknown": 50}
    assert set(report.study.types["type"]) == {"bert", "vgg16"}
    assert noted(report, "says in what unit its numbers are") == (name != "muri")


def test_philly_as_pollux_has_it_and_as_it_lies_beside_the_repository(tmp_path: Path, shared_data: Path) -> None:
    jobs = pl.read_parquet(shared_data / "philly" / "jobs.parquet").head(5000)
    path = tmp_path / "philly.csv"
    jobs.select(
        timestamp=pl.col("time").dt.strftime("%Y-%m-%d %H:%M:%S"),
        duration=pl.col("seconds").cast(pl.Float64),
        num_gpus="gpus",
        gpu_time=pl.col("seconds").cast(pl.Float64) * pl.col("gpus"),
        cluster="virtual_cluster",
    ).write_csv(path)
    used = jobs["seconds"].cast(pl.Float64)
    known = jobs.select(
        gpus=pl.col("gpus").cast(pl.Float64), used_s=used, duration_s=used, queue_s=pl.lit(None, pl.Float64)
    )
    expected = plain(known)
    report = characterize(path)
    assert report.trace.columns.format == "philly-pollux"
    mapped = characterize(
        _write_parquet(jobs, tmp_path), CharacterizeOptions(choices=parse_choices(["submit=time,duration=seconds:s"]))
    )
    for found in (report, mapped):
        assert found.study.summary.gpu_hours == pytest.approx(expected.gpu_hours)
        assert found.study.summary.duration_s.median == pytest.approx(expected.median_duration_s)
        assert found.study.summary.gpu_jobs == expected.gpu_jobs
    assert set(report.intake.clusters) == set(jobs["virtual_cluster"])
    without = jobs["seconds"].null_count()
    assert noted(report, f"{without:,} jobs give no duration") == (without > 0)
    assert not noted(report, "ended without ever starting")


def _write_parquet(jobs: pl.DataFrame, folder: Path) -> Path:
    jobs.write_parquet(folder / "jobs.parquet")
    return folder / "jobs.parquet"


def test_swf_counts_processors_and_leaves_stretches_of_jobs_out(tmp_path: Path) -> None:
    rng = numbers(6)
    lines = ["; Version: 2.2", "; Computer: made up", "; UnixStartTime: 1609459200", "; MaxProcs: 512"]
    rows = []
    for i in range(1, 61):
        status = rng.choice([0, 1, 1, 5, 3, -1])
        run, wait = rng.choice([-1, rng.randrange(10, 90_000)]), rng.randrange(0, 9000)
        procs, asked = rng.choice([-1, 8, 64]), rng.choice([8, 64])
        rows.append([i, i * 500, wait, run, procs, -1, -1, asked, 3600, -1, status, i % 5, 1, 1, 1, 1, -1, -1])
    lines += [" ".join(str(cell) for cell in row) for row in rows]
    path = tmp_path / "log.swf"
    path.write_text("\n".join(lines) + "\n")
    report = characterize(path)
    table = pl.DataFrame(rows, schema=[f"c{i}" for i in range(1, 19)], orient="row").filter(
        ~pl.col("c11").is_in([2, 3, 4])
    )
    run = pl.when(pl.col("c4") >= 0).then(pl.col("c4")).cast(pl.Float64)
    known = table.select(
        gpus=pl.when(pl.col("c5") >= 0).then(pl.col("c5")).otherwise(pl.col("c8")).cast(pl.Float64),
        used_s=run,
        duration_s=run,
        queue_s=pl.col("c3").cast(pl.Float64),
    )
    assert report.trace.kind == "swf"
    assert_figures(report, plain(known))
    assert by_state(report)["cancelled"] == table.filter(pl.col("c11") == 5).height
    assert noted(report, "stretches of jobs")
    path.write_text("; Version: 2.2\n1 2 3\n")
    with pytest.raises(BadRowError, match=r"log\.swf line 2: has 3 numbers, expected SWF's 18"):
        characterize(path)


def sacct_truth() -> tuple[Expected, dict[str, int]]:
    """What plain code reads from the export with a header."""
    table = pl.read_csv(SACCT / "parsable2.txt", separator="|", infer_schema=False)
    table = table.filter(~pl.col("JobID").str.contains(".", literal=True))
    tres = pl.coalesce(pl.when(pl.col("AllocTRES") != "").then(pl.col("AllocTRES")), "ReqTRES")
    mig = tres.str.extract(r"gres/gpu:1g\.5gb=(\d+)").cast(pl.Float64).fill_null(0)
    gpus = tres.str.extract(r"gres/gpu=(\d+)").cast(pl.Float64).fill_null(0) - mig + mig / 7
    times = {
        name: pl.col(name).str.to_datetime("%Y-%m-%dT%H:%M:%S", strict=False) for name in ("Submit", "Start", "End")
    }
    ended = ~pl.col("State").is_in(["RUNNING", "PENDING"])
    known = table.select(
        gpus=gpus,
        used_s=seconds("ElapsedRaw"),
        duration_s=pl.when(ended).then(seconds("ElapsedRaw")),
        queue_s=(times["Start"] - times["Submit"]).dt.total_seconds().cast(pl.Float64),
    )
    states = table.group_by(pl.col("State").str.split(" ").list.first().str.to_lowercase()).len()
    return plain(known), dict(states.iter_rows())


@pytest.mark.parametrize("name", ["parsable2.txt", "parsable.txt", "fixed.txt", "sacct.json", "headerless.txt"])
def test_every_form_of_sacct_gives_the_same_figures(name: str) -> None:
    columns = [
        "JobID",
        "User",
        "State",
        "AllocTRES",
        "ReqTRES",
        "Submit",
        "Start",
        "End",
        "ElapsedRaw",
        "NodeList",
        "Cluster",
    ]
    options = CharacterizeOptions(columns=tuple(columns) if name == "headerless.txt" else ())
    expected, states = sacct_truth()
    report = characterize(SACCT / name, options)
    assert report.trace.columns.format == "slurm"
    assert by_state(report) == states
    # Each export was a moment later, and the one running job had run on.
    assert report.study.summary.gpu_hours == pytest.approx(expected.gpu_hours, abs=2 * 5 / HOUR)
    assert (report.study.summary.jobs, report.study.summary.gpu_jobs) == (expected.jobs, expected.gpu_jobs)
    assert report.study.summary.duration_s.median == expected.median_duration_s
    assert noted(report, "MIG devices, each counted as its share")
    if name == "parsable2.txt":
        assert_figures(report, expected)


def test_sacct_without_a_header_is_known_by_what_its_columns_hold() -> None:
    report = characterize(SACCT / "headerless_plain.txt")
    expected, states = sacct_truth()
    assert by_state(report) == states
    assert report.study.summary.gpu_hours == pytest.approx(expected.gpu_hours, abs=2 * 5 / HOUR)
    assert report.study.summary.queue_s.max == 24
    with pytest.raises(BadFileError, match="cannot be told apart for certain; name them in order with --columns"):
        characterize(SACCT / "headerless.txt")  # what was asked and what was given look alike
    with pytest.raises(BadFileError, match="has 11 columns, but --columns names 2"):
        characterize(SACCT / "headerless.txt", CharacterizeOptions(columns=("JobID", "State")))


def test_sacct_that_leaves_out_or_cuts_off_what_is_needed_is_refused_with_the_right_export() -> None:
    with pytest.raises(BadFileError, match="tell neither GPUs nor times .*--format=JobID,User,State,AllocTRES"):
        characterize(SACCT / "default.txt")
    with pytest.raises(BadRowError, match=r"line 3: 'AllocTRES' is 'billing=1\+', cut to the column's width"):
        characterize(SACCT / "cut.txt")


def test_sacct_json_of_later_versions_has_states_in_lists_and_numbers_in_objects(tmp_path: Path) -> None:
    document = json.loads((SACCT / "sacct.json").read_text())
    for job in document["jobs"]:
        job["state"]["current"] = [job["state"]["current"]]
        job["time"]["elapsed"] = {"set": True, "infinite": False, "number": job["time"]["elapsed"]}
    path = tmp_path / "new.json"
    path.write_text(json.dumps(document))
    old, new = characterize(SACCT / "sacct.json"), characterize(path)
    assert new.study.summary == old.study.summary
    assert by_state(new) == by_state(old)


Pod = dict[str, object]


def make_pod(
    name: str, resources: dict[str, str], phase: str, moments: tuple[str, str | None, str | None], **more: object
) -> Pod:
    born, bound, ended = moments
    conditions = [{"type": "PodScheduled", "status": "True", "lastTransitionTime": bound}] if bound else []
    terminated = {"state": {"terminated": {"exitCode": 0 if phase == "Succeeded" else 1, "finishedAt": ended, **more}}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "train", "uid": f"uid-{name}", "creationTimestamp": born},
        "spec": {"nodeName": "n1", "containers": [{"name": "main", "resources": {"limits": resources}}]},
        "status": {"phase": phase, "conditions": conditions, "containerStatuses": [terminated] if ended else []},
    }


PODS = [
    make_pod("a", {"nvidia.com/gpu": "8"}, "Succeeded", ("2024-05-01T10:00:00Z", "2024-05-01T10:00:30Z", "2024-05-01T12:00:30Z")),
    make_pod("b", {"nvidia.com/gpu": "4"}, "Failed", ("2024-05-01T10:00:00Z", "2024-05-01T10:01:00Z", "2024-05-01T10:31:00Z"), reason="OOMKilled"),
    make_pod("c", {"nvidia.com/mig-1g.10gb": "2", "cpu": "4"}, "Running", ("2024-05-01T11:00:00Z", "2024-05-01T11:00:00Z", None)),
    make_pod("d", {"nvidia.com/gpu": "2"}, "Pending", ("2024-05-01T11:00:00Z", None, None)),
    make_pod("e", {"cpu": "1"}, "Succeeded", ("2024-05-01T11:00:00Z", "2024-05-01T11:00:00Z", "2024-05-01T11:30:00Z")),
]  # fmt: skip
POD_HOURS = 8 * 2 + 4 * 0.5 + 2 / 7 * 2  # c counts up to 13:00


@pytest.mark.parametrize("form", ["list", "lines", "watch"])
def test_pods_are_read_from_a_list_from_lines_and_from_a_watch(tmp_path: Path, form: str) -> None:
    path = tmp_path / "pods.json"
    early = {**PODS[0], "status": {"phase": "Pending"}}
    events = [{"type": "ADDED", "object": early}, *({"type": "MODIFIED", "object": pod} for pod in PODS)]
    text = {
        "list": json.dumps({"apiVersion": "v1", "kind": "List", "items": PODS}),
        "lines": "\n".join(json.dumps(pod) for pod in PODS),
        "watch": "\n".join(json.dumps(event) for event in events) + '\n{"type": "MODIF',
    }[form]
    path.write_text(text)
    report = characterize(path, CharacterizeOptions(until="2024-05-01T13:00:00Z"))
    assert by_state(report) == {"completed": 2, "out_of_memory": 1, "running": 1, "pending": 1}
    assert report.study.summary.gpu_hours == pytest.approx(POD_HOURS)
    assert report.study.sizes["gpus"].to_list() == pytest.approx([2 / 7, 2, 4, 8])
    assert report.study.summary.queue_s.max == 60
    assert report.study.node_failures.rows() == [("n1", 1, 4 * 1800)]


def test_jobs_stand_for_their_pods_and_kueue_workloads_for_both(tmp_path: Path) -> None:
    template = {"spec": {"containers": [{"name": "w", "resources": {"requests": {"nvidia.com/gpu": 8}}}]}}
    job = {
        "apiVersion": "batch/v1", "kind": "Job",
        "metadata": {"name": "train", "namespace": "x", "uid": "j", "creationTimestamp": "2024-05-01T09:00:00Z"},
        "spec": {"parallelism": 4, "template": template},
        "status": {"startTime": "2024-05-01T09:30:00Z", "failed": 1, "conditions": [
            {"type": "Failed", "status": "True", "reason": "BackoffLimitExceeded", "lastTransitionTime": "2024-05-01T10:30:00Z"}]},
    }  # fmt: skip
    own = {**PODS[0], "metadata": {**PODS[0]["metadata"], "ownerReferences": [{"kind": "Job", "uid": "j"}]}}  # type: ignore[dict-item]
    path = tmp_path / "jobs.json"
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": [job, own, PODS[1]]}))
    report = characterize(path)
    assert report.study.summary.gpu_hours == pytest.approx(4 * 8 * 1 + 4 * 0.5)
    assert by_state(report) == {"failed": 1, "out_of_memory": 1}
    assert report.study.summary.queue_s.max == 1800
    workload = {
        "apiVersion": "kueue.x-k8s.io/v1beta1", "kind": "Workload",
        "metadata": {"name": "job-train", "namespace": "x", "uid": "w", "creationTimestamp": "2024-05-01T09:00:00Z",
                     "labels": {"kueue.x-k8s.io/queue-name": "team-a"}},
        "spec": {"queueName": "team-a", "podSets": [{"name": "main", "count": 4, "template": template}]},
        "status": {
            "admission": {"clusterQueue": "cq", "podSetAssignments": [
                {"name": "main", "count": 4, "resourceUsage": {"cpu": "8", "nvidia.com/gpu": "32"}}]},
            "conditions": [
                {"type": "QuotaReserved", "status": "True", "lastTransitionTime": "2024-05-01T09:10:00Z"},
                {"type": "Admitted", "status": "True", "lastTransitionTime": "2024-05-01T09:20:00Z"},
                {"type": "Finished", "status": "True", "reason": "Succeeded", "message": "Job finished successfully",
                 "lastTransitionTime": "2024-05-01T11:20:00Z"}]},
    }  # fmt: skip
    waiting = {**workload, "metadata": {**workload["metadata"], "uid": "w2", "name": "later"}, "status": {}}  # type: ignore[dict-item]
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": [workload, waiting, job]}))
    report = characterize(path)
    assert by_state(report) == {"completed": 1, "pending": 1}
    assert report.study.summary.gpu_hours == pytest.approx(32 * 2)
    assert report.study.summary.queue_s.max == 1200
    assert report.study.users["user"].to_list() == ["team-a"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"apiVersion": "v1", "kind": "List", "items": []}', r"no pods, jobs or workloads \(it holds none\)"),
        ('{"apiVersion": "v1", "kind": "NodeList", "items": [{"metadata": {}}]}', "it holds 'Node'"),
        ('{"apiVersion": "v1", "kind": "A\\nB", "metadata": {}}', r"it holds 'A\\nB'"),
        ('{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": 1}}', "without the fields of a pod"),
        ('{"jobs": [{"job_id": 1}]}', "no column for 'gpus'"),
        ('{"jobs": [{"time": 1, "tres": 2}]}', "a job without the fields that sacct --json gives"),
        ('[{"a": {"b": 1}}]', "no column for 'gpus'"),
    ],
)
def test_json_that_holds_no_jobs_is_said_to(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(BadFileError, match=message):
        characterize(path)


def test_flat_records_in_json_are_a_table(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text(json.dumps([{"gpus": 8, "state": "done", "duration": 3600, "tags": ["x"]}] * 3))
    assert characterize(path).study.summary.gpu_hours == 24


Write = Callable[..., Path]


def test_helios_and_acme_as_others_convert_them(write_trace: Write) -> None:
    # Kalos with renamed columns and Unix times, as simulators want it.
    rows = [(i, 8, 1_684_000_000 + i, 1_684_000_100 + i, 1_684_003_700 + i) for i in range(5)]
    path = write_trace(rows, columns=("id", "cards", "arrival", "begin", "finish"))
    with pytest.raises(BadFileError, match=r"no column for 'gpus'.*say which it is with --map gpus=COLUMN"):
        characterize(path)
    choices = parse_choices(["gpus=cards,submit=arrival", "start=begin,end=finish"])
    report = characterize(path, CharacterizeOptions(choices=choices))
    assert report.study.summary.gpu_hours == pytest.approx(5 * 8)
    assert report.study.summary.queue_s.median == 100
    assert by_state(report) == {"unknown": 5}
