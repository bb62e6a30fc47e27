"""From a job table's text to numbers: GPU counts, moments and lengths of time, in the forms that schedulers write."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import polars as pl

from prism.datacenter.characterize.accounting import count_chunks
from prism.errors import BadRowError

MISSING = ("", "unknown", "none", "n/a", "null", "nan", "nat", "-", "--", "<none>", "\\n", "invalid")
NS = 1_000_000_000
TIME_UNITS: Mapping[str, int] = {  # in nanoseconds
    "ns": 1, "us": 1000, "ms": 1_000_000, "s": NS, "min": 60 * NS, "h": 3600 * NS, "d": 86_400 * NS,
}  # fmt: skip
GPU_UNITS: Mapping[str, float] = {"gpu": 1.0, "percent": 0.01, "milli": 0.001}

_GPU_FORMS = (
    re.compile(r"^(\d+(?:\.\d+)?)\s*[x×*]\s*[A-Za-z][\w. -]{0,60}$"),  # 8xA100, 8 x NVIDIA H100
    re.compile(r"^(\d+(?:\.\d+)?)\s*gpus?$", re.IGNORECASE),
    re.compile(r"^\{['\"][\w. -]{1,60}['\"]: ?(\d+(?:\.\d+)?)\}$"),  # {'H100': 8}
    re.compile(r"^[A-Za-z][\w.-]*?\s*[x×*:]\s*(\d+(?:\.\d+)?)$"),  # A100x8, gpu:8
    re.compile(r"^(?:gres[:/])?gpu(?::[\w.-]+)?:(\d+)(?:\([^)]*\))?$"),  # gpu:a100:4(S:0-1)
    re.compile(r"^nvidia\.com/gpu\s*[:=]\s*(\d+)$"),
)
_TIMES = re.compile(r"^(\d{1,6})x ?\[[\w.-]{1,60}:(\d{1,6})(?:,[^\]]{0,200})?\]$")  # SkyPilot: 2x[H100:8]
_TRES_IDS = re.compile(r"^\d+=\d+(?:,\d+=\d+)*$")  # as Slurm's database writes them; 1001 is the first of a site
_CHUNKS = re.compile(r"^[\w.:=+-]*n?gpus=\d+[\w.:=+-]*$")
_TRES_GENERIC = re.compile(r"(?:^|,)(?:gres/)?gpu=(\d+(?:\.\d+)?)")
_TRES_TYPED = re.compile(r"(?:^|,)gres/gpu:([^=,]+)=(\d+(?:\.\d+)?)")
# MIG profiles: "3g.20gb", also as NVML, Slurm and Kubernetes write them ("a100_1g.5gb", "mig-1g.10gb.me").
_MIG = re.compile(r"(?:^|[_.:-])(\d)g\.(\d+)gb")
_A30_GB_PER_SLICE = 6  # an A30 has four slices of 6 GB; every other GPU with MIG has seven
_TRES = re.compile(r"^[\w/:.-]+=[^,=]*(?:,[\w/:.-]+=[^,=]*)*$")

_MOMENT = (
    r"^(?P<date>\d{4}[-/]\d{1,2}[-/]\d{1,2})(?:[T ](?P<clock>\d{1,2}:\d{2})(?P<second>:\d{2})?(?P<fraction>\.\d+)?)?"
    r"\s*(?P<offset>Z|UTC|[+-]\d{2}:?\d{2})?$"
)
_LENGTH = (
    r"^(?:(?P<days>\d+)(?:-| days? ,?\s*| days?, ))?(?:(?P<hours>\d+):)?(?P<minutes>\d+):(?P<seconds>\d+(?:\.\d+)?)$"
)


DATE_ORDERS = ("dmy", "mdy")
_NUMERIC_DATE = (
    r"^(?P<first>\d{1,2})(?P<mark>[./-])(?P<second>\d{1,2})[./-](?P<year>\d{4}|\d{2})"
    r"(?:,?[T ]\s*(?P<hour>\d{1,2})(?P<rest>:\d{2}(?::\d{2})?)(?:\.\d+)?\s*(?P<half>[AaPp][Mm])?)?$"
)
_NAMED_DATE = (
    r"^(?:[A-Z][a-z]{2},? +)?(?:(?P<before>\d{1,2})[ -])?(?P<month>[A-Z][a-z]{2})[a-z]{0,6}[ -]+"
    r"(?:(?P<after>\d{1,2}),? +)?"
    r"(?P<year>\d{4})?,? *(?P<clock>\d{2}:\d{2}:\d{2})?(?: [A-Z]{3,4})? *(?P<last>\d{4})?(?: L)?$"
)
_MONTHS = {name: i for i, name in enumerate(re.findall("...", "janfebmaraprmayjunjulaugsepoctnovdec"), 1)}


@dataclass(frozen=True, slots=True)
class Moments:
    """A column of times: nanoseconds of the Unix epoch, and the UTC offsets in its text."""

    ns: pl.Series
    offsets: frozenset[str]  # "" is a time without a zone; "epoch" a bare number


def is_missing(text: pl.Series) -> pl.Series:
    """Where a cell has no value: empty, or one of the words for that."""
    return text.is_null() | text.str.strip_chars().str.to_lowercase().is_in(MISSING)


def map_distinct(text: pl.Series, name: Callable[[str], float | str | None], dtype: pl.DataType) -> pl.Series:
    """Apply `name` once per distinct value: columns of words and counts have few of them."""
    distinct = text.unique()
    codes = text.cast(pl.Enum(distinct.drop_nulls())).to_physical()
    names = pl.Series(text.name, [name(value) for value in distinct.drop_nulls()], dtype=dtype)
    return names.gather(codes)


def parse_gpu_count(text: str) -> float | None:
    """The number of GPUs in a cell: 8, 8.0, 8xA100, gpu:a100:4, or a Slurm TRES list; None for an unknown form."""
    text = text.strip()
    try:
        number = float(text)
        return number if 0 <= number < 1e9 else None
    except ValueError:
        pass
    if found := _TIMES.match(text):
        return float(found.group(1)) * float(found.group(2))
    if _TRES_IDS.match(text):
        return float(dict(part.split("=") for part in text.split(",")).get("1001", 0))
    if _CHUNKS.match(text):
        return float(count_chunks(text))
    for form in _GPU_FORMS:
        if found := form.match(text):
            return float(found.group(1)) * (mig_share(text) or 1.0)
    if not _TRES.match(text):
        return None
    typed = [(name, float(count)) for name, count in _TRES_TYPED.findall(text)]
    sliced = [(share, count) for name, count in typed if (share := mig_share(name)) is not None]
    whole = sum(count for name, count in typed if mig_share(name) is None)
    if generic := _TRES_GENERIC.search(text):
        # The untyped count counts every MIG device as a GPU.
        whole = max(float(generic.group(1)) - sum(count for _, count in sliced), 0.0)
    return whole + sum(share * count for share, count in sliced)


def mig_share(name: str) -> float | None:
    """The share of a GPU that a MIG device is, from its profile's name; None for a whole GPU."""
    found = _MIG.search(name.lower())
    if not found:
        return None
    slices, memory_gb = int(found.group(1)), int(found.group(2))
    return min(slices / (4 if memory_gb == slices * _A30_GB_PER_SLICE else 7), 1.0)


