-- Version 2. A node may be the hub's own machine, which has neither key nor token.
-- Run with foreign keys off: rows of other tables point at the table by its name.

CREATE TABLE nodes_2 (
    id               BLOB PRIMARY KEY CHECK (length(id) = 16),
    name             TEXT NOT NULL UNIQUE,
    key              BLOB UNIQUE CHECK (length(key) = 32),
    admitted_by      BLOB CHECK (length(admitted_by) = 32),
    created          INTEGER NOT NULL,
    epoch            INTEGER NOT NULL,
    generation       INTEGER NOT NULL,
    incarnation      BLOB CHECK (length(incarnation) = 16),
    presence         TEXT NOT NULL CHECK (presence IN ('connected', 'away')),
    presence_since   INTEGER NOT NULL,
    last_seen        INTEGER,
    revoked          INTEGER,
    targets_revision INTEGER NOT NULL,
    local            INTEGER NOT NULL CHECK (local IN (0, 1)),
    CHECK ((key IS NULL) = local AND (admitted_by IS NULL) = local)
) STRICT, WITHOUT ROWID;

INSERT INTO nodes_2
SELECT id, name, key, admitted_by, created, epoch, generation, incarnation, presence,
       presence_since, last_seen, revoked, targets_revision, 0
FROM nodes;

DROP TABLE nodes;
ALTER TABLE nodes_2 RENAME TO nodes;

CREATE UNIQUE INDEX nodes_local ON nodes (local) WHERE local = 1 AND revoked IS NULL;
