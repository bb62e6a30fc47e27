"""The checkpointer with real torch: staging, proof, commit, restore."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from prism.errors import BadConfigError, BadFileError  # noqa: E402
from prism.recover.catalog import Catalog, Retention  # noqa: E402
from prism.recover.checkpoint import (  # noqa: E402
    CheckpointConfig,
    Checkpointer,
    Health,
    TrainState,
    checkpointer,
    ranks,
    slots,
    writer,
)
from prism.recover.checkpoint.layout import plan_staging  # noqa: E402
from prism.recover.checkpoint.memory import Memory  # noqa: E402
from prism.recover.checkpoint.slots import Slot, SlotHeader  # noqa: E402
from prism.recover.checkpoint.writer import choose_threads  # noqa: E402
from prism.recover.progress import Progress, RunOrders  # noqa: E402

PROGRAM = Path(__file__).with_name("sharded_program.py")


@pytest.fixture
def make(tmp_path: Path) -> Iterator:
    """Checkpointers over one folder, as successive processes would make them."""
    made: list[Checkpointer] = []

    def build(**changes) -> Checkpointer:
        settings = {
            "folder": tmp_path / "c",
            "memory_dir": tmp_path,
            "interval_steps": 10,
            "writer": "thread",
            "watch_signals": False,
        }
        one = Checkpointer(
            CheckpointConfig(**{**settings, **changes}),
            Progress(0, RunOrders(run_dir=tmp_path / "run", attempt=len(made) + 1)),
        )
        made.append(one)
        return one

    yield build
    for one in made:
        one._uploads.close()
        one.memory.release()


def state_of(value: float) -> dict:
    return {"model": {"w": torch.full((10,), value), "nested": [torch.tensor(value)]}, "position": {"step": int(value)}}


def abandon(one: Checkpointer) -> None:
    """Leave a checkpointer as a killed process does: its memory stays."""
    one.wait_written()
    one.memory.release()


def test_a_save_is_committed_proven_and_restored(make):
    one = make()
    one.save(5, state_of(5.0), Health(loss=0.5))
    one.close()
    (entry,) = Catalog(one.config.folder).entries()
    assert entry.step == 5 and entry.manifest.health.loss == 0.5 and len(entry.manifest.files) >= 2
    again, target = make(), state_of(0.0)
    restored = again.restore(target)
    assert (restored.step, restored.source) == (5, "storage")
    assert torch.equal(target["model"]["w"], torch.full((10,), 5.0)) and target["position"]["step"] == 5


def test_the_state_may_change_as_soon_as_save_returns(make):
    one, state = make(), state_of(1.0)
    one.save(1, state)
    state["model"]["w"].zero_()
    abandon(one)
    target = state_of(0.0)
    make().restore(target)
    assert float(target["model"]["w"][0]) == 1.0


def test_with_overlap_the_state_may_change_after_the_wait(make):
    one, state = make(overlap=True), state_of(1.0)
    one.save(1, state)
    one.wait_staged()
    state["model"]["w"].zero_()
    abandon(one)
    target = state_of(0.0)
    make().restore(target)
    assert float(target["model"]["w"][0]) == 1.0


def test_memory_outlives_the_process_and_is_newer_than_storage(make, monkeypatch: pytest.MonkeyPatch):
    one = make()
    monkeypatch.setattr(writer, "hash_file", lambda path, **kw: "a write that fails")
    one.save(5, state_of(5.0))
    abandon(one)
    assert one.catalog.entries() == []
    target = state_of(0.0)
    restored = make().restore(target)
    assert (restored.step, restored.source) == (5, "memory") and float(target["model"]["nested"][0]) == 5.0


def test_a_half_staged_state_is_not_used(make):
    one = make()
    for step in (1, 2):
        one.save(step, state_of(float(step)))
    abandon(one)
    newest = max(one.memory.slots, key=lambda slot: slot.step)
    newest.header_path.unlink()  # as it is while a copy goes on
    Catalog(one.config.folder).final_path(2).rename(one.config.folder / "gone")
    assert make().restore(state_of(0.0)).step == 1


def test_a_damaged_checkpoint_is_set_aside_and_the_one_before_is_used(make, tmp_path: Path):
    one = make()
    for step in (1, 2):
        one.save(step, state_of(float(step)))
    one.close()
    victim = max(one.catalog.final_path(2).glob("*.distcp"))
    victim.write_bytes(victim.read_bytes()[:-1] + b"\xff")
    again, target = make(), state_of(0.0)
    assert again.restore(target).step == 1 and float(target["model"]["w"][0]) == 1.0
    assert not list(one.config.folder.glob("broken-*"))  # a restore changes nothing
    again.save(2, target)
    assert [p.name for p in one.config.folder.glob("broken-*")]
    assert "broken" in (tmp_path / "run" / "attempts" / "0002" / "steps.jsonl").read_text()


def test_training_on_from_an_earlier_step_gives_up_what_came_later_in_memory_and_on_storage(make):
    one = make(memory_budget_bytes=1 << 20)
    for step in (1, 2, 3):
        one.save(step, state_of(float(step)))
    abandon(one)
    again = make()
    assert again.restore(state_of(0.0), up_to_step=1).step == 1
    assert [e.step for e in one.catalog.entries()] == [1, 2, 3]
    again.save(2, state_of(20.0))
    abandon(again)
    assert [e.step for e in one.catalog.entries()] == [1, 2]
    target = state_of(0.0)
    assert make().restore(target).step == 2 and float(target["model"]["w"][0]) == 20.0


def test_a_restore_for_evaluation_leaves_every_checkpoint_where_it_is(make):
    one = make()
    for step in (1, 2, 3):
        one.save(step, state_of(float(step)))
    one.close()
    before = {path.name: path.stat().st_mtime_ns for path in one.config.folder.rglob("*")}
    assert make().restore(state_of(0.0), up_to_step=2).step == 2
    assert make(read_only=True).restore(state_of(0.0), up_to_step=1).step == 1
    assert {path.name: path.stat().st_mtime_ns for path in one.config.folder.rglob("*")} == before
    assert make().restore(state_of(0.0)).step == 3


def test_a_checkpointer_that_only_reads_refuses_to_save(make):
    one = make()
    one.save(1, state_of(1.0))
    one.close()
    with pytest.raises(BadConfigError, match="read_only"):
        make(read_only=True).save(2, state_of(2.0))


def test_a_state_with_a_nan_loss_is_not_restored(make):
    one = make()
    one.save(1, state_of(1.0), Health(loss=1.0))
    one.save(2, state_of(2.0), Health(loss=float("nan")))
    abandon(one)
    assert make().restore(state_of(0.0)).step == 1


def test_a_folder_without_checkpoints_restores_nothing(make):
    assert make().restore(state_of(0.0)) is None


def test_a_failed_write_is_reported_and_training_goes_on(make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    one = make()
    one.save(1, state_of(1.0))
    one.wait_written()
    monkeypatch.setattr(writer, "hash_file", lambda path, **kw: "not what was written")
    one.save(2, state_of(2.0))
    one.wait_written()
    assert "read back differently" in one.last_error
    assert not list(one.config.folder.glob(".writing-*"))
    monkeypatch.undo()
    one.save(3, state_of(3.0))
    one.close()
    assert [e.step for e in one.catalog.entries()] == [1, 3]
    assert "save_failed" in (tmp_path / "run" / "attempts" / "0001" / "steps.jsonl").read_text()


def no_room(*words: object, **more: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_disk_without_room_even_for_a_note_fails_the_save_at_once(make, monkeypatch: pytest.MonkeyPatch):
    """Training must not wait for shares that nobody could write, nor for notes of why."""
    one = make()
    monkeypatch.setattr(writer, "write_durably", no_room)
    one.save(1, state_of(1.0))
    one._uploads.wait_all(60.0)
    assert not one.writing and "no space left on the device" in one.last_error
    monkeypatch.undo()
    one.save(2, state_of(2.0))
    one.close()
    assert [e.step for e in one.catalog.entries()] == [2]


def test_a_rank_without_room_for_a_note_is_known_by_an_empty_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    order = SimpleNamespace(written=tmp_path / "step", rank=1, manifest=SimpleNamespace(world_size=2))
    monkeypatch.setattr(writer, "write_durably", no_room)
    writer.leave_failure(order, "No space left on device")
    assert list(writer._wait_for_parts(order, lambda: 0.0)) == [1]


def test_a_torch_that_fills_only_a_copy_of_the_metadata_is_served_too(make, monkeypatch: pytest.MonkeyPatch):
    """As torch 2.11 does."""
    from torch.distributed.checkpoint.filesystem import FileSystemWriter

    finish = FileSystemWriter.finish
    monkeypatch.setattr(
        FileSystemWriter, "finish", lambda self, metadata, results: finish(self, replace(metadata), results)
    )
    one = make()
    one.save(1, state_of(1.0))
    one.close()
    assert one.last_error is None and one.catalog.last_good().step == 1


def test_a_state_written_by_several_threads_comes_back_whole(make, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(writer, "choose_threads", lambda cores, ranks: 3)
    one = make()
    one.save(1, {f"w{i}": torch.full((100,), float(i)) for i in range(9)})
    one.close()
    (entry,) = one.catalog.entries()
    assert len([file for file in entry.manifest.files if file.name.endswith(".distcp")]) == 3
    target = {f"w{i}": torch.zeros(100) for i in range(9)}
    assert make().restore(target).source == "storage"
    assert [float(target[f"w{i}"][0]) for i in range(9)] == [float(i) for i in range(9)]


def test_a_save_that_waits_for_the_storage_says_so_and_is_no_hang(make, monkeypatch: pytest.MonkeyPatch):
    one, room = make(), threading.Event()
    write = writer.PartWriter.write
    monkeypatch.setattr(writer.PartWriter, "write", lambda self, *order: room.wait(600) and write(self, *order))
    reports = one.progress.orders.run_dir / "attempts" / "0001" / "steps.jsonl"

    def free_when_told() -> None:
        while "the checkpoint storage" not in reports.read_text():
            time.sleep(0.01)
        room.set()

    one.save(1, state_of(1.0))
    threading.Thread(target=free_when_told, daemon=True).start()
    for step in range(2, one.memory.num_slots + 2):
        one.save(step, state_of(float(step)))
    one.close()
    told = [kind for kind in reports.read_text().split('"') if kind in ("paused", "resumed")]
    assert told[:2] == ["paused", "resumed"]


def test_what_a_writing_thread_could_not_write_is_missed(make, monkeypatch: pytest.MonkeyPatch):
    """torch drops the errors of its threads; the checkpoint must not count."""
    monkeypatch.setattr(writer, "choose_threads", lambda cores, ranks: 3)
    write = writer.HashedFile.write

    def fail_in_thread(self, data):
        if threading.current_thread().name.startswith("Thread-"):
            raise OSError(28, "No space left on device")
        return write(self, data)

    monkeypatch.setattr(writer.HashedFile, "write", fail_in_thread)
    monkeypatch.setattr(threading, "excepthook", lambda args: None)
    one = make()
    for step in range(1, 4):  # which thread takes which file is a matter of luck
        one.save(step, {f"w{i}": torch.zeros(200_000) for i in range(9)})
        one.wait_written()
        if one.last_error:
            break
    assert "no space left on the device" in one.last_error
    assert all(len(entry.manifest.files) == 4 for entry in one.catalog.entries())


@pytest.mark.parametrize(("cores", "ranks", "threads"), [(2, 1, 1), (16, 1, 4), (128, 8, 4), (64, 8, 2), (8, 8, 1)])
def test_writing_leaves_most_cores_to_training(cores: int, ranks: int, threads: int):
    assert choose_threads(cores, ranks) == threads


def test_the_writer_process_stays_off_the_cores_and_signals_of_its_trainer():
    program = """
