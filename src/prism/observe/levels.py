"""Thresholds that several stages share: one question has one answer.

A stage gives its question a name in its own constant and takes the value from here. The comment at each number says
what moving it by 20 % did to 17 captures and scenarios (proving/benchmarks/observe_sensitivity.py,
docs/observe-thresholds.md).
"""

from __future__ import annotations

# Shares of a set, of a step, of a size.
SHARE_NEARLY_ALL = 0.95  # 0.76 moves 4 of 17, 1.14 is no share
SHARE_LARGE = 0.8  # 0.64 moves nothing, 0.96 moves 4 of 17
SHARE_MAJORITY = 0.6  # 0.48 to 0.72 move nothing
SHARE_HALF = 0.5  # 0.4 moves 1 of 17, 0.6 moves 1 of 17
SHARE_MINOR = 0.3  # 0.24 moves 1 of 17, 0.36 moves nothing
SHARE_SMALL = 0.1  # 0.08 to 0.12 move nothing
SHARE_QUICK = 0.25  # of steps, and of similar members, that are surely not late; 0.2 moves 1 of 17, 0.3 moves 1 of 17
SHARE_NEGLIGIBLE = 0.03  # 0.024 to 0.036 move nothing
WORTH_TELLING = 0.005  # of the time of a job's GPUs: what costs less is not reported; 0.004 to 0.006 move nothing
ONE_PERCENT = 0.01  # 0.008 to 0.012 move nothing
THREE_PER_MILLE = 0.003  # 0.0024 to 0.0036 move nothing
TWO_PER_MILLE = 0.002  # of a step: smaller differences are ignored; 0.0016 to 0.0024 move nothing
ONE_PER_MILLE = 0.001  # 0.0008 to 0.0012 move nothing

SIZE_DIFFERENCE = 0.05  # share by which sizes of equal content differ; 0.04 moves nothing, 0.06 moves 1 of 17
SMALL_MESSAGE_BYTES = 4096  # smaller ones carry a few numbers, such as a norm, or nothing; 3277 to 4915 move nothing

# Times as long, as many, as large.
RATIO_LONGER = 1.5  # 1.2 moves 1 of 17, 1.8 moves nothing
RATIO_DOUBLE = 2.0  # 1.6 to 2.4 move nothing
RATIO_FAR = 4.0  # 3.2 to 4.8 move nothing

# Standard deviations that chance seldom reaches, and that it never reaches.
SIGMAS_UNLIKELY = 3.0  # 2.4 moves nothing, 3.6 moves 1 of 17
SIGMAS_CERTAIN = 6.0  # 4.8 to 7.2 move nothing

# How many a comparison needs at least.
MIN_TWO = 2  # 1 to 3 move nothing
MIN_SAMPLES = 3  # 2 moves 1 of 17, 4 moves 1 of 17
MIN_COMPARED = 4  # similar items that allow a comparison; 3 to 5 move nothing
MIN_EVENTS = 5  # 4 moves 1 of 17, 6 moves nothing
MIN_STATISTICS = 8  # 6 to 10 move nothing

# How many are examined, if examining all takes too long.
SAMPLED_GROUPS = 12  # 10 to 14 move nothing
SAMPLED_STREAMS = 24  # 19 to 29 move nothing
SAMPLED_SIZES = 96  # 77 to 115 move nothing
SAMPLED_MESSAGES = 300  # 240 to 360 move nothing
MAX_MESSAGES = 2_000  # 1600 to 2400 move nothing
MAX_RECORDS = 20_000  # 16000 to 24000 move nothing

MILLISECOND_NS = 1_000_000  # 800000 to 1200000 move nothing
CLOCK_TOLERANCE_NS = 20_000  # difference of synchronized clocks; 16000 to 24000 move nothing
