"""Who is late: rings of several hosts with a late rank, stalls between steps, and what a clean bill says."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from test_finding_decisions import make_case

from prism.observe.delays.lateness import Lateness
from prism.observe.delays.uneven import find_uneven
from prism.observe.diagnose import diagnose
from prism.observe.diagnosis import Diagnosis
from prism.observe.traffic.torn_transfers import find_torn

STEPS, BUCKETS, RAILS, FORWARD_S, PIECE_S, SEND_S = 40, 4, 2, 0.5, 0.08, 0.02
BYTES = 50_000_000


def ring(
    hosts: int, *, late: tuple[int, int] | None = None, by: float = 0.0, since: int = 0, both: bool = False,
    stall: tuple[int, float] | None = None, every: tuple[int, float] | None = None,
) -> Diagnosis:  # fmt: skip
    """A diagnosis of `ring_flows`."""
    return diagnose(*ring_flows(hosts, late=late, by=by, since=since, both=both, stall=stall, every=every))


def ring_flows(
    hosts: int, *, late: tuple[int, int] | None = None, by: float = 0.0, since: int = 0, both: bool = False,
    stall: tuple[int, float] | None = None, every: tuple[int, float] | None = None, first: int = 0, begin_s: float = 0.0,
) -> tuple[pl.DataFrame, pl.DataFrame]:  # fmt: skip
    """Data parallel training: every rank sends each bucket around the ring of its rail once all have come.

    `late` is a host and a rail that work longer `by` a share; with `both` a hop begins once both of its ends are ready.
    `stall` is one pause after a step, `every` one that recurs.
    """
    rng, rows, now = np.random.default_rng(0), [], begin_s
    for step in range(STEPS):
        ready = np.full((hosts, RAILS), now + FORWARD_S)
        for _ in range(BUCKETS):
            work = PIECE_S * (1 + rng.normal(0, 0.003, ready.shape))
            if late is not None and step >= since:
                work[late] *= 1 + by
            ready = ready + work
            end = ready.max() + SEND_S
            for h in range(hosts):
                for r in range(RAILS):
                    to = (h + 1) % hosts
                    begin = max(ready[h, r], ready[to, r]) if both else ready[h, r]
                    rows.append((begin + rng.uniform(0, 1e-5), end + rng.uniform(0, 1e-5), h, to, r))
            ready = np.maximum(ready, end)
        now = end + 0.05
        now += stall[1] if stall is not None and step == stall[0] else 0.0
        now += every[1] if every is not None and step % every[0] == 0 else 0.0
    flows = pl.DataFrame(rows, schema=["begin", "end", "h", "to", "r"], orient="row").sort("begin")
    name = [pl.format("10.0.{}.{}", pl.col(side) + 1 + first, pl.col("r") + 1) for side in ("h", "to")]
    flows = flows.select(
        start_ns=10**18 + (pl.col("begin") * 1e9).cast(pl.Int64), end_ns=10**18 + (pl.col("end") * 1e9).cast(pl.Int64),
        src=name[0], dst=name[1], bytes=pl.lit(BYTES),
    )  # fmt: skip
    topology = pl.DataFrame(
        [
            (f"10.0.{h + first + 1}.{r + 1}", f"host-{h + first}", r, f"leaf-{r}")
            for h in range(hosts)
            for r in range(RAILS)
        ],
        schema=["address", "host", "rail", "switch"],
        orient="row",
    )
    return flows, topology


def told(diagnosis: Diagnosis) -> list[tuple[str, str]]:
    return [(f.kind, f.culprit.id) for f in diagnosis.findings]


@pytest.mark.parametrize("both", [False, True], ids=["with its sender", "with both ends"])
@pytest.mark.parametrize("since", [0, 20], ids=["always", "from the middle"])
def test_a_late_rank_is_named_and_not_its_neighbour_however_a_hop_begins(both: bool, since: int) -> None:
    found = ring(4, late=(2, 1), by=0.3, since=since, both=both)
    assert told(found) == [("slow_compute", "10.0.3.2")]
    assert found.findings[0].score >= 0.9


def test_of_two_that_wait_for_each_other_both_are_named() -> None:
    (finding,) = ring(2, late=(1, 0), by=0.3, since=20, both=True).findings
    assert finding.culprit.type == "group"
    assert set(finding.culprit.id.split(",")) == {"10.0.1.1", "10.0.2.1"}
    assert "do not show which of the two" in finding.evidence


def test_of_two_the_one_whose_hop_begins_late_is_named_where_hops_begin_with_their_sender() -> None:
    assert told(ring(2, late=(1, 0), by=0.3, since=20)) == [("slow_compute", "10.0.2.1")]


def test_a_stall_between_two_steps_is_told_with_what_it_costs_and_names_nobody() -> None:
    (finding,) = ring(4, stall=(20, 9.0)).findings
    assert (finding.kind, finding.culprit.type) == ("stall", "job")
    assert finding.lost_gpu_seconds == pytest.approx(9.0 * 8, rel=0.05)
    assert 9.0 < (finding.end_ns - finding.start_ns) / 1e9 < 10.0  # with the usual silence of a step


def test_a_pause_that_a_job_has_again_and_again_is_no_stall() -> None:
    assert told(ring(4, every=(8, 5.0))) == []


def test_a_clean_bill_says_what_was_compared_and_the_smallest_fault_that_would_have_been_seen() -> None:
    (job,) = ring(4).jobs
    document = job.to_json()["compared"]
    assert document["what"] and document["ranks"] == 8 and document["steps"] > 30
    assert 0 < document["smallest_fault"]["begins"] < document["smallest_fault"]["lasts"] < 0.1
    assert ring(4, late=(2, 1), by=0.3).jobs[0].compared is None


def test_the_only_whole_hop_of_a_thousand_shows_which_records_are_parts_of_one() -> None:
    """Of a ring only the rank that comes last sends its hop at once; all others send a first part and wait."""
    rows, num = [], 600
    for call in range(8):
        at = call * 10**9
        rows += [(h, at + h, at + h + 1000, 4_000_000) for h in range(num - 1)]
        rows += [(h, at + 5 * 10**7, at + 6 * 10**7, 68_354_166) for h in range(num - 1)]
        rows += [(num - 1, at + 5 * 10**7, at + 6 * 10**7, 72_354_166)]
    connection, start, end, size = (np.array(column, np.int64) for column in zip(*sorted(rows), strict=True))
    torn = find_torn(connection, start, end, size)
    assert len(torn.part) == 8 * (num - 1)


@pytest.mark.parametrize("shared", [True, False], ids=["all stages of a replica", "one stage alone"])
def test_work_of_a_pipeline_is_uneven_where_all_stages_of_a_replica_work_longer_at_once(shared: bool) -> None:
    """Work is seen on the first micro-batch alone, so it need not go with the length of steps."""
    rng, replicas, steps = np.random.default_rng(0), 8, 40
    first, second = (np.where(rng.random((replicas, steps)) < 0.4, 0.5, 0.0) for _ in range(2))
    late = np.concatenate([first, first if shared else second]) + rng.normal(0, 0.01, (2 * replicas, steps))
    length = 1 + 0.2 * rng.random(steps)
    case = make_case(length.tolist())
    ends, chains = np.arange(2 * replicas), tuple((r, r + replicas) for r in range(replicas))
    case = replace(
        case, job=replace(case.job, endpoints=ends), stages=replace(case.stages, chains=chains),
        endpoints=pl.DataFrame({"address": [f"10.0.{e}.1" for e in ends], "host": [f"host-{e}" for e in ends]}),
    )  # fmt: skip
    table = Lateness(endpoints=ends, late=late, how="past", of_past=True, of_work=True)
    found = find_uneven(case, [table])
    assert [p.finding.kind for p in found] == (["load_imbalance"] if shared else [])
