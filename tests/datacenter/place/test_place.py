"""Jobs on shared clusters: laws of queues, what each policy may and may not do, and the command's contract."""

from __future__ import annotations

import gzip
import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from prism.cli.main import app
from prism.datacenter.place import (
    POLICIES,
    Cluster,
    ClusterBack,
    ClusterLost,
    Finished,
    Job,
    Move,
    Scheduler,
    Submitted,
    compare,
    read_clusters,
    read_jobs,
    simulate,
)
from prism.datacenter.place.choices import consider
from prism.errors import InputError


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
    count, servers, rate, service = 20_000, 4, 0.5, 4.0
    at = np.cumsum(rng.exponential(1 / rate, count))
    jobs = [job(str(i), float(t)) for i, t in enumerate(at)]
    found = simulate(
        jobs, rng.exponential(service, count).tolist(), [Cluster(name="a", gpus=servers)], POLICIES["static"]
    )
    assert np.mean(found.queue_s) == pytest.approx(erlang_wait(rate, service, servers), rel=0.1)


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


def test_an_end_that_is_reported_twice_changes_nothing() -> None:
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
    with pytest.raises(InputError, match=r"line 3: 'seconds' is 'abc'"):
        read_jobs(path)


def test_the_wait_of_every_job_is_that_of_the_exact_recursion() -> None:
    rng = np.random.default_rng(2)
    at, service = np.cumsum(rng.exponential(1.0, 3_000)), rng.lognormal(0.6, 1.0, 3_000)
    free = [0.0] * 4
    waits = []
    for arrival, length in zip(at.tolist(), service.tolist(), strict=True):
        start = max(arrival, min(free))
        waits.append(start - arrival)
        free[free.index(min(free))] = start + length
    jobs = [job(str(i), t) for i, t in enumerate(at.tolist())]
    found = simulate(jobs, service.tolist(), [Cluster(name="a", gpus=4)], POLICIES["static"])
    assert found.queue_s == pytest.approx(waits, abs=1e-6)


def test_a_job_in_one_leaf_waits_for_a_leaf_although_enough_gpus_are_free() -> None:
    scheduler = Scheduler([Cluster(name="a", gpus=16, leaf_gpus=8)], POLICIES["prism"])
    scheduler.handle(Submitted(job("spread", 0, 10), 0.0))  # one whole leaf and two GPUs of the other
    wide = Job(id="wide", submit_s=1.0, gpus=6, home="a", one_leaf=True)
    tight = Job(id="tight", submit_s=1.0, gpus=8, home="a", one_leaf=True)
    assert scheduler.handle(Submitted(tight, 1.0)) == []
    assert [s.job.id for s in scheduler.handle(Submitted(wide, 2.0))] == ["wide"]
    assert [s.job.id for s in scheduler.handle(Finished("spread", 9.0))][:1] == ["tight"]


def test_a_quota_holds_a_user_back_and_nobody_else() -> None:
    clusters = [Cluster(name="a", gpus=8, quotas=(("ann", 4),))]
    scheduler = Scheduler(clusters, POLICIES["prism"])
    ann = [Job(id=f"ann{i}", submit_s=0.0, gpus=4, home="a", user="ann") for i in range(2)]
    assert [s.job.id for s in scheduler.handle(Submitted(ann[0], 0.0))] == ["ann0"]
    assert scheduler.handle(Submitted(ann[1], 0.0)) == []
    bob = Job(id="bob", submit_s=1.0, gpus=4, home="a", user="bob")
    assert [s.job.id for s in scheduler.handle(Submitted(bob, 1.0))] == ["bob"]


def test_higher_priority_goes_first_and_a_deadline_that_nears_goes_earlier() -> None:
    scheduler = Scheduler([Cluster(name="a", gpus=1)], POLICIES["prism"])
    scheduler.handle(Submitted(job("runs", 0), 0.0))
    scheduler.handle(Submitted(job("plain", 1), 1.0))
    scheduler.handle(Submitted(Job(id="due", submit_s=2.0, gpus=1, home="a", deadline_s=100.0), 2.0))
    scheduler.handle(Submitted(Job(id="first", submit_s=3.0, gpus=1, home="a", priority=5), 3.0))
    order, running = [], "runs"
    for now in (10.0, 20.0, 30.0):
        (start,) = scheduler.handle(Finished(running, now))
        running = start.job.id
        order.append(running)
    assert order == ["first", "due", "plain"]


