import ast
import inspect
import pickle
from pathlib import Path

import pytest

from omnigraph.core import errors
from omnigraph.core.errors import FACTS, KINDS, OmnigraphError, Retry
from omnigraph.core.errors.base import said
from omnigraph.core.errors.faults import CEILINGS

SOURCES = Path(inspect.getfile(errors)).parents[2]

# Sections 4.1 to 4.7 of the error specification, one line per section, without what clusters, export slots and
# formats of the past would need, and with our `cancelled`, `tag_*`, `load_not_*`,
# `merge_base_gone`.
SPECIFIED = [
    "usage",
    "bad_request",
    "query_syntax",
    "query_type",
    "query_not_selected",
    "wrong_query_kind",
    "mixed_mutation",
    "missing_parameter",
    "unknown_parameter",
    "parameter_type",
    "query_execution",
    "ambiguous_target",
    "schema_syntax",
    "schema_invalid",
    "unsupported_migration",
    "data_loss_not_allowed",
    "load_record",
    "constraint_violation",
    "external_blob_policy",
    "change_cursor_rejected",
    "unsupported_media_type",
    "method_not_allowed",
    "graph_not_found",
    "branch_not_found",
    "tag_not_found",
    "commit_not_found",
    "snapshot_not_found",
    "type_not_found",
    "entity_not_found",
    "blob_null",
    "stored_query_not_found",
    "profile_not_found",
    "alias_not_found",
    "server_not_found",
    "schema_contract_missing",
    "version_reclaimed",
    "manifest_conflict",
    "read_set_conflict",
    "commit_conflict",
    "key_conflict",
    "merge_conflicts",
    "merge_base_gone",
    "branch_exists",
    "tag_exists",
    "subject_tagged",
    "load_not_found",
    "route_not_found",
    "not_remote",
    "load_not_resumable",
    "clone_target",
    "branch_prefix_clash",
    "branch_has_children",
    "branches_block_schema_apply",
    "already_initialized",
    "initialization_claimed",
    "parentless_commit",
    "schema_boundary",
    "precondition_failed",
    "blob_precondition_failed",
    "idempotency_mismatch",
    "unauthorized",
    "actor_required",
    "actor_not_settable",
    "forbidden",
    "confirmation_required",
    "credentials_insecure",
    "policy_evaluation_failed",
    "resource_limit",
    "resource_busy",
    "too_many_requests",
    "blob_range",
    "deadline_exceeded",
    "recovery_required",
    "initialization_committed",
    "initialization_indeterminate",
    "recovery_note_unreadable",
    "drift",
    "change_feed_gap",
    "client_disconnected",
    "storage_transient",
    "storage_configuration",
    "storage_not_found",
    "storage_precondition",
    "storage_permanent",
    "storage_unknown",
    "corrupt",
    "io",
    "format_too_new",
    "blob_integrity",
    "external_blob_source",
    "embedding_provider",
    "network",
    "not_this_product",
    "internal",
    "cancelled",
]

