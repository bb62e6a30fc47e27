"""CALLS hold every message of a job once, with its step, its kind and the group it belongs to."""

from __future__ import annotations

from plain_jobs import PlainJob, make_jobs

from prism.observe import diagnose, list_calls
from prism.records import CALLS


def test_every_message_is_one_call_of_its_sender() -> None:
    made = make_jobs(PlainJob(dp=4, pp=2, gpus_per_host=1, queue_pairs=1, seed=1))
    found = diagnose(made.flows, made.topology)
    calls = list_calls(found)
    assert calls.schema == CALLS.required
    assert calls.height == made.flows.height
    assert calls["bytes"].sum() == made.flows["bytes"].sum()
    assert set(calls["member"]) == set(made.flows["src"])
    inside = calls.filter(calls["step"].is_not_null())
    assert set(inside["kind"]) == {"dp", "pp"}
    dp = inside.filter(inside["kind"] == "dp").row(0, named=True)
    assert dp["member"] in dp["group"].split(",")


def test_nothing_observed_makes_no_calls() -> None:
    made = make_jobs(PlainJob(dp=8, steps=3))
    assert list_calls(diagnose(made.flows.clear(), made.topology)).is_empty()
