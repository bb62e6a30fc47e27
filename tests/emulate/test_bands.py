"""How far off a predicted time may be, as the prediction itself says."""

from __future__ import annotations

import os

import pytest
from captured import capture, entry

from prism.emulate.capturing import CaptureConfig
from prism.emulate.emulation import EmulateConfig, predict_captures
from prism.emulate.launch import LaunchConfig

CALLS = [entry("all_reduce", group="0", bytes=1 << 20, op=0, gap_ns=5_000_000)]


def _predict(cores: int, monkeypatch: pytest.MonkeyPatch, cluster: str | None = None) -> tuple[float, list[str]]:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: range(cores))
    notes: list[str] = []
    launch = LaunchConfig(script=(__file__,), world_size=2, gpus_per_node=2)
    config = EmulateConfig(capture=CaptureConfig(launch=launch, note=notes.append), cluster=cluster)
    captures = {rank: capture(rank, 2, CALLS, times=8) for rank in range(2)}
    return predict_captures(captures, config)[1].error_band_pct, notes


def test_ranks_that_share_cores_with_their_own_threads_get_a_wide_band(monkeypatch: pytest.MonkeyPatch) -> None:
    narrow, wide = _predict(4, monkeypatch)[0], _predict(2, monkeypatch)[0]
    assert narrow < 100 < wide


def test_the_cores_of_this_machine_say_nothing_of_a_cluster_that_was_named(monkeypatch: pytest.MonkeyPatch) -> None:
    here, elsewhere = _predict(2, monkeypatch)[0], _predict(2, monkeypatch, "dgx-h100")[0]
    assert elsewhere < here
