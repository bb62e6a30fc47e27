"""Checkpoints on a node's shelf: pulled once, verified, leased, cleared."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prism.errors import BadFileError, PrismError
from prism.evaluate.run.loading import Shelf, ShelfConfig, SourceFile, identify, open_source
from prism.evaluate.run.loading.peer_server import PeerServer
from prism.evaluate.run.loading.pull import PullConfig, pull
from prism.evaluate.run.models.tiny import map_safetensors, write_safetensors, write_tiny
from prism.machine.processes import is_running, mark_process


class CountingSource:
    """A folder that counts the bytes taken from it, and may fail."""

    def __init__(self, folder: Path, fail_after: int | None = None) -> None:
        self.inner = open_source(str(folder))
        self.address = str(folder)
        self.taken = 0
        self.fail_after = fail_after

    def files(self) -> tuple[SourceFile, ...]:
        return self.inner.files()

    def read_into(self, name: str, start: int, buffer: memoryview) -> None:
        self.taken += len(buffer)
        if self.fail_after is not None and self.taken > self.fail_after:
            raise OSError("the link is down")
        self.inner.read_into(name, start, buffer)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    write_tiny(tmp_path / "step-1", 1)
    return tmp_path / "step-1"


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    return Shelf(ShelfConfig(roots=(tmp_path / "shelf",), pull=PullConfig(num_streams=2, range_bytes=10_000)))


def test_a_second_user_pulls_nothing_and_the_last_one_clears(checkpoint: Path, shelf: Shelf) -> None:
    source = CountingSource(checkpoint)
    files = source.files()
    first = shelf.lease("k", [source], files)
    once = source.taken
    assert once == sum(file.num_bytes for file in files) == first.pulled_bytes
    second = shelf.lease("k", [source], files)
    assert source.taken == once and second.pulled_bytes == 0
    for file in files:
        assert (second.folder / file.name).read_bytes() == (checkpoint / file.name).read_bytes()
    shelf.give_back(first)
    assert second.folder.is_dir()
    shelf.give_back(second)
    assert not second.folder.exists() and list(second.folder.parent.iterdir()) == []


def test_a_copy_that_is_not_there_cannot_be_held(shelf: Shelf) -> None:
    with pytest.raises(BadFileError, match="no longer in shared memory"):
        shelf.hold("nothing")


def _lease_for_ever(checkpoint: Path, root: Path, ready: Path) -> None:
    source = open_source(str(checkpoint))
    Shelf(ShelfConfig(roots=(root,))).lease("k", [source], source.files())
    ready.touch()
    time.sleep(600)


def test_what_a_killed_process_held_is_swept_out(checkpoint: Path, tmp_path: Path, shelf: Shelf) -> None:
    child = multiprocessing.get_context("fork").Process(
        target=_lease_for_ever, args=(checkpoint, tmp_path / "shelf", tmp_path / "ready")
    )
    child.start()
    while not (tmp_path / "ready").exists():
        time.sleep(0.01)
    assert shelf.sweep() == [] and shelf.holds("k") is not None
    os.kill(child.pid or 0, signal.SIGKILL)
    child.join()
    assert shelf.sweep() == ["k"] and shelf.holds("k") is None
    assert list((tmp_path / "shelf").iterdir()) == []


def test_a_copy_that_a_killed_process_was_pulling_is_swept_out(tmp_path: Path, shelf: Shelf) -> None:
    (tmp_path / "shelf" / "k.pulling").mkdir(parents=True)
    (tmp_path / "shelf" / "k.pulling" / "half").write_bytes(b"1")
    assert shelf.sweep() == ["k"]
    assert list((tmp_path / "shelf").iterdir()) == []


def test_eight_processes_that_start_together_pull_once(checkpoint: Path, tmp_path: Path) -> None:
    code = f"""
