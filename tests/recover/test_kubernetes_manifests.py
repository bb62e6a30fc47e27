"""What an attempt adds to a user's manifest, and what of the user's stays."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import yaml

from prism.errors import BadConfigError, PrismError
from prism.recover.supervise.launchers.kubernetes.additions import Additions, override_pods, prepare
from prism.recover.supervise.launchers.kubernetes.manifest import pod_templates, read_manifest
from prism.recover.supervise.launchers.kubernetes.placement import avoid

EXAMPLES = Path(__file__).parents[2] / "examples" / "recover" / "kubernetes"
MORE = Additions(run="r1", attempt=3, variables={"PRISM_ATTEMPT": "3"}, config_map="llm-7b-prism", grace_s=60.0)


def of(name: str):
    return read_manifest(EXAMPLES / name, "training")


def pods_of(body: dict) -> list[dict]:
    return [template["spec"] for template in pod_templates(body)]


def environment(container: dict) -> dict[str, str]:
    return {e["name"]: e.get("value") or e["valueFrom"]["fieldRef"]["fieldPath"] for e in container["env"]}


def write(tmp_path: Path, document: object) -> Path:
    path = tmp_path / "job.yaml"
    path.write_text(document if isinstance(document, str) else yaml.safe_dump(document))
    return path


@pytest.mark.parametrize(
    ("name", "kind", "pods"),
    [("jobset.yaml", "JobSet", 2), ("indexed_job.yaml", "Job", 2), ("trainjob.yaml", "TrainJob", None)],
)
def test_the_shipped_examples_are_read(name: str, kind: str, pods: int | None):
    found = of(name)
    assert (found.kind, found.name, found.namespace, found.num_pods) == (kind, "llm-7b", "training", pods)


@pytest.mark.parametrize("name", ["jobset.yaml", "indexed_job.yaml"])
def test_pods_get_marks_orders_and_a_hook_and_keep_what_the_user_wrote(name: str):
    before = of(name)
    kept = copy.deepcopy(before.document)
    body = prepare(before, MORE)
    assert before.document == kept
    assert body["metadata"]["labels"] == {"prism-run": "r1", "prism-attempt": "3"}
    for template in pod_templates(body):
        assert template["metadata"]["labels"]["prism-attempt"] == "3"
        (container,) = template["spec"]["containers"]
        assert container["command"] == ["torchrun", "--nproc-per-node", "8", "/app/train.py"]
        assert container["lifecycle"]["preStop"]["exec"]["command"] == ["python3", "-S", "/prism/node.py", "leave"]
        told = environment(container)
        assert told["PRISM_ATTEMPT"] == "3" and told["PRISM_HOST"] == "spec.nodeName"
        assert told["PET_NNODES"] == "2" and "job-completion-index" in told["PET_NODE_RANK"]


def test_a_grace_period_of_the_user_is_kept_and_a_missing_one_lasts_for_the_save():
    assert pods_of(prepare(of("jobset.yaml"), MORE))[0]["terminationGracePeriodSeconds"] == 120
    assert pods_of(prepare(of("indexed_job.yaml"), MORE))[0]["terminationGracePeriodSeconds"] == 65


def test_the_first_pod_is_found_by_its_name_in_the_clusters_dns():
    jobset = environment(pods_of(prepare(of("jobset.yaml"), MORE))[0]["containers"][0])
    assert jobset["PET_MASTER_ADDR"] == "llm-7b-workers-0-0.llm-7b"
    job = environment(pods_of(prepare(of("indexed_job.yaml"), MORE))[0]["containers"][0])
    assert job["MASTER_ADDR"] == "llm-7b-0.llm-7b"


def test_every_restart_is_the_supervisors_unless_kubernetes_is_to_replace_pods():
    body = prepare(of("jobset.yaml"), MORE)
    job = body["spec"]["replicatedJobs"][0]["template"]["spec"]
    assert job["backoffLimit"] == 0 and job["template"]["spec"]["restartPolicy"] == "Never"
    assert body["spec"]["failurePolicy"] == {"maxRestarts": 0}
    left = prepare(of("jobset.yaml"), Additions(run="r", attempt=1, replace_pods=True))
    assert left["spec"]["replicatedJobs"][0]["template"]["spec"]["backoffLimit"] > 0
    assert "failurePolicy" not in left["spec"]


def test_a_hook_of_the_user_is_kept(tmp_path: Path):
    document = yaml.safe_load((EXAMPLES / "indexed_job.yaml").read_text())
    own = {"exec": {"command": ["save-now"]}}
    document["spec"]["template"]["spec"]["containers"][0]["lifecycle"] = {"preStop": own}
    body = prepare(read_manifest(write(tmp_path, document), "x"), MORE)
    assert pods_of(body)[0]["containers"][0]["lifecycle"]["preStop"] == own


def test_variables_of_the_user_are_kept_and_a_command_replaces_the_containers(tmp_path: Path):
    document = yaml.safe_load((EXAMPLES / "indexed_job.yaml").read_text())
    container = document["spec"]["template"]["spec"]["containers"][0]
    container |= {"env": [{"name": "MASTER_ADDR", "value": "mine"}], "args": ["--old"]}
    body = prepare(
        read_manifest(write(tmp_path, document), "x"),
        Additions(run="r", attempt=1, command=("python", "x.py"), variables={"A": "1"}),
    )
    (found,) = pods_of(body)[0]["containers"]
    assert (
        environment(found)["MASTER_ADDR"] == "mine" and found["command"] == ["python", "x.py"] and "args" not in found
    )


def test_every_term_of_an_affinity_leaves_the_suspects_out():
    terms = [{"matchExpressions": [{"key": "gpu", "operator": "In", "values": ["h100"]}]}, {"matchFields": []}]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    found = avoid({"nodeAffinity": required, "podAffinity": {"x": 1}}, (), ("n1", "n2"))
    new = found["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert len(new) == 2 and found["podAffinity"] == {"x": 1}
    for term in new:
        assert [f["values"] for f in term["matchFields"]] == [["n1"], ["n2"]]
    assert new[0]["matchExpressions"] == terms[0]["matchExpressions"]
    assert avoid({}, (), ()) == {}


def test_named_hosts_are_the_only_ones_used():
    found = avoid({}, ("a", "b", "c"), ("b",))
    terms = found["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert [[(f["operator"], f["values"][0]) for f in t["matchFields"]] for t in terms] == [
        [("NotIn", "b"), ("In", "a")],
        [("NotIn", "b"), ("In", "c")],
    ]


def test_a_train_job_avoids_nodes_by_a_patch_or_in_older_clusters_by_an_override():
    body = prepare(of("trainjob.yaml"), Additions(run="r", attempt=2, excluded=("n1",), variables={"A": "1"}))
    assert {"name": "A", "value": "1"} in body["spec"]["trainer"]["env"]
    (patch,) = body["spec"]["runtimePatches"]
    (job,) = patch["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]
    affinity = job["template"]["spec"]["template"]["spec"]["affinity"]
    older = override_pods(body)
    assert "runtimePatches" not in older["spec"]
    assert older["spec"]["podTemplateOverrides"] == [{"targetJobs": [{"name": "node"}], "spec": {"affinity": affinity}}]


def test_a_finished_workload_stays_long_enough_for_a_supervisor_to_come_back(tmp_path: Path):
    document = yaml.safe_load((EXAMPLES / "indexed_job.yaml").read_text())
    document["spec"]["ttlSecondsAfterFinished"] = 60
    assert prepare(read_manifest(write(tmp_path, document), "x"), MORE)["spec"]["ttlSecondsAfterFinished"] == 86_400


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ("a: [", "not YAML"),
        ("", "0 documents"),
        ("kind: Job\n---\nkind: Service\n", "2 documents"),
        ({"apiVersion": "apps/v1", "kind": "Deployment"}, "not supported"),
        ({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"generateName": "x-"}}, "metadata.name"),
        ({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "x"}, "spec": {"parallelism": 2}}, "Indexed"),
        ({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "x"}, "spec": {}}, "pod template"),
        (
            {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": {"name": "x"}, "spec": {}},
            "containers",
        ),
    ],
)
def test_a_manifest_that_cannot_be_supervised_is_refused_with_its_file(tmp_path: Path, document: object, said: str):
    path = write(tmp_path, document)
    with pytest.raises(PrismError, match=said) as error:
        read_manifest(path, "x")
    assert str(path) in str(error.value)


def test_a_container_that_is_not_there_is_named():
    with pytest.raises(BadConfigError, match="no container 'other'"):
        prepare(of("jobset.yaml"), Additions(run="r", attempt=1, container="other"))
