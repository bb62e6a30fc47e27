"""`prism investigate`: sources that agree add up, and the command keeps its contract."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from prism.cli.main import app
from prism.errors import InputError
from prism.evidence.fusion import Clue, Suspect, investigate
from prism.evidence.fusion.fusion import fuse


def write_dump(folder: Path, rank: int, seq: int, *, ended: bool) -> None:
    entry = {
        "pg_id": 0, "process_group": ("0", "default_pg"), "collective_seq_id": seq, "op_id": seq, "p2p_seq_id": 0,
        "profiling_name": "nccl:all_reduce", "input_sizes": [[4]], "input_dtypes": ["Float"], "time_created_ns": 5_000 + seq,
        "state": "completed" if ended else "scheduled",
    }  # fmt: skip
    document = {"version": "2.9", "pg_config": {"0": {"ranks": "[0, 1, 2]"}}, "entries": [entry]}
    (folder / f"_dump_{rank}").write_bytes(pickle.dumps(document))


@pytest.fixture
def hung(tmp_path: Path) -> Path:
    for rank in range(3):
        write_dump(tmp_path, rank, 4 if rank == 1 else 5, ended=rank == 1)
    return tmp_path


def clue(source: Any, confidence: float, *names: str, what: str = "x") -> Clue:
    suspects = tuple(Suspect(type="host" if n.startswith("n") else "rank", id=n) for n in names)
    return Clue(source=source, what=what, text="t", suspects=suspects, since_ns=None, confidence=confidence)


def test_the_command_prints_the_contract(hung: Path) -> None:
    done = CliRunner().invoke(app, ["investigate", str(hung), "--json"])
    document = json.loads(done.stdout)
    assert done.exit_code == 0 and document["schema"] == "prism.investigation/1"
    assert document["verdict"]["culprits"] == [{"type": "rank", "id": "1"}]
    assert set(document["verdict"]) >= {"what", "culprits", "since_ns", "confidence", "alternatives"}
    assert document["evidence"][0]["source"] == "flight_recorder"


def test_one_bad_dump_among_many_is_a_note(hung: Path) -> None:
    (hung / "_dump_2").write_bytes(b"\x80\x04entries torn")
    found = investigate(hung)
    assert [s.id for s in found.fused.culprits] == ["1"]
    assert any("_dump_2" in line for line in found.notes)


def test_an_empty_folder_says_what_it_looked_for(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds nothing that can be read"):
        investigate(tmp_path)


def test_sources_that_agree_make_it_surer_and_hosts_are_added() -> None:
    fused = fuse([clue("flight_recorder", 0.8, "7"), clue("log", 0.6, "7", "node-3", what="ECCError")])
    assert fused.confidence == pytest.approx(48 / (48 + 7 / 8))  # 4 to 1 times 1.5 to 1 times 8 ranks
    assert {s.id for s in fused.culprits} == {"7", "node-3"} and "ECCError" in fused.what


def test_a_source_that_disagrees_becomes_an_alternative() -> None:
    fused = fuse([clue("flight_recorder", 0.9, "7"), clue("log", 0.5, "3")])
    assert [s.id for s in fused.culprits] == ["7"] and [s.id for s in fused.alternatives] == ["3"]


def test_a_clue_that_names_nobody_never_beats_one_that_does() -> None:
    fused = fuse([clue("log", 0.97, what="NCCLTimeoutError"), clue("flight_recorder", 0.6, "7")])
    assert [s.id for s in fused.culprits] == ["7"]


def test_logs_that_tell_of_no_trouble_are_read_and_accuse_nobody(tmp_path: Path) -> None:
    (tmp_path / "rank0.log").write_text("".join(f"step {i} loss 2.0\n" for i in range(1, 16)))
    found = investigate(tmp_path)
    assert found.fused.what == "nothing wrong was found" and not found.fused.culprits and found.notes