def parse_gpu_counts(text: pl.Series, unit: str = "gpu") -> pl.Series:
    """GPU counts of a column; null where missing or unknown."""
    numbers = text.cast(pl.Float64, strict=False)
    if numbers.null_count() == text.null_count() and bool((numbers.is_between(0, 1e9) | numbers.is_null()).all()):
        return numbers * GPU_UNITS[unit]
    return map_distinct(text, parse_gpu_count, pl.Float64()) * GPU_UNITS[unit]


def parse_lengths(text: pl.Series, unit: str = "s") -> pl.Series:
    """Seconds of a column of numbers in a unit, or of [DD-]HH:MM:SS; null where missing or unknown."""
    text = text.str.strip_suffix(" second(s)")  # LSF
    numbers = text.cast(pl.Float64, strict=False) * (TIME_UNITS[unit] / NS)
    if numbers.null_count() == text.null_count():
        return numbers.set(~numbers.is_finite(), None)
    parts = text.str.strip_chars().str.extract_groups(_LENGTH).struct.unnest()
    seconds = parts.select(
        pl.col("days").cast(pl.Float64).fill_null(0) * 86_400
        + pl.col("hours").cast(pl.Float64).fill_null(0) * 3600
        + pl.col("minutes").cast(pl.Float64) * 60
        + pl.col("seconds").cast(pl.Float64)
    ).to_series()
    return numbers.set(~numbers.is_finite(), None).fill_null(seconds)


