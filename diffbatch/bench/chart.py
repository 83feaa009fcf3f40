"""The chart of a bench: throughput and efficiency, one row per point. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from diffbatch.bench.drawing import Drawing, Label, Line, Rect, Shape, nice_ticks, text_width
from diffbatch.bench.result import PointResult, first_measured

_WIDTH = 1040
_MARGIN, _GAP = 28.0, 64.0
_HEAD, _AXIS, _FOOT = 132.0, 30.0, 40.0
_ROW, _BAR = 36.0, 20.0
_LABEL_MAX = 300.0
_INK, _FAINT, _GRID = "#222222", "#666666", "#e2e2e2"
_BLUE, _TEAL, _MARK = "#2f6fb5", "#2b9a8b", "#c4452d"


def draw(results: Sequence[PointResult], *, title: str, subtitle: str) -> Drawing:
    """Points from top to bottom in the order of the sweep; those without figures say why."""
    height = _HEAD + len(results) * _ROW + _AXIS + _FOOT
    longest = max((text_width(result.label, 13.0) for result in results), default=0.0)
    left = _MARGIN + min(longest, _LABEL_MAX) + 14
    room = _WIDTH - left - _GAP - 2 * _MARGIN - 20
    rates = _Column(left, room * 0.58, nice_ticks(_most(results), 5))
    shares = [result.efficiency for result in results if result.efficiency is not None]
    most = max([1.0, *shares])
    efficiencies = _Column(left + rates.width + _GAP, room * 0.42, nice_ticks(most * 100))
    bottom = _HEAD + len(results) * _ROW
    shapes: list[Shape] = [
        Label(x=_MARGIN, y=32, text=title, size=20),
        Label(x=_MARGIN, y=58, text=subtitle, size=12.5, fill=_FAINT),
        *rates.grid("outputs per minute", bottom, ""),
        *efficiencies.grid("efficiency per device", bottom, " %"),
    ]
    x = efficiencies.at(100)
    shapes.append(Line(x1=x, y1=_HEAD - 6, x2=x, y2=bottom + 4, stroke=_MARK, width=1.5))
    for number, result in enumerate(results):
        shapes += _row(result, _HEAD + (number + 0.5) * _ROW, rates, efficiencies, results)
    shapes += _legend(results, bottom + _AXIS + 18, left)
    return Drawing(width=_WIDTH, height=round(height), title=title, shapes=shapes)


class _Column:
    """One scale, from 0 to its last tick."""

    def __init__(self, left: float, width: float, ticks: Sequence[float]) -> None:
        self.left, self.width, self._ticks = left, width, ticks

    def at(self, value: float) -> float:
        return self.left + self.width * value / self._ticks[-1]

    def grid(self, title: str, bottom: float, unit: str) -> Iterator[Shape]:
        yield Label(x=self.left, y=_HEAD - 26, text=title, size=13.5)
        for tick in self._ticks:
            x = self.at(tick)
            yield Line(x1=x, y1=_HEAD - 6, x2=x, y2=bottom + 4, stroke=_GRID)
            text = f"{tick:g}{unit}"
            yield Label(x=x, y=bottom + 17, text=text, size=11.5, fill=_FAINT, anchor="middle")

    def bar(self, value: float, y: float, fill: str, text: str) -> Iterator[Shape]:
        width = self.at(value) - self.left
        yield Rect(x=self.left, y=y - _BAR / 2, width=width, height=_BAR, fill=fill)
        if text_width(text, 12.5) + 14 < width:
            end = self.left + width - 8
            yield Label(x=end, y=y, text=text, size=12.5, fill="#ffffff", anchor="end")
        else:
            yield Label(x=self.left + width + 8, y=y, text=text, size=12.5, behind="#ffffff")


def _row(
    result: PointResult,
    y: float,
    rates: _Column,
    efficiencies: _Column,
    results: Sequence[PointResult],
) -> Iterator[Shape]:
    yield Label(
        x=rates.left - 12, y=y, text=_cut(result.label, _LABEL_MAX, 13), size=13, anchor="end"
    )
    found = result.figures
    if result.rate is None:
        reason = {"refused": "cannot run", "failed": "failed", "waiting": "not measured"}
        text = reason.get(result.status, "no output")
        text += f": {result.reason}" if result.reason else ""
        text = _cut(text, _WIDTH - _MARGIN - rates.left, 12)
        yield Label(x=rates.left + 8, y=y, text=text, size=12, fill=_FAINT, behind="#ffffff")
        return
    per_min = found["outputs_per_min"]
    yield from rates.bar(per_min, y, _BLUE, f"{per_min:.3g}")
    low, high = (rates.at(found[f"requests_per_s_{end}"] * 60) for end in ("min", "max"))
    if found["num_launches"] > 1:
        yield Line(x1=low, y1=y + 13, x2=high, y2=y + 13, stroke=_INK, width=1.5)
    ideal = _linear(result, results)
    if ideal is not None and result is not first_measured(results):
        x = rates.at(ideal)
        yield Line(x1=x, y1=y - _BAR / 2 - 4, x2=x, y2=y + _BAR / 2 + 4, stroke=_MARK, width=2)
    if result.efficiency is not None:
        percent = result.efficiency * 100
        yield from efficiencies.bar(percent, y, _TEAL, f"{percent:.0f} %")


def _linear(result: PointResult, results: Sequence[PointResult]) -> float | None:
    """Outputs per minute if every device gave what it gives at the first point."""
    first = first_measured(results)
    if first is None or first.rate is None or not first.world_size:
        return None
    return first.rate * 60 * result.world_size / first.world_size


def _most(results: Sequence[PointResult]) -> float:
    values = [0.0]
    for result in results:
        if result.rate is not None:
            values += [result.figures["requests_per_s_max"] * 60, _linear(result, results) or 0.0]
    return max(values)


def _legend(results: Sequence[PointResult], y: float, left: float) -> Iterator[Shape]:
    yield Line(x1=left, y1=y - 8, x2=left, y2=y + 8, stroke=_MARK, width=2)
    text = "linear scaling from the first point: every device as fast as there"
    yield Label(x=left + 10, y=y, text=text, size=12, fill=_FAINT)
    if any(result.figures.get("num_launches", 0) > 1 for result in results):
        x = left + text_width(text, 12) + 40
        yield Line(x1=x, y1=y, x2=x + 26, y2=y, stroke=_INK, width=1.5)
        text = "slowest to fastest launch"
        yield Label(x=x + 34, y=y, text=text, size=12, fill=_FAINT)


def _cut(text: str, room: float, size: float) -> str:
    most = int(room / text_width("x", size))
    return text if len(text) <= most else text[: max(most - 3, 1)] + "..."
