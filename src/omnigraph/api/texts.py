"""Query and schema texts as a caller gives them: as themselves, or as the path of a file."""

import os
from pathlib import Path

from omnigraph.core.errors import BadRequest, IoFailure, SourceFailure


class Text(str):
    """A query or a schema as text, whatever it looks like: it is never taken for a path.

    ```python
    graph.query(omnigraph.Text(request.body))
    ```
    """

    __slots__ = ()


def source_text(source: str | os.PathLike[str]) -> tuple[str, str | None]:
    """The text a caller means, and the file it came from: a `Text`, and a string with a brace or a line
    break, is the text itself.
    """
    if isinstance(source, Text):
        return str(source), None
    if isinstance(source, str) and ("{" in source or "}" in source or "\n" in source or not source.strip()):
        return source, None
    hint = "a string without a brace or a line break is the path of a file"
    path = Path(source)
    try:
        return path.read_text(encoding="utf-8-sig"), str(path)
    except UnicodeDecodeError as error:
        raise BadRequest(f"'{path}' is not UTF-8 text") from error
    except OSError as error:
        raise IoFailure(f"'{path}' cannot be read: {error.strerror}", hint=hint) from error
    except ValueError as error:  # a null byte, or half of a surrogate pair
        raise BadRequest(f"{str(path)!r} is not the name of a file", hint=hint) from error


def in_file(error: SourceFailure, file: str | None) -> SourceFailure:
    """The error, with the file its text is from."""
    if file is not None:
        error.name_file(file)
    return error
