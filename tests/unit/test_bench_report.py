"""What a bench leaves: table, CSV, chart; and whether points made the same outputs."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

from diffbatch.bench import report
from diffbatch.bench.book import Book
from diffbatch.bench.chart import draw
from diffbatch.bench.compare import Made, difference
from diffbatch.bench.drawing import nice_ticks
from diffbatch.bench.measure import figures_of
from diffbatch.bench.result import PointResult, best_of, first_measured, set_efficiencies
from diffbatch.errors import RunFolderError
from tests.unit.test_bench_measure import two_replicas

FACTS: dict[str, Any] = {
    "model": {"name": "/models/<tiny> & co"},
    "machine": {"cpu": "a CPU", "num_cores": 2, "num_gpus": 0},
    "threads": 1,
    "requests": {"num": 4, "params": {"height": 32, "width": 48, "num_inference_steps": 2}},
}


def measured(number: int = 0, slow: float = 1.0, **more: Any) -> PointResult:
    settings = {"replicas": number + 1}
    values: dict[str, Any] = {
        "number": number,
        "label": f"replicas {number + 1}",
        "settings": settings,
        "status": "ok",
        "layout": {**settings, "pp": 1, "cfg": 1, "ring": 1, "ulysses": 1, "tp": 1},
        "world_size": number + 1,
        "in_flight": 1,
        "batch_size": 1,
        "figures": figures_of([two_replicas(slow), two_replicas(slow * 1.1)]),
    }
    return PointResult(**{**values, **more})


def refused(number: int) -> PointResult:
    return PointResult(
        number=number,
        label=f"pp {number}",
        settings={"pp": number},
        status="refused",
        reason="pp 40 needs 40 <blocks> & more",
    )


@pytest.fixture
def results() -> list[PointResult]:
    found = [refused(0), measured(0), measured(1, 0.6), measured(2, 0.5)]
    set_efficiencies(found)
    return found


def test_efficiency_is_relative_to_the_first_point_with_figures(results: list[PointResult]) -> None:
    assert first_measured(results) is results[1]
    found = [result.efficiency and round(result.efficiency, 3) for result in results]
    assert found == [None, 1.0, 0.833, 0.667]
    assert best_of(results) is results[3]


def test_the_csv_has_a_line_per_point_and_the_same_columns_for_all(
    results: list[PointResult],
) -> None:
    rows = list(csv.DictReader(io.StringIO(report.csv_text(results))))
    assert [row["status"] for row in rows] == ["refused", "ok", "ok", "ok"]
    assert rows[0]["reason"] == "pp 40 needs 40 <blocks> & more"
    assert rows[0]["requests_per_s"] == ""
    assert rows[1]["latency_p50_s"] == "1.1"
    assert rows[1]["overhead_per_request_s"] == "0.12"
    assert float(rows[2]["efficiency"]) == pytest.approx(0.8333, abs=1e-4)
    assert rows[1]["stage_denoising_s"] == "1.5"
    assert rows[1]["peak_memory_bytes_max"] == "9"
    assert not any(None in row or None in row.values() for row in rows)


def test_the_tables_fit_a_narrow_terminal(results: list[PointResult]) -> None:
    stages = ("text_encoding", "denoising", "decoding", "save")
    for result in results[1:]:
        result.figures["stage_s"] = dict.fromkeys(stages, 0.0718)
    console = Console(file=io.StringIO(), width=80)
    report.print_tables(results, console)
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert "\N{HORIZONTAL ELLIPSIS}" not in text
    assert all(len(line) <= 80 for line in text.splitlines())
    assert "outputs" in text
    assert "denoise" in text
    assert report.tables([refused(1)]) == []


def test_tables_that_do_not_fit_are_printed_in_full(results: list[PointResult]) -> None:
    console = Console(file=io.StringIO(), width=20)
    report.print_tables(results, console)
    assert isinstance(console.file, io.StringIO)
    assert "114.5" in console.file.getvalue()
    assert "\N{HORIZONTAL ELLIPSIS}" not in console.file.getvalue()


def test_remarks_name_what_the_table_leaves_out(results: list[PointResult]) -> None:
    results[1].notes = ["2 ranks share 1 core"]
    results[2].figures["num_failed"] = 3
    waiting = PointResult(number=9, label="pp 9", settings={"pp": 9})
    assert list(report.remarks([*results, waiting])) == [
        "pp 0: cannot run: pp 40 needs 40 <blocks> & more",
        "replicas 1: 2 ranks share 1 core",
        "replicas 2: 3 requests failed; their errors are in the manifests",
        "pp 9: not measured",
    ]


def test_the_chart_is_well_formed_and_shows_every_point(results: list[PointResult]) -> None:
    title, subtitle = report.headings(FACTS)
    assert title == "<tiny> & co: 4 requests, 48 x 32, 2 steps"
    assert subtitle == "a CPU, 2 cores, one thread per rank"
    chart = draw(results, title=title, subtitle=subtitle)
    root = ElementTree.fromstring(chart.svg())
    texts = [node.text or "" for node in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {"replicas 1", "replicas 3", "100 %", "83 %", title, subtitle} <= set(texts)
    assert "cannot run: pp 40 needs 40 <blocks> & more" in texts
    with Image.open(io.BytesIO(chart.png())) as image:
        assert image.size == (chart.width * 2, chart.height * 2)
        assert len(set(image.get_flattened_data())) > 10


def test_a_chart_without_any_figures_can_be_drawn() -> None:
    waiting = PointResult(number=0, label="pp \x00 2", settings={"pp": 2})
    chart = draw([waiting, refused(3)], title="t", subtitle="s")
    ElementTree.fromstring(chart.svg())
    assert chart.png().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("most", "ticks"),
    [
        (0.0, [0, 1]),
        (100.0, [0, 25, 50, 75, 100]),
        (481.0, [0, 200, 400, 600]),
        (0.07, [0, 0.02, 0.04, 0.06, 0.08]),
        (135.0, [0, 50, 100, 150]),
    ],
)
def test_ticks_are_round_and_reach_the_largest_value(most: float, ticks: list[float]) -> None:
    assert nice_ticks(most) == pytest.approx(ticks)


def made(folder: Path, number: int, sha: str, level: int, **settings: int) -> Made:
    folder.mkdir(exist_ok=True)
    path = folder / f"{number}.png"
    Image.fromarray(np.full((4, 4, 3), level, dtype=np.uint8)).save(path)
    return Made(point=number, label=f"point {number}", settings=settings, files={0: (sha, path)})


def test_equal_hashes_and_equal_pixels_are_no_difference(tmp_path: Path) -> None:
    first = made(tmp_path, 0, "a", 7, batch_size=1)
    assert difference(first, made(tmp_path, 1, "a", 7, batch_size=1)) is None
    assert difference(first, made(tmp_path, 2, "b", 7, batch_size=4)) is None


def test_other_pixels_are_expected_only_where_sums_change(tmp_path: Path) -> None:
    first = made(tmp_path, 0, "a", 7, tp=1, batch_size=1)
    expected = difference(first, made(tmp_path, 1, "b", 9, tp=2, batch_size=1))
    assert expected is not None
    assert (expected.expected, expected.max_level, expected.num, expected.of) == (True, 2, 1, 1)
    wrong = difference(first, made(tmp_path, 2, "b", 9, tp=1, batch_size=1))
    assert wrong is not None
    assert not wrong.expected
    assert "MUST NOT" in str(wrong)
    assert json.dumps(wrong.as_dict())


def test_clips_are_compared_by_hash_alone(tmp_path: Path) -> None:
    one = Made(point=0, label="a", settings={}, files={0: ("a", tmp_path / "a.mp4")})
    other = Made(point=1, label="b", settings={}, files={0: ("b", tmp_path / "b.mp4")})
    found = difference(one, other)
    assert found is not None
    assert found.max_level is None


def test_a_bench_folder_takes_the_place_of_an_older_bench_and_of_nothing_else(
    tmp_path: Path, results: list[PointResult]
) -> None:
    book = Book(root=tmp_path / "bench", facts=FACTS, results=results)
    assert book.open() is None
    data = json.loads((book.root / "bench.json").read_text())
    assert (data["schema_version"], data["baseline"], data["complete"]) == (1, 0, True)
    assert book.open() == tmp_path / "bench.old-1"
    assert book.open() == tmp_path / "bench.old-2"
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("x")
    with pytest.raises(RunFolderError, match="not a bench"):
        Book(root=tmp_path / "mine", facts=FACTS, results=results).open()
    assert (tmp_path / "mine" / "thesis.txt").exists()
