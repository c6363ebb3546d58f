"""A commit message has a short subject and a body that gives the reason. A hook of git calls this."""

import sys
from pathlib import Path

SUBJECT_LENGTH_MAX = 72
WITHOUT_A_BODY = ("Merge ", "Revert ", "fixup! ", "squash! ", "amend! ")
SCISSORS = "# ------------------------ >8 ------------------------"


def problems_of(message: str) -> list[str]:
    """What is missing from a message, in the words of CONTRIBUTING."""
    lines = [
        line.rstrip() for line in message.partition(SCISSORS)[0].splitlines() if not line.startswith("#")
    ]
    while lines and not lines[0]:
        lines.pop(0)
    if not lines:
        return []  # git itself refuses an empty message
    subject, rest = lines[0], lines[1:]
    if subject.startswith(WITHOUT_A_BODY):
        return []
    problems = []
    if len(subject) > SUBJECT_LENGTH_MAX:
        problems.append(
            f"the subject has {len(subject)} characters; at most {SUBJECT_LENGTH_MAX} are shown whole"
        )
    if rest and rest[0]:
        problems.append("a blank line is missing below the subject")
    if not any(rest):
        problems.append("the body is missing: say why the change is made")
    return problems


def main(path: str) -> int:
    problems = problems_of(Path(path).read_text(encoding="utf-8"))
    for problem in problems:
        print(f"commit message: {problem}", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
