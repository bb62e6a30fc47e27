"""Risks come from the past alone, follow hazards that were planted, and claim nothing where nothing is known."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from prism.cli.main import app
from prism.datacenter.predict import PredictConfig, backtest, predict, read_history
from prism.datacenter.predict.history import DAY_NS, make_history, parse_time
from prism.datacenter.predict.model import area_under_curve
from prism.errors import InputError

CONFIG = PredictConfig(horizon_days=30, step_days=15)


def make_fleet(
    *, hot_cage: int | None, days: int = 400, parts: int = 600, rate: float = 0.0008, seed: int = 0
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Parts in cages 0 to 2 with a daily hazard; those in the hot cage fail twelve times as often."""
    rng = np.random.default_rng(seed)
    cage = np.arange(parts) % 3
    places = [f"r{i // 30}c{c}n{i}" for i, c in enumerate(cage)]
    hazard = rate * np.where(cage == hot_cage, 12.0, 1.0) if hot_cage is not None else np.full(parts, rate * 4)
    hit = rng.random((days, parts)) < hazard
    day, part = np.nonzero(hit)
    events = pl.DataFrame(
        {
            "serial": [f"p{p}" for p in part],
            "location": [places[p] for p in part],
            "at": (day + rng.random(len(day))) * DAY_NS,
        }
    ).cast({"at": pl.Int64})
    lives = pl.DataFrame(
        {
            "serial": [f"p{i}" for i in range(parts)],
            "location": places,
            "installed": [0] * parts,
            "removed": [None] * parts,
        },
        schema_overrides={"removed": pl.Int64},
    )
    return events, lives


def test_a_planted_hazard_is_found_and_its_level_is_right() -> None:
    history = make_history(*make_fleet(hot_cage=2))
    row = backtest(history, [360 * DAY_NS], CONFIG).row(0, named=True)
    assert row["auc"] > 0.7
    assert 0.6 < row["level"] < 1.6
    found = predict(history, 360 * DAY_NS, CONFIG)
    assert sum(int(r.id[1:]) % 3 == 2 for r in found.risks[:100]) > 90
    assert sum(r.risk for r in found.risks) == pytest.approx(found.expected_events, rel=1e-3)


def test_where_every_part_is_alike_nothing_is_predicted() -> None:
    history = make_history(*make_fleet(hot_cage=None))
    aucs = backtest(history, [d * DAY_NS for d in (250, 290, 330, 365)], CONFIG)["auc"]
    assert aucs.mean() == pytest.approx(0.5, abs=0.06)


def test_the_future_changes_nothing() -> None:
    events, lives = make_fleet(hot_cage=1)
    whole = predict(make_history(events, lives), 200 * DAY_NS, CONFIG)
    past = predict(make_history(events.filter(pl.col("at") <= 200 * DAY_NS), lives), 200 * DAY_NS, CONFIG)
    assert [(r.id, r.risk) for r in whole.risks] == [(r.id, r.risk) for r in past.risks]


def test_a_small_fleet_says_that_it_knows_too_little() -> None:
    events, lives = make_fleet(hot_cage=2, parts=10)
    found = predict(make_history(events, lives), 300 * DAY_NS, CONFIG)
    assert any("too little is known" in line for line in found.notes)
    assert len({r.risk for r in found.risks}) == 1


def test_only_parts_in_place_get_a_risk() -> None:
    events, lives = make_fleet(hot_cage=2)
    lives = lives.with_columns(
        removed=pl.when(pl.col("serial") == "p5").then(100 * DAY_NS).otherwise(None).cast(pl.Int64)
    )
    ids = {r.id for r in predict(make_history(events, lives), 300 * DAY_NS, CONFIG).risks}
    assert "p5" not in ids and "p6" in ids and len(ids) == lives.height - 1


def test_odd_events_are_counted_and_left_out() -> None:
    events, lives = make_fleet(hot_cage=2)
    odd = pl.DataFrame(
        {"serial": [None, "stranger"], "location": ["r0c0n0", "r0c0n0"], "at": [5, 6]}, schema=events.schema
    )
    found = predict(make_history(pl.concat([events, odd]), lives), 300 * DAY_NS, CONFIG)
    assert any("without a part" in line for line in found.notes) and any(
        "never installed" in line for line in found.notes
    )
    assert "stranger" not in {r.id for r in found.risks}


