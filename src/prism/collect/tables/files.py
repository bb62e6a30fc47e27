"""Flow files read into FLOWS and written back; a bad row is named, or left out and counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import polars as pl

from prism.collect.tables.aliases import Alias
from prism.collect.tables.finishing import are_whole_seconds, finish_table
from prism.collect.tables.plan import LOST, FlowPlan, explain_row, plan_flows, typed_csv_columns
from prism.errors import BadFileError, BadRowError, InputError
from prism.records import files
from prism.records.addresses import first_bad_address, is_address, numbers_to_text, unify_addresses
from prism.records.files import Format
from prism.records.flows import FLOWS
from prism.records.json_tables import read_json_lines
from prism.records.long_rows import MORE_VALUES, describe_extra
from prism.records.time_units import check_units
from prism.records.times import unit_by_size

# Rows. Checking every address of a larger table takes half as long as reading it, so 200,000 rows spread
# evenly over it are checked; `endpoints_of`, which lists the endpoints, checks them all.
_CHECK_EVERY_ADDRESS_BELOW = 2_000_000
_EPOCH_NS = 10**17  # Larger start times count from the epoch, in nanoseconds.
_LEAST_IPV4 = 1 << 24  # 1.0.0.0 as a number
_ROW = "_row"  # where a row stands in the frame
_PLACE = "_place"  # where it stands in the file
_EXTRA = "_extra"  # its first value that has no column


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowOptions:
    """How to read flow files."""

    skip_bad_rows: bool = False
    packet_bytes: int = 4096  # assumed size of a packet where a file counts packets only; the RoCE MTU
    columns: tuple[Alias, ...] = ()  # which column of the files gives what, where the user says so
    keep_cut_times: bool = False  # read nfdump's CSV although it cut its times to whole seconds
    samples: bool = False  # leave packet samples unchanged: a stream joins them later


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadReport:
    """What reading found besides the rows."""

    files: int
    rows: int
    skipped_rows: dict[str, int] = field(default_factory=dict)  # what was wrong -> how many rows
    skipped_files: tuple[str, ...] = ()  # one line each
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowsRead:
    """A FLOWS table and how it was read."""

    flows: pl.DataFrame
    report: ReadReport
    counters: pl.DataFrame = field(default_factory=pl.DataFrame)  # of switch ports, where they came with the records


FileReader = Callable[[Path, FlowOptions], FlowsRead]
"""Reads one file of a format that is no table."""


def read_flows(paths: str | Path | Iterable[str | Path], options: FlowOptions | None = None) -> pl.DataFrame:
    """Read flow files, or folders of them, into one validated FLOWS table."""
    return load_flows(paths, options).flows


def load_flows(
    paths: str | Path | Iterable[str | Path],
    options: FlowOptions | None = None,
    progress: Callable[[int], None] | None = None,
    readers: Mapping[Format, FileReader] | None = None,
) -> FlowsRead:
    """Like `read_flows`, with a report of what was assumed and left out; `progress` gets the bytes of each file.

    `readers` read the formats that are no tables: captures, nfcapd files, protobuf.
    """
    options = options or FlowOptions()
    frames: list[pl.DataFrame] = []
    skipped: Counter[str] = Counter()
    bad_files: list[str] = []
    notes: dict[str, None] = {}
    counters: list[pl.DataFrame] = []
    sources = files.expand(paths)
    for path in sources.files:
        try:
            read = _load_any(path, options, readers or {})
        except InputError as error:
            if not options.skip_bad_rows:
                raise
            bad_files.append(str(error))
            continue
        frames.append(read.flows)
        counters += [read.counters] if read.counters.height else []
        skipped.update(read.report.skipped_rows)
        notes.update(dict.fromkeys(read.report.notes))
        if progress is not None:
            progress(path.stat().st_size)
    if not frames:
        raise BadFileError(f"none of {len(sources.files)} files could be read; the first: {bad_files[0]}")
    # Files may differ in their optional columns; the missing ones are null.
    flows = frames[0] if len(frames) == 1 else pl.concat(frames, how="diagonal")
    flows = flows.select(c for c in FLOWS.columns if c in flows.columns)
    report = ReadReport(
        files=len(frames),
        rows=flows.height,
        skipped_rows=dict(skipped),
        skipped_files=(*bad_files, *sources.left_out),
        notes=tuple(notes),
    )
    return FlowsRead(flows=flows, report=report, counters=pl.concat(counters) if counters else pl.DataFrame())


def scan_flows(paths: str | Path | Iterable[str | Path], options: FlowOptions | None = None) -> pl.LazyFrame:
    """FLOWS of any size as a lazy frame: columns mapped and units converted, rows not yet checked."""
    options = options or FlowOptions()
    parts: list[pl.LazyFrame] = []
    for path in files.expand(paths).files:
        fmt = files.recognise(path)
        lazy, _, plan = _scan_planned(path, fmt, options)
        parts.append(lazy.select(e.alias(n).cast(FLOWS.columns[n]) for n, e in plan.expressions.items()))
    return parts[0] if len(parts) == 1 else pl.concat(parts, how="diagonal")


def write_flows(flows: pl.DataFrame, path: str | Path) -> None:
    """Write FLOWS by the ending of `path`; sampled bytes and packets go to disk as the exporter counted them."""
    frame = FLOWS.conform(flows, "flows")
    if "sampling_rate" in frame.columns:
        rate = pl.col("sampling_rate").fill_null(1)
        counted = [c for c in ("bytes", "packets") if c in frame.columns]
        uneven = frame.select(pl.any_horizontal((pl.col(c) % rate != 0).any() for c in counted)).item()
        if uneven:
            raise BadRowError("flows: sampled 'bytes' or 'packets' are not multiples of 'sampling_rate'; scale them up")
        frame = frame.with_columns(pl.col(c) // rate for c in counted)
    files.write(frame, Path(path))


def _load_any(path: Path, options: FlowOptions, readers: Mapping[Format, FileReader]) -> FlowsRead:
    fmt = files.recognise(path)
    if fmt in readers:
        return readers[fmt](path, options)
    try:
        frame, bad_rows, notes = _load_file(path, fmt, options)
        frame, more = finish_table(frame, samples=options.samples)
    except pl.exceptions.PolarsError as error:
        message = str(error).splitlines()[0][:200]
        raise BadFileError(f"{path}: not a table of flows ({message}); export it again") from None
    report = ReadReport(files=1, rows=frame.height, skipped_rows=dict(bad_rows), notes=(*notes, *more))
    return FlowsRead(flows=frame, report=report)


def make_flows(table: pl.DataFrame, where: str, options: FlowOptions | None = None) -> FlowsRead:
    """FLOWS of a table in memory that another tool made: a query's answer, messages of a topic."""
    options = options or FlowOptions(skip_bad_rows=True)
    plan = plan_flows(table.lazy(), table.schema, where, packet_bytes=options.packet_bytes, chosen=options.columns)
    made = _unify(plan.select(table.lazy(), table.schema).collect())
    bad = made.select(plan.bad(lost=LOST in made.columns).alias("bad")).to_series()
    if bad.any() and not options.skip_bad_rows:
        raise BadRowError(f"{where}: {int(bad.sum()):,} of {made.height:,} rows are not flows; pass --skip-bad-rows")
    kept = made.filter(~bad).drop(LOST, strict=False)
    flows, more = finish_table(kept.cast({c: FLOWS.columns[c] for c in plan.expressions}), samples=options.samples)
    skipped = {"rows that are not flows": int(bad.sum())} if bad.any() else {}
    report = ReadReport(files=1, rows=flows.height, skipped_rows=skipped, notes=(*plan.notes, *more))
    return FlowsRead(flows=flows, report=report)