import os, signal
os.nice(-os.nice(0)) if os.geteuid() == 0 else None
from prism.recover.checkpoint.writer_process import settle_background_process
settle_background_process(frozenset({0}))
print(os.nice(0), sorted(os.sched_getaffinity(0)), signal.getsignal(signal.SIGTERM) is signal.SIG_IGN)
"""
    cores = os.cpu_count() or 1
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    expected = list(range(1, cores)) if cores > 1 else [0]
    assert done.stdout.split("\n")[0] == f"10 {expected} True"


def reports_of(one: checkpointer.Checkpointer) -> str:
    """What this checkpointer has told the supervisor."""
    return (one.progress.orders.run_dir / "attempts" / "0001" / "steps.jsonl").read_text()


def test_a_state_beyond_the_budget_is_staged_on_disk_and_that_is_told_once(make):
    one = make(memory_budget_bytes=1_000)
    for step in (1, 2, 3):
        one.save(step, {"w": torch.full((10_000,), float(step))})
        one.wait_written()
    assert one.last_error is None and one.committed_step == 3 and one.memory.whole(1) == {}
    assert reports_of(one).count("more than memory_budget_bytes") == 1
    one.close()


@pytest.mark.parametrize("fits", [0, 1])
def test_memory_that_is_too_small_costs_neither_the_training_nor_the_checkpoint(make, fits: int, monkeypatch):
    """As in a container with 64 MB of /dev/shm: one state may fit, or none."""
    taken: list[int] = []

    def measure(folder: Path) -> int:
        taken.append(1)
        return 1 << 40 if len(taken) <= fits else 0

    monkeypatch.setattr(slots, "measure_free_memory", measure)
    one = make()
    for step in (1, 2, 3):
        one.save(step, state_of(float(step)))
    one.close()
    assert one.last_error is None and [e.step for e in one.catalog.entries()] == [1, 2, 3]
    assert reports_of(one).count("degraded") == 1 and "No space left" in reports_of(one)


def test_a_state_that_fits_nowhere_is_skipped_with_its_cause_and_the_next_one_is_saved(make, monkeypatch):
    one = make()
    monkeypatch.setattr(slots, "measure_free_memory", lambda folder: 0)
    monkeypatch.setattr(slots.tempfile, "TemporaryFile", no_room)
    one.save(1, state_of(1.0))
    assert "no room to stage the state" in one.last_error and "save_failed" in reports_of(one)
    monkeypatch.undo()
    one.save(2, state_of(2.0))
    one.close()
    assert [e.step for e in one.catalog.entries()] == [2]


def test_a_folder_of_checkpoints_that_was_deleted_is_made_again_and_told(make):
    one = make()
    one.save(1, state_of(1.0))
    one.wait_written()
    shutil.rmtree(one.config.folder)
    one.save(2, state_of(2.0))
    one.wait_written()
    assert one.last_error is None and [e.step for e in one.catalog.entries()] == [2]
    assert one.catalog.id == one.memory.folder_id and "was gone" in reports_of(one)
    one.close()


def test_a_full_disk_is_named_as_such_whatever_torch_makes_of_it(make, monkeypatch):
    """torch's archive writer turns the error of a file into one of its own about positions."""
    monkeypatch.setattr(writer.HashedFile, "_put", no_room)
    one = make()
    one.save(1, {"w": torch.zeros(200_000)})
    one.wait_written()
    assert "no space left on the device of" in one.last_error
    one.close()


