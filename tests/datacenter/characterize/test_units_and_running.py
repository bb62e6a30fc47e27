"""Units are judged, running jobs are counted up to the export, and a site's own columns can be named and saved."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from prism.datacenter.characterize import (
    Characterization,
    CharacterizeOptions,
    Profile,
    characterize,
    parse_choices,
    read_profile,
    write_profile,
)
from prism.datacenter.characterize.fields import mig_share, parse_gpu_count
from prism.errors import BadConfigError, BadFileError, InputError

Write = Callable[..., Path]


def noted(report: Characterization, text: str) -> bool:
    return any(text in note for note in report.notes)


def test_milliseconds_that_end_minus_start_proves_are_mended_and_said(write_trace: Write) -> None:
    rows = [(i, 8, "done", 1_700_000_000 + i, 1_700_000_000 + i + 60 * (i + 2), 60_000 * (i + 2)) for i in range(10)]
    rows.append((11, 8, "done", "", "", 7_200_000))
    path = write_trace(rows, columns=("job_id", "gpus", "state", "start_time", "end_time", "duration"))
    report = characterize(path)
    assert noted(report, "'duration' is in ms, not in seconds")
    assert report.study.summary.gpu_hours == pytest.approx(8 * (sum(60 * (i + 2) for i in range(10)) + 7200) / 3600)


def test_whole_thousands_are_milliseconds(write_trace: Write) -> None:
    rows = [(i, 1, i * 46_000, 7000 * (i + 3)) for i in range(40)]
    report = characterize(write_trace(rows, columns=("job", "num_gpu", "submit_time", "duration")))
    assert report.study.summary.gpu_hours == pytest.approx(sum(7 * (i + 3) for i in range(40)) / 3600)
    assert noted(report, "'duration' is in ms") and noted(report, "'submit_time' is in ms")


@pytest.mark.parametrize(
    ("columns", "row", "message"),
    [
        (("gpus", "duration"), (8, 2_868_294_123), r"'duration' has a median of 33,198 days.*--map duration=duration:ms"),
        (("num_gpu", "duration"), (5_000_000, 60), r"'num_gpu' goes up to 5,000,000 GPUs for one job.*--map gpus=num_gpu:milli"),
    ],
)  # fmt: skip
def test_numbers_that_cannot_be_are_refused_with_what_to_say(
    write_trace: Write, columns: tuple[str, ...], row: tuple[int, ...], message: str
) -> None:
    with pytest.raises(BadFileError, match=message):
        characterize(write_trace([row, row], columns=columns))


def test_times_that_span_more_than_a_cluster_lives_are_refused(write_trace: Write) -> None:
    rows = [
        ("1", 8, "done", "1970-01-02 00:00:00", "1970-01-02 01:00:00"),
        ("2", 8, "done", "2024-01-02", "2024-01-03"),
    ]
    path = write_trace(rows, columns=("job_id", "gpus", "state", "start_time", "end_time"))
    with pytest.raises(BadFileError, match=r"its times span 54 years; .*--map start=start_time:ms"):
        characterize(path)


def test_a_unit_given_by_the_user_is_believed(write_trace: Write) -> None:
    path = write_trace([(500, 90), (1000, 30)], columns=("cards", "length"))
    choices = parse_choices(["gpus=cards:milli", "duration=length:min"])
    assert characterize(path, CharacterizeOptions(choices=choices)).study.summary.gpu_hours == pytest.approx(1.25)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("gpus", r"is not field=column\[:unit\]"),
        ("gpus=", r"is not field=column\[:unit\]"),
        ("cards=n", "there is no field 'cards'; the fields are job, user"),
        ("start=t:fortnight", "unit 'fortnight' is not known; units of 'start': ns, us, ms, s, min, h, d"),
        ("gpus=n:ms", "units of 'gpus': gpu, percent, milli"),
        ("user=u:s", "none for this field"),
    ],
)
def test_a_map_that_means_nothing_is_refused(text: str, message: str) -> None:
    with pytest.raises(BadConfigError, match=message):
        parse_choices([text])


def test_a_mapped_column_that_is_not_there_is_named(write_trace: Write) -> None:
    with pytest.raises(
        BadFileError, match=r"--map names column 'cards', which it does not have; it has: gpus, duration"
    ):
        characterize(
            write_trace([(1, 1)], columns=("gpus", "duration")),
            CharacterizeOptions(choices=parse_choices(["gpus=cards"])),
        )


def test_a_profile_is_read_as_it_was_written(tmp_path: Path) -> None:
    profile = Profile(
        choices=parse_choices(["gpus=nvidia.com/gpu", 'start=begin "at":ms']), columns=("a", "b"), gpus=512.0, gpus_per_node=4,
        time_zone="Europe/Paris", cluster="east",
    )  # fmt: skip
    path = tmp_path / "site.toml"
    write_profile(profile, path)
    assert read_profile(path) == profile
    for text, message in (
        ("gpus = [1]", "'gpus' is .*expected a float"),
        ("colour = 1", "there is no setting 'colour'"),
        ("gpus =", "is no profile"),
        ("map = [1]", "expected a list"),
    ):
        path.write_text(text)
        with pytest.raises(InputError, match=message):
            read_profile(path)


def test_running_jobs_count_up_to_the_export(write_trace: Write) -> None:
    # 512 GPUs that have run for 26 hours beside a small job that ended.
    rows = [
        ("1", 512, "RUNNING", "2024-05-01 00:00:00", "2024-05-01 00:00:00", ""),
        ("2", 8, "COMPLETED", "2024-05-01 00:00:00", "2024-05-01 00:00:00", "2024-05-01 10:00:00"),
    ]
    path = write_trace(rows, columns=("job_id", "gpus", "state", "submit_time", "start_time", "end_time"))
    report = characterize(path, CharacterizeOptions(until="2024-05-02 02:00:00"))
    assert report.study.summary.gpu_hours == pytest.approx(512 * 26 + 80)
    assert report.study.capacity is not None
    held = report.study.capacity.allocated_pct / 100 * report.study.capacity.gpus * report.study.capacity.span_hours
    assert held == pytest.approx(report.study.summary.gpu_hours)
    assert report.study.summary.duration_s.count == 1  # a job that goes on has no duration yet
    assert noted(report, "up to 2024-05-02 02:00:00+00:00 (the export)")
    unknown = characterize(path)  # the last time in the table, and that is said
    assert unknown.study.summary.gpu_hours == pytest.approx(512 * 10 + 80)
    assert noted(unknown, "the last time in the table; pass --until")


def test_an_until_that_is_no_time_is_refused(write_trace: Write) -> None:
    with pytest.raises(BadConfigError, match="--until 'soon' is not a time"):
        characterize(write_trace([(1, 1)], columns=("gpus", "duration")), CharacterizeOptions(until="soon"))


@pytest.mark.parametrize(
    ("name", "share"),
    [
        ("1g.5gb", 1 / 7), ("nvidia.com/mig-3g.20gb", 3 / 7), ("7g.80gb", 1), ("a100_2g.10gb", 2 / 7), ("1g.6gb", 1 / 4),
        ("4g.24gb", 1), ("1g.10gb.me", 1 / 7), ("a100", None), ("h100_80gb", None),
    ],
)  # fmt: skip
def test_a_mig_device_is_its_share_of_a_gpu(name: str, share: float | None) -> None:
    assert mig_share(name) == (pytest.approx(share) if share else None)


def test_tres_lists_may_mix_whole_gpus_and_slices() -> None:
    assert parse_gpu_count("gres/gpu=5,gres/gpu:a100=2,gres/gpu:3g.20gb=3") == pytest.approx(2 + 9 / 7)
    assert parse_gpu_count("gres/gpu:1g.5gb=7") == pytest.approx(1)
    assert parse_gpu_count("gpu:1g.5gb:2") == pytest.approx(2 / 7)


def test_times_of_zero_beside_times_of_today_are_not_yet(write_trace: Write) -> None:
    rows = [("1", 8, "RUNNING", 1_700_000_000, 0), ("2", 8, "DONE", 1_700_000_000, 1_700_003_600)]
    path = write_trace(rows, columns=("job_id", "gpus", "state", "start_time", "end_time"))
    assert characterize(path).study.summary.gpu_hours == pytest.approx(16)
