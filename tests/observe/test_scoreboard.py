"""The scoreboard counts what it says it counts, and runs where only the numeric packages are installed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "proving" / "benchmarks"))
from observe_captures import Board, print_reliability, score_capture
from observe_scoreboard import FIGURES, Tally, score_one, score_or_fail
from prism.lab.scenarios import load_scenario, make_scenario

BENCHMARKS = Path(__file__).parents[2] / "proving" / "benchmarks"
IMPORTS = """
import sys
import observe_findings_score, observe_score, observe_scoreboard
import prism.observe, prism.observe.llmprism, prism.lab.scenarios
print(sorted({"typer", "rich", "click", "torch", "ray"} & set(sys.modules)))
"""


def test_it_needs_no_command_line_packages() -> None:
    done = subprocess.run([sys.executable, "-c", IMPORTS], cwd=BENCHMARKS, capture_output=True, text=True, check=False)
    assert done.stdout == "[]\n", done.stderr


def test_figures_are_shares_of_what_was_counted() -> None:
    tally = Tally(jobs=4, jobs_exact=3, pairs=10, pairs_right=9, layouts=4, layouts_right=2, steps=110, steps_missed=10,
                  step_error=0.5, spans=50, span_error=0.25, faults=2, culprit_first=1, healthy_steps=2000,
                  false_findings=3)  # fmt: skip
    assert tally.figures() == [75.0, 90.0, 50.0, 0.5, 0.5, 50.0, 1.5]
    assert len(tally.figures()) == len(FIGURES)


def test_nothing_counted_is_no_figure() -> None:
    assert set(Tally().figures()) == {None}


def test_tallies_add_up() -> None:
    both = Tally(jobs=1, wrong=["a"])
    both.add(Tally(jobs=2, jobs_exact=2, wrong=["b"]))
    assert (both.jobs, both.jobs_exact, both.wrong) == (3, 2, ["a", "b"])


@pytest.mark.parametrize("method", ["prism", "paper"])
def test_a_healthy_job_is_scored_by_both_methods(method: str) -> None:
    made = make_scenario(load_scenario("dense-dp-16"), 0)
    tally = score_one(made, method, with_spans=True)
    assert (tally.jobs, tally.jobs_exact, tally.failed) == (1, 1, 0)
    assert tally.pairs == len(made.truth["jobs"][0]["pairs"])
    assert tally.steps == tally.healthy_steps == len(made.truth["jobs"][0]["steps"])
    layouts = [right for what, _, right in tally.claims if what == "layout"]
    assert layouts == [bool(tally.layouts_right)]


def test_confidence_is_held_against_what_was_right(capsys: pytest.CaptureFixture[str]) -> None:
    print_reliability([("finding", 0.95, True)] * 9 + [("finding", 0.95, False)] + [("layout", 0.4, True)])
    rows = [line.split() for line in capsys.readouterr().out.splitlines()[1:]]
    assert rows == [
        ["finding", "0.9", "to", "1.0", "10", "0.95", "0.90", "-5"],
        ["layout", "0.3", "to", "0.5", "1", "0.40", "1.00", "+60"],
    ]


def test_a_finding_is_right_where_it_names_a_planted_cause() -> None:
    made = make_scenario(load_scenario("slow-gpu-64"), 0)
    tally = score_one(made, "prism", with_spans=False)
    assert [right for what, _, right in tally.claims if what == "finding"] == [True]


def test_a_method_that_breaks_has_found_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    made = make_scenario(load_scenario("dense-dp-16"), 0)
    monkeypatch.setattr(sys.modules["prism.observe.diagnose"], "diagnose", lambda *_, **__: 1 / 0)
    tally = score_or_fail(made, "prism", with_spans=False)
    assert (tally.failed, tally.jobs, tally.jobs_exact, tally.steps_missed) == (1, 1, 0, tally.steps)
    assert "ZeroDivisionError" in tally.wrong[0]


def test_a_pair_is_held_against_the_kinds_of_its_own_direction() -> None:
    """A ring of gradients passes a pair one way, and tokens pass it both ways."""
    ways = [("10.0.0.1", "10.0.0.2", ["dp", "ep"]), ("10.0.0.2", "10.0.0.1", ["ep"])]
    pairs = [{"src": src, "dst": dst, "kinds": kinds} for src, dst, kinds in ways]
    said = [{"src": s, "dst": d, "kind": kinds[0], "confidence": 0.76} for s, d, kinds in ways]
    job = {"name": "tokens", "endpoints": ["10.0.0.1", "10.0.0.2"], "dp": 2, "pp": 1, "pairs": pairs, "steps": []}
    found = {
        "id": "job-1",
        "endpoints": job["endpoints"],
        "layout": {"dp": None, "pp": None},
        "pairs": said,
        "steps": [],
    }
    board = Board()
    score_capture(board, {"jobs": [found], "findings": []}, {"jobs": [job]}, "hand-made")
    assert [right for what, _, right in board.claims if what == "pair"] == [True, True]


def test_what_was_over_when_a_job_went_on_as_another_is_about_the_first() -> None:
    planted = {"kind": "hang", "type": "host", "id": "h1", "endpoints": ["10.0.0.1"]}
    job = {"endpoints": ["10.0.0.1"], "dp": 1, "pp": 1, "pairs": [], "steps": []}
    jobs = [
        {**job, "name": "before", "culprit": planted},
        {**job, "name": "after", "steps": [{"start_ns": 20, "duration_ns": 5}], "culprit": None},
    ]
    found = {
        "id": "job-1",
        "endpoints": ["10.0.0.1"],
        "layout": {"dp": 1, "pp": 1, "confidence": 0.9},
        "pairs": [],
        "steps": [],
    }
    finding = {"job": "job-1", "kind": "hang", "culprit": {"type": "host", "id": "h1"}, "score": 0.9, "end_ns": 21}
    board = Board()
    score_capture(board, {"jobs": [found], "findings": [finding]}, {"jobs": jobs}, "hand-made")
    assert (board.first, board.false) == (1, 0)
    lasting = {**finding, "end_ns": 30}
    score_capture(board, {"jobs": [found], "findings": [lasting]}, {"jobs": jobs}, "hand-made")
    assert board.false == 1


@pytest.mark.parametrize(("named", "right"), [("job-1", 1), ("job-2", 0)])
def test_a_culprit_that_is_the_job_itself_is_right_under_the_name_that_it_has_here(named: str, right: int) -> None:
    planted = {"kind": "load_imbalance", "type": "job|group", "id": "uneven", "endpoints": ["10.0.0.1"]}
    job = {"name": "uneven", "endpoints": ["10.0.0.1"], "dp": 1, "pp": 1, "pairs": [], "steps": [], "culprit": planted}
    layout = {"dp": 1, "pp": 1, "confidence": 0.9}
    found = {"id": "job-1", "endpoints": ["10.0.0.1"], "layout": layout, "pairs": [], "steps": []}
    finding = {"job": "job-1", "kind": "load_imbalance", "culprit": {"type": "job", "id": named}, "score": 0.9}
    board = Board()
    score_capture(board, {"jobs": [found], "findings": [finding]}, {"jobs": [job]}, "hand-made")
    assert (board.first, board.false) == (right, 1 - right)


def test_a_job_that_is_told_to_have_gone_on_with_other_hosts_is_exact_by_its_phases() -> None:
    steps = [{"start_ns": 10 * k, "duration_ns": 10} for k in range(10)]
    jobs = [
        {"name": "two", "endpoints": ["a", "b"], "dp": 2, "pp": 1, "pairs": [], "steps": steps[:5]},
        {"name": "three", "endpoints": ["a", "b", "c"], "dp": 3, "pp": 1, "pairs": [], "steps": steps[5:]},
        {"name": "again", "endpoints": ["a", "b"], "dp": 2, "pp": 1, "pairs": [], "steps": steps[5:]},
    ]
    phases = [
        {"started_ns": 0, "ended_ns": 50, "endpoints": ["a", "b"]},
        {"started_ns": 50, "ended_ns": 100, "endpoints": ["c", "a", "b"]},
    ]
    layout = {"dp": None, "pp": None}
    found = {"id": "job-1", "endpoints": ["a", "b", "c"], "layout": layout, "pairs": [], "steps": [], "phases": phases}
    board = Board()
    score_capture(board, {"jobs": [found], "findings": []}, {"jobs": jobs}, "hand-made")
    assert (board.jobs, board.exact, board.phases) == (3, 0, 2)
