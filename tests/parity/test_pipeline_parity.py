"""Stages and executor against the plain diffusers pipeline: same checkpoint and seed, fp32."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import DiffusionPipeline
from diffusers.image_processor import VaeImageProcessor
from diffusers.modular_pipelines.modular_pipeline import PipelineState

from diffbatch.models.catalog import LINES
from diffbatch.models.loading import LoadSpec, load_pipeline
from diffbatch.pipeline.composed import ComposedPipeline
from diffbatch.pipeline.decoding import NON_FINITE
from diffbatch.pipeline.denoising import DenoisingStage
from diffbatch.pipeline.executor import ParallelExecutor
from diffbatch.pipeline.stage import ParallelType, PipelineStage, StageError
from diffbatch.req import MicroBatch, OutputBatch, Req, SamplingParams
from tests.solo import CPU, execute, our_pixels, solo_team

pytestmark = pytest.mark.parity

PROMPTS = ("a red circle", '\u4e00\u53ea\u732b, "quoted" \U0001f680', "waves " * 40)
NEGATIVE = "blurry, watermark"
POISON = "~"  # its token's embedding is made NaN where a test wants one request to fail


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """How one model is called, and how far its pixels (0..1) may be from the plain pipeline's."""

    name: str
    params: SamplingParams
    bound: float = 0.0
    batch_bound: float  # micro-batch of two against one by one

    @property
    def negative(self) -> bool:
        return self.params.negative_prompt is not None


_SIZE = {"height": 64, "width": 64, "num_inference_steps": 4}
CASES = {
    "wan": Case(
        name="wan",
        params=SamplingParams(**_SIZE, num_frames=5, guidance_scale=4.0, negative_prompt=NEGATIVE),
        batch_bound=2e-6,
    ),
    "wan22": Case(
        name="wan22",
        params=SamplingParams(
            **_SIZE,
            num_frames=5,
            guidance_scale=4.0,
            guidance_scale_2=3.0,
            negative_prompt=NEGATIVE,
        ),
        batch_bound=2e-6,
    ),
    "flux": Case(name="flux", params=SamplingParams(**_SIZE, guidance_scale=3.5), batch_bound=2e-6),
    # The plain pipeline runs both guidance branches as one batch of two: its matrix products have
    # other shapes, so they add up in another order.
    "sd3": Case(
        name="sd3",
        params=SamplingParams(**_SIZE, guidance_scale=4.0, negative_prompt=NEGATIVE),
        bound=2e-6,
        batch_bound=2e-6,
    ),
}
every_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


@pytest.fixture(scope="module")
def composed(tiny: Callable[[str], Path]) -> Iterator[Callable[[str], ComposedPipeline]]:
    """`composed("wan")`: our pipeline, loaded once for all tests."""

    @cache
    def load(name: str) -> ComposedPipeline:
        return ComposedPipeline(load_pipeline(LoadSpec(folder=tiny(name)), CPU).pipeline)

    yield load
    load.cache_clear()


@pytest.fixture(scope="module")
def plain(tiny: Callable[[str], Path]) -> Iterator[Callable[[str], Any]]:
    """`plain("wan")`: what a user of diffusers would load."""

    @cache
    def load(name: str) -> Any:
        pipeline = DiffusionPipeline.from_pretrained(tiny(name))
        pipeline.set_progress_bar_config(disable=True)
        return pipeline

    yield load
    load.cache_clear()


def req_of(case: Case, index: int, prompt: str | None = None, **changed: Any) -> Req:
    return Req(
        index=index,
        id=f"r{index}",
        prompt=PROMPTS[index] if prompt is None else prompt,
        seed=100 + index,
        file=f"{index}.png",
        params=replace(case.params, **changed),
    )


def reqs_of(case: Case, **changed: Any) -> list[Req]:
    return [req_of(case, index, **changed) for index in range(len(PROMPTS))]


def plain_pixels(pipeline: Any, req: Req) -> np.ndarray:
    """Float pixels 0..1, (F, H, W, 3), of the plain pipeline."""
    arguments = req.params.as_dict()
    arguments |= {"prompt": req.prompt, "output_type": "np"}
    output = pipeline(**arguments, generator=torch.Generator("cpu").manual_seed(req.seed))
    return np.asarray(output.frames[0] if "frames" in output else output.images)