def test_data_that_would_travel_longer_than_the_wait_keeps_a_job_at_home() -> None:
    clusters = [Cluster(name="a", gpus=1, bytes_per_s=1e9), Cluster(name="b", gpus=1, bytes_per_s=1e9)]
    for size, expected in ((10**15, []), (10**9, ["b"])):
        scheduler = Scheduler(clusters, POLICIES["prism"])
        scheduler.handle(Submitted(job("runs", 0), 0.0))
        heavy = Job(id="heavy", submit_s=1.0, gpus=1, home="a", data_bytes=size, data_at="a")
        assert [s.cluster for s in scheduler.handle(Submitted(heavy, 1.0))] == expected


def test_a_job_goes_to_the_faster_kind_and_only_where_its_kind_is() -> None:
    clusters = [Cluster(name="old", gpus=8, kind="a100"), Cluster(name="new", gpus=8, kind="h100", speed=2.0)]
    scheduler = Scheduler(clusters, POLICIES["prism"])
    scheduler.handle(Submitted(Job(id="fill", submit_s=0.0, gpus=8, home="old"), 0.0))
    (start,) = scheduler.handle(Submitted(Job(id="any", submit_s=1.0, gpus=4, home="old"), 1.0))
    assert start.cluster == "new"
    assert scheduler.handle(Submitted(Job(id="old", submit_s=2.0, gpus=4, home="new", kind="a100"), 2.0)) == []
    with pytest.raises(InputError, match="kind 'b200', which no cluster has"):
        scheduler.handle(Submitted(Job(id="none", submit_s=3.0, gpus=1, home="old", kind="b200"), 3.0))
    best = consider(scheduler, Job(id="ask", submit_s=4.0, gpus=2, home="old"), 4.0)
    assert best[0].cluster == "new" and "twice" not in best[0].why and "2 times as fast" in best[0].why


def test_a_guest_that_may_be_moved_makes_room_only_where_that_pays() -> None:
    for restart_s, moved in ((60.0, True), (10.0**7, False)):
        clusters = [Cluster(name="a", gpus=4), Cluster(name="b", gpus=4), Cluster(name="c", gpus=4)]
        scheduler = Scheduler(clusters, POLICIES["prism"])
        scheduler.handle(Submitted(job("own", 0, 4, "a"), 0.0))
        scheduler.handle(Submitted(job("other", 0, 4, "c"), 0.0))
        guest = Job(id="guest", submit_s=1.0, gpus=4, home="a", preemptible=True, restart_s=restart_s)
        (start,) = scheduler.handle(Submitted(guest, 1.0))
        assert start.cluster == "b"
        scheduler.handle(Finished("other", 2.0))
        decided = scheduler.handle(Submitted(job("owner", 3, 4, "b"), 3.0))
        moves = [d for d in decided if isinstance(d, Move)]
        # The owner could also start on c at once: then nothing has to move.
        assert len(moves) == (1 if moved else 0)
        assert [d.job.id for d in decided if not isinstance(d, Move)] == ["owner"]


def test_a_cluster_that_vanishes_gets_nothing_and_its_users_go_elsewhere() -> None:
    scheduler = Scheduler([Cluster(name="a", gpus=4), Cluster(name="b", gpus=4)], POLICIES["prism"])
    scheduler.handle(ClusterLost("a", 0.0))
    (start,) = scheduler.handle(Submitted(job("1", 1, 4, "a"), 1.0))
    assert start.cluster == "b"
    assert scheduler.handle(Submitted(job("2", 2, 4, "a"), 2.0)) == []
    (back,) = scheduler.handle(ClusterBack("a", 3.0))
    assert back.cluster == "a"


def test_nobody_loses_where_nothing_is_shared_and_a_loser_is_named() -> None:
    clusters = [Cluster(name="a", gpus=1), Cluster(name="b", gpus=1)]
    jobs = [job("1", 0, 1, "a"), job("2", 1, 1, "a"), job("3", 2, 1, "b")]
    alone = simulate(jobs, [100.0] * 3, clusters, POLICIES["static-easy"])
    assert compare(alone, alone).slowdown_ratio == 1.0
    shared = compare(simulate(jobs, [100.0] * 3, clusters, POLICIES["multikueue-all"]), alone)
    assert shared.worst_cluster == "b" and shared.slowdown_ratio > 1.5 and shared.p99_worse == ("b",)


def test_what_sacct_prints_of_two_clusters_is_read(tmp_path: Path) -> None:
    head = "JobID|User|Submit|ElapsedRaw|AllocTRES|State\n"
    (tmp_path / "seren.txt").write_text(
        head + "1|ann|2026-01-01T00:00:00|60|billing=8,cpu=8,gres/gpu=8,node=1|COMPLETED\n"
        "1.batch||2026-01-01T00:00:00|60|cpu=8,gres/gpu=8|COMPLETED\n2|ann|2026-01-01T00:01:00|5|cpu=1,node=1|FAILED\n"
    )
    (tmp_path / "kalos.txt").write_text(
        head + "1|bob|2026-01-01T00:00:30|1-00:00:01|gres/gpu:h100=4,gres/gpu=4|TIMEOUT\n"
    )
    jobs, seconds = read_jobs(tmp_path / "seren.txt", tmp_path / "kalos.txt")
    assert [(j.id, j.home, j.user, j.gpus) for j in jobs] == [
        ("seren:1", "seren", "ann", 8),
        ("kalos:1", "kalos", "bob", 4),
    ]
    assert seconds == [60.0, 86_401.0]


