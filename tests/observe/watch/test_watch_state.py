"""What a watch remembers: lasting names, findings reported once, and a window that stays bounded."""

from __future__ import annotations

from dataclasses import replace

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from watch_parts import S, make_finding, make_flows, make_report

from prism.errors import BadFileError
from prism.observe.watch.exporter_clocks import ExporterClocks
from prism.observe.watch.state import WatchState, load_state
from prism.observe.watch.window import FlowWindow, fit_length
from prism.records import FLOWS


def quick_state() -> WatchState:
    return WatchState(warm_up_ns=0)


def test_a_finding_is_reported_once_two_looks_agree_and_not_again():
    state = quick_state()
    assert state.handle(make_report(30, make_finding())) == []
    (told,) = state.handle(make_report(33, make_finding(end_s=8)))
    assert told.finding.culprit.id == "10.0.0.1" and not told.update and told.reported_ns == 33 * S
    assert state.handle(make_report(36, make_finding(end_s=11))) == []


def test_a_finding_that_is_seen_once_is_never_reported():
    state = quick_state()
    state.handle(make_report(30, make_finding()))
    state.handle(make_report(33))
    assert state.handle(make_report(36, make_finding())) == [] and len(state.findings) == 1


def test_the_last_look_reports_what_it_finds():
    assert len(quick_state().handle(make_report(30, make_finding()), final=True)) == 1


def test_a_hang_needs_no_second_look_and_stays_one_whoever_is_blamed_later():
    state = quick_state()
    (told,) = state.handle(make_report(30, make_finding(kind="hang", cost=100)))
    later = make_finding(kind="hang", culprit="10.0.0.7", cost=150, end_s=9)
    assert state.handle(make_report(33, later)) == []
    (again,) = state.handle(make_report(36, make_finding(kind="hang", culprit="10.0.0.7", cost=300, end_s=12)))
    assert again.update and again.id == told.id and again.finding.culprit == told.finding.culprit


def test_a_job_is_not_judged_before_it_was_seen_for_a_while():
    state = WatchState()
    for until in range(0, 20, 4):
        assert state.handle(make_report(until, make_finding(end_s=until))) == []
    assert len(state.handle(make_report(20, make_finding(end_s=20)))) == 1


def test_a_cost_that_doubles_is_reported_as_an_update():
    state = quick_state()
    state.handle(make_report(30, make_finding(cost=10)))
    (first,) = state.handle(make_report(33, make_finding(cost=10)))
    assert state.handle(make_report(36, make_finding(cost=15))) == []
    (update,) = state.handle(make_report(39, make_finding(cost=40)))
    assert update.update and update.id == first.id and update.finding.lost_gpu_seconds == 40
    assert update.to_json()["update"] is True


def test_the_cost_goes_on_growing_when_the_window_has_slid_past_the_beginning():
    state = quick_state()
    for end in range(10, 100, 5):
        state.handle(make_report(end, make_finding(start_s=max(0, end - 20), end_s=end, cost=min(end, 20))))
    (known,) = state.findings
    assert (known.start_ns, known.end_ns) == (0, 95 * S)
    assert known.cost == pytest.approx(95, rel=0.1)


def test_the_same_trouble_long_after_is_a_new_finding():
    state = quick_state()
    first = [state.handle(make_report(30 + i, make_finding(end_s=30))) for i in range(2)][1]
    second = [state.handle(make_report(300 + i, make_finding(start_s=290, end_s=300))) for i in range(2)][1]
    assert first[0].id != second[0].id