def test_ranks_that_cannot_agree_any_more_do_not_end_the_training(make, monkeypatch):
    one = make()

    def gone(*numbers: int) -> list[int]:
        raise RuntimeError("Connection closed by peer")

    monkeypatch.setattr(one.ranks, "largest", gone)
    one.save(1, state_of(1.0))
    assert "Connection closed by peer" in one.last_error
    one.save(2, state_of(1.0))
    assert one.should_save(3) is None
    one.close()
    assert one.catalog.entries() == []


def test_checkpointers_of_one_process_share_their_group(monkeypatch):
    """Every gloo group holds connections: sixty checkpointers used hundreds of descriptors."""
    made: list[object] = []
    monkeypatch.setattr(ranks.dist, "is_initialized", lambda: True)
    monkeypatch.setattr(ranks.dist, "get_world_size", lambda: 2)
    monkeypatch.setattr(ranks.dist, "get_rank", lambda: 0)
    monkeypatch.setattr(ranks.dist, "new_group", lambda **how: made.append(how) or object())
    monkeypatch.setattr(ranks, "_CONTROL", [])
    assert len({id(ranks.Ranks().control) for _ in range(60)}) == 1 and len(made) == 1


def test_ranks_that_end_together_remove_their_memory_without_an_error(tmp_path: Path):
    catalog = Catalog.open(tmp_path / "checkpoints")
    (tmp_path / "memory").mkdir()
    for _ in range(25):
        memories = [Memory(tmp_path / "memory", catalog, rank, None) for rank in range(8)]
        for one in memories:
            one.hold()
        start, failures = threading.Barrier(8), []

        def end(one: Memory, start=start, failures=failures) -> None:
            start.wait()
            try:
                one.remove()
            except OSError as error:
                failures.append(error)

        threads = [threading.Thread(target=end, args=(one,)) for one in memories]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failures == [] and list((tmp_path / "memory").iterdir()) == []


