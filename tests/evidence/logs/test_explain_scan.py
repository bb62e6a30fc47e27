"""One pass over a log of any size and content: the same answer from both scanners, and bounded memory."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prism.evidence.logs import diagnose, read_text
from prism.evidence.logs.scan import MAX_LINE_BYTES, scan_compiled, scan_log, scan_plain, whole_lines

WORDS = st.sampled_from(
    [
        b"iteration 3 loss: 2.0",
        b"ValueError: bad",
        b"all is well",
        b"",
        b"\xff\xfe\x00",
        b"Traceback",
        b"step 9",
        b"x" * 30,
    ]
)
ENDS = st.sampled_from([b"\n", b"\r", b"\r\n"])


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(WORDS, ENDS), max_size=60), st.integers(0, 5), WORDS)
def test_the_compiled_and_the_plain_scanner_agree(lines, head, rest):
    chunk = b"".join(text + end for text, end in lines) + rest
    if not chunk:
        return
    fast, plain = scan_compiled(chunk, head), scan_plain(chunk, head)
    for column in ("starts", "ends", "lines", "progress"):
        assert np.array_equal(getattr(fast, column), getattr(plain, column)), column
    assert np.array_equal(fast.triggers >= 0, plain.triggers >= 0)
    assert (fast.num_lines, fast.num_progress) == (plain.num_lines, plain.num_progress)


@settings(deadline=None)
@given(st.lists(st.binary(max_size=50), max_size=20))
def test_cutting_at_line_ends_loses_no_byte(chunks):
    assert b"".join(piece for piece, _ in whole_lines(chunks)) == b"".join(chunks)


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=3000))
def test_any_bytes_end_in_a_verdict(data):
    verdict = diagnose(read_text(data)).verdict
    assert 0 <= verdict.confidence <= 1
    assert all(1 <= e.line <= max(1, verdict.lines_read) for e in verdict.evidence)


def test_line_numbers_count_newlines_and_not_carriage_returns():
    text = b"10%\r20%\r30%\nfine\nprogress 1\rprogress 2\rValueError: bad value\n"
    verdict = diagnose(read_text(text)).verdict
    assert verdict.reason == "ValueError"
    assert (verdict.evidence[0].line, verdict.evidence[0].text) == (3, "ValueError: bad value")


def test_one_endless_line_is_read_in_bounded_memory_and_its_error_found():
    def chunks():
        for _ in range(24):
            yield b"x" * (4 << 20)
        yield b" RuntimeError: CUDA error: an illegal memory access was encountered " + b"y" * (4 << 20)

    tracemalloc.start()
    scan = scan_log(chunks())
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 100 << 20, "one line of 100 MB must not be held whole"
    assert any(b"illegal memory access" in s.text for s in scan.close())
    assert scan.num_lines == 1


def test_a_storm_of_one_message_keeps_few_of_it_and_the_first_cause():
    storm = b"".join(b"ConnectionError: peer %d is gone\n" % i for i in range(200_000))
    data = b"RuntimeError: CUDA error: unspecified launch failure\n" + storm
    diagnosis = diagnose(read_text(data))
    assert diagnosis.verdict.reason == "CUDAError"
    assert diagnosis.verdict.lines_read == 200_001
    assert diagnosis.verdict.lines_kept < 20


def test_a_log_cut_inside_a_traceback_still_says_what_it_can():
    text = 'Traceback (most recent call last):\n  File "train.py", line 3, in main\n    loader = make(pa'
    verdict = diagnose(read_text(text)).verdict
    assert verdict.reason == "Unknown"
    assert verdict.evidence


def test_a_line_longer_than_the_limit_is_one_line():
    scan = scan_log([b"a" * (MAX_LINE_BYTES * 2), b"b\nsecond\n"])
    scan.close()
    assert scan.num_lines == 2


@pytest.mark.slow
def test_a_line_of_a_gigabyte_is_read_in_bounded_memory():
    tracemalloc.start()
    scan = scan_log(b"z" * (8 << 20) for _ in range(128))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert scan.num_lines in (0, 1)
    assert peak < 200 << 20
