"""What collectives cost on this host, measured once and kept: the first emulation of CPU ranks needs no set-up."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import platform
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from prism.emulate.capture import Capture
from prism.emulate.families import Families
from prism.emulate.inside.measure_plan import KINDS, MeasurePlan, Wanted
from prism.emulate.measuring import measure_collectives
from prism.errors import PrismError
from prism.machine.files import replacing
from prism.machine.processes import list_pids, read_stat
from prism.simulate.calibration import Calibration, calibration_of, read_calibration, write_calibration

_SIZES = tuple(1 << k for k in range(10, 27, 2))  # 1 KiB to 64 MiB; what lies between follows the model's shape
MOST_BUSY_SHARE = 0.5  # processes of others per core; what is measured beside them would be kept for quieter times
_STAND_INS = {"recv": "send", "reduce": "all_reduce", "gather": "all_gather", "scatter": "broadcast"}


@dataclass(frozen=True, slots=True, kw_only=True)
class HostConfig:
    """How much time the first emulation may spend on measuring, and where the points are kept."""

    budget_s: float = 12.0
    repetitions: int = 12
    folder: Path | None = None  # None: the user's cache
    note: Callable[[str], None] = lambda message: None


def calibrate_this_host(captures: Mapping[int, Capture], families: Families, config: HostConfig) -> Path | None:
    """A calibration file with the collectives that these ranks call, as far as this host can run them."""
    cores = len(os.sched_getaffinity(0))
    needed = list_needed(captures, families, cores)
    folder = config.folder or _cache_folder()
    if not needed or folder is None:
        return None
    path = folder / f"gloo-{_name_host(cores)}.parquet"
    known = _read(path)
    have = _points_of(known)
    missing = [wanted for wanted in needed if (wanted.kind, wanted.num_ranks, wanted.bytes) not in have]
    if not missing:
        return path
    running = count_running()
    if running > MOST_BUSY_SHARE * cores:
        config.note(f"this host is busy ({running:.1f} processes run on {cores} cores): collectives are modelled")
        return None
    ranks = max(wanted.num_ranks for wanted in missing)
    missing = [wanted for wanted in missing if ranks % wanted.num_ranks == 0]
    config.note(f"measuring {len(missing)} collectives between {ranks} cores of this host, once ({path})")
    plan = MeasurePlan(backend="gloo", wanted=tuple(missing), repetitions=config.repetitions, budget_s=config.budget_s)
    try:
        points = pl.DataFrame(measure_collectives(plan, ranks, pin=False, timeout_s=60 + 10 * config.budget_s))
        found = calibration_of(points)
        folder.mkdir(parents=True, exist_ok=True)
        merged = found.points if known is None else pl.concat([known.points, found.points])
        with replacing(path) as part:
            write_calibration(Calibration("gloo", merged), part)
    except (PrismError, OSError) as error:
        config.note(f"collectives of this host could not be measured ({error}); their times are modelled")
        return None
    return path


def count_running(samples: int = 10, interval_s: float = 0.02) -> float:
    """Processes that want one of this process's cores now, itself not counted."""
    cores = os.sched_getaffinity(0)
    share = len(cores) / (os.cpu_count() or len(cores))
    total = 0.0
    for _ in range(samples):
        on_cores = _cores_in_use()
        near = sum(core in cores for core in on_cores)
        # Threads, and processes of other containers, are counted by the kernel but not shown with their core.
        total += near + max(_count_on_host() - len(on_cores), 0) * share
        time.sleep(interval_s)
    return max(total / samples - 1, 0.0)


def _cores_in_use() -> list[int]:
    """The core of every running process that can be seen."""
    stats = map(read_stat, list_pids())
    return [int(fields[36]) for fields in stats if fields and fields[0] == "R"]


def _count_on_host() -> int:
    try:
        return int(Path("/proc/loadavg").read_text().split()[3].partition("/")[0])
    except (OSError, ValueError, IndexError):
        return 0


def list_needed(captures: Mapping[int, Capture], families: Families, cores: int) -> list[Wanted]:
    """Kinds, group sizes and sizes worth measuring: powers of four around those that the ranks use."""
    ranges: dict[tuple[str, int], tuple[int, int]] = {}
    for capture in captures.values():
        for entry in capture.entries:
            if not entry.is_communication:
                continue
            kind = _STAND_INS.get(entry.what, entry.what)
            size = 2 if kind == "send" else _fit_group(families.by_name[entry.group].size, cores)
            if kind in KINDS and size > 1:
                low, high = ranges.get((kind, size), (entry.bytes, entry.bytes))
                ranges[kind, size] = (min(low, entry.bytes), max(high, entry.bytes))
    out = []
    for (kind, size), (low, high) in sorted(ranges.items()):
        out += [Wanted(kind, size, number) for number in ((0,) if kind == "barrier" else _around(low, high))]
    return out


def _fit_group(size: int, cores: int) -> int:
    """The largest power of two that this host can run of a group of this size; 1 where it is none."""
    largest = min(size, cores)
    return 1 << (largest.bit_length() - 1) if largest >= 2 else 1


def _around(low: int, high: int) -> list[int]:
    """The sizes from the last one not above `low` to the first one not below `high`."""
    below = max((s for s in _SIZES if s <= low), default=_SIZES[0])
    above = min((s for s in _SIZES if s >= high), default=_SIZES[-1])
    return [s for s in _SIZES if below <= s <= above]


def _points_of(known: Calibration | None) -> Collection[tuple[str, int, int]]:
    if known is None:
        return ()
    return set(known.points.select(pl.col("kind").cast(pl.String), "num_ranks", "bytes").iter_rows())


def _read(path: Path) -> Calibration | None:
    """What was measured before; a broken file is measured again."""
    try:
        return read_calibration(path)
    except PrismError:
        return None


def _cache_folder() -> Path | None:
    home = os.environ.get("XDG_CACHE_HOME") or (f"{os.environ['HOME']}/.cache" if "HOME" in os.environ else None)
    return Path(home) / "prism" / "collectives" if home else None


def _name_host(cores: int) -> str:
    """Changes with whatever changes the times: the host, its processor, the cores at hand, torch."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.is_file() else []
    model = next((line for line in lines if line.startswith("model name")), platform.processor())
    facts = (platform.node(), model, str(cores), "not pinned", importlib.metadata.version("torch"))
    return hashlib.sha256("\n".join(facts).encode()).hexdigest()[:12]
