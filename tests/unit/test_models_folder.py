"""A model folder as `plan` sees it: facts, a fingerprint, and every way a folder can be wrong."""

from __future__ import annotations

import json
import os
import re
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from diffbatch.errors import PlanError
from diffbatch.models.folder import read_model
from diffbatch.models.safetensors_header import read_header
from diffbatch.plan.facts import model_key
from tests.unit.model_kit import make_model, wan_facts, write_json, write_weights

WEIGHTS = "transformer/diffusion_pytorch_model.safetensors"


def fingerprint(folder: Path) -> str:
    return read_model("m", folder).fingerprint


@pytest.mark.parametrize(
    ("class_name", "modality", "spatial", "temporal", "guided", "side"),
    [
        ("WanPipeline", "video", 16, 4, True, (480, 832)),
        ("StableDiffusion3Pipeline", "image", 16, 1, True, (128, 128)),
        ("FluxPipeline", "image", 16, 1, False, (1024, 1024)),
    ],
)
def test_facts_come_from_the_config_files(
    tmp_path: Path,
    class_name: str,
    modality: str,
    spatial: int,
    temporal: int,
    guided: bool,
    side: tuple[int, int],
) -> None:
    facts = read_model("m", make_model(tmp_path / "m", class_name))
    assert (facts.class_name, facts.modality, facts.guided) == (class_name, modality, guided)
    assert (facts.spatial_multiple, facts.temporal_multiple) == (spatial, temporal)
    assert (facts.defaults["height"], facts.defaults["width"]) == side
    assert set(facts.defaults) <= facts.params


def test_weights_are_counted_per_component(tmp_path: Path) -> None:
    facts = read_model("m", make_model(tmp_path / "m"))
    found = {c.name: (c.weight_bytes, c.num_params, c.dtypes) for c in facts.components}
    assert found == {
        "scheduler": (0, 0, ()),
        "text_encoder": (32, 16, ("F16",)),
        "tokenizer": (0, 0, ()),
        "transformer": (32, 16, ("F16",)),
        "vae": (32, 16, ("F16",)),
    }
    assert facts.weight_bytes == 96


def test_second_guidance_scale_needs_a_second_transformer(tmp_path: Path) -> None:
    one = read_model("m", make_model(tmp_path / "one"))
    two = read_model("m", make_model(tmp_path / "two", second_transformer=True))
    assert "guidance_scale_2" not in one.params
    assert "guidance_scale_2" in two.params
    assert "transformer_2" in {component.name for component in two.components}


def test_shards_are_added_up(tmp_path: Path) -> None:
    folder = make_model(tmp_path / "m")
    (folder / WEIGHTS).unlink()
    for part in ("00001", "00002"):
        name = f"diffusion_pytorch_model-{part}-of-00002.safetensors"
        write_weights(folder / "transformer" / name)
    [transformer] = [c for c in read_model("m", folder).components if c.name == "transformer"]
    assert transformer.num_params == 32


def test_a_variant_is_used_where_it_exists(tmp_path: Path) -> None:
    folder = make_model(tmp_path / "m")
    variant = folder / "transformer" / "diffusion_pytorch_model.fp16.safetensors"
    write_weights(variant, more=np.zeros(2, dtype=np.float16))
    plain, chosen = read_model("m", folder), read_model("m", folder, variant="fp16")
    assert (plain.weight_bytes, chosen.weight_bytes) == (96, 100)
    assert plain.fingerprint != chosen.fingerprint


def test_fingerprint_depends_on_neither_path_nor_time(tmp_path: Path) -> None:
    folder = make_model(tmp_path / "m")
    copy = tmp_path / "elsewhere" / "other-name"
    shutil.copytree(folder, copy)
    for path in copy.rglob("*"):
        os.utime(path, (1, 1))
    assert fingerprint(copy) == fingerprint(folder)
    (copy / "README.md").write_text("words")
    assert fingerprint(copy) == fingerprint(folder)


def _edit_config(folder: Path) -> None:
    write_json(folder / "vae" / "config.json", {"temperal_downsample": [True, True, False]})


def _edit_tokenizer(folder: Path) -> None:
    write_json(folder / "tokenizer" / "tokenizer.json", {"vocab": {"b": 0}})


def _edit_scheduler(folder: Path) -> None:
    write_json(folder / "scheduler" / "scheduler_config.json", {"flow_shift": 5.0})


def _edit_class(folder: Path) -> None:
    path = folder / "model_index.json"
    index = json.loads(path.read_text())
    write_json(path, {**index, "_class_name": "StableDiffusion3Pipeline"})


def _edit_weight(folder: Path) -> None:
    changed = np.arange(12, dtype=np.float16).reshape(3, 4) + 1
    write_weights(folder / WEIGHTS, **{"blocks.0.weight": changed})


def _edit_dtype(folder: Path) -> None:
    write_weights(folder / WEIGHTS, **{"blocks.0.bias": np.ones(4, dtype=np.float32)})


def _add_tensor(folder: Path) -> None:
    write_weights(folder / WEIGHTS, more=np.zeros(2, dtype=np.float16))


def _rename_tensor(folder: Path) -> None:
    data = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(data.replace(b"blocks.0.bias", b"blocks.1.bias"))


@pytest.mark.parametrize(
    "edit",
    [
        _edit_config,
        _edit_tokenizer,
        _edit_scheduler,
        _edit_class,
        _edit_weight,
        _edit_dtype,
        _add_tensor,
        _rename_tensor,
    ],
)
def test_fingerprint_changes_with_everything_that_decides_pixels(
    tmp_path: Path, edit: Callable[[Path], None]
) -> None:
    folder = make_model(tmp_path / "m")
    before = fingerprint(folder)
    edit(folder)
    assert fingerprint(folder) != before


