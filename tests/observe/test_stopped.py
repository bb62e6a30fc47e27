"""Who stopped first and whether anybody did: each rule where it must speak and where it must be silent."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import polars as pl
import pytest
from test_finding_decisions import BEGIN, HOSTS, MESSAGES, MS, drop_from, make_case, make_messages, make_ring, name

from prism.observe.delays.stalls import find_stalls
from prism.observe.findings import silence, standstill
from prism.observe.findings.case import Case
from prism.observe.findings.silence import find_hang
from prism.observe.findings.standstill import Standstill, find_stalled, find_standstill
from prism.observe.findings.stopped import name_first_to_stop

MARGIN = 3.0 * MS  # of steps of 1 s
Owed = tuple[int, int, float]


@cache
def plain_case() -> Case:
    """Six equal steps."""
    return make_case([1.0] * 6)


def stand(
    *owed: Owed, stuck: tuple[tuple[int, int], ...] = (), came: tuple[Owed, ...] = (), until: float = 1000.0,
    last_sent: dict[int, float] | None = None,
) -> Standstill:  # fmt: skip
    """A job that stands still; messages (sender, receiver, due in ms) that never `came` are owed and take 10 ms."""
    rows = [(s, d, "dp", due * MS, (due + 10) * MS, (s, d, due) not in came) for s, d, due in (*owed, *came)]
    kinds = {
        "src": pl.Int64,
        "dst": pl.Int64,
        "kind": pl.String,
        "due": pl.Float64,
        "over": pl.Float64,
        "owed": pl.Boolean,
    }
    due = pl.DataFrame(rows, schema=kinds, orient="row")
    begun = [(s, d, BEGIN + i, 65_536) for i, (s, d) in enumerate(stuck)]
    sent = {k: at * MS for k, at in (last_sent or {}).items()}
    types = {"src": pl.Int64, "dst": pl.Int64, "start_ns": pl.Int64, "bytes": pl.Int64}
    held = pl.DataFrame(begun, schema=types, orient="row")
    return Standstill(due.sort("due"), held, sent, {}, round(until * MS), 1_000 * MS)


# -- who is named


def test_the_two_ends_of_the_first_missing_message_are_both_named_unless_one_of_them_sends_later() -> None:
    owed = ((2, 3, 100), (3, 0, 200), (0, 1, 300))
    both = name_first_to_stop(plain_case(), stand(*owed, last_sent={0: 150}))
    assert both.culprit.type == "group" and both.culprit.id.split(",") == ["10.0.2.1", "10.0.3.1"]
    assert both.others_went_on and "which of them stopped" in both.why
    one = name_first_to_stop(plain_case(), stand(*owed, last_sent={3: 150}))
    assert one.culprit.id == "h2" and one.score > 0.9


def test_ranks_that_all_owe_at_one_moment_stopped_at_once() -> None:
    every = [(h, (h + 1) % HOSTS, 100) for h in range(HOSTS)]
    assert name_first_to_stop(plain_case(), stand(*every)).culprit.type == "job"
    assert name_first_to_stop(plain_case(), stand()).culprit.type == "job"


@pytest.mark.parametrize("stuck", [((0, 1), (1, 2), (3, 0)), ((0, 1), (3, 0))])
def test_of_a_ring_the_one_that_began_no_hop_stopped_whether_or_not_others_may_send_to_it(stuck: Any) -> None:
    owed = [(h, (h + 1) % HOSTS, 100) for h in range(HOSTS)]
    found = name_first_to_stop(plain_case(), stand(*owed, stuck=stuck))
    assert found.culprit.id == "h2" and "endpoints are stuck" in found.why and found.others_went_on


def test_who_did_not_take_a_transfer_that_was_begun_stopped() -> None:
    assert name_first_to_stop(plain_case(), stand((0, 1, 100), stuck=((0, 1),))).culprit.id == "h1"


def test_who_lacks_a_message_later_is_an_alternative_at_most() -> None:
    found = name_first_to_stop(plain_case(), stand((2, 3, 100), (0, 1, 110), last_sent={3: 150, 1: 150}))
    assert found.culprit.id == "h2" and [a.culprit.id for a in found.seconds] == ["h0"]
    later = name_first_to_stop(plain_case(), stand((2, 3, 100), (0, 1, 180), last_sent={3: 150, 1: 250}))
    assert later.culprit.id == "h2" and not later.seconds


def test_several_ranks_of_a_host_that_stop_are_their_host() -> None:
    case = replace(plain_case(), endpoints=plain_case().endpoints.with_columns(host=pl.Series(["a", "a", "b", "b"])))
    assert name_first_to_stop(case, stand((0, 2, 100), (1, 3, 100), last_sent={2: 200, 3: 200})).culprit.id == "a"


def test_what_was_due_after_the_last_that_was_sent_is_owed_unless_its_receiver_went_on() -> None:
    rows = [(0, 1, 100.0, 110.0), (0, 1, 200.0, 210.0), (1, 2, 300.0, 310.0)]
    due = pl.DataFrame(rows, schema=["src", "dst", "due", "over"], orient="row").with_columns(kind=pl.lit("dp"))

    def owed(*sent: tuple[int, float], kind: str = "dp") -> list[bool]:
        came = pl.DataFrame(sent, schema=["src", "offset"], orient="row").with_columns(kind=pl.lit(kind))
        passed_on = pl.DataFrame({"src": [0, 1], "offset": [300.0, 300.0], "kind": ["pp", "pp"]})
        return standstill._mark_owed(due, pl.concat([came, passed_on]), 1000)["owed"].to_list()

    assert owed((0, 100.0)) == [False, True, True]
    assert owed((0, 100.0), (1, 300.0)) == [False, False, False]
    assert owed((0, 100.0), kind="pp") == [True, True, True]  # What is passed on later shows nothing of gradients.


def test_a_message_is_due_when_it_was_sent_and_not_between_two_messages() -> None:
    """Of three steps one has lost a record and one has lost two: the last place but one is seen twice."""
    lost = {(4, 200), (5, 300), (5, 400)}
    rows = [
        (0, BEGIN + (i * 1000 + at) * MS, BEGIN + (i * 1000 + at + 10) * MS, i)
        for i in range(6)
        for at in range(100, 900, 20)
        if (i, at) not in lost
    ]
    found = standstill._expect(make_case([1.0] * 6, make_messages(rows)), 5, 1000 * MS)
    assert found is not None and set(found["due"] / MS) <= set(range(100, 900, 20))


def cut_last(size: int, *, senders: int = HOSTS) -> Any:
    """A ring whose last messages of some hosts were cut to a size."""
    case = make_ring(15, left_out=drop_from(3, 14, but=tuple(range(HOSTS))), until_s=60)
    last = (pl.col("start_ns") == pl.col("start_ns").max()) & (pl.col("src") < senders)
    messages = case.messages.with_columns(
        bytes=pl.when(last).then(size + pl.col("src")).otherwise("bytes"),
        stream=pl.when(last).then(pl.col("stream") + HOSTS).otherwise("stream"),
    ).cast(MESSAGES)  # type: ignore[arg-type]
    return replace(case, messages=messages)


@pytest.mark.parametrize(("size", "found"), [(100_000, HOSTS), (800_000, 0), (576, 0)])
def test_last_messages_that_are_far_smaller_are_stalled_and_a_few_bytes_are_not(size: int, found: int) -> None:
    assert find_stalled(cut_last(size), BEGIN, BEGIN + 10**12).height == found


def test_headers_that_follow_a_transfer_that_was_cut_do_not_hide_it() -> None:
    case = cut_last(100_000)
    last = case.messages.filter(pl.col("start_ns") == pl.col("start_ns").max())
    headers = last.with_columns(pl.col("start_ns", "end_ns") + 10**6, bytes=pl.lit(96)).cast(MESSAGES)
    case = replace(case, messages=pl.concat([case.messages, headers]))
    assert find_stalled(case, BEGIN, BEGIN + 10**12)["bytes"].min() >= 100_000
    assert find_stalled(case, BEGIN, BEGIN + 10**12).height == HOSTS


def test_what_is_always_as_small_is_not_stalled() -> None:
    case = make_ring(15, until_s=60)
    small = case.messages.with_columns(pl.lit(10_000).alias("bytes"), pl.col("stream") + HOSTS, end_ns="start_ns")
    assert find_stalled(
        replace(case, messages=pl.concat([case.messages, small.cast(MESSAGES)])), BEGIN, 2**62
    ).is_empty()  # type: ignore[arg-type]


def test_records_of_one_size_are_full_buffers_where_four_are_alike_and_chance_where_two_are() -> None:
    """A capture that ends as they do may have cut them."""

    def is_cut_short(senders: int) -> bool:
        case = cut_last(100_000, senders=senders)
        end = int(case.messages["end_ns"].max())
        return silence._is_cut_short(case, end, end, 1.2e9)

    assert is_cut_short(HOSTS)
    assert not is_cut_short(2)


def test_transfers_that_wait_no_longer_than_others_were_held_up_before_did_not_stop() -> None:
    case = cut_last(100_000)
    end = int(case.messages["end_ns"].max())
    late = (pl.col("step") == 5) & (pl.col("src") == 1)
    waited = case.messages.with_columns(end_ns=pl.when(late).then(pl.col("end_ns") + 400 * MS).otherwise("end_ns"))
    paused = replace(case, messages=waited)
    assert not silence._is_cut_short(paused, end, end + 300 * MS, 1.2e9)
    assert silence._is_cut_short(paused, end, end + 500 * MS, 1.2e9)


@pytest.mark.parametrize(("kind", "cut"), [("pp", True), ("dp", False)])
def test_a_transfer_is_cut_short_that_waits_longer_than_those_of_its_kind_take(kind: str, cut: bool) -> None:
    """Between stages transfers begin before their receiver is ready, and last longer than gradients do."""
    case = cut_last(100_000, senders=3)
    end = int(case.messages["end_ns"].max())
    other = pl.col("src") == 3
    streams = case.streams.with_columns(
        duration_ns=pl.when(other).then(400.0 * MS).otherwise("duration_ns"),
        kind=pl.when(other).then(pl.lit(kind)).otherwise("kind"),
    )
    assert silence._is_cut_short(replace(case, streams=streams), end, end + 300 * MS, 1.2e9) is cut


def test_of_two_endpoints_one_that_is_stuck_is_enough() -> None:
    case = cut_last(100_000, senders=1)
    end = int(case.messages["end_ns"].max())
    two = replace(case, job=replace(case.job, endpoints=case.job.endpoints[:2]))
    assert silence._is_cut_short(two, end, end + 9_000 * MS, 1.2e9)
    assert not silence._is_cut_short(case, end, end + 9_000 * MS, 1.2e9)


def test_a_job_that_began_no_other_step_does_not_stand_still() -> None:
    until = BEGIN + 15 * 1200 * MS
    assert find_standstill(make_ring(15, until_s=60), 14, until) is None
    begun = make_ring(16, left_out=drop_from(1, 15), until_s=60)
    assert find_standstill(begun, 14, until + 60 * MS) is not None


def test_the_step_that_breaks_off_may_be_longer_than_others() -> None:
    case = make_ring(15, left_out=drop_from(3, 14, but=(0, 1, 3)), until_s=60)
    for waited_ms, owes in ((450, True), (1300, True), (1600, False)):  # a usual step lasts 1200 ms
        found = find_standstill(case, 13, int(case.steps["start_ns"][14]) + waited_ms * MS)
        assert (found is not None and 2 in found.due.filter("owed")["src"]) is owes


def test_a_message_of_a_usual_size_is_of_its_own_kind_whatever_is_due_at_the_same_time() -> None:
    """Hosts pass messages on at 100 and 900 ms of a step and exchange gradients 0.1 ms later; the sixth step stops."""
    rows = [(h, i, at) for i in range(6) for h in range(2) for at in ((100, 900) if i < 5 else (100,))]
    # The last gradients come 0.1 ms early, when the last message between stages is due.
    late = [(h, i, 900.1 if i < 4 else 900.0) for i in range(5) for h in range(2)]
    sent = [
        make_messages([(h, t := BEGIN + round((i * 1000 + at) * MS), t + MS, i) for h, i, at in own], kind)
        for own, kind in ((rows, "pp"), (late, "dp"))
    ]
    case = make_case([1.0] * 6, pl.concat([sent[0], sent[1].with_columns(pl.col("stream") + HOSTS)]))
    found = find_standstill(case, 4, BEGIN + 5200 * MS)
    assert found is not None and found.due.filter("owed")["due"].min() == pytest.approx(1900 * MS)


# -- what a silence tells


def test_a_silence_in_a_step_that_was_finished_afterwards_is_a_pause_and_the_end_of_a_capture_is_nothing() -> None:
    late = make_ring(15, until_s=60)
    shifted = pl.when(pl.col("start_ns") >= BEGIN + 14 * 1200 * MS + 450 * MS).then(5_000 * MS).otherwise(0)
    messages = late.messages.with_columns(pl.col("start_ns", "end_ns") + shifted)
    steps = late.steps.with_columns(end_ns=pl.when(pl.col("index") == 14).then(pl.col("end_ns") + 5_000 * MS).otherwise("end_ns"))  # fmt: skip
    held_up = replace(late, messages=messages, steps=steps, observed_until_ns=BEGIN + 23_000 * MS)
    assert find_hang(held_up) == []
    (found,) = find_stalls(held_up, [])
    assert (found.kind, found.culprit.type) == ("stall", "job")
    assert find_hang(make_ring(15, left_out=drop_from(3, 14), until_s=14 * 1.2 + 0.5)) == []


def test_whom_the_others_wait_for_is_reported_as_a_hang_that_lasts_until_the_end() -> None:
    case = make_ring(15, left_out=drop_from(3, 14, but=(0, 1, 3)), until_s=60, cut=4096)
    (found,) = find_hang(case)
    assert name([found]) == [("hang", "h2")] and found.end_ns == case.observed_until_ns
    assert find_hang(make_ring(2, until_s=60)) == []  # too few steps to know what is usual