def test_jobs_keep_their_names_when_their_order_changes():
    state = quick_state()
    a, b = ["10.0.0.1", "10.0.0.2", "10.0.0.3"], ["10.0.1.1", "10.0.1.2", "10.0.1.3"]
    state.handle(make_report(1, jobs={"job-1": a, "job-2": b}))
    swapped = make_report(
        2,
        make_finding(job="job-1", culprit="job-1", evidence="job-1 against job-2"),
        jobs={"job-1": b[:2], "job-2": [*a, "10.0.0.9"], "job-3": ["10.0.2.1"]},
    )
    (told,) = state.handle(swapped, final=True)
    assert (told.finding.job, told.finding.culprit.id) == ("job-2", "job-2")
    assert told.finding.evidence == "job-2 against job-1"
    assert set(state.jobs) == {"job-1", "job-2", "job-3"} and state.jobs["job-1"].endpoints == (*a, "10.0.0.9")


@pytest.mark.parametrize(("studied", "over"), [(True, ["resolved"]), (False, [])])
def test_a_finding_is_over_only_once_its_job_was_studied_without_it(studied: bool, over: list[str]):
    state = quick_state()
    state.handle(make_report(27))
    for until in (30, 33):
        state.handle(make_report(until, make_finding(end_s=until), step_s=1.3))
    plain = make_report(36)
    jobs = tuple(replace(j, studied=studied) for j in plain.jobs)
    looks = [replace(plain, until_ns=s * S, jobs=jobs) for s in (36, 39, 42)]
    assert [told.status for look in looks for told in state.handle(look)] == over


@pytest.mark.parametrize("known", [True, False])
def test_a_fault_that_no_window_shows_any_more_stays_open_until_steps_are_as_before(known: bool, tmp_path):
    state = quick_state()
    if known:
        state.handle(make_report(27))  # its steps last a second
    for until in (30, 33, 36):
        state.handle(make_report(until, make_finding(end_s=until), step_s=1.3))
    state.save(tmp_path / "state.json")
    state = load_state(tmp_path / "state.json")
    assert [t for until in range(39, 120, 3) for t in state.handle(make_report(until, step_s=1.3))] == []
    assert len(state.firing()) == 1
    told = [t for until in range(120, 135, 3) for t in state.handle(make_report(until, step_s=1.02))]
    assert [t.status for t in told] == ["resolved"]


def test_a_stop_is_over_once_its_job_steps_again():
    state = quick_state()
    state.handle(make_report(30, make_finding(kind="hang", start_s=20, end_s=30, cost=100)))
    stands = make_report(33)
    still = [
        replace(stands, until_ns=s * S, jobs=(replace(stands.jobs[0], stepped_ns=20 * S),)) for s in range(33, 60, 3)
    ]
    assert [t for look in still for t in state.handle(look)] == []
    assert [t.status for until in (60, 63) for t in state.handle(make_report(until))] == ["resolved"]


def test_one_fault_is_one_finding_whatever_part_of_it_a_look_names():
    state = quick_state()
    state.handle(make_report(30, make_finding(kind="slow_step", culprit="job-1", end_s=30)))
    state.handle(make_report(33, make_finding(kind="slow_step", culprit="job-1", end_s=33)))
    jobs = {"job-1": ["10.0.0.1", "10.0.0.2", "10.0.1.1"]}
    names = ["10.0.0.1", "node-0", "10.0.0.2>leaf-3"]
    told = [
        state.handle(make_report(36 + 3 * i, make_finding(culprit=name, end_s=36 + 3 * i), jobs=jobs))
        for i, name in enumerate(names)
    ]
    assert len(state.findings) == 1 and state.findings[0].culprit == "10.0.0.2>leaf-3"
    assert [[(t.update, t.finding.kind) for t in look] for look in told] == [[(True, "slow_compute")], [], []]
    state.handle(make_report(45, make_finding(culprit="10.0.1.1", end_s=45), jobs=jobs))
    assert len(state.findings) == 2  # another host


