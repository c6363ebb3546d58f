"""Generated programs over branches, merges, conflicts, reverts and tags do what plain dictionaries do."""

import itertools
import json
import os
import random
import shutil
from collections import Counter
from typing import ClassVar

import pytest
from hypothesis import HealthCheck, note, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

import omnigraph
from graphs import FAST, make_graph
from model.branch_programs import Verdict, follow, perform, propose, read_state, root_of, seed
from model.history_model import MAIN, SCHEMA, TABLES, History
from omnigraph.maintenance import folding
from omnigraph.maintenance.indices import FOLD_OPERATION, OPERATION
from omnigraph.maintenance.reconciler import Reconciler

STEPS_MIN = 2_000
PROGRAMS = int(os.environ.get("OMNIGRAPH_BRANCH_PROGRAMS", "50"))
STEPS_OF_ONE = 50
UPKEEP = {OPERATION, FOLD_OPERATION}
EAGER = Reconciler(uncovered_max=3)


class Machine(RuleBasedStateMachine):
    """One graph and its model, led through the same operations."""

    original = None
    home = None
    numbers = itertools.count()
    steps: ClassVar = Counter()

    def __init__(self):
        super().__init__()
        graph = next(self.numbers)
        self.path = self.home / f"g{graph}"
        shutil.copytree(self.original, self.path)
        self.eager = graph % 2 == 1
        self.graph = self.opened()
        self.model = History(root_of(self.graph))
        self.touched = MAIN
        self.number = 0
        self.seen = {}

    def opened(self):
        """The graph; in every other program its small fragments are folded and indexed all the time."""
        graph = omnigraph.open(self.path, settings=FAST)
        if self.eager:
            graph.session.after_publish = EAGER
        return graph

    @rule(number=st.integers(0, 2**32 - 1))
    def step(self, number):
        # Drawn as one number: choices drawn one by one cluster, and conflicts need programs that spread.
        self.number += 1
        operation = propose(self.model, random.Random(f"{self.number} {number}").choice)
        note(json.dumps(operation))
        if operation[0] == "reopen":
            self.count("reopen")
            self.graph.close()
            self.graph = self.opened()
            return
        verdict = Verdict(self.model, operation)
        answer = perform(self.graph, operation, self.path.with_suffix(".json"))
        self.judge(verdict, answer)

    def count(self, what):
        self.steps[what] += 1

    def judge(self, verdict, answer):
        expected = verdict.expected
        refusals = expected.get("refused")
        assert answer.get("refused") in (refusals if isinstance(refusals, set) else {refusals}), answer
        if "conflicts" in expected:
            assert self.named(answer["conflicts"]) == set(expected["conflicts"])
        elif "changes" in expected:
            self.judge_changes(answer["changes"], expected["changes"])
        else:
            for name in expected.keys() - {"refused"}:
                assert _counted(answer[name]) == expected[name], name
        self.count(f"{verdict.operation[0]} {answer.get('refused') or answer.get('outcome') or ''}".strip())
        if verdict.mixed:
            self.count("entities merged by property")
        if verdict.operation[0] == "merge":
            for law in verdict.seen:
                self.count(law)
        verdict.apply()
        if verdict.branch is not None:
            self.judge_commits(verdict, follow(self.graph, self.model, verdict.branch, verdict.state))
            self.touched = verdict.branch

    def judge_commits(self, verdict, fresh):
        """A write without effect may make no commit; a merge always makes one. Index work may add more."""
        if verdict.operation[0] == "write":
            assert fresh or self.model.state(verdict.branch) == verdict.state
        else:
            assert fresh
        if verdict.merged_parent is not None:
            assert fresh[0].parents[1:] == (verdict.merged_parent,)
        for each in fresh[1:]:
            assert each.operation in UPKEEP
            assert len(each.parents) == 1
            self.count(each.operation)

    def judge_changes(self, changes, expected):
        found = {table: {} for table in TABLES}
        for table, op, key, before, after in changes:
            assert op == ("insert" if before is None else "delete" if after is None else "update")
            pair = (None if before is None else tuple(before), None if after is None else tuple(after))
            assert found[table].setdefault(key, pair) is pair
        assert found == expected

    def named(self, conflicts):
        """Conflicts in the model's terms. Which of two clashing rows is named is not part of the promise."""
        return {
            (
                table,
                None if kind in {"unique_violation", "cardinality_violation"} else self.seen.get(row, row),
                kind,
                frozenset((name, *map(tuple, sides)) for name, *sides in properties),
            )
            for table, row, kind, properties in conflicts
        }

    @invariant()
    def the_branch_shows_what_the_model_says(self):
        if self.touched in self.model.branches:
            assert read_state(self.graph, self.touched, self.seen) == self.model.state(self.touched)
            self.touched = None

    def teardown(self):
        try:
            assert self.graph.branches.list() == [MAIN, *sorted(set(self.model.branches) - {MAIN})]
            assert self.graph.tags.list() == self.model.tags
            for branch in self.model.branches:
                assert read_state(self.graph, branch) == self.model.state(branch)
            assert self.graph.verify().violations == ()
        finally:
            self.graph.close()
            shutil.rmtree(self.path)


def _counted(value):
    """Counts of rows without how often each side won."""
    if not isinstance(value, dict):
        return value
    plain = {t: {n: c for n, c in counts.items() if "resolved" not in n} for t, counts in value.items()}
    return {table: counts for table, counts in plain.items() if counts}


@pytest.mark.model
def test_branches_follow_the_model(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(folding, "SMALL_FRAGMENTS_MAX", 2)
    with make_graph(tmp_path / "original", SCHEMA) as graph:
        seed(graph)
    Machine.original, Machine.home, Machine.steps = tmp_path / "original", tmp_path, Counter()
    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=PROGRAMS,
            stateful_step_count=STEPS_OF_ONE,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
    with capsys.disabled():
        print(
            f"\n{Machine.steps.total()} steps of generated branch programs: {dict(sorted(Machine.steps.items()))}"
        )
    assert Machine.steps.total() >= STEPS_MIN
    assert Machine.steps[FOLD_OPERATION] > 0
    assert Machine.steps["entities merged by property"] > 0
    assert Machine.steps["a resolution left values of both sides in one row"] > 0
