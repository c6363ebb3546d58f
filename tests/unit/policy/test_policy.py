"""Policies: what a file may say, what it means, and that the table of decisions is Cedar's."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cli.conftest import Run, here
from omnigraph.core.permission import Action, Question
from omnigraph.policy.bundle import (
    BRANCH_ACTIONS,
    TARGET_ACTIONS,
    Bundle,
    InvalidBundle,
    Rule,
    Scope,
    parse_bundle,
    shadowing,
)
from omnigraph.policy.cedar import Cedar
from omnigraph.policy.decisions import BundlePolicy
from omnigraph.policy.matching import matching_rules

__all__ = ["here"]

B = """\
version: 1
groups:
  crew:    [act-ines, act-tomas]
  masters: [act-tomas]
protected_branches: [main, release]
rules:
  - id: crew-reads-everything
    allow: { actors: { group: crew }, actions: [read], branch_scope: any }
  - id: crew-works-on-topics
    allow: { actors: { group: crew }, actions: [change], branch_scope: unprotected }
  - id: masters-own-main
    allow: { actors: { group: masters }, actions: [change, export], branch_scope: protected }
  - id: masters-steer
    allow:
      actors: { group: masters }
      actions: [branch_create, branch_delete, branch_merge, schema_apply]
      target_branch_scope: any
  - id: masters-call
    allow: { actors: { group: masters }, actions: [invoke_query] }
"""
CASES = """\
version: 1
cases:
  - { id: ines-topic,  actor: act-ines, action: change, branch: topic/a, expect: allow }
  - { id: ines-main,   actor: act-ines, action: change, branch: main,    expect: deny }
  - { id: tomas-merge, actor: act-tomas, action: branch_merge, branch: topic/a, target_branch: main, expect: allow }