def test_a_pause_as_long_as_earlier_ones_is_no_stall():
    state = quick_state()
    look = make_report(30)
    state.handle(replace(look, jobs=(replace(look.jobs[0], pause_s=20.0),)))
    for until in (130, 133):  # the window no longer holds the earlier pause
        assert (
            state.handle(make_report(until, make_finding(kind="stall", culprit="job-1", start_s=100, end_s=until)))
            == []
        )
    for until in (150, 153):
        told = state.handle(make_report(until, make_finding(kind="stall", culprit="job-1", start_s=100, end_s=until)))
    assert [t.finding.kind for t in told] == ["stall"]


def test_what_is_long_over_is_forgotten():
    state = quick_state()
    state.handle(make_report(30, make_finding()), final=True)
    state.handle(make_report(30 + 2 * 3600, jobs={"job-1": ["10.9.9.9"]}))
    assert state.findings == [] and set(state.jobs) == {"job-2"}


def test_a_saved_state_goes_on_where_it_stopped(tmp_path):
    path = tmp_path / "state.json"
    state = quick_state()
    state.handle(make_report(30, make_finding()))
    state.outbox, state.position = [{"id": "finding-0"}], {"a.parquet": [1, 2]}
    state.save(path)
    again = load_state(path)
    again.warm_up_ns = 0
    assert again.outbox == [{"id": "finding-0"}] and again.position == {"a.parquet": [1, 2]}
    assert [t.id for t in again.handle(make_report(33, make_finding()))] == ["finding-1"]
    assert [p.name for p in tmp_path.iterdir()] == ["state.json"]


@pytest.mark.parametrize(
    "content", ["", "{}", "[]", '{"schema": "other/1"}', '{"schema": "prism.watch-state/1", "jobs": 3}']
)
def test_a_file_that_is_no_state_is_one_clear_line(tmp_path, content):
    path = tmp_path / "state.json"
    path.write_text(content)
    with pytest.raises(BadFileError, match="state.json: not a state of prism watch"):
        load_state(path)


def test_the_window_is_bounded_in_time_and_its_files_go_with_it(tmp_path):
    window = FlowWindow(10 * S, 1000, tmp_path / "w")
    for i in range(50):
        window.add(make_flows([i]))
        window.seal()
    assert window.num_rows <= 12 and len(list((tmp_path / "w").iterdir())) == window.num_rows
    assert window.flows(window.newest_ns).height == 11


def test_the_window_is_bounded_in_rows_and_counts_what_it_lets_go():
    window = FlowWindow(1000 * S, 100)
    for i in range(20):
        window.add(make_flows([i + k / 100 for k in range(30)]))
        window.seal()
    assert window.num_rows <= 100
    assert window.dropped["flows beyond the limit of the window"] == 600 - window.num_rows
    window.add(make_flows([30 + k / 1000 for k in range(900)]))
    window.seal()
    assert window.num_rows == 100 and window.flows(window.newest_ns).height == 100


def test_odd_flows_are_left_out_and_cannot_move_the_window():
    window = FlowWindow(10 * S, 1000)
    window.add(make_flows([1, 2, 3]))
    newest = window.newest_ns
    assert window.add(make_flows([4 * 3600])) == 0
    assert window.add(make_flows([-3600])) == 0
    odd = make_flows([4]).with_columns(bytes=pl.lit(-1, pl.Int64))
    assert window.add(odd) == 0 and window.add(make_flows([4]).with_columns(end_ns=pl.lit(5, pl.Int64))) == 0
    assert window.newest_ns == newest and window.num_rows == 3 and window.dropped.total() == 4
    assert window.add(make_flows([9000 + i / 100 for i in range(50)])) == 50  # many agree: the clock has jumped


def test_flows_without_an_end_count_by_their_start():
    window = FlowWindow(10 * S, 1000)
    window.add(make_flows([1, 2]).with_columns(end_ns=pl.lit(None, pl.Int64)))
    window.seal()
    assert window.flows(window.newest_ns).height == 2


