"""The logs of an attempt's pods, followed into the attempt's folder while they run."""

from __future__ import annotations

import json
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from prism.errors import PrismError
from prism.recover.supervise.launchers.kubernetes.api import Api, ApiRefused
from prism.recover.supervise.launchers.kubernetes.pods import PodState

_SILENCE_S = 600.0  # a job may be silent for long; a new stream costs little
_PAUSE_S = 1.0
_PLACE_EVERY_S = 1.0  # a supervisor that is killed reads at most this much of a log twice


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSource:
    """One container's log: where it is read and where it is written."""

    path: str
    container: str
    file: Path
    previous: bool = False  # of the container's life before its restart


class PodLogs:
    """Follows the logs of pods; each in a thread, from where an earlier supervisor left off."""

    def __init__(self, api: Api, namespace: str, folder: Path, max_streams: int) -> None:
        self._api, self._folder, self._max = api, folder, max_streams
        self._pods_path = f"/api/v1/namespaces/{namespace}/pods"
        self._followers: dict[tuple[str, int], Follower] = {}
        self._closed = threading.Event()

    def update(self, pods: list[PodState]) -> None:
        """Follow what is new; tell followers whose pod has ended."""
        for pod in pods:
            if not pod.started or not pod.node:
                continue
            key = (pod.uid, pod.restarts)
            if key not in self._followers:
                alive = sum(not follower.done.is_set() for follower in self._followers.values())
                if alive >= self._max and not pod.failed:
                    continue
                if pod.restarts > 0 and (pod.uid, pod.restarts - 1) not in self._followers:
                    self._follow((pod.uid, pod.restarts - 1), pod, previous=True)
                self._follow(key, pod)
            if pod.over:
                self._followers[key].over.set()

    def drain(self, limit_s: float) -> None:
        """Wait until the logs of ended pods are read to their end."""
        deadline = time.monotonic() + limit_s
        for follower in self._followers.values():
            if follower.over.is_set():
                follower.done.wait(max(0.0, deadline - time.monotonic()))

    def close(self) -> None:
        """Let all followers end."""
        self._closed.set()
        for follower in self._followers.values():
            follower.over.set()

    def _follow(self, key: tuple[str, int], pod: PodState, previous: bool = False) -> None:
        life = f".{key[1]}" if key[1] else ""
        source = LogSource(
            path=f"{self._pods_path}/{pod.name}/log",
            container=pod.container,
            file=self._folder / f"{log_name(pod)}{life}.log",
            previous=previous,
        )
        self._followers[key] = Follower(self._api, source, self._closed)
        if previous:
            self._followers[key].over.set()


class Follower:
    """One thread on one log."""

    def __init__(self, api: Api, source: LogSource, closed: threading.Event) -> None:
        self.over = threading.Event()  # the container has ended: the end of the stream is the end of the log
        self.done = threading.Event()
        self._api, self._source, self._closed = api, source, closed
        self._place = source.file.with_name(f".{source.file.name}.place")
        self._last = _read_place(self._place)  # the time of the last line that was written
        threading.Thread(target=self._run, name=f"prism-log-{source.file.stem}", daemon=True).start()

    def _run(self) -> None:
        try:
            while not self._closed.is_set():
                last_round = self.over.is_set()
                try:
                    self._read()
                except ApiRefused as refused:
                    # 400: the container waits to be started; 404: the pod is gone, and its log with it.
                    if refused.status not in (400, 500) or last_round:
                        return
                except (OSError, PrismError):
                    if last_round:
                        return
                else:
                    if last_round:
                        return
                self.over.wait(_PAUSE_S)
        finally:
            self.done.set()

    def _read(self) -> None:
        query: dict[str, object] = {"container": self._source.container, "timestamps": "true"}
        query |= {"previous": "true"} if self._source.previous else {"follow": "true"}
        if self._last:
            query["sinceTime"] = f"{self._last[:19]}Z"  # whole seconds; what we have of that second is left out below
        written_s = time.monotonic()
        try:
            for line in self._api.lines(self._source.path, query, _SILENCE_S):
                stamp, _, text = line.partition(b" ")
                moment = stamp.decode("ascii", "replace")
                if self._last and _nanoseconds(moment) <= _nanoseconds(self._last):
                    continue
                with self._source.file.open("ab") as log:
                    log.write(text + b"\n")
                self._last = moment
                if time.monotonic() > written_s + _PLACE_EVERY_S:
                    written_s = time.monotonic()
                    self._keep_place()
        finally:
            self._keep_place()

    def _keep_place(self) -> None:
        if self._last:
            self._place.write_text(json.dumps({"last": self._last}))


def log_name(pod: PodState) -> str:
    """A pod's log by its node, then its place in the job: readers of logs take the host from the name."""
    job, number, index = pod.place
    place = f"{job}-{number}-{index}" if job else str(index)
    return f"{pod.node}.{place}-{pod.uid[:8]}"


def _nanoseconds(stamp: str) -> tuple[str, str]:
    """A time with up to nine decimals in a form that compares; the server leaves out trailing zeros."""
    whole, _, part = stamp.rstrip("Z").partition(".")
    return whole, part.ljust(9, "0")


def _read_place(path: Path) -> str:
    try:
        return str(json.loads(path.read_text())["last"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""
