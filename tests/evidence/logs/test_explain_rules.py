"""Rules are data: each holds its own proof, and bad ones are refused with a place and a mend."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prism.errors import BadConfigError
from prism.evidence.logs.exceptions import exception_on, reason_of
from prism.evidence.logs.literals import required_words, split_alternatives
from prism.evidence.logs.rules import LAYERS, parse_rules, shipped_rules
from prism.records.verdict import CATEGORY_OF_REASON, FAILURE_REASONS

RULES = shipped_rules().rules


@pytest.mark.parametrize("rule", RULES, ids=lambda r: r.id)
def test_every_rule_matches_its_example_and_not_its_counter_example(rule):
    assert rule.matches(rule.example)
    assert not rule.matches(rule.counter_example)


@pytest.mark.parametrize("rule", RULES, ids=lambda r: r.id)
def test_every_example_is_claimed_for_the_reason_of_its_own_rule(rule):
    claimed = shipped_rules().claim(rule.example)
    assert claimed is not None
    assert claimed.reason == rule.reason


def test_rule_names_are_unique_and_every_reason_has_advice():
    assert len({r.id for r in RULES}) == len(RULES)
    assert set(shipped_rules().advice) == set(CATEGORY_OF_REASON)


def test_every_reason_can_be_reached_by_a_rule_or_an_exception_class():
    by_rules = {r.reason for r in RULES}
    by_class = {reason for reason in FAILURE_REASONS if reason_of(reason) == reason}
    assert set(FAILURE_REASONS) - by_rules - by_class == set()


def test_an_indexed_claim_equals_trying_every_rule_in_turn():
    book = shipped_rules()
    for text in [r.example for r in RULES] + [r.counter_example for r in RULES]:
        assert book.claim(text) == next((r for r in RULES if r.matches(text)), None)


@given(st.text(alphabet="abcde XYZ:[]", max_size=40))
def test_required_words_never_hide_a_match(text):
    import re

    for pattern in (
        r"ab|cd",
        r"(?:a|b)c+d?e",
        r"a[bc]d",
        r"ab?c(?:de|e:)",
        r"\[a\]",
        r"a{2,3}b",
        r"(?:ab|)c",
        r"X.{0,3}Y",
    ):
        for part in split_alternatives(pattern):
            words = required_words(part)
            if re.search(part, text, re.IGNORECASE) and words:
                assert any(w in text.lower() for w in words)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[", "not YAML"),
        ("a: 1", "expected a list of rules"),
        ("- 3", "expected a mapping"),
        ("- {id: x}", "'reason' is missing"),
        ("- {id: x, reason: Nope, layer: cause, pattern: a, example: a, counter_example: b}", "expected one of"),
        ("- {id: x, reason: OSError, layer: deep, pattern: a, example: a, counter_example: b}", "'layer' is 'deep'"),
        ("- {id: x, reason: OSError, layer: cause, pattern: '(', example: a, counter_example: b}", "not a regular"),
        ("- {id: x, reason: OSError, layer: cause, pattern: a, example: z, counter_example: b}", "own example"),
        ("- {id: x, reason: OSError, layer: cause, pattern: a, example: a, counter_example: a}", "counter-example"),
        ("- {id: x, reason: OSError, layer: cause, pattern: a, example: a, counter_example: b, x: 1}", "unknown field"),
    ],
)
def test_a_bad_rule_is_refused_with_its_place(text, message):
    with pytest.raises(BadConfigError, match=r"mine\.yaml") as error:
        parse_rules(text, "mine.yaml")
    assert message in str(error.value)


def test_layers_go_from_what_explains_nothing_to_what_explains_all():
    assert LAYERS[0] == "wrapper"
    assert LAYERS[-1] == "hardware"


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("ModuleNotFoundError: No module named 'x'", "ImportError"),
        ("torch.cuda.OutOfMemoryError: CUDA out of memory.", "OutOfMemoryError"),
        ("UnboundLocalError: local variable", "NameError"),
        ("IsADirectoryError: [Errno 21] Is a directory: 'x'", "OSError"),
        ("UnicodeDecodeError: 'utf-8' codec can't decode", "ValueError"),
        ("NotImplementedError: no kernel", "RuntimeError"),
        ("ray.exceptions.RayTaskError(KeyError): ray::f()", "KeyError"),
        ("ConnectionResetError: [Errno 104] Connection reset by peer", "ConnectionError"),
        ("mylib.errors.FancyValueError: x", "ValueError"),
    ],
)
def test_an_exception_class_falls_back_on_its_ancestors_and_its_name(line, reason):
    name = exception_on(line)
    assert name is not None
    assert reason_of(name) == reason


@pytest.mark.parametrize("line", ["raise ValueError('x')", "loss: 2.3 error rate 0.1", "UserWarning: slow", ""])
def test_lines_that_report_no_exception_name_none(line):
    name = exception_on(line)
    assert name is None or reason_of(name) is None
