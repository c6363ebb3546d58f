"""A small picture of a part of the graph, as inline SVG: the same input always gives the same picture."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Final, Unpack

from omnigraph.api.arguments import limited, text_checked
from omnigraph.engine.entities.neighbourhood import Neighbourhood, PictureNode, neighbourhood

if TYPE_CHECKING:
    from omnigraph.api.graph import Graph
    from omnigraph.core.bounds import CallLimits
    from omnigraph.planning.keys import EntityKey

COLOURS: Final = ("#4c78a8", "#f58518", "#54a24b", "#b279a2", "#e45756", "#72b7b2", "#9d755d", "#bab0ac")
"""One per node type, in the order of their names; the ninth type begins again."""
RADIUS: Final = 7
RING: Final = 120
"""Distance between two rings."""
SPACE: Final = 24
"""Room between two neighbours on a ring, so that their labels can be told apart."""
CROWDED: Final = 8
"""More nodes on a ring than this and their labels are turned outwards."""
LABEL_CHARACTERS_MAX: Final = 22
MARGIN: Final = 160

NAMESPACE: Final = "http://www.w3.org/2000/svg"
FONT: Final = 'font-family="sans-serif" font-size="11"'
ARROW: Final = (
    '<defs><marker id="omnigraph-arrow" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="6" markerHeight="6" '
    'orient="auto"><path d="M0,0 L8,4 L0,8 z" fill="#999"/></marker></defs>'
)

Point = tuple[float, float]
Key = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Picture:
    """Nodes within some hops of one node. A notebook shows it; `svg` is the text of the image."""

    about: Neighbourhood

    @property
    def svg(self) -> str:
        """The image."""
        return draw(self.about)

    def __repr__(self) -> str:
        nodes, edges = len(self.about.nodes), len(self.about.edges)
        return f"Picture(nodes: {nodes}, edges: {edges})"

    def _repr_html_(self) -> str:
        left = self.about.left_out
        return self.svg + (f"<p>{left:,} more nodes</p>" if left else "")


@limited
@text_checked
def picture(
    graph: "Graph",
    type_name: str,
    entity_id: "EntityKey",
    *,
    hops: int = 1,
    branch: str = "main",
    nodes_max: int = 60,
    **_limits: "Unpack[CallLimits]",
) -> Picture:
    """The surroundings of one node, for a notebook.

    ```python
    og.picture(graph, "Person", "ada", hops=2)
    ```

    `hops` is how far to go, along edges and against them; `nodes_max` bounds what is drawn. Raises
    `TypeNotFound`, `EntityNotFound`.
    """
    snapshot = graph.snapshot(branch=branch)
    found = neighbourhood(graph.session, snapshot, type_name, entity_id, hops=hops, nodes_max=nodes_max)
    return Picture(found)


def draw(about: Neighbourhood) -> str:
    """The image of a neighbourhood: the node in the middle, its surroundings on rings around it."""
    places = layout(about)
    reach = max((math.hypot(x, y) for x, y in places.values()), default=0.0) + MARGIN
    types = sorted({node.type_name for node in about.nodes})
    colours = {name: COLOURS[number % len(COLOURS)] for number, name in enumerate(types)}
    size = round(2 * reach)
    on_ring = Counter(node.hops for node in about.nodes)
    view = f"{-reach:.0f} {-reach:.0f} {size} {size}"
    parts = [
        f'<svg xmlns="{NAMESPACE}" role="img" width="{min(size, 900)}" viewBox="{view}" {FONT}>',
        f"<title>{escape(_title(about))}</title>",
        ARROW,
        f'<rect x="{-reach:.0f}" y="{-reach:.0f}" width="{size}" height="{size}" fill="#fff"/>',
        *(_edge(places, each.type_name, each.source, each.target) for each in about.edges),
        *(
            _node(node, places[_key(node)], colours[node.type_name], crowded=on_ring[node.hops] > CROWDED)
            for node in about.nodes
        ),
        *_legend(types, colours, reach),
        "</svg>",
    ]
    return "".join(parts)


def _title(about: Neighbourhood) -> str:
    first = about.nodes[0]
    return f"{first.type_name} {first.id} and its surroundings"


def _key(node: PictureNode) -> Key:
    return node.type_name, node.id


def layout(about: Neighbourhood) -> dict[Key, Point]:
    """Where each node goes: on the ring of its distance, near the nodes it hangs on.

    Nodes of a ring are ordered by the direction of their neighbours on the rings before, then by type and id,
    and spread evenly. So edges rarely cross, and nothing depends on chance.
    """
    linked: dict[Key, set[Key]] = {}
    for edge in about.edges:
        linked.setdefault(edge.source, set()).add(edge.target)
        linked.setdefault(edge.target, set()).add(edge.source)
    rings: dict[int, list[Key]] = {}
    for node in about.nodes:
        rings.setdefault(node.hops, []).append(_key(node))
    places: dict[Key, Point] = {}
    angles: dict[Key, float] = {}
    radius = 0.0
    for hops in sorted(rings):
        ring = rings[hops]
        if hops == 0:
            places[ring[0]] = (0.0, 0.0)
            continue
        pulls = {
            key: _mean(angles[other] for other in linked.get(key, ()) if other in angles) for key in ring
        }
        ordered = sorted(ring, key=lambda key: (pulls[key] or 0.0, key))
        radius = max(radius + RING, len(ordered) * SPACE / math.tau)
        even = {key: math.tau * number / len(ordered) for number, key in enumerate(ordered)}
        # The whole ring is turned so that its nodes are, on the mean, next to what they hang on.
        turn = _mean(pull - even[key] for key, pull in pulls.items() if pull is not None)
        for key in ordered:
            angle = even[key] + (-math.pi / 2 if turn is None else turn)
            angles[key] = angle % math.tau
            places[key] = (radius * math.cos(angle), radius * math.sin(angle))
    return places


def _mean(angles: Iterable[float]) -> float | None:
    """The mean direction of angles; None when there are none."""
    known = sorted(angles)
    if not known:
        return None
    return math.atan2(sum(map(math.sin, known)), sum(map(math.cos, known))) % math.tau


def _edge(places: Mapping[Key, Point], name: str, source: Key, target: Key) -> str:
    told = f"<title>{escape(f'{source[1]} {name} {target[1]}')}</title>"
    (x1, y1), (x2, y2) = places[source], places[target]
    length = math.hypot(x2 - x1, y2 - y1)
    if length < 1:
        loop = f'd="M{x1:.1f},{y1 - RADIUS:.1f} c-24,-30 24,-30 0,0" fill="none"'
        return f'<path {loop} stroke="#bbb">{told}</path>'
    # The line ends at the rim of the circle, where its arrow head is seen.
    share = (length - RADIUS - 1) / length
    end = f'x2="{x1 + (x2 - x1) * share:.1f}" y2="{y1 + (y2 - y1) * share:.1f}"'
    line = f'<line x1="{x1:.1f}" y1="{y1:.1f}" {end} stroke="#bbb" marker-end="url(#omnigraph-arrow)">'
    return f"{line}{told}</line>"


def _node(node: PictureNode, place: Point, colour: str, *, crowded: bool) -> str:
    x, y = place
    label = node.label
    if len(label) > LABEL_CHARACTERS_MAX:
        label = label[: LABEL_CHARACTERS_MAX - 1] + "…"
    told = f"<title>{escape(f'{node.type_name} {node.id}')}</title>"
    circle = f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{RADIUS}" fill="{colour}"/>'
    # On a crowded ring labels point away from the middle, so that those of neighbours do not meet.
    turn = math.degrees(math.atan2(y, x)) if crowded else 0.0
    left = x < -0.05
    anchor, shift = ("end", -RADIUS - 4) if left else ("start", RADIUS + 4)
    weight = ' font-weight="bold"' if node.hops == 0 else ""
    turned = f"translate({x:.1f} {y:.1f}) rotate({turn + 180 if crowded and left else turn:.1f})"
    where = f'x="{shift}" y="4" text-anchor="{anchor}" transform="{turned}"{weight}'
    return f"<g>{told}{circle}<text {where}>{escape(label)}</text></g>"


def _legend(types: Sequence[str], colours: Mapping[str, str], reach: float) -> list[str]:
    left, top = -reach + 12, -reach + 18
    return [
        f'<g><circle cx="{left:.0f}" cy="{top + 18 * number:.0f}" r="5" fill="{colours[name]}"/>'
        f'<text x="{left + 10:.0f}" y="{top + 18 * number + 4:.0f}">{escape(name)}</text></g>'
        for number, name in enumerate(types)
    ]
