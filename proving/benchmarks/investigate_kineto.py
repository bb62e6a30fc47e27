"""Profiler traces: every figure beside Holistic Trace Analysis (HTA), with the ratio of time and memory.

    python -m venv /tmp/hta && /tmp/hta/bin/pip install HolisticTraceAnalysis
    python proving/benchmarks/investigate_kineto.py TRACES... --hta /tmp/hta/bin/python [--repeat 8] [--large-mb 1024]

TRACES are folders with the traces of one run each. `--repeat` also measures both on one trace repeated so often, and
`--large-mb` Prism alone on one repeated to that size, which HTA would hold in memory as a whole. Each runs in a process
of its own; seconds are those of the processor, start-up included. HTA is asked for all steps (it leaves out the last
one by default) and not to round to microseconds. Where the launch of a kernel lies before the trace begins, HTA takes
another event for it, so its idle times by cause are off there.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from machine import describe_machine, peak_rss_bytes

HTA = """
import json, logging, re, resource, sys, warnings
warnings.filterwarnings("ignore"); logging.disable(logging.CRITICAL)
from pathlib import Path
from hta.trace_analysis import TraceAnalysis
files = {i: str(p) for i, p in enumerate(sorted(Path(sys.argv[1]).glob("*.json*")))}
found = TraceAnalysis(trace_files=files, trace_dir="", include_last_profiler_step=True)
out = {}
overlap = found.get_comm_comp_overlap(visualize=False).set_index("rank")
for row in found.get_temporal_breakdown(visualize=False).to_dict("records"):
    rank = int(row["rank"])
    out[f"{rank} span"] = row["kernel_time(us)"]; out[f"{rank} idle"] = row["idle_time(us)"]
    out[f"{rank} compute"] = row["compute_time(us)"]; out[f"{rank} rest"] = row["non_compute_time(us)"]
    out[f"{rank} overlap %"] = float(overlap.loc[rank, "comp_comm_overlap_pctg"])
    for idle in found.get_idle_time_breakdown(ranks=[rank], visualize=False)[0].to_dict("records"):
        out[f"{rank} stream {int(idle['stream'])} {idle['idle_category']}"] = idle["idle_time"]
peak = max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
print(json.dumps({"figures": out, "peak_bytes": peak * 1024}))
"""
CAUSES = {"host": "host_wait", "launch": "kernel_wait", "other": "other"}


def measure_prism(folder: Path) -> dict[str, Any]:
    """The same figures from Prism, named as HTA's are above."""
    from prism.evidence.traces import study_files

    found = study_files(sorted(folder.glob("*.json*")))
    out = {}
    for row in found.breakdown.filter(found.breakdown["step"].is_null()).iter_rows(named=True):
        us = {name: value / 1000 for name, value in row.items() if name.endswith("_ns")}
        rank = row["rank"]
        out[f"{rank} span"], out[f"{rank} idle"], out[f"{rank} compute"] = (
            us["span_ns"],
            us["idle_ns"],
            us["compute_ns"],
        )
        out[f"{rank} rest"] = us["exposed_ns"] + us["copies_ns"]
        out[f"{rank} overlap %"] = round(100 * us["overlapped_ns"] / us["communication_ns"], 2)
    for row in found.idle_by_stream.iter_rows(named=True):
        out[f"{row['rank']} stream {row['lane']} {CAUSES[row['cause']]}"] = round(row["idle_ns"] / 1000, 2)
    return {"figures": out, "peak_bytes": peak_rss_bytes()}


