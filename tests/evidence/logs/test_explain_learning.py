"""Learning: healthy runs, resolved cases and new rules are remembered, and nothing known is broken."""

import pytest

from prism.errors import BadConfigError, BadRowError
from prism.evidence.logs import Knowledge, diagnose, read_text
from prism.evidence.logs.cases import Case, CaseStore, append_case, is_held_back, load_cases, nearest, shipped_cases
from prism.evidence.logs.learn import admit, known_cases, try_rule
from prism.evidence.logs.routine import Family, load_family, save_family, template_of
from prism.evidence.logs.rules import parse_rules, read_rules, shipped_rules

NEW = """
- id: my-storage
  reason: OSError
  layer: cause
  pattern: 'weka mount .{0,20} stalled'
  example: 'weka mount /data has stalled'
  counter_example: 'weka mount /data is up'
"""
GREEDY = (
    NEW.replace("weka mount .{0,20} stalled", "error|weka")
    .replace("is up", "up")
    .replace("'weka mount /data up'", "'fine'")
)


def test_a_rule_that_changes_no_known_answer_is_admitted_and_used(tmp_path):
    book = shipped_rules()
    (rule,) = parse_rules(NEW, "new.yaml")
    trial = try_rule(rule, book, known_cases(book))
    assert trial.is_safe
    admit(trial, tmp_path)
    learned = read_rules(tmp_path)
    assert learned == [rule]
    text = "weka mount /data has stalled"
    assert diagnose(read_text(text)).verdict.reason == "Unknown"
    assert diagnose(read_text(text), Knowledge(rules=book.with_rules(learned))).verdict.reason == "OSError"


def test_a_rule_that_would_change_known_answers_is_refused_and_shown():
    (rule,) = parse_rules(GREEDY, "greedy.yaml")
    trial = try_rule(rule, shipped_rules(), known_cases(shipped_rules()))
    assert not trial.is_safe
    assert any("would become OSError" in change for change in trial.changed)
    with pytest.raises(AssertionError):
        admit(trial, None)


def test_a_rule_that_matches_healthy_lines_is_refused():
    (rule,) = parse_rules(
        NEW.replace("weka mount .{0,20} stalled", "weka|iteration").replace("weka mount /data is up", "up"), "x"
    )
    assert not try_rule(rule, shipped_rules(), []).is_safe


def test_lines_of_healthy_runs_are_dropped_for_that_family_only(tmp_path):
    noisy = "ValueError: optional plugin 17 not usable"
    family = Family("gpt").learn([read_text(f"{noisy}\niteration 1 loss: 2.0")])
    save_family(tmp_path, family)
    again = load_family(tmp_path, "gpt")
    assert again == family
    failed = f"{noisy.replace('17', '99')}\nZeroDivisionError: division by zero"
    assert diagnose(read_text(failed), Knowledge(family=again)).verdict.reason == "ZeroDivisionError"
    assert diagnose(read_text(failed)).verdict.reason == "ValueError"


def test_a_family_keeps_no_secret_and_refuses_bad_names_and_files(tmp_path):
    family = Family("a").learn([read_text("error: token=abcdefgh12345678zz")])
    assert not any("abcdefgh" in template for template in family.templates)
    with pytest.raises(BadConfigError):
        load_family(tmp_path, "../etc")
    (tmp_path / "families").mkdir()
    (tmp_path / "families" / "a.json").write_text("{")
    with pytest.raises(BadConfigError, match="not a family file"):
        load_family(tmp_path, "a")


def test_templates_forget_numbers_only():
    assert template_of("step 12 failed at 0x7ffe") == template_of("step 99 failed at 0x1234")
    assert template_of("step 12 failed") != template_of("step 12 passed")


def test_the_nearest_resolved_case_answers_when_no_rule_does():
    store = CaseStore((Case(text="the quantum flange slipped on module seven", reason="CUDAError"),))
    verdict = diagnose(
        read_text("2024-01-01 unsupported: quantum flange slipped on module nine"), Knowledge(cases=store)
    ).verdict
    assert verdict.reason == "CUDAError"
    assert 0 < verdict.confidence <= 0.5


def test_a_far_case_does_not_answer_but_is_shown():
    store = CaseStore((Case(text="module loaded the wrong flange today", reason="CUDAError"),))
    diagnosis = diagnose(read_text("unsupported module: gearbox noise"), Knowledge(cases=store))
    assert diagnosis.verdict.reason == "Unknown"
    assert diagnosis.neighbours[0].similarity < 0.45


def test_every_shipped_case_is_nearest_to_itself():
    store = CaseStore(shipped_cases(shipped_rules()))
    for case in store.cases[::4]:
        assert nearest(store, [case.text])[0].case.text == case.text


def test_cases_survive_a_round_trip_masked_and_bad_rows_are_named(tmp_path):
    path = tmp_path / "cases.jsonl"
    append_case(path, Case(text="error token=abcdefgh12345678zz", reason="OSError"))
    (case,) = load_cases(path)
    assert case.reason == "OSError"
    assert "abcdefgh" not in case.text
    path.write_text('{"text": "x", "reason": "Nope"}\n')
    with pytest.raises(BadRowError, match="line 1"):
        load_cases(path)


def test_a_rule_must_hold_on_the_half_that_its_author_was_never_shown():
    (rule,) = parse_rules(NEW, "new.yaml")
    texts = [f"weka mount /data{i} has stalled" for i in range(40)]
    held = [Case(text=t, reason="KeyError") for t in texts if is_held_back(Case(text=t, reason="KeyError"))]
    assert 5 < len(held) < 35
    trial = try_rule(rule, shipped_rules(), held)
    assert not trial.is_safe
    assert trial.num_held_back == len(held)
    assert "held back" in trial.changed[0]
    assert try_rule(rule, shipped_rules(), [Case(text=t, reason="OSError") for t in texts]).is_safe


def test_a_rule_that_knows_only_a_pid_or_a_step_is_refused():
    only = NEW.replace("weka mount .{0,20} stalled", "process 448812 is gone")
    (rule,) = parse_rules(only.replace("weka mount /data has stalled", "process 448812 is gone"), "new.yaml")
    assert "numbers" in try_rule(rule, shipped_rules(), []).changed[0]


def test_a_rule_is_never_written_over_another_of_the_same_name(tmp_path):
    (one,) = parse_rules(NEW, "new.yaml")
    (two,) = parse_rules(NEW.replace("{0,20} stalled", "{0,30} stalled"), "new.yaml")
    admit(try_rule(one, shipped_rules(), []), tmp_path)
    admit(try_rule(two, shipped_rules(), []), tmp_path)
    admit(try_rule(one, shipped_rules(), []), tmp_path)
    assert len(read_rules(tmp_path)) == 2
