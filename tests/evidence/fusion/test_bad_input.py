"""What a folder may hold that is broken, hostile, slow or of somebody else: a note or one line, never a wrong name."""

from __future__ import annotations

import os
import pickle
import resource
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from test_evidence import write_dump

from prism.errors import InputError
from prism.evidence.fusion import Request, investigate

XID = "Nov 16 02:00:00 node-z kernel: NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus.\n"


@pytest.fixture
def hung(tmp_path: Path) -> Path:
    """Rank 1 of three did not come to collective 5."""
    for rank in range(3):
        write_dump(tmp_path, rank, 4 if rank == 1 else 5, ended=rank == 1)
    return tmp_path


def named(folder: Path) -> set[tuple[str, str]]:
    return {(s.type, s.id) for s in investigate(folder).fused.culprits}


def test_a_dump_that_was_cut_off_is_a_note_and_counts_as_missing(hung: Path) -> None:
    whole = (hung / "_dump_2").read_bytes()
    (hung / "_dump_2").write_bytes(whole[: len(whole) // 2])
    found = investigate(hung)
    assert ("rank", "1") in {(s.type, s.id) for s in found.fused.culprits}
    assert any("_dump_2" in n for n in found.notes) and any("left no dump: 2" in n for n in found.notes)


def test_a_dump_that_would_run_code_is_refused_and_the_rest_is_read(hung: Path) -> None:
    mark = hung / "ran"

    class Hostile:
        def __reduce__(self) -> Any:
            return os.system, (f"touch {mark}",)

    (hung / "_dump_2").write_bytes(pickle.dumps({"entries": [Hostile()], "version": "2.9"}))
    assert named(hung) == {("rank", "1")} and not mark.exists()


def test_an_xid_of_a_host_whose_ranks_are_unknown_is_reported_and_outranks_nobody(hung: Path) -> None:
    (hung / "kern.log").write_text(XID)
    found = investigate(hung)
    assert {(s.type, s.id) for s in found.fused.culprits} == {("rank", "1")}
    assert any("which ranks node-z runs is unknown" in line for line in found.fused.against)


def test_an_error_that_ends_processes_does_not_explain_a_job_that_is_slow(tmp_path: Path) -> None:
    for rank in range(3):
        write_dump(tmp_path, rank, 20, ended=True, at=10**18 + (60_000_000 if rank == 2 else rank))
    lines = [
        f"node-{'xzy'[r]}:7:9 [0] NCCL INFO comm 0x5 rank {r} nranks 3 cudaDev 0 busId 4000 - Init COMPLETE"
        for r in range(3)
    ]
    (tmp_path / "nccl.log").write_text("\n".join(lines) + "\n")
    (tmp_path / "kern.log").write_text(XID)
    assert named(tmp_path) == {("rank", "2"), ("host", "node-y")}


def test_an_xid_alone_is_still_the_verdict(tmp_path: Path) -> None:
    (tmp_path / "kern.log").write_text(XID)
    assert ("host", "node-z") in named(tmp_path)


def test_an_xid_of_the_host_of_the_rank_makes_it_surer(hung: Path) -> None:
    lines = [
        f"node-{'xzy'[r]}:7:9 [0] NCCL INFO comm 0x5 rank {r} nranks 3 cudaDev 0 busId 4000 - Init COMPLETE"
        for r in range(3)
    ]
    (hung / "nccl.log").write_text("\n".join(lines) + "\n")
    before = investigate(hung).fused.confidence
    (hung / "kern.log").write_text(XID)
    assert named(hung) >= {("rank", "1"), ("host", "node-z")} and investigate(hung).fused.confidence > before


def test_a_trace_whose_end_is_missing_is_read_as_far_as_it_goes_or_noted(hung: Path) -> None:
    head = '{"schemaVersion": 1, "distributedInfo": {"rank": 0}, "traceEvents": [\n'
    event = '{"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": 1.0, "dur": 5.0, "args": {}},\n'
    (hung / "rank0.json").write_text(head + event * 3 + '{"ph": "X", "cat": "ker')
    assert ("rank", "1") in named(hung)


def test_a_prometheus_that_never_answers_is_given_up(hung: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"http://127.0.0.1:{server.getsockname()[1]}"
        found = investigate(hung, request=Request(prometheus=address, deadline_s=0.5))
    assert any("counters are left out" in n for n in found.notes) and found.fused.culprits


def test_two_jobs_in_one_folder_are_one_line(hung: Path) -> None:
    (hung / "other").mkdir()
    write_dump(hung / "other", 0, 3, ended=False)
    with pytest.raises(InputError, match="one folder per job"):
        investigate(hung)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_8192_dumps_are_read_in_two_gigabytes(tmp_path: Path) -> None:
    made = [sys.executable, "proving/benchmarks/investigate_dumps.py", str(tmp_path / "dumps"), "--ranks", "8192"]
    done = subprocess.run(made, capture_output=True, text=True, cwd=Path(__file__).parents[3])
    assert done.returncode == 0, done.stderr
    assert "rank 4321" in done.stdout
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss < 2 << 20  # KiB
