"""`spark.read.format("omnigraph")`: a type of a graph as a Spark data source.

The frame is pinned when it is made: the source resolves the branch or commit once, and what it found travels
with it. Filters that Spark hands over and that have the same meaning here run inside the scan; the others
stay with Spark.
"""

import datetime as dt
import math
from collections.abc import Iterable, Iterator, MutableMapping, Sequence
from dataclasses import replace
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql import datasource as spark_api
from pyspark.sql.datasource import DataSource, DataSourceReader, Filter, InputPartition

from omnigraph.branching.references import resolve_reference
from omnigraph.catalog.scalars import round_f32
from omnigraph.catalog.schema import TableType
from omnigraph.catalog.types import INTEGER_BOUNDS, PropertyType, ScalarKind
from omnigraph.core.errors import BadRequest, TargetConflict
from omnigraph.core.events import Warned, emit
from omnigraph.core.ids import normalize_branch
from omnigraph.engine.session import GraphSession, open_session
from omnigraph.language.query_tree import Operator
from omnigraph.manifest.state import Snapshot
from omnigraph.pipeline.output.scans import FrameScan, plan_scan, readable_type, scan_fragments
from omnigraph.pipeline.spark.session import SparkRuntime, spark_runtime
from omnigraph.planning.filters import NEVER, Formula, HasValue, TextTest, both, filter_text, some
from omnigraph.planning.predicate import in_set, ordering
from omnigraph.planning.values import Value

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

FORMAT: Final = "omnigraph"
PUSHDOWN_SETTING: Final = "spark.sql.python.filterPushdown.enabled"
OPTIONS: Final = ("graph", "type", "branch", "at", "columns", "where")
STORAGE_PREFIX: Final = "storage."


def register(
    spark: "SparkSession | None", *, filtering: "type[GraphSource]", unfiltered: "type[GraphSource]"
) -> "SparkSession":
    """Teach a Spark session `format("omnigraph")` and return it; without one, the session of this process.

    Which of the two sources it gets follows from what this Spark does with the filters of a frame.
    """
    runtime = spark_runtime(session=spark)
    session = runtime.spark
    reason = _why_not_handed_over(runtime)
    if reason is None and runtime.owned:
        session.conf.set(PUSHDOWN_SETTING, "true")
    _register(session, filtering if reason is None else unfiltered)
    if reason is not None:
        emit(Warned("conditions on frames of the graph are evaluated by Spark", reason))
    return session


def _why_not_handed_over(runtime: SparkRuntime) -> str | None:
    # A session of ours gets it once its Spark is known to be right: the caller's sources follow it too.
    setting = "true" if runtime.owned else str(runtime.spark.conf.get(PUSHDOWN_SETTING, "false")).lower()
    if setting != "true":
        return f"{PUSHDOWN_SETTING} is not true"
    if not keeps_scans_apart(runtime.spark):
        return "this Spark applies the pushed filters of one use of a frame to its other uses"
    return None


def keeps_scans_apart(session: Any) -> bool:
    """Whether each scan of a Python source has its own filters; unknown counts as no.

    Spark 4.3.0 keeps the reader that took the filters beside the table, where every later scan of the same
    frame finds it: `frame.where("a > 1").count()` changes what `frame.count()` answers. Later versions keep
    it in the builder of the scan.
    """
    if not hasattr(session, "_jvm"):
        return False
    name = "org.apache.spark.sql.execution.datasources.v2.python.PythonScanBuilder"
    try:
        fields = session._jvm.java.lang.Class.forName(name).getDeclaredFields()  # noqa: SLF001
        return any(field.getName() == "readInfo" for field in fields)
    except Exception:  # noqa: BLE001 - another Spark, other classes
        return False


def _register(session: "SparkSession", source: type[DataSource]) -> None:
    from pyspark.errors import AnalysisException  # noqa: PLC0415 - Spark is running here

    try:
        session.dataSource.register(source)
    except AnalysisException as error:
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise
        # Spark looks for the name in the session used last. Making any frame makes this one the last.
        session.createDataFrame([], "nothing int")
        session.dataSource.register(source)


