-- Version 1. Times are milliseconds since 1970 UTC; ids, keys and hashes are raw bytes.
-- The rules stand in hub-ledger. The constraints here repeat what must hold whatever happens.

CREATE TABLE hub (
    only_row   INTEGER PRIMARY KEY CHECK (only_row = 1),
    deployment BLOB NOT NULL CHECK (length(deployment) = 16)
) STRICT;

CREATE TABLE ca (
    only_row    INTEGER PRIMARY KEY CHECK (only_row = 1),
    certificate BLOB NOT NULL,
    sealed_key  BLOB NOT NULL
) STRICT;

CREATE TABLE join_tokens (
    hash               BLOB PRIMARY KEY CHECK (length(hash) = 32),
    purpose            TEXT NOT NULL CHECK (purpose = 'join'),
    automatic_approval INTEGER NOT NULL CHECK (automatic_approval IN (0, 1)),
    created            INTEGER NOT NULL,
    expires            INTEGER NOT NULL,
    uses               INTEGER NOT NULL CHECK (uses >= 1),
    uses_left          INTEGER NOT NULL CHECK (uses_left BETWEEN 0 AND uses)
) STRICT, WITHOUT ROWID;

CREATE TABLE nodes (
    id               BLOB PRIMARY KEY CHECK (length(id) = 16),
    name             TEXT NOT NULL UNIQUE,
    key              BLOB NOT NULL UNIQUE CHECK (length(key) = 32),
    admitted_by      BLOB NOT NULL CHECK (length(admitted_by) = 32),
    created          INTEGER NOT NULL,
    epoch            INTEGER NOT NULL,
    generation       INTEGER NOT NULL,
    incarnation      BLOB CHECK (length(incarnation) = 16),
    presence         TEXT NOT NULL CHECK (presence IN ('connected', 'away')),
    presence_since   INTEGER NOT NULL,
    last_seen        INTEGER,
    revoked          INTEGER,
    targets_revision INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- Agent processes that a later one of the same node took over from.
CREATE TABLE superseded (
    node        BLOB NOT NULL REFERENCES nodes (id) ON DELETE CASCADE,
    incarnation BLOB NOT NULL CHECK (length(incarnation) = 16),
    epoch       INTEGER NOT NULL,
    PRIMARY KEY (node, incarnation)
) STRICT, WITHOUT ROWID;

CREATE TABLE certificates (
    serial     BLOB PRIMARY KEY CHECK (length(serial) = 16),
    node       BLOB NOT NULL REFERENCES nodes (id) ON DELETE CASCADE,
    key        BLOB NOT NULL CHECK (length(key) = 32),
    not_before INTEGER NOT NULL,
    not_after  INTEGER NOT NULL,
    recorded   INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX certificates_by_key ON certificates (key);
CREATE INDEX certificates_by_node ON certificates (node);

-- AUTOINCREMENT: the number of a removed exposure is never given again.
CREATE TABLE exposures (
    id      INTEGER PRIMARY KEY AUTOINCREMENT,
    node    BLOB NOT NULL REFERENCES nodes (id) ON DELETE CASCADE,
    port    INTEGER NOT NULL CHECK (port BETWEEN 1 AND 65535),
    name    TEXT UNIQUE,
    token   BLOB NOT NULL UNIQUE CHECK (length(token) = 32),
    created INTEGER NOT NULL
) STRICT;
CREATE INDEX exposures_by_node ON exposures (node);
