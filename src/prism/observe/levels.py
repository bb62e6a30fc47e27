"""Numbers that several stages ask for: how many are most of them, what is about the same, how much is enough.

A stage names what it asks in its own constant and takes the answer from here, so that one question has one answer.
"""

from __future__ import annotations

# Shares of a set, of a step, of a size.
ALMOST_ALL = 0.95
MOST = 0.8
MAJORITY = 0.6
HALF = 0.5
SOME = 0.3
FEW = 0.1
LITTLE = 0.03
HUNDREDTH = 0.01
TRACE = 0.003
THOUSANDTH = 0.001

SAME_SIZE = 0.05  # by which share two messages differ that carry the same
NUMBERS_BYTES = 4096  # what is smaller carries a few numbers, such as the norm of gradients, or nothing

# Times as much.
LONGER = 1.5
TWICE = 2.0
FAR = 4.0

# Standard deviations: what chance does not reach often, and what it never reaches.
CHANCE = 3.0
SURELY = 6.0

# Counts: of what a comparison needs, and of what is looked at where looking at all takes too long.
SEVERAL = 2
LEAST = 3
ENOUGH = 5
MANY = 8
SAMPLE = 12
LISTED = 24
MOST_SIZES = 96
FEW_MESSAGES = 300
MOST_MESSAGES = 2_000
MOST_RECORDS = 20_000

MILLISECOND_NS = 1_000_000
CLOCK_NS = 20_000  # by which clocks that are kept in step differ; shorter times mean nothing
