"""The folder of committed checkpoints: which exist, which are good, which to keep. Needs no torch."""

from __future__ import annotations

import errno
import json
import os
import re
import secrets
import shutil
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from prism.errors import BadFileError
from prism.machine.files import hash_file, sync_folder, write_durably
from prism.recover.manifest import MANIFEST_NAME, FileSum, Manifest, check_schema, read_manifest

FOLDER_FORMAT = "prism.checkpoints"
FOLDER_VERSION = 2  # 2 added the folder's random id; folders of version 1 get one when they are written to
_MARKER = "prism-checkpoints.json"
_FENCE = "fence.json"
_CUTS = "cuts.json"
_WRITING = ".writing-"
_ASIDE = ("discarded-", "broken-")
_ASIDE_STEP = re.compile(r"-step-(\d{1,18})-")
_HASH_THREADS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """Which committed checkpoints are kept: the newest few, and permanently one every so many steps."""

    keep_last: int = 3
    keep_every_steps: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A committed checkpoint and its folder."""

    path: Path
    manifest: Manifest

    @property
    def step(self) -> int:
        """The step after which it was taken."""
        return self.manifest.step


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """A rollback: what epochs up to this one saved after the step is discarded."""

    after_step: int
    epoch: int

    def covers(self, step: int, epoch: int) -> bool:
        """Whether a state of this step, saved in this epoch, is discarded."""
        return step > self.after_step and epoch <= self.epoch


class Catalog:
    """One checkpoint folder. A checkpoint counts from the moment its folder has its final name."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    def open(cls, folder: Path, *, read_only: bool = False) -> Catalog:
        """Check or create the folder; refuses one of another tool or a newer version, or that cannot be written."""
        try:
            if not read_only:
                folder.mkdir(parents=True, exist_ok=True)
            names = sorted(path.name for path in folder.iterdir())
        except OSError as error:
            raise BadFileError(f"{folder}: cannot be used for checkpoints ({error.strerror}); check the path") from None
        if _MARKER in names:
            document = _read_marker(folder / _MARKER)
        elif names or read_only:
            found = f"holds '{names[0]}' and" if names else "holds"
            raise BadFileError(f"{folder}: {found} no Prism checkpoints; name an empty folder, so that nothing is lost")
        else:
            document = {}
        if read_only:
            return cls(folder)
        try:
            if "id" not in document:
                _write_marker(folder, secrets.token_hex(16))
            elif not os.access(folder, os.W_OK, effective_ids=True):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        except OSError as error:
            raise BadFileError(f"{folder}: cannot be written ({error.strerror}); fix its permissions") from None
        return cls(folder)

    def make_again(self, folder_id: str, epoch: int) -> bool:
        """Make the folder again if it was deleted meanwhile, under its id; returns whether it was."""
        if (self.folder / _MARKER).exists() or not folder_id:
            return False
        self.folder.mkdir(parents=True, exist_ok=True)
        _write_marker(self.folder, folder_id)
        write_durably(self.folder / _FENCE, json.dumps({"epoch": epoch}))
        return True

    @property
    def id(self) -> str | None:
        """The random id of this folder; it changes if the folder is deleted and created again."""
        try:
            found = _read_marker(self.folder / _MARKER).get("id")
        except BadFileError:
            return None
        return found if isinstance(found, str) and re.fullmatch(r"[0-9a-f]{32}", found) else None

    def entries(self) -> list[Entry]:
        """Committed checkpoints by step, without discarded ones and those without a readable manifest."""
        found = []
        cuts = self.cuts()
        for path in self.folder.glob("step-*"):
            try:
                manifest = read_manifest(path)
            except BadFileError:
                continue
            if not any(cut.covers(manifest.step, manifest.epoch) for cut in cuts):
                found.append(Entry(path=path, manifest=manifest))
        return sorted(found, key=lambda entry: entry.step)

    def good(
        self, *, up_to_step: int | None = None, before_ns: int | None = None, certain: bool = False
    ) -> list[Entry]:
        """Healthy checkpoints up to a step and before a time, newest first; `certain` excludes doubtful ones."""
        return [
            entry
            for entry in reversed(self.entries())
            if entry.manifest.health.good
            and not (certain and entry.manifest.health.doubtful)
            and (up_to_step is None or entry.step <= up_to_step)
            and (before_ns is None or entry.manifest.time_ns < before_ns)
        ]

    def last_good(
        self, *, up_to_step: int | None = None, before_ns: int | None = None, certain: bool = False
    ) -> Entry | None:
        """The newest healthy checkpoint whose files all exist in full length."""
        candidates = self.good(up_to_step=up_to_step, before_ns=before_ns, certain=certain)
        return next((entry for entry in candidates if not find_damage(entry, deep=False)), None)

    def final_path(self, step: int) -> Path:
        """The folder of a step's committed checkpoint."""
        return self.folder / f"step-{step:09d}"

    def writing_path(self, step: int, epoch: int, token: int) -> Path:
        """The folder in which it is written first; queries ignore it."""
        return self.folder / f"{_WRITING}{step:09d}-epoch{epoch}-{token:016x}"

    def commit(self, written: Path, manifest: Manifest) -> Path:
        """Give a verified checkpoint its final name; replaces one of the same step from an earlier epoch."""
        if self.epoch() > manifest.epoch:
            raise BadFileError(
                f"{written}: epoch {manifest.epoch} is over, a later process (epoch {self.epoch()}) owns the folder"
            )
        write_durably(written / MANIFEST_NAME, manifest.to_json() + "\n")
        final = self.final_path(manifest.step)
        if final.exists():
            self.set_aside(final, "discarded")
        written.rename(final)
        sync_folder(self.folder)
        return final

    def discard_after(self, step: int) -> list[int]:
        """Discard what was saved after a step: set it aside here; it is no longer restored from memory either."""
        late = [entry for entry in self.entries() if entry.step > step]
        cuts = [*(cut for cut in self.cuts() if cut.after_step < step), Cut(after_step=step, epoch=self.epoch())]
        write_durably(self.folder / _CUTS, json.dumps({"cuts": [asdict(cut) for cut in cuts]}))
        for entry in late:
            self.set_aside(entry.path, "discarded")
        return [entry.step for entry in late]

    def cuts(self) -> list[Cut]:
        """All readable rollbacks of this folder."""
        try:
            document = json.loads((self.folder / _CUTS).read_text())
            return [Cut(after_step=int(c["after_step"]), epoch=int(c["epoch"])) for c in document["cuts"]]
        except (OSError, ValueError, KeyError, TypeError):
            return []

    def set_aside(self, path: Path, why: str) -> Path:
        """Rename a checkpoint so that no query finds it; it is removed when training has passed its step."""
        aside = path.with_name(f"{why}-{path.name}-{time.time_ns()}")
        path.rename(aside)
        sync_folder(self.folder)
        return aside

    def epoch(self) -> int:
        """The number of the process that owns the folder, counted from 1; 0 before the first."""
        try:
            fence = json.loads((self.folder / _FENCE).read_text())
            return int(fence.get("epoch", fence.get("attempt", 0)))  # version 1 counted attempts
        except (OSError, ValueError, AttributeError, TypeError):
            return 0

    def take_over(self) -> int:
        """Become the owner of the folder: a late writer of an earlier epoch can no longer commit. Removes its files."""
        epoch = self.epoch() + 1
        write_durably(self.folder / _FENCE, json.dumps({"epoch": epoch}))
        for path in self.folder.glob(f"{_WRITING}*"):
            shutil.rmtree(path, ignore_errors=True)
        return epoch

    def retain(self, retention: Retention) -> list[Path]:
        """Remove what the policy does not keep; the newest good checkpoint is always kept."""
        entries = self.entries()
        good_steps = [e.step for e in entries if e.manifest.health.good]
        keep = set(good_steps[-max(1, retention.keep_last) :]) | {e.step for e in entries[-1:]}
        if retention.keep_every_steps:
            keep |= {step for step in good_steps if step % retention.keep_every_steps == 0}
        doomed = [entry.path for entry in entries if entry.step not in keep]
        doomed += self._overtaken(max(good_steps, default=-1))
        for path in doomed:
            # The manifest is removed first, so that a partly removed checkpoint is not found.
            (path / MANIFEST_NAME).unlink(missing_ok=True)
            shutil.rmtree(path, ignore_errors=True)
        return doomed

    def _overtaken(self, step: int) -> list[Path]:
        """Checkpoints that were set aside and whose step training has reached again with a good one."""
        aside = [path for prefix in _ASIDE for path in self.folder.glob(f"{prefix}*")]
        found = [(path, _ASIDE_STEP.search(path.name)) for path in aside]
        return [path for path, match in found if match is not None and int(match[1]) <= step]


