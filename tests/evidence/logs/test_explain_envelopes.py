"""Logs as collectors write them: docker, CRI, journald, CloudWatch, Loki, Kubernetes, Slurm's daemons, JSON loggers."""

import bz2
import json
import lzma

import pytest

from prism.evidence.logs import diagnose, read_job, read_text

TRACE = 'Traceback (most recent call last):\n  File "train.py", line 3, in step\n    loss = f(batch["labels"])\nKeyError: \'labels\'\n'
PEERS = "RuntimeError: [gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.3]:2920\n"


def verdict_of(text):
    return diagnose(read_text(text)).verdict


def records(rows):
    return "".join(json.dumps(row) + "\n" for row in rows)


def steps(make, ranks=4):
    return [make(f"step {i} | loss: 2.0\n", r) for i in range(6) for r in range(ranks)]


def fails(make, ranks=4, bad=2):
    """A job of which rank `bad` raises and the others lose their peer."""
    rows = steps(make, ranks)
    for rank in [r for r in range(ranks) if r != bad] + [bad]:
        rows += [make(line + "\n", rank) for line in (TRACE if rank == bad else PEERS).splitlines()]
    return rows


def docker(line, rank):
    return {"log": f"[rank{rank}]: {line}", "stream": "stderr", "time": "2024-05-01T10:00:00.5Z"}


def fluent(line, rank):
    return {"log": line, "stream": "stderr", "kubernetes": {"pod_name": f"llm-{rank}", "host": f"gpu-{rank}"}}


def structured(line, rank):
    return {"level": "info", "message": line.rstrip(), "rank": rank, "hostname": f"gpu-{rank}", "error": None}


def loki(line, rank):
    return {"labels": {"pod": f"llm-{rank}"}, "line": line.rstrip(), "timestamp": "2024-05-01T10:00:00Z"}


def journal(line, rank):
    return {"MESSAGE": line.rstrip(), "_HOSTNAME": f"gpu-{rank}", "SYSLOG_IDENTIFIER": "python", "rank": rank,
            "__REALTIME_TIMESTAMP": "1714557600000000"}  # fmt: skip


@pytest.mark.parametrize("make", [docker, fluent, structured, loki, journal], ids=lambda f: f.__name__)
def test_reason_and_rank_are_read_out_of_json_records(make):
    verdict = verdict_of(records(fails(make)))
    assert (verdict.reason, verdict.first_rank) == ("KeyError", 2)
    assert verdict.evidence[0].text == "KeyError: 'labels'"


def test_a_traceback_in_one_record_is_as_good_as_one_in_many():
    rows = [structured(f"step {i} loss: 2.0", 1) for i in range(6)]
    for key in ("exc_info", "exception", "stack_trace", "traceback"):
        verdict = verdict_of(records([*rows, {**structured("crashed", 3), "level": "error", key: TRACE}]))
        assert (verdict.reason, verdict.first_rank) == ("KeyError", 3)
        assert verdict.evidence[0].line == 7
    whole = verdict_of(records([*rows, structured(TRACE, 3)]))
    assert (whole.reason, whole.first_rank) == ("KeyError", 3)
    parts = {"type": "KeyError", "message": "'labels'"}
    assert verdict_of(records([*rows, {**structured("crashed", 3), "error": parts}])).reason == "KeyError"


def test_fields_that_name_errors_but_hold_none_are_no_trouble():
    rows = [{**structured(f"step {i} | loss: 2.0", 0), "exception": None, "error": ""} for i in range(40)]
    verdict = verdict_of(records([*rows, structured("Training finished.", 0)]))
    assert verdict.reason == "none"


def test_a_structured_log_inside_docker_is_unwrapped_twice():
    rows = [
        {"log": json.dumps(structured(line, 3)) + "\n", "stream": "stdout", "time": "x"} for line in TRACE.splitlines()
    ]
    verdict = verdict_of(records(rows))
    assert (verdict.reason, verdict.first_rank) == ("KeyError", 3)


@pytest.mark.parametrize(
    "wrap",
    [
        lambda rows: {"events": [{"timestamp": 1714557600000 + n, "message": m, "logStreamName": f"llm-{r}"} for n, (m, r) in enumerate(rows)]},
        lambda rows: {"status": "success", "data": {"resultType": "streams", "result": [
            {"stream": {"pod": f"llm-{k}"}, "values": [[str(1714557600000000000 + n), m] for n, (m, r) in enumerate(rows) if r == k]} for k in range(4)]}},
        lambda rows: [{"line": m, "timestamp": "1714557600000000000", "labels": {"pod": f"llm-{r}"}} for m, r in rows],
        lambda rows: {"results": [[{"field": "@timestamp", "value": "2024-05-01 10:00:00.000"}, {"field": "@message", "value": m},
                                   {"field": "rank", "value": str(r)}] for m, r in rows]},
    ],
    ids=["cloudwatch", "loki", "grafana", "insights"],
)  # fmt: skip
@pytest.mark.parametrize("indent", [None, 2])
def test_exported_documents_are_read(wrap, indent):
    rows = fails(lambda line, rank: (line, rank))
    verdict = verdict_of(json.dumps(wrap(rows), indent=indent))
    assert (verdict.reason, verdict.first_rank) == ("KeyError", 2)


