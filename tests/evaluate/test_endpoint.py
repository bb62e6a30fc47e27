"""A served model is scored like one on disk: the same plan, the same numbers; retries, rates and costs are kept."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import harness_parts
import pytest
from forty_tasks import add_template
from marks import needs_transformers
from served_model import Served, serve

from prism.errors import BadConfigError, PrismError
from prism.evaluate.plan_file import parse_plan
from prism.evaluate.run.adapters import BUILTIN_DATASETS, WorkerCache, open_adapter
from prism.evaluate.run.loading import open_source
from prism.evaluate.run.models import open_model
from prism.evaluate.run.models.endpoint import Endpoint, EndpointClient
from prism.evaluate.run.models.model import Continuation
from prism.evaluate.schedule.trials import Dataset

pytestmark = needs_transformers


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = harness_parts.write_model(tmp_path_factory.mktemp("served") / "step-7")
    add_template(folder)
    return folder


@pytest.fixture(scope="module")
def served(model: Path) -> Iterator[tuple[Served, str]]:
    made = Served(model)
    server = serve(made)
    yield made, f"http://127.0.0.1:{server.server_address[1]}/v1"
    server.shutdown()
    server.server_close()


def write_folder(folder: Path, endpoint: Endpoint) -> Path:
    """The folder that workers get of an endpoint."""
    from prism.evaluate.run.loading.endpoint_source import make_address

    source = open_source(make_address(endpoint))
    (file,) = source.files()
    content = bytearray(file.num_bytes)
    source.read_into(file.name, 0, memoryview(content))
    folder.mkdir(exist_ok=True)
    (folder / file.name).write_bytes(content)
    return folder


def test_a_plan_names_an_endpoint_and_no_key_is_written_down(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    text = "{checkpoints: [{endpoint: {url: 'http://h:1/v1', model: org/m-1, concurrency: 4}}], datasets: [order]}"
    (found,) = parse_plan(text, "p", tmp_path, BUILTIN_DATASETS).checkpoints
    assert found.name == "m-1" and "sk-secret" not in found.path
    for wrong, told in (("{url: x}", "model"), ("{url: x, model: m, concurrency: 0}", "expected 1 to 1024")):
        with pytest.raises(BadConfigError, match=told):
            parse_plan(f"{{checkpoints: [{{endpoint: {wrong}}}], datasets: [order]}}", "p", tmp_path, BUILTIN_DATASETS)
    with pytest.raises(BadConfigError, match="give 'path' or 'endpoint'"):
        parse_plan("{checkpoints: [{name: x}], datasets: [order]}", "p", tmp_path, BUILTIN_DATASETS)


def test_a_served_model_answers_like_the_one_on_disk(model: Path, served: Any, tmp_path: Path) -> None:
    ours = open_model(model, "cpu")
    theirs = open_model(write_folder(tmp_path / "end", Endpoint(url=served[1], model="m")), "cpu")
    asked = [Continuation(context="model layer ", continuation=word) for word in ("token", "rank", "node")]
    for mine, his in zip(ours.likelihoods(asked, 1), theirs.likelihoods(asked, 1), strict=True):
        assert his == pytest.approx(mine, abs=1e-4)
    assert theirs.generate(["queue shard", "link"], 6, 1) == ours.generate(["queue shard", "link"], 6, 1)


def test_what_may_pass_is_tried_again_as_late_as_the_server_asks(served: Any) -> None:
    made, url = served
    client = EndpointClient(Endpoint(url=url, model="m", price_in=2.0, price_out=10.0))
    made.refuse = [(429, {"Retry-After": "0.3"}), (503, {"Retry-After": "0"})]
    begun = time.monotonic()
    client.post({"model": "m", "prompt": "node", "max_tokens": 2})
    assert time.monotonic() - begun >= 0.3
    used = client.take_usage()
    assert (used["requests"], used["retries"], used["tokens_out"]) == (1, 2, 2)
    assert used["cost"] == pytest.approx((used["tokens_in"] * 2 + used["tokens_out"] * 10) / 1e6)
    made.refuse = [(401, {})]
    with pytest.raises(PrismError, match="HTTP 401: slow down"):
        client.post({"model": "m", "prompt": "node", "max_tokens": 1})
    made.refuse = [(500, {"Retry-After": "0"})] * 3
    with pytest.raises(PrismError, match="no answer after 3 attempts"):
        EndpointClient(Endpoint(url=url, model="m", attempts=3)).post({"model": "m", "prompt": "x", "max_tokens": 1})
    with pytest.raises(PrismError, match="Connection refused"):
        EndpointClient(Endpoint(url="http://127.0.0.1:9/v1", model="m", attempts=1)).post({"prompt": "x"})


def test_requests_keep_to_the_rate_and_to_the_number_at_once(served: Any) -> None:
    made, url = served
    client = EndpointClient(Endpoint(url=url, model="m", requests_per_minute=1200, concurrency=3))
    made.max_at_once = 0
    begun = time.monotonic()
    client.post_all([{"model": "m", "prompt": "node", "max_tokens": 1}] * 9)
    assert time.monotonic() - begun >= 8 * 60 / 1200 and made.max_at_once <= 3


@pytest.mark.slow
def test_harness_tasks_over_an_endpoint_give_what_the_harness_gives_on_disk(
    model: Path, served: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Likelihoods differ by rounding of their text alone; generations are the same."""
    pytest.importorskip("lm_eval")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    names = harness_parts.write_tasks(tmp_path / "tasks", model, samples=6)
    end = Endpoint(url=served[1], model="m", tokenizer=str(model), max_length=512)
    folder = write_folder(tmp_path / "end", end)
    chats = write_folder(tmp_path / "chat", Endpoint(url=served[1], model="m", api="chat"))
    adapter = open_adapter("lm-eval")
    compared = 0
    for name in names:
        for where, settings in ((folder, {}), (chats, {"apply_chat_template": True})):
            if where is chats and "written" not in name:
                continue
            base = {"include_path": "tasks", "bootstrap_iters": 100, "folder": str(tmp_path), **settings}
            dataset = Dataset(name=name, adapter="lm-eval", task=name, samples=0, settings=base)
            count = adapter.survey(dataset).samples
            results = []
            for place in (model, where):
                cache = WorkerCache()
                outputs = json.loads(json.dumps(adapter.infer(dataset, place, cache, 0, count, 0)))
                results.append(adapter.combine(dataset, adapter.score(dataset, cache, outputs, 0)))
            assert results[1] == pytest.approx(results[0], rel=1e-4, abs=1e-6), (name, where)
            compared += len(results[0])
    assert compared >= 20
