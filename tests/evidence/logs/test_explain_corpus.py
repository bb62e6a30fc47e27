"""Real failures: full logs of really failed multi-rank jobs, and labelled ones where they are at hand."""

import gzip
import hashlib
import json
import re
from pathlib import Path

import pytest

from prism.evidence.logs import diagnose, read_job, read_text
from prism.evidence.logs.origins import parse_line
from prism.evidence.logs.routine import template_of
from proving.benchmarks.explain_scoreboard import Outcome, restarts_by_default, score

DATA = Path(__file__).parent / "data"
JOBS = sorted((DATA / "corpus").iterdir())


@pytest.mark.parametrize("job", JOBS, ids=lambda p: p.name)
def test_reason_rank_and_evidence_are_right_on_full_logs(job):
    truth = json.loads((job / "truth.json").read_text())
    diagnosis = diagnose(read_job(str(job / "logs")))
    verdict = diagnosis.verdict
    assert verdict.reason == truth["reason"]
    assert verdict.first_rank == truth["faulty_rank"]
    assert (verdict.action != "stop") == truth["restarts"]
    assert verdict.lines_kept <= 0.01 * verdict.lines_read
    kept = {template_of(line.text) for line in diagnosis.kept}
    roots = 0
    for file in (job / "logs").iterdir():
        for raw in gzip.decompress(file.read_bytes()).decode().splitlines():
            text = parse_line(raw).text
            if re.search(truth["root"], text):
                roots += 1
                assert template_of(text) in kept
    assert roots > 0


def score_of(rows):
    outcomes = []
    for row in rows:
        verdict = diagnose(read_text(row["snippet"])).verdict
        outcomes.append(
            Outcome(truth=row["label"], reason=verdict.reason, action=verdict.action,
                    should_restart=restarts_by_default(row["label"]))
        )  # fmt: skip
    return score(outcomes)


def test_labelled_examples_are_named_right_in_both_halves(shared_data):
    rows = [json.loads(line) for line in (shared_data / "failures" / "examples.jsonl").read_text().splitlines()]
    seen = [r for r in rows if int(hashlib.sha256(r["source_url"].encode()).hexdigest(), 16) % 2 == 0]
    held = [r for r in rows if r not in seen]
    assert score_of(seen).reason_macro >= 0.97
    assert score_of(held).reason_macro >= 0.80  # measured 0.83; docs/explain.md has the whole table


def test_the_scoreboard_counts_each_kind_of_mistake():
    board = score(
        [
            Outcome(truth="OSError", reason="OSError", action="stop", should_restart=False),
            Outcome(truth="ECCError", reason="OSError", action="stop", should_restart=True),
            Outcome(truth="KeyError", reason="ECCError", action="restart", should_restart=False),
            Outcome(truth="KeyError", reason="KeyError", action="stop", should_restart=False),
        ]
    )
    assert (board.false_stop, board.false_restart, board.action) == (0.25, 0.25, 0.5)
    assert board.reason_macro == pytest.approx((1 + 0 + 0.5) / 3)
    assert board.category == 0.5
    assert set(board.confusion.rows()) == {("ECCError", "OSError", 1), ("KeyError", "ECCError", 1)}
