"""Documents of `investigate`, `compare`, `predict` and `place`, printed by the commands themselves."""

from __future__ import annotations

import json
import pickle
from datetime import UTC, datetime, timedelta
from pathlib import Path

import polars as pl
from typer.testing import CliRunner

from prism.cli.main import app
from prism.records import SPANS

START = datetime(2026, 1, 1, tzinfo=UTC)
# What `prism place ask` prints: it needs clusters that answer.
CHOICE = {
    "schema": "prism.placement-choice/1", "job": "run7", "gpus": 8, "best": "east", "second": None,
    "choices": [{"cluster": "east", "start_s": 0.0, "finish_s": 60.0, "cost": 2.0, "fits": True, "meets_deadline": True,
                 "why": "8 GPUs are free"},
                {"cluster": "west", "start_s": None, "finish_s": None, "cost": None, "fits": False,
                 "meets_deadline": False, "why": "it has 4 GPUs"}],
}  # fmt: skip


def print_documents(root: Path, aside: Path) -> dict[str, Path]:
    """What every command prints, kept in `root` under the name of its kind; `aside` is for what they read."""
    faults = [str(make_faults(aside)), "--lives", str(aside / "lives.csv")]
    commands = {
        "investigation": ["investigate", str(make_dumps(aside / "hung")), "--json"],
        "comparison": ["compare", str(make_spans(aside, 10)), str(make_spans(aside, 14)), "--json"],
        "prediction": ["predict", *faults, "--at", "2026-08-01", "--horizon-days", "10", "--json"],
        "advice": ["predict", "advise", *faults, "--at", "2026-08-01", "--horizon-days", "10", "--running-job", "run7=node-0,node-1", "--json"],
        "replay": ["predict", "replay", *faults, "--start", "2026-07-01", "--end", "2026-09-01", "--job-nodes", "8", "--json"],
        "placement": ["place", "simulate", str(make_jobs(aside)), "--clusters", str(aside / "clusters.yaml"), "--json"],
    }  # fmt: skip
    made = {}
    for kind, words in commands.items():
        done = CliRunner().invoke(app, words)
        assert done.exit_code == 0, (words, done.output, done.exception)
        assert json.loads(done.stdout)["schema"] == f"prism.{kind}/1"
        made[kind] = root / f"{kind}.json"
        made[kind].write_text(done.stdout)
    return made


def make_faults(folder: Path) -> Path:
    """Of 240 nodes every sixth fails every four days, the others now and then."""
    nodes = [f"node-{number}" for number in range(240)]
    installed = [START.isoformat()] * 240
    pl.DataFrame({"serial": nodes, "location": nodes, "installed": installed}).write_csv(folder / "lives.csv")
    often = [(f"node-{number}", day + number / 600) for day in range(1, 240, 4) for number in range(0, 240, 6)]
    seldom = [(f"node-{1 + day % 239}", day + 0.5) for day in range(3, 240, 5)]
    rows = [
        {"serial": node, "location": node, "at": (START + timedelta(days=day)).isoformat(), "event": "dbe"}
        for node, day in often + seldom
    ]
    pl.DataFrame(rows).sort("at").write_csv(folder / "events.csv")
    return folder / "events.csv"


def make_dumps(folder: Path) -> Path:
    """Flight Recorder dumps of three ranks, of which one is a collective behind."""
    folder.mkdir()
    for rank in range(3):
        seq = 4 if rank == 1 else 5
        entry = {
            "pg_id": 0, "process_group": ("0", "default_pg"), "collective_seq_id": seq, "op_id": seq, "p2p_seq_id": 0,
            "profiling_name": "nccl:all_reduce", "input_sizes": [[4]], "input_dtypes": ["Float"],
            "time_created_ns": 5_000 + seq, "state": "completed" if rank == 1 else "scheduled",
        }  # fmt: skip
        document = {"version": "2.9", "pg_config": {"0": {"ranks": "[0, 1, 2]"}}, "entries": [entry]}
        (folder / f"_dump_{rank}").write_bytes(pickle.dumps(document))
    return folder


def make_spans(folder: Path, compute_ms: int) -> Path:
    """A timeline of two ranks whose first computes for so long."""
    rows = []
    for step in range(12):
        for rank in range(2):
            start = step * 20_000_000
            busy = (compute_ms if rank == 0 else 10) * 1_000_000
            for kind, begin, end in (("compute", start, start + busy), ("dp", start + busy, start + 5_000_000 + busy)):
                rows.append({"job": "job-1", "rank": rank, "lane": kind, "kind": kind, "name": kind, "step": step,
                             "start_ns": begin, "end_ns": end})  # fmt: skip
    frame = pl.DataFrame([{name: row.get(name) for name in SPANS.required} for row in rows], schema=SPANS.required)
    path = folder / f"spans-{compute_ms}.parquet"
    frame.write_parquet(path)
    return path


def make_jobs(folder: Path) -> Path:
    """Jobs of one cluster, beside one that is idle."""
    rows = [f"{n},2017-10-03 00:{n:02d}:00,600,4,a" for n in range(10)]
    (folder / "jobs.csv").write_text("job,time,seconds,gpus,virtual_cluster\n" + "\n".join(rows) + "\n")
    (folder / "clusters.yaml").write_text("a: 4\nb: 8\n")
    return folder / "jobs.csv"