# Names the other specifications use, and the kind each must have.
NAMES = {
    "QuerySyntaxError": "query_syntax",
    "QueryTypeError": "query_type",
    "MissingParameter": "missing_parameter",
    "UnknownParameter": "unknown_parameter",
    "ParameterTypeError": "parameter_type",
    "AmbiguousQuery": "query_not_selected",
    "WrongQueryKind": "wrong_query_kind",
    "TargetConflict": "ambiguous_target",
    "MutationShapeError": "mixed_mutation",
    "KeyImmutable": "constraint_violation",
    "PropertyValueError": "constraint_violation",
    "ConstraintViolation": "constraint_violation",
    "LoadFormatError": "load_record",
    "ExpectedVersionMismatch": "manifest_conflict",
    "RowLevelCasContention": "commit_conflict",
    "ReadSetConflict": "read_set_conflict",
    "KeyConflict": "key_conflict",
    "PreconditionFailed": "precondition_failed",
    "MergeConflicts": "merge_conflicts",
    "ResourceLimit": "resource_limit",
    "RecoveryRequired": "recovery_required",
    "SidecarSchemaError": "recovery_note_unreadable",
    "BranchNotFound": "branch_not_found",
    "SnapshotNotFound": "snapshot_not_found",
    "TypeAbsentAtSnapshot": "type_not_found",
    "SchemaSyntaxError": "schema_syntax",
    "SchemaRuleError": "schema_invalid",
    "SchemaCatalogError": "schema_invalid",
    "SchemaIdentityError": "schema_invalid",
    "MigrationUnsupported": "unsupported_migration",
    "MigrationBlocked": "branches_block_schema_apply",
    "SchemaDrift": "drift",
    "BlobPolicyError": "external_blob_policy",
    "BlobSourceError": "external_blob_source",
    "EmbedderError": "embedding_provider",
    "QueryRuntimeError": "query_execution",
}

FAMILIES = {
    errors.RequestError: ("query_type", "load_record", "constraint_violation", "usage"),
    errors.NotFoundError: ("graph_not_found", "version_reclaimed"),
    errors.ConflictError: ("manifest_conflict", "key_conflict", "precondition_failed", "branch_exists"),
    errors.PermissionDenied: ("forbidden", "actor_required"),
    errors.LimitError: ("resource_limit", "deadline_exceeded"),
    errors.InterruptedWrite: ("recovery_required", "drift"),
    errors.StorageError: ("storage_transient", "storage_not_found"),
}


def all_classes(cls: type[OmnigraphError] = OmnigraphError) -> set[type[OmnigraphError]]:
    return {cls}.union(*(all_classes(child) for child in cls.__subclasses__()))


def test_every_specified_kind_has_exactly_one_row() -> None:
    assert sorted(KINDS) == sorted(SPECIFIED)


def test_every_class_names_a_listed_kind() -> None:
    assert {cls.kind for cls in all_classes()} <= set(FACTS)


@pytest.mark.parametrize(("name", "kind"), NAMES.items())
def test_names_of_the_specifications_have_their_kind(name: str, kind: str) -> None:
    assert getattr(errors, name).kind == kind


@pytest.mark.parametrize(
    ("family", "kinds"), FAMILIES.items(), ids=lambda value: getattr(value, "__name__", "")
)
def test_families(family: type, kinds: tuple[str, ...]) -> None:
    for kind in kinds:
        assert issubclass(KINDS[kind].cls, family)


def test_all_public_classes_are_exported() -> None:
    public = {cls.__name__ for cls in all_classes() if cls.__module__.startswith("omnigraph.core.errors")}
    assert public <= set(errors.__all__)


@pytest.mark.slow
def test_no_module_raises_an_error_with_a_kind_outside_the_table() -> None:
    unlisted: list[str] = []
    for path in sorted(SOURCES.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id == "OmnigraphError"
            ):
                kind = node.args[0] if node.args else None
                if isinstance(kind, ast.Constant) and kind.value not in KINDS:
                    unlisted.append(f"{path}:{node.lineno}: {kind.value}")
    assert unlisted == []