def test_as_many_states_stay_in_memory_as_the_budget_holds(make):
    one = make(memory_budget_bytes=3 * 3_072 + 100)
    for step in range(6):
        one.save(step, {"w": torch.full((256,), float(step)), "n": 1})
    one.wait_written()
    assert sorted(step for step, _ in one.memory.whole(1)) == [3, 4, 5]


def test_a_foreign_checkpoint_folder_is_refused(make, tmp_path: Path):
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "model.bin").write_text("")
    with pytest.raises(BadFileError, match="model.bin"):
        make()


def test_closing_gives_the_memory_back(make, tmp_path: Path):
    one = make()
    one.save(1, state_of(1.0))
    assert one.memory.run_folder.exists()
    one.close()
    assert not one.memory.run_folder.exists()


def test_a_signal_asks_for_a_last_save_one_step_later(make):
    one = make(watch_signals=True, interval_steps=1_000)
    assert one.should_save(1) is None
    os.kill(os.getpid(), signal.SIGTERM)
    assert one.should_save(2) is None  # the ranks agree while the step runs
    assert one.should_save(3) == "preemption"
    one.save(3, state_of(3.0))
    one.close()
    assert one.memory.folder.exists()  # for the process that comes next


def test_saves_come_at_the_interval(make):
    one = make(interval_steps=3)
    due = []
    for step in range(1, 11):
        if one.should_save(step):
            due.append(step)
            one.save(step, state_of(1.0))
    assert due == [3, 6, 9]
    one.close()


