from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NamedTuple

from . import DataType, NativeFile, RecordBatch, Table

class InvalidRow(NamedTuple):
    expected_columns: int
    actual_columns: int
    number: int | None
    text: str

class ReadOptions:
    def __init__(
        self,
        use_threads: bool | None = None,
        *,
        block_size: int | None = None,
        column_names: Sequence[str] | None = None,
        autogenerate_column_names: bool | None = None,
    ) -> None: ...

class ParseOptions:
    def __init__(
        self,
        delimiter: str | None = None,
        *,
        newlines_in_values: bool | None = None,
        invalid_row_handler: Callable[[InvalidRow], Literal["skip", "error"]] | None = None,
    ) -> None: ...

class ConvertOptions:
    def __init__(
        self,
        check_utf8: bool | None = None,
        *,
        column_types: Mapping[str, DataType] | None = None,
        null_values: Sequence[str] | None = None,
        strings_can_be_null: bool | None = None,
        quoted_strings_can_be_null: bool | None = None,
    ) -> None: ...

class WriteOptions:
    def __init__(
        self,
        include_header: bool | None = None,
        *,
        quoting_style: Literal["needed", "all_valid", "none"] | None = None,
    ) -> None: ...

def read_csv(
    input_file: NativeFile,
    read_options: ReadOptions | None = None,
    parse_options: ParseOptions | None = None,
    convert_options: ConvertOptions | None = None,
) -> Table: ...
def write_csv(
    data: Table | RecordBatch, output_file: NativeFile, write_options: WriteOptions | None = None
) -> None: ...
