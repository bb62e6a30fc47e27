"""The first emulation on a host measures the collectives that it needs, and later ones find them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from captured import capture, entry

from prism.emulate import this_host
from prism.emulate.families import find_families
from prism.emulate.inside.measure_plan import MeasurePlan
from prism.emulate.predict import choose_costs
from prism.emulate.this_host import HostConfig, calibrate_this_host, count_running, list_needed
from prism.errors import PrismError
from prism.simulate.costs import estimate

CALLS = [entry("all_reduce", group="0", bytes=5000, op=0), entry("barrier", group="0", op=1)]


def _measured(plan: MeasurePlan, num_ranks: int, **unused: Any) -> list[dict[str, Any]]:
    keys = ("backend", "kind", "num_ranks", "num_hosts", "bytes", "duration_ns")
    return [
        dict(zip(keys, ("gloo", w.kind, w.num_ranks, 1, w.bytes, 50_000 + w.bytes), strict=True)) for w in plan.wanted
    ]


@pytest.fixture(autouse=True)
def quiet_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(this_host, "count_running", lambda: 0.0)


def test_groups_are_measured_as_far_as_the_cores_go() -> None:
    ranks = {0: capture(0, 24, CALLS)}
    families = find_families(ranks.values())
    assert {(w.kind, w.num_ranks, w.bytes) for w in list_needed(ranks, families, cores=16)} == {
        ("all_reduce", 16, 4096),
        ("all_reduce", 16, 16384),
        ("barrier", 16, 0),
    }
    assert {w.num_ranks for w in list_needed(ranks, families, cores=2)} == {2}
    assert list_needed(ranks, families, cores=1) == []


def test_the_second_emulation_measures_only_what_is_new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def measure(plan: MeasurePlan, num_ranks: int, **rest: Any) -> list[dict[str, Any]]:
        asked.append(len(plan.wanted))
        return _measured(plan, num_ranks)

    monkeypatch.setattr(this_host, "measure_collectives", measure)
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: range(16))
    config = HostConfig(folder=tmp_path)
    ranks = {0: capture(0, 8, CALLS)}
    path = calibrate_this_host(ranks, find_families(ranks.values()), config)
    assert path == calibrate_this_host(ranks, find_families(ranks.values()), config)
    more = {0: capture(0, 8, [*CALLS, entry("all_gather", group="0", bytes=5000, op=2)])}
    assert path == calibrate_this_host(more, find_families(more.values()), config)
    assert asked == [3, 2]
    costs = choose_costs("cpu", 8, 8, None, path)
    found = estimate("all_reduce", 5000, costs.place([0] * 8, list(range(8))), costs.cluster, costs.calibration)
    assert found.provenance == "measured"


def test_a_host_that_cannot_be_measured_is_modelled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any, **rest: Any) -> list[dict[str, Any]]:
        raise PrismError("measuring rank 0 failed with exit code 1")

    monkeypatch.setattr(this_host, "measure_collectives", fail)
    notes: list[str] = []
    ranks = {0: capture(0, 8, CALLS)}
    config = HostConfig(folder=tmp_path, note=notes.append)
    assert calibrate_this_host(ranks, find_families(ranks.values()), config) is None
    assert "could not be measured" in notes[-1]


def test_a_busy_host_is_not_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is measured beside other programs would be kept for quieter times."""
    monkeypatch.setattr(this_host, "count_running", lambda: 40.0)
    monkeypatch.setattr(this_host, "measure_collectives", _measured)
    notes: list[str] = []
    ranks = {0: capture(0, 8, CALLS)}
    config = HostConfig(folder=tmp_path, note=notes.append)
    assert calibrate_this_host(ranks, find_families(ranks.values()), config) is None
    assert "busy" in notes[-1] and list(tmp_path.iterdir()) == []


def test_processes_on_other_cores_do_not_make_ours_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {2, 3})
    monkeypatch.setattr("os.cpu_count", lambda: 16)
    monkeypatch.setattr(this_host, "_cores_in_use", lambda: [2, 5, 6, 7, 8, 9])  # this process, and others elsewhere
    monkeypatch.setattr(this_host, "_count_on_host", lambda: 6)
    assert count_running(2, 0.0) == 0.0
    monkeypatch.setattr(this_host, "_count_on_host", lambda: 14)  # 8 more that cannot be seen, on any of 16 cores
    assert count_running(2, 0.0) == pytest.approx(1.0)
