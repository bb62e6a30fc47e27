"""The files of an emulation: graph, timeline, flows, Chakra traces, JSON and a page to read."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from prism.emulate.document import describe_emulation
from prism.emulate.emulation import Emulation
from prism.emulate.live import LiveRun
from prism.emulate.report import write_report
from prism.records import FLOWS, SPANS, TOPOLOGY, write_table
from prism.records.perfetto import write_perfetto
from prism.simulate.chakra import export_chakra
from prism.simulate.endpoints import list_endpoints
from prism.simulate.flows import make_flows
from prism.simulate.graph import save_graph
from prism.simulate.spans import write_spans

_SHOWN_RANKS = 64  # a timeline of thousands of ranks opens in no viewer
_MOST_FLOW_RANKS = 1024


def write_outputs(
    emulation: Emulation, folder: Path, live: Sequence[LiveRun] = (), *, chakra: bool = False
) -> list[Path]:
    """Write everything that was found out into a folder; returns the files."""
    folder.mkdir(parents=True, exist_ok=True)
    ranks = choose_shown(emulation)
    solution = emulation.prediction.solution
    spans = write_spans(solution, ranks=ranks)
    written = [
        folder / name for name in ("emulation.json", "timeline.parquet", "timeline.perfetto-trace", "report.html")
    ]
    written[0].write_text(json.dumps(describe_emulation(emulation, live), indent=1) + "\n")
    write_table(spans, written[1], SPANS)
    write_perfetto(spans, written[2])
    write_report(emulation, spans, written[3], live)
    save_graph(emulation.stitched.graph, folder / "graph")
    written.append(folder / "graph")
    if emulation.config.capture.launch.world_size <= _MOST_FLOW_RANKS:
        cluster = emulation.prediction.cluster
        hosts = emulation.stitched.graph.ranks["host"].unique().sort().to_list()
        write_table(make_flows(solution, cluster), folder / "flows.parquet", FLOWS)
        write_table(list_endpoints(cluster, hosts), folder / "topology.csv", TOPOLOGY)
        written += [folder / "flows.parquet", folder / "topology.csv"]
    if chakra:
        export_chakra(emulation.stitched.graph, folder / "chakra", ranks)
        written.append(folder / "chakra")
    return written


def choose_shown(emulation: Emulation) -> list[int]:
    """Ranks whose timeline is written: the first of every class, then neighbours until the viewer is full."""
    world = emulation.config.capture.launch.world_size
    firsts = [emulation.stitched.classes.members(c)[0] for c in range(len(emulation.stitched.classes.captured))]
    shown = sorted(set(firsts[:_SHOWN_RANKS]) | set(range(min(world, _SHOWN_RANKS - len(firsts)))))
    return shown[:_SHOWN_RANKS]