@pytest.mark.parametrize(
    ("header", "row", "job"),
    [
        (
            "job_name,organization,gpu_model,cpu_request,gpu_request,worker_num,submit_time,duration,job_type",
            "j,o,A100,8,2,3,100,60,x",
            (6, 60.0, 100.0),
        ),
        ("num_gpu,submit_time,iterations,model_name,duration,interval", "4,5,100,vgg,77,0", (4, 77.0, 5.0)),
        (
            "job_id,user,gpu_num,vc,submit_time,start_time,end_time,state",
            "1,u,8,a,100,110,160,COMPLETED",
            (8, 50.0, 100.0),
        ),
    ],
    ids=["alibaba-2026", "tiresias", "helios"],
)
def test_public_tables_are_read_as_characterize_reads_them(
    tmp_path: Path, header: str, row: str, job: tuple[int, float, float]
) -> None:
    path = tmp_path / "a.csv"
    path.write_text(f"{header}\n{row}\n")
    jobs, seconds = read_jobs(path)
    assert (jobs[0].gpus, seconds[0], jobs[0].submit_s) == job


@pytest.mark.parametrize("name", ["jobs.csv", "jobs.parquet"])
def test_a_table_without_jobs_is_reported_in_one_line(tmp_path: Path, name: str) -> None:
    header = pl.DataFrame({column: [] for column in ("submit", "seconds", "gpus", "cluster")})
    header.write_csv(tmp_path / "jobs.csv")
    header.write_parquet(tmp_path / "jobs.parquet")
    with pytest.raises(InputError, match=f"{name}: has a header but no jobs"):
        read_jobs(tmp_path / name)


@given(st.data())
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_a_damaged_table_gives_jobs_or_one_clear_line(tmp_path: Path, data: st.DataObject) -> None:
    """As sacct writes it, with bytes changed, cut off or doubled."""
    whole = b"JobID|User|Submit|ElapsedRaw|AllocTRES|State|Cluster\n" + b"".join(
        b"%d|ann|2026-01-01T00:00:%02d|60|billing=8,gres/gpu=8,node=1|COMPLETED|a\n" % (n, n) for n in range(6)
    )
    at = data.draw(st.integers(0, len(whole) - 1))
    put = data.draw(st.binary(max_size=6))
    gone = data.draw(st.integers(0, 40))
    path = tmp_path / "jobs.txt"
    path.write_bytes(whole[:at] + put + whole[at + gone :])
    try:
        jobs, seconds = read_jobs(path, clusters=["a"])
    except InputError as error:
        assert str(path) in str(error) and "\n" not in str(error)
    else:
        assert len(jobs) == len(seconds) and all(job.gpus > 0 for job in jobs)


def test_a_jobs_own_cluster_is_one_of_those_named_and_not_its_partition_or_the_seconds_it_waited(
    tmp_path: Path,
) -> None:
    text = "submit,seconds,gpus,partition,queue\n0,10,1,batch,17\n5,10,2,long,0\n"
    for name in ("seren", "kalos", "other"):
        (tmp_path / f"{name}.csv").write_text(text)
    (tmp_path / "both.csv").write_text("submit,seconds,gpus,cluster,vc\n0,10,1,x,kalos\n5,10,2,y,seren\n")
    said: list[str] = []
    known = ["seren", "kalos"]
    paths = [tmp_path / "seren.csv", tmp_path / "kalos.csv"]
    assert (
        sorted(job.home for job in read_jobs(*paths, clusters=known, say=said.append)[0])
        == ["kalos"] * 2 + ["seren"] * 2
    )
    assert [job.home for job in read_jobs(tmp_path / "both.csv", clusters=known, say=said.append)[0]] == [
        "kalos",
        "seren",
    ]
    assert said == []
    read_jobs(tmp_path / "other.csv", clusters=known, say=said.append)
    assert len(said) == 1 and "no column names one of kalos, seren" in said[0]


def test_a_quota_above_its_cluster_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "clusters.yaml"
    path.write_text("- {name: a, gpus: 4, quotas: {ann: 5}}\n")
    with pytest.raises(InputError, match="quota of 'ann' on 'a' is 5 GPUs"):
        read_clusters(path)