class GraphSource(DataSource):
    """One type of one graph at one commit.

    Options: `graph` (URI) and `type`; `branch` or `at`; `columns`, separated by commas; `where`, a condition
    of the query language; `storage.*` for object stores.
    """

    pushes_filters = True
    known_options: tuple[str, ...] = OPTIONS

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        given = {name.lower(): value for name, value in options.items()}
        storage = {
            name.removeprefix(STORAGE_PREFIX): given.pop(name)
            for name in list(given)
            if name.startswith(STORAGE_PREFIX)
        }
        _check_options(given, self.known_options)
        columns = given.get("columns")
        place, at = self.place_and_state(given)
        session = open_session(place, read_only=True, storage_options=storage)
        try:
            snapshot = _state(session, given.get("branch", "main"), at)
            names = None if columns is None else [name.strip() for name in columns.split(",")]
            seen, self.table_type = readable_type(session, snapshot, given["type"], names)
            self.scan = plan_scan(session, seen, self.table_type, columns=names, where=given.get("where"))
        finally:
            session.close()

    def place_and_state(self, given: dict[str, str]) -> tuple[str, str | None]:
        """Where the storage is, and the state to read, unless it is the head of the branch."""
        return given["graph"], given.get("at")

    @classmethod
    def name(cls) -> str:
        """The word after `format`."""
        return FORMAT

    def schema(self) -> str:
        """The columns of the frame."""
        return self.scan.ddl

    def reader(self, schema: "StructType") -> DataSourceReader:
        """A reader of the columns of `schema`: all of the source, or those that the caller named."""
        scan = _narrowed(self.scan, schema)
        # Filters of Spark name the columns as they are called now, which may not be how they are stored.
        pushed = self.pushes_filters and scan.seen is None
        return FilteringReader(scan, self.table_type) if pushed else ScanReader(scan)


def _state(session: GraphSession, branch: str, at: str | None) -> Snapshot:
    if at is None:
        return session.manifest.current(normalize_branch(branch))
    return resolve_reference(session, at)


def _check_options(given: dict[str, str], known: tuple[str, ...]) -> None:
    for name in given:
        if name not in known:
            raise BadRequest(f"unknown option '{name}'", hint=f"use {', '.join(known)}, {STORAGE_PREFIX}*")
    for name in ("graph", "type"):
        if not given.get(name):
            raise BadRequest(f"the option '{name}' is needed")
    if "branch" in given and "at" in given:
        raise TargetConflict("give either a branch or a commit, not both")


def _narrowed(scan: FrameScan, schema: "StructType") -> FrameScan:
    """The scan of the columns a schema names, in its order. Raises BadRequest when a type differs."""
    from pyspark.sql.pandas.types import to_arrow_schema  # noqa: PLC0415 - not for registering

    wanted = to_arrow_schema(schema, timezone="UTC")
    for field in wanted:
        place = scan.schema.get_field_index(field.name)
        if place < 0:
            raise BadRequest(f"there is no column '{field.name}'", hint=f"there are {scan.ddl}")
        if not scan.schema.field(place).type.equals(field.type):
            raise BadRequest(f"the column '{field.name}' has another type", hint=f"there are {scan.ddl}")
    return replace(scan, columns=tuple(wanted.names), schema=wanted)


class FragmentPartition(InputPartition):
    """The fragments one task reads."""

    def __init__(self, fragments: tuple[int, ...]) -> None:
        super().__init__(fragments)
        self.fragments = fragments


