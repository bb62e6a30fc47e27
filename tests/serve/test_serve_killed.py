"""A run whose rank was really killed is on every page, with the words that all commands use for it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from prism.serve.folder import Folder
from prism.serve.history.entries import list_entries
from prism.serve.library import Library
from prism.serve.sources.supervised import Supervised
from prism.serve.views.failures import describe_failures
from prism.serve.views.runs import describe_run

SAYS = "killed by SIGKILL: the kernel's memory killer or a person"
PROGRAM = """
import os, pathlib, signal
for step in range(1, 6):
    print(f"step {step}/5 loss 1.0", flush=True)
    if step == 3 and not pathlib.Path("killed").exists():
        pathlib.Path("killed").touch()
        os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_run_whose_rank_was_killed_is_on_every_page(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    command = [sys.executable, "-m", "prism", "supervise", "--run-dir", "run", "--", sys.executable, "train.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0 and (tmp_path / "killed").exists(), done.stderr
    snapshot = Library(Folder(tmp_path)).refresh()
    (run,) = snapshot.all_of(Supervised)
    explained = [decision for decision in run.decisions if decision.event == "Explained"]
    assert [decision.verdict.says for decision in explained if decision.verdict] == [SAYS]
    (row,) = describe_failures(snapshot).verdicts
    assert (row.reason, row.cause, row.outcome) == ("SIGKILL", SAYS, "failed")
    document = describe_run(snapshot, "run~run")
    assert document is not None and any(SAYS in chapter.title for chapter in document.story)
    assert any("SIGKILL" in entry.text for entry in list_entries(run) if entry.kind == "verdict")
    told = subprocess.run(
        [sys.executable, "-m", "prism", "goodput", "run"], cwd=tmp_path, capture_output=True, text=True
    )
    assert "SIGKILL" in told.stdout
