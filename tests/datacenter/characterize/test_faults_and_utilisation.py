"""Node faults, utilisation series and the checkpoint advice that follows from failure rates."""

from __future__ import annotations

import json
import math
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prism.datacenter.characterize import (
    CharacterizeOptions,
    CheckpointCosts,
    advise_checkpoints,
    characterize,
    read_faults,
    read_utilisation,
    study_faults,
)
from prism.datacenter.characterize.checkpoints import find_goodput
from prism.datacenter.characterize.figures import draw_figures
from prism.errors import BadConfigError, BadFileError, BadRowError
from prism.recover.interval import choose_interval_s


def test_a_fault_history_is_described(tmp_path: Path) -> None:
    path = tmp_path / "faults.csv"
    path.write_text(
        "node,start,end,class\n"
        "a,2024-01-01 00:00:00,2024-01-01 02:00:00,GPU\n"
        "a,2024-01-01 01:00:00,2024-01-01 03:00:00,NIC\n"  # overlaps the first: the node is down from 0 to 3
        "b,2024-01-02 00:00:00,2024-01-02 10:00:00,GPU\n"
        "c,2024-01-05 00:00:00,,GPU\n"
    )
    found = study_faults(read_faults(path), nodes=10)
    assert (found.faults, found.nodes_hit, found.unrepaired) == (4, 3, 1)
    assert found.span_hours == 96
    assert found.node_mtbf_hours == 10 * 96 / 4
    assert found.repair_hours.median == 2
    assert found.down_pct == pytest.approx(100 * (3 + 10) / 960)
    assert (found.repeat_nodes, found.repeat_fault_pct) == (1, 50)
    assert found.classes.select("class", "faults").rows() == [("GPU", 3), ("NIC", 1)]
    assert found.offenders["node"][0] == "a"


def test_infinitehbd_gives_the_figures_of_its_study(shared_data: Path) -> None:
    found = study_faults(read_faults(shared_data / "infinitehbd" / "fault_trace.json"), nodes=400)
    assert (found.faults, found.nodes_hit) == (584, 231)
    assert found.span_hours / 24 == pytest.approx(349, abs=1)
    assert found.hours_between_faults.median == pytest.approx(5.6, abs=0.05)
    assert found.hours_between_faults.mean == pytest.approx(14.2, abs=0.05)
    assert found.node_mtbf_hours / 24 == pytest.approx(239, abs=1)
    assert found.repair_hours.median == pytest.approx(20.4, abs=0.05)
    assert found.down_pct == pytest.approx(2.3, abs=0.05)
    assert found.repeat_fault_pct == pytest.approx(83.6, abs=0.05)
    assert found.top_tenth_fault_pct == pytest.approx(27.6, abs=0.05)
    assert dict(found.classes.select("class", "faults").iter_rows())["GPU"] == 158


