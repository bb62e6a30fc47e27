"""Jobs are handed to live clusters exactly once, and nothing is done where it is not known what is."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prism.datacenter.place import Cluster
from prism.datacenter.place.live.dispatcher import Dispatcher
from prism.datacenter.place.live.forms import find_job, list_jobs, read_manifest
from prism.datacenter.place.live.journal import DispatchJournal, Entry
from prism.datacenter.place.live.kueue import KueueCluster
from prism.datacenter.place.live.nominating import Nominator
from prism.datacenter.place.live.sites_file import read_live
from prism.datacenter.place.live.slurm import SlurmCluster, parse_length, read_script
from prism.datacenter.place.live.snapshot import Form, SeenJob, Snapshot, SubmitError, check
from prism.errors import InputError


class Killed(BaseException):
    """The dispatcher is gone, wherever it was."""


@dataclass
class FakeCluster:
    """A cluster in memory; `faults` says what goes wrong at each call, in order."""

    name: str
    faults: Iterator[str] = field(default_factory=lambda: iter(()))
    jobs: dict[str, str] = field(default_factory=dict)  # mark -> id
    submitted: list[str] = field(default_factory=list)
    free: int = 8
    settle_s: float = 0.0
    arrival_s: float = 0.0
    form: Form = "batch script"
    repeatable: bool = False

    def look(self) -> Snapshot:
        return Snapshot(cluster=self.name, gpus=8, free=self.free)

    def submit(self, script: str, mark: str) -> str:
        fault = next(self.faults, "")
        if fault == "down":
            raise SubmitError("Unable to contact")
        self.submitted.append(mark)
        self.jobs[mark] = str(len(self.submitted))
        if fault == "lost":
            raise SubmitError("the answer was lost")
        if fault == "killed":
            raise Killed
        return self.jobs[mark]

    def find(self, script: str, mark: str) -> str | None:
        fault = next(self.faults, "")
        if fault == "down":
            raise SubmitError("Unable to contact")
        if fault == "killed":
            raise Killed
        return self.jobs.get(mark)


def make_dispatcher(*clusters: FakeCluster, now: list[float] | None = None) -> Dispatcher:
    moment = now or [1_000.0]
    traits = {c.name: Cluster(name=c.name, gpus=8) for c in clusters}
    found = {c.name: c for c in clusters}
    return Dispatcher(clusters=found, traits=traits, sleep=lambda s: None, clock=lambda: moment[0])


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.sh"
    path.write_text("#!/bin/sh\n#SBATCH --gpus=4 --time=1:00:00\ntrain\n")
    return path


@settings(max_examples=60, deadline=None)
@given(faults=st.lists(st.sampled_from(["", "down", "lost", "killed"]), max_size=12))
def test_whatever_fails_and_whenever_it_is_killed_a_job_is_placed_once(
    faults: list[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("place")
    path = folder / "a.sh"
    path.write_text("#SBATCH --gpus=1\n")
    cluster = FakeCluster("east", iter(faults))
    placed = None
    for _ in range(20):
        try:
            with DispatchJournal(folder / "state") as journal:
                placed = make_dispatcher(cluster).place(find_job(path), journal)
        except Killed:
            continue
        if placed is not None:
            break
    assert placed is not None and len(cluster.submitted) == 1
    with DispatchJournal(folder / "state") as journal:
        assert make_dispatcher(cluster).place(find_job(path), journal) == placed
    assert len(cluster.submitted) == 1


def test_a_second_dispatcher_of_the_same_journal_is_refused(tmp_path: Path) -> None:
    with DispatchJournal(tmp_path), pytest.raises(InputError, match="another dispatcher"):
        DispatchJournal(tmp_path)


def test_what_a_cluster_may_have_forgotten_is_left_alone(tmp_path: Path, script: Path) -> None:
    cluster, now = FakeCluster("east"), [10_000.0]
    with DispatchJournal(tmp_path / "state") as journal:
        journal.write(Entry(mark=find_job(script).mark, state="intent", cluster="east", at_s=1.0))
        assert make_dispatcher(cluster, now=now).place(find_job(script), journal) is None
    assert cluster.submitted == []


def test_a_submission_that_may_still_be_on_its_way_is_not_made_again(tmp_path: Path, script: Path) -> None:
    """sbatch waits for a controller that is away, and goes on when the dispatcher that started it is killed."""
    cluster, now = FakeCluster("east", arrival_s=30.0), [100.0]
    dispatcher = make_dispatcher(cluster, now=now)
    with DispatchJournal(tmp_path / "state") as journal:
        journal.write(Entry(mark=find_job(script).mark, state="intent", cluster="east", at_s=90.0))
        assert dispatcher.place(find_job(script), journal) is None and cluster.submitted == []
        cluster.jobs[find_job(script).mark] = "7"  # the old sbatch gets through
        now[0] = 200.0
        placed = dispatcher.place(find_job(script), journal)
    assert placed is not None and placed.job == "7" and cluster.submitted == []


def test_a_cluster_that_is_back_does_earlier_calls_first(tmp_path: Path, script: Path) -> None:
    cluster, now = FakeCluster("east"), [100.0]
    dispatcher = make_dispatcher(cluster, now=now)
    dispatcher.sleep = lambda seconds: cluster.jobs.update({find_job(script).mark: "7"})
    with DispatchJournal(tmp_path / "state") as journal:
        journal.write(Entry(mark=find_job(script).mark, state="intent", cluster="east", at_s=90.0))
        placed = dispatcher.place(find_job(script), journal)
    assert placed is not None and placed.job == "7" and cluster.submitted == []


def test_a_line_that_a_crash_cut_off_is_dropped_and_a_strange_one_is_named(tmp_path: Path) -> None:
    with DispatchJournal(tmp_path) as journal:
        journal.write(Entry(mark="a", state="placed", cluster="east", job="1"))
    path = tmp_path / "placements.jsonl"
    path.write_text(path.read_text() + '{"mark": "b", "sta')
    with DispatchJournal(tmp_path) as journal:
        assert set(journal.entries) == {"a"}
        journal.write(Entry(mark="c", state="intent", cluster="east"))
    with DispatchJournal(tmp_path) as journal:
        assert set(journal.entries) == {"a", "c"}
    path.write_text("nonsense\n")
    with pytest.raises(InputError, match="line 1"):
        DispatchJournal(tmp_path)


def test_the_cluster_with_room_is_chosen_and_one_without_answers_is_left_out(script: Path) -> None:
    full, empty = FakeCluster("east", free=0), FakeCluster("west")
    asked = make_dispatcher(full, empty).ask(find_job(script), "east")
    assert [c.cluster for c in asked.choices] == ["west", "east"]
    assert asked.choices[0].start_s == 0 and asked.choices[0].finish_s == 3_600.0

    silent = FakeCluster("west")
    silent.look = lambda: Snapshot(cluster="west", error="did not answer")  # type: ignore[method-assign]
    asked = make_dispatcher(full, silent).ask(find_job(script))
    assert asked.choices[0].cluster == "east" and not asked.choices[1].fits
    assert asked.errors == {"west": "did not answer"}


def test_answers_that_contradict_each_other_are_no_answers() -> None:
    busy = (SeenJob(id="1", user="u", gpus=9, running=True),)
    assert "contradict" in check(Snapshot(cluster="a", gpus=8, free=0, jobs=busy)).error
    assert "contradict" in check(Snapshot(cluster="a", gpus=8, free=9)).error
    assert not check(Snapshot(cluster="a", gpus=8, free=8)).error


def test_what_slurm_prints_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = {
        "sinfo": "n1|mixed|gpu:h100:8(S:0-1)|16/112/0/128\nn1|mixed|gpu:h100:8|16/112/0/128\nn2|drained|gpu:8|0/0/128/128\n",
        "squeue": "17|RUNNING|ann|gres/gpu:4|1|32|1-02:00:00|UNLIMITED|(null)\n18|PENDING|bob|gres/gpu:h100:8|2|256|0:00|2:00:00|x|y\n",
    }
    monkeypatch.setattr(SlurmCluster, "_run", lambda self, *words: answers[words[0]])
    seen = SlurmCluster(name="a").look()
    assert (seen.gpus, seen.free) == (16, 4)
    assert [(j.gpus, j.running, j.elapsed_s, j.left_s) for j in seen.jobs] == [
        (4, True, 93_600.0, None),
        (16, False, 0.0, 7_200.0),
    ]
    answers["sinfo"] = "garbage\n"
    assert "not those of Slurm" in SlurmCluster(name="a").look().error


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("#SBATCH --gpus=8 --time=2:00:00", (8, 7_200.0)),
        ("#SBATCH -N 4 --gres=gpu:h100:8 -t 30", (32, 1_800.0)),
        ("#SBATCH --nodes=2\n#SBATCH --gpus-per-node=4", (8, None)),
        ("echo\n#SBATCH --gpus=8", (0, None)),
    ],
)
def test_a_script_says_what_it_needs(line: str, expected: tuple[int, float | None]) -> None:
    assert read_script(f"#!/bin/sh\n{line}\n", "gpu") == expected


def test_lengths_of_slurm_are_seconds() -> None:
    assert [parse_length(t) for t in ("1-01:00:00", "10:00", "UNLIMITED", "INVALID")] == [90_000.0, 600.0, None, None]


def test_what_kueue_records_is_read(tmp_path: Path) -> None:
    quota = {"flavors": [{"name": "h100", "resources": [{"name": "nvidia.com/gpu", "nominalQuota": "16"}]}]}
    used = [{"name": "h100", "resources": [{"name": "nvidia.com/gpu", "total": "8"}]}]
    queues = {"items": [{"spec": {"resourceGroups": [quota]}, "status": {"flavorsUsage": used}}]}
    pods = {"count": 2, "template": {"spec": {"containers": [{"resources": {"requests": {"nvidia.com/gpu": "4"}}}]}}}
    admitted = {"type": "Admitted", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    done = {"type": "Finished", "status": "True"}
    items = [
        {"metadata": {"name": n, "namespace": "team"}, "spec": {"podSets": [pods]}, "status": {"conditions": c}}
        for n, c in (("runs", [admitted]), ("waits", []), ("over", [admitted, done]))
    ]
    (tmp_path / "clusterqueues.json").write_text(json.dumps(queues))
    (tmp_path / "workloads.json").write_text(json.dumps({"items": items}))
    seen = KueueCluster(name="k", folder=str(tmp_path)).look()
    assert (seen.gpus, seen.free, seen.error) == (16, 8, "")
    assert [(j.id, j.gpus, j.running) for j in seen.jobs] == [("runs", 8, True), ("waits", 8, False)]
    (tmp_path / "workloads.json").write_text("{}")
    assert "not those of Kueue" in KueueCluster(name="k", folder=str(tmp_path)).look().error


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("clusters: 3", "expected `clusters:`"),
        ("clusters: [{name: a}]", "either `slurm:` or `kueue:`"),
        ("clusters: [{name: a, slurm: {unit: core}}]", "expected gpu, node or cpu"),
        ("clusters: [{name: a, slurm: {port: 3}}]", "expected only"),
        ("clusters: [{name: a, slurm: {}}, {name: a, slurm: {}}]", "named twice"),
    ],
)
def test_a_wrong_file_of_clusters_is_one_clear_line(tmp_path: Path, text: str, word: str) -> None:
    path = tmp_path / "live.yaml"
    path.write_text(text)
    with pytest.raises(InputError, match=word):
        read_live(path)


JOB = """\
apiVersion: batch/v1
kind: Job
metadata: {name: train}
spec:
  parallelism: 4
  activeDeadlineSeconds: 3600
  template:
    spec:
      initContainers: [{name: fetch, resources: {limits: {nvidia.com/gpu: 1}}}]
      containers:
        - {name: main, resources: {requests: {nvidia.com/gpu: 2}, limits: {nvidia.com/gpu: 2}}}
        - {name: logs}
