"""What others put where Prism reads: nothing of it runs, and nothing foreign is taken for ours."""

from __future__ import annotations

import fcntl
import hashlib
import io
import json
import os
import pickle
import re
import shutil
import time
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import torch.distributed.checkpoint as dcp  # noqa: E402

from prism.errors import BadFileError  # noqa: E402
from prism.machine.files import hash_file  # noqa: E402
from prism.recover.catalog import Catalog  # noqa: E402
from prism.recover.checkpoint import (  # noqa: E402
    CheckpointConfig,
    Checkpointer,
    Health,
    memory,
)
from prism.recover.checkpoint.memory import SweepConfig, memory_folder, sweep_memory  # noqa: E402
from prism.recover.checkpoint.safe_values import (  # noqa: E402
    MetadataUnpickler,
    dump_value,
    load_value,
    unpickle_metadata,
)
from prism.recover.manifest import FileSum, Manifest, read_manifest  # noqa: E402

ROOT = os.geteuid() == 0


class Payload:
    """Makes a file when it is unpickled."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self):
        return (os.mkdir, (str(self.target),))


def make(tmp_path: Path, **changes) -> Checkpointer:
    settings = {"folder": tmp_path / "c", "memory_dir": tmp_path / "m", "writer": "thread", "watch_signals": False}
    (tmp_path / "m").mkdir(exist_ok=True)
    return Checkpointer(CheckpointConfig(**{**settings, **changes}))


def leave(one: Checkpointer) -> None:
    """As a killed process does."""
    one.wait_written()
    one._uploads.close()
    one.memory.release()


def state_of(value: float) -> dict:
    return {"w": torch.full((10,), value), "n": int(value)}


# -- memory


def test_a_planted_memory_folder_runs_nothing(tmp_path: Path):
    ran = tmp_path / "ran"
    one = make(tmp_path)
    by_path = hashlib.sha256(str((tmp_path / "c").resolve()).encode()).hexdigest()
    for name in (by_path, getattr(one.catalog, "id", None) or by_path):
        folder = tmp_path / "m" / f"prism-{name[:16]}" / "rank-00000"
        folder.mkdir(parents=True)
        for file in ("slot-0.header", "slot-0.json", "slot-0.proof", "slot-0.data"):
            (folder / file).write_bytes(pickle.dumps(Payload(ran)))
    assert make(tmp_path).restore(state_of(0.0)) is None
    assert not ran.exists()


@pytest.mark.parametrize("harm", ["mode", "owner", "link", "other run"])
def test_memory_that_another_could_have_written_is_not_restored(tmp_path: Path, harm: str, monkeypatch):
    if harm == "owner" and not ROOT:
        pytest.skip("only root can give a folder away")
    from prism.recover.checkpoint import writer

    one = make(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(writer, "hash_file", lambda path, **kw: "a write that fails")  # so that only memory holds it
        one.save(5, state_of(5.0))
        leave(one)
    folder = one.memory.run_folder
    if harm == "mode":
        folder.chmod(0o755)
    elif harm == "owner":
        os.chown(folder, 65_534, 65_534)
    elif harm == "link":
        folder.rename(tmp_path / "m" / "elsewhere")
        folder.symlink_to(tmp_path / "m" / "elsewhere")
    else:
        header = folder / "rank-00000" / "slot-0.json"
        header.write_text(json.dumps({**json.loads(header.read_text()), "folder_id": "0" * 32}))
    assert make(tmp_path).restore(state_of(0.0)) is None


@pytest.mark.skipif(not ROOT, reason="only root can give a folder away")
def test_a_folder_planted_under_our_name_does_not_stop_the_saves(tmp_path: Path):
    one = make(tmp_path)
    planted = memory_folder(tmp_path / "m", one.catalog.id)
    planted.mkdir()
    os.chown(planted, 65_534, 65_534)
    one.save(1, state_of(1.0))
    one.close()
    assert one.catalog.last_good().step == 1 and one.memory.run_folder != planted
    assert list(planted.iterdir()) == []


def test_staged_bytes_that_changed_are_not_restored(tmp_path: Path):
    one = make(tmp_path)
    for step in (1, 2):
        one.save(step, state_of(float(step)))
    leave(one)
    ((slot, _),) = [found for (step, _), found in one.memory.whole(1).items() if step == 2]
    with slot.data_path.open("r+b") as handle:
        handle.write(b"\xff")
    again, target = make(tmp_path), state_of(0.0)
    restored = again.restore(target)
    assert (restored.step, restored.source) == (2, "storage") and float(target["w"][0]) == 2.0


def test_nobody_else_can_enter_the_memory(tmp_path: Path):
    one = make(tmp_path)
    one.save(1, state_of(1.0))
    one.wait_written()
    for path in (one.memory.run_folder, *one.memory.run_folder.rglob("*")):
        assert path.stat().st_mode & 0o077 == 0, path
    one.close()


# -- which run it belongs to


def test_after_the_checkpoints_were_deleted_a_fresh_start_is_fresh(tmp_path: Path):
    one = make(tmp_path)
    one.save(5, state_of(5.0))
    leave(one)
    shutil.rmtree(tmp_path / "c")
    assert make(tmp_path).restore(state_of(0.0)) is None


def test_after_only_the_steps_were_deleted_a_fresh_start_is_fresh(tmp_path: Path):
    one = make(tmp_path)
    for step in (5, 6):
        one.save(step, state_of(5.0))
    leave(one)
    for path in (tmp_path / "c").glob("step-*"):
        shutil.rmtree(path)
    assert make(tmp_path).restore(state_of(0.0)) is None


def test_two_containers_with_one_path_do_not_share_their_memory(tmp_path: Path):
    """The same path names another folder in each of them; /dev/shm is the same."""
    one = make(tmp_path)
    one.save(5, state_of(5.0))
    leave(one)
    (tmp_path / "c").rename(tmp_path / "first-container")
    other = make(tmp_path)
    assert other.restore(state_of(0.0)) is None
    other.save(1, state_of(1.0))
    leave(other)
    assert other.memory.run_folder != one.memory.run_folder


def test_a_script_that_restores_while_another_process_trains_reads_storage(tmp_path: Path, monkeypatch):
    one = make(tmp_path)
    one.save(3, state_of(3.0))
    leave(one)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        descriptor = os.open(one.memory.folder / "lock", os.O_RDWR)
        fcntl.lockf(descriptor, fcntl.LOCK_EX)
        os.write(writer, b"held")
        time.sleep(60)
        os._exit(0)
    try:
        os.read(reader, 4)
        monkeypatch.setattr(memory, "_LOCK_WAIT_S", 0.1)
        assert make(tmp_path).restore(state_of(0.0)).source == "storage"
        assert make(tmp_path, read_only=True).restore(state_of(0.0)).source == "storage"
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)
        os.close(reader)
        os.close(writer)
    assert make(tmp_path).restore(state_of(0.0)).source == "memory"


def test_a_copied_checkpoint_folder_gets_memory_of_its_own_while_the_first_runs(tmp_path: Path, monkeypatch):
    one = make(tmp_path)
    lock = memory_folder(tmp_path / "m", one.catalog.id) / "rank-00000" / "lock"
    lock.parent.mkdir(parents=True, mode=0o700)
    lock.parent.parent.chmod(0o700)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.lockf(descriptor, fcntl.LOCK_EX)
        os.write(writer, b"held")
        time.sleep(60)
        os._exit(0)
    try:
        os.read(reader, 4)
        monkeypatch.setattr(memory, "_LOCK_WAIT_S", 0.1)
        one.save(1, state_of(1.0))
        assert one.memory.run_folder.name.startswith(lock.parent.parent.name + "-")
        one.close()
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)
        os.close(reader)
        os.close(writer)


# -- dead runs


def age(folder: Path, seconds: float) -> None:
    for path in (*folder.rglob("*"), folder):
        os.utime(path, (time.time() - seconds,) * 2)


@pytest.mark.parametrize(
    ("idle_s", "deleted", "swept"), [(10, False, False), (90_000, False, True), (10, True, False), (4_000, True, True)]
)
def test_memory_of_a_dead_run_is_given_back_in_time(tmp_path: Path, idle_s: float, deleted: bool, swept: bool):
    one = make(tmp_path)
    one.save(1, state_of(1.0))
    leave(one)
    if deleted:
        shutil.rmtree(tmp_path / "c")
    age(one.memory.run_folder, idle_s)
    assert bool(sweep_memory(tmp_path / "m")) == swept == (not one.memory.run_folder.exists())


def test_a_sweep_leaves_what_is_in_use_or_not_ours(tmp_path: Path):
    (tmp_path / "m").mkdir()
    for name in ("prism-evaluate-0", "prism-0123456789abcdef"):
        (tmp_path / "m" / name).mkdir(mode=0o700)
        age(tmp_path / "m" / name, 1e7)
    one = make(tmp_path)
    one.save(1, state_of(1.0))
    one.wait_written()
    age(one.memory.run_folder, 1e7)
    assert sweep_memory(tmp_path / "m", SweepConfig(idle_s=0.0, orphaned_s=0.0)) == []
    one.close()


# -- files


def commit_foreign(folder: Path, state: dict) -> Path:
    """A checkpoint with a right manifest, made by somebody else with plain DCP."""
    catalog = Catalog.open(folder)
    written = catalog.writing_path(7, 1, 1)
    dcp.save(state, checkpoint_id=str(written), no_dist=True)
    return seal(catalog, written)


def seal(catalog: Catalog, written: Path) -> Path:
    names = [path.name for path in written.iterdir()]
    files = tuple(FileSum(name=n, num_bytes=(written / n).stat().st_size, sha256=hash_file(written / n)) for n in names)
    manifest = Manifest(
        step=7, attempt=1, world_size=1, time_ns=1, health=Health(loss=1.0), files=files, epoch=catalog.epoch()
    )
    return catalog.commit(written, manifest)


@pytest.mark.filterwarnings("ignore")
def test_a_foreign_checkpoint_s_metadata_runs_nothing(tmp_path: Path):
    final = commit_foreign(tmp_path / "c", state_of(1.0))
    (final / ".metadata").write_bytes(pickle.dumps(Payload(tmp_path / "ran")))
    names = {file.name: file for file in read_manifest(final).files}
    metadata = replace(
        names[".metadata"],
        num_bytes=(final / ".metadata").stat().st_size,
        sha256=hash_file(final / ".metadata"),
    )
    manifest = replace(read_manifest(final), files=tuple({**names, ".metadata": metadata}.values()))
    (final / "manifest.json").write_text(manifest.to_json())
    with pytest.raises(BadFileError, match="not the metadata of a checkpoint"):
        make(tmp_path).restore(state_of(0.0))
    assert not (tmp_path / "ran").exists()


@pytest.mark.filterwarnings("ignore")
def test_a_foreign_checkpoint_s_values_run_nothing(tmp_path: Path):
    commit_foreign(tmp_path / "c", {"w": torch.ones(10), "n": Payload(tmp_path / "ran")})
    with pytest.raises(BadFileError, match="cannot be read safely"):
        make(tmp_path).restore(state_of(0.0))
    assert not (tmp_path / "ran").exists()


@pytest.mark.filterwarnings("ignore")
def test_metadata_that_points_outside_the_folder_is_refused(tmp_path: Path):
    final = commit_foreign(tmp_path / "c", state_of(1.0))
    metadata = unpickle_metadata((final / ".metadata").read_bytes())
    for info in metadata.storage_data.values():
        info.relative_path = "../../secret"
    (final / ".metadata").write_bytes(pickle.dumps(metadata))
    catalog = Catalog(tmp_path / "c")
    (final / "manifest.json").unlink()
    seal(catalog, final.rename(catalog.writing_path(7, 1, 2)))
    with pytest.raises(BadFileError, match=r"\.\./\.\./secret"):
        make(tmp_path).restore(state_of(0.0))


ENCODING = "ctorch.distributed.checkpoint.metadata\n_MEM_FORMAT_ENCODING\n"


@pytest.mark.parametrize(
    ("kind", "name", "taken"),
    [
        (ENCODING, "TORCH_CONTIGUOUS_FORMAT", True),
        (ENCODING, "__class__", False),
        ("ctorch.distributed.checkpoint.metadata\nMetadata\n", "__init__", False),
    ],
    ids=["a member of an enumeration", "its class", "a method"],
)
def test_of_attributes_only_members_of_enumerations_are_taken(kind: str, name: str, taken: bool) -> None:
    """As Python 3.11.2, of Debian 12, pickles them."""
    made = f"cbuiltins\ngetattr\n({kind}V{name}\ntR.".encode()
    if taken:
        assert MetadataUnpickler(io.BytesIO(made)).load().name == name
    else:
        with pytest.raises(pickle.UnpicklingError, match="only members of enumerations"):
            MetadataUnpickler(io.BytesIO(made)).load()


def test_a_pickle_that_changes_classes_of_torch_is_refused_and_undone(tmp_path: Path):
    from torch.distributed.checkpoint.metadata import StorageMeta

    # StorageMeta itself as the object, then BUILD with attributes for it.
    bad = b"\x80\x04ctorch.distributed.checkpoint.metadata\nStorageMeta\n(N}X\x06\x00\x00\x00poisonI1\nstb."
    with pytest.raises(pickle.UnpicklingError):
        unpickle_metadata(bad)
    assert not hasattr(StorageMeta, "poison")


@pytest.mark.parametrize("module", ["pathlib", "pathlib._local"])  # as Python before 3.13 and 3.13 name it
def test_paths_are_read_whichever_python_wrote_them(module: str):
    path = b"c" + module.encode() + b"\nPosixPath\n(X\x05\x00\x00\x00/datatR."
    assert unpickle_metadata(path) == Path("/data")
    whole = io.BytesIO()
    torch.save(Path("/data"), whole)
    with zipfile.ZipFile(whole) as old:
        content = {name: old.read(name) for name in old.namelist()}
    (name,) = (name for name in content if name.endswith("/data.pkl"))
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w") as new:
        for one, data in {**content, name: b"\x80\x02" + path}.items():
            new.writestr(one, data)
    assert load_value(written.getvalue()) == Path("/data")


@pytest.mark.parametrize("data", [b"", b"\x80", b"garbage", pickle.dumps(os.system), pickle.dumps(print)])
def test_what_is_no_metadata_is_reported_in_one_line(data: bytes):
    with pytest.raises(pickle.UnpicklingError):
        unpickle_metadata(data)


# -- values


def test_random_states_and_arrays_of_numpy_come_back(tmp_path: Path):
    import random

    import numpy as np

    legacy = np.random.get_state()  # noqa: NPY002 (what many trainers save)
    values = [random.getstate(), legacy, np.float64(2.5), {"a": [1, (2, None)]}, {1, 2}, b"x"]
    for value in values:
        assert repr(load_value(dump_value("v", value))) == repr(value)


def test_a_value_that_could_not_be_read_back_is_told_at_the_save_which_is_skipped(tmp_path: Path):
    class Odd:
        pass

    globals()["Odd"], Odd.__qualname__ = Odd, "Odd"
    refusing = make(tmp_path)
    refusing.save(1, {"x": {"odd": Odd()}})
    assert re.search(r"state 'x.odd' holds a .*Odd.*CheckpointConfig.trusted", refusing.last_error or "")
    refusing.close()
    one = make(tmp_path, trusted=(Odd,))
    one.save(1, {"x": {"odd": Odd()}})
    one.close()
    state = {"x": {"odd": None}}
    make(tmp_path, trusted=(Odd,)).restore(state)
    assert isinstance(state["x"]["odd"], Odd)
