"""A typed client of the API of `prism serve`. Written by scripts/write_serve_client.py; do not edit.

client = Client("http://127.0.0.1:8042", token="...")
for job in client.jobs().jobs:
    print(job.id, job.health, job.step_s)
"""

from __future__ import annotations

import json
import types
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import Request, urlopen

from prism.serve.shapes.cluster import ClusterDocument
from prism.serve.shapes.evaluation import (
    EvaluationDocument,
    EvaluationsDocument,
)
from prism.serve.shapes.history import (
    AlertsDocument,
    AnnotationsDocument,
    ChannelRow,
    DifferenceDocument,
    HistoryDocument,
    HistoryJobsDocument,
    HostDocument,
    SearchDocument,
    Written,
)
from prism.serve.shapes.incidents import (
    HoursDocument,
    IncidentDocument,
    IncidentsDocument,
)
from prism.serve.shapes.jobs import (
    FindingsDocument,
    JobDocument,
    JobsDocument,
)
from prism.serve.shapes.reports import (
    DatacenterDocument,
    OverviewDocument,
    PrintedDocument,
    ReportsDocument,
    Versions,
)
from prism.serve.shapes.runs import (
    FailuresDocument,
    RunDocument,
    VerdictDocument,
)
from prism.serve.shapes.timeline import (
    BreakdownDocument,
    SpansDocument,
    TimelineDocument,
)

T = TypeVar("T")


class ServeError(Exception):
    """An answer that is not a success: `code` for programs, the text for people."""

    def __init__(self, code: str, message: str, status: int) -> None:
        super().__init__(message)
        self.code, self.status = code, status


def shape(kind: Any, value: Any) -> Any:
    """A JSON value as a declared type; what a newer service adds is left out, what an older one lacks is None."""
    if is_dataclass(kind):
        hints = get_type_hints(kind)
        given = value if isinstance(value, dict) else {}
        return cast(Any, kind)(**{f.name: shape(hints[f.name], given.get(f.name)) for f in fields(kind)})
    origin, inner = get_origin(kind), get_args(kind)
    if value is None:
        return None
    if origin in (Union, types.UnionType):
        return shape(next((k for k in inner if k is not type(None)), Any), value)
    if origin is tuple and inner[-1] is Ellipsis:
        return tuple(shape(inner[0], item) for item in value)
    if origin is dict:
        return {name: shape(inner[1], item) for name, item in value.items()}
    return float(value) if kind is float else value


