-- Version 3. An exposure has replicas, an access, a protocol, limits, and a token that may expire,
-- be replaced or be missing. What was reached by name or by token is reached so as before.
-- Run with foreign keys off: the table is made anew.

CREATE TABLE exposures_3 (
    id             INTEGER PRIMARY KEY AUTOINCREMENT,
    name           TEXT UNIQUE,
    token          BLOB UNIQUE CHECK (length(token) = 32),
    token_expires  INTEGER,
    previous       BLOB UNIQUE CHECK (length(previous) = 32),
    previous_until INTEGER,
    access         TEXT NOT NULL CHECK (access IN ('public', 'token', 'login')),
    protocol       TEXT NOT NULL CHECK (protocol IN ('http', 'http2', 'tcp', 'udp')),
    listen         TEXT,
    max_body       INTEGER,
    max_requests   INTEGER,
    max_sessions   INTEGER,
    rate           INTEGER,
    sticky         INTEGER NOT NULL CHECK (sticky IN (0, 1)),
    created        INTEGER NOT NULL,
    CHECK (token IS NOT NULL OR (token_expires IS NULL AND previous IS NULL)),
    CHECK ((previous IS NULL) = (previous_until IS NULL)),
    CHECK ((listen IS NULL) = (protocol IN ('http', 'http2')))
) STRICT;

INSERT INTO exposures_3
SELECT id, name, token, NULL, NULL, NULL, 'public', 'http', NULL, NULL, NULL, NULL, NULL, 0, created
FROM exposures;

-- Numbers of exposures that were removed are not given again either.
DELETE FROM sqlite_sequence WHERE name = 'exposures_3';
INSERT INTO sqlite_sequence SELECT 'exposures_3', seq FROM sqlite_sequence WHERE name = 'exposures';

CREATE TABLE replicas (
    exposure  INTEGER NOT NULL REFERENCES exposures (id) ON DELETE CASCADE,
    position  INTEGER NOT NULL CHECK (position BETWEEN 0 AND 15),
    node      BLOB NOT NULL REFERENCES nodes (id) ON DELETE CASCADE,
    transport TEXT NOT NULL CHECK (transport IN ('tcp', 'udp')),
    port      INTEGER NOT NULL CHECK (port BETWEEN 1 AND 65535),
    container TEXT,
    label     TEXT,
    PRIMARY KEY (exposure, position),
    CHECK (container IS NULL OR label IS NULL)
) STRICT, WITHOUT ROWID;
CREATE INDEX replicas_by_node ON replicas (node);

INSERT INTO replicas SELECT id, 0, node, 'tcp', port, NULL, NULL FROM exposures;

DROP TABLE exposures;
ALTER TABLE exposures_3 RENAME TO exposures;

-- An exposure goes with the last of its replicas.
CREATE TRIGGER exposures_have_replicas AFTER DELETE ON replicas
WHEN NOT EXISTS (SELECT 1 FROM replicas WHERE exposure = OLD.exposure)
BEGIN
    DELETE FROM exposures WHERE id = OLD.exposure;
END;
