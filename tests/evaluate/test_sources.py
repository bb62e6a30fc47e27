"""Checkpoints behind a web server and an S3 API."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from web_storage import PlainHandler, RangeHandler, serve

from prism.errors import BadFileError
from prism.evaluate.run.loading import Shelf, ShelfConfig, open_source
from prism.evaluate.run.loading.folder_source import FolderSource
from prism.evaluate.run.loading.source import identify
from prism.evaluate.run.models.tiny import write_tiny


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    write_tiny(tmp_path / "step-1", 1)
    return tmp_path / "step-1"


@pytest.fixture(params=[PlainHandler, RangeHandler])
def address(request: pytest.FixtureRequest, checkpoint: Path) -> Iterator[str]:
    RangeHandler.asked.clear()
    server, url = serve(checkpoint.parent, request.param)
    yield f"{url}/step-1"
    server.shutdown()
    server.server_close()


def test_a_checkpoint_comes_over_http_even_when_connections_break(
    address: str, checkpoint: Path, tmp_path: Path
) -> None:
    source = open_source(address)
    lease = Shelf(ShelfConfig(roots=(tmp_path / "shelf",))).lease("k", [source], source.files())
    for name in ("model.safetensors", "config.json"):
        assert (lease.folder / name).read_bytes() == (checkpoint / name).read_bytes()


def test_shards_of_an_index_are_found_over_http(address: str, checkpoint: Path) -> None:
    (checkpoint / "model.safetensors").rename(checkpoint / "model-1.safetensors")
    (checkpoint / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": {"embed": "model-1.safetensors"}})
    )
    names = [file.name for file in open_source(address).files()]
    assert names == ["config.json", "model-1.safetensors", "model.safetensors.index.json"]


def test_a_single_file_is_a_checkpoint_too(address: str, checkpoint: Path) -> None:
    (file,) = open_source(f"{address}/model.safetensors").files()
    assert (file.name, file.num_bytes) == ("model.safetensors", (checkpoint / "model.safetensors").stat().st_size)


@pytest.mark.parametrize(
    ("break_it", "message"),
    [
        (lambda folder: (folder / "model.safetensors").unlink(), "neither model.safetensors nor"),
        (lambda folder: (folder / "model.safetensors.index.json").write_text("{"), "not a safetensors index"),
        (
            lambda folder: (folder / "model.safetensors.index.json").write_text(
                '{"weight_map": {"a": "gone.safetensors"}}'
            ),
            "gone.safetensors: the server does not have it",
        ),
        (lambda folder: (folder / "manifest.json").write_text("{"), "not a readable manifest"),
    ],
)
def test_what_is_missing_on_a_server_is_named(address: str, checkpoint: Path, break_it: Any, message: str) -> None:
    break_it(checkpoint)
    with pytest.raises(BadFileError, match=message):
        open_source(address).files()


def test_a_server_that_cannot_be_reached_is_named() -> None:
    with pytest.raises(BadFileError, match=r"http://127.0.0.1:9/x: cannot be reached"):
        open_source("http://127.0.0.1:9/x").files()


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch, checkpoint: Path) -> Iterator[Any]:
    moto = pytest.importorskip("moto")
    boto3 = pytest.importorskip("boto3")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    with moto.mock_aws():
        client = boto3.client("s3")
        client.create_bucket(Bucket="runs")
        for path in checkpoint.iterdir():
            client.put_object(Bucket="runs", Key=f"a/step-1/{path.name}", Body=path.read_bytes())
        client.put_object(Bucket="runs", Key="a/step-1/below/not-ours", Body=b"1")
        yield client


def test_a_checkpoint_comes_from_s3_in_ranges(bucket: Any, checkpoint: Path, tmp_path: Path) -> None:
    source = open_source("s3://runs/a/step-1")
    files = source.files()
    assert [file.name for file in files] == ["config.json", "model.safetensors"]
    lease = Shelf(ShelfConfig(roots=(tmp_path / "shelf",))).lease("k", [source], files)
    assert (lease.folder / "model.safetensors").read_bytes() == (checkpoint / "model.safetensors").read_bytes()
    piece = bytearray(10)
    source.read_into("model.safetensors", 100, memoryview(piece))
    assert bytes(piece) == (checkpoint / "model.safetensors").read_bytes()[100:110]


@pytest.mark.parametrize("address", ["s3://runs/nothing", "s3://no-such-bucket/x"])
def test_an_empty_prefix_or_a_missing_bucket_is_named(bucket: Any, address: str) -> None:
    with pytest.raises(BadFileError, match=address):
        open_source(address).files()


def test_an_object_that_vanishes_is_reported(bucket: Any) -> None:
    source = open_source("s3://runs/a/step-1")
    bucket.delete_object(Bucket="runs", Key="a/step-1/model.safetensors")
    with pytest.raises(OSError, match="model.safetensors"):
        source.read_into("model.safetensors", 0, memoryview(bytearray(5)))


def test_checkpoints_of_one_size_and_time_are_told_apart_by_their_content(tmp_path: Path) -> None:
    found = set()
    for name, content in (("step-1", b"a" * 100), ("step-2", b"a" * 99 + b"b"), ("step-3", b"a" * 100)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.safetensors").write_bytes(content)
        os.utime(tmp_path / name / "model.safetensors", ns=(1, 1))
        found.add(identify(FolderSource(tmp_path / name).files()))
    assert len(found) == 2
