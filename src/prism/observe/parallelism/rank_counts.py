"""The number of ranks of a job: one per NIC, unless there is evidence that several share one."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

import numpy as np
import polars as pl
from numpy.typing import NDArray

from prism.observe import levels
from prism.observe.jobs.grouping import ObservedJob
from prism.observe.parallelism.gradient_groups import shows_all_ranks
from prism.observe.traffic.preparation import WRITE_BYTES
from prism.observe.traffic.table import Traffic

Ints = NDArray[np.int64]

_USUAL_GPUS = 8  # of a host; the count that evidence of several ranks behind one NIC must lead to
_USUALLY = levels.SHARE_LARGE  # of the hosts with one or two fast NICs that have as many: 12 of 15 layouts were right
_FEW_NICS = 2  # at most, of a host with more GPUs than NICs
_FAST_GBPS = 25.0  # a NIC above which a host has several GPUs; machines with one have 1, 10 or 25 Gbit/s
_LARGE_BYTES = WRITE_BYTES  # of a transfer that shows how fast a NIC is
_QUICKEST = levels.SAMPLED_STREAMS  # transfers that show it


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """How many ranks a job has, and how many of them a host holds."""

    total: int
    per_host: float
    shared: bool  # whether NICs are shared by several
    guessed: bool = False  # from what is usual, not from what was seen
    likely: float = 1.0  # beside other counts


def list_rank_counts(
    traffic: Traffic, job: ObservedJob, streams: pl.DataFrame, gpus_per_host: int | None, host: Ints
) -> list[Ranks]:
    """One rank per NIC, unless several connections of one kind and moment show that NICs are shared.

    Several counts, one rank per NIC first, where records do not show how many ranks are behind a NIC.
    """
    hosts = np.unique(host[job.endpoints])
    count = len(job.endpoints) + _count_silent_nics(traffic, job, streams, hosts, host)
    nics = count / max(len(hosts), 1)
    if gpus_per_host is not None:
        known = [traffic.nics_of_host.get(int(h), 0) for h in hosts]
        usual = max(Counter(known).most_common(1)[0][0], 1) if known else 1
        share = max(1.0, gpus_per_host / usual)
        return [Ranks(total=round(count * share), per_host=nics * share, shared=share > 1)]
    shared = _ranks_per_nic(streams)
    behind, odd = divmod(_USUAL_GPUS, max(round(nics), 1))
    each = Ranks(total=count, per_host=nics, shared=False)
    # Connections are those of several ranks in a pipeline; in a ring they are channels of one collective.
    piped = bool((streams["kind"] == "pp").any())
    if traffic.connected and behind > 1 and shows_all_ranks(traffic, streams, behind):
        return [each]
    if shared > 1 and not odd and (shared == behind or (piped and behind > 1 and shared % behind == 0)):
        return [Ranks(total=count * behind, per_host=nics * behind, shared=True)]
    if (shared > 1 if piped else traffic.connected) and _are_servers(traffic, job, hosts, _FAST_GBPS, piped=piped):
        eight = Ranks(total=len(hosts) * _USUAL_GPUS, per_host=_USUAL_GPUS, shared=piped, guessed=True, likely=_USUALLY)
        return [eight, replace(each, likely=1 - _USUALLY)]
    listed = {traffic.nics_of_host.get(int(h), 0) for h in hosts}
    if piped or odd or behind == 1 or listed != {round(nics)} or round(nics) <= _FEW_NICS:
        return [each]
    # A host with four NICs may have four GPUs or eight, and nothing that the network carries tells.
    return [each, Ranks(total=count * behind, per_host=nics * behind, shared=False, guessed=True)]


def count_unseen_ranks(
    traffic: Traffic, job: ObservedJob, senders: float, gpus_per_host: int | None = None
) -> Ranks | None:
    """How many ranks a job has where single messages do not show; None where more of them may be behind a NIC.

    `senders` are connections from one endpoint to another that each are one rank's, where there are any.
    """
    hosts = np.unique(traffic.endpoints["host_id"].to_numpy()[job.endpoints])
    nics = len(job.endpoints) / len(hosts)
    listed = {traffic.nics_of_host.get(int(h), 0) for h in hosts}
    most = max(listed)
    behind, odd = divmod(gpus_per_host or _USUAL_GPUS, most) if most else (1, 0)
    shared = Ranks(total=len(job.endpoints) * behind, per_host=nics * behind, shared=behind > 1)
    if gpus_per_host is not None and most and not odd:
        return shared
    if not 0 < most <= _FEW_NICS:
        # A host with four NICs may have four GPUs or eight.
        return replace(shared, total=len(job.endpoints), per_host=nics, shared=False, guessed=not odd and behind > 1)
    if senders == behind and traffic.connected:
        return shared
    if senders == 1:
        return replace(shared, total=len(job.endpoints), per_host=nics, shared=False, guessed=True)
    # What lasts for several steps shows an average over the time that nothing is sent in, too.
    enough = _FAST_GBPS / levels.RATIO_DOUBLE
    return replace(shared, guessed=True) if _are_servers(traffic, job, hosts, enough, piped=False) else None


def _are_servers(traffic: Traffic, job: ObservedJob, hosts: Ints, gbps: float, *, piped: bool) -> bool:
    """Whether hosts have one or two NICs, fast enough for several GPUs: records do not show how many are behind.

    NCCL opens several connections between two hosts for one GPU too, so that they do not tell.
    """
    if any(not 0 < traffic.nics_of_host.get(int(h), 0) <= _FEW_NICS for h in hosts):
        return False
    sender = traffic.pairs["src"].to_numpy()[job.pairs]
    busiest = np.bincount(sender, traffic.pairs["bytes"].to_numpy()[job.pairs]).argmax()
    sent = traffic.messages_of(job.pairs[sender == busiest])
    return _measure_speed(sent, together=not piped) >= gbps


def _measure_speed(sent: pl.DataFrame, *, together: bool) -> float:
    """What a NIC carries in Gbit/s at its quickest, over one message or over all that share it `together`.

    Channels of a collective share a NIC all the time. In a pipeline one rank may send alone, and then shows its speed.
    Hops that wait for a late rank seem slow, so the quickest of many large transfers count.
    """
    start, end, size = (sent[c].to_numpy().astype(np.float64) for c in ("start_ns", "end_ns", "bytes"))
    took = np.maximum(end - start, 1.0)
    large = np.flatnonzero((size >= _LARGE_BYTES) & (end > start))
    if not len(large):
        return 0.0
    large = large[np.argsort(-size[large] / took[large], kind="stable")[:_QUICKEST]]
    if not together:
        return float(np.quantile(8 * size[large] / took[large], 0.9))
    # What of every message passes while a large one does.
    beside = [np.clip(np.minimum(end, end[i]) - np.maximum(start, start[i]), 0.0, None) @ (size / took) for i in large]
    return float(np.quantile(8 * np.array(beside) / took[large], 0.9))


def _count_silent_nics(traffic: Traffic, job: ObservedJob, streams: pl.DataFrame, hosts: Ints, host: Ints) -> int:
    """NICs of the job's hosts that nobody uses, though ranks do: inner stages never speak outside where no gradients
    leave a host, nor do inner ranks of a ring that enters a host by one NIC and leaves it by another.
    """
    dp = streams.filter(pl.col("kind") == "dp")
    piped, both = (streams["kind"] == "pp").any(), dp["src"].is_in(dp["dst"].implode()).any()
    if both or not (piped or dp.height) or (piped and dp.height):
        return 0
    own = count_own_nics(traffic, job)
    seen = np.bincount(host[job.endpoints], minlength=int(hosts.max()) + 1)
    return sum(max(own[h] - int(seen[h]), 0) for h in hosts.tolist())


def count_own_nics(traffic: Traffic, job: ObservedJob) -> dict[int, int]:
    """NICs of each of the job's hosts: all that the host has where no other job uses any, else those that are seen."""
    host = traffic.endpoints["host_id"].to_numpy().astype(np.int64)
    seen_on = np.bincount(host)
    own = np.bincount(host[job.endpoints], minlength=len(seen_on))
    return {
        h: max(int(own[h]), traffic.nics_of_host.get(h, 0) if own[h] == seen_on[h] else 0)
        for h in np.unique(host[job.endpoints]).tolist()
    }