def test_faults_give_the_failure_rate_for_checkpoints(two_hundred_jobs: Path, tmp_path: Path) -> None:
    events = [
        {
            "node_id": f"n{i}",
            "event_time": float(day),
            "event_type": kind,
            "fault_type": {"Class": "GPU", "Desc": "lost"},
        }
        for i, day in enumerate((0, 10, 20, 30))
        for day, kind in ((day, "fault_start"), (day + 1, "fault_end"))
    ]
    path = tmp_path / "faults.json"
    path.write_text(json.dumps(events))
    report = characterize(two_hundred_jobs, CharacterizeOptions(faults=path, nodes=100))
    assert report.plan is not None
    assert "4 node faults on 100 nodes" in report.plan.basis
    assert report.plan.gpu_hours_per_failure == pytest.approx(100 * 31 * 24 / 4 * 8)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[{}]", "events need node_id"),
        ("[1, 2", "not JSON"),
        ("host,when\na,b\n", "needs columns 'node' and 'start'"),
        ("node,start,end\na,soon,\n", "line 2: 'start' is 'soon'"),
        ("node,start,end\na,,\n", "line 2: 'start' is empty"),
        ("node,start,end\na,2024-01-02 00:00:00,2024-01-01 00:00:00\n", "line 2: the fault ends before it starts"),
    ],
)
def test_bad_fault_files_are_named(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "faults"
    path.write_text(text)
    with pytest.raises((BadFileError, BadRowError), match=message):
        study_faults(read_faults(path), None)


def test_a_fleet_smaller_than_its_faults_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "faults.csv"
    path.write_text("node,start\na,2024-01-01 00:00:00\nb,2024-01-02 00:00:00\n")
    with pytest.raises(BadRowError, match="names 2 nodes, more than the 1 of the fleet"):
        study_faults(read_faults(path), 1)


def test_utilisation_is_read_in_all_four_layouts(tmp_path: Path) -> None:
    values = [0.0, 0.0, 50.0, 100.0]
    layouts = {
        "long.csv": "metric,value\n" + "".join(f"GPU_UTIL,{v}\n" for v in values),
        "wide.csv": "time,gpu_util\n" + "".join(f"{i},{v}\n" for i, v in enumerate(values)),
        "GPU_UTIL.csv": "Time,10.0.0.1-0,10.0.0.1-1\n0,0,0\n1,50,100\n",
    }
    for name, text in layouts.items():
        path = tmp_path / name
        path.write_text(text)
        row = read_utilisation(path).metrics.row(0, named=True)
        assert (row["metric"], row["samples"], row["p50"], row["zero_pct"], row["full_pct"]) == (
            "gpu_util_pct",
            4,
            25,
            50,
            25,
        )
    path = tmp_path / "quantiles.csv"
    path.write_text("metric,percent,value\n" + "".join(f"SM_ACTIVE,{p},{p / 100}\n" for p in range(0, 101, 10)))
    row = read_utilisation(path).metrics.row(0, named=True)
    assert (row["metric"], row["samples"], row["p50"]) == ("sm_active_pct", None, 50)  # shares of one become percent


def test_published_utilisation_gives_the_known_medians(shared_data: Path, tmp_path: Path) -> None:
    table = pl.read_csv(shared_data / "acme" / "utilisation_quantiles.csv")
    medians = {}
    for cluster in ("Seren", "Kalos"):
        path = tmp_path / f"{cluster}.csv"
        table.filter(pl.col("cluster") == cluster).write_csv(path)
        medians[cluster] = dict(read_utilisation(path).metrics.select("metric", "p50").iter_rows())
    assert medians["Seren"]["cpu_util_pct"] == pytest.approx(8.0, abs=0.1)
    assert medians["Kalos"]["gpu_memory_pct"] == pytest.approx(75.4, abs=0.2)
    assert medians["Kalos"]["gpu_util_pct"] == pytest.approx(97, abs=1)


def test_utilisation_is_set_beside_published_medians(two_hundred_jobs: Path, tmp_path: Path) -> None:
    path = tmp_path / "samples.csv"
    path.write_text("metric,value\nPOWER_USAGE,300\nib_mbps_1,5\nwobble,1\n")
    report = characterize(two_hundred_jobs, CharacterizeOptions(utilisation=path))
    table = next(figure.table for figure in draw_figures(report) if figure.name == "utilisation")
    medians = {
        metric: (seren, kalos) for metric, seren, kalos in table.select("metric", "seren_p50", "kalos_p50").iter_rows()
    }
    assert medians == {"gpu_power_w": (96.4, 101.3), "network_mb_s": (0.0, None), "wobble": (None, None)}
    assert any("not known, shown as given: wobble" in note for note in report.notes)


def test_unknown_utilisation_is_named(tmp_path: Path) -> None:
    path = tmp_path / "mystery.csv"
    path.write_text("a,b\n1,2\n")
    with pytest.raises(BadFileError, match="neither columns 'metric' and 'value'"):
        read_utilisation(path)
    path.write_text("metric,value\nwobble,3\n")
    assert read_utilisation(path).unknown == ("wobble",)


@given(mtbf=st.floats(600, 1e8), save=st.floats(0.1, 300))
def test_no_interval_beats_the_best_one(mtbf: float, save: float) -> None:
    best = choose_interval_s(save, mtbf)
    top = find_goodput(best, mtbf, save, 0)
    for factor in (0.5, 0.9, 0.99, 1.01, 1.1, 2):
        assert find_goodput(best * factor, mtbf, save, 0) <= top * (1 + 1e-9)


@given(mtbf=st.floats(1e6, 1e8), save=st.floats(0.1, 10))
def test_the_best_interval_nears_youngs_when_saves_are_short(mtbf: float, save: float) -> None:
    assert choose_interval_s(save, mtbf) == pytest.approx(math.sqrt(2 * save * mtbf), rel=0.01)


def test_larger_jobs_save_more_often_and_get_less_done() -> None:
    small, large = advise_checkpoints(20_000, (256, 4096), CheckpointCosts(save_s=30, restart_s=600))
    assert small.mtbf_hours == pytest.approx(20_000 / 256)
    assert large.interval_s < small.interval_s
    assert large.goodput_pct < small.goodput_pct < 100
    assert large.goodput_pct < large.goodput_without_restart_pct


@pytest.mark.parametrize(("save", "restart"), [(0, 10), (-1, 10), (10, -1), (1e9, 10), (math.nan, 10)])
def test_costs_that_cannot_be_are_refused(save: float, restart: float) -> None:
    with pytest.raises(BadConfigError):
        CheckpointCosts(save_s=save, restart_s=restart)
