"""Committed checkpoints: what counts, what is found, what is kept. No torch."""

from __future__ import annotations

import json
import math
import os
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prism.errors import BadFileError
from prism.machine.files import hash_file
from prism.recover.catalog import Catalog, Retention, find_damage
from prism.recover.manifest import MANIFEST_NAME, FileSum, Health, Manifest, read_manifest


def commit(catalog: Catalog, step: int, *, epoch: int = 1, loss: float = 1.0, time_ns: int | None = None) -> Path:
    written = catalog.writing_path(step, epoch, 7)
    written.mkdir()
    (written / "data").write_bytes(b"x" * step)
    files = (FileSum(name="data", num_bytes=step, sha256=hash_file(written / "data")),)
    manifest = Manifest(
        step=step,
        attempt=1,
        epoch=epoch,
        world_size=4,
        time_ns=step if time_ns is None else time_ns,
        health=Health(loss=loss),
        files=files,
    )
    return catalog.commit(written, manifest)


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    return Catalog.open(tmp_path / "checkpoints")


def test_what_is_being_written_is_not_found(catalog: Catalog):
    catalog.writing_path(5, 1, 7).mkdir()
    assert catalog.entries() == [] and catalog.last_good() is None


def test_the_last_good_one_before_a_step_or_a_time_is_a_query(catalog: Catalog):
    for step in (10, 20, 30):
        commit(catalog, step)
    assert catalog.last_good().step == 30
    assert catalog.last_good(up_to_step=29).step == 20
    assert catalog.last_good(before_ns=20).step == 10
    assert catalog.last_good(up_to_step=9) is None


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
def test_a_checkpoint_with_a_sick_loss_is_never_the_last_good(catalog: Catalog, loss: float):
    commit(catalog, 10)
    commit(catalog, 20, loss=loss)
    assert catalog.last_good().step == 10
    assert catalog.entries()[-1].manifest.health.good is False


def test_a_file_that_was_cut_short_is_passed_over(catalog: Catalog):
    commit(catalog, 10)
    (commit(catalog, 20) / "data").write_bytes(b"x")
    assert catalog.last_good().step == 10


def test_a_flipped_bit_is_found_by_its_checksum(catalog: Catalog):
    path = commit(catalog, 20)
    (entry,) = catalog.entries()
    assert find_damage(entry) is None
    (path / "data").write_bytes(b"x" * 19 + b"y")
    assert "checksum" in find_damage(entry)
    assert find_damage(entry, deep=False) is None


def test_a_missing_file_is_found(catalog: Catalog):
    (commit(catalog, 20) / "data").unlink()
    assert find_damage(catalog.entries()[0]) is not None


def test_a_writer_of_an_earlier_epoch_can_no_longer_commit(catalog: Catalog):
    assert (catalog.take_over(), catalog.take_over()) == (1, 2)
    with pytest.raises(BadFileError, match="epoch 1 is over"):
        commit(catalog, 10, epoch=1)
    commit(catalog, 10, epoch=2)


def test_taking_over_removes_what_was_left_half_written(catalog: Catalog):
    left = catalog.writing_path(5, 1, 7)
    left.mkdir()
    catalog.take_over()
    assert not left.exists()


def test_the_same_step_saved_again_replaces_the_earlier(catalog: Catalog):
    commit(catalog, 10, epoch=1)
    commit(catalog, 10, epoch=2)
    assert [e.manifest.epoch for e in catalog.entries()] == [2]


def test_a_given_up_future_is_not_found_again(catalog: Catalog):
    for step in (10, 20, 30):
        commit(catalog, step)
    assert catalog.discard_after(10) == [20, 30]
    assert catalog.last_good().step == 10


def test_what_was_given_up_stays_until_training_has_overtaken_it(catalog: Catalog):
    catalog.take_over()
    for step in (10, 20, 30):
        commit(catalog, step)
    catalog.discard_after(10)
    catalog.take_over()
    commit(catalog, 15, epoch=2)
    catalog.retain(Retention(keep_last=1))
    assert len(list(catalog.folder.glob("discarded-*"))) == 2
    commit(catalog, 25, epoch=2)
    catalog.retain(Retention(keep_last=1))
    assert [p.name[:24] for p in catalog.folder.glob("discarded-*")] == ["discarded-step-000000030"]


def test_a_straggler_that_commits_after_the_decision_to_go_back_is_not_found(catalog: Catalog):
    catalog.take_over()
    commit(catalog, 10)
    catalog.discard_after(10)
    commit(catalog, 20)
    assert catalog.last_good().step == 10


def test_a_checkpoint_with_a_tensor_that_is_not_finite_is_never_the_last_good(catalog: Catalog):
    commit(catalog, 10)
    path = commit(catalog, 20) / MANIFEST_NAME
    document = json.loads(path.read_text())
    document["health"] |= {"num_not_finite": 1, "worst": "model.w"}
    path.write_text(json.dumps(document))
    assert catalog.last_good().step == 10


