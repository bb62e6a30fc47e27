"""The words of schedulers for a job's end and its purpose, mapped to Prism's terms."""

from __future__ import annotations

import re
from collections.abc import Mapping

from prism.records.verdict import CATEGORY_OF_REASON

STATE_WORDS: Mapping[str, tuple[str, ...]] = {
    "completed": (
        "completed",
        "complete",
        "succeeded",
        "success",
        "pass",
        "passed",
        "terminated",
        "finished",
        "done",
        "cd",
        "ok",
    ),
    "failed": (
        "failed",
        "failure",
        "fail",
        "error",
        "boot_fail",
        "launch_failed",
        "reconfig_fail",
        "exit",
        "f",
        "failed_setup",
        "failed_controller",
    ),
    "cancelled": (
        "cancelled",
        "canceled",
        "killed",
        "stopped",
        "revoked",
        "deleted",
        "aborted",
        "ca",
        "removed",
        "terminating",
    ),
    "timeout": ("timeout", "deadline", "deadlineexceeded", "timelimit", "to"),
    "node_fail": ("node_fail", "nodefail", "node_failure", "nodelost", "nf"),
    "preempted": ("preempted", "evicted", "suspended", "pr"),
    "out_of_memory": ("out_of_memory", "oom", "oomkilled", "oom_killed"),
    "running": ("running", "active", "completing", "r", "run", "in_use", "recovering"),
    "pending": (
        "pending",
        "waiting",
        "queued",
        "requeued",
        "configuring",
        "pd",
        "pend",
        "inqueue",
        "created",
        "held",
        "idle",
    ),
}

# Philly says "Pass", "Killed" and "Failed"; PAI "Terminated" for a task that ended well; sacct cuts words to fit a
# column and adds a "+", or says who cancelled ("CANCELLED by 1000").
_STATE_OF = {word: state for state, words in STATE_WORDS.items() for word in words}

FAILED_STATES = ("failed", "timeout", "node_fail", "out_of_memory")
"""What the Acme study counts as failed, plus out of memory, which Slurm reports apart."""

INFRASTRUCTURE = [reason for reason, category in CATEGORY_OF_REASON.items() if category == "infrastructure"]
"""Reasons that are a fault of the machines, not of the job."""

LIVE_STATES = ("running", "pending")

FINAL_OF_STATE: Mapping[str, str] = {
    "completed": "completed",
    "cancelled": "cancelled",
    "preempted": "cancelled",
    **dict.fromkeys(FAILED_STATES, "failed"),
}
"""The three outcomes that published studies compare; live and unknown states have none."""

# Canonical names are those of the Acme traces; other sites' names stay as written and are reported.
TYPE_WORDS: Mapping[str, tuple[str, ...]] = {
    "Eval": ("eval", "evaluation", "evaluate", "benchmark"),
    "Pretrain": ("pretrain", "pretraining", "pre_train", "pre_training"),
    "SFT": ("sft", "finetune", "finetuning", "fine_tune", "fine_tuning", "alignment"),
    "MLLM": ("mllm", "multimodal"),
    "Debug": ("debug", "debugging"),
    "Other": ("other", "others", "misc"),
}
_TYPE_OF = {word: name for name, words in TYPE_WORDS.items() for word in words}


def name_state(text: str) -> str | None:
    """The state for a scheduler's word, or None if it is unknown."""
    word = re.sub(r"\s+by\s+\S+$", "", text.strip().lower())
    word = re.sub(r"[\s-]+", "_", word.rstrip("+"))
    if word in _STATE_OF:
        return _STATE_OF[word]
    # sacct's default column is ten characters wide: "OUT_OF_ME+", "CANCELLED+".
    if text.strip().endswith("+") and len(word) >= 6:
        whole = {state for known, state in _STATE_OF.items() if known.startswith(word)}
        return whole.pop() if len(whole) == 1 else None
    return None


def name_type(text: str) -> str | None:
    """The canonical name of a job type, or None for a name specific to the site."""
    return _TYPE_OF.get(re.sub(r"[\s-]+", "_", text.strip().lower()))
