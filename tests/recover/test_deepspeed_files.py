"""DeepSpeed's files, written in the background: whole or not at all, and never trusted when they were changed."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from prism.recover.checkpoint.integrations.deepspeed_files import (  # noqa: E402
    BackgroundFiles,
    find_damage,
    find_proven,
    find_tags,
)


def save(folder: Path, steps: list[int], ranks: int = 2, *, quiet_rank: int | None = None) -> list[str | None]:
    """Save as DeepSpeed would: every rank its files, then a commit; a quiet rank dies before its own."""
    answers: list[str | None] = []
    for rank in range(ranks):
        files = BackgroundFiles(folder, rank, ranks)
        for step in steps:
            tag = f"step-{step:09d}"
            weights = torch.full((100,), float(step))
            files.save({"weights": weights, "step": step, "nested": [weights]}, str(folder / tag / f"rank{rank}.pt"))
            weights.zero_()  # training goes on while it is written
            if rank != quiet_rank or step != steps[-1]:
                files.commit(tag, answers.append)
        files.close()
    return answers


def test_what_is_written_is_the_state_at_the_save(tmp_path: Path):
    assert save(tmp_path, [5]) == [None, None]
    found = torch.load(tmp_path / "step-000000005" / "rank1.pt")
    assert found["step"] == 5 and torch.equal(found["weights"], torch.full((100,), 5.0))
    assert torch.equal(found["nested"][0], torch.full((100,), 5.0))


def test_the_newest_whole_checkpoint_is_found(tmp_path: Path):
    assert find_proven(tmp_path) is None
    save(tmp_path, [5, 10])
    assert find_proven(tmp_path) == "step-000000010"


def test_a_checkpoint_that_one_rank_did_not_finish_does_not_count(tmp_path: Path):
    save(tmp_path, [5, 10], quiet_rank=1)
    assert find_proven(tmp_path) == "step-000000005"


@pytest.mark.parametrize("harm", ["changed", "shorter", "gone", "list"])
def test_a_damaged_checkpoint_gives_way_to_the_one_before(harm: str, tmp_path: Path):
    save(tmp_path, [5, 10])
    path = tmp_path / "step-000000010" / ("prism-00001.json" if harm == "list" else "rank1.pt")
    whole = path.read_bytes()
    changed = {"changed": whole[:-9] + b"x" + whole[-8:], "shorter": whole[:50], "list": b"[1, 2]"}
    if harm == "gone":
        path.unlink()
    else:
        path.write_bytes(changed[harm])
    assert find_damage(tmp_path / "step-000000010") is not None
    assert find_proven(tmp_path) == "step-000000005"


def test_old_checkpoints_go_and_two_stay(tmp_path: Path):
    save(tmp_path, [5, 10, 15, 20], ranks=1)
    assert find_tags(tmp_path) == ["step-000000015", "step-000000020"]


def test_a_write_that_fails_is_reported_and_the_next_one_works(tmp_path: Path):
    answers: list[str | None] = []
    files = BackgroundFiles(tmp_path, 0, 1)
    (tmp_path / "step-000000005").write_text("a file where a folder must be")
    files.save({"x": torch.ones(1)}, str(tmp_path / "step-000000005" / "a.pt"))
    files.commit("step-000000005", answers.append)
    files.save({"x": torch.ones(1)}, str(tmp_path / "step-000000010" / "a.pt"))
    files.commit("step-000000010", answers.append)
    files.close()
    assert answers[0] is not None and "Error" in answers[0] and answers[1] is None
    assert find_proven(tmp_path) == "step-000000010"