def test_a_doubtful_checkpoint_is_left_out_only_when_certainty_is_asked_for(catalog: Catalog):
    commit(catalog, 10)
    path = commit(catalog, 20) / MANIFEST_NAME
    document = json.loads(path.read_text())
    document["health"] |= {"num_outliers": 2}
    path.write_text(json.dumps(document))
    assert catalog.last_good().step == 20 and catalog.last_good(certain=True).step == 10


def test_a_deleted_and_remade_folder_has_another_id(tmp_path: Path):
    first = Catalog.open(tmp_path / "c").id
    assert Catalog.open(tmp_path / "c").id == first
    shutil.rmtree(tmp_path / "c")
    assert Catalog.open(tmp_path / "c").id != first


def test_a_manifest_that_names_a_file_elsewhere_is_not_used(catalog: Catalog):
    path = commit(catalog, 10) / MANIFEST_NAME
    path.write_text(path.read_text().replace('"name":"data"', '"name":"../../secret"'))
    assert catalog.entries() == []


def test_a_folder_of_version_one_is_read_and_gets_an_id_when_written(tmp_path: Path):
    (tmp_path / "prism-checkpoints.json").write_text('{"schema": "prism.checkpoints/1"}')
    assert Catalog.open(tmp_path, read_only=True).id is None
    assert Catalog.open(tmp_path).id is not None


def test_retention_keeps_the_newest_good_ones_and_the_milestones(catalog: Catalog):
    for step in range(10, 110, 10):
        commit(catalog, step)
    commit(catalog, 110, loss=math.nan)
    catalog.retain(Retention(keep_last=2, keep_every_steps=50))
    assert [e.step for e in catalog.entries()] == [50, 90, 100, 110]


@given(st.lists(st.tuples(st.integers(1, 50), st.booleans()), min_size=1, max_size=12), st.integers(0, 4))
def test_retention_never_removes_the_last_good_one(tmp_path_factory, saves, keep_last):
    catalog = Catalog.open(tmp_path_factory.mktemp("c") / "c")
    for step, good in saves:
        commit(catalog, step, loss=1.0 if good else math.nan)
    before = catalog.last_good()
    catalog.retain(Retention(keep_last=keep_last))
    after = catalog.last_good()
    assert (before is None) == (after is None)
    assert before is None or before.step == after.step


def test_a_folder_with_other_things_in_it_is_refused(tmp_path: Path):
    (tmp_path / "thesis.doc").write_text("")
    with pytest.raises(BadFileError, match="thesis.doc"):
        Catalog.open(tmp_path)


def test_a_folder_of_a_newer_version_is_refused(tmp_path: Path):
    (tmp_path / "prism-checkpoints.json").write_text('{"schema": "prism.checkpoints/99"}')
    with pytest.raises(BadFileError, match="newer Prism"):
        Catalog.open(tmp_path)


@pytest.mark.parametrize("text", ["", "[]", "{", '{"schema": "orbax/1"}', '{"schema": null}', "\x00"])
def test_a_folder_marked_by_something_else_is_refused(tmp_path: Path, text: str):
    (tmp_path / "prism-checkpoints.json").write_text(text)
    with pytest.raises(BadFileError):
        Catalog.open(tmp_path)


def test_a_folder_that_cannot_be_written_is_refused():
    with pytest.raises(BadFileError, match="cannot be"):
        Catalog.open(Path("/proc/prism-checkpoints"))


def test_a_read_only_folder_is_refused():
    as_root = os.geteuid() == 0
    with tempfile.TemporaryDirectory() as place:  # pytest's own folders are closed to others
        folder = Path(place) / "c"
        folder.mkdir(mode=0o555)
        Path(place).chmod(0o755)
        if as_root:
            os.seteuid(65_534)  # root may write anywhere
        try:
            with pytest.raises(BadFileError, match="fix its permissions"):
                Catalog.open(folder)
        finally:
            if as_root:
                os.seteuid(0)


def test_a_manifest_of_a_newer_version_is_not_used(catalog: Catalog):
    path = commit(catalog, 10) / MANIFEST_NAME
    path.write_text(json.dumps({**json.loads(path.read_text()), "schema": "prism.checkpoint/3"}))
    assert catalog.entries() == []


def test_a_manifest_reads_back_as_written(catalog: Catalog):
    manifest = Manifest(
        step=1,
        attempt=2,
        world_size=3,
        time_ns=4,
        health=Health(loss=math.inf, grad_norm=0.5),
        files=(FileSum(name="a", num_bytes=1, sha256="00"),),
    )
    (catalog.folder / MANIFEST_NAME).write_text(manifest.to_json())
    assert read_manifest(catalog.folder) == manifest


@given(
    st.binary(max_size=200)
    | st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda x: st.lists(x) | st.dictionaries(st.sampled_from(["schema", "step", "health", "files", "name"]), x),
    )
)
def test_no_manifest_is_so_odd_that_it_is_not_told_in_a_line(tmp_path_factory, content):
    folder = tmp_path_factory.mktemp("m")
    data = content if isinstance(content, bytes) else json.dumps(content).encode()
    (folder / MANIFEST_NAME).write_bytes(data)
    with pytest.raises(BadFileError):
        read_manifest(folder)
