"""Cluster files: presets, overrides, and one clear line for everything that cannot be."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from prism.errors import BadConfigError, BadFileError, InputError
from prism.simulate.cluster import Cluster, Link
from prism.simulate.cluster_file import load_cluster, preset_names, read_cluster
from prism.simulate.placement import placement_of, spread_evenly


def test_every_preset_loads_and_knows_its_name() -> None:
    dgx = {"dgx-v100", "dgx-a100", "dgx-h100", "dgx-h200", "dgx-b200", "gb200-nvl72"}
    clouds = {"aws-p4d", "aws-p5", "gcp-a3-mega"}
    others = {"mi250x", "mi300x", "v100-omni-path", "ethernet-host", "ethernet-nccl"}
    assert set(preset_names()) == dgx | clouds | others
    for name in preset_names():
        assert load_cluster(name).name == name


def test_a_file_builds_on_a_preset_and_changes_only_what_it_says(tmp_path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("preset: dgx-h100\nnum_hosts: 32\nnics: {gbps: 200}\n")
    assert load_cluster(file) == replace(
        load_cluster("dgx-h100"), num_hosts=32, elastic=False, nics=replace(load_cluster("dgx-h100").nics, gbps=200.0)
    )


def test_the_caller_can_set_the_number_of_hosts() -> None:
    assert load_cluster("dgx-a100", num_hosts=3).num_gpus == 24


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nics: {gbp: 3}", "c.yaml: 'nics.gbp' is not a key here, did you mean 'gbps'?"),
        ("num_host: 3", "c.yaml: 'num_host' is not a key here, did you mean 'num_hosts'?"),
        ("nics: {gbps: -3}", "c.yaml: 'nics.gbps' is -3.0, expected 0.1 to 6400"),
        ("nvlink: {gb_per_s_per_lane: 1.0e9}", "c.yaml: 'nvlink.gb_per_s_per_lane' is 1000000000.0, expected"),
        ("nics: {gbps: .inf}", "c.yaml: 'nics.gbps' is inf, expected"),
        ("num_hosts: 0", "c.yaml: 'num_hosts' is 0, expected 1 to"),
        ("num_hosts: 1.5", "c.yaml: 'num_hosts' is 1.5, expected a whole number"),
        ("nics: {gbps: fast}", "c.yaml: 'nics.gbps' is 'fast', expected a number"),
        ("nvlink: {sharp: 1}", "c.yaml: 'nvlink.sharp' is 1, expected true or false"),
        ("nics: 8", "c.yaml: 'nics' is 8, expected keys and values"),
        ("links: 8", "c.yaml: 'links' is 8, expected a list"),
        ("arch: kepler", "c.yaml: 'arch' is 'kepler'; expected one of volta, ampere, hopper, blackwell, cdna"),
        ("preset: dgx-h10", "c.yaml: 'preset' is 'dgx-h10', did you mean 'dgx-h100'?"),
        ("links: [{src: leaf-0}]", "c.yaml: 'links[0].dst' is missing"),
        ("links: [{src: leaf-0, dst: spine-0}]", "c.yaml: 'links[0].gbps' is missing"),
        ("links: [{src: leaf-0, dst: spine-0, gbps: 0}]", "c.yaml: 'links[0].gbps' is 0.0, expected 0.001 to"),
        (
            "links: [{src: leaf-0, dst: spine-99, gbps: 3}]",
            "c.yaml: 'links[0]' ends at 'spine-99', which this cluster does not",
        ),
        ("links: [{src: host-0/nic-9, dst: leaf-0, gbps: 3}]", "c.yaml: 'links[0]' ends at 'host-0/nic-9'"),
        ("links: [{src: host-0/nic-0, dst: leaf-1, gbps: 3}]", "c.yaml: 'links[0]' joins 'host-0/nic-0' to 'leaf-1'"),
        ("[1, 2]", "c.yaml: expected keys such as 'preset' or 'num_hosts', found a list"),
        ("", "c.yaml: expected keys such as 'preset' or 'num_hosts', found empty"),
    ],
)
def test_a_bad_file_is_refused_with_the_file_and_the_key(text, message) -> None:
    with pytest.raises(BadConfigError) as error:
        read_cluster(text, "c.yaml")
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)


def test_broken_yaml_names_the_line() -> None:
    with pytest.raises(BadFileError, match=r"^c\.yaml line 2: not YAML"):
        read_cluster("a: 1\nb: [", "c.yaml")


def test_a_missing_file_offers_the_nearest_preset(tmp_path) -> None:
    with pytest.raises(BadFileError, match="did you mean 'dgx-b200'"):
        load_cluster("dgx-b20")
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(BadFileError, match="cannot be read as text"):
        load_cluster(tmp_path / "binary.yaml")


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda v: st.lists(v, max_size=3) | st.dictionaries(st.text(max_size=8), v, max_size=3),
    max_leaves=6,
)
keys = st.sampled_from(["preset", "num_hosts", "nics", "links", "nvlink", "fabric", "arch", "gpu"]) | st.text(
    max_size=6
)


@given(st.dictionaries(keys, values, max_size=4))
def test_any_document_is_a_cluster_or_one_line(document) -> None:
    try:
        cluster = read_cluster(yaml.safe_dump(document), "c.yaml")
    except InputError as error:
        assert str(error).startswith("c.yaml")
    else:
        assert isinstance(cluster, Cluster)


@given(st.text(max_size=40))
def test_any_text_is_a_cluster_or_one_line(text) -> None:
    try:
        read_cluster(text, "c.yaml")
    except InputError as error:
        assert str(error).startswith("c.yaml")


def test_gpus_share_a_nic_where_there_are_fewer_nics_than_gpus() -> None:
    cluster = replace(load_cluster("dgx-h100"), nics=replace(load_cluster("dgx-h100").nics, count=4))
    assert cluster.rail_of(np.arange(8)).tolist() == [0, 0, 1, 1, 2, 2, 3, 3]


def test_rails_have_their_own_leaves_only_where_the_fabric_says_so() -> None:
    h100, ethernet = load_cluster("dgx-h100"), load_cluster("ethernet-host")
    assert h100.leaf_of(0, 0) != h100.leaf_of(0, 1)
    assert h100.leaf_of(0, 1) == h100.leaf_of(31, 1) != h100.leaf_of(32, 1)
    assert ethernet.leaf_of(15, 0) == 0
    assert ethernet.leaf_of(16, 0) == 1


def test_a_link_that_exists_is_accepted() -> None:
    cluster = load_cluster("dgx-h100", num_hosts=64)
    assert replace(cluster, links=(Link(src="host-33/nic-2", dst="leaf-10", gbps=100),)).links


def test_a_placement_counts_hosts_rails_and_leaves() -> None:
    cluster = load_cluster("dgx-h100")
    same_rail = placement_of([0, 1, 32], [3, 3, 3], cluster)
    assert (same_rail.num_hosts, same_rail.same_rail, same_rail.num_leaves) == (3, True, 2)
    uneven = placement_of([0, 0, 0, 1], [0, 1, 2, 0], cluster)
    assert (uneven.ranks_per_host_max, uneven.ranks_per_host_min, uneven.rails_per_host) == (3, 1, 1)
    assert spread_evenly(16, 2, cluster) == placement_of([0] * 8 + [1] * 8, [*range(8), *range(8)], cluster)


@pytest.mark.parametrize(
    ("hosts", "locals_", "message"),
    [
        ([0, 9999], [0, 0], "dgx-h100: no host 9999; the cluster has hosts 0 to 1023"),
        ([0, -1], [0, 0], "no host -1"),
        ([0, 0], [0, 8], "no GPU 8 on a host; it has GPUs 0 to 7"),
        ([], [], "a group needs one host and one GPU per member"),
    ],
)
def test_a_group_outside_its_cluster_is_refused(hosts, locals_, message) -> None:
    with pytest.raises(BadConfigError, match=message):
        placement_of(hosts, locals_, load_cluster("dgx-h100", num_hosts=1024))


@pytest.mark.parametrize("preset", ["dgx-h100", "aws-p5", "mi300x", "gb200-nvl72", "ethernet-host"])
def test_a_preset_grows_to_the_hosts_that_a_group_needs(preset) -> None:
    cluster = load_cluster(preset)
    placement = placement_of([0, 70_000], [0, 0], cluster)
    assert placement.num_hosts == 2


def test_a_stated_number_of_hosts_is_a_limit(tmp_path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("preset: dgx-h100\nnum_hosts: 32\n")
    for cluster in (load_cluster(file), load_cluster("dgx-h100", num_hosts=32)):
        with pytest.raises(BadConfigError, match="no host 32; the cluster has hosts 0 to 31"):
            placement_of([0, 32], [0, 0], cluster)


def test_a_file_on_a_preset_without_a_number_of_hosts_grows_too(tmp_path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("preset: dgx-h100\nnics: {gbps: 200}\n")
    assert placement_of([0, 5_000], [0, 0], load_cluster(file)).num_hosts == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nccl: 3.1.2", "'nccl' is '3.1.2', expected a version"),
        ("nics: {transport: infiniband}", "'nics.transport' is 'infiniband'"),
        ("nccl_algo: [rings]", "'nccl_algo' has 'rings', did you mean 'ring'"),
    ],
)
def test_what_nccl_cannot_be_is_refused_in_one_line(text, message) -> None:
    with pytest.raises(BadConfigError, match=message):
        read_cluster(text, "c.yaml")
