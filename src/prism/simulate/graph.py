"""The execution graph: the programs of all rank classes, and the ranks and groups that run them."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path

import polars as pl

from prism.errors import BadFileError, BadRowError
from prism.records.ops import GROUPS, OPS, RANKS
from prism.records.shape import Shape

SCHEMA = "prism.graph/1"
_TABLES = {"ops": OPS, "ranks": RANKS, "groups": GROUPS}


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """One job's execution: OPS by rank class, which class each rank runs, and who is in which group."""

    name: str
    ops: pl.DataFrame
    ranks: pl.DataFrame
    groups: pl.DataFrame

    @property
    def num_ranks(self) -> int:
        """How many ranks run."""
        return self.ranks.height

    @property
    def num_op_instances(self) -> int:
        """How many ops all ranks run together."""
        sizes = self.ops.group_by("class").len().join(self.ranks.select("class"), on="class", how="inner")
        return int(sizes["len"].sum())


def make_graph(name: str, ops: pl.DataFrame, ranks: pl.DataFrame, groups: pl.DataFrame) -> Graph:
    """A graph from three tables, checked for their columns and put in program order."""
    return Graph(
        name=name,
        ops=OPS.conform(ops, f"{name} ops").sort("class", "seq"),
        ranks=RANKS.conform(ranks, f"{name} ranks").sort("rank"),
        groups=GROUPS.conform(groups, f"{name} groups").sort("group", "position"),
    )


def save_graph(graph: Graph, folder: Path) -> None:
    """Write a graph as a folder of three Parquet tables and a small JSON file that names it."""
    folder.mkdir(parents=True, exist_ok=True)
    for table in _TABLES:
        getattr(graph, table).write_parquet(folder / f"{table}.parquet")
    (folder / "graph.json").write_text(json.dumps({"schema": SCHEMA, "name": graph.name}) + "\n")


def load_graph(folder: Path) -> Graph:
    """Read what `save_graph` wrote, also from the folder that `prism emulate --output` wrote around it."""
    if not (folder / "graph.json").is_file() and (folder / "graph" / "graph.json").is_file():
        folder = folder / "graph"
    about = folder / "graph.json"
    if not about.is_file():
        raise BadFileError(f"{folder}: not a graph; expected a folder with graph.json and {', '.join(_TABLES)}.parquet")
    try:
        document = json.loads(about.read_text())
        schema, name = document["schema"], str(document["name"])
    except (ValueError, KeyError, TypeError, UnicodeDecodeError) as error:
        raise BadFileError(f"{about}: not a graph description ({error}); write the graph again") from None
    if schema != SCHEMA:
        raise BadFileError(f"{about}: schema is {schema!r}, this version reads {SCHEMA!r}; write the graph again")
    tables = {table: _read_table(folder / f"{table}.parquet", shape) for table, shape in _TABLES.items()}
    return make_graph(name, **tables)


def repeat_graph(graph: Graph, times: int) -> Graph:
    """The same programs run `times` times in a row; step numbers continue."""
    if times < 1:
        raise BadRowError(f"a graph cannot run {times} times; give 1 or more")
    length = int(graph.ops["seq"].max() or 0) + 1  # type: ignore[arg-type]
    steps = int(graph.ops["step"].fill_null(0).max() or 0) + 1  # type: ignore[arg-type]
    batches = int(graph.ops["batch"].fill_null(0).max() or 0) + 1  # type: ignore[arg-type]
    parts = [
        graph.ops.with_columns(
            pl.col("seq") + i * length, pl.col("step").fill_null(0) + i * steps, pl.col("batch") + i * batches
        )
        for i in range(times)
    ]
    return replace(graph, ops=OPS.conform(pl.concat(parts), graph.name).sort("class", "seq"))


def label_groups(graph: Graph) -> pl.DataFrame:
    """The name of each group in messages and spans: its slot and its number among the groups of that slot."""
    first = graph.groups.group_by("group", maintain_order=True).agg(pl.col("slot").first(), pl.col("kind").first())
    number = pl.col("group").rank("dense").over("slot").cast(pl.Int64) - 1
    label = pl.col("slot") + "-" + number.cast(pl.String)
    return first.select("group", "slot", "kind", label.alias("label")).sort("group")


def _read_table(path: Path, shape: Shape) -> pl.DataFrame:
    if not path.is_file():
        raise BadFileError(f"{path}: missing; a graph folder holds {', '.join(_TABLES)}.parquet")
    try:
        frame = pl.read_parquet(path)
    except (pl.exceptions.PolarsError, OSError) as error:
        reason = str(error).splitlines()[0]
        raise BadFileError(f"{path}: not a readable Parquet file ({reason}); write the graph again") from None
    return shape.conform(frame, str(path))
