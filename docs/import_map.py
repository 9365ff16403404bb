"""Draw which part of src/hobnob imports which as docs/import-map.svg; exit 1 if an import does not go down.

The bands are the layers of `[tool.importlinter]` in pyproject.toml, the boxes the top-level modules and
packages. All lines into a box share one trunk, which passes the bands above it between their boxes. The
boxes and trunks of every band have the same order from left to right, so trunks never cross. Positions are
integers, which makes the file the same on every machine. Imports under TYPE_CHECKING do not count.
"""

from __future__ import annotations

import re
import sys
import tomllib
from dataclasses import dataclass
from html import escape
from itertools import accumulate, pairwise
from pathlib import Path

import grimp

ROOT = Path(__file__).parent.parent
PACKAGE = "hobnob"
FILE = "import-map.svg"
WIDTH, MARGIN, TOP = 1200, 28, 76
BOX_HEIGHT = 30
SMALLEST_GAP, LARGEST_GAP = 34, 84  # between two bands; it grows with the lines that begin there
TRUNK_SPACING, BOX_SPACING, PORT_SPACING = 13, 14, 8
ROUNDS = 80  # of straightening the trunks; the result is stable before

STYLE = """\
svg { --paper: #ffffff; --band: #f4f5f7; --box: #ffffff; --text: #1c2128; --soft: #57606a; --light: 42%;
  --violation: #d1242f }
@media (prefers-color-scheme: dark) {
  svg { --paper: #0f1318; --band: #171c23; --box: #222933; --text: #e6edf3; --soft: #a2acb8; --light: 66%;
    --violation: #ff6b63 } }
text { font: 13px system-ui, "Segoe UI", "DejaVu Sans", sans-serif; fill: var(--text) }
.soft { fill: var(--soft); font-size: 12px }
.paper { fill: var(--paper) } .band { fill: var(--band) }
.room rect { fill: var(--box); stroke: hsl(var(--hue) 50% var(--light)); stroke-width: 1.5 }
.room path { fill: none; stroke: hsl(var(--hue) 50% var(--light)); stroke-width: 1; opacity: .8 }
.room path.trunk { stroke-width: 2 } .room polygon { fill: hsl(var(--hue) 50% var(--light)) }
.room:hover path { stroke-width: 3; opacity: 1 }
.violation { fill: none; stroke: var(--violation); stroke-width: 2.5 }
.room text { text-anchor: middle; font-weight: 600 }"""

CAPTION = (
    "Boxes are top-level modules and packages (/). A line leads from a box down to a box that it imports;"
    " lines to the same box join."
)

Edge = tuple[str, str]  # importer, imported


@dataclass(frozen=True)
class Graph:
    """Rooms by layer, top first, and the imports between rooms."""

    layers: list[list[str]]
    packages: frozenset[str]
    edges: list[Edge]

    @property
    def depth(self) -> dict[str, int]:
        return {room: depth for depth, layer in enumerate(self.layers) for room in layer}

    @property
    def violations(self) -> list[Edge]:
        """Imports that do not go down. Where there are none, there is no cycle between rooms either."""
        depth = self.depth
        return [(a, b) for a, b in self.edges if depth[a] >= depth[b]]


def read() -> Graph:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    (contract,) = settings["contracts"]
    modules = module_graph()
    rooms = {m.split(".")[1] for m in modules.modules if "." in m} - set(contract["exhaustive_ignores"])
    layers = [[r for r in re.findall(r"\w+", layer) if r in rooms] for layer in contract["layers"]]
    if missing := rooms - {room for layer in layers for room in layer}:
        raise SystemExit(f"not in a layer of [tool.importlinter]: {', '.join(sorted(missing))}")
    pairs = {
        (importer.split(".")[1], imported.split(".")[1])
        for importer, found in imports(modules).items()
        for imported in found
        if "." in importer and "." in imported
    }
    edges = sorted((a, b) for a, b in pairs if a != b and a in rooms and b in rooms)
    packages = frozenset(r for r in rooms if modules.find_children(f"{PACKAGE}.{r}"))
    return Graph([layer for layer in layers if layer], packages, edges)


def module_graph() -> grimp.ImportGraph:
    return grimp.build_graph(PACKAGE, exclude_type_checking_imports=True, cache_dir=None)


