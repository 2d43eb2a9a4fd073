"""A few shapes as SVG: boxes with lines of text, arrows, bars. Enough for the diagrams of the concepts, and no more."""

from __future__ import annotations

from html import escape

INK, PALE, LINE = "#263238", "#607d8b", "#90a4ae"
FILLS = {"plain": "#ffffff", "main": "#d7efec", "hot": "#ffe3d8", "grey": "#eceff1", "old": "#cfd8dc", "new": "#8fd0c8"}
FONT = "font-family='system-ui, sans-serif'"
LINE_HEIGHT = 17


class Picture:
    """A drawing that grows by calls; sizes are in pixels, the origin is the upper left corner."""

    def __init__(self, width: int, height: int, title: str) -> None:
        """`title` is read out where the picture can't be seen."""
        self._size, self._title, self._parts = (width, height), title, [""]

    def box(self, x: int, y: int, width: int, height: int, text: str, fill: str = "plain") -> None:
        """A rectangle; the first line of the text is bold, all are centred."""
        self._parts.append(
            f"<rect x='{x}' y='{y}' width='{width}' height='{height}' rx='6' fill='{FILLS[fill]}' stroke='{LINE}'/>"
        )
        lines = text.split("\n")
        top = y + (height - LINE_HEIGHT * len(lines)) / 2 + 13
        for number, line in enumerate(lines):
            self._text(x + width / 2, top + number * LINE_HEIGHT, line, "middle", INK, bold=number == 0)

    def cell(self, x: int, y: int, width: int, height: int, fill: str) -> None:
        """A rectangle without text."""
        self._parts.append(
            f"<rect x='{x}' y='{y}' width='{width}' height='{height}' fill='{FILLS[fill]}' stroke='{LINE}'/>"
        )

    def frame(self, x: int, y: int, width: int, height: int) -> None:
        """A strong outline around cells."""
        shape = f"x='{x}' y='{y}' width='{width}' height='{height}'"
        self._parts.append(f"<rect {shape} fill='none' stroke='{INK}' stroke-width='1.6'/>")

    def arrow(self, *points: tuple[int, int], dashed: bool = False) -> None:
        """A line through points with a head at the last one."""
        path = " ".join(f"{x},{y}" for x, y in points)
        dash = " stroke-dasharray='5 4'" if dashed else ""
        self._parts.append(
            f"<polyline points='{path}' fill='none' stroke='{INK}' stroke-width='1.3'{dash} marker-end='url(#head)'/>"
        )

    def say(self, x: int, y: int, text: str, *, anchor: str = "start", bold: bool = False, pale: bool = True) -> None:
        """Lines of text; `anchor` start, middle or end."""
        for number, line in enumerate(text.split("\n")):
            self._text(x, y + number * LINE_HEIGHT, line, anchor, PALE if pale else INK, bold=bold)

    def _text(self, x: float, y: float, text: str, anchor: str, colour: str, *, bold: bool) -> None:
        weight = " font-weight='600'" if bold else ""
        self._parts.append(
            f"<text x='{x:g}' y='{y:g}' text-anchor='{anchor}' fill='{colour}'{weight}>{escape(text)}</text>"
        )

    def svg(self) -> str:
        """The file. Its ground is light by itself, so that it is readable on a dark page, too."""
        width, height = self._size
        head = (
            "<marker id='head' viewBox='0 0 8 8' refX='7' refY='4' markerWidth='8' markerHeight='8'"
            f" orient='auto-start-reverse'><path d='M0 0L8 4L0 8z' fill='{INK}'/></marker>"
        )
        return (
            f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {width} {height}' width='{width}' height='{height}'"
            f" {FONT} font-size='13' role='img'>\n<title>{escape(self._title)}</title>\n<defs>{head}</defs>\n"
            f"<rect width='{width}' height='{height}' rx='8' fill='#fdfcf8'/>" + "\n".join(self._parts) + "\n</svg>\n"
        )
