"""Omnigraph: a typed property graph on Lance and Spark."""

import importlib

# What checkers of types take for `typing.TYPE_CHECKING`: the command comes through here before it can answer
# Ctrl-C, so nothing is imported that takes long enough to be interrupted.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from omnigraph.api.branches import BranchCreation
    from omnigraph.api.clones import clone
    from omnigraph.api.graph import Graph, init, open_read_only
    from omnigraph.api.graph import open_graph as open  # noqa: A004
    from omnigraph.api.texts import Text
    from omnigraph.branching.branches import BranchDeletion
    from omnigraph.branching.history import Diff
    from omnigraph.branching.merge_report import MergePreview, MergeReport
    from omnigraph.catalog.blobs import BlobReference
    from omnigraph.client import aio
    from omnigraph.client.remote import RemoteGraph, connect
    from omnigraph.client.spark import register_spark
    from omnigraph.core import errors, events
    from omnigraph.core.cancel import Cancellation
    from omnigraph.core.errors import OmnigraphError
    from omnigraph.core.settings import Settings
    from omnigraph.engine.entities.blob_cells import Blob
    from omnigraph.engine.read.explain import Explanation
    from omnigraph.engine.read.result import Rows
    from omnigraph.engine.search.embedding import Embedder
    from omnigraph.engine.write.requests import MutationResult
    from omnigraph.maintenance.cleanup_report import CleanupReport
    from omnigraph.maintenance.clone import CloneReport
    from omnigraph.maintenance.optimize import OptimizeReport
    from omnigraph.maintenance.repair import RepairReport
    from omnigraph.manifest.commit_record import CommitRecord
    from omnigraph.notebook.picture import Picture, picture
    from omnigraph.pipeline.output.export import ExportReport
    from omnigraph.pipeline.report import LoadReport
    from omnigraph.recovery.verify import VerifyReport

__version__ = "0.1.0"

# Where each public name lives. Nothing is imported until it is asked for: `import omnigraph` stays light.
_HOMES: dict[str, str] = {
    "Blob": "omnigraph.engine.entities.blob_cells",
    "BlobReference": "omnigraph.catalog.blobs",
    "BranchCreation": "omnigraph.api.branches",
    "BranchDeletion": "omnigraph.branching.branches",
    "Cancellation": "omnigraph.core.cancel",
    "CleanupReport": "omnigraph.maintenance.cleanup_report",
    "CloneReport": "omnigraph.maintenance.clone",
    "OptimizeReport": "omnigraph.maintenance.optimize",
    "RepairReport": "omnigraph.maintenance.repair",
    "CommitRecord": "omnigraph.manifest.commit_record",
    "Diff": "omnigraph.branching.history",
    "Embedder": "omnigraph.engine.search.embedding",
    "Explanation": "omnigraph.engine.read.explain",
    "ExportReport": "omnigraph.pipeline.output.export",
    "Graph": "omnigraph.api.graph",
    "LoadReport": "omnigraph.pipeline.report",
    "MergePreview": "omnigraph.branching.merge_report",
    "MergeReport": "omnigraph.branching.merge_report",
    "MutationResult": "omnigraph.engine.write.requests",
    "OmnigraphError": "omnigraph.core.errors",
    "Picture": "omnigraph.notebook.picture",
    "RemoteGraph": "omnigraph.client.remote",
    "Rows": "omnigraph.engine.read.result",
    "Settings": "omnigraph.core.settings",
    "Text": "omnigraph.api.texts",
    "VerifyReport": "omnigraph.recovery.verify",
    "clone": "omnigraph.api.clones",
    "connect": "omnigraph.client.remote",
    "init": "omnigraph.api.graph",
    "open": "omnigraph.api.graph",
    "open_read_only": "omnigraph.api.graph",
    "picture": "omnigraph.notebook.picture",
    "register_spark": "omnigraph.client.spark",
}
_MODULES: dict[str, str] = {
    "aio": "omnigraph.client.aio",
    "errors": "omnigraph.core.errors",
    "events": "omnigraph.core.events",
}
_RENAMED: dict[str, str] = {"open": "open_graph"}

__all__ = [
    "Blob",
    "BlobReference",
    "BranchCreation",
    "BranchDeletion",
    "Cancellation",
    "CleanupReport",
    "CloneReport",
    "CommitRecord",
    "Diff",
    "Embedder",
    "Explanation",
    "ExportReport",
    "Graph",
    "LoadReport",
    "MergePreview",
    "MergeReport",
    "MutationResult",
    "OmnigraphError",
    "OptimizeReport",
    "Picture",
    "RemoteGraph",
    "RepairReport",
    "Rows",
    "Settings",
    "Text",
    "VerifyReport",
    "__version__",
    "aio",
    "clone",
    "connect",
    "errors",
    "events",
    "init",
    "open",
    "open_read_only",
    "picture",
    "register_spark",
]


def __getattr__(name: str) -> "Any":
    """Import the home of a public name on first use."""
    if name in _MODULES:
        value: Any = importlib.import_module(_MODULES[name])
    elif name in _HOMES:
        value = getattr(importlib.import_module(_HOMES[name]), _RENAMED.get(name, name))
    else:
        raise AttributeError(f"module 'omnigraph' has no attribute '{name}'")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