"""


def policy(text: str = B) -> BundlePolicy:
    return BundlePolicy(parse_bundle(text, "b.yaml")[0])


@pytest.mark.parametrize(
    ("actor", "action", "branch", "target", "rule"),
    [
        ("act-ines", "read", "main", None, "crew-reads-everything"),
        ("act-ines", "change", "main", None, None),
        ("act-ines", "change", "topic/a", None, "crew-works-on-topics"),
        ("act-tomas", "change", "main", None, "masters-own-main"),
        ("act-tomas", "change", "topic/a", None, "crew-works-on-topics"),
        ("act-ines", "change", None, None, None),
        ("act-ines", "read", None, None, "crew-reads-everything"),
        ("act-ines", "export", "topic/a", None, None),
        ("act-tomas", "export", "topic/a", None, None),
        ("act-tomas", "branch_merge", "topic/a", "main", "masters-steer"),
        ("act-ines", "branch_create", None, "topic/b", None),
        ("act-ghost", "read", "main", None, None),
        ("ACT-INES", "read", "main", None, None),
        ("act-tomas", "admin", None, None, None),
    ],
)
def test_the_example_decides_as_written(
    actor: str, action: str, branch: str | None, target: str | None, rule: str | None
) -> None:
    decision = policy().decide(actor, Question(Action(action), branch, target))
    assert (decision.allowed, decision.rule) == (rule is not None, rule)
    if rule is None:
        for named in (actor, action, branch, target):
            assert named is None or named in decision.message
        for other in {"act-ines", "act-tomas", "crew", "masters"} - {actor}:
            assert other not in decision.message


RULE = "  - id: x\n    allow: {{ actors: {{ group: crew }}, actions: [{}]{} }}\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (B + RULE.format("read", "") + RULE.format("read", ""), "'x' is given twice"),
        (B.replace("group: masters }, actions: [invoke", "group: pilots }, actions: [invoke"), "'pilots'"),
        (B.replace("masters: [act-tomas]", "masters: [act-tomas]\n  idle: []"), "'idle' has no actor"),
        (B + RULE.format("read", ", branch_scope: any, target_branch_scope: any"), "both scope keys"),
        (B + RULE.format("read, branch_merge", ", branch_scope: any"), "'branch_merge'"),
        (B + RULE.format("change", ", target_branch_scope: any"), "'change'"),
        (B + RULE.format("invoke_query", ", branch_scope: any"), "'invoke_query'"),
        (B + RULE.format("invoke_query, admin", ", queries: [a]"), "'invoke_query' alone"),
        (B + RULE.format("invoke_query", ", queries: []"), "a list of stored queries"),
        (B + RULE.format("invoke_query", ", queries: a"), "a list is expected"),
        (B + RULE.format("graph_list, read", ""), "'graph_list' is not an action"),
        (B + RULE.format("read", ", deny: [x]"), "'deny' is unknown"),
        (B + RULE.format("read", ", branch_scope: some"), "a scope is"),
        (B + RULE.format("", ""), "no action"),
        (B.replace("version: 1", "version: 2"), "version"),
        (B.replace("version: 1\n", ""), "version"),
        (B.replace("crew:    [act-ines", "crew:    [' '"), "blank"),
        (B.replace("crew:    [act-ines", "crew:    ['omnigraph:recovery'"), "reserved"),
        (B + "rules: []\n", "'rules' is given twice"),
        ("", "empty"),
        ("[", "not YAML"),
        ("[]", "mapping"),
    ],
)
def test_a_file_that_is_wrong_is_refused_whole(text: str, said: str) -> None:
    with pytest.raises(InvalidBundle) as refused:
        parse_bundle(text, "b.yaml")
    assert said in json.dumps(refused.value.to_dict())
    assert all(each.line >= 1 for each in refused.value.problems)


def test_all_problems_of_a_file_are_told_with_their_lines() -> None:
    text = B + RULE.format("fly", "") + RULE.format("read", ", deny: 1")
    with pytest.raises(InvalidBundle) as refused:
        parse_bundle(text, "b.yaml")
    assert [each.line for each in refused.value.problems if "is not an action" in each.message] == [21]
    assert len(refused.value.problems) >= 3


def test_no_rule_means_no_access_and_the_first_rule_by_name_is_told() -> None:
    silent = policy("version: 1\ngroups: { crew: [a] }\n")
    assert not any(silent.decide("a", Question(action, "main", "main")).allowed for action in Action)
    two = "version: 1\ngroups: { crew: [a] }\nrules:\n"
    for name in ("b-rule", "a-rule"):
        two += f"  - {{ id: {name}, allow: {{ actors: {{ group: crew }}, actions: [read] }} }}\n"
    assert policy(two).decide("a", Question(Action.READ)).rule == "a-rule"


def test_names_that_need_escaping_are_names() -> None:
    text = 'version: 1\ngroups: { "o\\"brien\\\\x\\n": ["é", "a\\"b"] }\nrules:\n'
    text += '  - { id: "r:\\"1", allow: { actors: { group: "o\\"brien\\\\x\\n" }, actions: [read] } }\n'
    for actor in ("é", 'a"b'):
        assert policy(text).decide(actor, Question(Action.READ, 'x"y')).rule == 'r:"1'


NAMES = st.sampled_from(["a", "b", "é", 'q"', "main", "topic", "release", "topic-"])


@st.composite
def rules(draw: st.DrawFn, number: int, groups: list[str]) -> Rule:
    scope = draw(st.sampled_from(["none", "branch", "target"]))
    fitting = {"none": list(Action), "branch": sorted(BRANCH_ACTIONS), "target": sorted(TARGET_ACTIONS)}[
        scope
    ]
    actions = draw(st.lists(st.sampled_from(fitting), min_size=1, max_size=3, unique=True))
    chosen = draw(st.sampled_from(Scope)) if scope != "none" else None
    named = actions == [Action.INVOKE_QUERY] and draw(st.booleans())
    return Rule(
        f"r{number}",
        draw(st.sampled_from(groups)),
        tuple(actions),
        chosen if scope == "branch" else None,
        chosen if scope == "target" else None,
        tuple(draw(st.lists(NAMES, min_size=1, max_size=2))) if named else None,
    )


@st.composite
def bundles(draw: st.DrawFn) -> Bundle:
    groups = draw(st.dictionaries(NAMES, st.lists(NAMES, min_size=1, max_size=3), min_size=1, max_size=3))
    count = draw(st.integers(0, 4))
    return Bundle(
        {name: tuple(actors) for name, actors in groups.items()},
        frozenset(draw(st.lists(NAMES, max_size=3))),
        tuple(draw(rules(n, sorted(groups))) for n in range(count)),
    )


@settings(max_examples=60, deadline=None)
@given(
    bundles(),
    st.lists(
        st.tuples(NAMES, st.sampled_from(Action), st.none() | NAMES, st.none() | NAMES, st.none() | NAMES),
        max_size=12,
    ),
)
@pytest.mark.slow
def test_the_table_of_decisions_is_what_cedar_says(
    bundle: Bundle, asked: list[tuple[str, Action, str | None, str | None, str | None]]
) -> None:
    quick, cedar = BundlePolicy(bundle), Cedar(bundle)
    for actor, action, branch, target, query in asked:
        question = Question(action, branch, target, query)
        allowing = cedar.rules_that_allow(actor, question) if actor in bundle.actors else ()
        assert matching_rules(bundle, actor, question) == allowing
        decision = quick.decide(actor, question)
        assert (decision.allowed, decision.rule) == (bool(allowing), min(allowing, default=None))


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "b.yaml").write_text(B)
    (tmp_path / "cases.yaml").write_text(CASES)
    return tmp_path


@pytest.mark.slow
def test_the_commands_validate_test_and_explain(here: Run, files: Path) -> None:
    told = here("policy", "validate", "--file", "b.yaml", "--json").json
    assert (told["ok"], told["actors"], told["groups"], told["rules"]) == (True, 2, 2, 5)
    assert here("policy", "test", "--file", "b.yaml", "--tests", "cases.yaml").out == "3 passed, 0 failed\n"
    wrong = CASES.replace("main,    expect: deny", "main,    expect: allow")
    (files / "cases.yaml").write_text(wrong)
    ran = here("policy", "test", "--file", "b.yaml", "--tests", "cases.yaml", rc=1)
    assert "ines-main: expected allow, actual deny" in ran.out
    asked = ("policy", "explain", "--file", "b.yaml", "--actor", "act-ines", "--action")
    assert here(*asked, "change", "--branch", "main", "--json").json["allowed"] is False
    assert here(*asked, "change", "--branch", "main", "--exit-code", rc=5).out
    here(*asked, "fly", rc=2)
    (files / "b.yaml").write_text(B + "extra: 1\n")
    assert here("policy", "validate", "--file", "b.yaml", "--json", rc=1).json["problems"][0]["line"] == 20


@pytest.mark.parametrize(
    "wrong",
    [
        CASES.replace("ines-main", "ines-topic"),
        CASES.replace("actor: act-ines", "actor: ' '"),
        CASES.replace("expect: deny", "expect: deny, why: x"),
        CASES.replace("version: 1", "version: 3"),
        CASES.replace("action: change", "action: fly"),
    ],
)
def test_a_test_file_that_is_wrong_runs_nothing(here: Run, files: Path, wrong: str) -> None:
    (files / "cases.yaml").write_text(wrong)
    ran = here("policy", "test", "--file", "b.yaml", "--tests", "cases.yaml", rc=1)
    assert ran.out == ""


def test_rules_and_groups_without_effect_are_warned_of_with_their_lines() -> None:
    text = (
        B.replace("protected_branches: [main, release]\n", "").replace(
            "crew:    [act-ines,", "idle:    [act-uwe]\n  crew:    [act-ines, act-ines,"
        )
        + "  - id: narrow\n    allow: { actors: { group: crew }, actions: [read, read] }\n"
        + "  - id: topics\n"
        + "    allow: { actors: { group: crew }, actions: [change], branch_scope: unprotected }\n"
    )
    told = [(each.line, each.rule, each.message) for each in parse_bundle(text, "b")[1]]
    assert told == [
        (3, None, "no rule uses the group 'idle'"),
        (4, None, "'act-ines' is listed twice"),
        (
            11,
            "masters-own-main",
            "rule 'masters-own-main' is about protected branches, and no branch is protected",
        ),
        (
            20,
            "narrow",
            "rule 'narrow' adds nothing: rule 'crew-reads-everything' allows all of it to the same group",
        ),
        (21, "narrow", "'read' is listed twice"),
        (
            22,
            "topics",
            "rule 'topics' adds nothing: rule 'crew-works-on-topics' allows all of it to the same group",
        ),
    ]


@given(bundles())
@settings(max_examples=100)
def test_a_rule_that_is_said_to_add_nothing_adds_nothing(bundle: Bundle) -> None:
    for rule in bundle.rules:
        wider = shadowing(bundle.rules, rule)
        if wider is None:
            continue
        for actor in bundle.groups[rule.group]:
            for action in rule.actions:
                for branch in (None, "main", "topic"):
                    question = Question(action, branch, branch, next(iter(rule.queries or ()), None))
                    found = matching_rules(bundle, actor, question)
                    assert rule.id not in found or wider.id in found


def test_near_misses_say_which_rule_and_what_differs(here: Run, files: Path) -> None:
    asked = ("policy", "explain", "--file", "b.yaml", "--actor", "act-ines", "--action")
    told = here(*asked, "change", "--branch", "main", "--json").json
    assert told["near_misses"] == [
        {"rule": "crew-reads-everything", "part": "action", "message": "it allows read, and not change"},
        {
            "rule": "crew-works-on-topics",
            "part": "scope",
            "message": "it is about unprotected branches, and the branch 'main' is protected",
        },
        {
            "rule": "masters-own-main",
            "part": "group",
            "message": "it is for the group 'masters', and 'act-ines' is not in it",
        },
    ]
    text = here(*asked, "change", "--branch", "main").out
    assert "near miss: crew-works-on-topics: it is about unprotected branches" in text
    assert here(*asked, "read", "--branch", "main", "--json").json["near_misses"] == []
    without = here(*asked, "change", "--json").json
    assert "give --branch" in without["note"]
    assert {key: value for key, value in without["near_misses"][1].items() if key != "message"} == {
        "rule": "crew-works-on-topics",
        "part": "scope",
    }
    merge = here(*asked, "branch_merge", "--branch", "topic")
    assert "give --target-branch" in merge.err


def test_coverage_lists_the_rules_that_no_case_meets(here: Run, files: Path) -> None:
    command = ("policy", "test", "--file", "b.yaml", "--tests", "cases.yaml", "--coverage")
    unmet = ["crew-reads-everything", "masters-own-main", "masters-call"]
    assert here(*command, "--json").json["rules_without_a_case"] == unmet
    out = here(*command).out
    assert [line.partition(":")[0] for line in out.splitlines()[:-1]] == unmet
    assert out.endswith("3 passed, 0 failed\n")


def test_a_policy_is_compared_with_the_stored_queries_of_its_graph(here: Run, files: Path) -> None:
    (files / "q.gq").write_text("query known() { match { $s: Ship } return { $s.imo } }\n")
    (files / "b.yaml").write_text(
        B
        + "  - id: calls\n    allow: { actors: { group: masters }, actions: [invoke_query], queries: [gone] }\n"
    )
    told = here("policy", "validate", "--file", "b.yaml", "--queries", "q.gq", "--json").json
    assert told["ok"] is True
    warned = {each["rule"]: each["message"] for each in told["problems"]}
    assert "the query 'gone', which is not stored" in json.dumps(told)
    assert "no rule lets all of 'crew' call stored queries" in warned["crew-reads-everything"]
