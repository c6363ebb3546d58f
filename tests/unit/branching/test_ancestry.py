"""The merge base of two commits."""

import itertools
import random

import pytest

from omnigraph.manifest.lineage import Lineage, common_ancestors, maximal, nearest_common


def lineage(**parents):
    versions = {name: number for number, name in enumerate(parents, 1)}
    return Lineage({name: tuple(each) for name, each in parents.items()}, versions)


def test_fork_point():
    log = lineage(a="", b="a", c="b", d="b")
    assert common_ancestors(log, "c", "d")[0] == "b"


def test_an_ancestor_of_the_other_is_the_base():
    log = lineage(a="", b="a", c="b")
    assert common_ancestors(log, "a", "c")[0] == "a"
    assert common_ancestors(log, "c", "c")[0] == "c"


def test_a_merged_head_is_nearer_than_the_fork_point():
    log = lineage(a="", s="a", t="a", m="ts", s2="s", t2="m")
    assert common_ancestors(log, "s2", "t2")[0] == "s"


def test_a_tie_goes_to_the_newer_version_then_to_the_greater_id():
    crossed = lineage(r="", a="r", b="r", x="ab", y="ba")
    assert common_ancestors(crossed, "x", "y")[0] == "b"
    equal = Lineage(
        {"r": (), "a": ("r",), "b": ("r",), "x": ("a", "b"), "y": ("b", "a")}, dict.fromkeys("rabxy", 1)
    )
    assert common_ancestors(equal, "x", "y")[0] == "b"


def test_an_older_ancestor_never_wins_by_a_short_cut():
    """Both sides have everything of `b`; the path over `a` is shorter."""
    log = lineage(
        a="", b="a", c="b", d="c", e="d", s0="a", t0="a", s=("s0", "e"), t=("t0", "e"), s1="s", t1="t"
    )
    assert common_ancestors(log, "s1", "t1")[0] == "e"


def test_nothing_in_common():
    assert common_ancestors(lineage(a="", b=""), "a", "b") == []


def test_against_a_plain_walk():
    draw = random.Random(3)
    for _ in range(50):
        parents = {"c0": ()}
        for number in range(1, 20):
            known = list(parents)
            parents[f"c{number}"] = tuple(draw.sample(known, min(len(known), draw.choice([1, 1, 2]))))
        log = Lineage(parents, dict.fromkeys(parents, 1))
        left, right = draw.sample(list(parents), 2)

        def ancestors(start, parents=parents):
            found, layer, depth = {}, {start}, 0
            while layer:
                for each in layer:
                    found.setdefault(each, depth)
                layer = {p for each in layer for p in parents[each]} - set(found)
                depth += 1
            return found

        mine, theirs = ancestors(left), ancestors(right)
        common = {each: mine[each] + theirs[each] for each in mine if each in theirs}
        newest = [
            each for each in common if not any(each in ancestors(other) for other in common if other != each)
        ]
        chosen = common_ancestors(log, left, right)
        assert set(chosen) == set(common)
        assert chosen[0] in newest
        assert common[chosen[0]] == min(common[each] for each in newest)


@pytest.mark.slow
def test_the_short_walk_finds_every_possible_base():
    """Also when ids do not follow the order of the commits, as where clocks disagreed."""
    draw = random.Random(5)
    lone = 0
    for number in range(2_000):
        names = [f"c{n:02d}" for n in range(16)]
        if number % 2:
            draw.shuffle(names)
        parents = {names[0]: ()}
        for name in names[1:]:
            known = list(parents)[-6:]
            parents[name] = tuple(draw.sample(known, min(len(known), draw.choice([1, 1, 2]))))
        log = Lineage(parents, dict.fromkeys(parents, 1))
        left, right = draw.choice(names), draw.choice(names)
        best = set(maximal(log, common_ancestors(log, left, right)))
        found = nearest_common(log, left, right)
        assert best <= set(found)
        if not number % 2:
            assert best == set(found)
        lone += len(found) == 1
    assert lone > 1_000


def test_the_short_walk_does_not_follow_the_history():
    """A thousand common commits cost nothing."""

    class Counting(dict):
        asked = 0

        def get(self, key, default=None):
            Counting.asked += 1
            return super().get(key, default)

    names = [f"c{n:04d}" for n in range(1_000)]
    parents = Counting({own: (former,) for former, own in itertools.pairwise(names)})
    parents |= {names[0]: (), "left": (names[-1],), "right": (names[-1],)}
    assert nearest_common(Lineage(parents, {}), "left", "right") == [names[-1]]
    assert 0 < Counting.asked < 10
