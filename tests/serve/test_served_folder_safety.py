"""Nothing outside the folder can be read, whatever the path and the content of the folder."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prism.errors import BadFileError
from prism.serve.folder import Folder, FoundFile, NotInFolderError, ScanLimits
from prism.serve.library import Library

SECRET = b"outside"


def scan(folder: Folder) -> list[FoundFile]:
    """Every file that a look finds, in order of path."""
    folder.look()
    return sorted((file for place in folder.places() for file in folder.files_in(place)), key=lambda file: file.path)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    top = tmp_path_factory.mktemp("safety")
    (top / "secret.txt").write_bytes(SECRET)
    (top / "outside").mkdir()
    (top / "outside" / "secret.txt").write_bytes(SECRET)
    root = top / "root"
    (root / "inner").mkdir(parents=True)
    (root / "inner" / "a.txt").write_bytes(b"inside")
    (root / "link.txt").symlink_to(top / "secret.txt")
    (root / "linked").symlink_to(top / "outside")
    (root / "inner" / "up").symlink_to("../..")
    os.mkfifo(root / "pipe")
    return Folder(root)


def test_a_file_inside_is_read(folder: Folder) -> None:
    assert folder.read("inner/a.txt", most=100) == b"inside"
    assert folder.read("inner/a.txt", most=3, offset=1) == b"nsi"


@pytest.mark.parametrize(
    "path",
    ["../secret.txt", "inner/../../secret.txt", "link.txt", "linked/secret.txt", "inner/up/secret.txt", "/etc/passwd",
     "", ".", "inner", "inner/", "inner//a.txt", "a\0b", "pipe", "./inner/a.txt", "nothing"],
)  # fmt: skip
def test_everything_else_is_refused(folder: Folder, path: str) -> None:
    with pytest.raises(NotInFolderError):
        folder.read(path, most=100)
    assert not folder.exists(path)


@given(
    parts=st.lists(
        st.sampled_from(["..", ".", "", "inner", "linked", "up", "secret.txt", "a.txt", "link.txt", "%2e%2e"]),
        max_size=6,
    )
)
def test_no_path_leads_outside(folder: Folder, parts: list[str]) -> None:
    with contextlib.suppress(NotInFolderError):
        assert folder.read("/".join(parts), most=100) == b"inside"


def test_a_scan_leaves_out_links_pipes_and_hidden_files(folder: Folder) -> None:
    (folder.root / ".hidden").write_text("x")
    assert [file.path for file in scan(folder)] == ["inner/a.txt"]


def test_a_file_that_became_a_link_after_the_scan_is_refused(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "a").write_text("inside")
    (tmp_path / "secret").write_bytes(SECRET)
    folder = Folder(tmp_path / "root")
    [found] = scan(folder)
    (tmp_path / "root" / "a").unlink()
    (tmp_path / "root" / "a").symlink_to(tmp_path / "secret")
    with pytest.raises(NotInFolderError):
        folder.read(found.path, most=10)


def test_depth_and_number_of_files_are_bounded(tmp_path: Path) -> None:
    deep = tmp_path
    for level in range(5):
        deep = deep / f"d{level}"
        deep.mkdir()
        (deep / "file").write_text("x")
    assert len(scan(Folder(tmp_path, ScanLimits(depth=2)))) == 2
    assert len(scan(Folder(tmp_path, ScanLimits(files=3)))) == 3


def test_a_file_over_the_limit_is_refused_in_one_line(folder: Folder) -> None:
    with pytest.raises(BadFileError, match="inner/a.txt: larger than"):
        folder.read_whole("inner/a.txt", most=2)


def test_what_is_not_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadFileError, match="not a folder"):
        Folder(tmp_path / "nothing")


def test_a_linked_root_is_served_as_what_it_is(folder: Folder, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(folder.root)
    assert Folder(link).read("inner/a.txt", most=10) == b"inside"


def test_in_a_large_tree_quiet_folders_are_listed_in_turn_and_at_once_where_a_file_came(tmp_path: Path) -> None:
    limits = ScanLimits(quiet_from=2, quiet_s=60.0, quiet_turns=3)
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "old.json").write_text("{}")
    for path in (tmp_path / "a" / "old.json", tmp_path / "a", tmp_path):
        os.utime(path, (1_000, 1_000))
    folder = Folder(tmp_path, limits)
    assert folder.look().changed == {"a", "b"}
    assert not folder.look().changed, "nothing changed"
    (tmp_path / "b" / "old.json").write_text("changed in a folder that is not quiet")
    assert folder.look().changed == {"b"}
    (tmp_path / "a" / "old.json").write_text("changed in place, which leaves no trace in the folder")
    sizes = [{file.path: file.num_bytes for file in scan(folder)}["a/old.json"] for _ in range(3)]
    assert sizes[-1] == 53, "seen when its turn comes"
    os.utime(tmp_path / "a" / "old.json", (1_000, 1_000))
    scan(folder)
    (tmp_path / "a" / "new.json").write_text("{}")
    assert "a/new.json" in [file.path for file in scan(folder)], "a new file is seen at once"
    (tmp_path / "a" / "new.json").unlink()
    assert "a/new.json" not in [file.path for file in scan(folder)]


def test_only_some_places_are_looked_at_where_another_process_looks_at_all(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file.json").write_text("{}")
    folder = Folder(tmp_path)
    folder.look()
    for name in ("a", "b"):
        (tmp_path / name / "new.json").write_text("{}")
    assert not folder.look(frozenset()).changed
    assert folder.look({"b"}).changed == {"b"}
    assert [file.path for file in folder.files_in("a")] == ["a/file.json"]
    assert folder.look().changed == {"a"}
    (tmp_path / "b" / "deep" / "er").mkdir(parents=True)
    (tmp_path / "b" / "deep" / "er" / "file.json").write_text("{}")
    assert folder.look({"b/deep/er"}).changed == {"b/deep/er"}, "a place that is new"
    shutil.rmtree(tmp_path / "b" / "deep")
    assert folder.look({"b/deep/er"}).changed >= {"b/deep/er"}, "a place that is gone"
    assert folder.find("b/deep/er/file.json") is None


def test_names_that_are_not_utf_8_are_shown_with_their_bytes_and_read(tmp_path: Path) -> None:
    inner = os.fsencode(tmp_path) + b"/caf\xe9"
    Path(os.fsdecode(inner)).mkdir()
    Path(os.fsdecode(inner + b"/na\xefve.json")).write_text("{}")
    folder = Folder(tmp_path)
    folder.look()
    assert list(folder.places()) == [".", "caf\\xe9"]
    [file] = folder.files_in("caf\\xe9")
    assert file.path.encode() == b"caf\\xe9/na\\xefve.json", "every encoding can hold it"
    assert folder.read(file.path, most=10) == b"{}"
    assert folder.look().changed == frozenset()


def test_a_folder_that_may_not_be_listed_is_named_until_it_may(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "secret").mkdir()
    scan = os.scandir

    def refuse(path: str) -> Any:
        if str(path).endswith("secret"):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        return scan(path)

    library = Library(Folder(tmp_path))
    with monkeypatch.context() as patch:
        patch.setattr(os, "scandir", refuse)  # root may read everything, so that a mode would refuse nothing
        [state] = library.refresh().states
        assert (state.path, state.state) == ("secret", "broken")
        assert state.message.startswith("secret: cannot be listed (Permission denied)")
        assert library.refresh().states == (state,)
    assert library.refresh().states == ()
