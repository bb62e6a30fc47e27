"""Where a checkpoint comes from: a folder, a web address or an S3 prefix, read in ranges."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Protocol

from prism.evaluate.run.checkpoints.kinds import Manifest

# What a model folder may hold besides its weights; web servers cannot list a folder, so these names are asked for.
SIDE_FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
    "chat_template.jinja",
)
SINGLE_NAME = "model.safetensors"


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFile:
    """One file of a checkpoint at its source."""

    name: str
    num_bytes: int
    version: str  # changes when the content does: a modification time or an ETag
    sha256: str | None = None  # where the source states one


class Source(Protocol):
    """A checkpoint at rest."""

    address: str

    def files(self) -> tuple[SourceFile, ...]:
        """All files, by name."""
        ...

    def read_into(self, name: str, start: int, buffer: memoryview) -> None:
        """Fill the buffer with the bytes of a file from `start` on; raises OSError where it cannot."""
        ...


def identify(files: tuple[SourceFile, ...]) -> str:
    """Identifies a checkpoint's content: names, sizes, and checksums or versions of all files."""
    lines = [[f.name, f.num_bytes, f.sha256 or f.version] for f in sorted(files, key=lambda f: f.name)]
    return hashlib.sha256(json.dumps(lines).encode()).hexdigest()


def read_small(source: Source, file: SourceFile) -> bytes:
    """The whole content of a small file."""
    content = bytearray(file.num_bytes)
    source.read_into(file.name, 0, memoryview(content))
    return bytes(content)


def add_sums(found: dict[str, SourceFile], manifest: Manifest | None) -> None:
    """Take sizes and checksums from a manifest; a file that only the manifest knows is missed when it is read."""
    for name, (num_bytes, sha256) in manifest.files.items() if manifest else ():
        version = found[name].version if name in found else ""
        found[name] = SourceFile(name=name, num_bytes=num_bytes, version=version, sha256=sha256)
