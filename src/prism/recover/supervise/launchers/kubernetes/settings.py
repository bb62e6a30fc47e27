"""How a run uses a Kubernetes cluster."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from prism.records.settings import Checked, number, one_of

Restart = Literal["job", "pod"]


@dataclass(frozen=True, slots=True, kw_only=True)
class KubernetesSettings(Checked):
    """The defaults touch nothing but the run's own objects in its own namespace."""

    manifest: str = ""  # the file with the JobSet, TrainJob or Job
    context: str = ""  # of the kubeconfig; empty: the current one, or the service account inside a pod
    namespace: str = ""  # empty: the manifest's, else the context's
    container: str = ""  # the one that trains; empty: the only one, or one called trainer, node or pytorch
    run_dir: str = ""  # where the pods see the run folder; empty: they do not, and steps are read from their logs
    # job: every restart is a new attempt of the whole job. pod: Kubernetes replaces a failed pod and the others live
    # on, which helps only jobs that take a member back in (torchrun with a c10d rendezvous and --max-restarts).
    restart: Restart = field(default="job", metadata=one_of(Restart))
    taint: bool = False  # keep other jobs off a condemned node, too; false: only report what would be done
    node_lost_s: float = number(30.0, 0.0, 3_600.0)  # a node that the cluster calls unreachable for so long is lost
    max_log_streams: int = number(256, 1, 4_096)  # pods whose logs are followed; the others' are read when they fail
