"""Which silences lie between two jobs on the same hosts, from messages written by hand."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from prism.observe.jobs.lives import part_successive_jobs
from prism.observe.traffic.preparation import prepare_traffic

MS = 10**6
HOSTS = [f"10.0.{i}.1" for i in range(4)]
STEP_MS = 200
ACTIVATIONS, GRADIENTS = 4 << 20, 90 << 20


def write_steps(
    begin_ms: float,
    num: int,
    *,
    step_ms: float = STEP_MS,
    size: float = 1.0,
    last: int = 9,
    hosts: list[str] = HOSTS,
) -> list[dict[str, object]]:
    """Steps of a ring: eight small messages of each host and a large one; of the last step only the first `last`."""
    rows = []
    for step in range(num):
        for i in range(last if step == num - 1 else 9):
            at = begin_ms + step * step_ms + i * 0.09 * step_ms
            sent, took = (ACTIVATIONS, 1.0) if i < 8 else (GRADIENTS, 20.0)
            for host, address in enumerate(hosts):
                start = round((at + 0.01 * host) * MS)
                rows.append({
                    "start_ns": start, "end_ns": start + round(took * MS), "src": address,
                    "dst": hosts[(host + 1) % len(hosts)], "bytes": round(sent * size),
                })  # fmt: skip
    return rows


def count_pairs(rows: list[dict[str, object]]) -> int:
    return part_successive_jobs(prepare_traffic(pl.DataFrame(rows), None)).pairs.height


def test_a_job_that_is_started_again_after_few_steps_is_one() -> None:
    # Ten whole steps and four messages of the next, then three steps: the mean rate of so few steps says little.
    again = write_steps(10 * STEP_MS + 2_500, 3)
    assert count_pairs(write_steps(0, 11, last=4) + again) == 4


def test_a_few_messages_before_a_restart_are_of_the_same_job() -> None:
    # A stretch without gradients: it broke off before them.
    short = write_steps(12_000, 3, last=6)[: 6 * 4]
    assert count_pairs(write_steps(0, 12) + short + write_steps(22_000, 12)) == 4


def test_transfers_that_got_stuck_after_a_pause_are_of_the_job_before_them() -> None:
    # The first transfer of every host in the step after a checkpoint got no further than the buffers go.
    stuck = write_steps(5_000, 1, size=0.01, last=1)
    assert count_pairs(write_steps(0, 12) + stuck) == 4


@pytest.mark.parametrize(("step_ms", "size"), [(1.1 * STEP_MS, 1.0), (STEP_MS, 1.7)], ids=["slower", "larger"])
def test_what_goes_on_slower_or_with_other_sizes_is_another_job(step_ms: float, size: float) -> None:
    other = write_steps(8_000, 12, step_ms=step_ms, size=size)
    assert count_pairs(write_steps(0, 12) + other) == 8


def name_connections(rows: list[dict[str, object]], life: int) -> list[dict[str, object]]:
    """The rows with the queue pairs of one process."""
    return [{**row, "qp": 100 * life + HOSTS.index(str(row["src"]))} for row in rows]


@pytest.mark.parametrize(("life", "pairs"), [(1, 4), (2, 8)], ids=["the same", "new"])
def test_what_goes_on_slower_is_another_job_only_over_new_connections(life: int, pairs: int) -> None:
    slower = write_steps(8_000, 12, step_ms=1.9 * STEP_MS)
    assert count_pairs(name_connections(write_steps(0, 12), 1) + name_connections(slower, life)) == pairs


def test_weights_that_are_gathered_before_the_first_of_a_few_steps_are_of_the_same_job() -> None:
    # An optimizer whose states are sharded: weights before the first step, after every step gradients and weights.
    def send(begin_ms: int, size: int) -> list[dict[str, object]]:
        starts = [(begin_ms + 4 * i) * MS for i in range(20)]
        ring = [(HOSTS[a], HOSTS[(a + 1) % 4]) for a in range(4)]
        return [
            {"start_ns": at, "end_ns": at + MS, "src": src, "dst": dst, "bytes": size}
            for at in starts
            for src, dst in ring
        ]

    rows = send(0, ACTIVATIONS)
    for step in range(1, 5):
        rows += send(2_000 * step, GRADIENTS) + send(2_000 * step + 80, ACTIVATIONS)
    assert count_pairs(name_connections(rows, 1)) == 4


def test_other_sizes_are_another_job_though_its_connections_have_the_same_numbers() -> None:
    larger = write_steps(8_000, 12, size=1.7)
    assert count_pairs(name_connections(write_steps(0, 12) + larger, 1)) == 8


def test_part_of_a_step_is_of_the_job_whose_other_messages_sampling_does_not_tell_from_it() -> None:
    # A few samples a message: sizes of 12 and of 20 samples are one stream. The last stretch has only the smaller ones.
    rng = np.random.default_rng(7)
    rows = write_steps(0, 12) + write_steps(8_000, 4, last=4)[3 * 36 :]
    for i, row in enumerate(rows):
        late = (int(str(row["start_ns"])) // MS % STEP_MS) // (0.09 * STEP_MS) >= 4
        row |= {"bytes": 4_096_000 * (1 + int(rng.poisson(20 if late else 12))), "sampling_rate": 1000}
        rows[i] = row
    assert count_pairs(rows) == 4


def test_a_job_that_loses_one_host_of_many_goes_on_as_another_part() -> None:
    many = [f"10.0.{i}.1" for i in range(8)]
    rows = write_steps(0, 12, hosts=many) + write_steps(8_000, 12, hosts=many[:7])
    parted = part_successive_jobs(prepare_traffic(pl.DataFrame(rows), None))
    assert parted.pairs.height == 8 + 7 and len(parted.continued)


def test_without_a_long_silence_nothing_is_cut() -> None:
    traffic = prepare_traffic(pl.DataFrame(write_steps(0, 20)), None)
    assert part_successive_jobs(traffic) is traffic


def test_what_never_rests_and_sends_at_another_pace_is_another_job() -> None:
    def stream(begin_ms: int, seed: int, pace_ms: float) -> list[dict[str, object]]:
        gaps = np.random.default_rng(seed).exponential(pace_ms, 400)
        starts = ((begin_ms + np.cumsum(gaps)) * MS).astype(int).tolist()
        return [
            {"start_ns": at, "end_ns": at + MS // 10, "src": HOSTS[i], "dst": HOSTS[(i + 1) % 4], "bytes": ACTIVATIONS}
            for at in starts
            for i in range(4)
        ]

    assert count_pairs(stream(0, 1, 5.0) + stream(30_000, 2, 5.0)) == 4
    assert count_pairs(stream(0, 1, 5.0) + stream(30_000, 2, 12.0)) == 8
