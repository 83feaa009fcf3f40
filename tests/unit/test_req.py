"""The id of a request is its content: everything that decides pixels, and nothing else."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from diffbatch.req import (
    PARAM_NAMES,
    MicroBatch,
    Record,
    SamplingParams,
    content_id,
    micro_batch_from_dict,
    params_key,
    req_from_dict,
)
from tests.unit.output_helpers import HARD_PROMPT, make_req

BASE = SamplingParams(height=64, width=64, num_inference_steps=4, guidance_scale=4.0)


def id_of(params: SamplingParams = BASE, **changed: Any) -> str:
    values = {"model_key": "m", "prompt": "a cat", "seed": 0, **changed}
    return content_id(values["model_key"], params_key(params), values["prompt"], values["seed"])


def test_id_is_the_same_each_time() -> None:
    """Run folders of earlier versions hold these ids."""
    assert id_of() == id_of() == "771b158905da5b2572347e4f"


@pytest.mark.parametrize("changed", [{"model_key": "n"}, {"prompt": "a cat "}, {"seed": 1}])
def test_id_changes_with_model_prompt_and_seed(changed: dict[str, Any]) -> None:
    assert id_of(**changed) != id_of()


@pytest.mark.parametrize("name", [n for n in PARAM_NAMES if n != "image"] + ["image_sha256"])
def test_id_changes_with_every_parameter(name: str) -> None:
    value = "x" if name in {"negative_prompt", "image_sha256"} else 7
    assert id_of(replace(BASE, **{name: value})) != id_of()


def test_id_knows_an_image_by_its_bytes_not_its_path() -> None:
    here = replace(BASE, image="/a/cat.png", image_sha256="00")
    there = replace(BASE, image="/b/dog.png", image_sha256="00")
    assert id_of(here) == id_of(there)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"model_key": "ab", "prompt": "c"}, {"model_key": "a", "prompt": "bc"}),
        ({"seed": 1, "prompt": "2"}, {"seed": 12, "prompt": ""}),
        ({"seed": 1, "prompt": ":2"}, {"seed": 1, "prompt": "2"}),
    ],
)
def test_text_that_moves_from_one_field_to_the_next_changes_the_id(
    one: dict[str, Any], other: dict[str, Any]
) -> None:
    assert id_of(**one) != id_of(**other)


def test_a_request_survives_the_wire() -> None:
    req = make_req(3, HARD_PROMPT, negative_prompt="blurry", num_frames=5)
    assert req_from_dict(json.loads(json.dumps(req.as_dict()))) == req


def test_a_micro_batch_survives_the_wire() -> None:
    reqs = (make_req(0, "a"), make_req(1, HARD_PROMPT))
    batch = MicroBatch(reqs=reqs, write=frozenset({reqs[1].id}), cost=2.5, keep_frames=True)
    assert micro_batch_from_dict(json.loads(json.dumps(batch.as_dict()))) == batch


def test_an_unknown_key_on_the_wire_is_an_error() -> None:
    data = make_req().as_dict()
    with pytest.raises(TypeError):
        req_from_dict({**data, "rank": 1})
    with pytest.raises(TypeError):
        req_from_dict({**data, "params": {"steps": 3}})


def test_a_record_is_ready_for_json() -> None:
    req = make_req()
    record = Record(
        id=req.id, index=0, status="ok", file=req.file, prompt=req.prompt, seed=7, params={}
    )
    assert json.loads(json.dumps(record.as_dict()))["ranks"] == []
