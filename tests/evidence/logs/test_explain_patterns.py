"""Patterns from outside never stall a diagnosis: they are linear, or proved bounded, or refused before they match."""

import builtins
import subprocess
import sys

import pytest

from prism.errors import BadConfigError
from prism.evidence.logs.patterns import UnsafePatternError, compile_outside, compile_own, count_paths
from prism.evidence.logs.rules import parse_rule, shipped_rules

SLOW = ["(a+)+$", "(a|a)*b", "(?:x*)*weka", "(.*)*=(.*)*", "(a|aa)+$", r"(\w+\s?)*!", "(?:a?){40}a{40}b"]
BAIT = "a" * 40 + "!"


def rule_of(pattern, **fields):
    row = {
        "id": "x",
        "reason": "OSError",
        "layer": "cause",
        "pattern": pattern,
        "example": BAIT,
        "counter_example": "b",
    }
    return {**row, **fields}


@pytest.fixture
def without_re2(monkeypatch):
    real = builtins.__import__

    def refuse(name, *args, **kwargs):
        if name == "re2":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    compile_outside.cache_clear()
    monkeypatch.setattr(builtins, "__import__", refuse)
    yield
    compile_outside.cache_clear()


@pytest.mark.parametrize("pattern", SLOW)
def test_a_rule_with_a_catastrophic_pattern_is_parsed_in_no_time(pattern):
    # In a process of its own, so that a pattern that hangs is seen to hang and not waited for.
    code = (
        "from prism.evidence.logs.rules import parse_rule\nfrom prism.errors import BadConfigError\n"
        f"try: parse_rule({rule_of(pattern)!r}, 'x')\nexcept BadConfigError: pass"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=600)


@pytest.mark.parametrize("pattern", SLOW)
def test_without_the_linear_engine_such_a_pattern_is_refused(without_re2, pattern):
    with pytest.raises(BadConfigError, match=r"mine \(x\): 'pattern' is refused: could take very long"):
        parse_rule(rule_of(pattern), "mine")
    with pytest.raises(BadConfigError, match="'unless' is refused"):
        parse_rule(rule_of("a!", unless=pattern), "mine")


@pytest.mark.parametrize("pattern", ["weka mount .{0,40} stalled", "a!|b{2,5}c", r"\bXid\b.{0,12}79", "(?:a|b)c.*d"])
def test_without_the_linear_engine_bounded_patterns_are_still_used(without_re2, pattern):
    assert compile_outside(pattern).search("nothing here") is None


@pytest.mark.parametrize("pattern", [r"(a)\1", "(?=a)a!(?!b)", "a(?<!b)!"])
def test_what_the_linear_engine_does_not_know_is_bounded_or_refused(pattern):
    if "\\1" in pattern:
        with pytest.raises(UnsafePatternError):
            compile_outside(pattern)
    else:
        assert compile_outside(pattern).search(BAIT)


@pytest.mark.parametrize("pattern", ["(", "a" * 3000, "(" * 30 + "a" + ")" * 30])
def test_what_is_no_pattern_or_too_large_is_refused(pattern):
    with pytest.raises(UnsafePatternError):
        compile_outside(pattern)


def test_paths_are_counted_from_above():
    assert count_paths("abc") == 1
    assert count_paths("a{0,9}b{0,9}") == 100
    assert count_paths("a|b|c{0,4}") >= 7 or count_paths("[ab]|c{0,4}") == 6


def test_our_own_rules_need_no_other_engine():
    for rule in shipped_rules().rules:
        assert rule.ours
        assert rule.compile(rule.pattern) is compile_own(rule.pattern)
