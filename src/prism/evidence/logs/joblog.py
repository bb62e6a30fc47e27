"""One failed job's log: what was kept of every file, line by line, with rank, host and time."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import polars as pl

from prism.evidence.logs.origins import Origin, Writer, parse_line
from prism.evidence.logs.rules import RuleBook, literals_of, shipped_rules
from prism.evidence.logs.scan import HEAD_LINES, LogScan, Segment, scan_log
from prism.evidence.logs.sources import LogSource, find_logs, read_chunks, read_lines, to_utf8
from prism.evidence.logs.triggers import TROUBLE_WORDS, has_trouble
from prism.evidence.logs.trust import described_node, judge_writers
from prism.records.log import LOG

# First lines of a training job; a log with them and without a step shows that the job died before its first step.
_STARTUP = (
    "setting omp_num_threads", "nccl version", "nccl info bootstrap", "world size", "world_size", "init_process_group",
    "initializing process group", "initializing distributed", "initialized process group", "initializing torch",
    "master_addr", "torchrun", "loading extension module", "loading checkpoint shards",
    "building gpt", "building model",
    "[launch.py", "accelerate launch", "initialized tcpstore", "initializing model parallel", "......",
)  # fmt: skip
_POD_INDEX = re.compile(r"-(\d{1,5})(?:-[a-z0-9]{5})?$")
MIN_STARTUP_LINES = 20  # A shorter text is a snippet: it does not show a job's start.
_YEARLESS_END_NS = int(datetime(2001, 1, 2, tzinfo=UTC).timestamp()) * 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLine:
    """A kept line; `progress` counts its file's progress lines before it, `hit` means that it contains a trigger word.

    `writer` is who wrote it; `trusted` means that the job itself cannot have printed it.
    """

    file: str
    line: int
    text: str
    rank: int | None = None
    host: str | None = None
    time_ns: int | None = None
    progress: int = 0
    hit: bool = True
    writer: Writer = "application"
    trusted: bool = False
    pod: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobLog:
    """Everything that the diagnosis needs from one job's logs."""

    name: str
    lines: tuple[LogLine, ...]
    num_lines: int
    progress: dict[str, int]  # progress lines per file
    saw_startup: bool = False
    file_ranks: frozenset[int] = frozenset()  # ranks that have a file of their own
    file_hosts: frozenset[str] = frozenset()  # hosts named by file names

    @property
    def saw_progress(self) -> bool:
        """Whether any rank reported a training step."""
        return any(self.progress.values())

    @property
    def died_before_first_step(self) -> bool:
        """Whether the log shows the job's start and no step; a snippet that shows neither is not counted."""
        return self.saw_startup and not self.saw_progress

    def frame(self) -> pl.DataFrame:
        """The kept lines as a LOG table."""
        return to_frame(self.lines)


def to_frame(lines: Iterable[LogLine]) -> pl.DataFrame:
    """Lines as a LOG table."""
    rows = [(ln.file, ln.line, ln.time_ns, ln.rank, ln.host, ln.text) for ln in lines]
    return LOG.conform(pl.DataFrame(rows, schema=LOG.required, orient="row"), "log")


def read_job(place: str, rules: RuleBook | None = None, num_threads: int = 2) -> JobLog:
    """Read all logs at a path, each once, and keep the lines that may matter, including all that rules look for."""
    words = trigger_words(rules)
    sources = find_logs(place)
    num_bytes = sum(Path(s.path).stat().st_size for s in sources if Path(s.path).is_file())
    with ThreadPoolExecutor(num_threads) as pool:
        scans = []
        for source in sources:
            lines = read_lines(read_chunks(source))
            scan = scan_log(lines.chunks, words, pool, num_bytes, len(sources))
            scan.is_wrapped = lines.is_wrapped
            scans.append((source, scan))
    return assemble_job(place, scans)


def read_text(text: str | bytes, name: str = "text", rules: RuleBook | None = None) -> JobLog:
    """The same for a log that is already in memory."""
    data = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    lines = read_lines(to_utf8(iter([data])))
    scan = scan_log(lines.chunks, trigger_words(rules))
    scan.is_wrapped = lines.is_wrapped
    return assemble_job(name, [(LogSource(path=name, name=name), scan)])