@pytest.mark.parametrize(
    ("kind", "status", "code", "exit_status", "retry"),
    [
        ("usage", None, None, 2, "never"),
        ("query_syntax", 400, "bad_request", 1, "never"),
        ("ambiguous_target", 400, "bad_request", 2, "never"),
        ("data_loss_not_allowed", 400, "bad_request", 5, "never"),
        ("branch_not_found", 404, "not_found", 6, "never"),
        ("version_reclaimed", 410, None, 6, "never"),
        ("manifest_conflict", 409, "conflict", 3, "after_refresh"),
        ("commit_conflict", 409, "conflict", 3, "same_request"),
        ("key_conflict", 409, "conflict", 3, "never"),
        ("precondition_failed", 412, None, 4, "never"),
        ("blob_precondition_failed", 412, "conflict", 4, "never"),
        ("actor_required", 401, "unauthorized", 5, "never"),
        ("resource_limit", 413, "bad_request", 8, "never"),
        ("too_many_requests", 429, "too_many_requests", 8, "after_delay"),
        ("recovery_required", 503, None, 7, "after_recovery"),
        ("recovery_note_unreadable", 503, None, 7, "after_recovery"),
        ("drift", 409, "conflict", 7, "after_recovery"),
        ("storage_transient", 503, None, 1, "after_delay"),
        ("storage_precondition", 500, "internal", 1, "unknown"),
        ("internal", 500, "internal", 1, "never"),
    ],
)
def test_rows(kind: str, status: int | None, code: str | None, exit_status: int, retry: str) -> None:
    info = KINDS[kind]
    assert (info.http_status, info.code, info.exit_status, info.retry) == (status, code, exit_status, retry)


def test_something_may_have_happened_only_where_the_table_says_so() -> None:
    assert {kind for kind, info in KINDS.items() if not info.effect_free} == {
        "deadline_exceeded",
        "recovery_required",
        "initialization_committed",
        "initialization_indeterminate",
        "client_disconnected",
        "storage_precondition",
        "network",
    }


def test_the_body_of_a_lost_race_has_both_spellings() -> None:
    body = errors.ExpectedVersionMismatch(table_key="node:Ship", expected=7, actual=9).to_dict()
    assert body["code"] == "conflict"
    assert body["kind"] == "manifest_conflict"
    assert body["retry"] == "after_refresh"
    assert body["manifest_conflict"] == {"table_key": "node:Ship", "expected": 7, "actual": 9}
    assert body["published_dataset_version_conflict"] == {
        "entity_kind": "node",
        "type_name": "Ship",
        "expected_published_dataset_version": 7,
        "actual_published_dataset_version": 9,
    }


def test_the_body_of_a_key_conflict() -> None:
    error = errors.KeyConflict(entity_kind="node", type_name="Ship", entity_id="S1")
    assert error.to_dict() == {
        "error": "node type 'Ship' already has an entity with id 'S1'",
        "code": "conflict",
        "kind": "key_conflict",
        "hint": "use merge mode to update existing entities",
        "retry": "never",
        "key_conflict": {"entity_kind": "node", "type_name": "Ship", "entity_id": "S1"},
    }


def test_a_ceiling_names_resource_limit_and_actual() -> None:
    error = errors.ResourceLimit(
        resource="mutation_rows", limit=100_000, actual=100_001, type_name="Ship", hint="use load"
    )
    assert error.exit_status == 8
    assert error.message == "Ship: 100,001 rows in one mutation; at most 100,000 are allowed"
    assert error.to_dict()["resource_limit"] == {
        "resource": "mutation_rows",
        "limit": 100_000,
        "actual": 100_001,
        "type_name": "Ship",
    }


@pytest.mark.slow
def test_every_ceiling_has_words_for_people() -> None:
    """Of every name that a refusal is raised with somewhere in the sources."""
    named: set[str] = set()
    for path in SOURCES.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call):
                continue
            given = [each.value for each in node.keywords if each.arg == "resource"]
            if "over_limit" in ast.unparse(node.func) or "_refuse_size" in ast.unparse(node.func):
                given += node.args
            named |= {
                value.value
                for each in given
                for value in ast.walk(each)
                if isinstance(value, ast.Constant) and isinstance(value.value, str)
            }
    assert named == set(CEILINGS)
    assert not any("_" in words for words in CEILINGS.values())