@pytest.mark.parametrize("moment", ["{}", "2024-13-45", "[[[["])
def test_times_that_are_none_are_reported_in_one_line(tmp_path: Path, moment: str) -> None:
    path = tmp_path / "jobs.csv"
    path.write_text(f"submit,seconds,gpus,cluster\n{moment},10,8,a\n")
    with pytest.raises(InputError, match=r"jobs\.csv"):
        read_jobs(path)


def test_jobs_that_say_too_little_are_left_out_and_infinite_ones_refused(tmp_path: Path) -> None:
    path = tmp_path / "jobs.csv"
    for bad in ("2,inf,8,a", "3,10,inf,a"):
        path.write_text(f"submit,seconds,gpus,cluster\n1,10,8,a\n{bad}\n")
        with pytest.raises(InputError, match=r"jobs\.csv line 3: '\w+' is 'inf'"):
            read_jobs(path)
    path.write_text("submit,seconds,gpus,cluster\n1,10,8,a\nnan,10,8,a\n2,,8,a\n3,10,,a\n")
    said: list[str] = []
    assert [job.submit_s for job in read_jobs(path, say=said.append)[0]] == [1.0]
    assert said == [f"{path}: 3 of 4 jobs have no run time, GPUs or submission time and are left out"]
    (tmp_path / "clusters.yaml").write_text("a: .inf\n")
    with pytest.raises(InputError, match="expected a number from 1"):
        read_clusters(tmp_path / "clusters.yaml")


def test_guests_leave_free_what_a_cluster_keeps_for_its_own_users() -> None:
    clusters = [Cluster(name="big", gpus=4), Cluster(name="small", gpus=8, keep_gpus=4)]
    # Three jobs of the big cluster fill it and half of the small one; the owner of the small one finds its half free.
    jobs = [Job(id=str(i), submit_s=0.0, gpus=4, home="big") for i in range(3)]
    jobs.append(Job(id="own", submit_s=10.0, gpus=4, home="small"))
    for keep, owner_waits in ((4, 0.0), (0, 990.0)):
        kept = [clusters[0], replace(clusters[1], keep_gpus=keep)]
        found = simulate(jobs, [1_000.0] * 4, kept, POLICIES["prism"])
        assert found.queue_s[3] == pytest.approx(owner_waits)


def test_rows_that_share_an_id_are_jobs_of_their_own(tmp_path: Path) -> None:
    path = tmp_path / "jobs.csv"
    rows = ["1,0,3600,8,east", "2,600,3600,8,east", "2,1200,7200,8,east", "1,7200,3600,8,east"]
    path.write_text("\n".join(["job,submit,seconds,gpus,cluster", *rows]) + "\n")
    jobs, seconds = read_jobs(path)
    found = simulate(jobs, seconds, [Cluster(name="east", gpus=8)], POLICIES["static"])
    # One after the other: from 0, 3,600, 7,200 and 14,400 s on.
    assert found.queue_s == (0.0, 3_000.0, 6_000.0, 7_200.0)


def test_jobs_of_clusters_that_were_not_given_are_reported_and_policies_say_how_many_they_ran(tmp_path: Path) -> None:
    path = tmp_path / "jobs.csv"
    rows = [f"{i},{i},100,4,{'a' if i < 3 else f'vc{i}'}" for i in range(12)]
    path.write_text("\n".join(["job,submit,seconds,gpus,cluster", *rows]) + "\n")
    (tmp_path / "clusters.yaml").write_text("a: 4\n")
    words = ["place", "simulate", str(path), "--clusters", str(tmp_path / "clusters.yaml")]
    done = CliRunner().invoke(app, [*words, "--policy", "static", "--policy", "pooled"], env={"COLUMNS": "200"})
    assert "9 jobs belong to clusters that --clusters does not name: vc10, vc11, vc3, vc4, vc5, vc6 and 3 more" in (
        done.output
    )
    assert "static: 9 of 12 jobs fit nowhere" in done.output and "cannot be compared" in done.output
    assert [line.split("\t")[:2] for line in done.output.splitlines() if line.startswith(("static\t", "pooled\t"))] == [
        ["static", "3"],
        ["pooled", "12"],
    ]


def test_a_compressed_table_belongs_to_the_cluster_that_it_is_called_after(tmp_path: Path) -> None:
    path = tmp_path / "seren.csv.gz"
    path.write_bytes(gzip.compress(b"submit,seconds,gpus\n0,10,1\n"))
    said: list[str] = []
    assert [job.home for job in read_jobs(path, clusters=["seren"], say=said.append)[0]] == ["seren"] and not said


def test_a_folder_in_place_of_a_table_is_reported(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is a folder; give the file itself"):
        read_clusters(tmp_path)
