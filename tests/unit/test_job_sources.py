from __future__ import annotations

import io
import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from diffbatch.errors import JobError
from diffbatch.job.sources.read import FORMATS, read_txt_stream
from diffbatch.job.spec import SourceFormat
from tests.unit.job_kit import make, wrong

# Each prompt file below holds exactly these.
TRICKY = [
    "squid's dinner",
    '"STOP" in red',
    "it's 5\" tall",
    'a, "b", c',
    "猫 🌟",
    "a\\nb",
    "-rf {x}",
]


def quoted(text: str) -> str:
    return '"' + text.replace('"', '""') + '"'


WRITERS = {
    "txt": lambda texts: "\n".join(texts),
    "csv": lambda texts: "prompt\n" + "\n".join(map(quoted, texts)) + "\n",
    "tsv": lambda texts: "id\tprompt\n" + "\n".join(f"1\t{quoted(text)}" for text in texts),
    "jsonl": lambda texts: "\n".join(json.dumps({"prompt": text}) for text in texts),
    "ndjson": lambda texts: "\n".join(json.dumps(text, ensure_ascii=False) for text in texts),
    "json": lambda texts: json.dumps([{"prompt": text, "n": 1} for text in texts], indent=1),
    "yaml": lambda texts: "".join(f"- {json.dumps(text, ensure_ascii=False)}\n" for text in texts),
}


@pytest.mark.parametrize("bom", [b"", b"\xef\xbb\xbf"], ids=["plain", "bom"])
@pytest.mark.parametrize("newline", ["\n", "\r\n"], ids=["lf", "crlf"])
@pytest.mark.parametrize("suffix", WRITERS)
def test_every_format_gives_the_text_that_was_written(
    tmp_path: Path, suffix: str, newline: str, bom: bytes
) -> None:
    text = WRITERS[suffix](TRICKY).replace("\n", newline)
    (tmp_path / f"p.{suffix}").write_bytes(bom + text.encode())
    reqs = make(tmp_path, f"prompts: [{{file: p.{suffix}}}]")
    assert [req.prompt for req in reqs] == TRICKY


def test_formats_are_those_of_the_job_file() -> None:
    assert set(FORMATS) == set(SourceFormat.__args__)  # type: ignore[attr-defined]


def test_txt_lines_are_literal(tmp_path: Path) -> None:
    (tmp_path / "p.txt").write_bytes(b"  a  \n\n \t\n# b\nx\x0cy\r\n'q'")
    reqs = make(tmp_path, "prompts: [{file: p.txt}]")
    assert [req.prompt for req in reqs] == ["  a  ", "# b", "x\x0cy", "'q'"]


def test_csv_cells_hold_commas_and_newlines(tmp_path: Path) -> None:
    (tmp_path / "p.csv").write_text('prompt,tag\n"a, b\nc",x\nd,y\n')
    reqs = make(tmp_path, "name: '{tag}-{index}'\nprompts: [{file: p.csv}]")
    assert [(req.prompt, req.file) for req in reqs] == [("a, b\nc", "x-0.png"), ("d", "y-1.png")]


def test_columns_override_fields_and_empty_cells_do_not(tmp_path: Path) -> None:
    (tmp_path / "p.csv").write_text(
        "prompt,seed,height,guidance_scale,negative_prompt,other\na,7,128,5.5,no text,x\nb,,,,,\n"
    )
    first, second = make(tmp_path, "prompts: [{file: p.csv, height: 72, seed: 3}]")
    assert (first.seed, first.params.height, first.params.guidance_scale) == (7, 128, 5.5)
    assert first.params.negative_prompt == "no text"
    assert (second.seed, second.params.height, second.params.guidance_scale) == (3, 72, None)
    assert second.params.negative_prompt is None


def test_rows_of_json_may_have_lists_of_seeds(tmp_path: Path) -> None:
    (tmp_path / "p.jsonl").write_text(
        '{"Prompt": "a", "seed": [4, 9], "num_outputs_per_prompt": 2}\n{"Prompt": "b", "x": [1]}\n'
    )
    reqs = make(tmp_path, "prompts: [{file: p.jsonl}]")
    assert [(req.prompt, req.seed) for req in reqs] == [
        ("a", 4),
        ("a", 5),
        ("a", 9),
        ("a", 10),
        ("b", 0),
    ]