def frames_of(outputs: Sequence[OutputBatch]) -> list[np.ndarray | None]:
    return [frames for output in outputs for frames in output.frames]


def errors_of(outputs: Sequence[OutputBatch]) -> list[str | None]:
    return [error for output in outputs for error in output.errors]


def assert_close(found: np.ndarray, expected: np.ndarray, bound: float) -> None:
    assert found.shape == expected.shape
    assert found.dtype == expected.dtype == np.float32
    if bound == 0:
        assert np.array_equal(found, expected)
    else:
        assert np.abs(found - expected).max() <= bound


@every_case
@pytest.mark.parametrize("guidance_scale", [None, 1.0], ids=["guided", "unguided"])
def test_decoded_pixels_equal_those_of_the_plain_pipeline(
    case: Case,
    guidance_scale: float | None,
    composed: Callable[[str], ComposedPipeline],
    plain: Callable[[str], Any],
) -> None:
    changed: dict[str, Any] = {}
    if guidance_scale is not None:
        changed = {"guidance_scale": guidance_scale, "guidance_scale_2": None}
    reqs = reqs_of(case, **changed)
    ours = [our_pixels(composed(case.name), req) for req in reqs]
    theirs = [plain_pixels(plain(case.name), req) for req in reqs]
    for found, expected in zip(ours, theirs, strict=True):
        assert_close(found, expected, case.bound)
    for one, other in itertools.combinations(ours, 2):
        assert np.abs(one - other).mean() > 0.005, "different prompts, different pictures"

    frames = frames_of(execute(composed(case.name), [[req] for req in reqs]))
    for made, expected in zip(frames, theirs, strict=True):
        assert made is not None
        in_bytes = np.stack([np.asarray(i) for i in VaeImageProcessor.numpy_to_pil(expected)])
        assert made.dtype == np.uint8
        # A pixel within the bound of a half may round to the other side.
        differences = np.abs(made.astype(int) - in_bytes.astype(int))
        assert differences.max() <= (1 if case.bound else 0)
        assert np.count_nonzero(differences) <= differences.size // 1000


@every_case
@pytest.mark.parametrize("in_flight", [2, 3])
def test_interleaving_changes_no_bit(
    case: Case, in_flight: int, composed: Callable[[str], ComposedPipeline]
) -> None:
    pipeline = composed(case.name)
    reqs = reqs_of(case)
    reqs[1] = replace(reqs[1], params=replace(reqs[1].params, num_inference_steps=3))
    one_by_one = frames_of(execute(pipeline, [[req] for req in reqs]))
    interleaved = frames_of(execute(pipeline, [[req] for req in reqs], in_flight))
    for found, expected in zip(interleaved, one_by_one, strict=True):
        assert found is not None
        assert np.array_equal(found, expected)


