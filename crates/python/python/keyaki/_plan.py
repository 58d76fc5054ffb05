"""Plans of statements as text and as drawings (SVG).

A plan is a tree of operators, drawn from its root downwards. A measured one (`analyze=True`) also has the rows of each operator,
and the reads in flight of each scan and index pipeline over time.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from html import escape
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import Connection

# Sizes in pixels.
_WIDTH, _HEIGHT = 230, 66
_GAP_X, _GAP_Y = 18, 34
_MARGIN = 10
_PLOT_WIDTH, _PLOT_HEIGHT = 640, 160
# Characters of a line of details.
_CHARACTERS = 33
# Points of a curve.
_POINTS = 200
_COLOURS = ["#1b6ca8", "#e07b39", "#4b9b5f", "#b5473c", "#7d5ba6", "#6f6f6f"]
_METRICS = re.compile(r", metrics=\[(.*)\]$|metrics=\[(.*)\]$")


@dataclass
class Operator:
    """An operator of a plan with its inputs."""

    name: str
    details: str
    metrics: dict[str, str]
    inputs: list[Operator] = field(default_factory=list)


@dataclass
class Reads:
    """The reads of a scan or an index pipeline over time."""

    name: str
    start_ns: int
    elapsed_ns: int
    reads: int
    # Nanoseconds since the start, reads in flight from then on, reads completed.
    samples: list[tuple[int, int, int]]

    def in_flight(self, points: int) -> list[float]:
        """Mean numbers of reads in flight in equal parts of the time."""
        sums = [0.0] * points
        part = self.elapsed_ns / points
        if part <= 0:
            return sums
        ends = [sample[0] for sample in self.samples[1:]] + [self.elapsed_ns]
        for (start, in_flight, _), end in zip(self.samples, ends):
            at = float(start)
            while at < end:
                index = min(int(at / part), points - 1)
                until = float(end) if index + 1 == points else min(float(end), (index + 1) * part)
                if until <= at:
                    break
                sums[index] += in_flight * (until - at) / part
                at = until
        return sums


class Plan:
    """The plan of a statement, made by `Connection.explain()`. Notebooks draw it."""

    def __init__(self, parts: list[tuple[str, str]], reads: list[Reads]) -> None:
        #: Pairs of a kind and a text, as the rows of EXPLAIN.
        self.parts = parts
        #: The reads of each scan and index pipeline; empty without `analyze`.
        self.reads = reads

    @property
    def text(self) -> str:
        """The plan that is executed, an operator in each line."""
        texts = dict(self.parts)
        return texts.get("Plan with Metrics", texts.get("physical_plan", "")).rstrip("\n")

    @property
    def root(self) -> Operator | None:
        """The operator that returns the rows of the statement; None for statements without a plan."""
        return tree(self.text)

    def __str__(self) -> str:
        others = (f"{kind}: {text.rstrip()}\n" for kind, text in self.parts if kind == "change")
        return "".join(others) + self.text

    def __repr__(self) -> str:
        return str(self)

    def _repr_svg_(self) -> str | None:
        root = self.root
        return drawing(root, self.reads) if root is not None else None

    def _repr_html_(self) -> str:
        # The drawing has at most the width of the notebook.
        return f"{self._repr_svg_() or ''}<details><summary>Text</summary><pre>{escape(str(self))}</pre></details>"


def explain(connection: Connection, sql: str, parameters: Any = None, *, analyze: bool = False) -> Plan:
    """The plan of a statement. It prints as text, and notebooks draw it. `analyze` executes the query and measures it.

    >>> import keyaki
    >>> con = keyaki.connect()
    >>> _ = con.execute("CREATE TABLE city (id INTEGER PRIMARY KEY, name TEXT)")
    >>> con.explain("SELECT name FROM city WHERE id = ?", (1,))
    ScanExec: city, ranges=1, columns=[name], class=sensitive
    """
    rows = connection.execute(f"EXPLAIN {'ANALYZE ' if analyze else ''}{sql}", parameters).fetchall()
    reads = [Reads(*reads) for reads in connection._reads()] if analyze else []
    return Plan([(str(kind), str(text)) for kind, text in rows], [curve for curve in reads if curve.samples])


def tree(text: str) -> Operator | None:
    """The operators of a plan, of which each input is indented by two spaces."""
    path: list[Operator] = []
    for line in text.splitlines():
        content = line.lstrip(" ")
        if not content:
            continue
        depth = (len(line) - len(content)) // 2
        found = _METRICS.search(content)
        metrics = dict(_pairs(found[1] or found[2] or "")) if found else {}
        content = content[: found.start()].rstrip(", ") if found else content
        name, _, details = content.partition(":")
        operator = Operator(name.strip(), details.strip(), metrics)
        if depth > 0 and len(path) >= depth:
            path[depth - 1].inputs.append(operator)
        path[depth:] = [operator]
    return path[0] if path else None


def _pairs(text: str) -> Iterator[tuple[str, str]]:
    for pair in re.split(r", (?=\w+=)", text):
        name, separator, value = pair.partition("=")
        if separator:
            yield name, value


def drawing(root: Operator, reads: list[Reads]) -> str:
    """An SVG of the operators, and of the reads below them."""
    parts: list[str] = []
    leaves, depth = _draw(root, 0, 0, parts)
    width = max(leaves * (_WIDTH + _GAP_X) - _GAP_X, _PLOT_WIDTH if reads else 0) + 2 * _MARGIN
    height = depth * (_HEIGHT + _GAP_Y) - _GAP_Y + 2 * _MARGIN
    if reads:
        parts.append(_plot(reads, height))
        height += _PLOT_HEIGHT + 60 + 16 * len(reads)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" style="max-width: 100%"'
        f' font-family="sans-serif" font-size="12"><rect width="{width}" height="{height}" fill="#fff"/>{"".join(parts)}</svg>'
    )


def _draw(operator: Operator, leaf: float, depth: int, parts: list[str]) -> tuple[int, int]:
    """Draws a subtree whose first leaf is in a column. Returns its number of leaves and of levels."""
    leaves, levels, centres = 0, 1, []
    for operand in operator.inputs:
        below = _leaves(operand)
        more = _draw(operand, leaf + leaves, depth + 1, parts)[1]
        centres.append((_centre(leaf + leaves, below), operand))
        leaves, levels = leaves + below, max(levels, more + 1)
    leaves = max(leaves, 1)
    x, y = _centre(leaf, leaves), _MARGIN + depth * (_HEIGHT + _GAP_Y)
    for centre, operand in centres:
        top, bottom = y + _HEIGHT, y + _HEIGHT + _GAP_Y
        rows = operand.metrics.get("output_rows")
        parts.append(f'<path d="M{centre} {bottom} L{x} {top}" stroke="#888" stroke-width="1.5"/>')
        if rows:
            label = f"{escape(rows)} row{'' if rows == '1' else 's'}"
            parts.append(f'<text x="{(centre + x) / 2 + 6}" y="{(top + bottom) / 2 + 4}" fill="#555" font-size="11">{label}</text>')
    parts.append(_box(operator, x - _WIDTH / 2, y))
    return leaves, levels


def _leaves(operator: Operator) -> int:
    return sum(map(_leaves, operator.inputs)) or 1


def _centre(leaf: float, leaves: int) -> float:
    return _MARGIN + (leaf + leaves / 2) * (_WIDTH + _GAP_X) - _GAP_X / 2


def _box(operator: Operator, x: float, y: float) -> str:
    reads_table = operator.name in ("ScanExec", "IndexPipelineExec")
    colour = "#dcebf7" if reads_table else "#f3f3f3"
    # The time of an operator that reads is mostly that of its reads.
    names = ("reads", "in_flight_max") if "reads" in operator.metrics else ("elapsed_compute",)
    measured = ", ".join(f"{_WORDS[name]} {operator.metrics[name]}" for name in names if name in operator.metrics)
    whole = escape(f"{operator.name}: {operator.details}\n" + "\n".join(f"{k} = {v}" for k, v in operator.metrics.items()))
    lines = [escape(_cut(operator.name.removesuffix("Exec"))), escape(_cut(operator.details)), escape(_cut(measured))]
    styles = ['font-weight="bold"', 'fill="#333" font-size="11"', 'fill="#555" font-size="11"']
    texts = "".join(
        f'<text x="{x + 8}" y="{y + 19 + 18 * number}" {style}>{line}</text>'
        for number, (line, style) in enumerate(zip(lines, styles))
    )
    box = f'<rect x="{x}" y="{y}" width="{_WIDTH}" height="{_HEIGHT}" rx="5" fill="{colour}" stroke="#888"/>'
    return f"<g><title>{whole}</title>{box}{texts}</g>"


_WORDS = {"elapsed_compute": "time", "reads": "reads", "in_flight_max": "in flight ≤"}


def _cut(text: str) -> str:
    return text if len(text) <= _CHARACTERS else text[: _CHARACTERS - 1] + "…"


def _plot(reads: list[Reads], top: float) -> str:
    """The reads in flight of all scans and pipelines over time, with a legend."""
    first = min(curve.start_ns for curve in reads)
    end = max(curve.start_ns + curve.elapsed_ns for curve in reads) - first or 1
    curves = [(curve, curve.in_flight(_POINTS)) for curve in reads]
    most = max(max(values) for _, values in curves) or 1.0
    left, bottom = _MARGIN + 44, top + 24 + _PLOT_HEIGHT
    span = _PLOT_WIDTH - 60
    parts = [
        f'<text x="{_MARGIN}" y="{top + 12}" font-weight="bold">Reads in flight</text>',
        f'<path d="M{left} {top + 24} V{bottom} H{left + span}" stroke="#888" fill="none"/>',
        f'<text x="{left - 6}" y="{top + 32}" text-anchor="end" font-size="11">{most:.3g}</text>',
        f'<text x="{left - 6}" y="{bottom}" text-anchor="end" font-size="11">0</text>',
        f'<text x="{left + span}" y="{bottom + 15}" text-anchor="end" font-size="11">{end / 1e6:.3g} ms</text>',
    ]
    for number, (curve, values) in enumerate(curves):
        colour = _COLOURS[number % len(_COLOURS)]
        start, length = (curve.start_ns - first) / end * span, curve.elapsed_ns / end * span
        points = " ".join(
            f"{left + start + length * (i + 0.5) / len(values):.1f},{bottom - value / most * _PLOT_HEIGHT:.1f}"
            for i, value in enumerate(values)
        )
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
        legend = bottom + 32 + 16 * number
        parts.append(f'<rect x="{left}" y="{legend - 9}" width="10" height="10" fill="{colour}"/>')
        label = escape(f"{curve.name}: {curve.reads} reads in {curve.elapsed_ns / 1e6:.3g} ms")
        parts.append(f'<text x="{left + 16}" y="{legend}">{label}</text>')
    return "".join(parts)