def imports(graph: grimp.ImportGraph) -> dict[str, set[str]]:
    """Module → the modules of the package that it imports."""
    return {module: graph.find_modules_directly_imported_by(module) for module in sorted(graph.modules)}


def cycles(graph: dict[str, set[str]]) -> list[list[str]]:
    """The groups of modules that import each other, directly or through others (Tarjan's algorithm)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(module: str) -> None:
        index[module] = low[module] = len(index)
        stack.append(module)
        for imported in sorted(graph[module]):
            if imported not in index:
                visit(imported)
                low[module] = min(low[module], low[imported])
            elif imported in stack:
                low[module] = min(low[module], index[imported])
        if low[module] == index[module]:
            group = stack[stack.index(module) :]
            del stack[stack.index(module) :]
            if len(group) > 1:
                found.append(sorted(group))

    for module in sorted(graph):
        if module not in index:
            visit(module)
    return sorted(found)


# -- layout


def arrange(graph: Graph) -> list[str]:
    """Rooms from left to right; local search for an order in which lines are short."""
    rooms = [room for layer in graph.layers for room in layer]

    def cost(arranged: list[str]) -> int:
        rank = {room: i for i, room in enumerate(arranged)}
        return sum(abs(rank[a] - rank[b]) for a, b in graph.edges)

    best = cost(rooms)
    improved = True
    while improved:
        improved = False
        for room in sorted(rooms):
            rest = [r for r in rooms if r != room]
            for i in range(len(rooms)):
                tried = [*rest[:i], room, *rest[i:]]
                if (now := cost(tried)) < best:
                    rooms, best, improved = tried, now, True
    return rooms


def label(graph: Graph, room: str) -> str:
    return f"{room}/" if room in graph.packages else room


def box_width(graph: Graph, room: str) -> int:
    """Wide enough for the text and for the lines that leave it."""
    lines = sum(importer == room for importer, _ in graph.edges)
    return max(8 * len(label(graph, room)) + 20, PORT_SPACING * lines + 12)


def layout(graph: Graph) -> list[dict[str, int]]:
    """For each band, the x of its boxes and of the trunks that pass through it."""
    depth, arranged = graph.depth, arrange(graph)
    first = {b: min(depth[a] for a, target in graph.edges if target == b) for _, b in graph.edges}
    bands = [
        [r for r in arranged if depth[r] == band or first.get(r, len(graph.layers)) < band < depth[r]]
        for band in range(len(graph.layers))
    ]
    spread = {
        room: MARGIN + (WIDTH - 2 * MARGIN) * (2 * i + 1) // (2 * len(arranged))
        for i, room in enumerate(arranged)
    }
    at = [_separate(graph, items, band, {r: spread[r] for r in items}) for band, items in enumerate(bands)]
    for _ in range(ROUNDS):
        for band, items in enumerate(bands):
            preferred = {}
            for room in items:
                near = [at[b][room] for b in (band - 1, band + 1) if 0 <= b < len(at) and room in at[b]]
                near = near or [at[band][room]]
                preferred[room] = (sum(near) + spread[room]) // (len(near) + 1)
            at[band] = _separate(graph, items, band, preferred)
    return at


def _separate(graph: Graph, items: list[str], band: int, preferred: dict[str, int]) -> dict[str, int]:
    """The positions nearest to the preferred ones that keep the order and the minimum distances."""
    half = [
        box_width(graph, r) // 2 + BOX_SPACING // 2 if graph.depth[r] == band else TRUNK_SPACING // 2
        for r in items
    ]
    offset = [half[0], *(half[0] + d for d in accumulate(a + b for a, b in pairwise(half)))] if items else []
    pools: list[list[int]] = []  # neighbours with a common shift: sum of their shifts, their number
    for room, minimum in zip(items, offset, strict=True):
        pools.append([preferred[room] - minimum, 1])
        while len(pools) > 1 and pools[-2][0] * pools[-1][1] > pools[-1][0] * pools[-2][1]:
            total, count = pools.pop()
            pools[-1][0] += total
            pools[-1][1] += count
    slack = WIDTH - 2 * MARGIN - (offset[-1] + half[-1] if items else 0)
    shifts = [
        min(max(total // count, MARGIN), MARGIN + slack) for total, count in pools for _ in range(count)
    ]
    return {room: minimum + shift for room, minimum, shift in zip(items, offset, shifts, strict=True)}


# -- drawing


def draw(graph: Graph) -> str:
    depth, at, arranged = graph.depth, layout(graph), arrange(graph)
    downward = [edge for edge in graph.edges if edge not in graph.violations]
    tops = _tops(graph, downward)
    height = tops[-1] + BOX_HEIGHT + MARGIN
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}"',
        f' width="{WIDTH}" height="{height}" role="img" aria-label="Import graph of {PACKAGE}">',
        f"<style>\n{STYLE}\n</style>",
        f'<rect class="paper" width="{WIDTH}" height="{height}"/>',
        f'<text x="{MARGIN}" y="30" font-weight="600">Imports between the parts of src/{PACKAGE}</text>',
        f'<text class="soft" x="{MARGIN}" y="51">{CAPTION}</text>',
    ]
    lines += [
        f'<rect class="band" y="{top - 6}" width="{WIDTH}" height="{BOX_HEIGHT + 12}"/>' for top in tops
    ]
    for number, room in enumerate(arranged):
        x, y, width = at[depth[room]][room], tops[depth[room]], box_width(graph, room)
        importers = [a for a, b in downward if b == room]
        lines.append(f'<g class="room" style="--hue:{35 + number * 111 % 290}">')
        if importers:
            bands = range(min(depth[a] for a in importers) + 1, depth[room] + 1)
            points = [(at[band][room], tops[band]) for band in bands]
            lines.append(f'<path class="trunk" d="{_trunk(points)}"/>')
            for a in importers:
                below = depth[a] + 1
                start = _port([b for importer, b in downward if importer == a], room, at[below])
                x0, y0 = at[depth[a]][a] + start, tops[depth[a]] + BOX_HEIGHT
                lines.append(f'<path d="{_curve(x0, y0, at[below][room], tops[below] - 5)}"/>')
            lines.append(f'<polygon points="{x - 4},{y - 8} {x + 4},{y - 8} {x},{y}"/>')
        lines += [
            f'<rect x="{x - width // 2}" y="{y}" width="{width}" height="{BOX_HEIGHT}" rx="5"/>',
            f'<text x="{x}" y="{y + 20}">{escape(label(graph, room))}</text>',
            "</g>",
        ]
    for a, b in graph.violations:
        ends = [(at[depth[room]][room], tops[depth[room]] + BOX_HEIGHT // 2) for room in (a, b)]
        lines.append(
            f'<path class="violation" d="{_curve(*ends[0], *ends[1])}"><title>{a} imports {b}</title></path>'
        )
    return "\n".join([*lines, "</svg>"]) + "\n"


def _tops(graph: Graph, edges: list[Edge]) -> list[int]:
    """The y of each band's boxes."""
    begin = [sum(a in layer for a, _ in edges) for layer in graph.layers[:-1]]
    gaps = [min(LARGEST_GAP, SMALLEST_GAP + 2 * count) for count in begin]
    return list(accumulate(gaps, lambda top, gap: top + BOX_HEIGHT + gap, initial=TOP))


