"""The book: one fault is one incident, silence is no good news, and nobody is told twice."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from prism.incidents import (
    KINDS,
    Acknowledged,
    BookConfig,
    Closed,
    Incident,
    IncidentBook,
    Look,
    Place,
    Sighting,
    SourceLost,
    Studied,
    Tick,
)
from prism.incidents.events import Handed, Keep, Tell
from prism.incidents.merging import MergeConfig
from prism.records.findings import FindingKind

S = 10**9
NOW = 1_800_000_000 * S
HOSTS = ("n1", "n2", "n3", "n4")


def sighting(kind: str = "slow_compute", place: str = "host:n1", at_s: float = 0.0, **more: Any) -> Sighting:
    type_, _, id_ = place.partition(":")
    fields: dict[str, Any] = {
        "key": f"{kind}/{place}", "kind": kind, "place": Place(type=type_, id=id_), "since_ns": NOW + int(at_s * S),
        "until_ns": NOW + int((at_s + 20) * S), "text": "measured", "sure": 0.9, "job": "job-1", "job_key": "w~job-1",
        "hosts": ("n1",), "job_hosts": HOSTS, "lost_gpu_s": 100.0,
    }  # fmt: skip
    return Sighting(**{**fields, **more})


def look(*sightings: Sighting, at_s: float = 20.0, source: str = "w/state.json", **more: Any) -> Look:
    now_ns = NOW + int(at_s * S)
    fields: dict[str, Any] = {"tool": "watch", "holds_ns": 0, "at_ns": now_ns, **more}
    return Look(now_ns=now_ns, source=source, sightings=sightings, **fields)


def tells(book: IncidentBook, event: Any) -> list[tuple[str, str]]:
    """Whom to tell after an event; it is then handed to the sender, as the desk does."""
    told = [(a.incident.id, a.what) for a in book.handle(event) if isinstance(a, Tell)]
    for id, _ in told:
        book.handle(Handed(now_ns=event.now_ns, id=id))
    return told


def only(book: IncidentBook) -> Incident:
    (one,) = book.incidents.values()
    return one


def test_a_fault_is_told_once_and_its_end_once_with_its_evidence():
    book = IncidentBook()
    first = sighting()
    assert tells(book, look(first)) == [("i-1", "opened")]
    assert tells(book, look(first)) == []
    assert tells(book, look(replace(first, until_ns=NOW + 25 * S), at_s=25)) == []
    over = replace(first, until_ns=NOW + 30 * S, well="3 looks do not show it; steps last 1.0 s as before")
    assert tells(book, look(over, at_s=60)) == [("i-1", "resolved")]
    assert only(book).state == "resolved" and "as before" in only(book).why_state
    assert tells(book, look(over, at_s=63)) == []


def test_what_is_decided_is_written_down_before_it_is_told():
    actions = IncidentBook().handle(look(sighting()))
    assert [type(action) for action in actions] == [Keep, Tell]
    kept = actions[0]
    assert isinstance(kept, Keep) and kept.incident.waits == ("opened",), "a crash between the two tells it later"


@pytest.mark.parametrize("state", ["damaged", "late", "gone", "ended"])
def test_a_source_that_is_away_resolves_nothing_and_is_an_incident_itself(state: Any):
    book = IncidentBook()
    for number in range(3):
        tells(book, look(sighting(place=f"host:n{number}", hosts=(f"n{number}",)), source=f"w{number}/state.json"))
    lost = SourceLost(now_ns=NOW + 30 * S, source="w1/state.json", tool="watch", state=state, why=f"it is {state}",
                      since_ns=NOW + 29 * S, blind=True)  # fmt: skip
    assert tells(book, lost) == [("i-4", "opened")]
    assert [one.state for one in book.incidents.values()] == ["open", "lost", "open", "open"]
    assert "1 open incident is lost sight of" in book.incidents["i-4"].evidence
    assert tells(book, replace(lost, now_ns=NOW + 31 * S)) == [], "told once, however often it is seen"
    again = look(sighting(place="host:n1", hosts=("n1",)), source="w1/state.json", at_s=90)
    assert tells(book, again) == [("i-4", "resolved")]
    assert book.incidents["i-2"].state == "open" and "read again" in book.incidents["i-4"].why_state


def test_an_unrelated_file_that_goes_leaves_other_incidents_alone():
    book = IncidentBook()
    tells(book, look(sighting()))
    gone = SourceLost(now_ns=NOW + 30 * S, source="x/other.json", tool="serve", state="gone", why="gone", since_ns=NOW)
    tells(book, gone)
    assert book.incidents["i-1"].state == "open"


def test_what_a_look_shows_no_longer_is_over_only_if_its_job_was_studied_since():
    for studied, state in (((), "lost"), ((Studied(job_key="w~job-1", hosts=HOSTS, until_ns=NOW + 90 * S,
                                                   text="12 steps of 4 hosts compared, 1.00 s each"),), "resolved")):  # fmt: skip
        book = IncidentBook()
        tells(book, look(sighting()))
        tells(book, look(at_s=90, studied=studied))
        assert only(book).state == state
    assert "12 steps" in only(book).why_state


def test_what_was_lost_sight_of_is_over_when_a_later_look_says_so():
    book = IncidentBook()
    tells(book, look(sighting()))
    tells(book, look(at_s=60))
    assert only(book).state == "lost"
    well = Studied(job_key="w~job-1", hosts=HOSTS, until_ns=NOW + 90 * S, text="compared")
    assert tells(book, look(at_s=90, studied=(well,))) == [("i-1", "resolved")]


def test_a_finding_of_last_year_calls_nobody_and_is_history():
    book = IncidentBook()
    old = look(sighting(), at_s=400 * 86_400, holds_ns=3_600 * S)
    assert tells(book, old) == [] and only(book).state == "expired"
    assert tells(book, Tick(now_ns=old.now_ns + S)) == []


def test_a_diagnosis_that_nobody_repeats_is_lost_sight_of_after_an_hour():
    book = IncidentBook()
    assert tells(book, look(sighting(), holds_ns=3_600 * S)) == [("i-1", "opened")]
    tells(book, Tick(now_ns=NOW + 1_800 * S))
    assert only(book).state == "open"
    tells(book, Tick(now_ns=NOW + 3_700 * S))
    assert only(book).state == "lost"
    assert tells(book, Tick(now_ns=NOW + 90_000 * S)) == [] and only(book).state == "expired"


def test_the_last_words_of_a_command_that_ended_do_not_bring_an_incident_back():
    book = IncidentBook()
    tells(book, look(sighting()))
    tells(book, SourceLost(now_ns=NOW + 30 * S, source="w/state.json", tool="watch", state="ended", why="stopped",
                           since_ns=NOW + 30 * S))  # fmt: skip
    assert book.incidents["i-1"].state == "lost"
    tells(book, look(sighting(), at_s=31, holds_ns=3_600 * S, alive=False))
    assert book.incidents["i-1"].state == "lost"


SAME = [
    ("an endpoint that turns out to be a host", sighting(place="endpoint:10.0.0.1"), sighting(), "host n1"),
    ("a stall that becomes a hang", sighting("stall", "job:job-1"), sighting("hang", "endpoint:10.0.0.9", 30), "endpoint 10.0.0.9"),
    ("a hang whose run then fails", sighting("hang", "host:n1"), sighting("run_failed", "job:run", 60, job="run", job_key="run~run"), "job run"),
    ("long steps whose cause is found", sighting("slow_step", "job:job-1"), sighting(at_s=10), "host n1"),
    ("the same host after a restart", sighting(), sighting(at_s=900, key="finding-2"), "host n1"),
    ("a job that two tools name in two ways", sighting(), sighting(job="job-7", job_key="report~job-7"), "host n1"),
]  # fmt: skip
OTHER = [
    ("another host", sighting(), sighting(place="host:n2", hosts=("n2",))),
    ("another job of the same look", sighting("hang"), sighting("hang", job="job-2", job_key="w~job-2")),
    ("a job on other hosts", sighting(), sighting(job="x", job_key="r~x", job_hosts=("m1", "m2", "m3", "m4"))),
    ("a slow link of a slow host", sighting(), sighting("slow_link", "link:n1>s1")),
    ("two ranks of one host", sighting(place="endpoint:a"), sighting(place="endpoint:b")),
    ("the same host a day later", sighting(), sighting(at_s=86_400, key="finding-2")),
]  # fmt: skip


@pytest.mark.parametrize(("first", "second", "named"), [row[1:] for row in SAME], ids=[row[0] for row in SAME])
def test_the_same_fault_is_one_incident(first: Sighting, second: Sighting, named: str):
    book = IncidentBook()
    told = tells(book, look(first))
    told += tells(book, look(second, source="other.json", at_s=40))
    assert len(book.incidents) == 1 and str(only(book).place) == named
    assert [what for _, what in told].count("opened") == 1
    assert only(book).labels["kind"] == first.kind, "its alert keeps its labels"


@pytest.mark.parametrize(("first", "second"), [row[1:] for row in OTHER], ids=[row[0] for row in OTHER])
def test_another_fault_is_another_incident(first: Sighting, second: Sighting):
    book = IncidentBook()
    tells(book, look(first))
    tells(book, look(second, source="other.json", at_s=40))
    assert len(book.incidents) == 2


def test_two_supervised_runs_on_one_host_are_two_jobs():
    book = IncidentBook()
    for name in ("run-1", "run-2"):
        dead = sighting("attempt_ended", f"job:{name}", job=name, job_key=f"{name}~run", job_hosts=("localhost",))
        assert tells(book, look(dead, source=f"{name}/state.json", tool="supervise")) != []
    assert len(book.incidents) == 2


def test_a_graver_turn_is_told_with_the_same_incident():
    book = IncidentBook()
    assert tells(book, look(sighting("stall", "job:job-1"))) == [("i-1", "opened")]
    assert tells(book, look(sighting("hang", "host:n1", 30), at_s=50, source="b")) == [("i-1", "worse")]


def test_a_fault_is_over_when_every_source_says_so():
    book = IncidentBook()
    tells(book, look(sighting()))
    tells(book, look(sighting(job="a", job_key="r~a"), source="r/diagnosis.json", tool="diagnose"))
    tells(book, look(sighting(well="steps as before"), at_s=50))
    assert only(book).state == "open", "the diagnosis still shows it"
    tells(book, look(sighting(job="a", job_key="r~a", well="a later diagnosis"), source="r/diagnosis.json", at_s=60))
    assert only(book).state == "resolved"


def test_who_takes_it_up_is_written_down_and_a_person_may_close_it_until_it_is_seen_again():
    book = IncidentBook()
    tells(book, look(sighting()))
    tells(book, Acknowledged(now_ns=NOW + 21 * S, id="i-1", who="ada"))
    assert (only(book).acknowledged_by, only(book).state) == ("ada", "open")
    assert tells(book, Closed(now_ns=NOW + 22 * S, id="i-1", who="ada")) == [("i-1", "resolved")]
    assert only(book).why_state == "closed by ada"
    tells(book, look(sighting(), at_s=23))
    assert only(book).state == "resolved", "nothing new was seen"
    later = sighting(until_ns=NOW + 60 * S)
    assert tells(book, look(later, at_s=60)) == [("i-1", "opened")]


def test_worst_first_is_what_is_lost_in_an_hour_times_how_sure():
    book = IncidentBook()
    for number, (gpus, sure) in enumerate(((10.0, 0.5), (8.0, 0.9), (100.0, 0.01))):
        tells(
            book,
            look(
                sighting(place=f"host:m{number}", hosts=(f"m{number}",), gpus_lost=gpus, sure=sure), source=f"{number}"
            ),
        )
    assert [one.gpus_lost for one in book.open()] == [8.0, 10.0, 100.0]


def test_a_run_that_stands_still_goes_on_costing():
    book = IncidentBook()
    tells(book, look(sighting("run_failed", "job:run", gpus_lost=64.0, lost_gpu_s=0.0)))
    assert only(book).lost_gpu_s(NOW + 3_600 * S) == pytest.approx(64 * 3_600)


def test_a_cheap_finding_is_shown_and_told_to_nobody_and_a_dead_run_always_is():
    book = IncidentBook(config=BookConfig(least_lost_gpu_s=1_000.0))
    assert tells(book, look(sighting())) == [] and only(book).state == "open"
    dead = sighting("run_lost", "job:run", job="run", job_key="run~run", job_hosts=("z",), lost_gpu_s=0.0)
    assert tells(book, look(dead, source="run")) == [("i-2", "opened")]


def test_every_kind_of_finding_has_its_words_and_advice():
    from typing import get_args

    assert set(get_args(FindingKind)) <= set(KINDS)
    assert all(kind.says and kind.advice for kind in KINDS.values())


def test_an_incident_is_read_as_it_was_written_and_a_newer_field_does_no_harm():
    book = IncidentBook()
    tells(book, look(sighting()))
    document = only(book).to_json()
    assert Incident.from_json({**document, "of_a_newer_version": 1}) == only(book)
    again = IncidentBook()
    again.restore([only(book)])
    assert tells(again, look(sighting())) == [] and again.next_id == 2


def test_windows_that_touch_are_of_one_fault_up_to_the_stated_gap():
    gap = MergeConfig().slack_ns / S
    for apart, expected in ((gap - 1, 1), (gap + 1, 2)):
        book = IncidentBook()
        tells(book, look(sighting(place="endpoint:10.0.0.1")))
        tells(book, look(sighting(at_s=20 + apart), source="b"))
        assert len(book.incidents) == expected
