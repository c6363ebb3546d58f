from collections.abc import Set as AbstractSet
from typing import Any

class IndexSegmentDescription:
    uuid: str
    dataset_version_at_last_update: int
    fragment_ids: AbstractSet[int] | None
    index_version: int
    base_id: int | None

class IndexDescription:
    name: str
    index_type: str
    fields: list[int]
    field_names: list[str]
    segments: list[IndexSegmentDescription]
    details: dict[str, Any]
    total_size_bytes: int | None
