"""What a shell offers when Tab is pressed: commands, flags and the values that are known beforehand."""

from collections.abc import Sequence
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any, Final

from omnigraph.cli import output
from omnigraph.cli.declared import Argument
from omnigraph.cli.options import teach
from omnigraph.core.errors import OmnigraphError, UsageError

if TYPE_CHECKING:
    import typer

COMPLETE: Final = "__complete"
"""How the scripts below ask for candidates; the words of the line follow, the last one unfinished."""

_BASH: Final = """\
_omnigraph() {
    local IFS=$'\\n'
    COMPREPLY=($(omnigraph __complete "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null))
}
complete -o default -F _omnigraph omnigraph
"""
_ZSH: Final = """\
#compdef omnigraph
_omnigraph() {
    local -a found
    found=("${(@f)$(omnigraph __complete "${(@)words[2,CURRENT]}" 2>/dev/null)}")
    if [[ -n "${found[*]}" ]]; then compadd -- "${found[@]}"; else _files; fi
}
compdef _omnigraph omnigraph
"""
_FISH: Final = """\
function __omnigraph_complete
    set -l words (commandline -opc)
    omnigraph __complete $words[2..-1] (commandline -ct) 2>/dev/null
end
complete -c omnigraph -a '(__omnigraph_complete)'
"""
SCRIPTS: Final = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}
_GLOBAL: Final = (
    "--help",
    "--version",
    "--store",
    "--profile",
    "--as",
    "--quiet",
    "--yes",
    "--json",
    "--progress",
)


def register(app: "typer.Typer") -> None:
    """Add the command of this module to the tree."""
    app.command(
        "completion",
        help=teach(
            "Print the script that makes a shell complete commands and flags.",
            'eval "$(omnigraph completion bash)"',
            "omnigraph completion fish > ~/.config/fish/completions/omnigraph.fish",
        ),
    )(completion)


def completion(
    shell: Annotated[str, Argument(metavar="SHELL", help="bash, zsh or fish.")],
) -> None:
    """Print a completion script."""
    script = SCRIPTS.get(shell)
    if script is None:
        raise UsageError(f"no completion for '{shell}'", hint=f"use one of {', '.join(SCRIPTS)}")
    output.write(script)


def complete(words: Sequence[str]) -> int:
    """Print the candidates for the last word, one per line; nothing when the shell should offer files."""
    try:
        for candidate in candidates(words):
            output.line(candidate)
        output.finish()
    except (OmnigraphError, output.PipeClosed):
        # A shell that waits for candidates has no use for a message.
        return 1
    return 0


def candidates(words: Sequence[str]) -> list[str]:
    """What may stand in place of the last word."""
    *before, unfinished = words or [""]
    command, used = _walk(before)
    previous = before[-1] if before else ""
    if previous == "--profile":
        return _matching(_profiles(), unfinished)
    option = _option(command, previous)
    if option is not None and not option.is_flag:
        return _matching(_choices(option), unfinished)
    inside = getattr(command, "commands", None)
    if inside is not None:
        names = sorted(name for name, each in inside.items() if not each.hidden)
        return _matching(_GLOBAL if unfinished.startswith("-") else names, unfinished)
    if unfinished.startswith("-"):
        return _matching(_flags(command, used), unfinished)
    if getattr(command, "name", "") == "completion":
        return _matching(list(SCRIPTS), unfinished)
    return []


def _walk(words: Sequence[str]) -> tuple[Any, set[str]]:
    """The command the words lead to, and the flags they hold."""
    import typer

    from omnigraph.cli.app import tree

    command: Any = typer.main.get_command(tree())
    for word in words:
        inside = getattr(command, "commands", None)
        if inside is not None and word in inside:
            command = inside[word]
    return command, {word.partition("=")[0] for word in words if word.startswith("-")}


def _option(command: Any, word: str) -> Any:
    if not word.startswith("-"):
        return None
    return next((each for each in command.params if word in getattr(each, "opts", ())), None)


def _choices(option: Any) -> list[str]:
    kind = option.type_descriptor.annotation
    return [str(each.value) for each in kind] if isinstance(kind, type) and issubclass(kind, Enum) else []


def _flags(command: Any, used: set[str]) -> list[str]:
    """The flags not given yet; those that may be repeated are always offered."""
    offered = [
        flag
        for each in command.params
        if getattr(each, "is_flag", None) is not None
        for flag in each.opts
        if flag.startswith("--") and (each.multiple or not used.intersection(each.opts))
    ]
    return sorted([*offered, "--help"])


def _profiles() -> list[str]:
    from omnigraph.cli.config import load

    return sorted(load().profiles)


def _matching(names: Sequence[str], unfinished: str) -> list[str]:
    return [name for name in names if name.startswith(unfinished)]
