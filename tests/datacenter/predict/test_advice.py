"""Advice follows the risks, says nothing where nothing is known, and the supervisor takes it."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from typer.testing import CliRunner

from prism.cli.main import app
from prism.datacenter.predict import AdviceConfig, Forecast, RiskRound, WatchConfig, advise, gather_nodes
from prism.datacenter.predict.advice import count_spares, kubernetes_commands, slurm_commands
from prism.datacenter.predict.counters import make_counters
from prism.datacenter.predict.forecast import Risk, predict
from prism.datacenter.predict.history import DAY_NS, add_counters, make_history
from prism.datacenter.predict.level import PredictConfig
from prism.datacenter.predict.replaying import TraceConfig, replay_history
from prism.datacenter.predict.watching import RiskWatch
from prism.errors import InputError
from prism.recover.interval import choose_interval_s
from prism.recover.risks import read_risks


def make_forecast(risks: dict[str, float], *, tells_apart: bool = True, at_ns: int = 0) -> Forecast:
    ordered = sorted(risks.items(), key=lambda r: -r[1])
    return Forecast(
        at_ns=at_ns,
        horizon_days=10.0,
        risks=tuple(Risk(id=f"gpu-{n}", risk=r, reasons=("3 earlier events",), place=f"{n}/gpu0") for n, r in ordered),
        method="trees",
        past_auc=0.8,
        expected_events=sum(risks.values()),
        expected_range=(1.0, 3.0),
        reliability=(),
        tells_apart=tells_apart,
        notes=(),
    )


def test_the_interval_is_that_of_the_hazard_of_the_jobs_own_nodes() -> None:
    found = advise(make_forecast({"a": 0.5, "b": 0.01, "c": 0.01}), {"hot": ["a"], "cold": ["b", "c"]}, AdviceConfig())
    hot, cold, _ = found.jobs
    rate = -math.log(0.5) / 10.0
    assert hot.failures_per_day == pytest.approx(rate)
    assert hot.interval_s == pytest.approx(choose_interval_s(60.0, 86_400.0 / rate))
    assert cold.interval_s > 4 * hot.interval_s


def test_the_next_job_gets_the_safest_nodes_and_a_drain_is_advised_only_where_it_pays() -> None:
    risks = {f"n{i}": 0.001 for i in range(100)} | {"bad": 0.9, "worse": 0.95}
    spared = advise(make_forecast(risks), {}, AdviceConfig(job_nodes=100))
    assert spared.avoid == ("worse", "bad") and spared.drains == ()
    assert any("--exclude=worse,bad" in line for line in slurm_commands(spared))
    assert all("--dry-run=server" in line for line in kubernetes_commands(spared))
    whole = advise(make_forecast(risks), {}, AdviceConfig(drain_h=2.0))
    assert [d.node for d in whole.drains] == ["worse", "bad"]
    assert all(d.gain_gpu_h > d.cost_gpu_h for d in whole.drains)
    assert advise(make_forecast(risks), {}, AdviceConfig(drain_h=10_000.0)).drains == ()


def test_risks_that_tell_nothing_apart_advise_nothing() -> None:
    found = advise(make_forecast({"a": 0.9, "b": 0.1}, tells_apart=False), {}, AdviceConfig(job_nodes=1, drain_h=0.0))
    assert found.avoid == () and found.drains == () and any("do not tell" in line for line in found.notes)


def test_spares_suffice_as_often_as_asked() -> None:
    rng = np.random.default_rng(0)
    for expected in (0.2, 3.0, 40.0):
        spares = count_spares(expected, 0.95)
        drawn = rng.poisson(expected, 20_000)
        assert (drawn <= spares).mean() >= 0.945 and (spares == 0 or (drawn <= spares - 1).mean() < 0.955)


def test_a_nodes_parts_add_up_and_the_supervisor_reads_what_advice_wrote(tmp_path: Path) -> None:
    forecast = make_forecast({"a": 0.5, "b": 0.01})
    twice = replace(forecast, risks=(*forecast.risks, replace(forecast.risks[0], id="gpu-a2")))
    nodes = {node.id: node for node in gather_nodes(twice)}
    assert nodes["a"].risk == pytest.approx(0.75) and nodes["a"].parts == 2
    path = tmp_path / "risk.json"
    path.write_text(json.dumps(advise(twice, {}, AdviceConfig()).to_json()))
    risks = read_risks(path)
    assert risks.of("a") == pytest.approx(-math.log(0.25) / 10)
    assert risks.node_mtbf_s(["a", "b"]) == pytest.approx(2 * 86_400 / (risks.of("a") + risks.of("b")))


@pytest.mark.parametrize("text", ["", "[]", '{"risks": []}', '{"horizon_days": 3, "risks": [{"id": "a", "risk": 7}]}'])
def test_a_file_without_risks_is_one_clear_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "risk.json"
    path.write_text(text)
    with pytest.raises(InputError, match="no risks of hosts"):
        read_risks(path)


def make_fleet(days: int = 120) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Sixty nodes; every tenth fails every four days, the others never."""
    rows = [(f"n{i}", (day + 0.1 + i / 600) * DAY_NS) for day in range(0, days, 4) for i in range(0, 60, 10)]
    events = pl.DataFrame(rows, schema={"serial": pl.String, "at": pl.Float64}, orient="row").cast({"at": pl.Int64})
    return events, pl.DataFrame({"serial": [f"n{i}" for i in range(60)], "installed": [0] * 60})


