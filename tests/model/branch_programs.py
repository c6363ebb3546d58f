"""Programs over branches: proposing the next operation, doing it to a graph, saying what it must have done.

An operation is a list of plain values, so that a program can be printed, sent to a child process and run again.
"""

import json

from model.history_model import (
    COLUMNS,
    COMPANY,
    ENDS,
    KNOWS,
    MAIN,
    PER_PROPERTY,
    PERSON,
    TABLES,
    WORKS_AT,
    Branch,
    Commit,
    History,
    Merged,
    RuleBroken,
    chosen,
    written,
)
from omnigraph.core.errors import (
    BadRequest,
    ConflictError,
    ConstraintViolation,
    MergeConflicts,
    TagNotFound,
)

PEOPLE = [f"p{n}" for n in range(6)]
COMPANIES = ["c0", "c1"]
NUMBERS = [None, 1, 2, 3]
NICKS = [None, None, None, "x", "y", "z"]
BRANCHES = ["one", "two", "three", "deep/four"]
BRANCHES_MAX = 4
COMMITS_LOOKED_AT_MAX = 30
KINDS = (
    ["write"] * 10 + ["merge"] * 5 + ["create"] * 2 + ["delete", "delete", "revert", "restore"] + ["tag", "untag"]
    + ["preview", "diff", "history", "reopen"]
)  # fmt: skip


# --- proposing -----------------------------------------------------------------------------------------


def propose(model: History, pick):
    """The next operation; `pick` chooses one of a list."""
    kind = pick(KINDS)
    branches = sorted(model.branches)
    if kind == "create" and len(branches) <= BRANCHES_MAX:
        return ["create", pick(BRANCHES), pick(branches)]
    if kind == "delete" and len(branches) > 1:
        return ["delete", pick(branches[:-1] if branches[-1] == MAIN else [b for b in branches if b != MAIN])]
    if kind in {"merge", "preview"} and len(branches) > 1:
        source, target = pick(
            _pairs(model, branches) if pick([True, True, True, False]) else _all_pairs(branches)
        )
        how = pick(
            [
                None,
                None,
                "ours",
                "theirs",
                {"Person": "theirs", "Knows": "ours"},
                0b10110100,
                PER_PROPERTY | 0b01101101,
            ]
        )
        return [kind, source, target, how]
    readable = [each for each in model.readable() if model.commits[each].state is not None]
    readable = readable[-COMMITS_LOOKED_AT_MAX:]
    if kind == "revert":
        able = [each for each in readable if model.commits[model.commits[each].parents[0]].state is not None]
        if able:
            return ["revert", pick(able), pick(branches)]
    if kind == "restore" and readable:
        return ["restore", pick(readable), pick(branches)]
    if kind == "tag" and readable:
        return ["tag", pick(["t1", "t2", "t3"]), pick(readable)]
    if kind == "untag":
        return ["untag", pick(["t1", "t2", "t3"])]
    if kind == "diff" and readable:
        return ["diff", pick(readable), pick(branches)]
    if kind == "history":
        return ["history", pick(branches)]
    if kind == "reopen":
        return ["reopen"]
    return _propose_write(model, pick, pick(branches))


def _all_pairs(branches):
    return [(source, target) for source in branches for target in branches if source != target]


def _pairs(model, branches):
    """The merges that would do something; all when none would."""
    heads = {name: model.branches[name].head for name in branches}
    known = {name: model.distances(head) for name, head in heads.items()}
    found = [
        (source, target) for source, target in _all_pairs(branches) if heads[source] not in known[target]
    ]
    return found or _all_pairs(branches)


def _propose_write(model, pick, branch):
    """One mutation: up to three inserts and updates, or up to two deletes."""
    if pick([True, True, True, False]):
        statements = [_propose_change(model, pick, branch) for _ in range(pick([1, 1, 2, 3]))]
    else:
        statements = [_propose_delete(model, pick, branch) for _ in range(pick([1, 1, 2]))]
    return ["write", branch, statements]


