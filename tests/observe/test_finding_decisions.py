"""Findings drawn from hand-made inputs: each kind is told where it must be, and nothing where it must not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from prism.observe.delays import ranking
from prism.observe.findings.case import Case, culprit
from prism.observe.findings.cost import JobModel, _compare
from prism.observe.findings.durations import compare_with_peers, list_rows, measure_durations
from prism.observe.findings.progress import find_slow_steps
from prism.observe.findings.silence import find_hang
from prism.observe.findings.stages import find_heavy_stages
from prism.observe.findings.suspects import Ranked, Scene, rank_suspects, weigh_rivals
from prism.observe.findings.transfers import SlowPair
from prism.observe.findings.verdicts import Proposal, choose, covers, weigh
from prism.observe.findings.windows import Window, find_window, quantile_rows, spread_of
from prism.observe.findings.work_table import WorkTable
from prism.observe.jobs.grouping import ObservedJob
from prism.observe.parallelism.stages import NO_STAGES, StageMap
from prism.observe.steps.work import WORK
from prism.records.findings import Finding
from prism.records.layout import Layout

MS, S = 10**6, 10**9
BEGIN = 1_700_000_000 * S + 123_456_789
HOSTS = 4
MESSAGES = {
    "pair": pl.UInt32, "stream": pl.UInt32, "src": pl.UInt32, "dst": pl.UInt32, "kind": pl.String, "role": pl.String,
    "start_ns": pl.Int64, "end_ns": pl.Int64, "bytes": pl.Int64, "step": pl.Int32, "place": pl.Int32, "num": pl.Int32,
}  # fmt: skip


def make_case(
    lengths: Sequence[float],
    messages: pl.DataFrame | None = None,
    *,
    pauses: dict[int, float] | None = None,
    until_s: float | None = None,
    stages: StageMap = NO_STAGES,
) -> Case:
    """Steps of these lengths in seconds; without messages, each has one that fills it but for its pause."""
    ends = BEGIN + np.round(np.cumsum(lengths) * S).astype(np.int64)
    starts = np.r_[BEGIN, ends[:-1]]
    steps = pl.DataFrame({"index": np.arange(len(ends), dtype=np.int32), "start_ns": starts, "end_ns": ends})
    if messages is None:
        silent = np.array([round((pauses or {}).get(i, 0.0) * S) for i in range(len(ends))])
        messages = make_messages(
            [(0, int(a), int(b), i) for i, (a, b) in enumerate(zip(starts, ends - silent, strict=True))]
        )
    until = int(ends[-1]) if until_s is None else BEGIN + round(until_s * S)
    streams = messages.group_by("stream", maintain_order=True).agg(
        pl.col("pair", "src", "dst", "kind", "role").first(),
        duration_ns=(pl.col("end_ns") - pl.col("start_ns")).median(),
        bytes=pl.col("bytes").median(),
        num=pl.len(),
        cut=pl.lit(False),
    )
    names = range(HOSTS)
    return Case(
        job=ObservedJob(
            id="job-1", endpoints=np.arange(HOSTS), pairs=np.arange(HOSTS), storage_pairs=np.empty(0, np.int64),
            period_ns=float(np.median(lengths)) * S, first_ns=BEGIN, last_ns=int(ends[-1]),
        ),
        layout=Layout(), stages=stages, steps=steps, messages=messages, work=pl.DataFrame(schema=WORK),
        endpoints=pl.DataFrame({
            "address": [f"10.0.{h}.1" for h in names], "host": [f"h{h}" for h in names],
            "switch": [f"leaf{h // 2}" for h in names],
        }),
        streams=streams, observed_until_ns=until,
    )  # fmt: skip


def make_messages(rows: list[tuple[int, int, int, int]], kind: str = "dp", size: int = 1_000_000) -> pl.DataFrame:
    """Messages (sender, start, end, step) of a ring: each sends to the next host."""
    frame = pl.DataFrame(rows, schema=["src", "start_ns", "end_ns", "step"], orient="row")
    own = ["src", "step"]
    return frame.select(
        pair="src", stream="src", src="src", dst=(pl.col("src") + 1) % HOSTS, kind=pl.lit(kind), role=pl.lit("oneway"),
        start_ns="start_ns", end_ns="end_ns", bytes=pl.lit(size), step="step",
        place=pl.int_range(pl.len()).over(own), num=pl.len().over(own),
    ).cast(MESSAGES)  # type: ignore[arg-type]  # fmt: skip


def name(found: Sequence[Finding]) -> list[tuple[str, str]]:
    return [(f.kind, f.culprit.id) for f in found]


def make_finding(first_s: float, last_s: float, *, lost: float = 100.0, score: float = 0.9, who: str = "h1") -> Finding:
    return Finding(
        kind="slow_compute", job="job-1", culprit=culprit("host", who), start_ns=BEGIN + round(first_s * S),
        end_ns=BEGIN + round(last_s * S), lost_gpu_seconds=lost, score=score, evidence="",
    )  # fmt: skip


# Windows


def test_a_window_is_the_stretch_with_most_above_the_threshold() -> None:
    excess = np.array([0.0, 0.5, np.nan, 0.1, 0.5, 0.0, 0.0, 0.3])
    window = find_window(excess, 0.2)
    assert window == Window(1, 4, pytest.approx((0.5 + 0.1 + 0.5) / 3), pytest.approx(2 / 3))  # type: ignore[arg-type]
    assert window is not None and window.length == 4


def test_there_is_no_window_where_nothing_is_above_the_threshold() -> None:
    assert find_window(np.array([0.2, 0.1, np.nan]), 0.2) is None
    assert find_window(np.empty(0), 0.2) is None


def test_the_spread_is_that_of_normal_noise_whatever_one_outlier_does() -> None:
    noise = np.random.default_rng(0).normal(5, 2, 20_000)
    noise[0], noise[1] = 1e9, np.nan
    assert spread_of(noise) == pytest.approx(2, rel=0.05)
    assert spread_of(np.array([np.nan])) == 0.0


def test_a_quantile_of_rows_leaves_out_what_is_not_known() -> None:
    values = np.array([[4.0, 1.0, np.nan, 3.0, 2.0], [np.nan] * 5])
    assert quantile_rows(values, 0.5, axis=1)[0] == 2.0
    assert np.isnan(quantile_rows(values, 0.5, axis=1)[1])
    assert quantile_rows(values, 0.25, axis=0)[:2].tolist() == [4.0, 1.0]


# Steps: slow, drifting, with longer pauses


def test_a_stretch_of_long_steps_is_reported_with_what_it_cost() -> None:
    lengths = [1.0] * 20 + [1.5] * 6 + [1.0] * 10
    (found,) = find_slow_steps(make_case(lengths))
    assert (found.kind, found.culprit.type) == ("slow_step", "job")
    assert (found.start_ns, found.end_ns) == (BEGIN + 20 * S, BEGIN + 29 * S)
    assert found.lost_gpu_seconds == pytest.approx(6 * 0.5 * HOSTS, rel=0.01)
    assert found.score == 0.95


@pytest.mark.parametrize(
    "lengths",
    [
        [1.0] * 30,
        [1.0] * 4,
        [1.0] * 20 + [1.05] * 6 + [1.0] * 10,  # hardly longer
        [1.0] * 20 + [1.6] + [1.0] * 10,  # a single one that costs little
        [1.0] + [1.5] * 30,  # longer than the first, always
    ],
)
def test_usual_steps_are_not_reported(lengths: list[float]) -> None:
    assert find_slow_steps(make_case(lengths)) == []


def test_one_step_that_takes_several_is_reported() -> None:
    assert name(find_slow_steps(make_case([1.0] * 20 + [3.5] + [1.0] * 10))) == [("slow_step", "job-1")]
    assert name(find_slow_steps(make_case([1.0] * 20 + [2.4]))) == [("slow_step", "job-1")]


def test_steps_that_are_long_because_a_boundary_was_missed_are_not_reported() -> None:
    lengths = [1.0] * 20 + [2.0] * 3 + [1.0] * 10
    ends = BEGIN + np.round(np.cumsum(lengths) * S).astype(np.int64)
    rows = []
    for i, (end, length) in enumerate(zip(ends.tolist(), lengths, strict=True)):
        halves = 2 if length > 1.5 else 1
        rows += [(0, end - (k + 1) * S, end - k * S, i) for k in range(halves)]
    assert find_slow_steps(make_case(lengths, make_messages(rows))) == []


# Verdicts: a cause against none


def test_a_cause_whose_steps_are_no_longer_than_the_others_does_not_beat_none() -> None:
    rng = np.random.default_rng(3)
    case = make_case((1 + 0.02 * rng.standard_normal(40)).tolist())
    lengths = np.r_[case.length_s[:20] * 1.2, case.length_s[20:]]
    slow = make_case(lengths.tolist())
    cause = make_finding(0, float(lengths[:20].sum()))
    assert choose(slow, [Proposal(finding=cause, gain=10.0)]) == [cause]
    assert weigh(slow, cause) > 0.999
    short = make_finding(0, float(case.length_s[:20].sum()))
    assert weigh(make_case((case.length_s * np.r_[np.full(20, 0.99), np.ones(20)]).tolist()), short) == 0.0


def test_a_cause_is_reported_no_surer_than_that_there_is_one() -> None:
    noise = 0.02 * np.random.default_rng(2).standard_normal(40)
    lengths = 1 + noise + np.r_[np.full(20, 0.016), np.zeros(20)]
    case = make_case(lengths.tolist())
    cause = make_finding(0, float(lengths[:20].sum()), score=0.99)
    (told,) = choose(case, [Proposal(finding=cause, gain=10.0)])
    assert 0.5 <= told.score < 0.95


def test_what_lasts_all_the_time_has_no_steps_to_be_compared_with() -> None:
    assert weigh(make_case([1.0] * 10), make_finding(0, 10)) == 1.0


# Heavy stages


def make_stages(work: list[float], confidence: float = 1.0) -> tuple[Case, WorkTable]:
    """Stages on one host each; forward takes a third and backward the rest, the last one is seen as a whole."""
    chain = tuple(range(HOSTS))
    case = make_case([1.0] * 12, stages=StageMap(stage={e: e for e in chain}, chains=(chain,), confidence=confidence))
    seconds = np.array(work)[:, None] * np.ones((1, 12))
    hidden = np.full_like(seconds, np.nan)
    forward, backward, turn = hidden.copy(), hidden.copy(), hidden.copy()
    forward[1:-1], backward[1:-1], turn[-1] = seconds[1:-1] / 3, 2 * seconds[1:-1] / 3, seconds[-1]
    phases = {"forward": forward, "backward": backward, "turn": turn}
    table = WorkTable(np.arange(HOSTS), np.arange(HOSTS), np.array([f"h{h}" for h in range(HOSTS)]), phases)
    return case, table


def test_a_stage_with_more_work_than_the_others_is_heavy() -> None:
    (proposed,) = find_heavy_stages(*make_stages([0.03, 0.03, 0.045, 0.03]))
    found = proposed.finding
    assert proposed.gain > 0
    assert (found.kind, found.culprit.type, found.culprit.id) == ("stage_imbalance", "stage", "2")
    assert found.score == 0.95 and found.lost_gpu_seconds > 0


@pytest.mark.parametrize("work", [[0.03, 0.03, 0.03, 0.03], [0.03, 0.03, 0.035, 0.03], [0.03, 0.03, 0.03, 0.045]])
def test_stages_that_differ_little_and_a_last_one_with_its_output_layer_are_not_reported(work: list[float]) -> None:
    assert find_heavy_stages(*make_stages(work)) == []


def test_a_last_stage_far_heavier_than_its_output_layer_is_reported() -> None:
    assert name([p.finding for p in find_heavy_stages(*make_stages([0.03, 0.03, 0.03, 0.06]))]) == [
        ("stage_imbalance", "3")
    ]


def test_stages_that_are_not_known_well_are_not_judged() -> None:
    assert find_heavy_stages(*make_stages([0.03, 0.03, 0.045, 0.03], confidence=0.7)) == []


def test_stages_that_hold_several_pieces_each_are_not_judged() -> None:
    case, table = make_stages([0.03, 0.03, 0.045, 0.03])
    ring = make_messages([(HOSTS - 1, BEGIN, BEGIN + MS, 0)], kind="pp")  # the last stage sends to the first
    assert find_heavy_stages(make_case([1.0] * 12, ring, stages=case.stages), table) == []


# Silences


def make_ring(steps: int, *, left_out: Sequence[tuple[int, int, int]] = (), until_s: float, cut: int = 0) -> Case:
    """A ring that sums six layers in each step of 1.2 s; `left_out` names messages (sender, step, layer)."""
    rows = []
    for step in range(steps):
        for layer in range(6):
            begin = BEGIN + step * 1200 * MS + layer * 150 * MS
            rows += [(h, begin, begin + 100 * MS, step) for h in range(HOSTS) if (h, step, layer) not in left_out]
    messages = make_messages(rows)
    if cut:
        # The last messages that were begun got nowhere: a record of a few bytes, on a stream of its own.
        last = pl.col("start_ns") == pl.col("start_ns").max()
        messages = messages.with_columns(
            bytes=pl.when(last).then(cut).otherwise("bytes"),
            stream=pl.when(last).then(pl.col("stream") + HOSTS).otherwise("stream"),
        ).cast(MESSAGES)  # type: ignore[arg-type]
    return make_case([1.2] * steps, messages, until_s=until_s)


def drop_from(first_layer: int, step: int, *, but: tuple[int, ...] = ()) -> list[tuple[int, int, int]]:
    """All messages of a step from a layer on, but those of some senders in that layer itself."""
    return [
        (h, step, layer) for layer in range(first_layer, 6) for h in range(HOSTS) if layer > first_layer or h not in but
    ]


def test_a_job_that_ends_with_a_whole_step_is_no_hang() -> None:
    assert find_hang(make_ring(15, until_s=60)) == []


def test_a_job_that_runs_to_the_end_is_no_hang() -> None:
    assert find_hang(make_ring(15, until_s=18)) == []


def test_a_job_that_was_killed_has_nobody_who_waited_and_is_no_hang() -> None:
    assert find_hang(make_ring(15, left_out=drop_from(3, 14), until_s=60)) == []


def test_whom_the_others_wait_for_has_stopped() -> None:
    case = make_ring(15, left_out=drop_from(3, 14, but=(0, 1, 3)), until_s=60, cut=4096)
    (found,) = find_hang(case)
    assert name([found]) == [("hang", "h2")]
    assert found.start_ns < found.end_ns == case.observed_until_ns
    assert found.score == 0.95
    assert found.lost_gpu_seconds == pytest.approx((60 - (14 * 1.2 + 0.55)) * HOSTS, rel=0.02)


def test_too_few_steps_tell_nothing() -> None:
    assert find_hang(make_ring(2, left_out=drop_from(3, 1), until_s=60)) == []


# Durations


def test_waiting_for_a_late_rank_is_no_transfer() -> None:
    rows = []
    for step in range(6):
        begin = BEGIN + step * S
        rows += [(h, begin + (300 * MS if h == 2 else 0), begin + 400 * MS, step) for h in range(HOSTS)]
    cells, _ = measure_durations(make_case([1.0] * 6, make_messages(rows)))
    assert cells.took.tolist() == pytest.approx([100 * MS] * (6 * HOSTS))
    assert cells.whole.max() == pytest.approx(400 * MS)
    usual, whole, peers = compare_with_peers(cells)
    assert set(peers.tolist()) == {HOSTS}
    assert usual.tolist() == pytest.approx([100 * MS] * (6 * HOSTS)) and whole.max() <= 400 * MS


def test_messages_between_two_take_their_own_time_and_stand_alone() -> None:
    rows = [(h, BEGIN + s * S, BEGIN + s * S + (100 + 50 * h) * MS, s) for s in range(6) for h in range(HOSTS)]
    cells, paces = measure_durations(make_case([1.0] * 6, make_messages(rows, kind="pp")))
    took = {int(s): t for s, t in zip(cells.stream, cells.took, strict=True)}
    assert took == {h: pytest.approx((100 + 50 * h) * MS) for h in range(HOSTS)}
    found, row = list_rows(cells)
    assert found["unit"].n_unique() == HOSTS and row.tolist() == [0, 1, 2, 3]
    assert paces["pace"].min() == pytest.approx(100 * MS / 1_000_000)


def test_hops_of_one_group_hang_together() -> None:
    rows = [(h, BEGIN + s * S, BEGIN + s * S + 100 * MS, s) for s in range(6) for h in range(HOSTS)]
    found, _ = list_rows(measure_durations(make_case([1.0] * 6, make_messages(rows)))[0])
    assert found["unit"].n_unique() == 1


# Suspects


def test_a_transfer_that_paused_after_its_first_bytes_tells_nothing_of_its_link() -> None:
    rows = [(h, BEGIN + i * S + h, BEGIN + i * S + 10 * MS, i) for i in range(6) for h in range(HOSTS)]
    messages = make_messages(rows)
    begun = pl.when(pl.col("src") == 1).then(300_000).otherwise(0).alias("begun")
    cells, paces = measure_durations(make_case([1.0] * 6, messages.with_columns(begun)))
    assert sorted(cells.streams["src"].unique()) == [0, 2, 3]
    assert 1 not in paces["pair"] and 1 in measure_durations(make_case([1.0] * 6, messages))[1]["pair"]


def make_scene(slow: Sequence[int], quick: Sequence[int]) -> Scene:
    """Pairs 0>1, 1>2, 2>3, 3>0 that stand alone, two hosts to a leaf."""
    case = make_case([1.0] * 6)
    touches = []
    for h in range(HOSTS):
        ends = (h, (h + 1) % HOSTS)
        leaves = {("switch", f"leaf{e // 2}") for e in ends}
        touches.append({("pair", f"{ends[0]}>{ends[1]}")} | {("nic", str(e)) for e in ends} | leaves)
    pairs = {
        h: SlowPair(
            pair=h, src=h, dst=(h + 1) % HOSTS, kind="dp", window=Window(0, 5, 1.0, 1.0), sure=20.0, extra_s=1.0,
            steady=True, sound=True, early=False, even=False, slow_steps=(0, 1, 2),
        )
        for h in slow
    }  # fmt: skip
    return Scene(case, pairs, frozenset(quick), touches, list(range(HOSTS)), frozenset(), np.zeros((HOSTS, 12)))


def test_the_suspect_that_touches_all_that_is_slow_and_nothing_quick_comes_first() -> None:
    scene = make_scene([0, 1], [2, 3])
    best = rank_suspects(scene, scene.slow, ())[0]
    assert (best.suspect, best.score, best.misses) == (("nic", "1"), 2.0, 0)


def test_what_should_be_slow_and_is_not_weighs_twice() -> None:
    scores = {r.suspect: r.score for r in rank_suspects(make_scene([0, 1], [2, 3]), make_scene([0, 1], []).slow, ())}
    assert scores["switch", "leaf0"] == 2 - 2 * 1  # pair 3>0 enters the leaf and is quick
    assert scores["nic", "2"] == 1 - 2 * 1


def test_another_job_speaks_for_what_it_shares() -> None:
    scene, other = make_scene([0], [2, 3]), make_scene([1], [2, 3])
    scores = {r.suspect: r.score for r in rank_suspects(scene, scene.slow, [other])}
    assert scores["nic", "1"] == 1 + 1
    assert scores["nic", "0"] == 1 - 2 * 1 - 2 * 1  # pair 3>0 is quick in both


# What is told, and in which order


def test_a_standing_job_comes_before_cost_and_cost_before_confidence() -> None:
    stands = ranking._weight(make_finding(0, 10, lost=1), BEGIN + 10 * S)
    assert not stands[0]
    cheap, dear = make_finding(0, 5, lost=10), make_finding(0, 5, lost=20)
    assert ranking._weight(dear, 0) > ranking._weight(cheap, 0)


def test_a_cause_is_worth_telling_where_it_costs_more_than_half_a_percent_while_it_lasts() -> None:
    case = make_case([1.0] * 100)
    assert case.gpus == HOSTS
    assert ranking._is_worth_telling(case, make_finding(0, 50, lost=1.1 * HOSTS * 0.005 * 50))
    assert not ranking._is_worth_telling(case, make_finding(0, 50, lost=0.9 * HOSTS * 0.005 * 50))
    assert not ranking._is_worth_telling(case, make_finding(0, 1, lost=0.9 * HOSTS * 0.001 * 100))


def test_what_a_cause_covers_is_not_reported_again() -> None:
    cause, effect, later = make_finding(0, 10), make_finding(2, 8), make_finding(9, 20)
    assert covers(cause, effect) and not covers(cause, later)
    proposed = [Proposal(finding=f, gain=1.0) for f in (effect, later)]
    assert ranking._apart_from([cause], proposed) == proposed[1:]


def test_a_healthy_job_has_no_findings_and_a_slow_stretch_of_unknown_cause_is_reported() -> None:
    assert ranking.find_all([make_case([1.0] * 30)]) == ()
    lengths = [1.0] * 20 + [1.5] * 6 + [1.0] * 10
    ends = BEGIN + np.round(np.cumsum(lengths) * S).astype(np.int64)
    # All compute longer: every transfer takes as long as ever.
    rows = [(h, int(end) - 100 * MS, int(end) - MS, i) for i, end in enumerate(ends) for h in range(HOSTS)]
    assert name(ranking.find_all([make_case(lengths, make_messages(rows))])) == [("slow_step", "job-1")]


def test_where_boundaries_wander_nobody_is_late_and_no_step_is_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths = [1.0] * 20 + [1.5] * 6 + [1.0] * 10
    ends = BEGIN + np.round(np.cumsum(lengths) * S).astype(np.int64)
    shares = (0.2, 0.5, 0.8)
    rows = [(h, int(end - share * S), int(end - share * S) + 50 * MS, i)
            for i, end in enumerate(ends) for share in shares for h in range(HOSTS)]  # fmt: skip
    right = make_case(lengths, make_messages(rows))
    assert not right.wanders and name(ranking.find_all([right])) == [("slow_step", "job-1")]
    # Every other boundary lies between two messages of the step that it ends.
    moved = pl.when(pl.int_range(pl.len()) % 2 == 0).then(pl.col("end_ns") - 350 * MS).otherwise("end_ns")
    steps = right.steps.with_columns(end_ns=moved)
    steps = steps.with_columns(start_ns=pl.col("end_ns").shift(1, fill_value=BEGIN))
    wandering = replace(right, steps=steps)
    monkeypatch.setattr(ranking, "find_delays", lambda *_: [Proposal(finding=make_finding(0, 30), gain=9.0)])
    notes: list[str] = []
    assert wandering.wanders and ranking.find_all([wandering], notes=notes) == ()
    assert [note.split(":")[0] for note in notes] == ["job-1"]


# How sure: against other places, and by solving the job


def rank(name: str, units: set[int], score: float) -> Ranked:
    return Ranked(("nic", name), frozenset(units), score, 0, 1.0)


def test_a_place_is_as_sure_as_it_is_ahead_of_its_rivals() -> None:
    best, close, far = rank("1", {1, 2, 3, 4}, 4.0), rank("2", {1, 2, 3}, 3.0), rank("3", {1}, 1.0)
    assert weigh_rivals([best], [best.suspect]) == {}
    weak, strong = (weigh_rivals([best, r], [best.suspect])[r.suspect] for r in (far, close))
    assert weak < 0.1 < strong < 0.5
    even = rank("4", {5, 6, 7, 8}, 4.0)
    assert weigh_rivals([best, even], [best.suspect]) == {even.suspect: 0.5}
    assert weigh_rivals([best, even], [best.suspect, even.suspect]) == {}


def test_a_slow_stage_is_as_sure_as_the_solved_job_reproduces_the_steps() -> None:
    work = np.full((2, 1), 1e8)
    healthy = JobModel(work, 2 * work, np.zeros((2, 1)), np.zeros(2), 4)
    slow = replace(healthy, forward=work * [[1.0], [1.4]], backward=2 * work * [[1.0], [1.4]])
    usual, longer = healthy.step_ns() / 1e9, slow.step_ns() / 1e9
    window = Window(8, 15, 0.4, 1.0)
    assert _compare(make_case([usual] * 8 + [longer] * 8), window, slow, healthy).margin > 0.9
    assert _compare(make_case([usual] * 16), window, slow, healthy).margin < 0.1


def test_a_transfer_that_overlaps_with_work_costs_its_own_time_at_most() -> None:
    work = np.full((2, 1), 1e8)
    healthy = JobModel(work, 2 * work, np.zeros((2, 1)), np.zeros(2), 4)
    slow = replace(healthy, passing=np.full((2, 1), 3e8))
    usual = healthy.step_ns() / 1e9
    third = usual + (slow.step_ns() / 1e9 - usual) / 3
    case, window = make_case([usual] * 8 + [third] * 8), Window(8, 15, 3.0, 1.0)
    assert _compare(case, window, slow, healthy).margin < 0.5
    assert _compare(case, window, slow, healthy, overlaps=True).margin > 0.9
