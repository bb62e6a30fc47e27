"""Bad input ends in one line that names the file, the place and the mend."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from prism.datacenter.characterize import CharacterizeOptions, characterize, read_faults, read_utilisation
from prism.errors import BadFileError, BadRowError, InputError

Write = Callable[..., Path]
GOOD = ("1", "u", "8", "Eval", "COMPLETED", "2024-01-01 00:00:00", "2024-01-01 00:00:10", "2024-01-01 00:01:10")


def with_cell(index: int, value: str) -> tuple[str, ...]:
    return tuple(value if i == index else cell for i, cell in enumerate(GOOD))


def test_a_missing_column_is_named_with_its_known_names(write_trace: Write) -> None:
    with pytest.raises(
        BadFileError, match=r"trace\.csv: no column for 'gpus' \(known names: gpunum.*header has: job_id"
    ):
        characterize(write_trace("job_id,state,start_time,end_time\n1,COMPLETED,2024-01-01,2024-01-02\n"))
    with pytest.raises(BadFileError, match="needs 'start_time' and 'end_time', or 'duration'"):
        characterize(write_trace("job_id,state,gpus\n1,COMPLETED,8\n"))


def test_a_doubled_column_is_named(write_trace: Write) -> None:
    with pytest.raises(BadFileError, match="column 'GPU_num' appears twice"):
        characterize(write_trace("gpu_num,GPU_num,state,duration\n8,8,COMPLETED,5\n"))


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (with_cell(2, "eight"), r"line 3: 'gpu_num' is 'eight', expected a GPU count"),
        (with_cell(2, "-8"), r"line 3: 'gpu_num' is '-8'"),
        (with_cell(7, "2023-12-31 00:00:00"), r"line 3: 'end_time' is '2023-12-31 00:00:00', before 'start_time'"),
        (with_cell(6, "soon"), r"line 3: 'start_time' is 'soon', expected a time"),
    ],
)
def test_a_bad_row_is_named_and_can_be_skipped(write_trace: Write, row: tuple[str, ...], message: str) -> None:
    path = write_trace([GOOD, row, GOOD])
    with pytest.raises(BadRowError, match=message + ".*--skip-bad-rows"):
        characterize(path)
    report = characterize(path, CharacterizeOptions(skip_bad_rows=True))
    assert report.study.summary.jobs == 2
    assert any("1 of 3 rows were bad" in note for note in report.notes)


def test_a_negative_duration_is_named(write_trace: Write) -> None:
    with pytest.raises(BadRowError, match="line 2: 'duration' is '-5', expected a length of time that is not negative"):
        characterize(write_trace("gpus,state,duration\n8,COMPLETED,-5\n"))


def test_gpu_counts_with_a_fraction_or_a_model_are_counts(write_trace: Write) -> None:
    report = characterize(write_trace([with_cell(2, "8.0"), with_cell(2, "8xA100"), GOOD]))
    assert report.study.sizes.select("gpus", "jobs").rows() == [(8, 3)]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"\n\n", "is empty"),
        (b"PK\x03\x04rest", "zip archive or spreadsheet"),
        (b"\x89PNG\r\n\x1a\n", "an image"),
        (b"\x00\x01\x02\x03" * 50, "is binary"),
        (b"<!DOCTYPE html><html>", "web page"),
        (b"just a line of prose\n", "not a header of a job table"),
        (b"PAR1 but not really", "broken Parquet"),
        (b'{"a": 1}', "JSON of a kind that is not known"),
        (b"[1, 2", "not JSON that can be read"),
        (b"\xff\xfea\x00", "UTF-16"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\n", "Git LFS pointer"),
        (b"\x1f\x8bnot gzip at all", "cannot be unpacked"),
        (b"job_id,gpu_num,state,duration\n", "has a header but no jobs"),
    ],
)
def test_a_file_that_is_no_job_table_is_said_to_be_what_it_is(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "trace.csv"
    path.write_bytes(content)
    with pytest.raises(BadFileError, match=message):
        characterize(path)


def test_a_missing_file_and_a_folder_are_reported(tmp_path: Path) -> None:
    with pytest.raises(BadFileError, match="cannot be read"):
        characterize(tmp_path / "none.csv")
    with pytest.raises(BadFileError, match="is a folder"):
        characterize(tmp_path)


def test_an_empty_cluster_names_those_there_are(write_trace: Write) -> None:
    path = write_trace("cluster,gpus,state,duration\neast,8,COMPLETED,5\n")
    with pytest.raises(BadFileError, match="no jobs of cluster 'north'; it holds east"):
        characterize(path, CharacterizeOptions(cluster="north"))


def test_text_in_other_encodings_is_read_and_said(tmp_path: Path) -> None:
    path = tmp_path / "latin.csv"
    path.write_bytes(
        "job_id,user,gpus,state,duration\n1,J\xf6rg,8,COMPLETED,60\n2,Zo\u00e9,8,FAILED,5\n".encode("latin-1")
    )
    report = characterize(path)
    assert report.study.summary.jobs == 2
    assert any("not UTF-8" in note for note in report.notes)


def test_a_byte_order_mark_and_windows_line_ends_do_no_harm(tmp_path: Path) -> None:
    path = tmp_path / "windows.csv"
    path.write_bytes("\ufeffgpus,state,duration\r\n8,COMPLETED,60\r\n".encode())
    assert characterize(path).study.summary.duration_s.max == 60


def test_a_row_with_too_many_cells_is_bad(write_trace: Write) -> None:
    path = write_trace("gpus,state,duration\n8,COMPLETED,60\n8,COMPLETED,60,extra,extra\n")
    with pytest.raises(BadRowError, match=r'trace\.csv line 3: more values than columns: "extra" has no column'):
        characterize(path)
    report = characterize(path, CharacterizeOptions(skip_bad_rows=True))
    assert (report.study.summary.jobs, report.intake.bad_rows) == (1, 1)


SACCT = "JobID|JobName|State|Start|End|AllocTRES"
SACCT_ROW = "{}|{}|COMPLETED|2024-01-01T00:00:00|2024-01-01T01:00:00|gres/gpu=8"


@pytest.mark.parametrize("end", ["", "|"], ids=["sacct --parsable2", "sacct --parsable"])
def test_a_job_name_that_contains_the_separator_of_sacct_is_named(write_trace: Write, end: str) -> None:
    rows = [SACCT_ROW.format(k, "a|b" if k == 3 else "a") for k in range(6)]
    path = write_trace("".join(f"{line}{end}\n" for line in (SACCT, *rows)))
    with pytest.raises(BadRowError, match=r'trace\.csv line 5: more values than columns: "gres/gpu=8" has no column'):
        characterize(path)


@pytest.mark.parametrize("header", [SACCT, SACCT + "|"])
def test_a_separator_at_the_end_of_each_row_of_sacct_is_no_value(write_trace: Write, header: str) -> None:
    rows = [SACCT_ROW.format(k, "a") for k in range(6)]
    report = characterize(write_trace("".join(f"{line}\n" for line in (header, *(row + "|" for row in rows)))))
    assert (report.study.summary.jobs, report.intake.bad_rows) == (6, 0)


def test_a_free_text_column_is_no_job_type(write_trace: Write) -> None:
    rows = "\n".join(f"8,COMPLETED,5,note {i}" for i in range(1100))
    with pytest.raises(BadFileError, match=r"trace\.csv: 'type' holds 1,100 different values, so it is no job type"):
        characterize(write_trace(f"gpus,state,duration,type\n{rows}\n"))


@pytest.mark.parametrize(
    "options",
    [{"time_zone": "Mars/Olympus"}, {"gpus": 0.0}, {"gpus_per_node": 0}, {"nodes": 0}],
)
def test_settings_that_cannot_be_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(InputError):
        CharacterizeOptions(**options)  # type: ignore[arg-type]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(data=st.data())
def test_damaged_traces_give_a_report_or_one_clear_line(
    two_hundred_jobs: Path, tmp_path: Path, data: st.DataObject
) -> None:
    text = bytearray(b"\n".join(two_hundred_jobs.read_bytes().splitlines()[:12]))
    for _ in range(data.draw(st.integers(1, 6))):
        at = data.draw(st.integers(0, len(text) - 1))
        cut = data.draw(st.integers(0, 30))
        text[at : at + cut] = data.draw(st.binary(max_size=12))
        text = text or bytearray(b"\n")
    path = tmp_path / "damaged.csv"
    path.write_bytes(bytes(text))
    for reader in (
        lambda: characterize(path),
        lambda: characterize(path, CharacterizeOptions(skip_bad_rows=True)),
        lambda: read_faults(path),
        lambda: read_utilisation(path),
    ):
        try:
            reader()
        except InputError as error:
            assert str(path) in str(error)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    cells=st.lists(
        st.text(st.characters(codec="utf-8", exclude_characters='\n\r",'), max_size=12), min_size=8, max_size=8
    )
)
def test_any_text_in_any_cell_gives_a_report_or_one_clear_line(tmp_path: Path, cells: list[str]) -> None:
    path = tmp_path / "cells.csv"
    header = "job_id,user,gpu_num,type,state,submit_time,start_time,end_time"
    path.write_text(f"{header}\n{','.join(cells)}\n{','.join(GOOD)}\n", encoding="utf-8")
    try:
        characterize(path)
    except InputError as error:
        assert "cells.csv" in str(error)


def test_long_rows_in_a_zstd_table_stop_the_reading_where_zstandard_is_not_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    zstandard = pytest.importorskip("zstandard")
    good, long = tmp_path / "good.csv.zst", tmp_path / "long.csv.zst"
    text = b"gpus,state,duration\n8,COMPLETED,60\n"
    good.write_bytes(zstandard.compress(text))
    long.write_bytes(zstandard.compress(text + b"8,COMPLETED,60,extra\n"))
    monkeypatch.setitem(sys.modules, "zstandard", None)
    assert characterize(good).study.summary.jobs == 1
    with pytest.raises(
        BadFileError, match=r"long\.csv\.zst: has rows with more values than columns.*pip install 'zstandard"
    ):
        characterize(long)
