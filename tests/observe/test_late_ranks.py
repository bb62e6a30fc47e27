"""Whom collectives wait for: always the same worker, or another one in each slow step."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import polars as pl
import pytest
from made_jobs import named

from prism.observe import diagnose

_HOSTS, _STEPS, _BUCKETS = 8, 24, 6
_COMPUTE_NS, _TRANSFER_NS = 20_000_000, 6_000_000
_SLOW = range(12, 20)


def write_ring(late: Callable[[int], dict[int, float]]) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Flows of all-reduces around a ring; `late` gives how much longer workers compute in a step, as shares."""
    rng = np.random.default_rng(3)
    rows, now = [], 1_700_000_000_000_000_000
    for step in range(_STEPS):
        extra = np.array([late(step).get(w, 0.0) for w in range(_HOSTS)])
        for bucket in range(_BUCKETS):
            work = _COMPUTE_NS * (1 + extra) * (1 + 0.003 * rng.standard_normal(_HOSTS))
            starts = now + work.astype(np.int64)
            now = int(starts.max()) + _TRANSFER_NS
            size = (40 + 10 * bucket) * 1_000_000
            rows += [
                {"start_ns": int(s), "end_ns": now, "src": f"10.1.{w}.1", "dst": f"10.1.{(w + 1) % _HOSTS}.1",
                 "bytes": size + int(rng.integers(5000))}
                for w, s in enumerate(starts)
            ]  # fmt: skip
        now += _COMPUTE_NS
    topology = pl.DataFrame(
        {"address": [f"10.1.{w}.1" for w in range(_HOSTS)], "host": [f"h{w}" for w in range(_HOSTS)],
         "rail": [0] * _HOSTS, "switch": [f"sw{w // 4}" for w in range(_HOSTS)]}
    )  # fmt: skip
    return pl.DataFrame(rows).sort("start_ns"), topology


def test_a_worker_that_all_wait_for_is_named() -> None:
    findings = diagnose(*write_ring(lambda step: {5: 0.5} if step in _SLOW else {})).findings
    assert named(findings[0]) == ("slow_compute", "h5")


def test_a_worker_that_all_wait_for_is_named_though_records_are_lost() -> None:
    flows, topology = write_ring(lambda step: {5: 0.5} if step in _SLOW else {})
    kept = np.random.default_rng(1).random(flows.height) > 0.03
    assert named(diagnose(flows.filter(pl.Series(kept)), topology).findings[0]) == ("slow_compute", "h5")


def test_pauses_that_hit_one_worker_after_the_other_are_the_jobs() -> None:
    findings = diagnose(*write_ring(lambda step: {step * 3 % _HOSTS: 0.5} if step in _SLOW else {})).findings
    assert findings[0].kind == "slow_step"
    assert findings[0].culprit.type == "job"


def test_work_that_differs_between_workers_and_steps_is_uneven_load() -> None:
    shares = np.random.default_rng(7).uniform(0, 0.8, (_STEPS, _HOSTS))
    findings = diagnose(*write_ring(lambda step: dict(enumerate(shares[step])) if step in _SLOW else {})).findings
    assert named(findings[0])[0] == "load_imbalance"


@pytest.mark.parametrize("every", [4])
def test_steps_that_are_slow_every_so_often_are_meant_to_be(every: int) -> None:
    findings = diagnose(*write_ring(lambda step: {step * 3 % _HOSTS: 0.5} if step % every == 3 else {})).findings
    assert all("last to come" not in f.evidence for f in findings)


def stop_ring(size: int, back_s: float | None = None) -> tuple[pl.DataFrame, pl.DataFrame]:
    """A ring of which all but h5 begin a transfer and get nowhere; it may be started again after some seconds."""
    flows, topology = write_ring(lambda _: {})
    ends = sorted(flows["end_ns"].unique().to_list())
    # The first collective of a step: all that came before are whole steps.
    end_ns = ends[-2 * _BUCKETS]
    begun = flows.filter(pl.col("end_ns") == end_ns)
    cut = int(begun["start_ns"].min())  # type: ignore[arg-type]
    stuck = begun.filter(pl.col("src") != "10.1.5.1").with_columns(
        bytes=pl.lit(size, pl.Int64), end_ns=pl.col("start_ns") + 170_000
    )
    parts = [flows.filter(pl.col("start_ns") < cut), stuck]
    if back_s is not None:
        late = pl.col("start_ns", "end_ns") + round(back_s * 1e9)
        parts.append(flows.filter(pl.col("start_ns") >= cut).with_columns(late))
    return pl.concat(parts), topology


@pytest.mark.parametrize("back_s", [None, 5.0], ids=["the capture ends", "it came back"])
def test_the_worker_that_began_no_transfer_while_all_others_did_has_stopped(back_s: float | None) -> None:
    findings = diagnose(*stop_ring(8_388_608, back_s)).findings
    assert named(findings[0]) == ("hang", "h5")
    assert "7 endpoints are stuck" in findings[0].evidence


def test_a_few_bytes_at_the_end_of_a_capture_are_no_stuck_transfers() -> None:
    assert diagnose(*stop_ring(576)).findings == ()