import sys, time
from pathlib import Path
from prism.evaluate.run.loading import Shelf, ShelfConfig, open_source
source = open_source({str(checkpoint)!r})
lease = Shelf(ShelfConfig(roots=(Path({str(tmp_path / "shelf")!r}),))).lease("k", [source], source.files())
print(lease.pulled_bytes, flush=True)
sys.stdin.read()
"""
    users = [
        subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(8)
    ]
    pulled = [int(user.stdout.readline()) for user in users if user.stdout is not None]
    for user in users:
        user.communicate("")
    assert sum(count > 0 for count in pulled) == 1


def test_a_source_that_fails_midway_is_replaced_by_the_next(checkpoint: Path, shelf: Shelf) -> None:
    neighbour, storage = CountingSource(checkpoint, fail_after=30_000), CountingSource(checkpoint)
    lease = shelf.lease("k", [neighbour, storage], storage.files())
    assert 0 < storage.taken < lease.pulled_bytes
    assert (lease.folder / "model.safetensors").read_bytes() == (checkpoint / "model.safetensors").read_bytes()


def test_when_every_source_fails_nothing_is_left_behind(checkpoint: Path, shelf: Shelf, tmp_path: Path) -> None:
    broken = CountingSource(checkpoint, fail_after=0)
    with pytest.raises(BadFileError, match="the link is down; the checkpoint cannot be pulled"):
        shelf.lease("k", [broken], broken.files())
    assert shelf.holds("k") is None and not (tmp_path / "shelf" / "k.pulling").exists()


def test_a_checkpoint_larger_than_all_room_is_refused_in_one_line(shelf: Shelf) -> None:
    huge = SourceFile(name="model.safetensors", num_bytes=2**60, version="1")
    with pytest.raises(PrismError, match="no room for a checkpoint of .* GB"):
        shelf.lease("k", [], [huge])


def test_the_second_root_is_used_when_the_first_is_full(checkpoint: Path, tmp_path: Path) -> None:
    full = Path("/proc/self")  # a file system without any room
    source = open_source(str(checkpoint))
    lease = Shelf(ShelfConfig(roots=(full / "x", tmp_path / "disk"))).lease("k", [source], source.files())
    assert lease.folder == tmp_path / "disk" / "k"


def test_a_cut_weight_file_is_refused_by_name(checkpoint: Path, shelf: Shelf) -> None:
    weights = checkpoint / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    source = open_source(str(checkpoint))
    with pytest.raises(BadFileError, match=r"step-1/model.safetensors: half written"):
        shelf.lease("k", [source], source.files())


def test_a_flipped_bit_is_found_by_the_manifest(checkpoint: Path, shelf: Shelf) -> None:
    weights = checkpoint / "model.safetensors"
    content = bytearray(weights.read_bytes())
    entry = {"name": weights.name, "num_bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    (checkpoint / "manifest.json").write_text(json.dumps({"schema": "prism.checkpoint/1", "files": [entry]}))
    source = open_source(str(checkpoint))
    shelf.give_back(shelf.lease("k", [source], source.files()))
    content[-1] ^= 1
    weights.write_bytes(content)
    with pytest.raises(BadFileError, match="its checksum differs"):
        shelf.lease("k", [source], source.files())


def test_names_that_lead_out_of_the_folder_are_refused(tmp_path: Path) -> None:
    for name in ("../x", "", "..", "a/b"):
        with pytest.raises(BadFileError, match="outside its folder"):
            source = open_source(str(tmp_path))
            pull([source], [SourceFile(name=name, num_bytes=1, version="")], tmp_path, PullConfig())


def test_weights_are_mapped_not_copied(checkpoint: Path) -> None:
    tensors = map_safetensors(checkpoint / "model.safetensors")
    base = tensors["embed"]
    while not isinstance(base, np.memmap):
        assert isinstance(base.base, np.ndarray)
        base = base.base
    assert not tensors["embed"].flags.owndata and not tensors["embed"].flags.writeable


@given(st.dictionaries(st.text("abc.", min_size=1), st.lists(st.floats(width=32), max_size=5), min_size=1))
def test_what_is_written_as_safetensors_is_mapped_back(values: dict[str, list[float]]) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.safetensors"
        write_safetensors(path, {name: np.array(v, np.float32) for name, v in values.items()})
        found = map_safetensors(path)
        assert {n: np.asarray(a).tobytes() for n, a in found.items()} == {
            n: np.array(v, np.float32).tobytes() for n, v in values.items()
        }


@pytest.fixture
def neighbour(checkpoint: Path) -> Iterator[PeerServer]:
    server = PeerServer(lambda key: checkpoint if key == "k" else None)
    yield server
    server.close()


def test_a_node_passes_its_copy_on(neighbour: PeerServer, checkpoint: Path, shelf: Shelf) -> None:
    files = open_source(str(checkpoint)).files()
    source = open_source(neighbour.offer("k", files))
    assert source.files() == files
    lease = shelf.lease("k", [source], files)
    assert (lease.folder / "model.safetensors").read_bytes() == (checkpoint / "model.safetensors").read_bytes()


def test_a_neighbour_serves_only_what_it_offered_and_only_to_those_it_told(
    neighbour: PeerServer, checkpoint: Path
) -> None:
    files = open_source(str(checkpoint)).files()
    address = neighbour.offer("k", files)
    (checkpoint / "secret").write_text("no")
    for bad in (f"{address}x", address.replace(address.split("/")[3], "0" * 32)):
        with pytest.raises(BadFileError):
            open_source(bad).files()
    with pytest.raises(OSError, match="404"):
        open_source(address).read_into("secret", 0, memoryview(bytearray(2)))
    neighbour.withdraw("k")
    with pytest.raises(BadFileError):
        open_source(address).files()


def test_the_identity_follows_content_not_order(checkpoint: Path) -> None:
    files = open_source(str(checkpoint)).files()
    assert identify(files) == identify(tuple(reversed(files)))
    (checkpoint / "config.json").write_text("{}")
    assert identify(open_source(str(checkpoint)).files()) != identify(files)


def test_a_process_mark_is_not_fooled_by_a_reused_number() -> None:
    own = mark_process(os.getpid())
    assert own is not None and is_running(own)
    pid, _, start = own.partition("-")
    assert not is_running(f"{pid}-{int(start) - 1}")
    assert not is_running("garbage") and not is_running("99999999-5")