def _write_marker(folder: Path, folder_id: str) -> None:
    new = {"schema": f"{FOLDER_FORMAT}/{FOLDER_VERSION}", "id": folder_id}
    write_durably(folder / _MARKER, json.dumps(new) + "\n")


def _read_marker(marker: Path) -> dict[str, Any]:
    try:
        document = json.loads(marker.read_text())
    except (OSError, ValueError, RecursionError):
        raise BadFileError(f"{marker}: unreadable; restore it or name another folder") from None
    schema = document.get("schema") if isinstance(document, dict) else None
    check_schema(schema, FOLDER_FORMAT, FOLDER_VERSION, marker)
    assert isinstance(document, dict)
    return document


def find_damage(entry: Entry, *, deep: bool = True, files: Iterable[int] | None = None) -> str | None:
    """What is wrong with a checkpoint's files, or None; `deep` reads and checksums them, all or those numbered."""
    chosen = range(len(entry.manifest.files)) if files is None else files
    expected = [entry.manifest.files[number] for number in chosen]
    with ThreadPoolExecutor(_HASH_THREADS) as pool:  # hashing releases the interpreter's lock
        found = pool.map(lambda file: _find_file_damage(entry.path / file.name, file, deep=deep), expected)
        return next((damage for damage in found if damage is not None), None)


def _find_file_damage(path: Path, expected: FileSum, *, deep: bool) -> str | None:
    try:
        size = path.stat().st_size
        if size != expected.num_bytes:
            return f"{path}: {size} bytes, {expected.num_bytes} were written"
        if deep and hash_file(path) != expected.sha256:
            return f"{path}: its checksum differs from what was written"
    except OSError as error:
        return f"{path}: {error.strerror}"
    return None