def _propose_change(model, pick, branch):
    kind = pick(
        ["person"] * 2
        + ["knows"] * 2
        + ["grown"] * 6
        + ["nick"] * 2
        + ["company", "office", "works", "age", "weight"]
    )
    if kind in {"knows", "works"}:
        model.serial += 1
        table, others = (KNOWS, PERSON) if kind == "knows" else (WORKS_AT, COMPANY)
        people, others = (sorted(model.state(branch)[each]) for each in (PERSON, others))
        values = [pick([*people, *people, "p0"]), pick([*others, *others, "c0"])]
        values += [pick(NUMBERS), pick(NUMBERS)] if kind == "knows" else []
        return ["insert", table, model.serial, values]
    match kind:
        case "person":
            return ["insert", PERSON, pick(PEOPLE), [pick(NUMBERS), pick(NICKS), pick(NUMBERS)]]
        case "company":
            return ["insert", COMPANY, pick(COMPANIES), [pick(NUMBERS), pick(NUMBERS)]]
        case "office":
            return ["update", COMPANY, pick(COLUMNS[COMPANY]), pick(NUMBERS), "name", pick(COMPANIES)]
        case "age":
            return ["update", PERSON, "age", pick(NUMBERS), "age", pick(NUMBERS[1:])]
        case "grown":
            return ["update", PERSON, pick(["age", "rank"]), pick(NUMBERS), "name", pick(PEOPLE)]
        case "nick":
            return ["update", PERSON, "nick", pick(NICKS), "name", pick(PEOPLE)]
        case _:
            return ["update", KNOWS, pick(["weight", "tone"]), pick(NUMBERS), "weight", pick(NUMBERS[1:])]


def _propose_delete(model, pick, branch):
    kind = pick(["person", "ages", "company", "knows", "works"])
    if kind == "person":
        return ["delete", PERSON, "name", pick(PEOPLE)]
    if kind == "ages":
        return ["delete", PERSON, "age", pick(NUMBERS[1:])]
    if kind == "company":
        return ["delete", COMPANY, "name", pick(COMPANIES)]
    table = KNOWS if kind == "knows" else WORKS_AT
    return ["delete", table, "since", pick(sorted(model.state(branch)[table]) or [0])]


# --- doing ---------------------------------------------------------------------------------------------


def perform(graph, operation, scratch):
    """Do one operation to a graph and say how it ended, as plain values. `scratch` is a file it may write."""
    kind, *rest = operation
    try:
        return _PERFORM[kind](graph, *rest, **({"scratch": scratch} if kind in {"merge", "preview"} else {}))
    except MergeConflicts as refused:
        return {"refused": "conflicts", "conflicts": [_conflict(each) for each in refused.conflicts]}
    except ConstraintViolation:
        return {"refused": "rule"}
    except (BadRequest, ConflictError, TagNotFound) as refused:
        return {"refused": refused.kind, "message": str(refused)}


def _conflict(each):
    properties = [
        [named["property"], *([role, named[role]] for role in ("base", "ours", "theirs") if role in named)]
        for named in each.get("properties", ())
    ]
    return [each["table_key"], each["row_id"], each["kind"], properties]


def _write(graph, branch, statements):
    text = " ".join(_text(*each) for each in statements)
    made = graph.mutate(f"query q() {{ {text} }}", branch=branch)
    return {"committed": made.commit is not None}


def _text(kind, table, *rest):
    name = table.partition(":")[2]
    if kind == "insert":
        key, values = rest
        given = dict(zip(COLUMNS[table], values, strict=True))
        if table in ENDS:
            given = {"from": given.pop("src"), "to": given.pop("dst"), "since": key, **given}
        else:
            given = {"name": key, **given}
        shown = ", ".join(f"{each}: {json.dumps(value)}" for each, value in given.items())
        return f"insert {name} {{ {shown} }}"
    if kind == "update":
        column, value, where, matched = rest
        return f"update {name} set {{ {column}: {json.dumps(value)} }} where {where} = {json.dumps(matched)}"
    where, matched = rest
    return f"delete {name} where {where} = {json.dumps(matched)}"


def _merge(graph, source, target, how, *, scratch):
    report = graph.branches.merge(source, into=target, **_choices(graph, source, target, how, scratch))
    return {"outcome": report.outcome.value, "stats": {k: dict(v) for k, v in report.stats.items()}}


def _preview(graph, source, target, how, *, scratch):
    seen = graph.branches.preview(source, into=target, **_choices(graph, source, target, how, scratch))
    if seen.conflicts:
        return {
            "refused": "conflicts",
            "conflicts": [_conflict(each.to_dict()) for each in seen.conflicts],
        }
    return {"outcome": seen.outcome.value, "stats": {k: dict(v) for k, v in seen.stats.items()}}


