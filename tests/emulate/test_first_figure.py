"""What is known after the first rank, and how many ranks a GPU holds at once."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest
from captured import capture, entry

from prism.emulate import CaptureConfig, EmulateConfig, LaunchConfig
from prism.emulate.emulation import _note_first_figure
from prism.emulate.inside.memory_peak import Peak
from prism.emulate.survey import count_at_once


def _config(notes: list[str]) -> EmulateConfig:
    launch = LaunchConfig(script=(str(Path(__file__)),), world_size=8)
    return EmulateConfig(capture=CaptureConfig(launch=launch, note=notes.append, warmup=1))


def test_one_rank_gives_a_first_figure_of_the_job() -> None:
    notes: list[str] = []
    calls = [entry("all_reduce", group="0", bytes=1 << 20, op=0, gap_ns=5_000_000)]
    _note_first_figure(_config(notes), time.monotonic(), capture(0, 8, calls))
    (said,) = notes
    assert "if every rank is like rank 0" in said
    assert float(said.split(": ")[1].split(" ms")[0]) > 5


def test_a_rank_that_cannot_stand_for_all_gives_none() -> None:
    notes: list[str] = []
    calls = [entry("send", group="0", bytes=1 << 20, op=0, peer=1, gap_ns=5_000_000)]
    _note_first_figure(_config(notes), time.monotonic(), capture(0, 8, calls))
    assert notes == []


@pytest.mark.parametrize(("reserved_gb", "at_once"), [(1, 8), (20, 4), (90, 1)])
def test_unmeasured_ranks_share_a_gpu_as_far_as_its_memory_goes(reserved_gb: int, at_once: int) -> None:
    probe = replace(capture(0, 8, []), device_bytes=141 << 30, memory=Peak(0, reserved_gb << 30, "allocator"))
    assert count_at_once(probe) == at_once