class ScanReader(DataSourceReader):
    """Reads a pinned scan, a group of fragments per task."""

    def __init__(self, scan: FrameScan) -> None:
        self.scan: FrameScan = scan

    def partitions(self) -> Sequence[InputPartition]:
        """One partition per group of fragments; one that reads nothing when there are no rows."""
        return [FragmentPartition(group) for group in self.scan.groups or ((),)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one partition."""
        return scan_fragments(self.scan, partition.value)


class FilteringReader(ScanReader):
    """Also runs the filters it can state exactly inside the scan."""

    def __init__(self, scan: FrameScan, table_type: TableType) -> None:
        super().__init__(scan)
        self._table_type = table_type

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        """Take the filters with one meaning in both; the others are given back."""
        for each in filters:
            formula = formula_of(each, self._table_type)
            if formula is None:
                yield each
                continue
            self.scan = replace(self.scan, where=both(self.scan.where, filter_text(formula)))


# --- filters ---

_ORDERINGS: Final[dict[type[Filter], tuple[Operator, Operator]]] = {
    # Beside each operator, the one that holds where it is false; unknown is neither.
    spark_api.EqualTo: (Operator.EQ, Operator.NE),
    spark_api.GreaterThan: (Operator.GT, Operator.LE),
    spark_api.GreaterThanOrEqual: (Operator.GE, Operator.LT),
    spark_api.LessThan: (Operator.LT, Operator.GE),
    spark_api.LessThanOrEqual: (Operator.LE, Operator.GT),
}
_TEXT_TESTS: Final[dict[type[Filter], Operator]] = {
    spark_api.StringStartsWith: Operator.STARTS_WITH,
    spark_api.StringContains: Operator.CONTAINS,
    spark_api.StringEndsWith: Operator.ENDS_WITH,
}


def formula_of(test: Filter, owner: TableType, *, wanted: bool = True) -> Formula | None:
    """Where the filter is true (wanted) or false (not wanted), or None when Spark has to evaluate it."""
    if isinstance(test, spark_api.Not):
        return formula_of(test.child, owner, wanted=not wanted)
    path: tuple[str, ...] = getattr(test, "attribute", ())
    if len(path) != 1 or path[0] not in owner.arrow_schema.names:
        return None
    column = path[0]
    if isinstance(test, spark_api.IsNull | spark_api.IsNotNull):
        return HasValue(column, wanted=isinstance(test, spark_api.IsNotNull) == wanted)
    prop = owner.get(column)
    type_ = PropertyType(ScalarKind.STRING) if prop is None else prop.type
    if not type_.is_scalar or type_.is_blob:
        return None
    try:
        return _comparison(test, column, type_.kind, wanted=wanted)
    except _OnlySpark:
        return None


class _OnlySpark(Exception):  # noqa: N818 - a signal, caught above
    """The value means something else, or nothing, in a comparison of ours."""


def _comparison(test: Any, column: str, kind: ScalarKind, *, wanted: bool) -> Formula | None:
    value = test.value
    if type(test) in _ORDERINGS:
        if value is None:
            return NEVER  # unknown, and so is its negation
        operator = _ORDERINGS[type(test)][0 if wanted else 1]
        return ordering(column, kind, operator, _value(value, kind))
    if type(test) in _TEXT_TESTS and kind is ScalarKind.STRING and isinstance(value, str):
        return TextTest(column, _TEXT_TESTS[type(test)], value, wanted)
    match test:
        case spark_api.EqualNullSafe():
            if value is None:
                return HasValue(column, wanted=not wanted)
            if wanted:
                return ordering(column, kind, Operator.EQ, _value(value, kind))
            differs = ordering(column, kind, Operator.NE, _value(value, kind))
            return some([HasValue(column, wanted=False), differs])
        case spark_api.In():
            if not wanted and None in value:
                return NEVER
            held = tuple(_value(item, kind) for item in value if item is not None)
            return in_set(column, kind, held, wanted=wanted)
        case _:
            return None


def _value(value: Any, kind: ScalarKind) -> Value:
    """Spark's value as one of ours with the same meaning. Raises `_OnlySpark`."""
    whole = isinstance(value, Decimal) and value == value.to_integral_value()
    found: Any = int(value) if whole and kind in INTEGER_BOUNDS else value
    if not _compares_alike(found, kind):
        raise _OnlySpark
    return found.astimezone(dt.UTC) if isinstance(found, dt.datetime) else found


def _compares_alike(value: Any, kind: ScalarKind) -> bool:
    if kind in INTEGER_BOUNDS:
        return isinstance(value, int) and not isinstance(value, bool)
    match kind:
        case ScalarKind.F32 | ScalarKind.F64:
            # Spark holds 0.0 and -0.0 for equal, the scan does not.
            if not isinstance(value, float) or not math.isfinite(value) or abs(value) == 0.0:
                return False
            return kind is ScalarKind.F64 or round_f32(value) == value
        case ScalarKind.BOOL:
            return isinstance(value, bool)
        case ScalarKind.DATE:
            return isinstance(value, dt.date) and not isinstance(value, dt.datetime)
        case ScalarKind.DATETIME:
            # Stored moments have milliseconds; a finer one equals none and lies between two.
            aware = isinstance(value, dt.datetime) and value.tzinfo is not None
            return aware and value.microsecond % 1000 == 0
        case _:
            return kind is ScalarKind.STRING and isinstance(value, str)
