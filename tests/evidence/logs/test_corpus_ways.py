"""The ways of `make corpus`: enough of them, named once, labelled with known reasons, in halves that never move."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
# At the end: proving/benchmarks/evaluate.py must not stand before the installed package of that name.
sys.path += [str(ROOT / "proving"), str(ROOT / "proving" / "corpus"), str(ROOT / "proving" / "benchmarks")]

import make_corpus  # noqa: E402
from way import Place, Way, category_of, half_of  # noqa: E402

import explain_corpus  # noqa: E402


def test_there_are_enough_ways_and_each_has_a_known_reason() -> None:
    ways = make_corpus.all_ways()
    failing = [way for way in ways if way.reason != "none"]
    assert len(failing) >= 60
    assert len(ways) - len(failing) >= 10
    for way in failing:
        re.compile(way.proof)
        assert all(category_of(reason) or reason == "Unknown" for reason in (way.reason, *way.also)), way.name


def test_a_way_never_changes_its_half() -> None:
    assert [half_of(name) for name in ("record-cut-short", "archive-cut-short")] == ["developer", "held-back"]


def _say(words: str) -> Way:
    def make(place: Place) -> None:
        (place.logs / "job.log").write_text(words)

    return Way(name="record-cut-short", family="test", reason="KeyError", make=make, proof=r"KeyError: 'x'")


@pytest.mark.parametrize(("words", "kept"), [("KeyError: 'x'", True), ("MemoryError", False)])
def test_a_job_that_did_not_end_as_meant_is_left_out(tmp_path: Path, words: str, kept: bool) -> None:
    outcome = make_corpus.make(_say(words), tmp_path)
    assert (outcome == "made") is kept
    assert (tmp_path / "developer" / "record-cut-short" / "truth.json").exists() is kept


def test_macro_f1_counts_every_reason_alike() -> None:
    pairs = [("KeyError", "KeyError")] * 9 + [("OSError", "KeyError")]
    assert explain_corpus.macro_f1(pairs) == pytest.approx((18 / 19 + 0) / 2)


def test_a_plain_job_is_made_and_nothing_of_the_held_back_half_is_printed(tmp_path: Path) -> None:
    name = "option-without-value"
    command = [sys.executable, str(ROOT / "proving" / "make_corpus.py"), str(tmp_path), "--only", name]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=True)
    assert f"{name}: made" in done.stdout and "expected one argument" not in done.stdout + done.stderr
    truth = json.loads((tmp_path / "manifest.jsonl").read_text())
    assert (truth["reason"], truth["category"], truth["half"]) == ("ArgumentError", "script", half_of(name))
