"""A Ray cluster of two local nodes, begun with `ray start` and joined by its address."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_runs import finish, inferred_twice, phases, start, wait_for_first_part, wait_until
from ray_nodes import RayNodes
from web_storage import RangeHandler, serve

from prism.evaluate.run.models.tiny import write_tiny

pytestmark = [pytest.mark.slow, pytest.mark.ray]


class CountingHandler(RangeHandler):
    """A storage that counts what is taken of the weights."""

    breaks = False

    @classmethod
    def taken_bytes(cls) -> int:
        """Bytes of weights that were asked for."""
        ends = [wanted.removeprefix("bytes=").split("-") for wanted in cls.asked]
        return sum(int(last) - int(first) + 1 for first, last in ends)


@pytest.fixture
def storage(tmp_path: Path) -> Iterator[str]:
    """A checkpoint behind a web server."""
    write_tiny(tmp_path / "step-1", 1)
    CountingHandler.asked.clear()
    server, url = serve(tmp_path, CountingHandler)
    yield f"{url}/step-1"
    server.shutdown()
    server.server_close()


def write_plan(folder: Path, checkpoint: str, samples: int = 1500, **hardware: float | None) -> Path:
    chosen = {"device": "cpu", "workers": 2, "score_cpus": 1, **hardware}
    document = {
        "checkpoints": checkpoint,
        "datasets": [{"name": name, "samples": samples} for name in ("arithmetic", "order")],
        "hardware": {key: value for key, value in chosen.items() if value is not None},
    }
    (folder / "plan.yaml").write_text(json.dumps(document))  # JSON is YAML
    return folder / "plan.yaml"


def test_two_nodes_share_the_work_and_the_second_has_the_model_from_the_first(
    ray_nodes: RayNodes, storage: str, tmp_path: Path
) -> None:
    """Each node has a shelf of its own; the storage lets one read at a time, and is read once."""
    plan = write_plan(tmp_path, storage, storage_gbps=1, storage_total_gbps=1, peer_gbps=10)
    shared = finish(start(plan, tmp_path / "run", "--ray-address", ray_nodes.address, env=ray_nodes.environment))
    both = {ray_nodes.node_id(0), ray_nodes.node_id(1)}
    assert {line["node"] for line in phases(tmp_path / "run", "load")} == both
    assert {line["node"] for line in phases(tmp_path / "run", "infer")} == both
    files = [path for path in (tmp_path / "step-1").iterdir() if path.is_file()]
    assert CountingHandler.taken_bytes() == sum(path.stat().st_size for path in files)
    assert not list(ray_nodes.shelf(0).glob("*")) and not list(ray_nodes.shelf(1).glob("*")), "copies were left behind"

    alone = finish(start(write_plan(tmp_path, "step-1"), tmp_path / "alone", "--engine", "local"))
    assert shared["results"] == alone["results"]


def test_without_peers_every_node_reads_the_storage(ray_nodes: RayNodes, storage: str, tmp_path: Path) -> None:
    plan = write_plan(tmp_path, storage)
    finish(start(plan, tmp_path / "run", "--ray-address", ray_nodes.address, env=ray_nodes.environment))
    files = [path for path in (tmp_path / "step-1").iterdir() if path.is_file()]
    assert CountingHandler.taken_bytes() == 2 * sum(path.stat().st_size for path in files)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to mount a small file system")
def test_a_node_with_a_full_disk_is_made_up_for_by_the_other(ray_nodes: RayNodes, storage: str, tmp_path: Path) -> None:
    small = ray_nodes.shelf(1)
    small.mkdir(exist_ok=True)
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", str(small)], capture_output=True).returncode:
        pytest.skip("no file system can be mounted here")
    try:
        process = start(
            write_plan(tmp_path, storage),
            tmp_path / "run",
            "--ray-address",
            ray_nodes.address,
            env=ray_nodes.environment,
        )
        document = finish(process)
    finally:
        subprocess.run(["umount", str(small)], check=True)
    assert document["failures"] == [] and set(document["results"]["step-1"]) == {"arithmetic", "order"}
    assert {line["node"] for line in phases(tmp_path / "run", "infer")} == {ray_nodes.node_id(0)}
    assert "no room for a checkpoint" in (tmp_path / "run" / "trials.jsonl").read_text()


def test_a_cluster_refuses_who_has_no_token_and_says_what_to_do(
    ray_nodes: RayNodes, storage: str, tmp_path: Path
) -> None:
    stranger = {name: word for name, word in ray_nodes.environment.items() if name != "RAY_AUTH_TOKEN"}
    process = start(
        write_plan(tmp_path, storage),
        tmp_path / "run",
        "--ray-address",
        ray_nodes.address,
        env=stranger | {"HOME": str(tmp_path)},
    )
    _, told = process.communicate(timeout=600)
    assert process.returncode == 1 and "Traceback" not in told
    assert f"Ray at {ray_nodes.address} asks for its token: set RAY_AUTH_TOKEN" in told.splitlines()[-1]


def test_an_address_where_nothing_listens_is_reported_at_once(tmp_path: Path, storage: str) -> None:
    process = start(write_plan(tmp_path, storage), tmp_path / "run", "--ray-address", "127.0.0.1:9")
    _, told = process.communicate(timeout=600)
    assert process.returncode == 1
    (line,) = told.splitlines()
    assert "Ray at 127.0.0.1:9 cannot be used" in line and "check the address" in line


def test_a_node_that_joins_midway_gets_work_and_an_interrupted_run_leaves_the_cluster(
    ray_nodes: RayNodes, storage: str, tmp_path: Path
) -> None:
    """The last test of this file: the cluster has three nodes from here on."""
    plan = write_plan(tmp_path, storage, samples=20_000, workers=None)
    run = tmp_path / "run"
    process = start(plan, run, "--ray-address", ray_nodes.address, env=ray_nodes.environment)
    wait_for_first_part(run, process)
    ray_nodes.add()
    newcomer = ray_nodes.node_id(2)
    wait_until(
        lambda: any(line["node"] == newcomer for line in phases(run, "infer")), process, "a part of the new node"
    )
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=600)
    assert process.returncode != 0 and "Traceback" not in told
    assert json.loads((run / "progress.json").read_text())["state"] == "stopped"
    assert inferred_twice(run) == []
    assert all(node.poll() is None for node in ray_nodes.processes), "the cluster is not ours to end"