def find_date_order(text: pl.Series, at_most: int = 200_000) -> str | None:
    """Whether days or months come first in dates such as 13.02.2024, from a column's values; "" where all fit both."""
    found = text.drop_nulls().head(at_most).str.strip_chars().str.extract_groups(_NUMERIC_DATE).struct.unnest()
    given, found = len(found), found.drop_nulls("first")
    if 2 * found.height <= given:
        return None  # a few cells that look like this are damaged cells of another form
    first, second = (found[name].cast(pl.Int64).max() or 0 for name in ("first", "second"))
    if (found["mark"] == ".").any() or first > 12:  # type: ignore[operator]
        return "dmy"
    return "mdy" if second > 12 or found["half"].is_not_null().any() else ""  # type: ignore[operator]


def _rewrite_dates(text: pl.Series, order: str) -> pl.Series:
    """Dates with the day or the month first, or with the month's name, as YYYY-MM-DD HH:MM:SS."""
    parts = text.str.strip_chars().str.extract_groups(_NUMERIC_DATE).struct.unnest()
    day, month = ("first", "second") if order == "dmy" else ("second", "first")
    named = text.str.strip_chars().str.extract_groups(_NAMED_DATE).struct.unnest()
    number = named["month"].str.to_lowercase().replace_strict(_MONTHS, default=None, return_dtype=pl.Int64)
    hour = parts["hour"].cast(pl.Int64)
    half = parts["half"].str.to_lowercase()
    turned = pl.when(half == "pm").then(hour % 12 + 12).when(half == "am").then(hour % 12).otherwise(hour).fill_null(0)
    year = parts["year"].cast(pl.Int64)
    numeric = pl.format(
        "{}-{}-{} {}:{}{}",
        pl.when(year < 100).then(year + 2000).otherwise(year),
        parts[month].str.zfill(2),
        parts[day].str.zfill(2),
        turned.cast(pl.String).str.zfill(2),
        parts["rest"].str.slice(1, 2).fill_null("00"),
        parts["rest"].str.slice(3, 3).fill_null(""),
    )
    by_name = pl.format(
        "{}-{}-{} {}",
        pl.coalesce(pl.lit(named["year"]), pl.lit(named["last"])),
        number.cast(pl.String).str.zfill(2),
        pl.coalesce(pl.lit(named["before"]), pl.lit(named["after"])).str.zfill(2),
        named["clock"].fill_null("00:00:00"),
    )
    return pl.select(pl.coalesce(numeric, by_name, pl.lit(text))).to_series().alias(text.name)


def parse_moments(text: pl.Series, zone: str | None, unit: str | None = None) -> Moments:
    """Times of a column; those without a zone are in `zone`, or in UTC if none is given."""
    order = unit if unit in DATE_ORDERS else find_date_order(text)
    if order == "":
        raise BadRowError(
            f"'{text.name}': days and months cannot be told apart (no number above 12), "
            f"as in {text.drop_nulls()[0]!r}; say which with --map {text.name}=COLUMN:dmy or :mdy"
        )
    if order or (len(text.drop_nulls()) and re.search("[A-Za-z]{3} |-[A-Za-z]{3}-", text.drop_nulls()[0])):
        text, unit = _rewrite_dates(text, order or "dmy"), None
    present = text.drop_nulls()
    if len(present) and present[0].strip().lower() in MISSING:
        present = present.filter(~is_missing(present))
    first = present[0].strip() if len(present) else ""
    if re.fullmatch(r"\d+(\.\d+)?", first):
        return _parse_epochs(text, TIME_UNITS[unit] if unit else _guess_scale(float(first)))
    plain = re.fullmatch(r"\d{4}([-/])\d\d\1\d\d([T ])\d\d:\d\d:\d\d(Z|[+-]\d\d:?\d\d)?", first)
    if plain and bool(((present.str.len_bytes() == len(first)) & present.str.ends_with(plain[3] or "")).all()):
        form = f"%Y{plain[1]}%m{plain[1]}%d{plain[2]}%H:%M:%S"
        local = text.str.head(19).str.to_datetime(form, time_unit="ns", strict=False, cache=False)
        offset = _name_offset(plain[3] or "")
        ns = _localise(local, zone) if offset == "" else local.cast(pl.Int64) - _offset_ns(offset)
        return Moments(ns, frozenset({offset}))
    return _parse_mixed(text, zone)


