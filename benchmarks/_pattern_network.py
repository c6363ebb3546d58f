"""A generated social network: people of countries, their forums, posts, comments and tags.

Seeded, so that every run has the same rows; skewed, so that few people, posts and tags have most edges.
No pair of nodes is connected twice by edges of one type: then rows and edges are the same for everybody.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

NODES = ("Country", "City", "Person", "TagClass", "Tag", "Forum", "Post", "Comment")
EDGES = {
    "PartOf": ("City", "Country"),
    "LivesIn": ("Person", "City"),
    "Knows": ("Person", "Person"),
    "Interest": ("Person", "Tag"),
    "OfClass": ("Tag", "TagClass"),
    "Member": ("Forum", "Person"),
    "Moderator": ("Forum", "Person"),
    "Contains": ("Forum", "Post"),
    "PostBy": ("Post", "Person"),
    "CommentBy": ("Comment", "Person"),
    "ReplyOf": ("Comment", "Post"),
    "LikesPost": ("Person", "Post"),
    "LikesComment": ("Person", "Comment"),
    "PostTag": ("Post", "Tag"),
    "CommentTag": ("Comment", "Tag"),
}

SCHEMA = "\n".join(
    [
        *(f"node {name} {{ key: String @key  name: String  size: I32 }}" for name in NODES),
        *(f"edge {name}: {source} -> {target}" for name, (source, target) in EDGES.items()),
    ]
)

Numbers = NDArray[np.int64]


@dataclass(frozen=True)
class Network:
    """How many nodes of each type there are, and the ends of all edges."""

    counts: dict[str, int]
    ends: dict[str, tuple[Numbers, Numbers]]

    @property
    def edges(self) -> int:
        return sum(len(sources) for sources, _ in self.ends.values())


def make_network(edges: int, seed: int = 11) -> Network:
    """A network of about so many edges."""
    rng = np.random.default_rng(seed)
    people = max(edges // 60, 50)
    counts = {
        "Country": 60,
        "City": max(people // 20, 60),
        "Person": people,
        "TagClass": 40,
        "Tag": max(people // 8, 40),
        "Forum": people // 2,
        "Post": people * 4,
        "Comment": people * 8,
    }

    def busy(size: int, type_name: str, power: float = 1.6) -> Numbers:
        """Ends among which a few come up again and again."""
        count = counts[type_name]
        return np.minimum((rng.pareto(power, size) * count / 20).astype(np.int64), count - 1)

    def even(size: int, type_name: str) -> Numbers:
        return rng.integers(0, counts[type_name], size)

    def each(type_name: str) -> Numbers:
        return np.arange(counts[type_name])

    posts, comments = counts["Post"], counts["Comment"]
    friends = np.stack([busy(people * 5, "Person"), even(people * 5, "Person")])
    near = np.stack([even(people * 3, "Person"), np.zeros(people * 3, np.int64)])
    near[1] = (
        near[0] + rng.integers(1, 30, people * 3)
    ) % people  # neighbourhoods, so that there are triangles
    friends = np.concatenate([friends, near], axis=1)
    friends = friends[:, friends[0] != friends[1]]
    pairs = {
        "PartOf": (each("City"), busy(counts["City"], "Country", 1.2)),
        "LivesIn": (each("Person"), (each("Person") // 20) % counts["City"]),
        "Knows": (np.concatenate(friends), np.concatenate(friends[::-1])),
        "Interest": (even(people * 6, "Person"), busy(people * 6, "Tag")),
        "OfClass": (each("Tag"), busy(counts["Tag"], "TagClass")),
        "Member": (busy(people * 8, "Forum"), even(people * 8, "Person")),
        "Moderator": (each("Forum"), even(counts["Forum"], "Person")),
        "Contains": (busy(posts, "Forum"), each("Post")),
        "PostBy": (each("Post"), busy(posts, "Person")),
        "CommentBy": (each("Comment"), busy(comments, "Person")),
        "ReplyOf": (each("Comment"), busy(comments, "Post")),
        "LikesPost": (even(people * 5, "Person"), busy(people * 5, "Post")),
        "LikesComment": (even(people * 5, "Person"), busy(people * 5, "Comment")),
        "PostTag": (even(posts, "Post"), busy(posts, "Tag")),
        "CommentTag": (even(comments, "Comment"), busy(comments, "Tag")),
    }
    return Network(counts, {name: _distinct(*ends) for name, ends in pairs.items()})


def _distinct(sources: Numbers, targets: Numbers) -> tuple[Numbers, Numbers]:
    packed = np.unique((sources << 32) | targets)
    np.random.default_rng(5).shuffle(packed)  # nobody gets them sorted
    return packed >> 32, packed & 0xFFFF_FFFF


def _columns(name: str, count: int) -> dict[str, pa.Array]:
    numbers = np.arange(count)
    return {
        "name": pa.array([f"{name}-{number}" for number in range(count)]),
        "size": pa.array(((numbers * 7919) % 100).astype(np.int32)),
    }


def write_network(network: Network, where: Path) -> Iterator[str]:
    """Parquet files for us (`ours`, keys are texts) and for peers (`peers`, keys are whole numbers)."""
    for side in ("ours", "peers"):
        (where / side).mkdir(parents=True)
    keys = {
        name: pa.array([f"{name.lower()}{number:08d}" for number in range(count)])
        for name, count in network.counts.items()
    }
    for name, count in network.counts.items():
        columns = _columns(name, count)
        pq.write_table(pa.table({"key": keys[name], **columns}), where / "ours" / f"{name}.parquet")
        pq.write_table(
            pa.table({"key": pa.array(np.arange(count)), **columns}), where / "peers" / f"{name}.parquet"
        )
        yield name
    for name, ends in network.ends.items():
        kinds = EDGES[name]
        ours = [keys[kind].take(pa.array(end)) for kind, end in zip(kinds, ends, strict=True)]
        pq.write_table(pa.table(ours, names=["from", "to"]), where / "ours" / f"{name}.parquet")
        pq.write_table(pa.table(list(ends), names=["src", "dst"]), where / "peers" / f"{name}.parquet")
        yield name
