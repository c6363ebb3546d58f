"""A graph with busy and quiet nodes, and queries that begin at one of them."""

CHAINS = [
    'match { $a: A { k: "n0" } $a e $b } return { $b.k, $b.n }',
    'match { $a: A { k: "n0" } $a e $b $b e $c } return { $c.k }',
    'match { $a: A { k: "n0" } $a e $b $b e $c } return distinct { $c }',
    'match { $a: A { k: "n0" } $a e $b $b e $c $c e $d $d.n > 1 } return distinct { $d }',
    'match { $a: A { k: "n1" } $a e $b $b.s = "x" $b e $c } return { $c.n, $c.s } limit 7',
    'match { $a: A { k: "n1" } $b e $a $b.n >= 0 } return { $b.k, $a.k }',
    'match { $a: A { k: "n0" } $a <e> $b $b.n is not null } return { $b.k, $b.n } order { $b.n desc } limit 5',
    'match { $a: A { k: "n2" } $a e $b not { $b e $a } } return { $b }',
    'match { $a: A { k: "nobody" } $a e $b } return { $b }',
    "match { $a: A $a e $b } return { $a.s, sum($b.n) as t, count($b) as c, avg($a.n) as m }",
    "match { $a: A $a $e: e $b } return { $a.n, sum($e.w) as t, count($b.n) as c, count($e.w) as w }",
    "match { $a: A $a e $b $b e $c } return { $a, count($c) as n, avg($c.n) as m } order { m desc } limit 9",
    "match { $a: A maybe { $a e $b } } return { $a.s, count($b) as n, sum($b.n) as t }",
    "match { $a: A maybe { $a e $b $b e $c } } return { count($c) as n, sum($a.n) as t, max($c.s) as m }",
]


def gather(graph) -> None:
    """Sixty people of whom three are busy, with parallel ties, ties to oneself, nulls and deleted rows."""
    people = [
        f'insert A {{ k: "n{n}", n: {"null" if n % 7 == 0 else n % 5 - 1}, s: "{"xy"[n % 2]}" }}'
        for n in range(60)
    ]
    ends = [(n, (n * 7 + 3) % 60) for n in range(60)] + [(h, n) for h in range(3) for n in range(60)]
    ties = [
        f'insert E {{ from: "n{a}", to: "n{b}", w: {"null" if b % 3 == 0 else a} }}'
        for a, b in [*ends, *ends[:20]]
    ]
    for lines in (people, ties[:150], ties[150:]):
        graph.mutate("query q() { " + "\n".join(lines) + " }")
    graph.mutate('query q() { delete A where k = "n17" }')
    graph.mutate('query q() { insert A { k: "n18", n: 4, s: "z" } }')