def test_replay_finds_that_avoiding_the_nodes_that_fail_saves_what_they_cost() -> None:
    history = make_history(*make_fleet())
    config = TraceConfig(start_ns=60 * DAY_NS, end_ns=110 * DAY_NS, job_nodes=40, refresh_days=50.0)
    risks = {f"n{i}": 0.9 if i % 10 == 0 else 0.001 for i in range(60)}
    forecast = make_forecast(risks, at_ns=config.start_ns)
    forecast = replace(forecast, risks=tuple(replace(r, place="", id=r.id[4:]) for r in forecast.risks))
    found = replay_history(history, config, [forecast])
    losses = {loss.policy: loss for loss in found.losses}
    assert losses["risk: place and interval"].failures == 0 < losses["Young-Daly"].failures
    assert found.saving("risk: place and interval") > 0.5
    assert found.saving(found.best_fixed) == 0.0
    assert 0.0 < found.break_even <= 1.0
    # The same faults and the same draw give the same losses.
    again = replay_history(history, config, [forecast])
    assert [loss.lost_gpu_h for loss in again.losses] == [loss.lost_gpu_h for loss in found.losses]


def test_counters_that_start_anew_do_not_fall_and_unknown_parts_are_left_out() -> None:
    rows = [("a", 0, 5.0), ("a", 1, 8.0), ("a", 2, 2.0), ("b", 1, 1.0), ("stranger", 1, 9.0)]
    readings = pl.DataFrame(
        {
            "serial": [r[0] for r in rows],
            "at": [r[1] * DAY_NS for r in rows],
            "counter": ["xid"] * len(rows),
            "value": [r[2] for r in rows],
        }
    )
    (counter,) = make_counters(readings, {"a": 0, "b": 1})
    assert counter.rise(np.array([0, 1]), 0, 3 * DAY_NS).tolist() == [5.0, 0.0]
    assert counter.rise(np.array([0, 1]), DAY_NS, 2 * DAY_NS).tolist() == [2.0, 0.0]


def test_readings_of_counters_become_features_and_wrong_ones_are_named(tmp_path: Path) -> None:
    history = make_history(*make_fleet())
    path = tmp_path / "counters.csv"
    path.write_text("serial,at,counter,value\nn1,1970-01-02 00:00:00,xid,3\nn1,1970-01-03 00:00:00,xid,9\n")
    found = add_counters(history, path)
    assert found.counters[0].name == "xid"
    path.write_text("serial,at,counter,value\nn1,1970-01-02 00:00:00,xid,many\n")
    with pytest.raises(InputError, match="row 1: 'value' is \"many\""):
        add_counters(history, path)


def test_a_node_is_alerted_about_once_until_it_has_been_safe() -> None:
    watch = RiskWatch(config=WatchConfig(limit=0.5))
    risky, safe = make_forecast({"a": 0.6, "b": 0.1}), make_forecast({"a": 0.2, "b": 0.1})
    assert [a.node for a in watch.handle(risky, 0, None)] == ["a"]
    assert watch.handle(risky, 0, None) == []
    assert watch.handle(make_forecast({"a": 0.4}), 0, None) == [] and watch.handle(risky, 0, None) == []
    watch.handle(safe, 0, None)
    assert [a.node for a in watch.handle(risky, 0, None)] == ["a"]


