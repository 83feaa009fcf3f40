"""A replica over several ranks makes what one process makes, and survives what goes wrong in it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.distributed.replica import BAD, Case, Result, communicators, run_replica
from tests.distributed.spawn import RankError, RankPool

pytestmark = pytest.mark.distributed

PROMPTS = ("a red circle", "a dog", "a red circle on a long, long beach", "two cats", "rain")
STEPS = 4
_VIDEO: dict[str, Any] = {
    "height": 32,
    "width": 32,
    "num_frames": 5,
    "num_inference_steps": STEPS,
    "guidance_scale": 4.0,
    "negative_prompt": "blurry",
    "max_sequence_length": 32,
}
_IMAGE = {name: value for name, value in _VIDEO.items() if name != "num_frames"}
_PARAMS = {"wan": _VIDEO, "wan22": _VIDEO, "sd3": _IMAGE, "flux": _IMAGE}

Tiny = Callable[[str], Path]
Pools = Callable[[int], RankPool]
SDE = {
    "name": "DPMSolverMultistepScheduler",
    "use_flow_sigmas": True,
    "prediction_type": "flow_prediction",
    "algorithm_type": "sde-dpmsolver++",
}


def _case(tiny: Tiny, model: str, **values: Any) -> Case:
    case = Case(folder=tiny(model), layout={}, prompts=PROMPTS, params=_PARAMS[model])
    return replace(case, **values)


def _run(rank_pool: Pools, case: Case) -> tuple[dict[str, str], list[Result]]:
    """All outputs of all ranks, and each rank's result."""
    size = 1
    for degree in case.layout.values():
        size *= degree
    results = rank_pool(size).run(run_replica, case, timeout_s=120)
    outputs: dict[str, str] = {}
    for result in results:
        assert not outputs.keys() & result.outputs.keys(), "two ranks made the same output"
        outputs |= result.outputs
    return outputs, results


_REFERENCES: dict[tuple[str, str], dict[str, str]] = {}


def _serial(rank_pool: Pools, tiny: Tiny, model: str, scheduler: dict[str, Any]) -> dict[str, str]:
    """What one process makes, one request at a time."""
    key = (model, scheduler.get("name", ""))
    if key not in _REFERENCES:
        _REFERENCES[key], _ = _run(rank_pool, _case(tiny, model, scheduler=scheduler))
    assert len(set(_REFERENCES[key].values())) == len(PROMPTS)
    assert not any(value.startswith("error") for value in _REFERENCES[key].values())
    return _REFERENCES[key]


@pytest.mark.parametrize(
    ("model", "layout", "in_flight", "scheduler"),
    [
        ("wan", {"pp": 2}, 1, {}),
        ("wan", {"pp": 2}, 2, {}),
        ("wan", {"pp": 2}, 3, {}),
        ("wan", {"pp": 2}, 5, {}),
        ("wan", {"cfg": 2}, 1, {}),
        ("wan", {"cfg": 2}, 3, {}),
        ("wan", {"pp": 3}, 4, {}),
        ("wan", {"pp": 4}, 3, {}),
        ("wan", {"pp": 2, "cfg": 2}, 3, {}),
        ("wan", {"pp": 2, "cfg": 2}, 2, SDE),
        ("wan22", {"pp": 2, "cfg": 2}, 3, {}),
        ("sd3", {"pp": 2, "cfg": 2}, 3, {}),
        ("flux", {"pp": 2}, 3, {}),
        ("flux", {"pp": 3}, 2, {}),
    ],
)
def test_outputs_are_those_of_one_process(
    rank_pool: Pools,
    tiny: Tiny,
    model: str,
    layout: dict[str, int],
    in_flight: int,
    scheduler: dict[str, Any],
) -> None:
    serial = _serial(rank_pool, tiny, model, scheduler)
    case = _case(tiny, model, layout=layout, in_flight=in_flight, scheduler=scheduler)
    outputs, _ = _run(rank_pool, case)
    assert outputs == serial


def test_guidance_off_with_a_rank_to_spare_makes_the_same(rank_pool: Pools, tiny: Tiny) -> None:
    case = _case(tiny, "wan", params={**_VIDEO, "guidance_scale": 1.0})
    serial, _ = _run(rank_pool, case)
    assert _run(rank_pool, replace(case, layout={"cfg": 2}))[0] == serial


def test_an_explicit_partition_changes_no_pixel(rank_pool: Pools, tiny: Tiny) -> None:
    serial = _serial(rank_pool, tiny, "wan", {})
    case = _case(tiny, "wan", layout={"pp": 2}, in_flight=3, partition=(1, 7))
    assert _run(rank_pool, case)[0] == serial