@every_case
def test_a_micro_batch_of_two_is_close_to_one_by_one(
    case: Case, composed: Callable[[str], ComposedPipeline], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not bit-identical: matrix products over two requests add up in another order."""
    decoded: list[np.ndarray] = []

    def keep(pixels: np.ndarray) -> np.ndarray:
        decoded.append(pixels)
        return pixels

    monkeypatch.setattr("diffbatch.pipeline.decoding._to_uint8", keep)
    pipeline = composed(case.name)
    reqs = reqs_of(case)[:2]
    [output] = execute(pipeline, [reqs])
    assert output.reqs == tuple(reqs)
    single = [our_pixels(pipeline, req) for req in reqs]
    for found, expected in zip(decoded, single, strict=True):
        assert_close(found, expected, case.batch_bound)


@every_case
def test_each_distinct_text_is_encoded_once(case: Case, tiny: Callable[[str], Path]) -> None:
    pipeline = ComposedPipeline(load_pipeline(LoadSpec(folder=tiny(case.name)), CPU).pipeline)
    reqs = [req_of(case, i, PROMPTS[i % 2], num_inference_steps=1) for i in range(5)]
    execute(pipeline, [[req] for req in reqs], in_flight=2)
    distinct = 2 + case.negative
    assert {memory.num_forwards for memory in pipeline.encoders.values()} == {distinct}
    assert pipeline.encoders


@pytest.mark.parametrize("batch_size", [1, 2])
def test_a_request_with_nan_fails_alone(
    batch_size: int, tiny: Callable[[str], Path], composed: Callable[[str], ComposedPipeline]
) -> None:
    case = CASES["wan"]
    pipeline = ComposedPipeline(load_pipeline(LoadSpec(folder=tiny("wan")), CPU).pipeline)
    poison(pipeline)
    reqs = [req_of(case, 0), req_of(case, 1, f"a cat {POISON}"), req_of(case, 2)]
    batches = [reqs[i : i + batch_size] for i in range(0, 3, batch_size)]
    outputs = execute(pipeline, batches)
    assert errors_of(outputs) == [None, NON_FINITE, None]
    expected = frames_of(execute(composed("wan"), [reqs[0:1], reqs[2:3]]))
    found = frames_of(outputs)
    assert found[1] is None
    assert np.array_equal(found[2], expected[1])
    if batch_size == 1:
        assert np.array_equal(found[0], expected[0])


def poison(pipeline: ComposedPipeline) -> None:
    """Make every prompt that holds `POISON` come out as NaN."""
    modular = pipeline.encoding_components
    [token] = modular.tokenizer(f"{POISON}", add_special_tokens=False).input_ids[-1:]
    with torch.no_grad():
        modular.text_encoder.get_input_embeddings().weight[token] = torch.nan


class OutOfMemory:
    """Makes a transformer run out of memory for more than `limit` requests at once."""

    def __init__(self, transformer: torch.nn.Module, limit: int) -> None:
        self._forward = transformer.forward
        self._limit = limit
        self.sizes: list[int] = []

    def __call__(self, hidden_states: torch.Tensor, **kwargs: Any) -> Any:
        self.sizes.append(len(hidden_states))
        if len(hidden_states) > self._limit:
            raise torch.OutOfMemoryError("tried to allocate 7 GiB")
        return self._forward(hidden_states=hidden_states, **kwargs)


@pytest.mark.parametrize(
    ("limit", "errors", "sizes"),
    [
        (3, [None, None, None], {3}),
        (2, [None, None, None], {3, 1, 2}),
        (1, [None, None, None], {3, 1, 2}),
        (0, ["OutOfMemoryError: tried to allocate 7 GiB"] * 3, {3, 1, 2}),
    ],
)
def test_out_of_memory_halves_the_micro_batch_and_only_then_fails(
    limit: int,
    errors: list[str | None],
    sizes: set[int],
    composed: Callable[[str], ComposedPipeline],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    case, pipeline = CASES["wan"], composed("wan")
    transformer = pipeline.encoding_components.transformer
    small = OutOfMemory(transformer, limit)
    monkeypatch.setattr(transformer, "forward", small)
    reqs = reqs_of(case, num_inference_steps=2)
    outputs = execute(pipeline, [reqs])
    assert errors_of(outputs) == errors
    assert [req for output in outputs for req in output.reqs] == reqs
    assert set(small.sizes) == sizes
    monkeypatch.undo()
    assert errors_of(execute(pipeline, [reqs[:1]])) == [None], "the next one runs"


def test_keys_of_the_text_are_projected_once_per_micro_batch(tiny: Callable[[str], Path]) -> None:
    pipeline = ComposedPipeline(load_pipeline(LoadSpec(folder=tiny("wan")), CPU).pipeline)
    to_k = pipeline.encoding_components.transformer.blocks[0].attn2.to_k
    forward, calls = to_k.forward, []

    def counted(input: torch.Tensor) -> torch.Tensor:
        calls.append(len(input))
        return forward(input)

    to_k.forward = counted
    reqs = [req_of(CASES["wan"], index, num_inference_steps=5) for index in range(2)]
    execute(pipeline, [[req] for req in reqs])
    # The first forward only counts; from then on once for each of two branches and requests.
    assert len(calls) == 1 + 2 * len(reqs)


def test_a_request_that_raises_fails_alone(composed: Callable[[str], ComposedPipeline]) -> None:
    case = CASES["wan"]
    bad = req_of(case, 0, height=63)
    outputs = execute(composed("wan"), [[bad], [req_of(case, 1, num_inference_steps=1)]], 2)
    first, second = errors_of(outputs)
    assert first is not None
    assert first.startswith("ValueError: ")
    assert second is None


def test_dropped_work_comes_to_nothing(composed: Callable[[str], ComposedPipeline]) -> None:
    executor = ParallelExecutor(composed("wan"), CPU, solo_team())
    batch = MicroBatch(reqs=(req_of(CASES["wan"], 0),), write=frozenset())
    executor.admit([("a", batch)])
    assert executor.steps == (0, 4)
    executor.turn()
    assert executor.steps == (1, 4)
    executor.drop(["a", "b"])
    assert executor.num_in_flight == 0
    assert executor.turn().finished == []


@every_case
def test_stages_declare_what_they_read_and_write(
    case: Case, composed: Callable[[str], ComposedPipeline]
) -> None:
    pipeline = composed(case.name)
    stages = pipeline.stages(pipeline.inputs(req_of(case, 0)))
    assert [stage.name for stage in stages] == [
        "text_encoding",
        "image_encoding",
        "denoising",
        "decoding",
    ]
    kinds = [ParallelType.ONE_RANK, ParallelType.ONE_RANK, ParallelType.ALL_RANKS]
    assert [stage.parallel for stage in stages] == [*kinds, ParallelType.ONE_RANK]
    assert "prompt" in stages.text.reads
    assert any("embeds" in name for name in stages.text.writes & stages.denoise.reads)
    assert "latents" in stages.denoise.writes & stages.decode.reads
    assert stages.decode.output_name in stages.decode.writes


class FakeBlock:
    """A block that declares one thing and writes another."""

    def __init__(self, declares: list[str], writes: list[str]) -> None:
        self.input_names: list[str] = ["prompt"]
        self.intermediate_output_names = declares
        self._writes = writes

    def __call__(self, components: Any, state: Any) -> Any:
        for name in self._writes:
            state.set(name, 1)
        return components, state


@pytest.mark.parametrize(
    ("declares", "writes", "message"),
    [
        (["embeds"], ["embeds"], None),
        (["embeds"], ["embeds", "prompt"], None),
        (["embeds"], ["embeds", "leftover"], r"wrote \['leftover'\] without declaring it"),
        (["embeds", "mask"], ["embeds"], r"declares \['mask'\] but did not write it"),
        ([], ["embeds"], r"text_encoding wrote \['embeds'\]"),
    ],
)
def test_a_stage_that_breaks_its_declaration_is_an_error(
    declares: list[str], writes: list[str], message: str | None
) -> None:
    class Text(PipelineStage):
        name = "text_encoding"
        parallel = ParallelType.ONE_RANK

    stage, state = Text([FakeBlock(declares, writes)]), PipelineState()
    state.set("prompt", "a cat")
    if message is None:
        stage(object(), state)
    else:
        with pytest.raises(StageError, match=message):
            stage(object(), state)


@pytest.mark.parametrize(
    ("declares", "writes", "message"),
    [
        ([], ["leftover"], r"denoising wrote \['leftover'\] without declaring it"),
        (["mask"], [], r"denoising declares \['mask'\] but did not write it"),
    ],
)
def test_the_denoising_stage_is_checked_at_its_end(
    declares: list[str],
    writes: list[str],
    message: str,
    composed: Callable[[str], ComposedPipeline],
) -> None:
    pipeline = composed("wan")
    req = req_of(CASES["wan"], 0, num_inference_steps=1)
    stages = pipeline.stages(pipeline.inputs(req))
    denoise = DenoisingStage([*stages.denoise.blocks, FakeBlock(declares, writes)])
    with torch.inference_mode():
        state = pipeline.state(req)
        stages.text(pipeline.encoding_components, state)
        components = pipeline.components(req.params, [state.get("generator")])
        loop = denoise.begin(components, state)
        denoise.step(components, loop)
        with pytest.raises(StageError, match=message):
            denoise.end(components, state, loop)


@every_case
def test_defaults_of_the_catalog_are_those_of_the_pipelines_call(
    case: Case, plain: Callable[[str], Any]
) -> None:
    pipeline = plain(case.name)
    line = LINES[type(pipeline).__name__]
    call = inspect.signature(pipeline.__call__).parameters
    for name in line.params - {"fps"}:
        assert name in call, f"{name} is no parameter of the plain pipeline"
        default = call[name].default
        assert line.defaults.get(name) == (default or None), name
    extra = set(line.defaults) - line.params
    assert not extra
