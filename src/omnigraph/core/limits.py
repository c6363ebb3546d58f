"""Every maximum of the engine, named in one place, units last."""

from typing import Final

KIB: Final = 1024
MIB: Final = 1024 * KIB
GIB: Final = 1024 * MIB

# Writes
PUBLISHER_RETRY_BUDGET: Final = 5
"""Attempts of one publish while all expectations still hold."""
REPREPARE_ATTEMPTS_MAX: Final = 32
"""How often a relaxed write is prepared when what it read keeps moving."""
MUTATION_ROWS_MAX: Final = 100_000
"""Rows one mutation may stage per type; a load has no ceiling."""
MUTATION_BYTES_DEFAULT: Final = 256 * MIB
"""Arrow bytes one mutation may stage, unless the settings say otherwise."""
BLOB_RANGE_BYTES_MAX: Final = 4 * MIB
"""Bytes one read of a blob returns."""
EXTERNAL_BLOB_URI_BYTES_MAX: Final = 65_536
"""Bytes of the address of one external blob."""
EXTERNAL_BLOB_OBJECT_BYTES_MAX: Final = 256 * MIB
"""Bytes of one external blob that is copied in; it passes through the memory of one task."""
EXTERNAL_BLOB_BATCH_BYTES_MAX: Final = 32 * MIB
"""Bytes of external blobs a load holds at once, unless one alone has more."""
EXTERNAL_BLOB_CACHE_BYTES: Final = 16 * MIB
"""Bytes of external blobs that one task or mutation remembers, so that a source named by several rows is read
once.
"""
EXTERNAL_BLOB_THREADS: Final = 8
"""Requests for external blobs that one task or mutation has under way."""
EXTERNAL_BLOB_WAIT_S_MAX: Final = 60.0
"""How long an answer of a web server may take."""
VIOLATIONS_REPORTED_MAX: Final = 100
"""Constraint violations listed in one error; the total is always given."""
KEY_PROBE_CHUNK_ROWS: Final = 4_096
"""Ids in one `IN` list when keys are probed without an index structure."""

# Merges
MERGE_STAGE_BATCH_ROWS: Final = 8_192
"""Rows per flush of merge staging."""
MERGE_HELD_ROWS_MAX: Final = 1_024
MERGE_HELD_BYTES_MAX: Final = 1 * MIB
"""Rows of one table that a merge reads once and keeps in memory until they are written; more are streamed."""
CONFLICT_EDGES_SHOWN_MAX: Final = 100
"""Edges a conflict about a node names; all of them follow the choice."""
MERGE_CONFLICTS_REPORTED_MAX: Final = 100
"""Conflicts listed in one error; the total is always given."""

# Recovery
SIDECAR_BYTES_MAX: Final = 16 * MIB
"""A larger recovery note is refused as malformed."""
QUEUE_WAIT_S_MAX: Final = 600.0
"""How long a write waits for other writes of its own process to the same tables."""
LEASE_WAIT_S_MAX: Final = 60.0
"""How long a write waits for the writers of other processes."""
LEASE_OPEN_WAIT_S_MAX: Final = 2.0
"""How long an open waits for the lease before it leaves pending recovery to the next write."""
LEASE_SHARED_MS_MAX: Final = 100
"""How long the threads of one process may keep the lease by overlapping before other processes get a turn."""
LEASE_POLL_MS_MIN: Final = 0.2
LEASE_POLL_MS_MAX: Final = 5.0
LEASE_FILE_POLL_MS_MAX: Final = 2.0
"""The pauses between two looks at a lease that another process holds. They grow from the first number to the
second, on a local disk to the third: there a look costs next to nothing, and writes take milliseconds.
"""
LEASE_EXPIRY_S: Final = 15
"""Object stores: a lease not renewed for this long is free. It is renewed three times as often."""
LEASE_CLOCK_SKEW_S_MAX: Final = 5
"""Object stores: how far the clocks of two writers may differ."""

PIN_EXPIRY_S: Final = 900
"""A pin not renewed for this long has no owner. It is renewed three times as often."""

LEFTOVER_SECONDS_DEFAULT: Final = 24 * 60 * 60
"""A file that nothing names and that is younger may belong to a write under way (a setting)."""
CLEANUP_BATCH_FILES: Final = 512
"""Objects a cleanup removes before it lets a writer pass, or looks whether it was stopped."""

# History
REQUEST_KEY_HOURS: Final = 24
"""How long the key of a write answers the same request; afterwards it may be used again."""
REQUEST_KEY_CHARACTERS_MAX: Final = 200
COMMITS_BEHIND_MAX: Final = 1_024
"""So many commits in a row with a time before the one that is sought end a search: one writer's clock may
be behind.
"""
COMMIT_PROJECTION_BATCH: Final = 64
"""Commits kept back before the projections are appended."""

# Indexes
UNCOVERED_FRAGMENTS_MAX: Final = 32
"""Fragments without index coverage that make the reconciler run after a publish."""
SMALL_FRAGMENTS_MAX: Final = 32
"""This many fragments of about one size are written as one: each fragment makes every commit of its table
some microseconds slower.
"""
FOLDED_ROWS_MAX: Final = 64 * 1024
FOLDED_BYTES_MAX: Final = 32 * MIB
"""The reconciler rewrites no more than this after a write. What is larger waits for a time of its own."""
COMPACTED_ROWS_MAX: Final = 1024 * 1024
"""Rows of one fragment that an optimization writes."""
WORN_SHARE_MIN: Final = 0.1
"""An optimization writes a large fragment again when this part of its rows is deleted."""
INDEX_SEGMENTS_MAX: Final = 8
"""Parts an index may have after an optimization: every lookup asks each of them."""
BULK_INDEX_ROWS_MIN: Final = 10_000
"""A load with this many rows for one table builds the declared indexes of the table at its end."""

