//! SQLSTATE and message of the errors of many statements.

use keyaki::{Database, Options, Session};

/// Tables, views and indexes that the tested statements refer to.
const SETUP: &str = "
    CREATE TABLE t (id INT PRIMARY KEY, name VARCHAR(3), small SMALLINT, d DATE, b BOOLEAN, n NUMERIC(4,2) NOT NULL DEFAULT 1);
    INSERT INTO t VALUES (1, 'one', 1, DATE '2024-01-01', true, 1.5), (2, 'two', 0, NULL, false, 2.5);
    CREATE UNIQUE INDEX t_name ON t (name);
    CREATE TABLE u (id INT PRIMARY KEY, x TEXT, y BIGINT);
    INSERT INTO u VALUES (1, 'abc', 9223372036854775807), (2, '12', 0);
    CREATE TABLE k (id INT PRIMARY KEY, u INT CONSTRAINT k_u REFERENCES u);
    INSERT INTO k VALUES (1, 1);
    CREATE VIEW v AS SELECT id, name FROM t";

/// Statement, SQLSTATE, message.
const STATEMENTS: &[(&str, &str, &str)] = &[
    // Syntax.
    ("SELEC 1", "42601", "syntax error at or near \"SELEC\", expected an SQL statement (line 1, column 1)"),
    ("SELECT", "42601", "syntax error at end of input, expected an expression"),
    ("SELECT 1 FROM", "42601", "syntax error at end of input, expected identifier"),
    ("SELECT (1", "42601", "syntax error at end of input, expected )"),
    ("SELECT 'abc", "42601", "unterminated string literal (line 1, column 8)"),
    ("SELECT \"abc", "42601", "unterminated quoted identifier (line 1, column 8)"),
    ("SELECT 1;\n  SELECT 2 +", "42601", "expected one statement, found 2"),
    (
        "SELECT * FROM t WHERE (id = 1 ORDER BY id",
        "42601",
        "syntax error at or near \"ORDER\", expected ) (line 1, column 31)",
    ),
    ("", "42601", "the text has no statement"),
    (
        "PIN INDEX t_name extra",
        "42601",
        "syntax error at or near \"extra\", expected end of statement (line 1, column 18)",
    ),
    ("WARM t", "42601", "syntax error at or near \"t\", expected one of TABLE or INDEX (line 1, column 6)"),
    ("CHECK t", "42601", "syntax error at or near \"t\", expected one of DATABASE or TABLE (line 1, column 7)"),
    ("BACKUP DATABASE 'x'", "42601", "syntax error at or near \"'x'\", expected TO (line 1, column 17)"),
    ("EXPORT TABLE t", "42601", "syntax error at or near \"TABLE\", expected DATABASE (line 1, column 8)"),
    (
        "IMPORT DATABASE 'a' extra",
        "42601",
        "syntax error at or near \"extra\", expected end of statement (line 1, column 21)",
    ),
    ("CHECK TABLE v", "42809", "\"v\" is a view, not a table"),
    ("CHECK TABLE nowhere", "42P01", "relation \"nowhere\" does not exist"),
    ("COPY t FROM STDIN", "0A000", "not supported: COPY FROM STDIN without a client (use FROM '/dev/stdin')"),
    (
        "COPY t FROM 5",
        "42601",
        "syntax error at or near \"5\", expected the path of a file in quotes (line 1, column 13)",
    ),
    (
        "COPY t FROM 'f' (COLOUR red)",
        "42601",
        "option COLOUR not recognized by COPY (it has FORMAT, HEADER, DELIMITER, NULL, QUOTE, ESCAPE, SKIP, COMMENT, \
         IGNORE_ERRORS, ALLOW_QUOTED_NULLS, DATEFORMAT, TIMESTAMPFORMAT, COMPRESSION, ROW_GROUP_SIZE, ENCODING, NULLSTR, PARTITION_BY, OVERWRITE_OR_IGNORE)",
    ),
    ("COPY t FROM 'f' (HEADR true)", "42601", "option HEADR not recognized by COPY (perhaps you meant HEADER)"),
    (
        "COPY t FROM 'f' (FORMAT xml)",
        "22023",
        "invalid value for parameter \"FORMAT\": \"xml\" (expected parquet, csv, json or tbl)",
    ),
    ("COPY t FROM 'f' (FORMAT csv, FORMAT csv)", "42601", "option FORMAT specified more than once"),
    ("SELECT *", "42601", "SELECT * with no tables specified is not valid"),
    ("VALUES (1, 2), (3)", "42601", "VALUES lists must all be the same length"),
    ("SELECT 1 UNION SELECT 1, 2", "42601", "each UNION query must have the same number of columns"),
    ("SELECT 1 INTERSECT SELECT 1, 2", "42601", "each INTERSECT query must have the same number of columns"),
    (
        "INSERT INTO t (id) VALUES (3, 'x')",
        "42601",
        "INSERT has more expressions than target columns (2 expressions, 1 columns)",
    ),
    (
        "INSERT INTO t (id, name) VALUES (3)",
        "42601",
        "INSERT has more target columns than expressions (1 expressions, 2 columns)",
    ),
    ("UPDATE t SET name = 'a', name = 'b'", "42601", "multiple assignments to same column \"name\""),
    ("SELECT (SELECT id, name FROM t)", "42601", "subquery must return only one column"),
    ("SELECT id IN (SELECT id, name FROM t) FROM t", "42601", "subquery must return only one column"),
    ("SELECT (id, name) IN (SELECT id FROM t) FROM t", "42601", "subquery has too few columns"),
    ("SELECT (id, name) = (id, name, 1) FROM t", "42601", "unequal number of entries in row expressions"),
    ("SELECT width_bucket(1, 2, 2, 3)", "22000", "lower bound cannot equal upper bound"),
    // Names.
    ("SELECT * FROM nowhere", "42P01", "relation \"nowhere\" does not exist"),
    ("SELECT * FROM public.nowhere", "42P01", "relation \"nowhere\" does not exist"),
    ("SELECT * FROM other.t", "42P01", "relation \"other.t\" does not exist"),
    ("SELECT * FROM elsewhere.public.t", "42P01", "relation \"elsewhere.public.t\" does not exist"),
    ("INSERT INTO nowhere VALUES (1)", "42P01", "relation \"nowhere\" does not exist"),
    ("UPDATE nowhere SET x = 1", "42P01", "relation \"nowhere\" does not exist"),
    ("DELETE FROM nowhere", "42P01", "relation \"nowhere\" does not exist"),
    ("DROP TABLE nowhere", "42P01", "table \"nowhere\" does not exist"),
    ("DROP INDEX nowhere", "42704", "index \"nowhere\" does not exist"),
    ("DROP VIEW nowhere", "42P01", "view \"nowhere\" does not exist"),
    ("DROP TABLE v", "42809", "\"v\" is a view, not a table (use DROP VIEW)"),
    ("DROP VIEW t", "42809", "\"t\" is a table, not a view (use DROP TABLE)"),
    ("INSERT INTO v VALUES (1, 'x')", "42809", "\"v\" is a view, not a table"),
    ("WARM TABLE v", "42809", "\"v\" is a view, not a table"),
    ("UNPIN TABLE t", "55000", "table \"t\" is not pinned"),
    ("ANALYZE nowhere", "42P01", "relation \"nowhere\" does not exist"),
    ("CREATE TABLE t (x INT)", "42P07", "relation \"t\" already exists"),
    ("CREATE TABLE v (x INT)", "42P07", "relation \"v\" already exists"),
    ("CREATE INDEX t_name ON t (id)", "42P07", "relation \"t_name\" already exists"),
    ("CREATE VIEW t AS SELECT 1 AS x", "42P07", "relation \"t\" already exists"),
    (
        "CREATE TABLE keyaki_x (x INT)",
        "42939",
        "name \"keyaki_x\" is reserved: names starting with \"keyaki_\" are reserved for system views",
    ),
    ("CREATE TABLE a (__rowid INT)", "42939", "name \"__rowid\" is reserved: the database uses it in its own queries"),
    ("CREATE TABLE \"\" (x INT)", "42602", "invalid name \"\": names have 1 to 255 bytes"),
    ("CREATE TABLE a (x INT, x INT)", "42701", "column \"x\" specified more than once"),
    ("CREATE TABLE a AS SELECT id, id FROM t", "42701", "column \"id\" specified more than once"),
    ("CREATE VIEW w AS SELECT t.id, u.id FROM t, u", "42701", "column \"id\" specified more than once"),
    ("INSERT INTO t (id, id) VALUES (1, 2)", "42701", "column \"id\" specified more than once"),
    ("CREATE INDEX i ON t (nix)", "42703", "column \"nix\" does not exist"),
    ("CREATE INDEX i ON t (id, id)", "42701", "column \"id\" specified more than once"),
    ("DROP TABLE t", "2BP01", "cannot drop \"t\" because view \"v\" depends on it (drop the view first)"),
    ("SELECT nix FROM t", "42703", "column \"nix\" does not exist"),
    ("SELECT nam FROM t", "42703", "column \"nam\" does not exist"),
    ("SELECT t.nix FROM t", "42703", "column \"t.nix\" does not exist"),
    ("SELECT u.id FROM t", "42P01", "missing FROM-clause entry for table \"u\""),
    ("SELECT Name, \"Name\" FROM t", "42703", "column \"Name\" does not exist"),
    ("SELECT id FROM t JOIN u ON t.id = u.id", "42702", "column reference \"id\" is ambiguous"),
    ("SELECT t.id FROM t JOIN u USING (nix)", "42703", "column \"nix\" does not exist"),
    ("SELECT * FROM t, t", "42712", "table name \"t\" specified more than once"),
    ("SELECT * FROM t AS a, u AS a", "42712", "table name \"a\" specified more than once"),
    ("WITH a AS (SELECT 1), a AS (SELECT 2) SELECT * FROM a", "42712", "table name \"a\" specified more than once"),
    ("SELECT x.a FROM (SELECT 1 AS a, 2 AS a) AS x", "42702", "column reference \"a\" is ambiguous"),
    ("UPDATE t SET nix = 1", "42703", "column \"nix\" of relation \"t\" does not exist"),
    ("UPDATE t SET name = nix", "42703", "column \"nix\" does not exist"),
    ("DELETE FROM t WHERE nix = 1", "42703", "column \"nix\" does not exist"),
    ("INSERT INTO t (nix) VALUES (1)", "42703", "column \"nix\" of relation \"t\" does not exist"),
    ("SELECT nix(1)", "42883", "function nix(...) does not exist"),
    ("SELECT uper(name) FROM t", "42883", "function uper(...) does not exist"),
    ("SELECT abs(name) FROM t", "42883", "function abs(text) does not exist"),
    ("SELECT abs()", "42883", "function abs() does not exist"),
    ("SELECT abs(1, 2)", "42883", "function abs(bigint, bigint) does not exist"),
    ("SELECT sum(name) FROM t", "42883", "function sum(text) does not exist"),
    ("SELECT d + b FROM t", "42883", "operator does not exist: date + boolean"),
    ("SELECT name + 1 FROM t", "42883", "operator does not exist: text + bigint"),
    ("SELECT id LIKE 'x' FROM t", "42883", "operator does not exist: integer LIKE text"),
    ("SELECT -name FROM t", "42883", "operator does not exist: - text"),
    ("SELECT NOT id FROM t", "42804", "argument of NOT must be type boolean, not type integer"),
    ("SELECT * FROM generate(1)", "42883", "function generate(...) does not exist"),
    ("SET keyaki.nix = 1", "42704", "unrecognized configuration parameter \"keyaki.nix\""),
    ("SHOW nix", "42704", "unrecognized configuration parameter \"nix\""),
    (
        "SET keyaki.join = 'both'",
        "22023",
        "invalid value for parameter \"keyaki.join\": \"both\" (expected one of 'auto', 'index', 'scan')",
    ),
    (
        "SET keyaki.cache_governor = maybe",
        "22023",
        "invalid value for parameter \"keyaki.cache_governor\": \"maybe\" (expected one of 'on', 'off')",
    ),
    (
        "SET datafusion.execution.batch_size = 'many'",
        "22023",
        "invalid value for parameter \"datafusion.execution.batch_size\": \"many\" (expected a value of the setting's type, see DataFusion's configuration settings)",
    ),
    ("SET datafusion.execution.nix = 1", "42704", "unrecognized configuration parameter \"datafusion.execution.nix\""),
    (
        "SET datafusion.catalog.default_schema = 'x'",
        "42704",
        "unrecognized configuration parameter \"datafusion.catalog.default_schema\"",
    ),
    // Clauses.
    (
        "SELECT id, count(*) FROM t GROUP BY name",
        "42803",
        "column \"t.id\" must appear in the GROUP BY clause or be used in an aggregate function",
    ),
    (
        "SELECT name FROM t HAVING id > 1",
        "42803",
        "column \"t.name\" must appear in the GROUP BY clause or be used in an aggregate function",
    ),
    ("SELECT id FROM t WHERE count(*) > 1", "42803", "aggregate functions are not allowed in WHERE (use HAVING)"),
    ("SELECT sum(count(*)) FROM t", "42803", "aggregate function calls cannot be nested"),
    ("SELECT id FROM t ORDER BY 5", "42P10", "ORDER BY position 5 is not in select list"),
    (
        "SELECT DISTINCT id FROM t ORDER BY name",
        "42P10",
        "for SELECT DISTINCT, ORDER BY expressions must appear in select list: t.name",
    ),
    ("SELECT id FROM t WHERE id", "42804", "argument of WHERE must be type boolean, not type integer"),
    (
        "SELECT id FROM t LIMIT -1",
        "22023",
        "invalid value for parameter \"LIMIT\": \"-1\" (expected a number of rows from 0)",
    ),
    (
        "SELECT id FROM t OFFSET -1",
        "22023",
        "invalid value for parameter \"OFFSET\": \"-1\" (expected a number of rows from 0)",
    ),
    ("SELECT id FROM t LIMIT 'a'", "22P02", "invalid input syntax for type bigint: \"a\""),
    ("SELECT id FROM t LIMIT true", "42804", "argument of LIMIT must be type bigint, not type boolean"),
    ("SELECT * FROM (VALUES (1, 2)) AS a (x, y, z)", "42P10", "table has 2 columns available but 3 columns specified"),
    ("SELECT (SELECT id FROM t)", "21000", "more than one row returned by a subquery used as an expression"),
    (
        "SELECT (SELECT max(n) FROM (SELECT count(*) AS n FROM t WHERE t.id > q.id GROUP BY ROLLUP (name)) r) FROM u AS q",
        "0A000",
        "not supported: a correlated subquery with GROUPING SETS",
    ),
    ("SELECT sum(id) OVER w FROM t", "42000", "window \"w\" does not exist"),
    ("SELECT $1", "42P02", "there is no parameter $1"),
    ("SELECT ?, $1", "42601", "a statement uses either ? or $1, $2, … for its parameters"),
    ("PREPARE twice AS SELECT $0", "42601", "invalid parameter \"$0\": parameters are $1 to $65535, or ?"),
    ("EXECUTE unknown(1)", "26000", "prepared statement \"unknown\" does not exist"),
    ("DEALLOCATE unknown", "26000", "prepared statement \"unknown\" does not exist"),
    ("PREPARE p AS CREATE TABLE q (a INT)", "0A000", "not supported: PREPARE of CREATE TABLE q"),
    // Types and values.
    ("SELECT 1 / 0", "22012", "division by zero"),
    ("SELECT id / (id - 1) FROM t", "22012", "division by zero"),
    ("SELECT id FROM t WHERE 1 / (id - 1) = 1", "22012", "division by zero"),
    ("SELECT id % 0 FROM t", "22012", "division by zero"),
    ("SELECT 1.5 / 0", "22012", "division by zero"),
    ("SELECT n / (small - 1) FROM t", "22012", "division by zero"),
    ("SELECT CAST('abc' AS INT)", "22P02", "invalid input syntax for type integer: \"abc\""),
    ("SELECT x::INT FROM u", "22P02", "invalid input syntax for type integer: \"abc\""),
    ("SELECT id FROM u WHERE x::INT = 12", "22P02", "invalid input syntax for type integer: \"abc\""),
    ("SELECT '99999999999'::INT", "22003", "value \"99999999999\" is out of range for type integer"),
    ("SELECT 99999999999::INT", "22003", "value \"99999999999\" is out of range for type integer"),
    ("SELECT y::INT FROM u", "22003", "value \"9223372036854775807\" is out of range for type integer"),
    ("SELECT 'abc'::DATE", "22007", "invalid input syntax for type date: \"abc\""),
    ("SELECT x::DATE FROM u", "22007", "invalid input syntax for type date: \"abc\""),
    ("SELECT DATE 'abc'", "22007", "invalid input syntax for type date: \"abc\""),
    ("SELECT '2024-13-01'::TIMESTAMP", "22008", "timestamp out of range: \"2024-13-01\""),
    ("SELECT TIMESTAMP 'soon'", "22007", "invalid input syntax for type timestamp: \"soon\""),
    ("SELECT '{1,x}'::INT[]", "22P02", "invalid input syntax for type integer: \"x\""),
    ("SELECT '{1'::INT[]", "22P02", "invalid input syntax for type integer[]: \"{1\""),
    ("SELECT '{3000000000}'::INT[]", "22003", "value \"3000000000\" is out of range for type integer"),
    ("SELECT ARRAY[70000]::SMALLINT[]", "22003", "value \"70000\" is out of range for type smallint"),
    ("SELECT 1::INT[]", "42846", "cannot cast type bigint to integer[]"),
    ("SELECT ARRAY[1] @> 1", "42883", "operator does not exist: bigint[] @> bigint"),
    ("SELECT min(ARRAY[1])", "0A000", "not supported: function min of arrays (use ORDER BY with LIMIT 1)"),
    ("SELECT INTERVAL 'soon'", "22007", "invalid input syntax for type interval: \"soon\""),
    ("SELECT 'maybe'::BOOLEAN", "22P02", "invalid input syntax for type boolean: \"maybe\""),
    ("SELECT 'abc'::NUMERIC(4,2)", "22P02", "invalid input syntax for type numeric(4,2): \"abc\""),
    ("SELECT 12345::NUMERIC(4,2)", "22003", "value \"12345.00\" is out of range for type numeric"),
    ("SELECT '12345'::NUMERIC(4,2)", "22003", "value \"12345\" is out of range for type numeric(4,2)"),
    ("SELECT 'abc'::DOUBLE PRECISION", "22P02", "invalid input syntax for type double precision: \"abc\""),
    ("SELECT true::DATE", "42846", "cannot cast type boolean to date"),
    (
        "SELECT 1 WHERE id = 'abc' FROM t",
        "42601",
        "syntax error at or near \"FROM\", expected end of statement (line 1, column 27)",
    ),
    ("SELECT id FROM t WHERE id = 'abc'", "22P02", "invalid input syntax for type integer: \"abc\""),
    ("SELECT id FROM t WHERE d = 'abc'", "22007", "invalid input syntax for type date: \"abc\""),
    ("SELECT sqrt(-1)", "2201F", "cannot take square root of a negative number"),
    ("SELECT ln(0)", "2201E", "cannot take logarithm of zero"),
    ("SELECT power(10, 400)", "22003", "double precision out of range"),
    ("SELECT asin(2)", "22003", "argument of asin out of range"),
    ("SELECT 'x' LIKE 'x\\'", "22025", "LIKE pattern must not end with escape character"),
    (
        "SELECT repeat('x', 3000000000)",
        "22000",
        "string size overflow on repeat, max size is 2147483647, but got 3000000000",
    ),
    ("SELECT x ~ '(' FROM u", "22000", "invalid regular expression: unclosed group"),
    ("SELECT substr('abc', 1, -1)", "22000", "negative count not allowed: -1"),
    (
        "SELECT date_trunc('eon', d) FROM t",
        "22023",
        "invalid value for parameter \"unit\": \"eon\" (expected microseconds, milliseconds, second, minute, hour, day, week, month, quarter, year, decade, century or millennium)",
    ),
    ("SELECT chr(-1)", "22000", "invalid Unicode scalar value: -1"),
    (
        "INSERT INTO t (id) VALUES (NULL)",
        "23502",
        "null value in column \"id\" of relation \"t\" violates not-null constraint",
    ),
    (
        "INSERT INTO t (id, n) VALUES (3, NULL)",
        "23502",
        "null value in column \"n\" of relation \"t\" violates not-null constraint",
    ),
    (
        "INSERT INTO t (id) VALUES (1)",
        "23505",
        "duplicate key value violates unique constraint \"t_pkey\": Key (id)=(1) already exists",
    ),
    (
        "INSERT INTO t (id) VALUES (3), (4), (3)",
        "23505",
        "duplicate key value violates unique constraint \"t_pkey\": Key (id)=(3) already exists",
    ),
    (
        "INSERT INTO t (id, name) VALUES (3, 'one')",
        "23505",
        "duplicate key value violates unique constraint \"t_name\": Key (name)=(one) already exists",
    ),
    (
        "UPDATE t SET id = 2 WHERE id = 1",
        "23505",
        "duplicate key value violates unique constraint \"t_pkey\": Key (id)=(2) already exists",
    ),
    (
        "UPDATE t SET name = 'same'",
        "22001",
        "value too long for type character varying(3): \"same\" has 4 characters (column \"name\")",
    ),
    (
        "UPDATE t SET name = 'abc'",
        "23505",
        "duplicate key value violates unique constraint \"t_name\": Key (name)=(abc) already exists",
    ),
    (
        "ALTER TABLE u ADD UNIQUE (lower(y))",
        "0A000",
        "not supported: expression lower(y) in a constraint (CREATE UNIQUE INDEX accepts expressions)",
    ),
    (
        "INSERT INTO t (id, name) VALUES (3, 'four')",
        "22001",
        "value too long for type character varying(3): \"four\" has 4 characters (column \"name\")",
    ),
    (
        "INSERT INTO t (id, small) VALUES (3, 70000)",
        "22003",
        "value \"70000\" is out of range for type smallint (column \"small\")",
    ),
    (
        "INSERT INTO t (id, small) VALUES (3, '70000')",
        "22003",
        "value \"70000\" is out of range for type smallint (column \"small\")",
    ),
    (
        "INSERT INTO t (id, small) VALUES (3, 'x')",
        "22P02",
        "invalid input syntax for type smallint: \"x\" (column \"small\")",
    ),
    (
        "INSERT INTO t (id, small) VALUES (3, true)",
        "42804",
        "column \"small\" is of type smallint but expression is of type boolean",
    ),
    (
        "INSERT INTO t (id, d) VALUES (3, 'soon')",
        "22007",
        "invalid input syntax for type date: \"soon\" (column \"d\")",
    ),
    (
        "INSERT INTO t (id, n) VALUES (3, 1234)",
        "22003",
        "value \"1234\" is out of range for type numeric(4,2) (column \"n\")",
    ),
    (
        "INSERT INTO t (id, n) SELECT id + 10, 1234 FROM u",
        "22003",
        "value \"1234\" is out of range for type numeric(4,2) (column \"n\")",
    ),
    (
        "CREATE TABLE a (x INT DEFAULT 'a')",
        "22P02",
        "DEFAULT of column \"x\": invalid input syntax for type integer: \"a\"",
    ),
    (
        "CREATE TABLE a (x INT DEFAULT (SELECT 1))",
        "0A000",
        "DEFAULT of column \"x\": not supported: subqueries in DEFAULT",
    ),
    ("CREATE TABLE a (x INT DEFAULT nix)", "42703", "DEFAULT of column \"x\": column \"nix\" does not exist"),
    (
        "CREATE TABLE a (x INT NULL NOT NULL)",
        "42601",
        "conflicting NULL/NOT NULL declarations for column \"x\" of table \"a\"",
    ),
    (
        "CREATE TABLE a (x INT PRIMARY KEY, y INT PRIMARY KEY)",
        "42P16",
        "multiple primary keys for table \"a\" are not allowed",
    ),
    (
        "CREATE TABLE a (x INT[] PRIMARY KEY)",
        "0A000",
        "not supported: key \"x\" of type integer[] (arrays cannot be keys)",
    ),
    (
        "CREATE TABLE a (x INTERVAL YEAR)",
        "0A000",
        "not supported: type INTERVAL YEAR (use INTERVAL, which has all fields and microseconds)",
    ),
    (
        "CREATE TABLE a (x NUMERIC(99,2))",
        "22023",
        "invalid value for parameter \"NUMERIC precision\": \"99\" (expected 1 to 38)",
    ),
    (
        "CREATE TABLE a (x NUMERIC(4,5))",
        "22023",
        "invalid value for parameter \"NUMERIC scale\": \"5\" (expected 0 to 4)",
    ),
    (
        "CREATE TABLE a (x VARCHAR(0))",
        "22023",
        "invalid value for parameter \"length of VARCHAR(0)\": \"0\" (expected 1 to 4294967295)",
    ),
    ("CREATE OR REPLACE VIEW v AS SELECT * FROM v", "42P17", "view \"v\" uses itself"),
    // Unsupported statements.
    (
        "BEGIN CONCURRENT",
        "42601",
        "syntax error at or near \"CONCURRENT\", expected end of statement (line 1, column 7)",
    ),
    ("COMMIT", "25P01", "there is no transaction in progress"),
    ("RELEASE s", "25P01", "RELEASE SAVEPOINT can only be used in transaction blocks"),
    ("ALTER TABLE t ENABLE ROW LEVEL SECURITY", "0A000", "not supported: ALTER TABLE … ENABLE ROW LEVEL SECURITY"),
    ("ALTER TABLE t ADD COLUMN id INT", "42701", "column \"id\" of relation \"t\" already exists"),
    ("ALTER TABLE t DROP CONSTRAINT x", "42704", "constraint \"x\" of relation \"t\" does not exist"),
    (
        "CREATE VIEW locked AS SELECT * FROM t FOR UPDATE",
        "0A000",
        "not supported: FOR UPDATE and FOR SHARE in this statement",
    ),
    ("SELECT * FROM t FOR UPDATE OF missing", "42P01", "missing FROM-clause entry for table \"missing\""),
    (
        "SELECT * FROM t TABLESAMPLE SYSTEM (10)",
        "0A000",
        "not supported: TABLESAMPLE (use WHERE random() < 0.01, for one row in a hundred)",
    ),
    (
        "SELECT id FROM t ORDER BY name COLLATE NOCASE",
        "0A000",
        "not supported: COLLATE NOCASE (texts are compared by their bytes; use lower(…) to ignore case)",
    ),
    (
        "WITH d AS (DELETE FROM t RETURNING id) INSERT INTO t VALUES (1)",
        "0A000",
        "not supported: INSERT, UPDATE, DELETE and MERGE inside of a query (use several statements in a transaction)",
    ),
    ("SELECT * INTO x FROM t", "0A000", "not supported: SELECT INTO (use CREATE TABLE … AS)"),
    (
        "CREATE TABLE a (x INT CONSTRAINT c CHECK (x > 0), CONSTRAINT c CHECK (x > 1))",
        "42710",
        "constraint \"c\" already exists",
    ),
    (
        "CREATE TABLE a (x INT REFERENCES u (y))",
        "42830",
        "there is no unique constraint matching given keys for referenced table \"u\"",
    ),
    (
        "CREATE TABLE a (x INT REFERENCES u NOT DEFERRABLE INITIALLY DEFERRED)",
        "42P17",
        "a constraint that is INITIALLY DEFERRED must be DEFERRABLE",
    ),
    (
        "INSERT INTO k VALUES (2, 7)",
        "23503",
        "insert or update on table \"k\" violates foreign key constraint \"k_u\": Key (u)=(7) is not present in table \"u\"",
    ),
    (
        "DELETE FROM u",
        "23503",
        "update or delete on table \"u\" violates foreign key constraint \"k_u\" on table \"k\": Key (id)=(1) is still \
         referenced from table \"k\"",
    ),
    (
        "DROP TABLE u",
        "2BP01",
        "cannot drop table \"u\" because constraint \"k_u\" of table \"k\" depends on it (drop the constraint first)",
    ),
    (
        "CREATE INDEX i ON t USING gin (name)",
        "0A000",
        "not supported: index method \"gin\" (use one of: betree, masstree, vast)",
    ),
    (
        "CREATE INDEX i ON t USING vast (name)",
        "0A000",
        "not supported: index method \"vast\" for column \"name\" of type character varying(3) (the first column must be an integer, date or timestamp)",
    ),
    (
        "CREATE INDEX i ON t USING vast (id) WITH (goal = 'large')",
        "22023",
        "invalid value for parameter \"goal\": \"large\" (expected small or fast)",
    ),
    (
        "CREATE INDEX i ON t USING vast (id) WITH (memory = 'much')",
        "22023",
        "invalid value for parameter \"memory\": \"much\" (expected a size like 64 MiB)",
    ),
    (
        "CREATE INDEX i ON t USING vast (id) WITH (memory = '1 TiB')",
        "22023",
        "invalid value for parameter \"memory\": \"1 TiB\" (expected at most 28 MiB, which is all that indexes in memory can take)",
    ),
    (
        "CREATE INDEX i ON t USING vast (id) WITH (goal = 'small', goal = 'fast')",
        "42601",
        "parameter \"goal\" specified more than once",
    ),
    ("EXPLAIN DROP TABLE t", "0A000", "not supported: EXPLAIN of statements other than queries and changes of rows"),
    (
        "EXPLAIN ANALYZE DELETE FROM t",
        "0A000",
        "not supported: EXPLAIN ANALYZE of statements that change rows (use EXPLAIN)",
    ),
    (
        "CREATE EXTERNAL TABLE a STORED AS PARQUET LOCATION '/tmp/x'",
        "0A000",
        "not supported: this form of CREATE TABLE: CREATE EXTERNAL TABLE a () STORED AS PARQUET LOCATION '/tmp/x'",
    ),
    ("SELECT x::UUID FROM u", "22P02", "invalid input syntax for type uuid: \"abc\""),
    (
        "SELECT * FROM t MATCH_RECOGNIZE (PATTERN (a) DEFINE a AS true)",
        "42601",
        "syntax error at or near \"MATCH_RECOGNIZE\", expected end of statement (line 1, column 17)",
    ),
    // Files and options of COPY.
    ("COPY t FROM '/nowhere/file.csv'", "58P01", "could not open \"/nowhere/file.csv\": No such file or directory"),
    ("COPY t FROM '/nowhere/*.csv'", "58P01", "could not open \"/nowhere/*.csv\": no file matches"),
    ("COPY t FROM '/'", "42809", "could not open \"/\": is a directory (name its files, as in 'dir/*.parquet')"),
    ("COPY t TO '/nowhere/file.csv'", "58P01", "could not create \"/nowhere/file.csv\": No such file or directory"),
    ("COPY t TO '/'", "42809", "could not write \"/\": is a directory"),
    ("COPY t FROM '/nowhere/file'", "58P01", "could not open \"/nowhere/file\": No such file or directory"),
    (
        "COPY t FROM 'x.csv' (HEADER maybe)",
        "22023",
        "invalid value for parameter \"HEADER\": \"maybe\" (expected true or false)",
    ),
];