def test_violations_are_capped_and_counted_and_the_first_is_the_headline() -> None:
    broken = [
        errors.Violation(
            "endpoint", "edge", "Knows", f"k{n}", message=f"Knows k{n}: no such Person", line=n + 1
        )
        for n in range(150)
    ]
    error = errors.ConstraintViolation(violations=broken)
    body = error.to_dict()
    assert error.rule == "endpoint"
    assert body["error"] == "line 1: Knows k0: no such Person (and 149 more)"
    assert body["constraint"]["entity_id"] == "k0"
    assert body["source_error"]["line"] == 1
    assert len(body["constraints"]) == 100
    assert body["constraints_total"] == 150


def test_a_violation_without_a_broken_rule_is_a_programming_error() -> None:
    with pytest.raises(ValueError, match="at least one"):
        errors.ConstraintViolation(violations=[])


def test_candidates_are_at_most_three() -> None:
    body = errors.BranchNotFound("mian", candidates=["main", "main2", "main3", "main4"]).to_dict()
    assert body["candidates"] == ["main", "main2", "main3"]
    assert body["hint"] == "did you mean 'main'?"


def test_a_source_failure_carries_its_place_and_every_finding() -> None:
    error = errors.QueryTypeError(
        "Person has no property 'nmae'",
        source_error=errors.SourceError(line=3, column=14, file="people.gq", lint_code="T6"),
        candidates=["name"],
        diagnostics=["first", "second"],
    )
    assert error.to_dict()["source_error"] == {
        "line": 3,
        "column": 14,
        "file": "people.gq",
        "lint_code": "T6",
    }
    assert error.to_dict()["candidates"] == ["name"]
    assert error.diagnostics == ("first", "second")


@pytest.mark.parametrize(("writing", "retry"), [(True, Retry.UNKNOWN), (False, Retry.SAME_REQUEST)])
def test_a_time_limit_is_safe_to_repeat_only_for_reads(*, writing: bool, retry: Retry) -> None:
    assert errors.DeadlineExceeded("too slow", writing=writing).retry is retry
    assert errors.NetworkError("no answer", writing=writing).retry is retry


def test_a_kind_of_a_newer_server_is_kept_and_treated_as_internal() -> None:
    error = OmnigraphError("from_the_future", "hm", retry="after_delay", details={"x": {"y": 1}})
    assert error.to_dict() == {
        "error": "hm",
        "code": "internal",
        "kind": "from_the_future",
        "retry": "after_delay",
        "x": {"y": 1},
    }
    assert error.exit_status == 1


@pytest.mark.parametrize(
    "error",
    [
        errors.ExpectedVersionMismatch(table_key="edge:Knows", expected=1, actual=2),
        errors.LoadFormatError(line=7, message="not JSON", file="people.jsonl"),
        errors.ConstraintViolation(
            violations=[errors.Violation("range", "node", "Person", "a", "age", "too old")]
        ),
        errors.SidecarSchemaError(
            object="__recovery/x.json", message="newer", found=9, max_supported_version=2
        ),
        OmnigraphError("from_the_future", "hm"),
    ],
    ids=lambda error: error.kind,
)
def test_an_error_travels_between_processes(error: OmnigraphError) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert copy.to_dict() == error.to_dict()


def test_a_load_error_says_where() -> None:
    assert str(errors.LoadFormatError(line=7, message="not JSON")) == "line 7: not JSON"
    assert str(errors.LoadFormatError(line=7, message="not JSON", file="p.jsonl")) == "p.jsonl:7: not JSON"
    assert str(errors.LoadFormatError(line=None, message="empty", file="p.jsonl")) == "p.jsonl: empty"


def test_the_text_of_an_error_ends_with_what_to_do_next() -> None:
    advised = errors.BadRequest("a load needs a mode", hint="one of append, merge")
    assert str(advised) == "a load needs a mode\nhint: one of append, merge"
    assert (advised.message, said(advised)) == ("a load needs a mode", "a load needs a mode")
    advised.hint = None
    assert str(advised) == "a load needs a mode"
    assert said(OSError("full")) == "full"