def _guess_scale(first: float) -> int:
    """Nanoseconds of a column's unit: seconds, or a finer one where the first value is too large for seconds."""
    return next((scale for bound, scale in ((1e11, NS), (1e14, 1_000_000), (1e17, 1000)) if first < bound), 1)


def _parse_epochs(text: pl.Series, scale: int) -> Moments:
    """Bare numbers of a unit of so many nanoseconds."""
    whole = text.cast(pl.Int64, strict=False)
    numbers = text.cast(pl.Float64, strict=False)
    numbers = numbers.set((numbers < 0) | ~numbers.is_finite() | (numbers * scale > 9e18), None)
    if float(numbers.max() or 0) * scale > 1e18:  # type: ignore[arg-type]
        numbers = numbers.set(numbers == 0, None)  # Among times of this century, 0 means "not yet".
    exact = whole.set(numbers.is_null(), None) * scale
    return Moments(exact.fill_null((numbers * scale).cast(pl.Int64, strict=False)), frozenset({"epoch"}))


def _parse_mixed(text: pl.Series, zone: str | None) -> Moments:
    """The slow way: each row in its own format, with or without seconds, fraction and offset."""
    parts = text.str.strip_chars().str.extract_groups(_MOMENT).struct.unnest()
    local = parts.select(
        pl.format(
            "{} {}{}",
            pl.col("date").str.replace_all("/", "-", literal=True),
            pl.col("clock").fill_null("00:00"),
            pl.col("second").fill_null(":00"),
        ).str.to_datetime("%Y-%m-%d %H:%M:%S", time_unit="ns", strict=False)
    ).to_series()
    fraction = (parts["fraction"].cast(pl.Float64, strict=False).fill_null(0) * NS).round().cast(pl.Int64)
    offset = parts["offset"].fill_null("")
    shift = map_distinct(offset, lambda o: _offset_ns(_name_offset(o)), pl.Int64())
    ns = pl.select(
        pl.when(offset == "").then(_localise(local, zone)).otherwise(local.cast(pl.Int64) - shift) + fraction
    ).to_series()
    seen = offset.filter(ns.is_not_null()).unique()
    return Moments(ns, frozenset(_name_offset(o) for o in seen))


def _localise(local: pl.Series, zone: str | None) -> pl.Series:
    """Wall-clock times of a zone as UTC nanoseconds; the hour that a clock change repeats counts as its first pass."""
    if zone is None:
        return local.cast(pl.Int64)
    aware = local.dt.replace_time_zone(zone, ambiguous="earliest", non_existent="null")
    return aware.dt.convert_time_zone("UTC").cast(pl.Int64)


def _name_offset(text: str) -> str:
    """Offsets in one form: Z is +00:00, +0800 is +08:00."""
    if text in ("Z", "UTC"):
        return "+00:00"
    return f"{text[:3]}:{text[3:]}" if len(text) == 5 else text


def _offset_ns(offset: str) -> int:
    """Nanoseconds by which a local clock is ahead of UTC."""
    if not offset:
        return 0
    sign = -1 if offset[0] == "-" else 1
    return sign * (int(offset[1:3]) * 3600 + int(offset[4:6]) * 60) * NS
