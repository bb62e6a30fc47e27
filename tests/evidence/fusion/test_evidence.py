"""Everything in one folder: each source is read, a rank and its host are one suspect, and the page holds together."""

from __future__ import annotations

import json
import pickle
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from prism.cli.main import app
from prism.errors import InputError
from prism.evidence.fusion import Clue, Request, Suspect, investigate
from prism.evidence.fusion.fusion import fuse


def write_dump(folder: Path, rank: int, seq: int, *, ended: bool, at: int = 5_000) -> None:
    entries = [
        {"pg_id": 0, "process_group": ("0", "default_pg"), "collective_seq_id": n, "op_id": n, "p2p_seq_id": 0,
         "profiling_name": "nccl:all_reduce", "input_sizes": [[4]], "input_dtypes": ["Float"],
         "time_created_ns": at + n * 10**9, "state": "completed" if ended or n < seq else "scheduled"}
        for n in range(seq + 1)
    ]  # fmt: skip
    document = {"version": "2.9", "pg_config": {"0": {"ranks": "[0, 1, 2]"}}, "entries": entries}
    (folder / f"_dump_{rank}").write_bytes(pickle.dumps(document))


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """Rank 1 on node-b hangs after its GPU fell off the bus."""
    for rank in range(3):
        write_dump(tmp_path, rank, 4 if rank == 1 else 5, ended=rank == 1)
    lines = [
        f"node-{'abc'[r]}:7:9 [0] NCCL INFO comm 0x5 rank {r} nranks 3 cudaDev 0 busId 4000 - Init COMPLETE"
        for r in range(3)
    ]
    (tmp_path / "nccl.log").write_text("\n".join(lines) + "\n")
    (tmp_path / "kern.log").write_text("Nov 16 02:00:00 node-b kernel: NVRM: Xid (PCI:0000:3b:00): 79, pid=1, lost\n")
    (tmp_path / "counters.csv").write_text(
        "time,host,gpu,metric,value\n1,node-c,0,DCGM_FI_DEV_ECC_DBE_VOL_TOTAL,0\n2,node-c,0,DCGM_FI_DEV_ECC_DBE_VOL_TOTAL,1\n"
    )
    members = [
        {"rank": r, "host": f"node-{'abc'[r]}", "collective_counts": {"AllReduce": 4 if r == 1 else 5}}
        for r in range(3)
    ]
    (tmp_path / "ras.json").write_text(json.dumps({"communicators": [{"hash": "0x1", "size": 3, "ranks": members}]}))
    return tmp_path


def test_all_sources_point_at_one_rank_host_and_gpu(job: Path) -> None:
    found = investigate(job)
    assert {(s.type, s.id) for s in found.fused.culprits} >= {
        ("rank", "1"),
        ("host", "node-b"),
        ("gpu", "node-b 0000:3b:00"),
    }
    assert {c.source for c in found.clues} >= {"flight_recorder", "log", "ras", "counters"}
    assert found.fused.confidence > 0.99
    assert any("node-c" in line for line in found.fused.against)


def test_what_is_older_than_asked_for_is_left_out(job: Path) -> None:
    found = investigate(job, request=Request(since_ns=10**18))
    assert not any(c.source == "counters" for c in found.clues)


def test_a_prometheus_that_is_not_there_is_a_note(job: Path) -> None:
    found = investigate(job, request=Request(prometheus="http://127.0.0.1:9", deadline_s=5))
    assert any("counters are left out" in n for n in found.notes)


def test_clocks_hours_apart_do_not_move_the_time_of_the_hang(tmp_path: Path) -> None:
    for rank in range(3):
        off = -7200 * 10**9 if rank == 2 else 0
        write_dump(tmp_path, rank, 4 if rank == 1 else 5, ended=rank == 1, at=10**18 + off)
    found = investigate(tmp_path)
    assert found.fused.since_ns == 10**18 + 5 * 10**9
    assert any("clocks of 1 ranks are off, such as rank 2 by -7200 s" in n for n in found.notes)


def test_two_jobs_in_one_folder_are_reported(job: Path) -> None:
    (job / "other").mkdir()
    write_dump(job / "other", 1, 3, ended=False)
    with pytest.raises(InputError, match="one folder per job"):
        investigate(job)


def test_two_ranks_of_one_host_are_two_suspects() -> None:
    def clue(source: Any, rank: str) -> Clue:
        return Clue(
            source=source, what="x", text="t", suspects=(Suspect(type="rank", id=rank),), since_ns=None, confidence=0.5
        )

    fused = fuse([clue("kineto", "1"), clue("ras", "2")], {"1": "n", "2": "n"})
    assert fused.confidence == 0.5 and len([s for s in fused.culprits if s.type == "rank"]) == 1


class Tags(HTMLParser):
    """Counts what a page opens and asks for."""

    def __init__(self) -> None:
        super().__init__()
        self.opened: list[str] = []
        self.asked: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.opened.append(tag)
        self.asked += [v or "" for k, v in attrs if k in ("src", "href")]


def test_the_page_stands_alone_and_escapes_what_the_job_wrote(job: Path, tmp_path: Path) -> None:
    (job / "kern.log").write_text("Nov 16 02:00:00 node-b kernel: Xid (PCI:0000:3b:00): 79 <script>alert(1)</script>\n")
    done = CliRunner().invoke(app, ["investigate", str(job), "--output", str(tmp_path / "out"), "--json"])
    assert done.exit_code == 0, done.output
    page = (tmp_path / "out" / "investigation.html").read_text()
    tags = Tags()
    tags.feed(page)
    assert "script" not in tags.opened and tags.asked == [] and "&lt;script&gt;" in page
    assert json.loads((tmp_path / "out" / "investigation.json").read_text()) == json.loads(done.stdout)


def test_profiles_are_told_in_the_document(shared_data: Path, tmp_path: Path) -> None:
    for rank in range(4):
        (tmp_path / f"rank{rank}.json.gz").symlink_to(shared_data / "kineto" / "dlrm" / f"rank{rank}.json.gz")
    document = investigate(tmp_path).to_json()
    assert document["verdict"]["culprits"] == [{"type": "rank", "id": "2"}]
    assert len(document["profile"]["breakdown"]) == 8 and document["profile"]["lateness"][0]["rank"] == 2
