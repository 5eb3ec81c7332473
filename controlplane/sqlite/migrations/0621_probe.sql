-- +goose Up
-- What is written to find out whether anything can be.
CREATE TABLE probe (
  id INTEGER PRIMARY KEY CHECK (id = 1),
  n  INTEGER NOT NULL
) STRICT;

-- +goose Down
DROP TABLE probe;
