"""Times of every notation to the nanosecond, and which texts are addresses."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import polars as pl
import pytest

from prism.errors import BadRowError
from prism.records.addresses import binary_to_text, first_bad_address, is_address, numbers_to_text
from prism.records.times import infer_unit, to_ns, unit_by_size

EPOCH_S = 1_700_000_000


def convert(values: list[Any], unit: str) -> list[int | None]:
    frame = pl.DataFrame({"t": values})
    return frame.select(to_ns("t", frame.schema["t"], unit).alias("t"))["t"].to_list()


@pytest.mark.parametrize(
    ("value", "unit", "ns"),
    [
        (5, "ns", 5),
        (5, "us", 5_000),
        (5, "ms", 5_000_000),
        (5, "s", 5_000_000_000),
        (0.0015, "s", 1_500_000),
        (2.5, "us", 2_500),
        (1.4, "ns", 1),
        (" 7 ", "ns", 7),
        ("1700000000.123456789", "s", EPOCH_S * 10**9 + 123_456_789),
        ("1700000000123.456789", "ms", EPOCH_S * 10**9 + 123_456_789),
        ("1.5", "us", 1_500),
        ("1970-01-01 00:00:01.5", "iso", 1_500_000_000),
        ("1970-01-01T00:00:01Z", "iso", 1_000_000_000),
        ("1970/01/01 00:00:02 UTC", "iso", 2_000_000_000),
        ("1970-01-01 01:00:00+0100", "iso", 0),
        (datetime(1970, 1, 1, 0, 0, 3), "ns", 3_000_000_000),
        (timedelta(milliseconds=4), "ns", 4_000_000),
        ("soon", "iso", None),
        ("soon", "s", None),
        (True, "s", None),
    ],
)
def test_every_notation_is_exact(value: Any, unit: str, ns: int | None) -> None:
    assert convert([value], unit) == [ns]


@pytest.mark.parametrize(
    ("values", "unit"),
    [
        ([EPOCH_S, EPOCH_S + 5], "s"),
        ([EPOCH_S * 10**3], "ms"),
        ([EPOCH_S * 10**6], "us"),
        ([EPOCH_S * 10**9], "ns"),
        ([str(EPOCH_S)], "s"),
        (["2023-11-14 00:00:00"], "iso"),
        ([None, "2023-11-14 00:00:00"], "iso"),
        ([datetime(2023, 1, 1)], "ns"),
    ],
)
def test_times_since_the_epoch_show_their_unit(values: list[Any], unit: str) -> None:
    frame = pl.DataFrame({"t": values})
    assert infer_unit(frame.lazy(), "t", frame.schema["t"], "f", "start") == unit


@pytest.mark.parametrize(
    ("values", "line"),
    [
        ([1, 2], "f: cannot tell the unit of 't' (values 1 to 2); rename it to start_s, start_ms"),
        ([EPOCH_S, EPOCH_S * 1000], "f: 't' mixes time units (1700000000 looks like s, 1700000000000 like ms)"),
    ],
)
def test_times_that_do_not_are_refused(values: list[int], line: str) -> None:
    frame = pl.DataFrame({"t": values})
    with pytest.raises(BadRowError) as caught:
        infer_unit(frame.lazy(), "t", frame.schema["t"], "f", "start")
    assert line in str(caught.value)


def test_the_ranges_of_units_meet_and_do_not_overlap() -> None:
    edges = ((1e8, "s"), (1e11 - 1, "s"), (1e11, "ms"), (1e14, "us"), (1e17, "ns"), (9.2e18, "ns"))
    assert [unit_by_size(value) for value, _ in edges] == [unit for _, unit in edges]
    assert unit_by_size(1e8 - 1) is None and unit_by_size(9.3e18) is None


@pytest.mark.parametrize(
    ("text", "valid"),
    [
        ("10.0.0.1", True),
        ("10.0.0.256", False),
        ("10.0.0", False),
        ("17", True),
        ("fe80::1", True),
        ("fe80:::1", False),
        ("10.0.0.1:4791", True),
        ("10.0.0.999:4791", False),
        ("aa:bb:cc:dd:ee:ff", True),
        ("aa-bb-cc-dd-ee-ff", True),
        ("node-3/mlx5_0", True),
        ("host%eth0", True),
        ("-host", False),
        ("host-", False),
        ("a b", False),
        ("", False),
        ("x" * 255, True),
        ("x" * 256, False),
    ],
)
def test_what_can_name_an_endpoint(text: str, valid: bool) -> None:
    assert is_address(text) is valid


def test_the_bad_address_is_named() -> None:
    assert first_bad_address(pl.Series(["10.0.0.1", "node1", None])) is None
    assert first_bad_address(pl.Series(["10.0.0.1", "10.0.0.300"])) == "10.0.0.300"


def test_binary_and_numeric_addresses_become_readable() -> None:
    assert binary_to_text(bytes([10, 0, 0, 1])) == "10.0.0.1"
    assert binary_to_text(bytes([10, 0, 0, 1]) + bytes(12)) == "10.0.0.1"
    assert binary_to_text(bytes(10) + b"\xff\xff" + bytes([10, 0, 0, 1])) == "10.0.0.1"
    assert binary_to_text(bytes.fromhex("fe80" + "00" * 13 + "01")) == "fe80::1"
    assert binary_to_text(bytes(16)) == "::"
    assert binary_to_text(bytes(6)) is None
    assert numbers_to_text(pl.Series([0x0A000001, 0xC0A80102])).to_list() == ["10.0.0.1", "192.168.1.2"]
