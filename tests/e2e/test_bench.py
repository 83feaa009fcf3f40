"""`diffbatch bench` on a real model: what it measures, and that a sweep changes no pixel."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

from tests.e2e import command

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


def test_a_sweep_measures_every_point_that_can_run(
    tiny: Callable[[str], Path], tmp_path: Path
) -> None:
    out = tmp_path / "bench"
    ended = command.run(
        "bench",
        *("--model", tiny("wan"), "--num-prompts", 4, "--num-inference-steps", 2),
        *("--height", 32, "--width", 32, "--num-frames", 1),
        *("--sweep", "replicas=1,2", "--sweep", "pp=1,99", "--output-dir", out),
    )
    assert "all 2 launches made the same outputs, bit for bit" in ended.out
    assert "cannot run: parallel: pp 99 needs" in ended.out
    data = json.loads((out / "bench.json").read_text(encoding="utf-8"))
    assert data["complete"]
    assert data["outputs"] == {"compared": 2, "equal": True, "differences": []}
    one, wide, two, _ = data["points"]
    assert [p["status"] for p in data["points"]] == ["ok", "refused", "ok", "refused"]
    assert wide["reason"]
    for point in (one, two):
        assert point["num_ok"] == 4
        assert 0 < point["latency_p50_s"] <= point["latency_p99_s"] <= point["window_s"] + 0.001
        assert 0 < point["load_s"] < point["startup_s"]
        assert {"denoising", "decoding", "save"} <= point["stage_s"].keys()
        assert 0 < point["overhead_per_request_s"] < point["latency_mean_s"]
        for rank in point["ranks"]:
            assert rank["overhead_per_request_s"] > 0
            assert 0 < rank["busy_share"] <= 1
            assert rank["occupied_share"] > 0, "every replica was warm when counting began"
            assert rank["bubble"] == 0
            assert rank["peak_memory_bytes"] > 1e8
    assert (len(one["ranks"]), len(two["ranks"])) == (1, 2)
    assert one["efficiency"] == 1.0
    with (out / "bench.csv").open(newline="") as stream:
        assert next(row["label"] for row in csv.DictReader(stream)) == "replicas 1, pp 1"
    with Image.open(out / "bench.png") as image:
        assert image.width > 1000
    assert (out / "bench.svg").read_text(encoding="utf-8").startswith("<svg")
    made = command.records(out / two["folders"][0])
    assert len([r for r in made if not r["file"].startswith("bench-warmup/")]) == 4
    command.assert_all_gone(out)
