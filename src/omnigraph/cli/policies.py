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
        help=teach("Check a policy file.", "omnigraph policy validate --file policy.yaml"),
    )(validate)
    policy.command(
        "test",
        help=teach(
            "Compare a policy with what its author expects of it.",
            "omnigraph policy test --file policy.yaml --tests cases.yaml",
        ),
    )(compare)
    policy.command(
        "explain",
        help=teach(
            "Say whether somebody may do something, and by which rule.",
            "omnigraph policy explain --file policy.yaml --actor act-ines --action change --branch main",
        ),
    )(explain)


def validate(file: File, as_json: Json = False) -> int:
    """Check a policy file."""
    from omnigraph.policy.bundle import InvalidBundle, parse_bundle, read_text
    from omnigraph.policy.cedar import Cedar

    name = Path(file).name
    try:
        bundle, problems = parse_bundle(read_text(file), file)
        Cedar(bundle)
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
    as_json: Json = False,
) -> int:
    """Compare a policy with its cases."""
    from omnigraph.policy.bundle import read_text
    from omnigraph.policy.cases import parse_cases, run_cases, word

    policy, cases = _loaded(file), parse_cases(read_text(tests), tests)
    outcomes = run_cases(policy, cases)
    failed = [each for each in outcomes if not each.held]
    if as_json:
        told = [each.to_dict() for each in outcomes]
        held = len(outcomes) - len(failed)
        output.document({"ok": not failed, "passed": held, "failed": len(failed), "cases": told})
        return 1 if failed else 0
    for each in failed:
        expected, found = word(each.case.allowed), word(each.decision.allowed)
        output.line(f"{each.case.id}: expected {expected}, actual {found} (rule {each.decision.rule or '-'})")
    if not outcomes:
        output.note("warning: there are no cases")
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
    policy = _loaded(file)
    decision = policy.decide(actor, Question(Action(action), branch, target, query))
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
    if as_json:
        output.document(said)
    else:
        for name, value in said.items():
            output.line(f"{name}: {'-' if value is None else value}")
    return 5 if exit_code and not decision.allowed else 0


def _loaded(file: str) -> "BundlePolicy":
    from omnigraph.policy.decisions import load_policy

    return load_policy(file)