"""
JOBSET = """\
apiVersion: jobset.x-k8s.io/v1alpha2
kind: JobSet
spec:
  replicatedJobs:
    - {name: workers, replicas: 3, template: {spec: {parallelism: 2, template: {spec: {containers: [
        {name: a, resources: {limits: {amd.com/gpu: "8"}}}]}}}}}
    - {name: driver, template: {spec: {template: {spec: {containers: [{name: a}]}}}}}
"""
TRAINJOB = """\
apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainJob
spec: {trainer: {numNodes: 5, resourcesPerNode: {limits: {nvidia.com/gpu: 4}}}}
"""


@pytest.mark.parametrize(("text", "expected"), [(JOB, (8, 3_600.0)), (JOBSET, (48, None)), (TRAINJOB, (20, None))])
def test_an_object_says_how_many_gpus_run_at_once(tmp_path: Path, text: str, expected: tuple[int, float]) -> None:
    path = tmp_path / "train.yaml"
    path.write_text(text)
    assert read_manifest(path) == expected


@pytest.mark.parametrize(
    "text", ["a: [", "kind: Job", f"{JOB}---\n{JOB}", JOB.replace("parallelism: 4", "parallelism: x")]
)
def test_what_is_no_object_is_one_clear_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "train.yaml"
    path.write_text(text)
    with pytest.raises(InputError, match=r"train\.yaml"):
        read_manifest(path)


def test_aliases_that_grow_without_end_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "train.yaml"
    levels = "".join(f"  l{i}: &l{i} [{', '.join([f'*l{i - 1}'] * 9)}]\n" for i in range(1, 12))
    path.write_text(f"apiVersion: v1\nkind: Job\nspec:\n  l0: &l0 [x]\n{levels}")
    with pytest.raises(InputError, match="more than"):
        read_manifest(path)


def test_a_script_and_an_object_of_one_name_are_one_job_that_either_kind_of_cluster_may_run(tmp_path: Path) -> None:
    (tmp_path / "train.yaml").write_text(JOB)
    (tmp_path / "train.sbatch").write_text("#!/bin/sh\n#SBATCH --gpus=8 --time=1:00:00\n")
    (tmp_path / "other.sh").write_text("#!/bin/sh\n#SBATCH --gpus=4\n")
    other, both = list_jobs(tmp_path)
    assert (other.name, other.manifest) == ("other", None)
    assert both == find_job(tmp_path / "train.sbatch") == find_job(tmp_path / "train.yaml")
    slurm, kueue = FakeCluster("slurm", free=0), FakeCluster("kueue", form="manifest")
    dispatcher = make_dispatcher(slurm, kueue)
    assert dispatcher.ask(both).choices[0].cluster == "kueue"
    assert "takes a manifest" in dispatcher.ask(other).errors["kueue"]
    with DispatchJournal(tmp_path / "state") as journal:
        placed = dispatcher.place(both, journal)
    assert placed is not None and kueue.submitted == [both.mark] and slurm.submitted == []
    (tmp_path / "train.sbatch").write_text("#!/bin/sh\n#SBATCH --gpus=4\n")
    with pytest.raises(InputError, match="asks for 4 GPUs"):
        dispatcher.ask(find_job(tmp_path / "train.yaml"))


def test_a_cluster_that_takes_a_name_once_is_handed_the_job_again_and_no_other_cluster_is(
    tmp_path: Path, script: Path
) -> None:
    cluster, other = FakeCluster("east", repeatable=True, arrival_s=60.0), FakeCluster("west")
    with DispatchJournal(tmp_path / "state") as journal:
        journal.write(Entry(mark=find_job(script).mark, state="intent", cluster="east", at_s=999.0))
        placed = make_dispatcher(cluster, other).place(find_job(script), journal)
    assert placed is not None and placed.cluster == "east" and other.submitted == []


@pytest.mark.parametrize("listed", [False, True])
def test_an_object_that_is_there_already_is_the_same_job_only_if_it_carries_the_mark(
    listed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What kubectl 1.32 said to an API server: a list where it was told to ignore what is not found."""
    path = tmp_path / "train.yaml"
    path.write_text(JOB)
    held: dict[str, object] = {}

    def kubectl(self: KueueCluster, *words: str, given: str = "", limited: bool = False) -> str:
        wanted = json.loads(given)
        if words[0] == "create" and held:
            raise SubmitError('kubectl: Error from server (AlreadyExists): jobs.batch "x" already exists', refused=True)
        if words[0] == "create":
            held.update(wanted)
        return json.dumps({"kind": "List", "items": [held]} if listed else held) if held else ""

    monkeypatch.setattr(KueueCluster, "kubectl", kubectl)
    cluster, mark = KueueCluster(name="k", queue="team"), find_job(path).mark
    assert cluster.find(str(path), mark) is None
    assert cluster.submit(str(path), mark) == cluster.submit(str(path), mark) == cluster.find(str(path), mark)
    assert held["metadata"]["labels"] == {"kueue.x-k8s.io/queue-name": "team"}  # type: ignore[index]
    held["metadata"]["annotations"] = {"prism.dev/mark": "another"}  # type: ignore[index]
    with pytest.raises(SubmitError, match="not of this job"):
        cluster.submit(str(path), mark)


