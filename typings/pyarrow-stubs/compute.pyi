# pyarrow generates these functions at import; there is nothing for a type checker to read.
from typing import Any

def __getattr__(name: str) -> Any: ...
