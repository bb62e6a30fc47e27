"""What was learned about a job before: the purpose of its streams and its layout hold for as long as it runs."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import polars as pl
from numpy.typing import NDArray

from prism.observe import levels
from prism.observe.jobs.grouping import ObservedJob
from prism.observe.parallelism.stages import StageMap
from prism.observe.traffic.table import Traffic
from prism.records.layout import Layout

Ints = NDArray[np.int64]

_SAME_SIZE = levels.SIZE_DIFFERENCE  # of the logarithm of bytes
_SOME = levels.MIN_SAMPLES  # steps
_UNLIKE = levels.THREE_PER_MILLE  # of a usual step: smaller costs are not worth reporting
# Share of the bytes in streams that were not seen before: the job does something else now.
_NEW = levels.SHARE_NEGLIGIBLE


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """A job as it was analysed, under the numbers that its endpoints had then; they come in the order of addresses."""

    labels: pl.DataFrame  # src dst size role kind: streams by the addresses of their ends, in order of size
    pairs: pl.DataFrame
    layout: Layout
    stages: StageMap
    endpoints: Ints
    clock: str | None = None  # that its steps went by

    def label(self, traffic: Traffic, streams: pl.DataFrame) -> pl.DataFrame | None:
        """Streams with their known role and kind; None if too much of what they carry is new."""
        named = _name_streams(traffic, streams).with_row_index("row").sort("size")
        labels = named.join_asof(
            self.labels, on="size", by=["src", "dst"], strategy="nearest", tolerance=_SAME_SIZE, check_sortedness=False
        ).sort("row")
        load = (streams["bytes"] * streams["num"]).to_numpy()
        if load[labels["role"].is_null().to_numpy()].sum() > _NEW * load.sum():
            return None
        return streams.with_columns(labels["role"].fill_null("rare"), labels["kind"].fill_null("unknown"))

    def place(self, job: ObservedJob) -> StageMap:
        """The stages, under the numbers that the endpoints of the same job have now."""
        now = dict(zip(self.endpoints.tolist(), job.endpoints.tolist(), strict=True))
        return replace(
            self.stages,
            stage={now[e]: s for e, s in self.stages.stage.items()},
            chains=tuple(tuple(now[e] for e in chain) for chain in self.stages.chains),
            through={now[a]: now[b] for a, b in self.stages.through.items()},
        )

    def name_pairs(self, traffic: Traffic, job: ObservedJob) -> pl.DataFrame | None:
        """The pairs, under the numbers they have now; None where they are others."""
        number = np.unique(np.concatenate([job.pairs, job.storage_pairs]))
        ends = [traffic.endpoints["address"].gather(traffic.pairs[c].gather(number)) for c in ("src", "dst")]
        same = (
            len(number) == self.pairs.height and ends[0].equals(self.pairs["src"]) and ends[1].equals(self.pairs["dst"])
        )
        return self.pairs.with_columns(pl.Series("pair", number.astype(np.uint32))) if same else None


def remember(
    traffic: Traffic, job: ObservedJob, streams: pl.DataFrame, pairs: pl.DataFrame, layout: Layout, stages: StageMap,
    clock: str | None,
) -> Known:  # fmt: skip
    """What later looks at the same job can reuse."""
    # Tied embeddings are distinguished from stages each time, as before.
    kind = streams["kind"].replace("embedding", "dp")
    labels = _name_streams(traffic, streams).with_columns(streams["role"], kind).sort("size")
    return Known(labels=labels, pairs=pairs, layout=layout, stages=stages, endpoints=job.endpoints, clock=clock)


def is_steady(steps: pl.DataFrame) -> bool:
    """Whether steps are all alike, so that nothing is wrong with them or with their clock."""
    length = (steps["end_ns"] - steps["start_ns"]).to_numpy()
    usual = float(np.median(length)) if len(length) else 0.0
    return len(length) >= _SOME and bool((np.abs(length - usual) <= _UNLIKE * usual).all())


def _name_streams(traffic: Traffic, streams: pl.DataFrame) -> pl.DataFrame:
    """src dst size: addresses, and the logarithm of the bytes of a message."""
    address = traffic.endpoints["address"]
    return pl.DataFrame(
        {
            "src": address.gather(streams["src"]),
            "dst": address.gather(streams["dst"]),
            "size": np.log(np.maximum(streams["bytes"].to_numpy(), 1.0)),
        }
    )
