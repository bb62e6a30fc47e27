"""The folder of committed checkpoints: what is there, what is good, what to keep. Needs no torch."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from prism.errors import BadFileError
from prism.recover.files import hash_file, sync_folder, write_durably
from prism.recover.manifest import MANIFEST_NAME, FileSum, Manifest, check_schema, read_manifest

FOLDER_FORMAT = "prism.checkpoints"
FOLDER_VERSION = 1
_MARKER = "prism-checkpoints.json"
_FENCE = "fence.json"
_WRITING = ".writing-"
_ASIDE = ("discarded-", "broken-")
_HASH_THREADS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """Which committed checkpoints stay: the newest few, and one every so many steps for good."""

    keep_last: int = 3
    keep_every_steps: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A committed checkpoint and where it lies."""

    path: Path
    manifest: Manifest

    @property
    def step(self) -> int:
        """The step after which it was taken."""
        return self.manifest.step


class Catalog:
    """One checkpoint folder. A checkpoint is in it from the moment its folder has its final name."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    def open(cls, folder: Path) -> Catalog:
        """Make or check the folder; refuses one that is read-only, foreign or from a newer version."""
        try:
            folder.mkdir(parents=True, exist_ok=True)
            names = sorted(path.name for path in folder.iterdir())
        except OSError as error:
            raise BadFileError(f"{folder}: cannot be used for checkpoints ({error.strerror}); check the path") from None
        marker = folder / _MARKER
        if _MARKER in names:
            try:
                document = json.loads(marker.read_text())
            except (OSError, ValueError):
                raise BadFileError(f"{marker}: unreadable; restore it or name another folder") from None
            schema = document.get("schema") if isinstance(document, dict) else None
            check_schema(schema, FOLDER_FORMAT, FOLDER_VERSION, marker)
        elif names:
            raise BadFileError(
                f"{folder}: holds '{names[0]}' and no Prism checkpoints; name an empty folder, so that nothing is lost"
            )
        try:
            write_durably(marker, json.dumps({"schema": f"{FOLDER_FORMAT}/{FOLDER_VERSION}"}) + "\n")
        except OSError as error:
            raise BadFileError(f"{folder}: cannot be written ({error.strerror}); mend its permissions") from None
        return cls(folder)

    def entries(self) -> list[Entry]:
        """Committed checkpoints by step; folders without a readable manifest are not among them."""
        found = []
        for path in self.folder.glob("step-*"):
            try:
                found.append(Entry(path=path, manifest=read_manifest(path)))
            except BadFileError:
                continue
        return sorted(found, key=lambda entry: entry.step)

    def good(self, *, up_to_step: int | None = None, before_ns: int | None = None) -> list[Entry]:
        """Healthy checkpoints at or before a step and before a time, newest first."""
        return [
            entry
            for entry in reversed(self.entries())
            if entry.manifest.health.good
            and (up_to_step is None or entry.step <= up_to_step)
            and (before_ns is None or entry.manifest.time_ns < before_ns)
        ]

    def last_good(self, *, up_to_step: int | None = None, before_ns: int | None = None) -> Entry | None:
        """The newest healthy checkpoint whose files are all there in full length."""
        candidates = self.good(up_to_step=up_to_step, before_ns=before_ns)
        return next((entry for entry in candidates if not find_damage(entry, deep=False)), None)

    def final_path(self, step: int) -> Path:
        """Where the checkpoint of a step lies once committed."""
        return self.folder / f"step-{step:09d}"

    def writing_path(self, step: int, attempt: int, token: str) -> Path:
        """Where it is written before; no query looks there."""
        return self.folder / f"{_WRITING}{step:09d}-attempt{attempt}-{token}"

    def commit(self, written: Path, manifest: Manifest) -> Path:
        """Give a proven checkpoint its final name; one of the same step from an earlier attempt makes way."""
        if self.fence() > manifest.attempt:
            raise BadFileError(f"{written}: attempt {manifest.attempt} is over, attempt {self.fence()} owns the folder")
        write_durably(written / MANIFEST_NAME, manifest.to_json() + "\n")
        final = self.final_path(manifest.step)
        if final.exists():
            self.set_aside(final, "discarded")
        written.rename(final)
        sync_folder(self.folder)
        return final

    def discard_after(self, step: int) -> list[int]:
        """Take checkpoints later than a step out of use: their future was given up."""
        late = [entry for entry in self.entries() if entry.step > step]
        for entry in late:
            self.set_aside(entry.path, "discarded")
        return [entry.step for entry in late]

    def set_aside(self, path: Path, why: str) -> Path:
        """Rename a checkpoint so that no query finds it; retention removes it later."""
        aside = path.with_name(f"{why}-{path.name}-{time.time_ns()}")
        path.rename(aside)
        sync_folder(self.folder)
        return aside

    def fence(self) -> int:
        """The number of the attempt that owns the folder."""
        try:
            return int(json.loads((self.folder / _FENCE).read_text())["attempt"])
        except (OSError, ValueError, KeyError, TypeError):
            return 0

    def take_over(self, attempt: int) -> None:
        """Own the folder: a straggling writer of an earlier attempt can no longer commit; its leftovers go."""
        write_durably(self.folder / _FENCE, json.dumps({"attempt": attempt}))
        for path in self.folder.glob(f"{_WRITING}*"):
            shutil.rmtree(path, ignore_errors=True)

    def retain(self, retention: Retention) -> list[Path]:
        """Remove what the policy does not keep; the newest good one always stays."""
        entries = self.entries()
        good_steps = [e.step for e in entries if e.manifest.health.good]
        keep = set(good_steps[-max(1, retention.keep_last) :]) | {e.step for e in entries[-1:]}
        if retention.keep_every_steps:
            keep |= {step for step in good_steps if step % retention.keep_every_steps == 0}
        doomed = [entry.path for entry in entries if entry.step not in keep]
        doomed += [path for prefix in _ASIDE for path in self.folder.glob(f"{prefix}*")]
        for path in doomed:
            # A half-removed checkpoint must not be found: it loses its manifest first.
            (path / MANIFEST_NAME).unlink(missing_ok=True)
            shutil.rmtree(path, ignore_errors=True)
        return doomed


def find_damage(entry: Entry, *, deep: bool = True, files: Iterable[int] | None = None) -> str | None:
    """What is wrong with a checkpoint's files, or None; `deep` reads and checksums them, all or those numbered."""
    chosen = range(len(entry.manifest.files)) if files is None else files
    expected = [entry.manifest.files[number] for number in chosen]
    with ThreadPoolExecutor(_HASH_THREADS) as pool:  # hashing leaves the interpreter free
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
