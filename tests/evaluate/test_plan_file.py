"""PLAN.yaml and the checkpoint folders it names."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prism.errors import InputError
from prism.evaluate.plan_file import EvaluationPlan, parse_plan, read_plan
from prism.evaluate.run.checkpoints.folder import find_step, inspect_folder
from prism.evaluate.schedule.trials import Dataset

KNOWN = {name: Dataset(name=name, adapter="builtin", task=name, samples=10) for name in ("addition", "copying")}


def write_weights(path: Path, tensors: dict[str, tuple[int, ...]], *, cut: int = 0) -> None:
    """A safetensors file, less its last bytes."""
    header, at = {}, 0
    for name, shape in tensors.items():
        size = 2
        for extent in shape:
            size *= extent
        header[name] = {"dtype": "F16", "shape": list(shape), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    content = struct.pack("<Q", len(text)) + text + bytes(at)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content[: len(content) - cut])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for step in (100, 20):
        write_weights(tmp_path / f"runs/step-{step}/model.safetensors", {"w": (4, 8), "b": (8,)})
    return tmp_path


def read(folder: Path, text: str) -> EvaluationPlan:
    (folder / "plan.yaml").write_text(text)
    return read_plan(folder / "plan.yaml", KNOWN)


def test_a_plan_names_checkpoints_by_pattern_in_the_order_of_their_steps(folder: Path) -> None:
    plan = read(folder, "checkpoints: runs/step-*\ndatasets: [addition, 'lm-eval:arc_easy']\n")
    assert [(c.name, c.step, c.parameters) for c in plan.checkpoints] == [("step-20", 20, 40), ("step-100", 100, 40)]
    assert [(d.name, d.adapter) for d in plan.datasets] == [("addition", "builtin"), ("arc_easy", "lm-eval")]


def test_a_plan_sets_priorities_hardware_and_inline_datasets(folder: Path) -> None:
    plan = read(
        folder,
        """
checkpoints:
  - runs/step-20
  - {path: runs/step-100, priority: 5, weight: 2, name: newest}
datasets:
  - {name: short, task: addition, samples: 4, settings: {seed: 3}}
  - {name: mine, adapter: command, samples: 7, splittable: false, settings: {infer: ./infer.sh}}
