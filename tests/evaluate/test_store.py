"""What a run keeps, and when it may be used again."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prism.errors import BadFileError, PrismError
from prism.evaluate.run.fingerprint import make_fingerprint
from prism.evaluate.run.store import Store, as_name
from prism.evaluate.schedule.trials import Dataset, Part

DATASET = Dataset(name="d", adapter="builtin", task="d", samples=10)


def part(first: int, last: int) -> Part:
    return Part(checkpoint="c", dataset="d", first=first, last=last)


def records(count: int) -> list[dict[str, int]]:
    return [{"sample": i} for i in range(count)]


def test_a_part_comes_back_as_it_was_kept(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.write("outputs", part(2, 5), "f", records(3))
    assert store.read("outputs", part(2, 5)) == records(3)
    assert store.kept("outputs", "c", DATASET, "f") == [part(2, 5)]


def test_another_fingerprint_is_not_used(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.write("outputs", part(0, 3), "old", records(3))
    assert store.kept("outputs", "c", DATASET, "new") == []


def test_overlapping_parts_and_parts_beyond_the_end_are_left_out(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for first, last in ((0, 4), (2, 6), (6, 10), (9, 12)):
        store.write("outputs", part(first, last), "f", records(last - first))
    assert store.kept("outputs", "c", DATASET, "f") == [part(0, 4), part(6, 10)]


def test_too_few_records_are_refused(tmp_path: Path) -> None:
    with pytest.raises(PrismError, match="2 records for 3 samples"):
        Store(tmp_path).write("outputs", part(0, 3), "f", records(2))


@given(st.binary(max_size=200))
def test_whatever_lies_in_the_folder_is_no_result_and_no_crash(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "outputs" / "c" / "d" / "0-3.jsonl"
        path.parent.mkdir(parents=True)
        path.write_bytes(content)
        store = Store(Path(folder))
        try:
            assert store.kept("outputs", "c", DATASET, "f") == []
        except UnicodeDecodeError:
            pytest.fail("bytes that are no text were not handled")
        metrics = Path(folder) / "metrics" / "c" / "d.json"
        metrics.parent.mkdir(parents=True)
        metrics.write_bytes(content)
        assert store.read_metrics("c", "d", "f") is None


@given(st.text(), st.text())
def test_names_become_files_that_never_collide_or_escape(a: str, b: str) -> None:
    assert "/" not in as_name(a) and as_name(a) not in (".", "..") and not as_name(a).startswith(".")
    assert (as_name(a) == as_name(b)) == (a == b)


def test_a_second_run_into_the_folder_is_refused_and_a_third_after_it_is_not(tmp_path: Path) -> None:
    store = Store(tmp_path / "run")
    with store.lock(), pytest.raises(BadFileError, match=r"another evaluation writes here \(process \d+\)"):
        store.lock()
    store.lock().close()


def test_a_folder_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BadFileError, match="cannot be written"):
        Store(tmp_path / "file" / "run").lock()


def test_metrics_are_valid_only_with_their_fingerprint(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.write_metrics("c", "d", "f", {"acc": 0.5})
    assert store.read_metrics("c", "d", "f") == {"acc": 0.5}
    assert store.read_metrics("c", "d", "other") is None


def test_the_fingerprint_follows_everything_that_matters_and_nothing_else() -> None:
    base = ("model", "lm-eval", "task", "data", {"num_fewshot": 2, "batch_size": 1})
    word = make_fingerprint(*base)
    assert word == make_fingerprint(*base[:4], {"batch_size": 64, "num_fewshot": 2, "folder": "/elsewhere"})
    for place in range(4):
        changed = [*base]
        changed[place] = "another"
        assert make_fingerprint(*changed) != word
    assert make_fingerprint(*base[:4], {"num_fewshot": 3}) != word
