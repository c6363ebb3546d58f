"""A graph with branches as plain dictionaries: what writes, merges and reverts must do to it.

Nodes are known by name. Edges are known by a serial number in their property `since`, because their ids are
generated: the model of a killed write must be able to say what it would have made.
"""

from collections import Counter, deque
from dataclasses import dataclass, field

SCHEMA = """
node Person { name: String @key  age: I32?  nick: String? @unique  rank: I32? }
node Company @merge(entity) { name: String @key  size: I32?  floors: I32? }
edge Knows: Person -> Person { since: I32  weight: I32?  tone: I32? }
edge WorksAt: Person -> Company @card(0..1) { since: I32 }
"""
PERSON, COMPANY, KNOWS, WORKS_AT = "node:Person", "node:Company", "edge:Knows", "edge:WorksAt"
TABLES = (KNOWS, WORKS_AT, COMPANY, PERSON)
"""In the order merges list them."""
COLUMNS = {
    PERSON: ("age", "nick", "rank"),
    COMPANY: ("size", "floors"),
    KNOWS: ("src", "dst", "weight", "tone"),
    WORKS_AT: ("src", "dst"),
}
ENDS = {KNOWS: (PERSON, PERSON), WORKS_AT: (PERSON, COMPANY)}
WHOLE = {COMPANY}
"""Types that ask for conflicts of whole entities."""
EMPTY = {table: {} for table in TABLES}
MAIN = "main"


class RuleBroken(Exception):
    """The write would break a rule of the schema: nothing happens."""


def copy(state):
    return {table: dict(rows) for table, rows in state.items()}


# --- writes --------------------------------------------------------------------------------------------


def written(state, statements):
    """The state after one mutation. Raises RuleBroken."""
    state = copy(state)
    for statement in statements:
        _STATEMENTS[statement[0]](state, *statement[1:])
    if broken(state):
        raise RuleBroken
    return state


def _insert(state, table, key, values):
    state[table][key] = tuple(values)


def _update(state, table, column, value, where, matched):
    rows = state[table]
    position = COLUMNS[table].index(column)
    for key in [key for key in rows if _matches(table, key, rows[key], where, matched)]:
        values = list(rows[key])
        values[position] = value
        rows[key] = tuple(values)


def _delete(state, table, where, matched):
    rows = state[table]
    for key in [key for key in rows if _matches(table, key, rows[key], where, matched)]:
        del rows[key]
    for edges, ends in ENDS.items():
        if table in ends:
            state[edges] = {
                key: row
                for key, row in state[edges].items()
                if all(row[n] in state[end] for n, end in enumerate(ends))
            }


def _matches(table, key, row, where, matched):
    if where in {"name", "since"}:
        return key == matched
    return row[COLUMNS[table].index(where)] == matched


_STATEMENTS = {"insert": _insert, "update": _update, "delete": _delete}


def broken(state):
    """The rules a state breaks, as conflicts: (table, row or None, kind, no properties)."""
    found = set()
    nicks = Counter(nick for _, nick, _ in state[PERSON].values() if nick is not None)
    if any(count > 1 for count in nicks.values()):
        found.add((PERSON, None, "unique_violation", frozenset()))
    for table, ends in ENDS.items():
        for key, row in state[table].items():
            if any(row[n] not in state[end] for n, end in enumerate(ends)):
                found.add((table, key, "orphan_edge", frozenset()))
    if any(count > 1 for count in Counter(row[0] for row in state[WORKS_AT].values()).values()):
        found.add((WORKS_AT, None, "cardinality_violation", frozenset()))
    return found


# --- merges --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Merged:
    """What a merge makes, or every reason why it does not."""

    state: dict
    conflicts: tuple
    mixed: int = 0
    """Rows put together from both sides."""
    seen: tuple = ()
    """Which of the laws about merges decided something."""