hardware: {device: cpu, storage_gbps: 25, score_cpus: 3}
""",
    )
    assert [(c.name, c.priority, c.weight, c.gpus) for c in plan.checkpoints] == [
        ("step-20", 0, 1, 0),
        ("newest", 5, 2, 0),
    ]
    short, mine = plan.datasets
    assert (short.task, short.samples, short.settings) == ("addition", 4, {"seed": 3})
    assert (mine.adapter, mine.splittable, mine.settings["infer"]) == ("command", False, "./infer.sh")
    assert plan.hardware.storage_gbps == 25


GOOD = "checkpoints: runs/step-20\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "checkpoint: runs/step-20\ndatasets: [addition]",
            "'checkpoint' is not a key here, did you mean 'checkpoints'",
        ),
        (GOOD, "'datasets' is missing"),
        (GOOD + "datasets: []", "'datasets' is missing"),
        (GOOD + "datasets: addition", "'datasets' is 'addition', expected a list"),
        (GOOD + "datasets: [adition]", "'datasets[0]' is 'adition', no known dataset, did you mean 'addition'"),
        (GOOD + "datasets: ['lm-evl:arc']", "did you mean 'lm-eval'"),
        (GOOD + "datasets: [addition, addition]", "'datasets[1]' is 'addition' again"),
        (GOOD + "datasets: [{name: a, adaptor: builtin}]", "did you mean 'adapter'"),
        (GOOD + "datasets: [{name: a, adapter: lmeval}]", "did you mean 'lm-eval'"),
        (GOOD + "datasets: [{name: a}]", "'datasets[0].task' is 'a', no built-in dataset"),
        (GOOD + "datasets: [{name: a, adapter: command, settings: 3}]", "'datasets[0].settings' is 3"),
        (GOOD + "datasets: [addition]\nhardware: {gpu_per_worker: 2}", "did you mean 'gpus_per_worker'"),
        (GOOD + "datasets: [addition]\nhardware: {device: tpu}", "'hardware.device' is 'tpu'"),
        (GOOD + "datasets: [addition]\nhardware: {storage_gbps: -1}", "'hardware.storage_gbps' is -1"),
        ("checkpoints: runs/stp-20\ndatasets: [addition]", "is no checkpoint folder, did you mean 'step-20'"),
        ("checkpoints: runs/x-*\ndatasets: [addition]", "no folder matches"),
        ("checkpoints: [runs/step-20, runs/step-20]\ndatasets: [addition]", "is named twice"),
        ("checkpoints: [{path: runs/step-20, gpus: 4}]\ndatasets: [addition]", "'checkpoints[0].gpus' is 4"),
        ("checkpoints: [{path: runs/step-*, name: x}]\ndatasets: [addition]", "one name for 2 checkpoints"),
        ("[1, 2]", "expected keys such as"),
        ("a: [", "not YAML"),
    ],
)
def test_mistakes_are_reported_with_their_place(folder: Path, text: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        read(folder, text)
    assert message in str(caught.value)
    assert str(caught.value).startswith(str(folder / "plan.yaml"))
    assert "\n" not in str(caught.value)


def test_checkpoints_of_one_name_are_told_apart_by_the_folder_above(folder: Path) -> None:
    write_weights(folder / "other/step-20/model.safetensors", {"w": (1,)})
    plan = read(folder, "checkpoints: [runs/step-20, other/step-20]\ndatasets: [addition]")
    assert [c.name for c in plan.checkpoints] == ["runs/step-20", "other/step-20"]


def test_addresses_are_left_to_the_storage(folder: Path) -> None:
    plan = read(folder, "checkpoints: ['s3://bucket/run/step-7/']\ndatasets: [addition]")
    assert [(c.name, c.step, c.bytes) for c in plan.checkpoints] == [("step-7", 7, 0)]


@pytest.mark.parametrize("cut", [1, 30, 200])
def test_a_half_written_file_is_refused(folder: Path, cut: int) -> None:
    write_weights(folder / "runs/step-20/model.safetensors", {"w": (64, 8)}, cut=cut)
    with pytest.raises(InputError, match=r"plan.yaml: 'checkpoints\[0\]'.*half written"):
        read(folder, GOOD + "datasets: [addition]")


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    write_weights(tmp_path / "a.safetensors", {"w": (2,)})
    index = {"weight_map": {"w": "a.safetensors", "v": "b.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(InputError, match=r"1 of 2 files of its index are missing \(b.safetensors\)"):
        inspect_folder(tmp_path)


def test_an_index_may_not_point_out_of_its_folder(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"w": "../x.safetensors"}}))
    with pytest.raises(InputError, match="expected files of the same folder"):
        inspect_folder(tmp_path)


def test_prisms_own_checkpoints_are_known_by_their_manifest(tmp_path: Path) -> None:
    folder = tmp_path / "step-0000000040"
    folder.mkdir()
    (folder / "__0_0.distcp").write_bytes(bytes(50))
    files = [{"name": "__0_0.distcp", "num_bytes": 50, "sha256": ""}]
    (folder / "manifest.json").write_text(json.dumps({"schema": "prism.checkpoint/1", "step": 40, "files": files}))
    checkpoint = inspect_folder(folder)
    assert (checkpoint.step, checkpoint.bytes) == (40, 50)
    (folder / "__0_0.distcp").write_bytes(bytes(49))
    with pytest.raises(InputError, match="full length of 50 bytes"):
        inspect_folder(folder)


def test_one_file_is_a_checkpoint_too(folder: Path) -> None:
    write_weights(folder / "step-9.safetensors", {"w": (3,)})
    plan = read(folder, "checkpoints: step-9.safetensors\ndatasets: [addition]")
    assert [(c.name, c.step, c.parameters) for c in plan.checkpoints] == [("step-9.safetensors", 9, 3)]


def test_while_watching_a_plan_needs_no_checkpoints(folder: Path) -> None:
    (folder / "plan.yaml").write_text("datasets: [addition]\n")
    assert read_plan(folder / "plan.yaml", KNOWN, watching=True).checkpoints == ()


def test_an_empty_folder_is_not_a_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="still being written"):
        inspect_folder(tmp_path)


@pytest.mark.parametrize(
    ("name", "step"),
    [("step-400", 400), ("global_step12", 12), ("checkpoint_7", 7), ("800", 800), ("7b-final", None), ("v2", None)],
)
def test_the_step_is_read_from_the_name(name: str, step: int | None) -> None:
    assert find_step(name) == step


@given(st.binary(max_size=200), st.binary(max_size=60))
def test_no_bytes_break_the_look_at_a_checkpoint(
    tmp_path_factory: pytest.TempPathFactory, weights: bytes, index: bytes
) -> None:
    folder = tmp_path_factory.mktemp("c")
    (folder / "model.safetensors").write_bytes(weights)
    if index:
        (folder / "model.safetensors.index.json").write_bytes(index)
    try:
        inspect_folder(folder)
    except InputError as error:
        assert str(folder) in str(error)


@given(st.text(max_size=80))
def test_no_text_breaks_the_plan_reader(text: str) -> None:
    for document in (text, f"checkpoints: 's3://b/c'\ndatasets: {text}", f"checkpoints: {text}\ndatasets: [addition]"):
        try:
            parse_plan(document, "plan.yaml", Path("/nonexistent"), KNOWN)
        except InputError as error:
            assert str(error).startswith("plan.yaml")