async fn session(path: &std::path::Path) -> Session {
    let options = Options { memory_bytes: Some(64 << 20), threads: Some(2), ..Options::default() };
    let session = Database::open(path, options).unwrap().session();
    session.execute(SETUP).await.unwrap();
    session
}

async fn error(session: &Session, sql: &str) -> Option<keyaki::Error> {
    match session.query(sql).await {
        Ok(outcome) => outcome.collect().await.err(),
        Err(error) => Some(error),
    }
}

/// The text of an error. Another file tests the hints.
fn without_hint(error: &keyaki::Error) -> String {
    let hint = error.hint().map(|hint| format!(" ({hint})")).unwrap_or_default();
    error.to_string().strip_suffix(&hint).unwrap().into()
}

#[tokio::test]
async fn statements_have_sqlstate_and_message() {
    let dir = tempfile::tempdir().unwrap();
    let session = session(&dir.path().join("db")).await;
    let mut wrong = String::new();
    for (sql, state, message) in STATEMENTS {
        let found = error(&session, sql).await;
        let found = found.map(|error| (error.sqlstate().code(), without_hint(&error)));
        if found.as_ref().map(|(state, message)| (*state, message.as_str())) != Some((*state, *message)) {
            wrong.push_str(&format!("{sql:?}: {found:?}\n"));
        }
    }
    assert!(wrong.is_empty(), "unexpected errors:\n{wrong}");
}
