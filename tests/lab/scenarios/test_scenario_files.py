"""Scenario files: the library holds together, and every mistake is told in one line."""

from __future__ import annotations

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from prism.errors import InputError
from prism.lab.scenarios import load_scenario, read_scenario, scenario_names
from prism.lab.scenarios.scenario import check_scenario

GOOD = """
cluster: {preset: dgx-h100, num_hosts: 4}
jobs:
  - {id: a, model: llama-7b, dp: 2, tp: 8, pp: 2}
"""


def test_the_library_covers_the_sizes_and_tenants_it_promises():
    scenarios = [load_scenario(name) for name in scenario_names()]
    assert len(scenarios) >= 30
    assert min(s.num_gpus for s in scenarios) == 16 and max(s.num_gpus for s in scenarios) == 4096
    assert {1, 2, 4, 12} <= {len(s.jobs) for s in scenarios}
    for scenario in scenarios:
        check_scenario(scenario)
        assert scenario.about and scenario.name.rsplit("-", 1)[1] == str(scenario.num_gpus)


def test_a_scenario_is_named_by_its_file(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(GOOD)
    assert load_scenario(path).name == "mine"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "expected keys"),
        ("a: [", "not YAML"),
        ("- 1", "found a list"),
        (GOOD.replace("jobs:", "job:"), "did you mean 'jobs'"),
        ("cluster: dgx-h100\njobs: []", "at least one job"),
        ("cluster: dgx-h10\njobs: [{id: a}]", "did you mean 'dgx-h100'"),
        ("jobs: [{id: a}]", "'cluster' is missing"),
        ("cluster: 7\njobs: [{id: a}]", "cluster"),
        (GOOD.replace("pp: 2", "pp: 8"), "needs 128 GPUs .* finds 32"),
        (GOOD.replace("llama-7b", "lama-7b"), "did you mean 'llama-7b'"),
        (GOOD.replace("dp: 2", "dp: 0"), "dp' is 0, expected 1 to"),
        (GOOD.replace("dp: 2", "dp: two"), "expected a whole number"),
        (GOOD.replace("dp: 2", "dp: true"), "expected a whole number"),
        (GOOD.replace("dp: 2", "ddp: 2"), "did you mean 'dp'"),
        (GOOD.replace("dp: 2", "efficiency: .inf"), "efficiency"),
        (GOOD.replace("id: a", "id: ''"), "id' is empty"),
        (GOOD.replace("id: a, ", ""), "id' is missing"),
        (GOOD + "  - {id: a, dp: 1}", "two jobs are called 'a'"),
        (GOOD + "duration_s: -5", "duration_s"),
        (GOOD + "faults: {kind: hang}", "expected a list"),
        (GOOD + "faults: [{kind: slowgpu}]", "did you mean 'slow_gpu'"),
        (GOOD + "faults: [{kind: slow_gpu, job: a}]", "needs .*rank'"),
        (GOOD + "faults: [{kind: slow_gpu, job: b, rank: 0}]", "no job 'b'"),
        (GOOD + "faults: [{kind: slow_gpu, job: a, rank: 99}]", "no rank 99"),
        (GOOD + "faults: [{kind: slow_host, host: 4}]", "no host 4"),
        (GOOD + "faults: [{kind: slow_link, host: 0, nic: 8}]", "no NIC 8"),
        (GOOD + "faults: [{kind: slow_switch, switch: leaf-99}]", "no switch 'leaf-99'"),
        (GOOD + "faults: [{kind: stage_imbalance, job: a, stage: 2}]", "no stage 2"),
        (GOOD + "faults: [{kind: slow_host, host: 0, start_s: 70}]", "after the scenario"),
        (GOOD + "faults: [{kind: slow_host, host: 0, start_s: 5, end_s: 5}]", "not after 'start_s'"),
        (GOOD + "faults: [{kind: slow_host, host: 0, speed: 0}]", "speed'"),
        (GOOD + "faults: [{kind: checkpoint_stall, job: a}]", "saves no checkpoints"),
        (GOOD + "faults: [{kind: contention, job: a, other: a}]", "slowed by contention itself"),
        (GOOD + "measurement: {lost: 2}", "lost' is 2"),
        (GOOD + "measurement: {sampling: 2}", "did you mean 'sampling_rate'"),
        (GOOD.replace("pp: 2", "pp: 2, placement: {hosts: [0, 1, 2, 4]}"), "no host 4"),
        (GOOD.replace("pp: 2", "pp: 2, placement: {gpus: [0, 8]}"), "'gpus' is"),
        (GOOD.replace("pp: 2", "pp: 2, placement: {gpus_of_hosts: [9]}"), "gpus_of_hosts"),
        (GOOD + "  - {id: b, dp: 8, placement: {hosts: [0]}}", "both take GPU 0 of host 0"),
    ],
)
def test_a_mistake_is_reported_in_one_line_with_its_place(text, words):
    with pytest.raises(InputError, match=words) as caught:
        read_scenario(text, "file.yaml")
    assert str(caught.value).startswith("file.yaml") and "\n" not in str(caught.value)


def test_an_unknown_name_offers_the_nearest():
    with pytest.raises(InputError, match="did you mean 'dense-3d-64'"):
        load_scenario("dense-3d-46")


leaves = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
trees = st.recursive(
    leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
)


@given(
    place=st.sampled_from(["cluster", "jobs", "faults", "measurement", "duration_s", "epoch_s", "name", "num_storage"]),
    value=trees,
)
@example(place="cluster", value={"\n": None})
def test_whatever_a_key_holds_reading_ends_in_a_scenario_or_one_line(place, value):
    document = {**yaml.safe_load(GOOD), place: value}
    try:
        read_scenario(yaml.safe_dump(document), "f")
    except InputError as error:
        assert "\n" not in str(error)


@given(st.text(max_size=60))
def test_any_text_ends_in_a_scenario_or_one_line(text):
    try:
        found = read_scenario(text, "f")
    except InputError as error:
        assert "\n" not in str(error)
    else:
        assert found.jobs
