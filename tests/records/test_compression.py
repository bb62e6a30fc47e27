"""Compressed files: unpacked whole or in part, and named where they are broken."""

from __future__ import annotations

import bz2
import gzip
import lzma
from collections.abc import Callable
from pathlib import Path

import pytest

from prism.errors import BadFileError
from prism.records.compression import is_compressed, name_without_endings, read_pieces, unpack, without_ending

CONTENT = bytes(range(256)) * 4000


@pytest.mark.parametrize(("pack", "ending"), [(gzip.compress, ".gz"), (bz2.compress, ".bz2"), (lzma.compress, ".xz")])
def test_a_file_is_unpacked_whole_in_part_or_piece_by_piece(
    tmp_path: Path, pack: Callable[[bytes], bytes], ending: str
) -> None:
    path = tmp_path / f"f{ending}"
    path.write_bytes(pack(CONTENT))
    assert is_compressed(path.read_bytes()) and not is_compressed(CONTENT)
    assert unpack(path) == CONTENT == b"".join(read_pieces(path))
    assert unpack(path, most_bytes=1000) == CONTENT[:1000]
    assert max(map(len, read_pieces(path))) == 1 << 18
    path.write_bytes(CONTENT)
    assert b"".join(read_pieces(path)) == CONTENT  # not compressed, whatever its name is


def test_the_beginning_of_a_file_that_was_cut_is_read_where_no_more_is_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "f.gz"
    rows = b"".join(b"%d\n" % (n * 7919) for n in range(3_000_000))
    path.write_bytes(gzip.compress(rows, 1)[:-1000])
    assert rows.startswith(unpack(path, most_bytes=20 << 20))  # more than there is
    for read in (lambda: unpack(path), lambda: b"".join(read_pieces(path))):
        with pytest.raises(BadFileError, match=r"f\.gz: broken gzip file .*; copy it again"):
            read()
    path.write_bytes(gzip.compress(CONTENT)[:15])
    with pytest.raises(BadFileError, match="broken gzip file"):
        unpack(path, most_bytes=1000)  # nothing can be read


def test_names_of_files_are_without_what_their_compression_gave_them() -> None:
    assert name_without_endings(Path("/a/seren.csv.gz")) == "seren" == name_without_endings(Path("seren.csv"))
    assert without_ending("seren.CSV.XZ") == "seren.CSV" and without_ending("seren.csv") == "seren.csv"