def test_a_window_comes_back_after_a_kill_less_a_file_cut_short(tmp_path):
    folder = tmp_path / "w"
    window = FlowWindow(100 * S, 1000, folder)
    for i in range(3):
        window.add(make_flows([i]))
        window.seal()
    (folder / "00000009.parquet").write_bytes(b"PAR1 cut")
    again = FlowWindow(100 * S, 1000, folder)
    again.restore()
    assert again.num_rows == 3 and again.newest_ns == window.newest_ns
    assert again.dropped["segments cut by a kill"] == 1
    again.add(make_flows([5]))
    again.seal()
    assert len(list(folder.iterdir())) == 4


@given(st.lists(st.lists(st.floats(0, 500), max_size=20), max_size=20), st.integers(1, 50))
def test_whatever_comes_the_window_holds_its_limits_and_counts_the_rest(batches, limit):
    window = FlowWindow(30 * S, limit)
    kept = 0
    for ends in batches:
        kept += window.add(make_flows(ends)) if ends else window.add(FLOWS.empty())
        window.seal()
        assert window.num_rows <= limit
    late = window.dropped["flows that came too late"]
    assert kept + late == sum(len(b) for b in batches)


def test_an_exporter_an_hour_off_is_set_right_and_others_left_alone():
    clocks = ExporterClocks()
    now = (1_700_000_000 + 10) * S
    right = make_flows([9]).with_columns(exporter=pl.lit("a"))
    ahead = make_flows([3609, 3609.5]).with_columns(exporter=pl.lit("b"))
    behind = make_flows([-3600]).with_columns(exporter=pl.lit("c"))
    found = clocks.correct(pl.concat([right, ahead, behind]), now)
    assert set(clocks.shifts_ns) == {"b", "c"}
    moved = found.filter(pl.col("exporter") != "a")
    assert (moved["end_ns"] - now).abs().max() <= S
    assert found.filter(exporter="a")["end_ns"].to_list() == right["end_ns"].to_list()
    later = clocks.correct(ahead.with_columns(pl.col("end_ns") + S), now + S)
    assert later["end_ns"].max() == now + S and later["end_ns"][1] - later["end_ns"][0] == S // 2


def test_looks_that_take_too_long_go_less_far_back_but_keep_some_steps():
    assert fit_length(60 * S, 60 * S, 1.0, 2.0) == 72 * S, "quick looks go further back"
    assert fit_length(60 * S, 20 * S, 8.0, 1.0) == 12 * S, "what counts is how much was looked at"
    assert fit_length(60 * S, 40 * S, 5.0, 1.0) == 32 * S
    assert fit_length(60 * S, 60 * S, 40.0, 4.0) == 48 * S, "twelve steps of the slowest job are kept"


def test_a_shorter_look_takes_the_end_of_the_window():
    window = FlowWindow(60 * S, 10_000)
    for i in range(40):
        window.add(make_flows([i]))
        window.seal()
    assert window.flows(window.newest_ns, 10 * S)["end_ns"].to_list() == [
        (1_700_000_000 + i) * S for i in range(29, 40)
    ]
    assert window.held_ns == 39 * S


def test_the_window_keeps_what_samples_are_put_together_by():
    window = FlowWindow(60 * S, 1000)
    samples = make_flows([1, 2, 3]).with_columns(
        qp=pl.lit(7, pl.Int64),
        packets=pl.lit(100, pl.Int64),
        sampling_rate=pl.lit(100, pl.Int64),
        exporter=pl.lit("leaf-1"),
    )
    window.add(samples)
    window.add(make_flows([4]))
    window.seal()
    held = window.flows((1_700_000_000 + 10) * S)
    assert held.height == 4 and held["qp"].to_list() == [7, 7, 7, None]
    counted = FlowWindow(60 * S, 1000)
    counted.add(make_flows([1]).with_columns(qp=pl.lit(7, pl.Int64), packets=pl.lit(3, pl.Int64)))
    counted.seal()
    assert counted.flows((1_700_000_000 + 10) * S).columns == ["start_ns", "end_ns", "src", "dst", "bytes"]
