"""Checkpoints are handed on once, when they are whole."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from prism.errors import BadFileError
from prism.evaluate.run.checkpoints.folder import inspect_folder
from prism.evaluate.run.loading.folder_source import FolderSource
from prism.evaluate.run.models.tiny import write_tiny
from prism.evaluate.run.watching import CheckpointWatch


def commit(folder: Path, content: bytes = b"weights") -> None:
    """A checkpoint as Prism's checkpointer leaves it."""
    folder.mkdir(parents=True)
    (folder / "__0_0.distcp").write_bytes(content)
    entry = {"name": "__0_0.distcp", "num_bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    (folder / "manifest.json").write_text(json.dumps({"schema": "prism.checkpoint/1", "step": 400, "files": [entry]}))


def names(watch: CheckpointWatch) -> list[str]:
    return [checkpoint.name for checkpoint in watch.look() or ()]


def test_a_checkpoint_is_taken_once_it_has_settled_and_only_once(tmp_path: Path) -> None:
    write_tiny(tmp_path / "step-2", 1)
    watch = CheckpointWatch(folder=tmp_path, settle_s=0.0)
    assert names(watch) == [] and "changed a moment ago" in watch.states["step-2"].reason
    assert names(watch) == ["step-2"] and names(watch) == []
    write_tiny(tmp_path / "step-10", 1)
    names(watch)
    assert [(c.name, c.step) for c in watch.look() or ()] == [("step-10", 10)]


def test_a_file_that_still_grows_is_waited_for(tmp_path: Path) -> None:
    write_tiny(tmp_path / "step-1", 1)
    weights = tmp_path / "step-1" / "model.safetensors"
    whole = weights.read_bytes()
    watch = CheckpointWatch(folder=tmp_path, settle_s=0.0)
    for length in (0, 5, 200, len(whole) - 1):
        weights.write_bytes(whole[:length])
        assert names(watch) == [] and watch.states["step-1"].state != "whole"
    weights.write_bytes(whole)
    assert names(watch) == [] and names(watch) == ["step-1"]


def test_a_shard_of_the_index_that_is_missing_is_waited_for(tmp_path: Path) -> None:
    write_tiny(tmp_path / "step-1", 1)
    index = {"weight_map": {"a": "model.safetensors", "b": "model-2.safetensors"}}
    (tmp_path / "step-1" / "model.safetensors.index.json").write_text(json.dumps(index))
    watch = CheckpointWatch(folder=tmp_path, settle_s=0.0)
    assert names(watch) == names(watch) == [] and "model-2.safetensors" in watch.states["step-1"].reason


def test_prisms_own_checkpoints_count_at_once_and_unfinished_names_never(tmp_path: Path) -> None:
    commit(tmp_path / "step-000000400")
    commit(tmp_path / ".writing-000000500-attempt1-x")
    commit(tmp_path / "discarded-step-000000300-1")
    write_tiny(tmp_path / "tmp-checkpoint", 1)
    watch = CheckpointWatch(folder=tmp_path)
    (found,) = watch.look() or ()
    assert (found.name, found.step) == ("step-000000400", 400)
    assert {name: seen.state for name, seen in watch.states.items()} == {"step-000000400": "whole"}


def test_a_committed_checkpoint_that_lost_bytes_is_not_taken(tmp_path: Path) -> None:
    commit(tmp_path / "step-1")
    (tmp_path / "step-1" / "__0_0.distcp").write_bytes(b"w")
    watch = CheckpointWatch(folder=tmp_path)
    assert names(watch) == [] and "the checkpoint is damaged" in watch.states["step-1"].reason


def test_an_idle_watch_ends(tmp_path: Path) -> None:
    watch = CheckpointWatch(folder=tmp_path, idle_s=0.0)
    assert watch.look() is None
    with pytest.raises(BadFileError, match="no such folder"):
        CheckpointWatch(folder=tmp_path / "gone")


@pytest.mark.parametrize("text", ['{"name": "a web page"}', "[]"])
def test_a_manifest_of_another_program_says_nothing_of_a_checkpoint(tmp_path: Path, text: str) -> None:
    write_tiny(tmp_path / "step-2", 1)
    (tmp_path / "step-2" / "manifest.json").write_text(text)
    assert {file.name for file in FolderSource(tmp_path / "step-2").files()} >= {"model.safetensors", "manifest.json"}
    watch = CheckpointWatch(folder=tmp_path, settle_s=3600)
    assert names(watch) == [] and watch.states["step-2"].state == "settling"
    (tmp_path / "step-3").mkdir()
    (tmp_path / "step-3" / "manifest.json").write_text(text)
    (tmp_path / "step-3" / "pytorch_model.bin").write_bytes(b"PK")
    with pytest.raises(BadFileError, match="half written, or no file of torch.save"):
        inspect_folder(tmp_path / "step-3")