def test_calibration_that_drifts_is_an_alarm_of_its_own() -> None:
    watch = RiskWatch()
    calm = make_forecast({"a": 0.1})
    assert watch.handle(calm, 5, (2.0, 8.0)) == []
    assert [a.kind for a in watch.handle(calm, 50, (2.0, 8.0))] == ["drift"]
    assert watch.handle(calm, 50, (2.0, 8.0)) == []


def test_a_watch_that_is_started_again_repeats_no_alert(tmp_path: Path) -> None:
    history = make_history(*make_fleet())
    config = PredictConfig(horizon_days=30, step_days=15, least_events=1_000)  # all alike: 6 of 60 within a month
    first = RiskRound(tmp_path, WatchConfig(limit=0.05), config).score(history, 100 * DAY_NS)
    assert len([a for a in first if a.kind == "risk"]) == 60
    assert RiskRound(tmp_path, WatchConfig(limit=0.05), config).score(history, 101 * DAY_NS) == []
    assert "prism_predict_risk{" in (tmp_path / "metrics.prom").read_text()
    assert len(read_risks(tmp_path / "risk.json").per_day) == 60


def test_events_outside_the_range_that_was_written_a_horizon_ago_are_an_alarm_once(tmp_path: Path) -> None:
    events, lives = make_fleet()
    config = PredictConfig(horizon_days=10, step_days=5)
    calm = events.filter(pl.col("at") < 80 * DAY_NS)
    RiskRound(tmp_path, WatchConfig(), config).score(make_history(calm, lives), 80 * DAY_NS)
    storm = pl.DataFrame({"serial": [f"n{i}" for i in range(60)], "at": [(81 + i / 10) * DAY_NS for i in range(60)]})
    worse = make_history(pl.concat([calm, storm.cast({"at": pl.Int64})]), lives)
    kinds = [
        [a.kind for a in RiskRound(tmp_path, WatchConfig(), config).score(worse, day * DAY_NS)] for day in (90, 91)
    ]
    assert kinds[0].count("drift") == 1 and "drift" not in kinds[1]
    assert "prism_predict_calibration_drift 1" in (tmp_path / "metrics.prom").read_text()
    told = [json.loads(line) for line in (tmp_path / "alerts.jsonl").read_text().splitlines()]
    assert any(line["kind"] == "drift" and "60 parts had an event" in line["text"] for line in told)


def test_parts_that_are_alike_get_the_same_risk_whatever_the_order_of_their_names() -> None:
    """Sixty parts that failed once on the same day and sixty that never did, in both orders of listing."""
    rng = np.random.default_rng(1)
    failing = [f"f{i}" for i in range(60)]
    rows = [(name, (10 + day) * DAY_NS) for name in failing for day in rng.integers(0, 90, 2)]
    events = pl.DataFrame(rows, schema={"serial": pl.String, "at": pl.Int64}, orient="row")
    quiet = [f"q{i}" for i in range(60)]
    for names in (failing + quiet, quiet + failing):
        lives = pl.DataFrame({"serial": names, "installed": [0] * len(names)})
        found = predict(make_history(events, lives), 100 * DAY_NS, PredictConfig(horizon_days=10, step_days=5))
        risks = {risk.id: risk.risk for risk in found.risks}
        assert np.ptp([risks[name] for name in quiet]) < 1e-9


def test_the_command_prints_advice(tmp_path: Path) -> None:
    events, lives = make_fleet()
    events.with_columns(pl.col("at").cast(pl.Datetime("ns"))).write_csv(tmp_path / "events.csv")
    lives.with_columns(pl.col("installed").cast(pl.Datetime("ns"))).write_csv(tmp_path / "lives.csv")
    words = ["predict", "advise", str(tmp_path / "events.csv"), "--lives", str(tmp_path / "lives.csv")]
    done = CliRunner().invoke(app, [*words, "--at", "1970-04-01", "--running-job", "x=n0,n1,stranger", "--json"])
    document = json.loads(done.stdout)
    assert document["schema"] == "prism.advice/1" and document["jobs"][0]["checkpoint_interval_s"] > 0
    assert len(document["nodes"]) == 60 and any("1 of 3 nodes" in line for line in document["notes"])
    wrong = CliRunner().invoke(app, [*words, "--at", "1970-04-01", "--running-job", "x"])
    assert isinstance(wrong.exception, InputError)
