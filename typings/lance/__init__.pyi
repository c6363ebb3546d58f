# What this project uses of Lance, and nothing else. A guard compares names and parameters with the library.

from collections.abc import Sequence

from .dataset import LanceDataset as LanceDataset
from .dataset import LanceOperation as LanceOperation
from .dataset import Session

class _Token:
    @property
    def text(self) -> str: ...

def dataset(
    uri: str | None = None,
    version: int | str | None = None,
    *,
    storage_options: dict[str, str] | None = None,
    session: Session | None = None,
) -> LanceDataset: ...
def tokenize(query: str, *, max_token_length: int | None = ...) -> Sequence[_Token]: ...
