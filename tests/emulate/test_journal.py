"""What an emulation that was killed changed is undone by the next one, but not what somebody else left there."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from prism.emulate.journal import Journals


def leave_journal(folder: Path, overwritten: Path) -> Path:
    """A journal as a killed emulation leaves it: a file of the user is kept in it, and another stands in its place."""
    entry = folder / ".prism-emulate" / "999999999" / "1" / "entry"
    entry.mkdir(parents=True)
    (entry / "kept").write_text("the user's")
    overwritten.write_text("emulated")
    note = {"path": str(overwritten), "moved": "", "inode": (entry / "kept").stat().st_ino, "at": 1, "early": False}
    (entry / "note.json").write_text(json.dumps({**note, "calls": 3}))
    return entry


def test_files_of_an_emulation_that_was_killed_come_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    leave_journal(tmp_path, tmp_path / "best.pt")
    Journals()
    assert (tmp_path / "best.pt").read_text() == "the user's"
    assert (tmp_path / "emulated-files" / "best.pt").read_text() == "emulated"


def test_a_journal_that_another_emulation_removes_meanwhile_stops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    left = leave_journal(tmp_path, tmp_path / "best.pt").parent.parent
    monkeypatch.setattr(Path, "iterdir", lambda _: iter([left.with_name("999999998"), left]))
    said: list[str] = []
    Journals().describe(said.append)
    assert (tmp_path / "best.pt").read_text() == "the user's"
    assert not any("could not be brought back" in line for line in said)


def test_a_journal_of_another_user_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    entry = leave_journal(tmp_path, tmp_path / "best.pt")
    other = os.getuid() + 1
    monkeypatch.setattr(os, "getuid", lambda: other)
    Journals()
    assert (tmp_path / "best.pt").read_text() == "emulated"
    assert (entry / "kept").exists()


def test_a_damaged_journal_is_named_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    entry = leave_journal(tmp_path, tmp_path / "best.pt")
    (entry / "note.json").write_text('{"path": 3}')
    notes: list[str] = []
    Journals().describe(notes.append)
    assert len(notes) == 1 and "999999999: what a killed emulation kept" in notes[0]
    assert (entry / "kept").read_text() == "the user's"