def _refuse_cut_times(frame: pl.DataFrame, columns: list[str], path: Path, options: FlowOptions) -> None:
    """nfdump 1.7 cuts the times of its CSV to whole seconds, while the file it read has milliseconds."""
    if options.keep_cut_times or not {"ts", "te", "td", "sa", "da"} <= set(columns) or not are_whole_seconds(frame):
        return
    raise BadRowError(
        f"{path}: nfdump cut the times of this CSV to whole seconds, which hides every training step; "
        "write it with nfdump -o json, or give the nfcapd file itself"
    )


def _scan_planned(path: Path, fmt: Format, options: FlowOptions) -> tuple[pl.LazyFrame, pl.Schema, FlowPlan]:
    columns = files.read_columns(path, fmt)
    typed = typed_csv_columns(columns.names(), options.columns) if fmt is Format.CSV else None
    lazy = files.scan(path, fmt, typed)
    try:
        schema = lazy.collect_schema()
        plan = plan_flows(lazy, schema, str(path), packet_bytes=options.packet_bytes, chosen=options.columns)
    except pl.exceptions.PolarsError:
        # A value does not fit the type of its column: read plain text instead, and let the checks name the value.
        lazy = files.scan(path, fmt)
        schema = lazy.collect_schema()
        plan = plan_flows(lazy, schema, str(path), packet_bytes=options.packet_bytes, chosen=options.columns)
    return lazy, schema, plan