def test_the_command_prints_the_contract(tmp_path: Path) -> None:
    events, lives = make_fleet(hot_cage=2)
    stamp = pl.col("at").cast(pl.Datetime("ns"))
    events.with_columns(stamp).write_parquet(tmp_path / "events.parquet")
    lives.with_columns(
        pl.col("installed").cast(pl.Datetime("ns")), pl.col("removed").cast(pl.Datetime("ns"))
    ).write_csv(tmp_path / "lives.csv")
    done = CliRunner().invoke(
        app,
        [
            "predict",
            str(tmp_path / "events.parquet"),
            "--lives",
            str(tmp_path / "lives.csv"),
            "--at",
            "1970-12-01",
            "--horizon-days",
            "30",
            "--json",
        ],
    )
    document = json.loads(done.stdout)
    assert done.exit_code == 0 and set(document) >= {"risks", "calibration"}
    assert len(document["risks"]) == lives.height
    assert set(document["risks"][0]) >= {"id", "risk", "reasons"} and document["risks"][0]["reasons"]


def test_plain_numbers_need_a_unit_and_wrong_columns_are_named(tmp_path: Path) -> None:
    path = tmp_path / "faults.json"
    path.write_text(json.dumps([{"node_id": "a", "event_time": 3.5, "event_type": "fault_start"}]))
    with pytest.raises(InputError, match=r"plain numbers; say their unit with --map at=event_time:days"):
        read_history(path)
    assert read_history(path, None, {"at": "event_time:days"}).event_ns.tolist() == [round(3.5 * DAY_NS)]
    with pytest.raises(InputError, match="no column 'nope'"):
        read_history(path, None, {"serial": "nope"})
    with pytest.raises(InputError, match="is no moment"):
        parse_time("soon")


@given(st.lists(st.tuples(st.integers(0, 5), st.booleans()), min_size=1, max_size=40))
def test_the_area_under_the_curve_is_the_share_of_pairs_in_order(rows: list[tuple[int, bool]]) -> None:
    score, label = np.array([float(r[0]) for r in rows]), np.array([r[1] for r in rows])
    pairs = [(a > b) + 0.5 * (a == b) for a in score[label] for b in score[~label]]
    found = area_under_curve(score, label)
    assert np.isnan(found) if not pairs else found == pytest.approx(float(np.mean(pairs)))


def test_clocks_that_jump_are_reported_and_cost_no_time() -> None:
    events, lives = make_fleet(hot_cage=2, days=300)
    odd = pl.DataFrame({"serial": ["p1"], "location": ["r0c1n1"], "at": [-(10**18)]}, schema=events.schema)
    wrong = pl.DataFrame(
        {"serial": ["p2"], "location": ["r0c2n2"], "installed": [50 * DAY_NS], "removed": [DAY_NS]}, schema=lives.schema
    )
    history = make_history(pl.concat([events, odd]), pl.concat([lives, wrong]))
    assert any("before their part was installed" in line for line in history.notes)
    assert any("end before they begin" in line for line in history.notes)
    assert len(history.event_ns) == events.height
    found = predict(history, 250 * DAY_NS, PredictConfig(horizon_days=30, step_days=15, least_events=10**6))
    assert "p2" in {r.id for r in found.risks}


def test_a_month_without_records_is_reported() -> None:
    events, lives = make_fleet(hot_cage=2)
    gone = events.filter(~pl.col("at").is_between(330 * DAY_NS, 358 * DAY_NS))
    config = PredictConfig(horizon_days=60, step_days=15, least_events=40, least_parts=10**6)
    assert not any(
        "no event is recorded" in n for n in predict(make_history(events, lives), 360 * DAY_NS, config).notes
    )
    assert any("no event is recorded" in n for n in predict(make_history(gone, lives), 360 * DAY_NS, config).notes)
