"""Numbers that several stages ask for: how many are most of them, what is about the same, how much is enough.

A stage names what it asks in its own constant and takes the answer from here, so that one question has one answer.
Beside each number is what moving it by 20 % does to 17 captures and scenarios (docs/observe-thresholds.md).
"""

from __future__ import annotations

# Shares of a set, of a step, of a size.
ALMOST_ALL = 0.95  # 0.76 moves nothing, 1.14 moves 17 of 17
MOST = 0.8  # 0.64 moves nothing, 0.96 moves 2 of 17
MAJORITY = 0.6  # 0.48 to 0.72 move nothing
HALF = 0.5  # 0.4 moves nothing, 0.6 moves 1 of 17
SOME = 0.3  # 0.24 moves 2 of 17, 0.36 moves 1 of 17
FEW = 0.1  # 0.08 moves nothing, 0.12 moves 1 of 17
LITTLE = 0.03  # 0.024 to 0.036 move nothing
HUNDREDTH = 0.01  # 0.008 to 0.012 move nothing
TRACE = 0.003  # 0.0024 to 0.0036 move nothing
THOUSANDTH = 0.001  # 0.0008 to 0.0012 move nothing

SAME_SIZE = 0.05  # by which share two messages differ that carry the same; 0.04 to 0.06 move nothing
NUMBERS_BYTES = 4096  # what is smaller carries a few numbers, such as a norm, or nothing; 3277 to 4915 move nothing

# Times as much.
LONGER = 1.5  # 1.2 moves 1 of 17, 1.8 moves nothing
TWICE = 2.0  # 1.6 moves 1 of 17, 2.4 moves nothing
FAR = 4.0  # 3.2 to 4.8 move nothing

# Standard deviations: what chance does not reach often, and what it never reaches.
CHANCE = 3.0  # 2.4 to 3.6 move nothing
SURELY = 6.0  # 4.8 to 7.2 move nothing

# Counts: of what a comparison needs, and of what is looked at where looking at all takes too long.
SEVERAL = 2  # 1 to 3 move nothing
LEAST = 3  # 2 moves 1 of 17, 4 moves 1 of 17
ENOUGH = 5  # 4 moves 1 of 17, 6 moves nothing
MANY = 8  # 6 to 10 move nothing
SAMPLE = 12  # 10 to 14 move nothing
LISTED = 24  # 19 moves 1 of 17, 29 moves 1 of 17
MOST_SIZES = 96  # 77 to 115 move nothing
FEW_MESSAGES = 300  # 240 to 360 move nothing
MOST_MESSAGES = 2_000  # 1600 to 2400 move nothing
MOST_RECORDS = 20_000  # 16000 to 24000 move nothing

MILLISECOND_NS = 1_000_000  # 800000 to 1200000 move nothing
CLOCK_NS = 20_000  # by which clocks that are kept in step differ; 16000 to 24000 move nothing
