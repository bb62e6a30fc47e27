"""Small scenarios that the tests share."""

from __future__ import annotations

from prism.lab.scenarios import Scenario, read_scenario

PLAIN = """
cluster: {{preset: dgx-h100, num_hosts: {hosts}, fabric: {{hosts_per_leaf: 2, num_spines: 2, rail_optimized: {rail}}}}}
duration_s: {duration}
jobs:
  - {{id: a, model: {model}, {job}}}
{rest}
"""


def small(
    job: str = "dp: 2, tp: 4, pp: 4, microbatches: 8, micro_batch: 8", *, hosts: int = 4, duration: float = 8.0,
    rest: str = "", rail: bool = True, model: str = "{preset: gpt-1.3b, layers: 8, tied: false}",
) -> Scenario:  # fmt: skip
    """One job of a few layers on a few hosts."""
    text = PLAIN.format(hosts=hosts, duration=duration, job=job, rest=rest, rail=str(rail).lower(), model=model)
    return read_scenario(text, "small")