def test_old_checkpoints_go(make):
    one = make(retention=Retention(keep_last=2))
    for step in range(5):
        one.save(step, state_of(1.0))
    one.close()
    assert [e.step for e in one.catalog.entries()] == [3, 4]


def test_a_fresh_optimizer_gets_its_moments_back(make):
    def build() -> TrainState:
        torch.manual_seed(0)
        model = torch.nn.Linear(4, 4)
        return TrainState(model, torch.optim.AdamW(model.parameters()))

    trained = build()
    trained.model(torch.ones(4)).sum().backward()
    trained.optimizer.step()
    one = make()
    one.save(1, {"train": trained})
    one.close()
    fresh = build()
    make().restore({"train": fresh})
    for before, after in zip(trained.model.parameters(), fresh.model.parameters(), strict=True):
        assert torch.equal(before, after)
        assert torch.equal(trained.optimizer.state[before]["exp_avg"], fresh.optimizer.state[after]["exp_avg"])


@pytest.mark.parametrize("where", ["memory", "storage"])
def test_an_optimizer_that_is_passed_by_itself_gets_its_moments_back(make, where: str):
    def build() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(0)
        model = torch.nn.Linear(4, 4)
        return model, torch.optim.Adam(model.parameters(), lr=0.5)

    def train(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        optimizer.zero_grad()
        model(torch.ones(4)).square().sum().backward()
        optimizer.step()

    model, optimizer = build()
    train(model, optimizer)
    one = make()
    one.save(1, {"model": model, "optimizer": optimizer})
    if where == "memory":
        abandon(one)
    else:
        one.close()
    again, fresh = build()
    assert make().restore({"model": again, "optimizer": fresh}).source == where
    for pair in ((model, optimizer), (again, fresh)):
        train(*pair)
    for before, after in zip(model.parameters(), again.parameters(), strict=True):
        assert torch.equal(before, after)


@pytest.mark.parametrize("where", ["memory", "storage"])
def test_keys_that_are_numbers_stay_numbers(make, where: str):
    one = make()
    one.save(1, {"by_rank": {0: torch.ones(2), 1: {"seed": 7}, 2: {}}})
    if where == "memory":
        abandon(one)
    else:
        one.close()
    state = {"by_rank": {0: torch.zeros(2), 1: {"seed": 0}, 2: {}}}
    assert make().restore(state).source == where
    assert list(state["by_rank"]) == [0, 1, 2] and state["by_rank"][1] == {"seed": 7}
    assert torch.equal(state["by_rank"][0], torch.ones(2))


@pytest.mark.parametrize("where", ["memory", "storage"])
def test_saved_parts_that_have_no_place_in_the_state_are_reported(make, where: str, caplog: pytest.LogCaptureFixture):
    one = make()
    one.save(1, {"optimizer": {"state": {0: {"exp_avg": torch.ones(2)}}, "lr": 0.1}, "evaluated": {"loss": 1.0}})
    if where == "memory":
        abandon(one)
    else:
        one.close()
    with caplog.at_level("WARNING", logger="prism.recover"):
        make().restore({"optimizer": {"state": {}, "lr": 0.0}})
    assert "1 saved parts are not restored" in caplog.text and "optimizer.state.0.exp_avg" in caplog.text


def test_a_value_that_cannot_be_saved_is_named(make):
    one = make()
    for value in (torch.eye(3).to_sparse(), lambda: 1):
        one.save(1, {"odd": {"one": value}})
        assert "'odd.one'" in one.last_error
    assert reports_of(one).count("save_failed") == 2


dtypes = st.sampled_from([torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.uint8, torch.complex64])
leaves = st.one_of(
    st.integers(), st.text(max_size=5), st.none(), st.tuples(dtypes, st.lists(st.integers(0, 4), max_size=3))
)


@settings(max_examples=40)
@given(st.dictionaries(st.text("abc", min_size=1, max_size=3), leaves, min_size=1, max_size=6))
def test_any_state_comes_out_of_the_arena_as_it_went_in(tmp_path_factory, content):
    folder = tmp_path_factory.mktemp("arena")
    state = {k: torch.randint(0, 2, v[1]).to(v[0]) if isinstance(v, tuple) else v for k, v in content.items()}
    slot, staging = Slot(folder, 0), plan_staging(state)
    slot.reserve(staging.layout.num_bytes, pin=False)
    slot.fill(staging)
    slot.declare(header_of(staging))
    template = {k: torch.zeros_like(v) if isinstance(v, torch.Tensor) else 0 for k, v in state.items()}
    again = Slot(folder, 0)  # as the next process sees it
    opened = again.load(again.header(), template)
    for name, value in state.items():
        assert torch.equal(opened[name], value) if isinstance(value, torch.Tensor) else opened[name] == value
    slot.remove()


def header_of(staging) -> SlotHeader:
    return SlotHeader(
        folder_id="f", token=1, step=1, epoch=1, time_ns=1, world_size=1, health=Health(), layout=staging.layout
    )


def test_memory_of_another_shape_is_not_forced_into_a_state(make):
    one = make()
    one.save(1, {"w": torch.zeros(4)})
    ((slot, header),) = one.memory.whole(1).values()
    with pytest.raises(KeyError):
        slot.load(header, {"w": torch.zeros(5)})


# -- processes


def free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return str(probe.getsockname()[1])


def run_program(kind: str, folder: Path, *runs: tuple[Path, int]) -> list[list[str]]:
    """What each run, given its memory and number of ranks, says of its state; every rank is a process of its own."""
    words = [word for memory, ranks in runs for word in (str(memory), free_port(), str(ranks))]
    command = [sys.executable, str(PROGRAM), kind, str(folder), *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-2_000:]
    return [line.split()[1:] for line in done.stdout.splitlines() if line.startswith("DIGEST")]


@pytest.mark.parametrize(
    ("kind", "ranks"),
    [
        ("fsdp", 1),
        pytest.param("fsdp", 4, marks=pytest.mark.slow),
        pytest.param("ddp", 1, marks=pytest.mark.slow),
        pytest.param("ddp", 4, marks=pytest.mark.slow),
        pytest.param("tp", 1, marks=pytest.mark.slow),
        pytest.param("tp", 4, marks=pytest.mark.slow),
    ],
)
def test_sharded_states_come_back_from_memory_from_storage_and_on_another_world_size(
    kind: str, ranks: int, tmp_path: Path
):
    folder, memory = tmp_path / "c", tmp_path / "m"
    first, second, third = run_program(kind, folder, (memory, 2), (memory, 2), (tmp_path / "other", ranks))
    trained, value = first
    assert trained == "trained"
    assert second == ["memory", value]
    assert third == ["storage", value]


SAVER = """
import sys, torch
from pathlib import Path
from prism.recover.checkpoint import CheckpointConfig, Checkpointer
if __name__ == "__main__":
    folder, memory = map(Path, sys.argv[1:])
    one = Checkpointer(CheckpointConfig(folder=folder, memory_dir=memory, interval_steps=1))
    step = 0
    while True:
        step += 1
        one.save(step, {"w": torch.full((500_000,), float(step))})
        one.wait_written() if step == 1 else None
        print("saved", step, one.committed_step, flush=True)
"""


def test_a_kill_at_any_moment_leaves_the_last_good_one_loadable(make, tmp_path: Path):
    script = tmp_path / "saver.py"
    script.write_text(SAVER)
    folder = tmp_path / "c"
    memory = tmp_path / "elsewhere"
    process = subprocess.Popen(
        [sys.executable, str(script), str(folder), str(memory)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    lines = [process.stdout.readline() for _ in range(5)]
    time.sleep(0.13)  # in the middle of the next write
    process.kill()
    lines += process.stdout.readlines()
    process.wait()
    process.stdout.close()
    told = [int(line.split()[2]) for line in lines if line.startswith("saved")]
    target = {"w": torch.zeros(500_000)}
    restored = make().restore(target)
    assert restored.source == "storage" and restored.step >= max(told)
    assert float(target["w"].min()) == float(target["w"].max()) == restored.step


# -- the health of tensors


def healths(one: Checkpointer) -> list[tuple[int, bool, bool, str]]:
    found = [(e.step, e.manifest.health) for e in one.catalog.entries()]
    return [(step, health.good, health.doubtful, health.worst) for step, health in found]


def test_a_nan_gradient_in_the_step_of_a_save_makes_no_good_checkpoint(make):
    """The loss of that step is still finite; the weights are not."""
    model = torch.nn.Linear(4, 4)
    state = {"train": TrainState(model, torch.optim.AdamW(model.parameters()))}
    one = make()
    one.restore(state)
    for step, poison in ((1, 1.0), (2, float("nan"))):
        loss = model(torch.ones(4)).sum()
        (loss * poison).backward()
        state["train"].optimizer.step()
        one.save(step, state, Health(loss=float(loss.detach())))
    abandon(one)
    assert [(step, good) for step, good, _, _ in healths(one)] == [(1, True), (2, False)]
    assert healths(one)[1][3].startswith("train.")
    assert make().restore(state).step == 1
    assert '"healthy": false' in (one.config.folder.parent / "run/attempts/0001/steps.jsonl").read_text()


def test_poisoned_memory_that_no_writer_has_seen_is_not_restored(make, monkeypatch: pytest.MonkeyPatch):
    one = make()
    one.save(1, state_of(1.0))
    one.wait_written()
    monkeypatch.setattr(one._uploads, "add", lambda job, slot: None)
    poisoned = state_of(2.0)
    poisoned["model"]["w"][3] = float("nan")
    one.save(2, poisoned)
    abandon(one)
    assert make().restore(state_of(0.0)).step == 1


def test_what_was_not_finite_when_training_began_is_no_fault(make):
    state = {"w": torch.ones(4), "mask": torch.full((4,), float("-inf")), "lowest": torch.tensor(float("nan"))}
    one = make()
    one.restore(state)
    one.save(1, state)
    abandon(one)
    assert healths(one) == [(1, True, False, "")]
    again = make()
    assert again.restore(state).step == 1
    again.save(2, state)
    abandon(again)
    assert healths(again)[-1] == (2, True, False, "")


def test_a_value_that_grew_beyond_reason_makes_a_checkpoint_doubtful(make):
    one = make()
    one.save(1, {"w": torch.ones(8), "v": torch.ones(8)})
    flipped = torch.full((8,), 0.5)
    flipped.view(torch.int32)[3] ^= 1 << 30  # the highest bit of an exponent
    one.save(2, {"w": flipped, "v": torch.ones(8)})
    one.save(3, {"w": torch.ones(8), "v": torch.ones(8) * 3})
    abandon(one)
    assert healths(one) == [(1, True, False, ""), (2, True, True, "w"), (3, True, False, "")]
    assert one.catalog.last_good(certain=True, up_to_step=2).step == 1


def test_when_no_checkpoint_is_good_a_person_is_asked(make):
    one = make()
    one.save(1, state_of(1.0), Health(loss=float("nan")))
    one.close()
    with pytest.raises(BadFileError, match="none is good"):
        make().restore(state_of(0.0))
    assert make().restore(state_of(0.0), up_to_step=0) is None


def test_looking_for_a_checkpoint_does_not_change_a_fresh_training(make) -> None:
    def train(with_checkpointer: bool) -> torch.Tensor:
        torch.manual_seed(0)
        model = torch.nn.Linear(4, 1)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        if with_checkpointer:
            assert make().restore({"train": TrainState(model, optimizer)}) is None
        for _ in range(3):
            model(torch.ones(2, 4)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        return model.weight.detach()

    assert torch.equal(train(False), train(True))