def test_values_that_every_row_replaces_need_not_be_right(tmp_path: Path) -> None:
    (tmp_path / "p.csv").write_text("prompt,height\na,64\nb,72\n")
    reqs = make(tmp_path, "prompts: [{file: p.csv, height: 60}]")
    assert [req.params.height for req in reqs] == [64, 72]
    (tmp_path / "p.csv").write_text("prompt,height\na,64\nb,\nc,\n")
    problems = wrong(tmp_path, "prompts: [{file: p.csv, height: 60}]")
    assert problems == ["p.csv:3: height 60 is not a multiple of 8"]


def test_limit_takes_the_first_rows_and_reads_no_further(tmp_path: Path) -> None:
    (tmp_path / "p.jsonl").write_bytes(b'"a"\n"b"\n\xff\xff broken')
    reqs = make(tmp_path, "prompts: [{file: p.jsonl, limit: 2}]")
    assert [req.prompt for req in reqs] == ["a", "b"]


def test_parquet(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    columns: dict[str, list[Any]] = {
        "Prompt": TRICKY,
        "height": [None, 128.0, float("nan"), None, None, None, None],
        "seed": [1, 2, 3, None, 5, 6, 7],
        "blob": [b"x"] * 7,
    }
    parquet.write_table(pyarrow.table(columns), tmp_path / "p.parquet")
    reqs = make(tmp_path, "prompts: [{file: p.parquet}]")
    assert [req.prompt for req in reqs] == TRICKY
    assert [req.seed for req in reqs] == [1, 2, 3, 0, 5, 6, 7]
    assert [req.params.height for req in reqs] == [64, 128, 64, 64, 64, 64, 64]


@pytest.mark.parametrize(
    ("name", "raw", "message"),
    [
        ("p.txt", b"ok\n\xe9t\xe9\n", "p.txt:2: byte 0xE9 at column 1 is not UTF-8; save the file"),
        ("p.csv", b"prompt\nok\ncaf\xe9\n", "p.csv:3: byte 0xE9 at column 4 is not UTF-8"),
        ("p.json", b'["a",\n"\xe9"]', "p.json:2: byte 0xE9 at column 2 is not UTF-8"),
        ("p.txt", "a\n".encode("utf-16"), "p.txt: this is UTF-16 text; save the prompt file as"),
        ("p.txt", "猫a\n".encode("utf-16-le"), "this is UTF-16 text"),
        ("p.txt", "a\n".encode("utf-32"), "this is UTF-32 text"),
        ("p.csv", b"\xef\xbb\xbf", "there are no prompts in this file"),
        ("p.csv", b"prompt,x\n", "there are no prompts in this file"),
        ("p.csv", b"prompt,x\na,b,c\n", "p.csv:2: this row has 3 fields, the header has 2"),
        ("p.csv", b"prompt,x\na\n", "p.csv:2: this row has 1 fields, the header has 2"),
        ("p.csv", b'prompt\n"STOP" in red\n', "p.csv:2: ',' expected after '\"'; write a field"),
        ("p.csv", b'prompt\nx\n"never\nclosed\n', "p.csv:3: unexpected end of data"),
        ("p.csv", b"prompt,x\n,1\n", "p.csv:2: no prompt in column 'prompt'; write one or remove"),
        ("p.csv", b"a,a\nx,y\n", "two columns are called 'a'; rename one"),
        ("p.csv", b"prompt,height\na,x\n", "p.csv:2: height: must be a whole number, found 'x'"),
        ("p.csv", b"prompt,seed\na,-1\n", "p.csv:2: seed: -1 would draw another seed"),
        ("p.csv", b"prompt,image\na,no.png\n", "p.csv:2: the image does not exist: "),
        ("p.csv", b"prompt,height\na,60\n", "p.csv:2: height 60 is not a multiple of 8"),
        ("p.jsonl", b'{"prompt": "a", "height": "512"}', "p.jsonl:1: height: must be a whole numb"),
        ("p.jsonl", b'{"prompt": "a", "seed": null}', "p.jsonl:1: seed: null would draw another"),
        ("p.jsonl", b'"a"\n{"prompt": \n', "p.jsonl:2: not valid JSON: Expecting value at column"),
        ("p.jsonl", b'"a"\n42\n', "p.jsonl:2: 42 is not text and not an object with a prompt"),
        (
            "p.csv",
            b"a red circle\na blue one\n",
            "is the first line 'a red circle' a prompt? add a",
        ),
        (
            "p.csv",
            b"prompt;seed\na cat;7\n",
            "the header 'prompt;seed' has another separator; save",
        ),
        (
            "p.jsonl",
            b'{"prompt": "a", "prompt": "b"}',
            "p.jsonl:1: not valid JSON: the key 'prompt'",
        ),
        ("p.jsonl", b'{"prompt": 42}', "p.jsonl:1: the prompt 42 is not text; quote it"),
        ("p.jsonl", b'{"prompt": "a"}\n{"promt": "b"}', "p.jsonl:2: no prompt in column 'prompt'"),
        ("p.jsonl", b'{"a": "x", "b": "y"}', "which column is the prompt? add column: one of a, b"),
        ("p.jsonl", b"[" * 100_000, "p.jsonl:1: not valid JSON"),
        ("p.jsonl", b'"\\ud800"', "p.jsonl:1: half a character in the text"),
        ("p.json", b'{"a": 1}', "p.json:1: not valid JSON: not a list"),
        ("p.json", b'["a",\n "b"', "p.json:2: not valid JSON: expected ',' or ']'"),
        ("p.json", b'["a"] x', "p.json:1: not valid JSON: text after the list"),
        ("p.json", b"[]", "there are no prompts in this file"),
        ("p.json", b'["a",\n\n{"prompt": ""}]', "p.json:3: no prompt in column 'prompt'"),
        ("p.yaml", b"- a\n- 42\n", "p.yaml:2: 42 is not text"),
        ("p.yaml", b"- a\n- the #1 fan\n", "p.yaml:2: YAML takes '#1 fan' for a comment"),
        ("p.yaml", b"a: b\n", "p.yaml: not a list; a yaml file of prompts is one list"),
        ("p.parquet", b"PAR1 but not really", "p.parquet: not a readable parquet file"),
    ],
)
def test_bad_prompt_file(tmp_path: Path, name: str, raw: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(raw)
    problems = wrong(tmp_path, f"prompts:\n- file: {name}\n")
    assert len(problems) == 1, problems
    assert message in problems[0]


def test_bad_rows_do_not_hide_each_other(tmp_path: Path) -> None:
    (tmp_path / "p.jsonl").write_bytes(b'42\n"ok"\n\xff\n{"prompt": ""}\n{"prompt": "a", "fps": 0}')
    problems = wrong(tmp_path, "prompts: [{file: p.jsonl, column: prompt}]")
    assert [problem.split(":")[1] for problem in problems] == ["1", "3", "4", "5"]


def test_a_long_line_is_a_prompt(tmp_path: Path) -> None:
    text = "x" * 2_000_000
    (tmp_path / "p.csv").write_text(f"prompt\n{text}\n")
    [req] = make(tmp_path, "prompts: [{file: p.csv}]")
    assert req.prompt == text


def test_rows_stream(tmp_path: Path) -> None:
    with (tmp_path / "p.jsonl").open("w") as stream:
        for number in range(4_000):
            stream.write(json.dumps({"prompt": f"{number} " + "x" * 2500}) + "\n")
    from diffbatch.job.expand import expand
    from diffbatch.job.load import load_job

    (tmp_path / "job.yaml").write_text("model: demo\nprompts: [{file: p.jsonl}]")
    job = load_job(tmp_path / "job.yaml")
    tracemalloc.start()
    reqs = expand(job, model_key="m", model_defaults={}, modality="image", check=lambda params: [])
    assert sum(1 for _ in reqs) == 4_000
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 3e6  # the file has 10 MB; digests take about 150 bytes a request


def test_prompts_from_stdin() -> None:
    assert read_txt_stream(io.BytesIO(b"-5 degrees\n\n--no text--\r\n"), "stdin") == [
        "-5 degrees",
        "--no text--",
    ]
    with pytest.raises(JobError, match="stdin: no prompts came in"):
        read_txt_stream(io.BytesIO(b"\n"), "stdin")
