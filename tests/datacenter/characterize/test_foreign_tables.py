"""Tables of 30 tools load without options, or ask for what they do not tell."""

from __future__ import annotations

from pathlib import Path

import pytest
from foreign_tables import ASKS, GPU_HOURS, TABLES

from prism.datacenter.characterize import CharacterizeOptions, characterize, parse_choices
from prism.errors import InputError


def test_there_are_thirty() -> None:
    assert len(TABLES) == 30


@pytest.mark.parametrize("name", sorted(set(TABLES) - set(ASKS)))
def test_a_table_loads_as_its_tool_writes_it(name: str, tmp_path: Path) -> None:
    path = tmp_path / TABLES[name][0]
    path.write_text(TABLES[name][1])
    summary = characterize(path).study.summary
    assert (summary.gpu_jobs, summary.max_gpus) == (3, 16)
    assert summary.gpu_hours == pytest.approx(GPU_HOURS)


@pytest.mark.parametrize("name", ASKS)
def test_a_table_without_gpus_is_a_question(name: str, tmp_path: Path) -> None:
    path = tmp_path / TABLES[name][0]
    path.write_text(TABLES[name][1])
    with pytest.raises(InputError, match="--map gpus="):
        characterize(path)


def test_jobs_without_a_gpu_are_a_question(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("job,gpus,state,start,end\n1,0,done,2024-01-01 00:00:00,2024-01-01 01:00:00\n")
    with pytest.raises(InputError, match="none of its 1 jobs has a GPU: 'gpus' is 0"):
        characterize(path)


def test_days_and_months_that_cannot_be_told_apart_are_a_question_and_can_be_said(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("job,gpus,state,start,end\n1,8,done,01/02/2024 00:00,01/02/2024 01:00\n")
    with pytest.raises(InputError, match="cannot be told apart"):
        characterize(path)
    for order, month in (("dmy", 2), ("mdy", 1)):
        choices = parse_choices([f"start=start:{order},end=end:{order}"])
        found = characterize(path, CharacterizeOptions(choices=choices)).study
        assert found.occupancy["date"][0].month == month
