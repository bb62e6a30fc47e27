"""Job tables with columns as schedulers and public releases write them; three jobs each, of 8, 16 and 1 GPUs where GPUs are told.

Each function gives a file's name and text. The jobs are the same in all: begun 2024-04-01 to 2024-04-20, one of them failed.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime

Table = tuple[str, str]
GPUS = (8, 16, 1)
SUBMIT = (1_711_929_600, 1_712_361_600, 1_713_571_200)  # 2024-04-01, 2024-04-06, 2024-04-20, all at 00:00 UTC
START = tuple(t + 600 for t in SUBMIT)
END = (START[0] + 7200, START[1] + 3600, START[2] + 5400)
GPU_HOURS = sum(g * (e - s) for g, s, e in zip(GPUS, START, END, strict=True)) / 3600
USERS = ("ada", "bob", "ada")


def say(moment: int, form: str = "%Y-%m-%d %H:%M:%S") -> str:
    return datetime.fromtimestamp(moment, UTC).strftime(form)


def csv(name: str, head: str, row: Callable[[int], tuple[object, ...]], mark: str = ",") -> Table:
    lines = [mark.join(head.split(",")), *(mark.join(map(str, row(i))) for i in range(3))]
    return name, "\n".join(lines) + "\n"


def moments(i: int, form: str = "%Y-%m-%d %H:%M:%S") -> tuple[str, str, str]:
    return say(SUBMIT[i], form), say(START[i], form), say(END[i], form)


def job(i: int, states: tuple[str, str, str]) -> str:
    return states[i]


STATES = ("COMPLETED", "FAILED", "CANCELLED")
ISO = "%Y-%m-%dT%H:%M:%SZ"


def pod(gpus: int) -> dict[str, object]:
    return {"spec": {"containers": [{"resources": {"limits": {"nvidia.com/gpu": str(gpus)}}}]}}


def kube(
    kind: str, api: str, spec: Callable[[int], dict[str, object]], status: Callable[[int], dict[str, object]]
) -> str:
    items = [
        {
            "apiVersion": api,
            "kind": kind,
            "metadata": {
                "name": f"j{i}",
                "namespace": USERS[i],
                "uid": str(i),
                "creationTimestamp": say(SUBMIT[i], ISO),
            },
            "spec": spec(i),
            "status": status(i),
        }
        for i in range(3)
    ]
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": items})


def operator_status(i: int) -> dict[str, object]:
    kinds = ("Succeeded", "Failed", "Succeeded")
    return {
        "startTime": say(START[i], ISO),
        "completionTime": say(END[i], ISO),
        "conditions": [
            {"type": "Running", "status": "False"},
            {"type": kinds[i], "status": "True", "lastTransitionTime": say(END[i], ISO), "reason": "x"},
        ],
    }


def number(value: int) -> dict[str, object]:
    return {"set": True, "infinite": False, "number": value}


def squeue(i: int) -> dict[str, object]:
    return {
        "job_id": i,
        "user_name": USERS[i],
        "job_state": [STATES[i]],
        "submit_time": number(SUBMIT[i]),
        "start_time": number(START[i]),
        "end_time": number(END[i]),
        "eligible_time": number(SUBMIT[i]),
        "time_limit": number(600),
        "tres_alloc_str": f"cpu=8,mem=100G,node=1,gres/gpu={GPUS[i]}",
        "tres_req_str": "cpu=8",
        "nodes": "n[1-2]",
        "state_reason": "None",
        "node_count": number(1),
    }


def sacct(i: int) -> dict[str, object]:
    return {
        "job_id": i,
        "user": USERS[i],
        "state": {"current": [STATES[i]], "reason": "None"},
        "time": {"submission": SUBMIT[i], "start": START[i], "end": END[i], "elapsed": END[i] - START[i]},
        "tres": {
            "allocated": [{"type": "cpu", "name": "", "count": 8}, {"type": "gres", "name": "gpu", "count": GPUS[i]}]
        },
        "nodes": "n1",
    }


def pbs_line(i: int) -> str:
    keys = {
        "user": USERS[i],
        "group": "g",
        "queue": "gpuq",
        "ctime": SUBMIT[i],
        "qtime": SUBMIT[i],
        "etime": SUBMIT[i],
        "start": START[i],
        "exec_host": "n1/0*8+n2/0*8",
        "Resource_List.ncpus": 16,
        "Resource_List.select": f"{max(1, GPUS[i] // 8)}:ncpus=8:ngpus={min(8, GPUS[i])}",
        "Resource_List.walltime": "24:00:00",
        "session": 1,
        "end": END[i],
        "Exit_status": int(i == 1),
        "resources_used.walltime": "02:00:00",
    }
    return f"{say(END[i], '%m/%d/%Y %H:%M:%S')};E;{i}.server;" + " ".join(f"{k}={v}" for k, v in keys.items())


def torque_line(i: int) -> str:
    return (
        pbs_line(i)
        .replace("Resource_List.select", "Resource_List.neednodes")
        .replace(":ngpus=", ":gpus=")
        .replace("Resource_List.neednodes", "Resource_List.nodes")
    )


TABLES: dict[str, Table] = {
    "PM100": csv("pm100.csv", "job_id,run_time,submit_time,eligible_time,start_time,end_time,job_state,num_nodes_req,num_nodes_alloc,num_cores_alloc,num_gpus_req,num_gpus_alloc,mem_alloc,user_id,group_id,qos,partition,time_limit,priority,shared,nodes", lambda i: (i, END[i] - START[i], *(f"{say(t)}+00:00" for t in (SUBMIT[i], SUBMIT[i], START[i], END[i])), STATES[i], 4, 4, 128, 99, GPUS[i], 900, i, 1, 1, 0, 1440, 100, "OK", "'[1; 2]'")),
    "NREL Eagle": csv("eagle.csv", "job_id,user,account,partition,qos,wallclock_req,nodes_req,processors_req,gpus_req,mem_req,submit_time,start_time,end_time,run_time,name,state", lambda i: (i, USERS[i], "a", "gpu", "n", 86400, 1, 8, GPUS[i], "1G", *moments(i), END[i] - START[i], "x", STATES[i])),
    "OpenPAI": ("pai.json", json.dumps([{"name": f"j{i}", "username": USERS[i], "state": ("SUCCEEDED", "FAILED", "STOPPED")[i], "subState": "x", "executionType": "START", "retries": 0, "createdTime": SUBMIT[i] * 1000, "submissionTime": SUBMIT[i] * 1000, "launchedTime": START[i] * 1000, "completedTime": END[i] * 1000, "appExitCode": 0, "virtualCluster": "default", "totalGpuNumber": GPUS[i], "totalTaskNumber": 2, "totalTaskRoleNumber": 1} for i in range(3)])),
    "Run:ai CLI": csv("runai.csv", "Workload,Type,Status,Project,Department,Created by,Running/requested pods,Creation time,Start time,Completion time,GPU compute request,GPU compute allocation,GPU memory request", lambda i: (f"j{i}", "Training", ("Completed", "Failed", "Stopped")[i], "p", "d", USERS[i], "1/1", *moments(i), GPUS[i], GPUS[i], "")),
    "Run:ai API": ("runai.json", json.dumps({"next": 0, "workloads": [{"type": "Training", "name": f"j{i}", "id": str(i), "phase": ("Completed", "Failed", "Stopped")[i], "submittedBy": USERS[i], "createdAt": say(SUBMIT[i], ISO), "startedAt": say(START[i], ISO), "completedAt": say(END[i], ISO), "allocatedResources": {"gpu": GPUS[i], "gpuMemory": "0"}} for i in range(3)]})),
    "PyTorchJob": ("ptj.json", kube("PyTorchJob", "kubeflow.org/v1", lambda i: {"pytorchReplicaSpecs": {"Master": {"replicas": 1, "template": pod(min(8, GPUS[i]))}, **({"Worker": {"replicas": 1, "template": pod(8)}} if GPUS[i] == 16 else {})}}, operator_status)),
    "MPIJob": ("mpi.json", kube("MPIJob", "kubeflow.org/v2beta1", lambda i: {"mpiReplicaSpecs": {"Launcher": {"replicas": 1, "template": {"spec": {"containers": [{}]}}}, "Worker": {"replicas": max(1, GPUS[i] // 8), "template": pod(min(8, GPUS[i]))}}}, operator_status)),
    "RayJob": ("ray.json", kube("RayJob", "ray.io/v1", lambda i: {"rayClusterSpec": {"headGroupSpec": {"template": {"spec": {"containers": [{}]}}}, "workerGroupSpecs": [{"replicas": max(1, GPUS[i] // 8), "template": pod(min(8, GPUS[i]))}]}}, lambda i: {"jobStatus": ("SUCCEEDED", "FAILED", "STOPPED")[i], "startTime": say(START[i], ISO), "endTime": say(END[i], ISO)})),
    "Volcano": ("vcjob.json", kube("Job", "batch.volcano.sh/v1alpha1", lambda i: {"queue": "q", "tasks": [{"replicas": max(1, GPUS[i] // 8), "template": pod(min(8, GPUS[i]))}]}, lambda i: {"state": {"phase": ("Completed", "Failed", "Aborted")[i], "lastTransitionTime": say(END[i], ISO)}, "conditions": [{"status": "Pending", "lastTransitionTime": say(SUBMIT[i], ISO)}, {"status": "Running", "lastTransitionTime": say(START[i], ISO)}]})),
    "JobSet": ("jobset.json", kube("JobSet", "jobset.x-k8s.io/v1alpha2", lambda i: {"replicatedJobs": [{"name": "w", "replicas": 1, "template": {"spec": {"parallelism": max(1, GPUS[i] // 8), "template": pod(min(8, GPUS[i]))}}}]}, lambda i: {**operator_status(i), "conditions": [{"type": ("Completed", "Failed", "Completed")[i], "status": "True", "lastTransitionTime": say(END[i], ISO)}]})),
    "squeue --json": ("squeue.json", json.dumps({"meta": {}, "jobs": [squeue(i) for i in range(3)], "errors": []})),
    "sacct --json": ("sacct.json", json.dumps({"meta": {}, "jobs": [sacct(i) for i in range(3)]})),
    "sacct -P": csv("sacct.txt", "JobID,User,State,AllocTRES,Submit,Start,End,Elapsed,NodeList", lambda i: (i, USERS[i], STATES[i], f"billing=8;cpu=8;gres/gpu={GPUS[i]}".replace(";", ","), *moments(i, "%Y-%m-%dT%H:%M:%S"), "02:00:00" if i == 0 else "01:00:00" if i == 1 else "01:30:00", "n1"), mark="|"),
    "slurmdbd's job table": csv("job_table.tsv", "job_db_inx,mod_time,account,exit_code,job_name,id_array_job,id_job,id_user,nodelist,nodes_alloc,partition,state,timelimit,time_submit,time_eligible,time_start,time_end,tres_alloc,tres_req", lambda i: (i, END[i], "a", 0, "x", 0, i, i, "n1", 1, "gpu", (3, 5, 4)[i], 600, SUBMIT[i], SUBMIT[i], START[i], END[i], f"1=32,2=257000,4=1,5=32,1001={GPUS[i]}", "1=32"), mark="\t"),
    "MIT Supercloud": csv("slurm-log.csv", "id_job,id_array_job,id_user,kill_requid,nodes_alloc,nodelist,cpus_req,derived_ec,exit_code,gres_used,mem_req,partition,priority,state,timelimit,time_submit,time_eligible,time_start,time_end,time_suspended,tres_alloc,tres_req,job_type", lambda i: (i, 0, i, 0, 1, "n1", 8, 0, 0, f"gpu:volta:{GPUS[i]}", 1, "g", 1, (3, 5, 4)[i], 600, SUBMIT[i], SUBMIT[i], START[i], END[i], 0, f'"1=8,4=1,1001={GPUS[i]},1002={GPUS[i]}"', '"1=8"', "OTHER")),
    "PBS accounting": ("20240420", "\n".join(f"{pbs_line(i).split(';')[0]};S;{i}.server;user=ada\n{pbs_line(i)}" for i in range(3)) + "\n"),
    "Torque accounting": ("20240421", "\n".join(torque_line(i) for i in range(3)) + "\n"),
    "qstat -f -F json": ("qstat.json", json.dumps({"timestamp": 1, "pbs_version": "2022", "Jobs": {f"{i}.s": {"Job_Name": "x", "Job_Owner": USERS[i], "job_state": "F", "ctime": say(SUBMIT[i], "%a %b %d %H:%M:%S %Y"), "stime": say(START[i], "%a %b %d %H:%M:%S %Y"), "obittime": say(END[i], "%a %b %d %H:%M:%S %Y"), "Resource_List": {"ngpus": GPUS[i], "ncpus": 8}, "resources_used": {"walltime": "02:00:00"}} for i in range(3)}})),
    "LSF bjobs -json": ("bjobs.json", json.dumps({"COMMAND": "bjobs", "JOBS": 3, "RECORDS": [{"JOBID": str(i), "USER": USERS[i], "STAT": ("DONE", "EXIT", "EXIT")[i], "QUEUE": "gpu", "SUBMIT_TIME": say(SUBMIT[i], "%b %d %H:%M:%S %Y"), "START_TIME": say(START[i], "%b %d %H:%M:%S %Y"), "FINISH_TIME": say(END[i], "%b %d %H:%M:%S %Y") + " L", "GPU_NUM": str(GPUS[i]), "RUN_TIME": "1 second(s)", "EXEC_HOST": "n1"} for i in range(3)]})),
    "LSF CSV of epochs": csv("lsf.csv", "JOBID,USER,STAT,QUEUE,EXEC_HOST,SUBMIT_TIME,START_TIME,FINISH_TIME,NGPUS", lambda i: (i, USERS[i], ("DONE", "EXIT", "EXIT")[i], "gpu", "n1", SUBMIT[i], START[i], END[i], GPUS[i])),
    "HTCondor": ("condor.json", json.dumps([{"ClusterId": i, "ProcId": 0, "Owner": USERS[i], "RequestGpus": GPUS[i], "JobStatus": (4, 3, 3)[i], "QDate": SUBMIT[i], "JobStartDate": START[i], "CompletionDate": END[i], "RemoteWallClockTime": 1.0, "ExitCode": 0} for i in range(3)])),
    "Determined": csv("det.csv", "experiment_id,kind,username,labels,slots,start_time,end_time,seconds", lambda i: (i, "allocation", USERS[i], "", GPUS[i], say(START[i], ISO), say(END[i], ISO), END[i] - START[i])),
    "SkyPilot": csv("sky.csv", "ID,NAME,USER,RESOURCES,SUBMITTED_AT,START_AT,END_AT,STATUS,GPUS", lambda i: (i, "x", USERS[i], "1x[H100:8]", SUBMIT[i], START[i], END[i], ("SUCCEEDED", "FAILED", "CANCELLED")[i], f"{max(1, GPUS[i] // 8)}x[H100:{min(8, GPUS[i])}]")),
    "Open XDMoD": csv("xdmod.csv", "Local Job ID,Username,GPU Count,Node Count,Submit Time,Start Time,End Time,Wall Time,Exit State", lambda i: (i, USERS[i], GPUS[i], 1, *moments(i), END[i] - START[i], STATES[i])),
    "a spreadsheet, day first": csv("jobs_de.csv", "Job ID;User;GPUs;Status;Submitted;Started;Finished".replace(";", ","), lambda i: (i, USERS[i], GPUS[i], STATES[i], *moments(i, "%d.%m.%Y %H:%M:%S")), mark=";"),
    "a spreadsheet, month first": csv("jobs_us.csv", "job,user,gpu count,status,submit date,start date,end date", lambda i: (i, USERS[i], GPUS[i], STATES[i], *moments(i, "%m/%d/%Y %I:%M:%S %p"))),
    "camel case": ("api.json", json.dumps({"total": 3, "data": [{"jobId": i, "userName": USERS[i], "jobStatus": STATES[i], "acceleratorCount": GPUS[i], "queuedAt": say(SUBMIT[i], ISO), "startedAt": say(START[i], ISO), "finishedAt": say(END[i], ISO), "gpuType": "H100"} for i in range(3)]})),
    "Flux": ("flux.json", json.dumps({"jobs": [{"id": i, "userid": i, "username": USERS[i], "ntasks": 1, "nnodes": 1, "t_submit": float(SUBMIT[i]), "t_run": float(START[i]), "t_inactive": float(END[i]), "state": "INACTIVE", "result": STATES[i], "ranks": "0", "runtime": 1.0} for i in range(3)]})),
    "F-DATA (Fugaku)": csv("fugaku.csv", "jid,usr,jnam,cnumr,cnumat,nnumr,adt,qdt,schedsdt,sdt,edt,elp,exit state", lambda i: (i, USERS[i], "x", 48, 48, 1, *moments(i), say(START[i]), say(END[i]), 1, STATES[i])),
    "SageMaker": ("sagemaker.json", json.dumps({"TrainingJobSummaries": [{"TrainingJobName": f"j{i}", "CreationTime": SUBMIT[i], "TrainingEndTime": END[i], "LastModifiedTime": END[i], "TrainingJobStatus": "Completed"} for i in range(3)]})),
}  # fmt: skip
ASKS = ("Flux", "F-DATA (Fugaku)", "SageMaker")
"""Tables that do not tell GPUs: the answer is a question."""
