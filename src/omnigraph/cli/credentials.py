"""The tokens of servers: a file that only its owner can read, or the environment."""

import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from omnigraph.cli import config
from omnigraph.core.errors import BadRequest, CredentialsInsecure, IoFailure
from omnigraph.core.ids import new_ulid

ANY_SERVER: Final = "OMNIGRAPH_BEARER_TOKEN"
_SECTION: Final = re.compile(r"\[([^\]]+)\]")
_TOKEN: Final = re.compile(r"token\s*=\s*(.*)")
_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO


def path() -> Path:
    """Where the file is."""
    return config.home() / "credentials"


def token_for(url: str) -> str | None:
    """The token for an address: that of the configured server it belongs to, else the one for any server.

    A server has what lies below its address, at a `/`; of several the longest address counts. A token of one
    server is never sent to another place. Raises CredentialsInsecure.
    """
    named = config.load().servers
    known = sorted(
        ((each.rstrip("/"), name) for name, each in named.items()),
        key=lambda pair: len(pair[0]),
        reverse=True,
    )
    name = next((name for each, name in known if f"{url}/".startswith(f"{each}/")), None)
    if name is not None:
        said = os.environ.get(f"OMNIGRAPH_TOKEN_{name.upper().replace('-', '_')}", "").strip()
        if said or (said := read().get(name, "")):
            return said
    return os.environ.get(ANY_SERVER, "").strip() or None


def read() -> dict[str, str]:
    """The tokens of the file by the names of servers. Raises CredentialsInsecure, IoFailure, BadRequest."""
    file = path()
    try:
        mode = file.stat().st_mode
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        return {}
    except UnicodeDecodeError as error:
        raise BadRequest(f"'{file}' is not UTF-8 text") from error
    except OSError as error:
        raise IoFailure(f"'{file}' cannot be read: {error.strerror}") from error
    if mode & _OTHERS:
        raise CredentialsInsecure(f"'{file}' can be read by others", hint=f"chmod 600 {file}")
    return _parsed(text)


def _parsed(text: str) -> dict[str, str]:
    found: dict[str, str] = {}
    name: str | None = None
    for line in map(str.strip, text.splitlines()):
        if section := _SECTION.fullmatch(line):
            name = section[1].strip()
        elif name is not None and (said := _TOKEN.fullmatch(line)):
            token = said[1].strip()
            quoted = len(token) > 1 and token[0] == token[-1] and token[0] in "\"'"
            found[name] = token[1:-1] if quoted else token
    return {server: token for server, token in found.items() if token}


def write(tokens: Mapping[str, str]) -> None:
    """Replace the file, whole or not at all; nobody else can read it at any moment. Raises IoFailure."""
    file = path()
    text = "".join(f"[{name}]\ntoken = {token}\n\n" for name, token in sorted(tokens.items()))
    fresh = file.with_name(f".credentials.{new_ulid()}")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        try:
            descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "w", encoding="utf-8") as target:
                target.write(text)
                target.flush()
                os.fsync(target.fileno())
            fresh.replace(file)
        finally:
            fresh.unlink(missing_ok=True)
    except OSError as error:
        raise IoFailure(f"'{file}' cannot be written: {error.strerror}") from error