def _load_file(path: Path, fmt: Format, options: FlowOptions) -> tuple[pl.DataFrame, Counter[str], tuple[str, ...]]:
    """One file's FLOWS, counts of the rows left out, and notes; a file with bad rows goes to the slow reader."""
    try:
        lazy, schema, plan = _scan_planned(path, fmt, options)
        frame = files.collect(plan.select(lazy, schema), path)
    except BadFileError:
        if fmt not in (Format.CSV, Format.JSONL):
            raise
        return _load_suspicious(path, fmt, options)
    is_odd = fmt is Format.CSV and (files.ends_cut(path) or files.find_long_rows(path) is not None)
    if is_odd or frame.select(plan.bad(lost=LOST in frame.columns).any()).item() or _mixes_units(frame):
        return _load_suspicious(path, fmt, options)
    _refuse_cut_times(frame, schema.names(), path, options)
    frame = _plain_addresses(frame.drop(LOST, strict=False), path)
    if _stray_address(frame) is not None:
        return _load_suspicious(path, fmt, options)
    notes = (*plan.notes, *check_units(frame, plan.named_units, str(path)))
    return frame.cast({c: FLOWS.columns[c] for c in plan.expressions}), Counter(), notes


def _load_suspicious(
    path: Path, fmt: Format, options: FlowOptions
) -> tuple[pl.DataFrame, Counter[str], tuple[str, ...]]:
    """Read a file that has bad rows with its original values beside ours, to name the rows or leave them out."""
    raw, reasons = _read_raw(path, fmt, options)
    plan = plan_flows(raw.lazy(), raw.schema, str(path), packet_bytes=options.packet_bytes, chosen=options.columns)
    if plan.is_flow is not None:
        raw = raw.filter(plan.is_flow)
    made = plan.select(raw.lazy(), raw.schema).collect().with_columns(raw[_PLACE]).with_row_index(_ROW)
    _refuse_cut_times(made, raw.columns, path, options)
    made = _plain_addresses(made, path)
    addresses = pl.concat([made["src"], made["dst"]]).drop_nulls().unique()
    stray = addresses.filter(pl.Series([not is_address(a) for a in addresses], dtype=pl.Boolean))
    strange = pl.col("src").is_in(stray.implode()) | pl.col("dst").is_in(stray.implode())
    wrong_unit = (pl.col("start_ns") < _EPOCH_NS) if _mixes_units(made) else pl.lit(False)
    too_long = pl.col(_EXTRA).is_not_null()
    bad = plan.bad(lost=LOST in made.columns) | strange.fill_null(False) | wrong_unit.fill_null(False) | too_long
    marked = made.with_columns(raw[_EXTRA]).with_columns(bad.alias("_bad"))
    for row in marked.filter("_bad").iter_rows(named=True):
        reason = _reason(plan, row, raw.row(row[_ROW], named=True), stray)
        if not options.skip_bad_rows:
            place = f"{files.first_row(path, fmt)[0]} {row[_PLACE]}"
            raise BadRowError(f"{path} {place}: {reason}; fix the row or pass --skip-bad-rows")
        reasons[MORE_VALUES if row[_EXTRA] is not None else _without_value(reason)] += 1
    good = marked.filter(~pl.col("_bad")).select([*plan.expressions, *plan.extra])
    notes = (*plan.notes, *check_units(good, plan.named_units, str(path)))
    return good.cast({c: FLOWS.columns[c] for c in plan.expressions}), reasons, notes


def _reason(plan: FlowPlan, row: dict[str, object], raw: dict[str, object], stray: pl.Series) -> str:
    if row[_EXTRA] is not None:
        return describe_extra(str(row[_EXTRA]))
    for name in ("src", "dst"):
        if row[name] in stray:
            return f"'{plan.sources[name][0]}' is \"{row[name]}\", expected an address"
    start = row["start_ns"]
    complete = all(row[c] is not None for c in ("start_ns", "src", "dst", "bytes"))
    if (complete and isinstance(start, int) and start < _EPOCH_NS and row["end_ns"] is None) or _is_other_unit(row):
        looks = unit_by_size(float(start)) if isinstance(start, int) else None
        if looks and looks != "ns":
            return f"'{plan.sources['start_ns'][0]}' is {start}, which looks like {looks} among ns: mixed time units"
    text = explain_row(plan, row, raw)
    if "before it starts" in text and isinstance(end := row["end_ns"], int) and unit_by_size(end) not in (None, "ns"):
        text += f"; it looks like {unit_by_size(end)}: mixed time units"
    return text


def _is_other_unit(row: dict[str, object]) -> bool:
    start, end = row["start_ns"], row["end_ns"]
    return isinstance(start, int) and start < _EPOCH_NS and (not isinstance(end, int) or end >= start)