def run(command: list[str]) -> dict[str, Any]:
    """Run one reader in its own process."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env=os.environ | {"HTA_DISABLE_NS_ROUNDING": "1"}
    )
    if done.returncode:
        raise SystemExit(f"{command[0]} failed: {done.stderr[-500:]}")
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    told: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return {**told, "seconds": used.ru_utime + used.ru_stime - before.ru_utime - before.ru_stime}


def repeat_trace(source: Path, target: Path, *, times: int | None = None, megabytes: int | None = None) -> None:
    """Write a trace again and again behind itself: later, with new correlation numbers, until it is large enough."""
    with gzip.open(source) as handle:
        trace = json.load(handle)
    events = trace.pop("traceEvents")
    starts = [e["ts"] for e in events if "ts" in e]
    length = max(e["ts"] + e.get("dur", 0) for e in events if "ts" in e) - min(starts) + 1000
    # The number of a launch and the start are written anew each time; the rest is text that was made once.
    cut = []
    for event in events:
        args = event.get("args", {})
        number = args.pop("correlation", None) if isinstance(args, dict) else None
        start = event.pop("ts", None)
        event["args"] = None
        text = json.dumps(event)[: -len('"args": null}')] + '"args": ' + json.dumps(args)[:-1]
        cut.append((text + (", " if args else ""), number, start))
    with target.open("w") as out:
        out.write(json.dumps(trace)[:-1] + ', "traceEvents": [\n')
        round_ = 0
        while (times is not None and round_ < times) or (megabytes is not None and out.tell() < megabytes << 20):
            lines = []
            for text, number, start in cut:
                ends = "}" if number is None else f'"correlation": {number + 1_000_000 * round_}}}'
                at = "" if start is None else f', "ts": {start + round_ * length!r}'
                lines.append((text if number is not None else text.removesuffix(", ")) + ends + at + "}")
            out.write((",\n" if round_ else "") + ",\n".join(lines))
            round_ += 1
        out.write("\n]}")


def compare(folder: Path, hta: str) -> None:
    """Print how many figures are equal, and the ratios."""
    ours, theirs = run([sys.executable, __file__, "--only", str(folder)]), run([hta, "-c", HTA, str(folder)])
    names = sorted(set(ours["figures"]) | set(theirs["figures"]))
    differ = [n for n in names if not equal(ours["figures"].get(n), theirs["figures"].get(n))]
    size = sum(p.stat().st_size for p in folder.glob("*.json*")) / 1e6
    print(
        f"{folder.name}: {size:.1f} MB, {len(names) - len(differ)} of {len(names)} figures equal; "
        f"Prism {ours['seconds']:.1f} s, {ours['peak_bytes'] / 1e6:.0f} MB; HTA {theirs['seconds']:.1f} s, "
        f"{theirs['peak_bytes'] / 1e6:.0f} MB; {theirs['seconds'] / ours['seconds']:.1f} times as fast, "
        f"{theirs['peak_bytes'] / ours['peak_bytes']:.1f} times less memory"
    )
    for name in differ[:10]:
        print(f"  {name}: Prism {ours['figures'].get(name)}, HTA {theirs['figures'].get(name)}")


def equal(one: float | None, other: float | None) -> bool:
    """Whether both say the same, to 10 ns of the doubles that HTA adds up."""
    if one is None or other is None:
        return (one or 0.0) == (other or 0.0)
    return abs(one - other) <= max(0.0101, 1e-7 * abs(one))


def main() -> None:
    """Compare on the given traces, then on repeated ones."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("traces", nargs="*", type=Path)
    parser.add_argument("--hta", default="/tmp/hta/bin/python")
    parser.add_argument("--repeat", type=int, default=0)
    parser.add_argument("--large-mb", type=int, default=0)
    parser.add_argument("--only", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.only:
        print(json.dumps(measure_prism(given.only)))
        return
    print(describe_machine())
    for folder in given.traces:
        compare(folder, given.hta)
    with tempfile.TemporaryDirectory() as place:
        source = max((p for f in given.traces for p in f.glob("*.gz")), key=lambda p: p.stat().st_size)
        for name, size in (("repeated", {"times": given.repeat}), ("large", {"megabytes": given.large_mb})):
            if not any(size.values()):
                continue
            folder = Path(place) / name
            folder.mkdir()
            repeat_trace(source, folder / "rank0.json", **size)
            if name == "repeated":
                compare(folder, given.hta)
            else:
                ours = run([sys.executable, __file__, "--only", str(folder)])
                megabytes = (folder / "rank0.json").stat().st_size / 1e6
                print(f"large: {megabytes:.0f} MB in {ours['seconds']:.1f} s and {ours['peak_bytes'] / 1e6:.0f} MB")


if __name__ == "__main__":
    main()
