"""A drawing of boxes, arrows and text as SVG that reads on light and dark pages, and refuses text that overlaps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from itertools import pairwise
from typing import Any, Final, NamedTuple

FONT: Final = "Verdana, 'DejaVu Sans', Helvetica, Arial, sans-serif"
MONO: Final = "'DejaVu Sans Mono', Menlo, Consolas, monospace"
_WIDTHS: Final = (
    "32 40 46 84 64 95 78 27 39 39 50 84 32 36 32 34 64 64 64 64 64 64 64 64 64 64 34 34 84 84 84 53 100 68 69 70 77 "
    "63 58 77 75 29 29 66 56 86 75 79 60 79 69 63 61 73 68 99 69 61 69 39 34 39 84 50 50 61 63 55 63 62 35 63 63 28 28 "
    "58 28 97 63 61 63 63 41 52 39 63 59 82 59 59 52 64 34 64 84"
)
WIDTHS: Final = {chr(32 + at): int(one) / 100 for at, one in enumerate(_WIDTHS.split())}
"""Width of each character in the widest of the usual fonts, in units of its size."""
WIDEST: Final = 0.84
"""Of other characters, and of bold ones more than of others."""
BOLD: Final = 1.11
MONO_WIDTH: Final = 0.61

PALETTE: Final = {
    "ink": ("#1f2328", "#e6edf3"),
    "muted": ("#59636e", "#9aa4b0"),
    "line": ("#c9d1d9", "#3d444d"),
    "ground": ("#ffffff", "#161b22"),
    "panel": ("#f6f8fa", "#1f2630"),
    "red": ("#b3261e", "#ff8a80"),
    "green": ("#1b6e3c", "#6fd08c"),
    "amber": ("#8a5a00", "#f0b952"),
    "blue": ("#1f4e8c", "#82b4ff"),
    "grey": ("#59636e", "#9aa4b0"),
    "soft-red": ("#fbe3e1", "#4d1f1c"),
    "soft-green": ("#dcf1e2", "#173d26"),
    "soft-amber": ("#fdf0d0", "#473408"),
    "soft-blue": ("#e0ebfa", "#1b3557"),
    "soft-grey": ("#eaeef2", "#2d343d"),
}
"""Role → colour on light and on dark pages."""
TIPS: Final = ("ink", "muted", "grey", "red", "green", "amber", "blue")


class Area(NamedTuple):
    """A rectangle."""

    x: float
    y: float
    width: float
    height: float

    def meets(self, other: Area) -> bool:
        """Whether the two have a point in common."""
        return (
            self.x < other.x + other.width
            and other.x < self.x + self.width
            and self.y < other.y + other.height
            and other.y < self.y + self.height
        )

    def contains(self, other: Area) -> bool:
        """Whether the other one lies inside."""
        return (
            self.x <= other.x
            and self.y <= other.y
            and other.x + other.width <= self.x + self.width
            and other.y + other.height <= self.y + self.height
        )

    def point(self, where: str) -> tuple[float, float]:
        """A point on its border: a side (``l r t b``) and how far along it, such as ``r`` or ``t0.25``."""
        side, along = where[0], float(where[1:] or 0.5)
        if side in "lr":
            return self.x + (self.width if side == "r" else 0), self.y + along * self.height
        return self.x + along * self.width, self.y + (self.height if side == "b" else 0)


class Unreadable(Exception):
    """Something of a picture overlaps, or does not fit."""


def text_width(text: str, size: float, *, bold: bool = False, mono: bool = False) -> float:
    """How wide the text is at most."""
    if mono:
        return len(text) * size * MONO_WIDTH
    return sum(WIDTHS.get(one, WIDEST) for one in text) * size * (BOLD if bold else 1)


def wrap(text: str, width: float, size: float, *, bold: bool = False, mono: bool = False) -> list[str]:
    """The text in lines of this width."""
    lines = [""]
    for word in text.split():
        longer = f"{lines[-1]} {word}".strip()
        if lines[-1] and text_width(longer, size, bold=bold, mono=mono) > width:
            lines.append(word)
        else:
            lines[-1] = longer
    return lines


def _crosses(a: tuple[float, float], b: tuple[float, float], area: Area) -> bool:
    """Whether the straight line from a to b passes through the area."""
    low, high = 0.0, 1.0
    for start, end, least, most in (
        (a[0], b[0], area.x, area.x + area.width),
        (a[1], b[1], area.y, area.y + area.height),
    ):
        delta = end - start
        if delta == 0:
            if not least < start < most:
                return False
            continue
        first, last = sorted(((least - start) / delta, (most - start) / delta))
        low, high = max(low, first), min(high, last)
    return low < high


class Drawing:
    """One picture. Every method adds to it; ``render`` checks it and returns the SVG."""

    def __init__(self, title: str, width: float, height: float, *, description: str = "") -> None:
        self.title, self.width, self.height = title, width, height
        self._parts: list[str] = []
        self._texts: list[tuple[Area, str]] = []
        self._lines: list[tuple[tuple[float, float], tuple[float, float]]] = []
        self._dots: list[Area] = []
        self._description = description
        self.text(16, 28, title, size=17, bold=True)

    def text(
        self,
        x: float,
        y: float,
        text: str,
        *,
        size: float = 13,
        anchor: str = "start",
        colour: str = "ink",
        bold: bool = False,
        mono: bool = False,
        inside: Area | None = None,
    ) -> None:
        """One line of text with its base line at y; ``inside``: what it must fit into."""
        width = text_width(text, size, bold=bold, mono=mono)
        left = {"start": x, "middle": x - width / 2, "end": x - width}[anchor]
        area = Area(left, y - size * 0.78, width, size * 0.98)
        within = inside or Area(0, 0, self.width, self.height)
        if not within.contains(area):
            raise Unreadable(f"{self.title}: {text!r} is {width:.0f} wide at {left:.0f},{y:.0f} and leaves {within}")
        self._texts.append((area, text))
        attributes = f' text-anchor="{anchor}"' if anchor != "start" else ""
        attributes += ' font-weight="bold"' if bold else ""
        attributes += ' class="mono ' if mono else ' class="'
        self._parts.append(
            f'<text x="{x:.0f}" y="{y:.0f}" font-size="{size:g}"{attributes}f-{colour}">{escape(text)}</text>'
        )

    def lines(self, x: float, y: float, lines: Sequence[str], *, size: float = 13, step: float = 0, **how: Any) -> None:
        """Several lines of text, the first with its base line at y."""
        for at, line in enumerate(lines):
            self.text(x, y + at * (step or size * 1.3), line, size=size, **how)

    def rect(
        self,
        area: Area,
        *,
        fill: str = "panel",
        stroke: str = "line",
        radius: float = 6,
        width: float = 1.2,
        dashed: bool = False,
        data: str = "",
    ) -> None:
        """A rectangle without text."""
        if not Area(0, 0, self.width, self.height).contains(area):
            raise Unreadable(f"{self.title}: {area} leaves the picture")
        dash = ' stroke-dasharray="5 4"' if dashed else ""
        filled = f"f-{fill}" if fill else "none"
        self._parts.append(
            f'<rect x="{area.x:.0f}" y="{area.y:.0f}" width="{area.width:.0f}" height="{area.height:.0f}" '
            f'rx="{radius:g}" class="{filled} s-{stroke}" stroke-width="{width:g}"{dash}{data}/>'
        )

    def box(
        self,
        area: Area,
        lines: Sequence[str],
        *,
        colour: str = "",
        size: float = 13,
        small: float = 11,
        data: str = "",
        dashed: bool = False,
    ) -> Area:
        """A rectangle with a bold first line and smaller ones below, all centred."""
        self.rect(
            area, fill=f"soft-{colour}" if colour else "panel", stroke=colour or "muted", data=data, dashed=dashed
        )
        heights = [size * 1.25, *(small * 1.3 for _ in lines[1:])]
        y = area.y + (area.height - sum(heights)) / 2
        for at, (line, height) in enumerate(zip(lines, heights, strict=True)):
            y += height
            self.text(
                area.x + area.width / 2,
                y - height * 0.25,
                line,
                size=small if at else size,
                anchor="middle",
                bold=not at,
                inside=area,
            )
        return area

    def line(
        self,
        a: tuple[float, float],
        b: tuple[float, float],
        *,
        colour: str = "line",
        width: float = 1,
        dashed: bool = False,
    ) -> None:
        """A straight line that text may cross."""
        dash = ' stroke-dasharray="4 4"' if dashed else ""
        self._parts.append(
            f'<line x1="{a[0]:.0f}" y1="{a[1]:.0f}" x2="{b[0]:.0f}" y2="{b[1]:.0f}" class="s-{colour}" '
            f'stroke-width="{width:g}"{dash}/>'
        )

    def circle(self, x: float, y: float, radius: float, colour: str) -> None:
        """A dot that text must not touch."""
        self._dots.append(Area(x - radius, y - radius, 2 * radius, 2 * radius))
        self._parts.append(f'<circle cx="{x:.0f}" cy="{y:.0f}" r="{radius:g}" class="f-{colour}"/>')

    def badge(self, x: float, y: float, text: str, colour: str) -> None:
        """A short text in a circle, which may lie on a line."""
        self._parts.append(f'<circle cx="{x:.0f}" cy="{y:.0f}" r="10" class="f-ground s-{colour}" stroke-width="1.5"/>')
        self._parts.append(
            f'<text x="{x:.0f}" y="{y + 4:.0f}" font-size="11" font-weight="bold" text-anchor="middle" '
            f'class="f-{colour}">{escape(text)}</text>'
        )

    def cross(self, area: Area, colour: str = "red") -> None:
        """Crosses an area out."""
        left, right, top, bottom = area.x, area.x + area.width, area.y, area.y + area.height
        for a, b in (((left, top), (right, bottom)), ((left, bottom), (right, top))):
            self.line(a, b, colour=colour, width=3)

    def arrow(
        self,
        *points: tuple[float, float],
        colour: str = "grey",
        dashed: bool = False,
        both: bool = False,
        width: float = 1.6,
        data: str = "",
    ) -> None:
        """An arrow along the points, with round corners."""
        corners = list(points)
        self._lines += pairwise(corners)
        path = f"M{corners[0][0]:.0f} {corners[0][1]:.0f}"
        for before, at, after in zip(corners, corners[1:], corners[2:], strict=False):
            start, end = _towards(at, before, 8), _towards(at, after, 8)
            path += f"L{start[0]:.0f} {start[1]:.0f}Q{at[0]:.0f} {at[1]:.0f} {end[0]:.0f} {end[1]:.0f}"
        path += f"L{corners[-1][0]:.0f} {corners[-1][1]:.0f}"
        dash = ' stroke-dasharray="5 4"' if dashed else ""
        start = f' marker-start="url(#tip-{colour})"' if both else ""
        self._parts.append(
            f'<path d="{path}" class="none s-{colour}" stroke-width="{width:g}"{dash}{start} '
            f'marker-end="url(#tip-{colour})"{data}/>'
        )

    def problems(self) -> Iterator[str]:
        """Texts that overlap each other or that an arrow crosses."""
        for at, (area, text) in enumerate(self._texts):
            for other, beside in self._texts[at + 1 :]:
                if area.meets(other):
                    yield f"{text!r} and {beside!r} overlap"
            if any(dot.meets(area) for dot in self._dots):
                yield f"a dot covers {text!r}"
            for a, b in self._lines:
                if _crosses(a, b, area):
                    yield f"an arrow from {a} to {b} crosses {text!r}"

    def render(self) -> str:
        """The picture; raises ``Unreadable``."""
        if found := list(self.problems()):
            raise Unreadable(f"{self.title}: " + "; ".join(found))
        tips = "".join(
            f'<marker id="tip-{colour}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="6" markerHeight="6" '
            f'orient="auto-start-reverse"><path d="M0 0L8 4L0 8z" class="f-{colour}"/></marker>'
            for colour in TIPS
            if any(f"#tip-{colour})" in part for part in self._parts)
        )
        used = {role for role in PALETTE if any(f"-{role}" in part for part in self._parts)} | {"ground", "line"}
        light, dark = (
            "".join(
                f".f-{role}{{fill:{pair[at]}}}.s-{role}{{stroke:{pair[at]}}}"
                for role, pair in PALETTE.items()
                if role in used
            )
            for at in (0, 1)
        )
        description = f"<desc>{escape(self._description)}</desc>" if self._description else ""
        return "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width:g} {self.height:g}" '
                f'font-family="{FONT}" role="img" aria-label="{escape(self.title)}">{description}',
                f"<style>.none{{fill:none}}.mono{{font-family:{MONO}}}{light}",
                f"@media (prefers-color-scheme:dark){{{dark}}}</style>",
                f"<defs>{tips}</defs>",
                f'<rect x="0.5" y="0.5" width="{self.width - 1:g}" height="{self.height - 1:g}" rx="8" '
                'class="f-ground s-line"/>',
                *self._parts,
                "</svg>\n",
            ]
        )


def _towards(at: tuple[float, float], other: tuple[float, float], most: float) -> tuple[float, float]:
    dx, dy = other[0] - at[0], other[1] - at[1]
    length = max((dx * dx + dy * dy) ** 0.5, 1e-9)
    part = min(most, length / 2) / length
    return at[0] + dx * part, at[1] + dy * part