@pytest.mark.parametrize(
    "prefix",
    [
        "[pod/llm-{r}/trainer] ",
        "[pod/llm-worker-{r}/pytorch] 2024-05-01T10:00:00.123456789Z ",
        '2024-05-01T10:00:00Z {{app="llm", pod="llm-{r}"}} ',
        "2024-05-01T10:00:00.123456789Z stderr F [rank{r}]: ",
    ],
)
def test_prefixes_of_pods_and_of_the_container_runtime_tell_the_rank(prefix):
    rows = fails(lambda line, rank: prefix.format(r=rank) + line)
    verdict = verdict_of("".join(rows))
    assert (verdict.reason, verdict.first_rank) == ("KeyError", 2)


def test_where_a_master_has_rank_0_workers_count_from_1():
    name = {0: "llm-master-0", 1: "llm-worker-0", 2: "llm-worker-1", 3: "llm-worker-2"}
    rows = fails(lambda line, rank: f"[pod/{name[rank]}/pytorch] {line}")
    assert verdict_of("".join(rows)).first_rank == 2


def test_the_journal_says_who_wrote_a_record():
    xid = {"MESSAGE": "NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.", "_HOSTNAME": "gpu-7"}
    kernel = verdict_of(records([*steps(journal), {**xid, "_TRANSPORT": "kernel"}]))
    assert (kernel.action, kernel.hosts) == ("isolate_and_restart", ("gpu-7",))
    program = {**xid, "_TRANSPORT": "stdout", "SYSLOG_IDENTIFIER": "python"}
    assert verdict_of(records([*steps(journal), program, *steps(journal)])).hosts == ()
    numbers = {**xid, "_TRANSPORT": "kernel", "MESSAGE": list(xid["MESSAGE"].encode())}
    assert verdict_of(records([numbers])).hosts == ("gpu-7",)


def test_events_of_kubernetes_blame_a_node():
    event = {"kind": "Event", "type": "Normal", "reason": "NodeNotReady", "message": "Node gpu-7 status is now: NodeNotReady",
             "involvedObject": {"kind": "Node", "name": "gpu-7"}, "lastTimestamp": "2024-05-01T10:00:00Z"}  # fmt: skip
    document = json.dumps({"apiVersion": "v1", "kind": "List", "items": [event]}, indent=4)
    verdict = verdict_of(document)
    assert (verdict.reason, verdict.hosts) == ("NodeFailure", ("gpu-7",))


DESCRIBE = """Name:             llm-worker-3
Namespace:        train
Node:             gpu-7/10.0.0.7
Status:           Failed
Reason:           Evicted
Message:          The node was low on resource: memory. Threshold quantity: 100Mi, available: 52Mi.
Events:
  Type     Reason     Age   From               Message
  ----     ------     ----  ----               -------
  Warning  Evicted    3m    kubelet            The node was low on resource: memory.
  Normal   Killing    3m    kubelet            Stopping container trainer
"""
EVENTS = """LAST SEEN   TYPE      REASON         OBJECT             MESSAGE
3m          Normal    Scheduled      pod/llm-worker-3   Successfully assigned train/llm-worker-3 to gpu-7
2m          Warning   NodeNotReady   pod/llm-worker-3   Node is not ready
"""
SLURMCTLD = """[2024-03-02T11:19:50.001] sched: Allocate JobId=1201 NodeList=gpu-[16-19] #CPUs=256 Partition=train
[2024-03-02T11:20:01.123] error: Nodes gpu-17 not responding, setting DOWN
[2024-03-02T11:20:01.200] requeue job JobId=1201 due to failure of node gpu-17
"""
SLURMD = """[2024-03-02T11:19:50.001] Launching batch job 1201 for UID 1000
[2024-03-02T11:20:01.123] [1201.0] error: Detected 1 oom_kill event in StepId=1201.0. Some of the step tasks have been OOM Killed.
[2024-03-02T11:20:01.200] [1201.0] done with step
"""
DMESG = """[Tue Mar  5 11:19:01 2024] usb 1-1: new high-speed USB device
[Tue Mar  5 11:20:01 2024] NVRM: Xid (PCI:0000:3b:00): 48, pid=77, name=python, DBE (double bit error)
"""


@pytest.mark.parametrize(
    ("text", "reason", "hosts"),
    [
        (DESCRIBE, "NodeFailure", ("gpu-7",)),
        (EVENTS, "NodeFailure", ()),
        (SLURMCTLD, "NodeFailure", ("gpu-17",)),
        (SLURMD, "OutOfMemoryError", ()),
        (DMESG, "ECCError", ()),
    ],
    ids=["describe", "events", "slurmctld", "slurmd", "dmesg"],
)
def test_what_schedulers_and_kernels_write_is_read_as_it_is(text, reason, hosts):
    verdict = verdict_of(text)
    assert (verdict.reason, verdict.hosts) == (reason, hosts)


@pytest.mark.parametrize(
    ("name", "pack"),
    [("a.log.xz", lzma.compress), ("a.log.bz2", bz2.compress), ("a.log", lambda d: d.decode().encode("utf-16")),
     ("b.log", lambda d: d.decode().encode("utf-16-le")), ("c.log", lambda d: lzma.compress(d)[:-20])],
)  # fmt: skip
def test_archives_and_wide_characters_are_read(tmp_path, name, pack):
    path = tmp_path / name
    path.write_bytes(pack(("step 1 loss: 2.0\n" * 50 + TRACE).encode()))
    verdict = diagnose(read_job(str(path))).verdict
    assert verdict.reason == "KeyError"
    assert verdict.lines_read == 54
