"""Messages that several queue pairs carry in equal parts are one message of one connection."""

from __future__ import annotations

import numpy as np
import polars as pl

from prism.observe.traffic.preparation import prepare_traffic

MS = 10**6
HOSTS = [f"10.0.{i}.1" for i in range(4)]


def write_flows(*, apart_ns: int = 0, rounded_ns: int = 1) -> pl.DataFrame:
    """A ring of four hosts with two queue pairs between neighbours; the second begins `apart_ns` after the first."""
    rng = np.random.default_rng(3)
    rows = []
    for step in range(30):
        for host, address in enumerate(HOSTS):
            begin = step * 200 * MS + int(rng.integers(0, 5 * MS))
            for part in range(2):
                start, end = begin + part * apart_ns, begin + 20 * MS + part * apart_ns
                rows.append({
                    "start_ns": start // rounded_ns * rounded_ns, "end_ns": end // rounded_ns * rounded_ns,
                    "src": address, "dst": HOSTS[(host + 1) % 4], "bytes": 40 << 20, "qp": 100 + 2 * host + part,
                })  # fmt: skip
    return pl.DataFrame(rows)


def test_parts_that_always_pass_at_one_moment_are_joined() -> None:
    traffic = prepare_traffic(write_flows())
    assert traffic.messages.height == 4 * 30
    assert traffic.messages["bytes"].unique().to_list() == [80 << 20]
    assert traffic.streams.height == 4


def test_channels_that_begin_one_after_the_other_stay_apart() -> None:
    assert prepare_traffic(write_flows(apart_ns=2_000)).messages.height == 2 * 4 * 30


def test_moments_that_are_rounded_tell_nothing() -> None:
    assert prepare_traffic(write_flows(rounded_ns=10 * MS)).messages.height == 2 * 4 * 30
