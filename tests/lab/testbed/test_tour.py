"""The tour's parts, without running them: the commands exist and the sums are drawn from what they print."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from typer.main import get_command

from prism.cli.main import app
from prism.errors import PrismError
from prism.lab.tour import dashboard, lanes
from prism.lab.tour.parts import Part, Stop, call, list_parts


def test_every_part_is_a_command_that_prism_has(tmp_path: Path) -> None:
    known = set(getattr(get_command(app), "commands", {}))
    assert {part.words[0] for part in list_parts(tmp_path)} <= known


def test_a_part_that_fails_tells_the_command_and_its_own_words() -> None:
    with pytest.raises(PrismError, match=r"prism explain ended with exit code 2: .*no-such.log"):
        call(("explain", "/no-such.log"))


def test_parts_are_summed_up_in_a_few_words(tmp_path: Path) -> None:
    parts = {part.name: part for part in list_parts(tmp_path)}
    scored = {"trials": 2, "makespan_s": 4.5, "lower_bound_s": 2.4, "results": {"step-1": {"text": {"bits": 3.0}}}}
    assert parts["evaluate"].sum_up([scored]) == ["2 trials in 4.5 s, at least 2.4 s", "step-1: text 3"]
    verdict = {"outcome": "failed", "cause": {"text": ""}, "reason": "NodeFailure", "action": "restart"}
    assert parts["explain"].sum_up([verdict]) == ["failed: NodeFailure; restart"]


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of parts in the order they were begun, on a machine with two cores; a part called bad fails."""
    names: list[str] = []

    def run_part(part: Part, folder: Path) -> Stop:
        names.append(part.name)
        return Stop(part=part, seconds=0.0, lines=[part.name], right=part.name != "bad")

    monkeypatch.setattr(lanes, "run_part", run_part)
    monkeypatch.setattr(lanes, "_num_cores", lambda: 2)
    return names


def make_part(name: str, after: str = "") -> Part:
    return Part(
        name=name,
        title=name,
        words=(name,),
        sum_up=lambda told: [],
        planted="",
        is_right=lambda told: True,
        after=after,
    )


def test_parts_run_beside_the_callers_work_first_those_that_others_wait_for(tmp_path: Path, begun: list[str]) -> None:
    parts = [make_part("alone"), make_part("read"), make_part("reader", after="read"), make_part("last")]
    over = threading.Event()
    with lanes.running(parts, tmp_path, over) as stops:
        assert stops["reader"].result(60).lines == ["reader"]
        assert not over.is_set(), "one core was the caller's all the while"
        over.set()
        assert [stops[part.name].result(60).part for part in parts] == parts
    assert begun == ["read", "alone", "last", "reader"]


def test_a_part_that_reads_the_files_of_one_that_failed_is_not_begun_and_tells_why(
    tmp_path: Path, begun: list[str]
) -> None:
    parts = [make_part("bad"), make_part("reader", after="bad")]
    with lanes.running(parts, tmp_path, threading.Event()) as stops:
        stop = stops["reader"].result(60)
    assert not stop.right and stop.lines == ["WRONG: not begun, since bad went wrong"]
    assert begun == ["bad"]


def test_the_tour_names_the_part_that_each_part_reads(tmp_path: Path) -> None:
    parts = list_parts(tmp_path)
    names = [part.name for part in parts]
    assert {part.name: part.after for part in parts if part.after} == {"explain": "supervise", "evaluate": "supervise"}
    assert all(names.index(part.after) < names.index(part.name) for part in parts if part.after)


def test_a_browser_that_never_ends_costs_its_pictures_and_not_the_tour(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    browser = tmp_path / "chromium"
    browser.write_text(
        '#!/bin/sh\ncase "$*" in *"/job") exec sleep 600;; esac\nfor word; do case "$word" in --screenshot=*) : > "${word#--screenshot=}";; esac; done\n'
    )
    browser.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(dashboard, "_PATIENCE_S", 5.0)
    taken = dashboard.take_screenshots("http://127.0.0.1:9", tmp_path / "pictures")
    assert [picture.stem for picture in taken] == [name for name in dashboard.PAGES if name != "job"]
