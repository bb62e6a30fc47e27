"""A file is what it holds, whatever it is called."""

from __future__ import annotations

import gzip
import json
import pickle
from pathlib import Path

import pytest

from prism.evidence.fusion import investigate
from prism.evidence.traces.files import find_kind, list_outer_keys

PROFILE = json.dumps({"schemaVersion": 1, "distributedInfo": {"pg_config": [], "entries": []}, "traceEvents": []})
DUMP = json.dumps({"version": "2.9", "pg_status": {}, "entries": []})


@pytest.mark.parametrize("name", ["rank0.json", "0.json", "dump_0", "host_1.pt.trace.json", "node-7.176.json"])
def test_a_profile_is_a_profile_and_a_dump_a_dump_under_every_name(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    for text, kind in ((PROFILE, "traces"), (DUMP, "dumps")):
        path.write_text(text)
        assert find_kind(path) == kind
    path.write_bytes(gzip.compress(PROFILE.encode()))
    assert find_kind(path) == "traces"
    path.write_bytes(pickle.dumps({"entries": []}))
    assert find_kind(path) == "dumps"


def test_events_without_a_document_around_them_are_a_trace(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text('[{"ph": "X", "ts": 1, "dur": 2, "name": "a"}]')
    assert find_kind(tmp_path / "x.json") == "traces"


def test_stacks_are_no_log_and_words_in_them_no_error(tmp_path: Path) -> None:
    path = tmp_path / "attempt.txt"
    path.write_text("== process 7 rank 0: python train.py --on-error oom_killed\nstate: S (sleeping)\n")
    assert find_kind(path) == "stacks"


def test_only_outermost_keys_are_told() -> None:
    assert list_outer_keys(b'{"a": {"b": [1, {"c": "}"}]}, "d" : "e", "f') == {b"a", b"d"}


def test_what_no_reader_knows_is_listed(tmp_path: Path) -> None:
    (tmp_path / "rank_0.log").write_text("step 1\n")
    (tmp_path / "model.bin").write_bytes(b"\x00\x01")
    (tmp_path / "config.json").write_text('{"layers": 2}')
    notes = "\n".join(investigate(tmp_path).notes)
    assert "2 files were left out" in notes and "config.json, model.bin" in notes
