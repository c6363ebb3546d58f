from enum import Enum

class FullTextOperator(Enum):
    AND = "AND"
    OR = "OR"

class FullTextQuery: ...

class MatchQuery(FullTextQuery):
    def __init__(self, query: str, column: str, *, operator: FullTextOperator = ...) -> None: ...