@dataclass(frozen=True)
class Collision:
    """A row that both sides changed, as far as it is not clear what becomes of it."""

    table: str
    key: object
    kind: str
    theirs: tuple | None
    ours: tuple | None
    clear: tuple = ()
    """The values the merge is sure of; those of the open columns are the target's."""
    open: tuple = ()
    """Positions of the columns that both sides changed."""
    base: tuple | None = None

    def told(self):
        """The conflict as it is reported: with the values of what is open, or of what the survivor changed."""
        columns = self.open
        if self.kind == "delete_vs_update":
            survivor, base = self.theirs or self.ours, self.base or (None,) * len(COLUMNS[self.table])
            columns = [n for n, value in enumerate(survivor) if value != base[n]]
        sides = {"base": self.base, "ours": self.ours, "theirs": self.theirs}
        return (
            self.table,
            self.key,
            self.kind,
            frozenset(
                (COLUMNS[self.table][n], *((role, row[n]) for role, row in sides.items() if row is not None))
                for n in columns
            ),
        )

    def settled(self, how, number):
        """The row after the choices, and the side that won where one did."""
        if self.kind == "delete_vs_update":
            side = chosen(how, number, self.table)
            return (self.theirs if side == "theirs" else self.ours), side
        values = list(self.clear)
        for n in self.open:
            if chosen(how, number, self.table, n) == "theirs":
                values[n] = self.theirs[n]
        return tuple(values), None


def three_way(bases, source, target, how=None):
    """Merge two states that grew out of `bases`, value by value, with the choices of `how`.

    What one base would decide and another would not is a conflict.
    """
    state, collisions, mixed = copy(target), [], []
    for table in TABLES:
        for key in sorted({*source[table], *target[table]}):
            theirs, ours = (side[table].get(key) for side in (source, target))
            was = [base[table].get(key) for base in bases]
            if theirs == ours or all(each == theirs for each in was):
                continue
            if all(each == ours for each in was):
                _put(state, table, key, theirs)
                continue
            found = _collide(table, key, was, theirs, ours)
            if found.kind == "delete_vs_update" or found.open:
                collisions.append(found)
            else:
                _put(state, table, key, found.clear)
                if found.clear not in {theirs, ours}:
                    mixed.append((table, key))
    conflicts, kept, seen = [], [], []
    for number, each in enumerate(collisions):
        if chosen(how, number, each.table) is None:
            conflicts.append(each.told())
            continue
        row, side = each.settled(how, number)
        _put(state, each.table, each.key, row)
        if each.kind == "divergent_update" and row not in {each.theirs, each.ours}:
            seen.append("a resolution left values of both sides in one row")
        if side == ("ours" if each.theirs is None else "theirs"):
            kept.append((each.table, each.key, target if each.theirs is None else source))
    edges = sum(len(state[table]) for table in ENDS)
    _keep_edges(state, kept, {(each.table, each.key) for each in collisions})
    if sum(len(state[table]) for table in ENDS) > edges:
        seen.append("a kept node kept an edge that was deleted with it")
    if any(_has_edge(state, table, key) for table, key in mixed):
        seen.append("a node with edges was merged by property")
    reasons = tuple(conflicts) or tuple(sorted(broken(state), key=repr))
    return Merged(state, reasons, len(mixed), tuple(seen))


def _has_edge(state, node_table, node):
    return any(
        row[n] == node and end == node_table
        for table, ends in ENDS.items()
        for row in state[table].values()
        for n, end in enumerate(ends)
    )


def _collide(table, key, was, theirs, ours):
    """What is clear about a row that both sides changed, and what is not."""
    base = next((each for each in was if each is not None), None)
    if theirs is None or ours is None:
        return Collision(table, key, "delete_vs_update", theirs, ours, base=base)
    kind = "divergent_insert" if base is None else "divergent_update"
    clear, open_ = list(ours), []
    for n, (mine, yours) in enumerate(zip(theirs, ours, strict=True)):
        if mine == yours:
            continue
        if table in WHOLE or None in was:
            open_.append(n)
        elif all(each[n] == yours for each in was):
            clear[n] = mine
        elif not all(each[n] == mine for each in was):
            open_.append(n)
    return Collision(table, key, kind, theirs, ours, tuple(clear), tuple(open_), base)


def _keep_edges(state, kept, collided):
    """A node that stays against its deletion has the edges of the side that did not delete it."""
    for node_table, node, side in kept:
        for table, ends in ENDS.items():
            for key, row in side[table].items():
                touches = any(row[n] == node and end == node_table for n, end in enumerate(ends))
                whole = all(row[n] in state[end] for n, end in enumerate(ends))
                if touches and whole and (table, key) not in collided:
                    state[table].setdefault(key, row)


