"""What an evaluation writes while it runs."""

from __future__ import annotations

import json
from pathlib import Path

from prism.evaluate.run.outcomes import Findings, Problem
from prism.evaluate.run.run_log import RunLog
from prism.evaluate.schedule.standing import Progress
from prism.evaluate.schedule.trials import Part

PROGRESS = Progress(
    samples=40, inferred=20, scored=20, failed=20, trials_done=2, trials_running=0, scores_waiting=0, workers=1, gpus=0,
    gpus_busy=0, time_left_s=0.0,
)  # fmt: skip


def lose(checkpoint: str, first: int) -> Problem:
    part = Part(checkpoint=checkpoint, dataset="d", first=first, last=first + 5)
    return Problem(checkpoint=checkpoint, dataset="d", part=part, phase="infer", text="it failed")


def test_a_result_is_lost_once_however_many_of_its_parts_are_and_waits_no_more(tmp_path: Path) -> None:
    partly = Problem(checkpoint="b", dataset="e", phase="combine", text="len is nan", samples=(5,))
    found = Findings(metrics={("b", "e"): {"acc": 1.0}}, problems=[lose("a", 0), lose("a", 5), lose("b", 0), partly])
    RunLog(tmp_path, {"a": 1, "b": 2}, 2).write_progress(PROGRESS, found)
    document = json.loads((tmp_path / "progress.json").read_text())
    assert document["results_wanted"] == 4 and document["results"] == 1
    assert document["trials"] == {"done": 2, "running": 0, "waiting": 1, "failed": 4}, "a on e is still to come"
    assert [problem.place for problem in found.problems] == ["a/d[0:5]", "a/d[5:10]", "b/d[0:5]", "b/e"]