def _choices(graph, source, target, how, scratch):
    """The arguments that say who wins: a number edits the conflict list a preview wrote."""
    if not isinstance(how, int):
        return {"on_conflict": how}
    graph.branches.preview(source, into=target).write_conflicts(scratch)
    document = json.loads(scratch.read_text())
    listed = document["conflicts"]
    if any("resolution" not in each for each in listed):
        return {}
    for number, each in enumerate(listed):
        table = each["table_key"]
        if how & PER_PROPERTY and each["kind"] != "delete_vs_update":
            for named in each["properties"]:
                column = COLUMNS[table].index(named["property"])
                named["resolution"] = chosen(how, number, table, column)
        else:
            each["resolution"] = chosen(how, number, table)
    scratch.write_text(json.dumps(document))
    return {"resolve": scratch}


def _revert(graph, commit_id, branch):
    report = graph.revert(commit_id, branch=branch)
    return {"outcome": "merged", "stats": {k: dict(v) for k, v in report.stats.items()}}


def _restore(graph, commit_id, branch):
    report = graph.branches.restore(branch, to=commit_id)
    return {"outcome": report.outcome.value, "stats": {k: dict(v) for k, v in report.stats.items()}}


def _create(graph, name, source):
    graph.branches.create(name, from_branch=source)
    return {}


def _delete(graph, name):
    return {"unreclaimed": list(graph.branches.delete(name).unreclaimed)}


def _tag(graph, name, commit_id):
    graph.tags.create(name, at=commit_id)
    return {}


def _untag(graph, name):
    graph.tags.delete(name)
    return {}


def _diff(graph, commit_id, branch):
    return {
        "changes": [
            [each.table_key, each.op.value, _key(each), _row(each, each.before), _row(each, each.after)]
            for each in graph.diff(commit_id, branch)
        ]
    }


def _key(change):
    image = change.after or change.before
    return image["since"] if "since" in image else image["name"]


def _row(change, image):
    return None if image is None else [image[name] for name in COLUMNS[change.table_key]]


def _history(graph, branch):
    return {"commits": [each.id for each in graph.commits.list(branch=branch)][:-2]}


_PERFORM = {
    "write": _write,
    "merge": _merge,
    "preview": _preview,
    "revert": _revert,
    "restore": _restore,
    "create": _create,
    "delete": _delete,
    "tag": _tag,
    "untag": _untag,
    "diff": _diff,
    "history": _history,
    "reopen": lambda _: {},
}


# --- looking -------------------------------------------------------------------------------------------


def read_state(graph, branch, seen=None):
    """What a branch shows, in the model's terms, read past the write path.

    `seen` takes the id of every edge and the serial number the model knows it by.
    """
    session = graph.session
    snapshot = session.manifest.current(None if branch == MAIN else branch)
    found = {}
    for table in TABLES:
        name = "since" if table in ENDS else "name"
        rows = session.storage.read(session.open_entry(snapshot.entries[table])).to_pylist()
        found[table] = {row[name]: tuple(row[each] for each in COLUMNS[table]) for row in rows}
        assert len(found[table]) == len(rows), f"{table} on {branch} shows a row twice"
        assert snapshot.entries[table].row_count == len(rows)
        if seen is not None and table in ENDS:
            seen.update((row["id"], row["since"]) for row in rows)
    return found


def seed(graph):
    """Give a new graph people and companies."""
    statements = [["insert", PERSON, name, [1, None, None]] for name in PEOPLE]
    statements += [["insert", COMPANY, name, [None, None]] for name in COMPANIES]
    _write(graph, MAIN, statements)


def root_of(graph):
    """The newest commit of main as the first one of a model; what came before it is not looked at."""
    record = graph.commits.head()
    return Commit(record.id, (), read_state(graph, MAIN), MAIN, record.manifest_version)


def follow(graph, model: History, branch, state, *, sure=True):
    """Take over the commits a branch got since the model last looked; they must show `state`.

    `sure=False`: the write was cut, so only the newest of them is known to.
    """
    fresh = []
    known = model.branches[branch].head
    record = graph.commits.head(branch=branch)
    while record.id != known:
        assert record.id not in model.commits
        fresh.append(record)
        if record.parent == known:
            break
        record = graph.commits.show(record.parent)
    for record in reversed(fresh):
        shown = state if sure or record is fresh[0] else None
        made = Commit(
            record.id, record.parents, shown, branch, record.manifest_version, upkeep=record.is_upkeep
        )
        model.add(branch, made)
    return list(reversed(fresh))