def test_over_ssh_another_shell_reads_the_words_and_the_script_is_sent(
    script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stand-in for ssh that does as it does: its words are joined and given to a shell."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    stand_ins = {
        "ssh": 'shift; exec sh -c "$*"',
        "sinfo": """[ "$4" = '%N|%T|%G|%C' ] && echo 'n1|idle|gpu:8|0/8/0/8'""",
        "squeue": "[ $# = 6 ] || [ $# = 5 ] && true",
        "sacct": "exit 1",
        "sbatch": f'cat > {tmp_path}/got; for word; do echo "$word"; done > {tmp_path}/words; echo 17',
    }
    for name, text in stand_ins.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    cluster = SlurmCluster(name="far", prefix=(str(tmp_path / "ssh"), "login"))
    assert (cluster.look().gpus, cluster.look().error) == (8, "")
    assert cluster.submit(str(script), "a mark; with $(words)") == "17"
    assert (tmp_path / "got").read_text() == script.read_text()
    assert (tmp_path / "words").read_text().splitlines()[1:] == [
        "--comment=a mark; with $(words)",
        "--job-name=train.sh",
    ]


def test_a_job_that_its_cluster_forgot_is_reported_and_not_placed_again(tmp_path: Path, script: Path) -> None:
    cluster, silent = FakeCluster("east"), FakeCluster("east", iter(["down"]))
    with DispatchJournal(tmp_path / "state") as journal:
        dispatcher = make_dispatcher(cluster)
        placed = dispatcher.place(find_job(script), journal)
        assert dispatcher.find_missing([find_job(script)], journal) == []
        cluster.jobs.clear()  # its controller crashed before it had saved
        assert dispatcher.find_missing([find_job(script)], journal) == [placed]
        assert dispatcher.place(find_job(script), journal) == placed and len(cluster.submitted) == 1
        assert make_dispatcher(silent).find_missing([find_job(script)], journal) == []