@pytest.mark.parametrize("rank", range(4))
@pytest.mark.parametrize(
    ("where", "step"),
    [
        ("encode", 0),
        ("before", 0),
        ("before", 2),
        ("inside", 0),
        ("inside", 2),
        ("after", 0),
        ("after", STEPS - 1),
        ("decode", 0),
    ],
)
def test_a_request_that_fails_on_one_rank_costs_no_other(
    rank_pool: Pools, tiny: Tiny, where: str, rank: int, step: int
) -> None:
    serial = _serial(rank_pool, tiny, "wan", {})
    prompts = (PROMPTS[0], PROMPTS[1], BAD, *PROMPTS[3:])
    case = _case(
        tiny,
        "wan",
        layout={"pp": 2, "cfg": 2},
        in_flight=3,
        prompts=prompts,
        fault=(where, rank, step),
    )
    outputs, _ = _run(rank_pool, case)
    spared = where in {"encode", "decode"} and not outputs["2"].startswith("error")
    if spared:  # encoding and decoding of one request happen on one rank only
        assert len(outputs["2"]) == 64
    else:
        assert outputs["2"].startswith("error: ")
    assert {k: v for k, v in outputs.items() if k != "2"} == {
        k: v for k, v in serial.items() if k != "2"
    }


def test_a_failing_encode_or_decode_fails_somewhere(rank_pool: Pools, tiny: Tiny) -> None:
    """Guards the test above: on exactly one rank of two, the injected fault is met."""
    for where in ("encode", "decode"):
        found = []
        for rank in range(2):
            case = _case(tiny, "wan", layout={"pp": 2}, prompts=(BAD,), fault=(where, rank, 0))
            found.append(_run(rank_pool, case)[0]["0"].startswith("error"))
        assert sorted(found) == [False, True]


def test_only_tensors_travel_in_the_loop(rank_pool: Pools, tiny: Tiny) -> None:
    num = len(PROMPTS)
    case = _case(tiny, "wan", layout={"pp": 2, "cfg": 2}, in_flight=3, count=True)
    _, results = _run(rank_pool, case)
    first, branch, last, last_branch = (result.sent for result in results)
    # Each chain has one branch: one activation a step, one latent return but after the last step.
    activations, returns = num * STEPS, num * (STEPS - 1)
    # Ranks 0, 1, 2, 3 decode in turn; rank 2 has the final latents and sends them to the others.
    finals_sent = num - len(range(2, num, 4))
    assert first["isend"] == branch["isend"] == activations
    assert last["isend"] == returns + finals_sent
    assert last_branch["isend"] == returns
    assert first["irecv"] == branch["irecv"] == returns
    assert last["irecv"] == last_branch["irecv"] == activations
    assert last["all_gather"] == last_branch["all_gather"] == num * STEPS
    assert first["all_gather"] == branch["all_gather"] == 0


def test_each_text_is_encoded_by_one_rank(rank_pool: Pools, tiny: Tiny) -> None:
    case = _case(tiny, "wan", layout={"pp": 2}, in_flight=3, prompts=(*PROMPTS, *PROMPTS))
    _, results = _run(rank_pool, case)
    prompts = sum(sum(result.forwards.values()) for result in results)
    assert prompts == len(PROMPTS) + 2  # each rank encodes the negative prompt for its own


def test_a_rank_that_hangs_is_given_up_within_the_limit(rank_pool: Pools, tiny: Tiny) -> None:
    case = _case(tiny, "wan", layout={"pp": 2}, fault=("hang", 1, 0), timeout_s=3.0)
    with pytest.raises(RankError, match="CommError: "):
        rank_pool(2).run(run_replica, case, timeout_s=60)


def test_every_kind_of_traffic_has_a_communicator_of_its_own(rank_pool: Pools) -> None:
    """Above all forward and feedback, which two ranks use in opposite orders."""
    ranks = rank_pool(4).run(communicators, {"pp": 2, "cfg": 2})
    for names in ranks:
        own = [name for name in names.values() if name is not None]
        assert len(set(own)) == len(own) == 5
    # Ranks 0 and 2 are one chain, 1 and 3 the other; cfg is the faster axis.
    for first, last in ((ranks[0], ranks[2]), (ranks[1], ranks[3])):
        assert first["forward_in"] is None
        assert last["forward_out"] is None
        assert first["forward_out"] == last["forward_in"] != first["feedback"] == last["feedback"]
