"""`diffbatch plan`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import typer

from diffbatch.cli import options as o

if TYPE_CHECKING:
    from rich.console import Console


@o.takes_job_options
def plan(options: o.JobOptions, as_json: o.AsJson = False) -> None:
    """Show what a run would do: requests, names, batches, layout, weights. Starts nothing."""
    from rich.console import Console

    from diffbatch.errors import PlanError
    from diffbatch.launch.plan import make_plan

    found = make_plan(options.prepare(), limit=options.limit, only=options.only or ())
    if as_json:
        typer.echo(json.dumps(found, ensure_ascii=False))
    else:
        _show(found, Console())
    if problem := found["memory"]["refused"]:
        raise PlanError(problem, place="memory")


def _show(found: dict[str, Any], console: Console) -> None:
    from rich.table import Table
    from rich.text import Text

    from diffbatch.plan.layout import AXES
    from diffbatch.terminal import counted, printable

    def text(value: object) -> Text:
        return Text(printable(str(value)))

    def table(title: str, *columns: str) -> Table:
        made = Table(
            *columns, title=text(title), title_justify="left", title_style="bold", box=None
        )
        return made

    model = found["model"]
    console.print(
        text(
            f"{counted(found['requests'], 'request')} ({found['duplicates']} repeated), "
            f"{counted(found['micro_batches'], 'micro-batch', 'micro-batches')} (batch_size "
            f"{found['batch_size']}) -> {found['output']}"
        )
    )
    if found["ignored"]:
        names = ", ".join(found["ignored"])
        console.print(text(f"without effect here ({model['class']}): {names}"))
    if resume := found["resume"]:
        console.print(
            text(f"{resume['done']} done, {resume['failed']} failed, {resume['pending']} to make")
        )
    first = table("First requests", "index", "seed", "file", "prompt")
    for req in found["first"]:
        first.add_row(
            str(req["index"]), str(req["seed"]), text(req["file"]), text(_short(req["prompt"]))
        )
    console.print(first)
    shapes = table("Micro-batches", "number", "of up to", "branches", "tokens", "parameters")
    for shape in found["shapes"]:
        params = ", ".join(f"{name} {value}" for name, value in shape["params"].items())
        shapes.add_row(
            *(str(shape[name]) for name in ("micro_batches", "batch_size", "branches", "tokens")),
            text(params),
        )
    console.print(shapes)
    weights = table(f"Weights of {model['name']} ({model['class']})", "component", "class", "MB")
    for component in model["components"]:
        if component["weight_bytes"]:
            size = f"{component['weight_bytes'] / 1e6:.1f}"
            weights.add_row(text(component["name"]), text(component["class"]), size)
    weights.add_row("total", "", f"{model['weight_bytes'] / 1e6:.1f}")
    console.print(weights)
    axes = [axis for axis in AXES if axis == "replicas" or found["layout"][axis] > 1]
    title = ", ".join(f"{axis} {found['layout'][axis]}" for axis in axes)
    layout = table(f"Layout: {title}", "rank", *axes, "device")
    for rank in found["layout"]["ranks"]:
        layout.add_row(str(rank["rank"]), *(str(rank[axis]) for axis in axes), rank["device"])
    console.print(layout)
    _show_auto(found["auto"], console)
    _show_memory(found["memory"], console)


def _show_auto(auto: dict[str, Any] | None, console: Console) -> None:
    from rich.text import Text

    from diffbatch.terminal import printable

    if auto is None:
        return
    console.print(Text(f"auto chose {auto['chosen']}, the smallest group that fits", "bold"))
    for item in auto["rejected"]:
        console.print(Text(printable(f"  not {item['name']}: {item['why']}")))


def _show_memory(memory: dict[str, Any], console: Console) -> None:
    """One row per rank of a replica, one column per component, in MB."""
    from rich.table import Table
    from rich.text import Text

    from diffbatch.terminal import printable

    def mega(num_bytes: int) -> str:
        return f"{num_bytes / 1e6:.2f}"

    names = list(memory["ranks"][0]["weights"])
    title = Text(f"Memory of each rank of a replica, MB, weights in {memory['dtype']}")
    table = Table(title=title, title_justify="left", title_style="bold", box=None)
    for column in ("rank", *names, "activations (about)", "total"):
        table.add_column(Text(printable(column)))
    for rank in memory["ranks"]:
        weights = (mega(rank["weights"][name]) for name in names)
        sums = (mega(rank["activation_bytes"]), mega(rank["total_bytes"]))
        table.add_row(str(rank["rank"]), *weights, *sums)
    console.print(table)
    if memory["fits"] is None:
        console.print(Text("how much a device holds here is not known; see --memory-gb"))
    else:
        verdict = "fits" if memory["fits"] else "does NOT fit"
        console.print(
            Text(f"{verdict}: {mega(memory['budget_bytes'])} MB, {memory['budget_source']}")
        )


def _short(text: str, limit: int = 60) -> str:
    line = " ".join(text.split())
    return line if len(line) <= limit else line[: limit - 1] + "\N{HORIZONTAL ELLIPSIS}"