def make_workload(name: str, **status: object) -> dict[str, object]:
    pods = {"count": 2, "template": {"spec": {"containers": [{"resources": {"requests": {"nvidia.com/gpu": "4"}}}]}}}
    reserved = {"type": "QuotaReserved", "status": "True"}
    whole = {"conditions": [reserved], "admissionChecks": [{"name": "workers", "state": "Pending"}], **status}
    meta = {"name": name, "namespace": "team", "resourceVersion": "7"}
    return {"metadata": meta, "spec": {"podSets": [pods]}, "status": whole}


def test_a_workload_of_multikueue_is_sent_to_the_best_worker_and_to_one_more_when_patience_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    items = [make_workload("fresh"), make_workload("taken", clusterName="east"), make_workload("queued", conditions=[])]
    said: list[tuple[str, ...]] = []
    monkeypatch.setattr(KueueCluster, "list_workloads", lambda self: items)
    monkeypatch.setattr(KueueCluster, "kubectl", lambda self, *words: said.append(words) or "")
    now = [1_000.0]
    workers = make_dispatcher(FakeCluster("east", free=0), FakeCluster("west"), now=now)
    nominator = Nominator(manager=KueueCluster(name="hub"), dispatcher=workers, patience_s=60.0)
    (found,) = nominator.decide()
    assert (found.workload, found.clusters) == ("fresh", ("west",)) and nominator.act(found)
    body = json.loads(said[0][-1])
    assert body == {"metadata": {"resourceVersion": "7"}, "status": {"nominatedClusterNames": ["west"]}}
    assert "--field-manager=kueue-admission" in said[0] and "--subresource=status" in said[0]
    items[0] = make_workload("fresh", nominatedClusterNames=["west"])
    assert nominator.decide() == []
    now[0] += 61.0
    assert [n.clusters for n in nominator.decide()] == [("west", "east")]


def test_a_workload_that_changed_meanwhile_is_looked_at_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def conflict(self: KueueCluster, *words: str) -> str:
        raise SubmitError("kubectl: Error from server (Conflict): the object has been modified")

    monkeypatch.setattr(KueueCluster, "list_workloads", lambda self: [make_workload("fresh")])
    monkeypatch.setattr(KueueCluster, "kubectl", conflict)
    nominator = Nominator(manager=KueueCluster(name="hub"), dispatcher=make_dispatcher(FakeCluster("east")))
    (found,) = nominator.decide()
    assert not nominator.act(found) and len(nominator.decide()) == 1