def _put(state, table, key, row):
    if row is None:
        state[table].pop(key, None)
    else:
        state[table][key] = row


PER_PROPERTY = 1 << 8
"""Among the bits for an edited list: each property has its own."""


def chosen(how, number, table, column=0):
    """The side that wins a conflict: `how` is a side, sides by type, or bits for an edited list."""
    if how is None or isinstance(how, str):
        return how
    if isinstance(how, int):
        bit = number + (column if how & PER_PROPERTY else 0)
        return "theirs" if how >> (bit % 8) & 1 else "ours"
    return how.get(table.partition(":")[2])


# --- history -------------------------------------------------------------------------------------------


@dataclass
class Commit:
    """One commit; `state` is None when the model cannot tell what it showed."""

    id: str
    parents: tuple
    state: dict | None
    branch: str
    version: int
    upkeep: bool = False
    """Made by index work or folding: it changed no row."""


@dataclass
class Branch:
    """One branch: its head, the branch it was made from, and the commits made on it."""

    head: str
    parent: str | None
    own: list = field(default_factory=list)


class History:
    """All branches, commits and tags of a graph. Names of commits come from the graph that is tested."""

    def __init__(self, root):
        self.commits = {root.id: root}
        self.branches = {MAIN: Branch(root.id, None, [root.id])}
        self.tags = {}
        self.serial = 0

    def state(self, branch):
        return self.commits[self.branches[branch].head].state

    def readable(self):
        """The commits of branches that exist, oldest first, the first one left out."""
        kept = [each for branch in self.branches.values() for each in branch.own]
        return sorted(each for each in kept if self.commits[each].parents)

    def add(self, branch, commit):
        self.commits[commit.id] = commit
        self.branches[branch].head = commit.id
        self.branches[branch].own.append(commit.id)

    def first_parents(self, branch):
        """The commits a branch's history lists, newest first."""
        found, current = [], self.branches[branch].head
        while True:
            found.append(current)
            parents = self.commits[current].parents
            if not parents:
                return found
            current = parents[0]

    def distances(self, start):
        found, queue = {start: 0}, deque([start])
        while queue:
            current = queue.popleft()
            for parent in self.commits[current].parents:
                if parent not in found:
                    found[parent] = found[current] + 1
                    queue.append(parent)
        return found

    def bases(self, left, right):
        """The common ancestors of two commits that no other one descends from, the chosen one first."""
        near, far = self.distances(left), self.distances(right)
        common = near.keys() & far.keys()
        passed = {parent for each in common for parent in self.commits[each].parents}
        return sorted(
            common - passed,
            key=lambda each: (-near[each] - far[each], self.commits[each].version, each),
            reverse=True,
        )

    def merge(self, source, target, how):
        """(outcome, Merged or None) of a merge of branch heads."""
        theirs, ours = self.branches[source].head, self.branches[target].head
        bases = self.bases(theirs, ours)
        if bases[0] == theirs:
            return "already_up_to_date", None
        outcome = "fast_forward" if bases[0] == ours else "merged"
        states = [self.commits[base].state for base in bases]
        merged = three_way(states, self.state(source), self.state(target), how)
        return outcome, merged

    def revert(self, commit_id, branch):
        commit = self.commits[commit_id]
        source = self.commits[commit.parents[0]]
        return three_way([commit.state], source.state, self.state(branch))

    def keeping(self, name):
        """Why a branch cannot be deleted, as the errors say it; empty when it can."""
        own = set(self.branches[name].own)
        reasons = set()
        if any(branch.parent == name for branch in self.branches.values()):
            reasons.add("branch_has_children")
        if own & set(self.tags.values()):
            reasons.add("bad_request")
        heads = {branch.head for other, branch in self.branches.items() if other != name}
        if any(own & set(self.bases(left, right)) for left in heads for right in heads if left < right):
            reasons.add("commit_conflict")
        return reasons

    def diff(self, old, new):
        """Per table, the rows that differ between two states: {key: (before, after)}."""
        return {
            table: {
                key: (old[table].get(key), new[table].get(key))
                for key in {*old[table], *new[table]}
                if old[table].get(key) != new[table].get(key)
            }
            for table in TABLES
        }