# Languages
SOURCE_BYTES_MAX: Final = 64 * MIB
"""A larger schema or query file is refused unread."""
SOURCE_TOKENS_MAX: Final = 2_000_000
"""Words and symbols of one schema or query file; bounds the memory of a parse at a few hundred megabytes."""
SOURCE_NESTING_MAX: Final = 100
"""Brackets open at one place of a schema or query file."""
DIAGNOSTICS_REPORTED_MAX: Final = 100
"""Findings listed per file; the total is always given."""
CANDIDATES_MAX: Final = 3
"""Near names offered for an unknown one."""

# Bulk work: above either bound it runs on Spark
BULK_ROWS_IN_PROCESS_MAX: Final = 5_000_000
BULK_BYTES_IN_PROCESS_MAX: Final = 1 * GIB

# Concurrency defaults (settings may raise or lower them)
LOAD_CONCURRENCY_DEFAULT: Final = 8
MAINTENANCE_CONCURRENCY_DEFAULT: Final = 8
MAINTENANCE_BYTES_DEFAULT: Final = 1 * GIB
"""Rows that upkeep may hold in memory, all tables together (a setting)."""
CACHE_MEMORY_SHARE: Final = 0.25
"""Share of the machine's memory the read caches may fill when no bound is set."""
CACHE_BYTES_FALLBACK: Final = 1 * GIB
"""Bound of the read caches when the machine does not tell its memory."""
CACHED_ROWS_MIN: Final = 20_000
"""Read structures over fewer rows are not kept in files: making them again costs less than finding them."""
VERSIONS_KEPT_MAX: Final = 16
"""Versions of one table that a handle keeps open: the newest, and those that running reads may still use."""
CACHED_GENERATIONS_MAX: Final = 3
"""States of one read structure kept in files, so that branches and older readers find theirs."""

# Queries
QUERY_MEMORY_SHARE: Final = 0.25
"""Share of the machine's memory that the rows and values of one query may fill when no bound is set."""
QUERY_MEMORY_FALLBACK: Final = 1 * GIB
"""That bound when the machine does not tell its memory."""
ARRAY_BYTES_MAX: Final = 2**31 - 1
"""Text of one column in one array: Arrow counts it with 32 bits."""
EMBED_DEADLINE_MS_DEFAULT: Final = 60_000
EMBED_TIMEOUT_MS_DEFAULT: Final = 30_000
EMBED_RETRY_ATTEMPTS_DEFAULT: Final = 4
EMBED_RETRY_BACKOFF_MS_DEFAULT: Final = 200
"""The time limits of embedding and of one request, the number of attempts, and the pause between them. All of
them are settings.
"""
EMBED_PAUSE_S_MAX: Final = 30.0
"""A provider that asks for a longer pause is not asked again."""
EMBED_ANSWER_BYTES_MAX: Final = 64 * MIB
"""Bytes of one answer of an embedding provider."""
EMBED_BATCH_TEXTS_MAX: Final = 128
"""Texts that a write gives an embedder at once."""

# Loads
QUICK_START_BYTES_MAX: Final = 64 * MIB
"""Inputs up to this size start a JVM shaped for a short command."""

# Server
REQUEST_BYTES_MAX: Final = 1 * MIB
"""Bytes of a request body that is one JSON document."""
REQUEST_NESTING_MAX: Final = 64
"""Brackets open at one place of a JSON body."""
REQUEST_PAUSE_S_MAX: Final = 30.0
"""A client that sends nothing of its body for so long is not waited for."""
REQUEST_BYTES_PER_S_MIN: Final = 1 * KIB
"""A client that sends its body more slowly, after the pause it may make, is not waited for either."""
PARSED_AT_ONCE_BYTES_MAX: Final = 4 * KIB
"""A JSON body up to this size is read by the event loop itself, and may be answered by it; a larger one could
hold up others.
"""
SERVER_READ_S_MAX: Final = 300
"""Seconds a read over a server may take, whatever it asks for."""
SERVER_READ_ROWS_MAX: Final = 10_000_000
"""Rows a read over a server may give, whatever it asks for."""
SERVER_READERS_DEFAULT: Final = 8
"""Reads of a server that run at the same time."""
SERVER_WRITERS_DEFAULT: Final = 64
"""Writes of a server that run at the same time. Most of them wait for the device or share a commit."""
SERVER_WAITING_PER_WORKER: Final = 8
"""Requests that may wait for each worker; the next one is told to come again."""
WRITES_PER_ACTOR_MAX: Final = 64
"""Writes of one actor under way at the same time."""
GRAPHS_OPENED_AT_ONCE: Final = 4
"""Graphs a server opens at the same time when it starts."""
RESPONSE_ROWS_AT_ONCE: Final = 4_096
"""Rows of a JSON answer that are encoded in one go."""
RESPONSE_BATCH_ROWS: Final = 65_536
"""Rows of one batch of an Arrow answer."""
DRAIN_S_DEFAULT: Final = 30
"""How long a server that stops lets streams go on."""
AT_HAND_NODES_MAX: Final = 16
"""Nodes that a query may touch and still be answered without another thread. Each may be a page that is read
from a mapped file.
"""
AT_HAND_BYTES_MAX: Final = 32 * KIB
"""Bytes of values of such an answer."""
