"""Verdicts: a cause is told only where steps are told better with it than with none.

A cause that begins or ends within the observation says which steps are longer. With no cause steps scatter about one
length. How far the two are apart, in standard errors, is how sure it is that there is a cause at all. What lasts all
the time is judged by its calls alone: there are no steps to compare with.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from prism.observe import levels
from prism.observe.findings.case import Case, Floats
from prism.observe.findings.windows import spread_of
from prism.records.findings import Finding

_SCATTER = math.sqrt(math.pi / 2)  # a median scatters so much more than a mean
_OUTLIERS = levels.SIGMAS_CERTAIN  # standard deviations beyond which a step counts no further


def decide(case: Case, causes: list[Finding]) -> list[Finding]:
    """The causes that beat none, none of them surer than that there is one.

    Contention comes and goes within steps: it was compared with what the same transfers take without the other tenant.
    """
    sure = [1.0 if cause.kind == "contention" else weigh(case, cause) for cause in causes]
    return [
        replace(c, score=round(min(c.score, s), 3)) for c, s in zip(causes, sure, strict=True) if s >= levels.SHARE_HALF
    ]


def weigh(case: Case, cause: Finding) -> float:
    """The probability that the steps of a cause are longer than the others; 1 where there are none to compare with."""
    starts = case.steps["start_ns"].to_numpy()
    during = (starts >= cause.start_ns) & (starts < cause.end_ns)
    inside, outside = case.length_s[during], case.length_s[~during]
    if len(outside) < levels.MIN_SAMPLES or not len(inside):
        return 1.0
    usual = float(np.median(outside))
    noise = max(_measure_noise(outside), levels.THREE_PER_MILLE * levels.SHARE_SMALL * usual)
    # A link that flaps lengthens some steps only, which a median would not show.
    more = float(np.clip(inside - usual, -_OUTLIERS * noise, None).mean())
    error = noise * np.sqrt(1 / len(inside) + _SCATTER**2 / len(outside))
    return float(1 - np.exp(-0.5 * (more / error) ** 2)) if more > 0 else 0.0


def _measure_noise(lengths: Floats) -> float:
    """How much a step differs from the next by chance; what changes once or slowly does not count."""
    return spread_of(np.diff(lengths)) / float(np.sqrt(2)) if len(lengths) > 1 else 0.0
