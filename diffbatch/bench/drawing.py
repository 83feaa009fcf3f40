"""A drawing of rectangles, lines and texts, written as SVG or as PNG. Pure but for fonts."""

from __future__ import annotations

import io
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias
from xml.sax.saxutils import escape, quoteattr

if TYPE_CHECKING:
    from PIL.ImageDraw import ImageDraw

_PNG_SCALE = 2  # pixels per unit: sharp on dense screens
_CHAR_WIDTH = 0.56  # of the font size; texts are only placed by it, never cut
_ILLEGAL = {code: 0xFFFD for code in (*range(0x20), 0xFFFE, 0xFFFF) if code not in (9, 10, 13)}

Anchor = Literal["start", "middle", "end"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rect:
    """Filled, from its upper left corner."""

    x: float
    y: float
    width: float
    height: float
    fill: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """Straight."""

    x1: float
    y1: float
    x2: float
    y2: float
    stroke: str
    width: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Label:
    """A line of text whose vertical middle is at `y`."""

    x: float
    y: float
    text: str
    size: float = 13.0
    fill: str = "#222222"
    anchor: Anchor = "start"
    behind: str | None = None  # a colour that hides what is there; only with anchor "start"


Shape: TypeAlias = Rect | Line | Label


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    """Shapes in painting order, on white."""

    width: int
    height: int
    title: str
    shapes: Sequence[Shape]

    def svg(self) -> str:
        """The text of an SVG file."""
        size = f'width="{self.width}" height="{self.height}"'
        box = f'viewBox="0 0 {self.width} {self.height}"'
        font = 'font-family="Helvetica, Arial, DejaVu Sans, sans-serif"'
        lines = [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} {box} {font} role="img">',
            f"<title>{_xml(self.title)}</title>",
            '<rect width="100%" height="100%" fill="#ffffff"/>',
            *(_svg(shape) for shape in self._flat()),
            "</svg>",
        ]
        return "\n".join(lines) + "\n"

    def png(self) -> bytes:
        """The bytes of a PNG file, twice as many pixels as units."""
        from PIL import Image, ImageDraw

        size = (self.width * _PNG_SCALE, self.height * _PNG_SCALE)
        image = Image.new("RGB", size, "#ffffff")
        pen = ImageDraw.Draw(image)
        for shape in self._flat():
            _paint(pen, shape)
        out = io.BytesIO()
        image.save(out, format="PNG", optimize=True)
        return out.getvalue()

    def _flat(self) -> Iterator[Shape]:
        """The shapes, with what is behind labels as shapes of its own."""
        for shape in self.shapes:
            if isinstance(shape, Label) and shape.behind is not None:
                width = text_width(shape.text, shape.size)
                top, height = shape.y - shape.size * 0.7, shape.size * 1.4
                fill = shape.behind
                yield Rect(x=shape.x - 3, y=top, width=width + 6, height=height, fill=fill)
            yield shape


def text_width(text: str, size: float) -> float:
    """About how wide a text is, in units."""
    return len(text) * size * _CHAR_WIDTH


def nice_ticks(most: float, num: int = 4) -> list[float]:
    """0 and about `num` round steps, the last of them at or above `most`."""
    if most <= 0:
        return [0.0, 1.0]
    raw = most / num
    unit = 10.0 ** math.floor(math.log10(raw))
    step = next(unit * factor for factor in (1, 2, 2.5, 5, 10) if raw <= unit * factor * 1.0001)
    count = math.ceil(most / step - 1e-6)
    return [step * number for number in range(count + 1)]


def _svg(shape: Shape) -> str:
    match shape:
        case Rect():
            place = f'x="{shape.x:.1f}" y="{shape.y:.1f}"'
            size = f'width="{shape.width:.1f}" height="{shape.height:.1f}"'
            return f'<rect {place} {size} fill="{shape.fill}"/>'
        case Line():
            place = f'x1="{shape.x1:.1f}" y1="{shape.y1:.1f}" x2="{shape.x2:.1f}"'
            style = f'stroke="{shape.stroke}" stroke-width="{shape.width:g}"'
            return f'<line {place} y2="{shape.y2:.1f}" {style}/>'
        case Label():
            baseline = shape.y + shape.size * 0.36
            place = f'x="{shape.x:.1f}" y="{baseline:.1f}" font-size="{shape.size:g}"'
            style = f"fill={quoteattr(shape.fill)} text-anchor={quoteattr(shape.anchor)}"
            return f"<text {place} {style}>{_xml(shape.text)}</text>"


def _paint(pen: ImageDraw, shape: Shape) -> None:
    scale = _PNG_SCALE
    match shape:
        case Rect():
            if shape.width > 0 and shape.height > 0:
                left, top = round(shape.x * scale), round(shape.y * scale)
                right = max(round((shape.x + shape.width) * scale) - 1, left)
                bottom = max(round((shape.y + shape.height) * scale) - 1, top)
                pen.rectangle((left, top, right, bottom), fill=shape.fill)
        case Line():
            ends = [(shape.x1 * scale, shape.y1 * scale), (shape.x2 * scale, shape.y2 * scale)]
            pen.line(ends, fill=shape.stroke, width=max(1, round(shape.width * scale)))
        case Label():
            from PIL import ImageFont

            font = ImageFont.load_default(shape.size * scale)
            anchor = {"start": "lm", "middle": "mm", "end": "rm"}[shape.anchor]
            place = (shape.x * scale, shape.y * scale)
            pen.text(place, shape.text, fill=shape.fill, font=font, anchor=anchor)


def _xml(text: str) -> str:
    return escape(text.translate(_ILLEGAL))