class Client:
    """The API of one service."""

    def __init__(self, address: str, token: str | None = None, timeout_s: float = 30.0) -> None:
        self.address, self.token, self.timeout_s = address.rstrip("/"), token, timeout_s

    def ask(self, method: str, path: str, query: Mapping[str, Any], body: Mapping[str, Any] | None = None) -> bytes:
        """One request; the body of the answer."""
        given = {name: value for name, value in query.items() if value is not None}
        headers = {} if self.token is None else {"Authorization": f"Bearer {self.token}"}
        if method != "GET":
            headers |= {"X-Prism-Write": "1", "Content-Type": "application/json"}
        url = f"{self.address}{path}{f'?{urlencode(given)}' if given else ''}"
        data = None if body is None else json.dumps(body).encode()
        try:
            with urlopen(Request(url, data, headers, method=method), timeout=self.timeout_s) as answer:
                return cast(bytes, answer.read())
        except HTTPError as error:
            said = json.loads(error.read() or b"{}").get("error", {})
            raise ServeError(said.get("code", "error"), said.get("message", str(error)), error.code) from None

    def _get(self, kind: type[T], path: str, /, **query: Any) -> T:
        return cast(T, shape(kind, json.loads(self.ask("GET", path, query))))

    def _write(self, kind: type[T], method: str, path: str, query: Mapping[str, Any], body: Mapping[str, Any]) -> T:
        return cast(T, shape(kind, json.loads(self.ask(method, path, query, body or None))))

    def version(self) -> Versions:
        """The version of the folder: poll it, and reload the rest when it grows."""
        return self._get(Versions, "/api/version")

    def overview(self) -> OverviewDocument:
        """What was found in the folder, and what could not be read."""
        return self._get(OverviewDocument, "/api/overview")

    def jobs(self, *, offset: int = 0, limit: int = 1000) -> JobsDocument:
        """Every job that some source knows, by its newest look."""
        return self._get(JobsDocument, "/api/jobs", offset=offset, limit=limit)

    def findings(self, *, offset: int = 0, limit: int = 1000) -> FindingsDocument:
        """Open findings of the newest looks, costliest first."""
        return self._get(FindingsDocument, "/api/findings", offset=offset, limit=limit)

    def cluster(self) -> ClusterDocument:
        """Jobs, hosts, switches, hot links, and who shares them."""
        return self._get(ClusterDocument, "/api/cluster")

    def failures(self) -> FailuresDocument:
        """Verdicts, hosts with their history, and supervised runs."""
        return self._get(FailuresDocument, "/api/failures")

    def evaluations(self) -> EvaluationsDocument:
        """All evaluations, the newest first."""
        return self._get(EvaluationsDocument, "/api/evaluations")

    def datacenter(self) -> DatacenterDocument:
        """Reports of `prism characterize`."""
        return self._get(DatacenterDocument, "/api/datacenter")

    def reports(self) -> ReportsDocument:
        """What investigate, compare, predict and goodput printed, newest first."""
        return self._get(ReportsDocument, "/api/reports")

    def job(self, *, key: str) -> JobDocument:
        """Steps, findings, groups and stages of a job, and what can be laid over its timeline."""
        return self._get(JobDocument, "/api/job", key=key)

    def verdict(self, *, id: str) -> VerdictDocument:
        """A verdict with its evidence in context."""
        return self._get(VerdictDocument, "/api/verdict", id=id)

    def run(self, *, key: str) -> RunDocument:
        """A supervised run: its story, its losses, and marks on them."""
        return self._get(RunDocument, "/api/run", key=key)

    def evaluation(self, *, key: str) -> EvaluationDocument:
        """An evaluation: its progress, its leaderboard, what its phases cost."""
        return self._get(EvaluationDocument, "/api/evaluation", key=key)

    def printed(self, *, path: str) -> PrintedDocument:
        """One printed document, by its path in the list."""
        return self._get(PrintedDocument, "/api/printed", path=path)

    def timeline(
        self,
        *,
        key: str,
        from_ns: int | None = None,
        to_ns: int | None = None,
        width: int = 1200,
        first_row: int = 0,
        num_rows: int = 64,
        by: Literal["rank", "lane"] = "rank",
        hide: str = "",
        expected: str = "",
    ) -> TimelineDocument:
        """A window of the timeline of a job, or of the trials of an evaluation, aggregated to the pixels shown."""
        return self._get(
            TimelineDocument,
            "/api/timeline",
            key=key,
            from_ns=from_ns,
            to_ns=to_ns,
            width=width,
            first_row=first_row,
            num_rows=num_rows,
            by=by,
            hide=hide,
            expected=expected,
        )

    def spans(
        self,
        *,
        key: str,
        rank: int,
        lane: str = "",
        from_ns: int | None = None,
        to_ns: int | None = None,
        expected: str = "",
    ) -> SpansDocument:
        """The spans of a rank in a short window, longest first: those under the pointer."""
        return self._get(
            SpansDocument, "/api/spans", key=key, rank=rank, lane=lane, from_ns=from_ns, to_ns=to_ns, expected=expected
        )

    def breakdown(self, *, key: str, from_ns: int | None = None, to_ns: int | None = None) -> BreakdownDocument:
        """Where the time of each rank went in a window."""
        return self._get(BreakdownDocument, "/api/breakdown", key=key, from_ns=from_ns, to_ns=to_ns)

    def trace(self, *, key: str, from_ns: int | None = None, to_ns: int | None = None) -> bytes:
        """The timeline of a job, or a window of it, as a Perfetto trace."""
        return self.ask("GET", "/api/trace", {"key": key, "from_ns": from_ns, "to_ns": to_ns})

    def report(self, *, key: str) -> bytes:
        """The stand-alone page of a characterization or of a printed report, without scripts."""
        return self.ask("GET", "/api/report", {"key": key})

    def history(
        self,
        *,
        job: str = "",
        host: str = "",
        cluster: str = "",
        kind: str = "",
        q: str = "",
        from_ns: int | None = None,
        to_ns: int | None = None,
        offset: int = 0,
        limit: int = 100,
    ) -> HistoryDocument:
        """Everything that was ever found in the folder, newest first, and day by day."""
        return self._get(
            HistoryDocument,
            "/api/history",
            job=job,
            host=host,
            cluster=cluster,
            kind=kind,
            q=q,
            from_ns=from_ns,
            to_ns=to_ns,
            offset=offset,
            limit=limit,
        )

    def history_jobs(self, *, limit: int = 500) -> HistoryJobsDocument:
        """Every job that was ever seen, by its newest look or run."""
        return self._get(HistoryJobsDocument, "/api/history/jobs", limit=limit)

    def difference(self, *, first: str, second: str) -> DifferenceDocument:
        """Two runs, looks or days side by side."""
        return self._get(DifferenceDocument, "/api/difference", first=first, second=second)

    def search(self, *, q: str) -> SearchDocument:
        """Jobs, hosts, runs, findings, verdicts and reports that hold every word."""
        return self._get(SearchDocument, "/api/search", q=q)

    def host(self, *, name: str, offset: int = 0, limit: int = 200) -> HostDocument:
        """Everything that is known about a host."""
        return self._get(HostDocument, "/api/host", name=name, offset=offset, limit=limit)

    def annotations(self, *, job: str = "", host: str = "") -> AnnotationsDocument:
        """Remarks that people wrote."""
        return self._get(AnnotationsDocument, "/api/annotations", job=job, host=host)

    def write_annotations(self, *, text: str, at_ns: int, job: str = "", host: str = "") -> Written:
        """Write a remark down; it survives a rebuild of the index."""
        return self._write(
            Written, "POST", "/api/annotations", {}, {"text": text, "at_ns": at_ns, "job": job, "host": host}
        )

    def delete_annotations(self, *, id: str) -> Written:
        """End a remark."""
        return self._write(Written, "DELETE", "/api/annotations", {"id": id}, {})

    def incidents(
        self, *, q: str = "", from_ns: int | None = None, to_ns: int | None = None, offset: int = 0, limit: int = 50
    ) -> IncidentsDocument:
        """What is sick now, worst first; and of the past what was asked for, newest first."""
        return self._get(
            IncidentsDocument, "/api/incidents", q=q, from_ns=from_ns, to_ns=to_ns, offset=offset, limit=limit
        )

    def write_incidents(self, *, id: str, what: Literal["acknowledged", "closed"]) -> Written:
        """Take an incident up, or close it."""
        return self._write(Written, "POST", "/api/incidents", {}, {"id": id, "what": what})

    def incident(self, *, id: str) -> IncidentDocument:
        """One incident: its evidence from every source, what to do, and its history."""
        return self._get(IncidentDocument, "/api/incident", id=id)

    def hours(self, *, from_ns: int | None = None, to_ns: int | None = None) -> HoursDocument:
        """GPU-hours bought, used and lost, to what and since when; in money if a price is set."""
        return self._get(HoursDocument, "/api/hours", from_ns=from_ns, to_ns=to_ns)

    def alerts(self) -> AlertsDocument:
        """Channels without their addresses, and what people were told that is not over."""
        return self._get(AlertsDocument, "/api/alerts")

    def write_alerts_test(self, *, channel: str) -> ChannelRow:
        """Send a test message to a channel and say how it went."""
        return self._write(ChannelRow, "POST", "/api/alerts/test", {}, {"channel": channel})

    def metrics(self) -> bytes:
        """Prometheus metrics of jobs, steps, findings, recoveries and evaluations."""
        return self.ask("GET", "/metrics", {})

    def healthz(self) -> bytes:
        """For probes; needs no token."""
        return self.ask("GET", "/healthz", {})