def trigger_words(rules: RuleBook | None) -> tuple[str, ...]:
    """The words that a scan stops at: general trouble words, and those of the rules."""
    return (*TROUBLE_WORDS, *literals_of((rules or shipped_rules()).rules))


def assemble_job(name: str, scans: Iterable[tuple[LogSource, LogScan]]) -> JobLog:
    """Combine the scans of a job's files."""
    lines: list[LogLine] = []
    progress: dict[str, int] = {}
    num_lines = 0
    sources = []
    for source, scan in scans:
        segments = scan.close()
        lines.extend(_lines_of(source, segments, scan.is_wrapped))
        progress[source.name] = scan.num_progress
        num_lines += scan.num_lines
        sources.append(source)
    return JobLog(
        name=name,
        lines=tuple(_with_years(_place_pods(lines))),
        num_lines=num_lines,
        progress=progress,
        saw_startup=num_lines >= MIN_STARTUP_LINES and any(_is_startup(ln) for ln in lines),
        file_ranks=frozenset(s.rank for s in sources if s.rank is not None),
        file_hosts=frozenset(s.host for s in sources if s.host is not None),
    )


def _is_startup(line: LogLine) -> bool:
    lowered = line.text.lower()
    is_code = line.text[:4] == "    " or has_trouble(line.text)
    return line.line <= HEAD_LINES and not is_code and any(word in lowered for word in _STARTUP)


def _lines_of(source: LogSource, segments: Iterable[Segment], is_wrapped: bool) -> list[LogLine]:
    parsed: list[tuple[Segment, Origin]] = []
    for segment in segments:
        origin = parse_line(segment.text.decode("utf-8", "replace").rstrip(), is_wrapped)
        if origin.text:
            parsed.append((segment, origin))
    origins = [origin for _, origin in parsed]
    writers = judge_writers(origins)
    host = source.host or described_node(origins)
    return [
        LogLine(
            file=source.name,
            line=origin.line or segment.line,
            text=origin.text,
            rank=origin.rank if origin.rank is not None else source.rank,
            host=origin.host or host,
            time_ns=origin.time_ns,
            progress=segment.progress,
            hit=segment.hit,
            writer=writer,
            trusted=trusted,
            pod=origin.pod,
        )
        for (segment, origin), (writer, trusted) in zip(parsed, writers, strict=True)
    ]


def _with_years(lines: list[LogLine]) -> list[LogLine]:
    """Give time stamps without a year the year of the others, so that times can be compared."""
    full = next((ln.time_ns for ln in lines if ln.time_ns is not None and ln.time_ns > _YEARLESS_END_NS), None)
    if full is None:
        return lines
    year = datetime.fromtimestamp(full // 1_000_000_000, UTC).year
    shift_ns = (
        int((datetime(year, 1, 1, tzinfo=UTC) - datetime(2000, 1, 1, tzinfo=UTC)).total_seconds()) * 1_000_000_000
    )
    return [
        replace(ln, time_ns=ln.time_ns + shift_ns) if ln.time_ns is not None and ln.time_ns <= _YEARLESS_END_NS else ln
        for ln in lines
    ]


def _place_pods(lines: list[LogLine]) -> list[LogLine]:
    """Ranks and hosts from pod names, for lines that do not name them.

    A pod's number is its rank if its lines name no other; where a master takes rank 0, workers count from 1.
    """
    pods: dict[str, set[int | None]] = defaultdict(set)
    for line in lines:
        if line.pod is not None:
            pods[line.pod].add(line.rank)
    if not pods:
        return lines
    has_master = any("-master-" in pod for pod in pods)
    ranks: dict[str, int] = {}
    for pod, own in pods.items():
        match = _POD_INDEX.search(pod)
        if match and own == {None}:
            ranks[pod] = int(match.group(1)) + (has_master and "-worker-" in pod)
    if len(set(ranks.values())) < len(ranks):
        ranks = {}  # Two pods share a number, so the number is not a rank.
    return [
        ln if ln.pod is None else replace(ln, rank=ranks.get(ln.pod, ln.rank), host=ln.host or ln.pod) for ln in lines
    ]
