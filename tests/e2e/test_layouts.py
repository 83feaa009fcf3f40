"""A job over many ranks per replica: the same files, whatever the layout, and after a dead rank."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.e2e import command
from tests.e2e.conftest import Uninterrupted

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


@pytest.mark.parametrize(
    "layout",
    [
        ("--replicas", 1, "--pp", 2, "--cfg", 2),
        ("--replicas", 1, "--pp", 3, "--pp-partition", "2,4,2", "--in-flight", 5),
        ("--replicas", 1, "--pp", 2, "--ulysses", 2),
        ("--replicas", 2, "--pp", 2, "--in-flight", 1),
    ],
    ids=["pp2-cfg2", "pp3", "pp2-ulysses2", "replicas2-pp2"],
)
def test_files_do_not_depend_on_the_layout(
    uninterrupted: Uninterrupted, tmp_path: Path, layout: tuple[object, ...]
) -> None:
    folder = tmp_path / "out"
    command.run("run", uninterrupted.job, "--output", folder, *layout)
    uninterrupted.assert_equals(folder)
    facts = json.loads((folder / "run.json").read_text())
    ranks = {str(rank) for rank in range(len(facts["devices"]))}
    assert facts["devices"].keys() == facts["busy_share"].keys() == ranks
    assert all(0 < share <= 1 for share in facts["busy_share"].values())
    assert facts["transformers"].keys() == ranks, "every rank holds a part"
    command.assert_all_gone(folder)


def test_a_rank_that_dies_is_started_again_and_nothing_is_made_twice(
    uninterrupted: Uninterrupted, tmp_path: Path
) -> None:
    folder = tmp_path / "out"
    layout = ("--replicas", 1, "--pp", 2, "--cfg", 2)
    with command.running("run", uninterrupted.job, "--output", folder, *layout) as process:
        command.wait_until(lambda: len(command.workers(folder)) == 4, "workers")
        command.wait_for_more_records(folder, 4, process)
        command.kill(command.workers(folder)[2])
        ended = command.finish(process)
    assert ended.code == 0, ended
    assert json.loads((folder / "run.json").read_text())["num_starts"] == 2
    attempts = [record["attempt"] for record in command.records(folder)]
    assert attempts.count(0) >= 4, "what was done is kept"
    command.assert_all_gone(folder)
    uninterrupted.assert_equals(folder)
