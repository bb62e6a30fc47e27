"""Shared by the tests of the study: a trace with known answers, and traces written for one test."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

HERE = Path(__file__).parent
COLUMNS = ("job_id", "user", "gpu_num", "type", "state", "submit_time", "start_time", "end_time")


@pytest.fixture
def two_hundred_jobs() -> Path:
    """The trace whose answers are worked out by hand."""
    return HERE / "data" / "two_hundred_jobs.csv"


@pytest.fixture
def write_trace(tmp_path: Path) -> Callable[..., Path]:
    """Write rows of AcmeTrace's main columns, or any text, to a file."""

    def write(
        rows: Sequence[Sequence[object]] | str,
        *,
        columns: Sequence[str] = COLUMNS,
        name: str = "trace.csv",
        separator: str = ",",
    ) -> Path:
        path = tmp_path / name
        if isinstance(rows, str):
            path.write_text(rows, encoding="utf-8")
        else:
            lines = [separator.join(columns), *(separator.join(str(cell) for cell in row) for row in rows)]
            path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        return path

    return write
