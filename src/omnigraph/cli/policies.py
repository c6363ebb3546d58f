"""The commands about policies: is the file right, does it say what was meant, why is somebody refused."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from omnigraph.cli import output
from omnigraph.cli.options import Json, teach
from omnigraph.core.errors import UsageError
from omnigraph.core.permission import Action, Question

if TYPE_CHECKING:
    from omnigraph.policy.decisions import BundlePolicy

File = Annotated[str, typer.Option("--file", metavar="FILE", help="The policy file.")]


def register(policy: typer.Typer) -> None:
    """Add the commands of this module to the tree."""
    policy.command(
        "validate",
        help=teach(
            "Check a policy file: errors, and warnings of what takes no effect.",
            "omnigraph policy validate --file policy.yaml",
        ),
    )(validate)
    policy.command(
        "test",
        help=teach(
            "Compare a policy with what its author expects of it.",
            "omnigraph policy test --file policy.yaml --tests cases.yaml",
            "omnigraph policy test --file policy.yaml --tests cases.yaml --coverage",
        ),
    )(compare)
    policy.command(
        "explain",
        help=teach(
            "Say whether somebody may do something, by which rule, and which rules nearly allow it.",
            "omnigraph policy explain --file policy.yaml --actor act-ines --action change --branch main",
        ),
    )(explain)


def validate(
    file: File,
    queries: Annotated[
        list[str] | None,
        typer.Option("--queries", metavar="PATH", help="The stored queries of its graph. Repeatable."),
    ] = None,
    as_json: Json = False,
) -> int:
    """Check a policy file."""
    from omnigraph.policy.bundle import InvalidBundle, parse_bundle, read_text
    from omnigraph.policy.cedar import Cedar
    from omnigraph.policy.matching import query_oddities

    name = Path(file).name
    try:
        bundle, problems = parse_bundle(read_text(file), file)
        Cedar(bundle)
        if queries is not None:
            from omnigraph.server.stored import read_queries

            problems = (*problems, *query_oddities(bundle, read_queries(queries).by_name))
        counts = {"actors": len(bundle.actors), "groups": len(bundle.groups), "rules": len(bundle.rules)}
        ok = True
    except InvalidBundle as error:
        problems, counts, ok = error.problems, {"actors": 0, "groups": 0, "rules": 0}, False
    if as_json:
        told = [each.to_dict() for each in problems]
        output.document({"ok": ok, "bundle": name, "kind": "graph", **counts, "problems": told})
    else:
        for each in problems:
            output.note(f"{file}:{each.line}: {each.severity}: {each.message}")
        if ok:
            output.line(f"{name}: " + ", ".join(f"{count} {what}" for what, count in counts.items()))
    return 0 if ok else 1


def compare(
    file: File,
    tests: Annotated[str, typer.Option("--tests", metavar="FILE", help="The cases.")],
    coverage: Annotated[
        bool, typer.Option("--coverage", help="Also list the rules that no case is allowed by.")
    ] = False,
    as_json: Json = False,
) -> int:
    """Compare a policy with its cases."""
    from omnigraph.policy.bundle import read_text
    from omnigraph.policy.cases import parse_cases, rules_without_a_case, run_cases, word

    policy, cases = _loaded(file), parse_cases(read_text(tests), tests)
    outcomes = run_cases(policy, cases)
    failed = [each for each in outcomes if not each.held]
    unmet = rules_without_a_case(policy.bundle, cases) if coverage else ()
    if as_json:
        told = [each.to_dict() for each in outcomes]
        held = len(outcomes) - len(failed)
        covered = {"rules_without_a_case": list(unmet)} if coverage else {}
        output.document({"ok": not failed, "passed": held, "failed": len(failed), "cases": told, **covered})
        return 1 if failed else 0
    for each in failed:
        expected, found = word(each.case.allowed), word(each.decision.allowed)
        output.line(f"{each.case.id}: expected {expected}, actual {found} (rule {each.decision.rule or '-'})")
    if not outcomes:
        output.note("warning: there are no cases")
    for rule in unmet:
        output.line(f"{rule}: no case is allowed by this rule")
    output.line(f"{len(outcomes) - len(failed)} passed, {len(failed)} failed")
    return 1 if failed else 0


def explain(
    file: File,
    actor: Annotated[str, typer.Option("--actor", metavar="ACTOR", help="Who asks.")],
    action: Annotated[str, typer.Option("--action", metavar="ACTION", help="What they want to do.")],
    branch: Annotated[str | None, typer.Option("--branch", metavar="NAME", help="On which branch.")] = None,
    target: Annotated[
        str | None, typer.Option("--target-branch", metavar="NAME", help="Which branch it would change.")
    ] = None,
    query: Annotated[
        str | None, typer.Option("--query", metavar="NAME", help="Which stored query they would invoke.")
    ] = None,
    exit_code: Annotated[bool, typer.Option("--exit-code", help="A refusal ends with status 5.")] = False,
    as_json: Json = False,
) -> int:
    """Say whether somebody may do something."""
    if action not in set(Action):
        raise UsageError(f"'{action}' is not an action", hint=f"use one of {', '.join(Action)}")
    from omnigraph.policy.matching import near_misses

    policy, question = _loaded(file), Question(Action(action), branch, target, query)
    decision = policy.decide(actor, question)
    misses = () if decision.allowed else near_misses(policy.bundle, actor, question)
    said = {
        "allowed": decision.allowed,
        "actor": actor,
        "action": action,
        "branch": branch,
        "target_branch": target,
        "matched_rule": decision.rule,
        "message": decision.message,
        "groups": sorted(policy.bundle.groups_of(actor)),
        "branch_is_protected": branch in policy.bundle.protected,
        "target_branch_is_protected": target in policy.bundle.protected,
    }
    missing = _always_named(question)
    if as_json:
        notes = {} if missing is None else {"note": missing}
        output.document({**said, "near_misses": [each.to_dict() for each in misses], **notes})
    else:
        for name, value in said.items():
            output.line(f"{name}: {'-' if value is None else value}")
        for each in misses:
            output.line(f"near miss: {each.rule}: {each.message}")
        if missing is not None:
            output.note(f"note: {missing}")
    return 5 if exit_code and not decision.allowed else 0


def _always_named(question: Question) -> str | None:
    """What a graph would always say with this action, and the question does not."""
    from omnigraph.policy.bundle import BRANCH_ACTIONS, TARGET_ACTIONS

    action = question.action
    if action in BRANCH_ACTIONS and question.branch is None:
        return f"a graph asks for {action} with a branch, main unless another is named; give --branch"
    if action in TARGET_ACTIONS and question.target is None:
        return f"a graph asks for {action} with a target branch; give --target-branch"
    return None


def _loaded(file: str) -> "BundlePolicy":
    from omnigraph.policy.decisions import load_policy

    return load_policy(file)
