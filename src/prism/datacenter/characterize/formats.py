"""The public and live job tables that are recognised by their column names, and the special rules of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFormat:
    """One table: the columns by which it is recognised, and columns whose meaning differs from other tables."""

    name: str
    needs: frozenset[str]  # column names without case and punctuation
    any_of: frozenset[str] = frozenset()
    fields: Mapping[str, str] = field(default_factory=dict)  # field -> column, where this differs from the aliases
    units: Mapping[str, str] = field(default_factory=dict)
    note: str | None = None
    unit_stated: bool = True  # False: the publisher does not say in what unit bare numbers are
    gpu_time_counts: bool = False  # the GPU-time column is more accurate than GPUs times duration
    states: Mapping[str, str] = field(default_factory=dict)  # its own words for a job's end
    whole_window: bool = False  # an empty start or end is outside the time that the table covers


def _columns(names: str) -> frozenset[str]:
    return frozenset(name.replace("_", "").lower() for name in names.split())


def enumerate_states() -> dict[str, str]:
    """The numbers that Slurm's database writes for states (slurm.h, enum job_states)."""
    words = "pending running suspended completed cancelled failed timeout node_fail preempted boot_fail deadline oom"
    return {str(number): word for number, word in enumerate(words.split())}


# Sources, for the column names and units: the README of each release (alibaba/clusterdata, AcmeTrace, HeliosData,
# msr-fiddle/philly-traces), and the header lines of Muri's, Tiresias', ElasticFlow's, Chronus' and AdaptDL's traces.
# More specific tables come first.
FORMATS: tuple[TableFormat, ...] = (
    TableFormat(
        name="acme-kalos", needs=_columns("gpu_num submit_time"), any_of=_columns("mem_per_pod_GB fail_time stop_time")
    ),
    TableFormat(name="acme-seren", needs=_columns("gpu_num gpu_time submit_time type")),
    TableFormat(
        name="alibaba-2023",
        needs=_columns("num_gpu gpu_milli pod_phase creation_time scheduled_time deletion_time"),
        fields={"share": "gpumilli", "type": "qos"},
        units={"share": "milli"},
        note="GPUs are num_gpu times gpu_milli / 1000. A pod deleted while it ran has the phase Running and an end.",
    ),
    TableFormat(
        name="alibaba-2025",
        needs=_columns("instance_sn app_name gpu_request creation_time scheduled_time deletion_time"),
        fields={"job": "instancesn", "user": "appname", "type": "role"},
        note="Users are application groups. An instance that was there before the trace began counts from its start, "
        "one that outlived it up to its end.",
        whole_window=True,
    ),
    TableFormat(
        name="alibaba-2026-spot",
        needs=_columns("job_name organization gpu_request worker_num submit_time duration"),
        fields={"user": "organization", "instances": "workernum"},
        note="GPUs are gpu_request times worker_num: the release does not say that gpu_request is per worker, but one "
        "GPU for 94 workers cannot be meant.",
    ),
    TableFormat(
        name="pai",
        needs=_columns("plan_gpu inst_num"),
        units={"gpus": "percent"},
        note="GPUs are plan_gpu / 100 times inst_num.",
    ),
    TableFormat(
        name="muri",
        needs=_columns("num_gpu submit_time iterations iteration_time resource_time_0 duration"),
        fields={"type": "modelname"},
        units={"submit": "ms", "duration": "ms"},
        note="Muri's times are milliseconds. Job types are the models.",
    ),
    TableFormat(
        name="chronus",
        needs=_columns("num_gpu submit_time duration expect_time_list expect_value_list best_effort"),
        fields={"type": "modelname"},
        note="Job types are the models.",
        unit_stated=False,
    ),
    TableFormat(
        name="elasticflow",
        needs=_columns("num_gpu submit_time duration iteration ddl model_name"),
        fields={"type": "modelname"},
        note="Job types are the models.",
        unit_stated=False,
    ),
    TableFormat(
        name="tiresias",
        needs=_columns("num_gpu submit_time duration iterations model_name interval"),
        fields={"type": "modelname"},
        note="Job types are the models.",
        unit_stated=False,
    ),
    TableFormat(
        name="philly-pollux",
        needs=_columns("timestamp duration num_gpus gpu_time cluster"),
        fields={"submit": "timestamp"},
        note="The table does not say whether timestamp is submission or start; it is read as submission, and queueing "
        "is not known. Clusters are Philly's virtual clusters.",
    ),
    TableFormat(
        name="slurmdbd",
        needs=_columns("id_job state time_start time_end tres_alloc"),
        fields={
            "job": "idjob",
            "user": "iduser",
            "submit": "timesubmit",
            "start": "timestart",
            "end": "timeend",
            "gpus": "tresalloc",
            "state": "state",
        },
        states=dict(enumerate_states()),
        note="TRES 1001, the first that a site defines, is read as gres/gpu; if tres_table differs, export with sacct.",
    ),
    TableFormat(
        name="pbs",
        needs=_columns("jobstate ctime stime"),
        states={"F": "completed", "R": "running", "E": "running", "Q": "pending", "H": "pending", "X": "completed"},
        note="PBS's F is finished, whatever the exit status.",
    ),
    TableFormat(
        name="htcondor",
        needs=_columns("JobStatus QDate CompletionDate"),
        any_of=_columns("RequestGpus RequestGPUs"),
        fields={
            "submit": "qdate",
            "start": "jobstartdate",
            "end": "completiondate",
            "user": "owner",
            "job": "clusterid",
        },
        states={"1": "pending", "2": "running", "3": "cancelled", "4": "completed", "5": "pending"},
        note="JobStatus 4 is read as completed, whatever the exit code.",
    ),
    TableFormat(
        name="slurm",
        needs=_columns("state"),
        any_of=_columns("AllocTRES ReqTRES ElapsedRaw AllocCPUS NNodes AllocGRES JobIDRaw NTasks ExitCode"),
    ),
    TableFormat(
        name="kubernetes",
        needs=frozenset(),
        any_of=_columns("creationTimestamp metadatacreationTimestamp completionTime nvidiacomgpu"),
    ),
    TableFormat(
        name="philly",
        needs=_columns("submitted_time vc"),
        gpu_time_counts=True,
        note="GPU-hours are those of a job's attempts; between them it held no GPUs, though its duration goes on.",
    ),
    TableFormat(name="helios", needs=_columns("gpu_num vc submit_time")),
)

SACCT_FORMAT = "JobID,User,State,AllocTRES,ReqTRES,Submit,Start,End,ElapsedRaw,NodeList,Cluster"
"""The columns that Prism asks of `sacct`."""

ANY_TABLE = TableFormat(name="aliases", needs=frozenset(), unit_stated=False)
"""A table that is recognised by the names of its columns only."""


def recognise(squashed: set[str]) -> TableFormat:
    """The table that a header, without case and punctuation, belongs to."""
    for known in FORMATS:
        if known.needs <= squashed and (not known.any_of or known.any_of & squashed):
            return known
    return ANY_TABLE