# --- judging -------------------------------------------------------------------------------------------


class Verdict:
    """What the model says about an operation: the states and names after it, and the answer to expect."""

    def __init__(self, model: History, operation):
        self.model = model
        self.operation = operation
        self.branch = None
        """The branch that gets new commits."""
        self.state = None
        self.merged_parent = None
        self.mixed = 0
        """Entities a merge puts together from both sides."""
        self.seen = ()
        """Which of the laws about merges decided something."""
        self.apply = lambda: None
        """What happens to names in the model."""
        self.changes_names = False
        self.expected = {}
        getattr(self, f"_{operation[0]}")(*operation[1:])

    def _write(self, branch, statements):
        try:
            state = written(self.model.state(branch), statements)
        except RuleBroken:
            self.expected = {"refused": "rule"}
            return
        self.branch, self.state = branch, state

    def _merge(self, source, target, how):
        self._preview(source, target, how)
        if "outcome" in self.expected and self.expected["outcome"] != "already_up_to_date":
            self.branch, self.merged_parent = target, self.model.branches[source].head

    def _preview(self, source, target, how):
        outcome, merged = self.model.merge(source, target, None if isinstance(how, int) else how)
        if isinstance(how, int) and merged is not None:
            kinds = {kind for _, _, kind, _ in merged.conflicts}
            if kinds <= {"divergent_insert", "divergent_update", "delete_vs_update"}:
                outcome, merged = self.model.merge(source, target, how)
        self._judge(outcome, merged, target)

    def _judge(self, outcome, merged, target):
        if merged is not None and merged.conflicts:
            self.expected = {"refused": "conflicts", "conflicts": merged.conflicts}
            return
        self.mixed = 0 if merged is None else merged.mixed
        self.seen = () if merged is None else merged.seen
        self.state = None if merged is None else merged.state
        self.expected = {"outcome": outcome, "stats": self._stats(target)}

    def _stats(self, branch):
        if self.state is None:
            return {}
        found = {}
        for table, rows in self.model.diff(self.model.state(branch), self.state).items():
            kinds = [
                "inserted" if a is None else "deleted" if b is None else "updated" for a, b in rows.values()
            ]
            if kinds:
                found[table] = {each: kinds.count(each) for each in sorted(set(kinds))}
        return found

    def _revert(self, commit_id, branch):
        merged = self.model.revert(commit_id, branch)
        nothing_left = not merged.conflicts and merged.state == self.model.state(branch)
        if self.model.commits[commit_id].upkeep or nothing_left:
            self.expected = {"refused": "bad_request"}
            return
        self._judge("merged", merged, branch)
        if "outcome" in self.expected:
            self.branch = branch

    def _restore(self, commit_id, branch):
        state = self.model.commits[commit_id].state
        if state == self.model.state(branch):
            self.expected = {"outcome": "already_up_to_date", "stats": {}}
            return
        self._judge("merged", Merged(state, ()), branch)
        self.branch = branch

    def _create(self, name, source):
        live = self.model.branches
        if name in live:
            self.expected = {"refused": "branch_exists"}
            return
        if name in self.model.tags:
            self.expected = {"refused": "bad_request"}
            return
        self.changes_names = True

        def apply():
            live[name] = Branch(live[source].head, source)

        self.apply = apply

    def _delete(self, name):
        reasons = self.model.keeping(name)
        if reasons:
            self.expected = {"refused": reasons}
            return
        self.changes_names = True

        def apply():
            del self.model.branches[name]

        self.apply = apply

    def _tag(self, name, commit_id):
        tags = self.model.tags
        if name in tags:
            self.expected = {"refused": "tag_exists"}
            return
        self.changes_names = True

        def apply():
            tags[name] = commit_id

        self.apply = apply

    def _untag(self, name):
        tags = self.model.tags
        if name not in tags:
            self.expected = {"refused": "tag_not_found"}
            return
        self.changes_names = True

        def apply():
            del tags[name]

        self.apply = apply

    def _diff(self, commit_id, branch):
        found = self.model.diff(self.model.commits[commit_id].state, self.model.state(branch))
        self.expected = {"changes": found}

    def _history(self, branch):
        self.expected = {"commits": self.model.first_parents(branch)[:-1]}

    def _reopen(self):
        pass