def _without_value(reason: str) -> str:
    """The reason with the offending value left out, so that like rows count together."""
    head, _, tail = reason.partition(" is ")
    return f"{head} not {tail.partition('expected ')[2]}" if "expected " in tail else f"{head} out of order or unit"


def _mixes_units(frame: pl.DataFrame) -> bool:
    """Whether some start times count nanoseconds from the epoch and others cannot."""
    low, high = frame.select(low=pl.col("start_ns").min(), high=pl.col("start_ns").max()).row(0)
    return low is not None and high >= _EPOCH_NS > low


def _plain_addresses(frame: pl.DataFrame, path: Path) -> pl.DataFrame:
    """Addresses in one notation; numbers become IPv4 addresses if they can be nothing else."""
    frame = _unify(frame)
    numbers = frame.select(pl.col("src", "dst").head(1000).cast(pl.Int64, strict=False))
    if not numbers.height or any(numbers[c].null_count() for c in ("src", "dst")):
        return frame
    every = frame.select(pl.col("src", "dst").cast(pl.Int64, strict=False))
    low, high = every.select(pl.min_horizontal(pl.all().min()), pl.max_horizontal(pl.all().max()).alias("b")).row(0)
    if high < _LEAST_IPV4 or any(every[c].null_count() for c in ("src", "dst")):
        return frame
    if low < _LEAST_IPV4 or high >= 1 << 32:
        raise BadRowError(
            f"{path}: addresses are numbers from {low} to {high}, neither all IPv4 addresses nor all small "
            "identifiers; export addresses as text"
        )
    return frame.with_columns(numbers_to_text(every["src"]).alias("src"), numbers_to_text(every["dst"]).alias("dst"))


def _unify(frame: pl.DataFrame) -> pl.DataFrame:
    return unify_addresses(frame, [c for c in ("src", "dst", "exporter") if c in frame.columns])


def _stray_address(frame: pl.DataFrame) -> str | None:
    step = 1 if frame.height <= _CHECK_EVERY_ADDRESS_BELOW else 1 + frame.height // 200_000
    if frame.select(pl.min_horizontal(pl.col("src", "dst").str.len_bytes().min())).item() == 0:
        return ""
    sample = frame.select(pl.col("src", "dst").gather_every(step))
    return first_bad_address(pl.concat([sample["src"], sample["dst"]]))


def _read_raw(path: Path, fmt: Format, options: FlowOptions) -> tuple[pl.DataFrame, Counter[str]]:
    """The file's original values, as text if it is a text file, with the number of each row or line."""
    if fmt is Format.JSONL:
        read = read_json_lines(files.read_text(path))
        if read.bad_lines and not options.skip_bad_rows:
            line, problem = read.bad_lines[0]
            raise BadFileError(f"{path} line {line}: {problem}; fix the line or pass --skip-bad-rows")
        raw = pl.DataFrame({_PLACE: read.lines}, schema={_PLACE: pl.Int64}).hstack(read.frame.get_columns())
        raw = raw.with_columns(pl.lit(None, pl.String).alias(_EXTRA))
        return raw, Counter({"not a JSON object": len(read.bad_lines)} if read.bad_lines else {})
    raw = files.collect(files.scan(path, fmt), path).with_row_index(_PLACE, offset=files.first_row(path, fmt)[1])
    extra = files.find_long_rows(path) if fmt is Format.CSV else None
    raw = raw.with_columns((pl.lit(None, pl.String) if extra is None else extra).alias(_EXTRA))
    return _clip_text(raw, path, options) if fmt is Format.CSV else (raw, Counter())


def _clip_text(raw: pl.DataFrame, path: Path, options: FlowOptions) -> tuple[pl.DataFrame, Counter[str]]:
    """The rows of a text without its blank lines, nfdump's summary, and a last line that was cut off."""
    # nfdump closes its CSV with a summary of two lines, which are not flows.
    footer = (raw[raw.columns[1]] == "Summary").arg_true()
    if len(footer):
        raw = raw.head(int(footer[0]))
    left_out: Counter[str] = Counter()
    if not len(footer) and files.ends_cut(path):
        if not options.skip_bad_rows:
            place = f"{path} line {raw[_PLACE][-1]}"
            raise BadRowError(f"{place}: the file is cut off inside this line; copy it again or pass --skip-bad-rows")
        raw, left_out = raw.head(-1), Counter({"line cut off at the end of a file": 1})
    return raw.filter(~pl.all_horizontal(pl.exclude(_PLACE).is_null())), left_out