def _port(targets: list[str], target: str, at: dict[str, int]) -> int:
    """Where the line to `target` leaves its importer, from the middle of the box."""
    rank = sorted(targets, key=at.__getitem__).index(target)
    return (2 * rank - len(targets) + 1) * PORT_SPACING // 2


def _curve(x0: int, y0: int, x1: int, y1: int) -> str:
    middle = (y0 + y1) // 2
    return f"M{x0},{y0}C{x0},{middle} {x1},{middle} {x1},{y1}"


def _trunk(points: list[tuple[int, int]]) -> str:
    """Straight through each band, a curve from band to band."""
    path = f"M{points[0][0]},{points[0][1] - 5}"
    for (x0, y0), (x1, y1) in pairwise(points):
        middle = (y0 + BOX_HEIGHT + y1) // 2
        path += f"V{y0 + BOX_HEIGHT}C{x0},{middle} {x1},{middle} {x1},{y1 - 5}"
    return path


def main() -> int:
    graph = read()
    (ROOT / "docs" / FILE).write_text(draw(graph))
    print(f"docs/{FILE}")
    for a, b in graph.violations:
        print(f"{a} imports {b}, which is not below it", file=sys.stderr)
    return 1 if graph.violations else 0


if __name__ == "__main__":
    sys.exit(main())