def test_model_key_changes_with_how_the_weights_are_run() -> None:
    facts = wan_facts()
    base = {"dtype": "auto", "scheduler": "", "batch_size": 1}
    changes = [{}, {"dtype": "float32"}, {"scheduler": '{"name": "x"}'}, {"batch_size": 2}]
    keys = {model_key(facts, **{**base, **change}) for change in changes}
    keys.add(model_key(wan_facts(fingerprint="beef"), **base))
    assert len(keys) == 5
    assert model_key(wan_facts(label="b", folder=Path("/x")), **base) in keys


def test_model_key_changes_with_the_rule_of_auto(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = {"dtype": "auto", "scheduler": "", "batch_size": "auto"}
    before = model_key(wan_facts(), **asked)
    monkeypatch.setattr("diffbatch.plan.facts.AUTO_TOKENS", 8192)
    assert model_key(wan_facts(), **asked) != before, "or a resume would mix other batches in"


def _no_index(folder: Path) -> None:
    (folder / "model_index.json").unlink()


def _torn_index(folder: Path) -> None:
    (folder / "model_index.json").write_text('{"_class_name": "WanPipe')


def _binary_index(folder: Path) -> None:
    (folder / "model_index.json").write_bytes(b"\xff\xfe\x00")


def _list_index(folder: Path) -> None:
    (folder / "model_index.json").write_text("[]")


def _classless_index(folder: Path) -> None:
    (folder / "model_index.json").write_text("{}")


def _other_class(folder: Path) -> None:
    write_json(folder / "model_index.json", {"_class_name": "KandinskyPipeline"})


def _no_component(folder: Path) -> None:
    shutil.rmtree(folder / "vae")


def _pickle_only(folder: Path) -> None:
    (folder / WEIGHTS).rename(folder / "transformer" / "diffusion_pytorch_model.bin")


def _variant_only(folder: Path) -> None:
    (folder / WEIGHTS).rename(folder / "transformer" / "diffusion_pytorch_model.fp16.safetensors")


def _cut_weights(folder: Path) -> None:
    data = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(data[:-1])


def _cut_header(folder: Path) -> None:
    data = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(data[:20])


def _empty_weights(folder: Path) -> None:
    (folder / WEIGHTS).write_bytes(b"")


def _lfs_pointer(folder: Path) -> None:
    (folder / WEIGHTS).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\n")


def _unknown_default(folder: Path) -> None:
    (folder / "diffbatch.yaml").write_text("defaults: {steps: 4}")


def _broken_defaults(folder: Path) -> None:
    (folder / "diffbatch.yaml").write_text("defaults: {height: ")


@pytest.mark.parametrize(
    ("spoil", "place", "message"),
    [
        (shutil.rmtree, "model m", "there is no folder"),
        (_no_index, "model m", "has no model_index.json, so it is not a diffusers pipeline"),
        (_torn_index, "model_index.json", "not valid JSON"),
        (_binary_index, "model_index.json", "not valid JSON"),
        (_list_index, "model_index.json", "a JSON object is due here"),
        (_classless_index, "model_index.json", "names no _class_name"),
        (_other_class, "model m", "KandinskyPipeline is not a pipeline that diffbatch runs; it"),
        (_no_component, "m", "names the component vae, but .* is missing"),
        (_pickle_only, "transformer", r"only as pickle \(diffusion_pytorch_model.bin\).*save it"),
        (_variant_only, "transformer", "only diffusion_pytorch_model.fp16.*choose .* `variant`"),
        (_cut_weights, WEIGHTS, r"has \d+ bytes but its header says \d+: it is cut short; down"),
        (_cut_header, WEIGHTS, "not a whole safetensors file .*download or save the model"),
        (_empty_weights, WEIGHTS, "not a whole safetensors file"),
        (_lfs_pointer, WEIGHTS, "not a whole safetensors file .header of"),
        (_unknown_default, "diffbatch.yaml", "the model takes no steps"),
        (_broken_defaults, "diffbatch.yaml", "not valid YAML"),
    ],
)
def test_a_wrong_folder_is_refused_with_its_place(
    tmp_path: Path, spoil: Callable[[Path], None], place: str, message: str
) -> None:
    folder = make_model(tmp_path / "m")
    spoil(folder)
    with pytest.raises(PlanError) as caught:
        read_model("m", folder)
    [problem] = caught.value.problems
    assert problem.place.endswith(place)
    assert re.search(message, problem.message), problem.message
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    "header",
    [
        b"[]",
        b'{"a": []}',
        b'{"a": {"dtype": "F16", "shape": [1]}}',
        b'{"a": {"dtype": "F16", "shape": [1], "data_offsets": [0]}}',
        b'{"a": {"dtype": "F16", "shape": [1], "data_offsets": ["0", "2"]}}',
        b"\xff\xff",
    ],
)
def test_a_damaged_header_is_refused(tmp_path: Path, header: bytes) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(struct.pack("<Q", len(header)) + header + b"\0\0")
    with pytest.raises(PlanError, match="not a whole safetensors file"):
        read_header(path)


def test_header_entries_come_in_file_order(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    write_weights(path)
    entries = read_header(path)
    assert {entry.name: entry.shape for entry in entries} == {
        "blocks.0.bias": (4,),
        "blocks.0.weight": (3, 4),
    }
    assert [entry.begin for entry in entries] == sorted(entry.begin for entry in entries)
    assert entries[-1].end == path.stat().st_size