def _ranks_per_nic(streams: pl.DataFrame) -> int:
    """Connections of one kind between two NICs: pipelines of several ranks, gradients of several groups."""
    busy = streams.filter(pl.col("kind").is_in(["pp", "dp"]))
    if busy.is_empty():
        return 1
    per_pair = busy.group_by("pair", "kind").agg(pl.col("connection").n_unique().alias("n"))
    most = [int(per_pair.filter(pl.col("kind") == k)["n"].mode().max() or 1) for k in ("pp", "dp")]  # type: ignore[arg-type]
    return max(most)


def list_nics(traffic: Traffic, job: ObservedJob) -> pl.DataFrame:
    """The job's endpoints with their place among the NICs of their host, or among the job's own on a shared host."""
    places = pl.col("host_id").replace_strict(count_own_nics(traffic, job), return_dtype=pl.Int64)
    own = traffic.endpoints[job.endpoints].with_columns(places.alias("places"), pl.len().over("host_id").alias("seen"))
    ranked = pl.struct("rail", "endpoint").rank("ordinal").over("host_id").cast(pl.Int64) - 1
    by_rail = pl.col("rail").cast(pl.Int64) - pl.col("rail").min()
    silent = (pl.col("places") > pl.col("seen")) & pl.col("rail").is_not_null()
    return own.select("endpoint", "host_id", pl.when(silent).then(by_rail).otherwise(ranked).alias("place"), "places")
