"""Ranks, coordinates and groups of every layout up to 16 ranks; devices; messages."""

from __future__ import annotations

import subprocess
import sys
from itertools import combinations

import pytest

from diffbatch.errors import PlanError
from diffbatch.plan.layout import AXES, Layout, parse_devices

MAX_RANKS = 16


def all_layouts() -> list[Layout]:
    """Every layout of at most 16 ranks, axis by axis."""
    partial: list[dict[str, int]] = [{}]
    for axis in AXES:
        partial = [
            {**chosen, axis: degree}
            for chosen in partial
            for degree in range(1, MAX_RANKS // size_of(chosen) + 1)
        ]
    return [Layout(**chosen) for chosen in partial]


def size_of(degrees: dict[str, int]) -> int:
    size = 1
    for degree in degrees.values():
        size *= degree
    return size


def test_every_rank_is_in_exactly_the_groups_it_should_be() -> None:
    found = all_layouts()
    assert len(found) > 500
    for layout in found:
        world = range(layout.world_size)
        at = {rank: layout.coordinates(rank) for rank in world}
        assert all(layout.rank(at[rank]) == rank for rank in world)
        for axis in AXES:
            groups = layout.groups(axis)
            assert sorted(rank for group in groups for rank in group) == list(world)
            for group in groups:
                assert len(group) == getattr(layout, axis)
                assert [at[rank][axis] for rank in group] == list(range(len(group)))
                fixed = [{a: c for a, c in at[rank].items() if a != axis} for rank in group]
                assert all(other == fixed[0] for other in fixed)


def test_groups_over_several_axes_differ_on_these_axes_alone() -> None:
    layout = Layout(replicas=2, pp=2, cfg=2, tp=2)
    for axes in [pair for n in (2, 3) for pair in combinations(AXES, n)]:
        groups = layout.groups(*axes)
        assert sorted(rank for group in groups for rank in group) == list(range(16))
        for group in groups:
            assert list(group) == sorted(group)
            others = {
                tuple(c for a, c in layout.coordinates(rank).items() if a not in axes)
                for rank in group
            }
            assert len(others) == 1
        assert {layout.group_of(rank, *axes) for rank in range(16)} == set(groups)


def test_a_replica_is_a_contiguous_block_of_ranks() -> None:
    for layout in all_layouts():
        inside = layout.groups(*AXES[1:])
        assert inside == tuple(layout.replica_ranks(r) for r in range(layout.replicas))
        for rank in range(layout.world_size):
            assert layout.replica_of(rank) == layout.coordinates(rank)["replicas"]


def test_tp_is_the_fastest_axis_and_pp_the_slowest_of_a_replica() -> None:
    layout = Layout(replicas=2, pp=2, cfg=2, tp=2)
    assert layout.groups("tp")[:2] == ((0, 1), (2, 3))
    assert layout.groups("cfg")[0] == (0, 2)
    assert layout.groups("pp")[0] == (0, 4)
    assert layout.groups("replicas")[0] == (0, 8)


def test_a_wrong_number_of_processes_prints_every_factor_and_a_way_out() -> None:
    layout = Layout(replicas=2, pp=2, cfg=2)
    layout.check_world_size(8)
    with pytest.raises(PlanError) as caught:
        layout.check_world_size(6)
    text = str(caught.value)
    assert "6 processes" in text
    assert "replicas 2 x pp 2 x cfg 2 x ring 1 x ulysses 1 x tp 1 = 8" in text
    assert "start 8 processes, or use --replicas 1 with 4 processes" in text
    with pytest.raises(PlanError, match=r"start 8 processes$"):
        layout.check_world_size(3)


def test_degrees_below_one_are_refused() -> None:
    with pytest.raises(PlanError, match="pp is 0; it must be at least 1"):
        Layout(pp=0)


@pytest.mark.parametrize("rank", [-1, 4])
def test_ranks_outside_of_the_world_are_refused(rank: int) -> None:
    with pytest.raises(PlanError, match=f"no rank {rank} in replicas 1 x pp 4"):
        Layout(pp=4).coordinates(rank)


def test_devices_are_split_into_one_contiguous_block_per_replica() -> None:
    layout = Layout(replicas=2, pp=2)
    assert parse_devices("0, 1,2,3", layout) == (("0", "1"), ("2", "3"))
    assert parse_devices("4", Layout()) == (("4",),)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0,1,2", "3 devices do not fit .* = 4; name 4 devices, or use --replicas 1 and name 2"),
        (
            "0,1,2,3,4",
            "5 devices do not fit .* = 4; name 4 devices, or use --replicas 2 and name 4",
        ),
        ("0", "1 devices do not fit .* a replica alone needs 2 devices; lower a degree"),
        ("0,1,,3", "empty entry"),
        ("0,1,1,3", "device 1 is named twice"),
    ],
)
def test_devices_that_do_not_fit(text: str, message: str) -> None:
    with pytest.raises(PlanError, match=f"--devices: .*{message}"):
        parse_devices(text, Layout(replicas=2, pp=2))


def test_planning_needs_no_torch() -> None:
    names = ["chain", "dataflow", "layout", "scope", "split"]
    lines = [f"import diffbatch.plan.{name}" for name in names]
    lines += [
        "import diffbatch.models.checkpoint",
        "from diffbatch.plan.chain import methods_of_name",
        "assert 'forward' in methods_of_name('WanTransformer3DModel')",
        "import sys",
        "assert not {'torch', 'diffusers', 'transformers', 'numpy'} & sys.modules.keys()",
    ]
    subprocess.run([sys.executable, "-c", "\n".join(lines)], check=True, timeout=60)


def test_links_and_returns_join_neighbours_of_every_chain() -> None:
    for layout in all_layouts():
        at = {rank: layout.coordinates(rank) for rank in range(layout.world_size)}
        senders = [pair[0] for pair in layout.links()]
        receivers = [pair[1] for pair in layout.links()]
        for rank, place in at.items():
            assert senders.count(rank) == (place["pp"] < layout.pp - 1)
            assert receivers.count(rank) == (place["pp"] > 0)
        for sender, receiver in layout.links():
            assert at[receiver] == {**at[sender], "pp": at[sender]["pp"] + 1}
        chains = [chain for chain in layout.groups("pp") if len(chain) > 1]
        assert layout.returns() == tuple((chain[-1], chain[0]) for chain in chains)
