"""Jobs on shared clusters: laws of queues, what each policy may and may not do, and the command's contract."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from prism.cli.main import app
from prism.errors import InputError
from prism.place import POLICIES, Cluster, Finished, Job, Scheduler, Submitted, read_clusters, read_jobs, simulate


def job(id: str, at: float, gpus: int = 1, home: str = "a") -> Job:
    return Job(id=id, submit_s=at, gpus=gpus, home=home)


def erlang_wait(rate: float, service_s: float, servers: int) -> float:
    """Mean wait of an M/M/c queue."""
    load = rate * service_s
    below = sum(load**k / math.factorial(k) for k in range(servers))
    last = load**servers / math.factorial(servers) * servers / (servers - load)
    return last / (below + last) * service_s / (servers - load)


def test_one_cluster_of_single_gpu_jobs_waits_as_queueing_theory_says() -> None:
    rng = np.random.default_rng(1)
    count, servers, rate, service = 60_000, 4, 0.75, 4.0
    at = np.cumsum(rng.exponential(1 / rate, count))
    jobs = [job(str(i), float(t)) for i, t in enumerate(at)]
    found = simulate(
        jobs, rng.exponential(service, count).tolist(), [Cluster(name="a", gpus=servers)], POLICIES["static"]
    )
    assert np.mean(found.queue_s) == pytest.approx(erlang_wait(rate, service, servers), rel=0.08)


@settings(max_examples=40)
@given(
    policy=st.sampled_from(sorted(POLICIES)),
    rows=st.lists(
        st.tuples(st.integers(0, 50), st.integers(1, 6), st.integers(1, 40), st.sampled_from("abc")),
        min_size=1,
        max_size=40,
    ),
)
def test_no_cluster_is_ever_overfull_and_every_job_that_fits_runs_once(
    policy: str, rows: list[tuple[int, int, int, str]]
) -> None:
    rows.sort()
    clusters = [Cluster(name="a", gpus=6), Cluster(name="b", gpus=3), Cluster(name="c", gpus=8)]
    jobs = [job(str(i), float(t), g, h) for i, (t, g, _, h) in enumerate(rows)]
    found = simulate(jobs, [float(r[2]) for r in rows], clusters, POLICIES[policy])
    assert len(found.jobs) + found.left_out == len(jobs)
    assert min(found.queue_s, default=0.0) >= 0
    size = {"pool": 17} if policy == "pooled" else {c.name: c.gpus for c in clusters}
    starts = [
        (j.submit_s + q, j.submit_s + q + rows[int(j.id)][2], j.gpus, c)
        for j, q, c in zip(found.jobs, found.queue_s, found.cluster, strict=True)
    ]
    for begin, _, _, place in starts:
        assert sum(g for b, e, g, p in starts if p == place and b <= begin < e) <= size[place]


def test_a_job_stays_at_home_where_there_is_room_and_leaves_only_when_there_is_none() -> None:
    scheduler = Scheduler([Cluster(name="a", gpus=2), Cluster(name="b", gpus=8)], POLICIES["prism"])
    assert [s.cluster for s in scheduler.handle(Submitted(job("1", 0, 2), 0.0))] == ["a"]
    (away,) = scheduler.handle(Submitted(job("2", 1, 2), 1.0))
    assert away.cluster == "b" and "'a' is full" in away.reason


def test_guests_do_not_start_while_the_owners_wait() -> None:
    scheduler = Scheduler([Cluster(name="a", gpus=2), Cluster(name="b", gpus=2)], POLICIES["prism"])
    for number, home in enumerate("ab"):
        scheduler.handle(Submitted(job(f"run-{home}", 0, 2, home), float(number)))
    assert scheduler.handle(Submitted(job("guest", 3, 1, "a"), 3.0)) == []
    assert scheduler.handle(Submitted(job("owner", 4, 2, "b"), 4.0)) == []
    assert [s.job.id for s in scheduler.handle(Finished("run-b", 5.0))] == ["owner"]


def test_a_later_job_passes_only_if_it_does_not_delay_the_first() -> None:
    scheduler = Scheduler([Cluster(name="a", gpus=4)], POLICIES["static-easy"])
    scheduler.handle(Submitted(job("long", 0, 3), 0.0))
    assert scheduler.handle(Submitted(job("wide", 1, 4), 1.0)) == []
    # Nothing is known of run times yet, so all are expected to end at about the same time and the small one may not pass.
    assert scheduler.handle(Submitted(job("small", 2, 1), 2.0)) == []
    assert [s.job.id for s in scheduler.handle(Finished("long", 3.0))] == ["wide"]


def test_an_end_that_is_told_twice_changes_nothing() -> None:
    scheduler = Scheduler([Cluster(name="a", gpus=1)], POLICIES["prism"])
    scheduler.handle(Submitted(job("1", 0), 0.0))
    scheduler.handle(Finished("1", 1.0))
    assert scheduler.handle(Finished("1", 2.0)) == []
    assert [s.job.id for s in scheduler.handle(Submitted(job("2", 3), 3.0))] == ["2"]
    assert scheduler.handle(Submitted(job("3", 4), 4.0)) == []


def test_a_job_that_fits_nowhere_is_told_what_would_fit() -> None:
    with pytest.raises(InputError, match="in a cluster of 9"):
        Scheduler([Cluster(name="a", gpus=8)], POLICIES["prism"]).handle(Submitted(job("1", 0, 9), 0.0))


def test_the_command_prints_the_contract(tmp_path: Path) -> None:
    (tmp_path / "jobs.csv").write_text(
        "job,time,seconds,gpus,virtual_cluster\n1,2017-10-03 00:00:00,100,4,a\n2,2017-10-03 00:00:10,50,4,a\n3,2017-10-03 00:00:20,,1,a\n"
    )
    (tmp_path / "clusters.yaml").write_text("a: 4\nb: 8\n")
    done = CliRunner().invoke(
        app, ["place", "simulate", str(tmp_path / "jobs.csv"), "--clusters", str(tmp_path / "clusters.yaml"), "--json"]
    )
    document = json.loads(done.stdout)["policies"]
    assert set(document) == set(POLICIES)
    assert document["static"]["mean_queue_s"] == pytest.approx(45.0) and document["prism"]["mean_queue_s"] == 0.0
    assert set(document["static"]["by_cluster"]) == {"a"} and "p99_queue_s" in document["static"]


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("name,gpus\na,none\n", "expected a number"),
        ("name\na\n", "no column for 'gpus'"),
        ("name,gpus\na,4\na,5\n", "a name of its own"),
    ],
)
def test_bad_clusters_are_one_clear_line(tmp_path: Path, text: str, word: str) -> None:
    path = tmp_path / "clusters.csv"
    path.write_text(text)
    with pytest.raises(InputError, match=word):
        read_clusters(path)


def test_sharing_helps_every_virtual_cluster_of_a_real_trace(shared_data: Path) -> None:
    jobs, seconds = read_jobs(shared_data / "philly" / "jobs.parquet")
    jobs, seconds = jobs[:8_000], seconds[:8_000]
    sizes: dict[str, int] = {}
    for found in jobs:
        sizes[found.home] = max(sizes.get(found.home, 16), 2 * found.gpus)
    clusters = [Cluster(name=name, gpus=gpus) for name, gpus in sizes.items()]
    alone, shared = (simulate(jobs, seconds, clusters, POLICIES[p]).to_json() for p in ("static-easy", "prism"))
    assert shared["mean_queue_s"] < 0.4 * alone["mean_queue_s"]


def test_a_value_that_is_no_number_is_named(tmp_path: Path) -> None:
    path = tmp_path / "jobs.csv"
    path.write_text("time,seconds,gpus,cluster\n1,5,2,a\n2,abc,2,a\n")
    with pytest.raises(InputError, match=r"row 2: 'seconds' is \"abc\""):
        read_jobs(path)
