"""Keyaki in a process of its own, and DuckDB and SQLite as references for statements that change data.

A reference is a model of Keyaki's constraints and transactions: its tables have only NOT NULL constraints, and uniqueness is checked
by a query at the end of each change, as Keyaki and the SQL standard do (DuckDB and SQLite check row by row). Unique indexes exist
only during INSERT with a conflict clause. A failed change and ROLLBACK restore copies of the tables.
"""

import datetime
import json
import os
import re
import select
import sqlite3
import subprocess
import tempfile
import threading
from decimal import Decimal

import tpch

# A statement without output for this many seconds is a failure.
TIMEOUT = 120
# A reference has no opinion on a query that takes it longer than this many seconds.
REFERENCE_TIMEOUT = 20
# Larger results are not compared.
RESULT_BYTES_MAX = 64 << 20
# The answer to this dot command marks the end of a result.
MARKER = ".mode"
ROWS = re.compile(r"\([\d,]+ rows?, [\d.]+ s\)\n")
# DuckDB finds no row in such a subquery if the condition of its join holds for no pair of rows.
EXISTS_OUTER = re.compile(r"EXISTS \(SELECT .*?(?:LEFT|RIGHT) JOIN", re.S)
# DuckDB finds no row in some subqueries with a correlated scalar subquery in their select list.
EXISTS_NESTED = re.compile(r"(?:EXISTS|IN) \(SELECT (?:(?! FROM ).)*?\(SELECT", re.S)
# DuckDB loses the row of a correlated aggregate without GROUP BY there.
AGGREGATE_SET = re.compile(r"\(SELECT (?:(?! FROM ).)*?\b(?:avg|count|max|min|sum)\(.*? (?:EXCEPT|INTERSECT) ", re.S)
# DuckDB returns wrong groups if no row of one table has a match.
OUTER_HAVING = re.compile(r" (?:FULL|LEFT|RIGHT) JOIN .* HAVING ", re.S)
# SQLite ignores DISTINCT there.
EXISTS_DISTINCT = re.compile(r"EXISTS \(SELECT DISTINCT .*? OFFSET ", re.S)
# SQLite takes `NULL NOT IN (…)` for true there.
RETURNING_NOT_IN = re.compile(r" RETURNING .*NOT IN ", re.S)
# DuckDB has the clause inside of the parentheses.
IGNORE_NULLS = re.compile(r"\) IGNORE NULLS")
DONE = re.compile(r"^[A-Z][A-Z ]*(?:, ([\d,]+) rows?)?, [\d.]+ s$")


class StatementError(Exception):
    """The error message of a statement."""


class Crash(Exception):
    """The process ended or does not answer."""


class TooLarge(Exception):
    """The result is larger than `RESULT_BYTES_MAX`."""


class NoOpinion(Exception):
    """The reference does not support the statement, or defines it differently."""


class Keyaki:
    """A shell on a temporary database."""

    def __init__(self, *options):
        command = [tpch.KEYAKI, "--mode", "json", "--continue-on-error", "--durability", "off", "--timer", *options]
        # A killed process leaves its database.
        self.directory = tempfile.TemporaryDirectory(prefix="keyaki-")
        environment = {**os.environ, "TMPDIR": self.directory.name}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        self.process = subprocess.Popen(command, env=environment, **pipes)
        self.decoder = json.JSONDecoder(parse_float=Decimal, object_pairs_hook=lambda pairs: tuple(v for _, v in pairs))
        self.statements, self.buffer = 0, bytearray()
        self.marker = None
        self.process.stdin.write(f"{MARKER}\n".encode())
        self.process.stdin.flush()
        self.marker = self.until(b"\n")

    def until(self, end):
        """Reads up to `end`, which it removes."""
        searched, is_large = 0, False
        while (found := self.buffer.find(end, searched)) < 0:
            is_large |= len(self.buffer) > RESULT_BYTES_MAX
            if is_large:
                del self.buffer[: -len(end)]
            searched = max(0, len(self.buffer) - len(end))
            ready, _, _ = select.select([self.process.stdout], [], [], TIMEOUT)
            data = os.read(self.process.stdout.fileno(), 1 << 16) if ready else b""
            if not data:
                self.process.kill()
                text = self.buffer.decode(errors="replace")
                raise Crash(f"no answer in {TIMEOUT} s" if not ready else f"the process ended: {text}")
            self.buffer += data
        text = bytes(self.buffer[:found])
        del self.buffer[: found + len(end)]
        if is_large:
            raise TooLarge(f"more than {RESULT_BYTES_MAX} bytes")
        return text

    def execute(self, sql):
        """Runs one statement. Returns its rows (None for a statement without a result) and the number of changed rows."""
        self.statements += 1
        try:
            self.process.stdin.write(f"{sql};\n{MARKER}\n".encode())
            self.process.stdin.flush()
        except BrokenPipeError:
            raise Crash(f"the process ended: {self.buffer.decode(errors='replace')}") from None
        text = self.until(self.marker + b"\n").decode()
        error = re.search(r"^error: (?:stdin:\d+: )?", text, re.M)
        if error:
            raise StatementError(text[error.end():].strip())
        # The number of rows goes to standard error, and stands before or among the rows.
        text = ROWS.sub("", text)
        start = re.search(r"^\[", text, re.M)
        if start:
            rows, _ = self.decoder.raw_decode(text, start.start())
            return rows, len(rows)
        done = DONE.match(text.strip())
        if not done:
            raise Crash(f"unexpected output: {text}")
        return None, int(done[1].replace(",", "")) if done[1] else None

    def close(self):
        try:
            self.process.stdin.close()
        except BrokenPipeError:
            pass  # It has ended, and the reason was reported.
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()
        self.directory.cleanup()


class Reference:
    """A model of Keyaki on another system. Subclasses connect to the system."""

    def __init__(self):
        # `keys` are the unique keys of each table, with those that CREATE UNIQUE INDEX has added.
        self.tables, self.keys, self.savepoints, self.copies = {}, {}, [], 0

    def create(self, table):
        self.run(table.definition(keys=False))
        self.run(f"CREATE TABLE undo_{table.name} AS SELECT * FROM {table.name}")
        self.tables[table.name], self.keys[table.name] = table, list(table.keys)

    def answer(self, sql):
        """As `run`, for a query that may be interrupted."""
        timer = threading.Timer(REFERENCE_TIMEOUT, self.connection.interrupt)
        timer.start()
        try:
            return self.run(sql)
        finally:
            timer.cancel()

    def copy(self, source, target):
        self.run(f"DELETE FROM {target}")
        self.run(f"INSERT INTO {target} SELECT * FROM {source}")

    def change(self, step):
        """Runs a change. Returns (rows, count); on an error nothing has changed."""
        table = self.tables[step.table]
        self.copy(table.name, f"undo_{table.name}")
        indexes = []
        try:
            if step.conflict:
                for number, key in enumerate(self.keys[table.name]):
                    self.run(f"CREATE UNIQUE INDEX key{number}_{table.name} ON {table.name} ({', '.join(key)})")
                    indexes.append(f"DROP INDEX key{number}_{table.name}")
            result = self.run(step.sql)
            for index in indexes:
                self.run(index)
            indexes = []
            self.check(table.name)
            return result
        except (StatementError, NoOpinion):
            for index in indexes:
                self.run(index)
            self.undo(table.name)
            raise

    def undo(self, name):
        """Undoes the last change of a table."""
        self.copy(f"undo_{name}", name)

    def check(self, table):
        for key in self.keys[table]:
            columns = ", ".join(key)
            known = " AND ".join(f"{column} IS NOT NULL" for column in key)
            rows, _ = self.run(f"SELECT 1 FROM {table} WHERE {known} GROUP BY {columns} HAVING count(*) > 1 LIMIT 1")
            if rows:
                raise StatementError(f"duplicate key ({columns})")

    def replace(self, name, rows):
        """Replaces the rows of a table by those that Keyaki returned."""
        columns = self.tables[name].columns
        self.run(f"DELETE FROM {name}")
        for row in rows:
            values = [bytes.fromhex(v) if c.type == "BYTEA" and v is not None else v for c, v in zip(columns, row)]
            self.run(f"INSERT INTO {name} VALUES ({', '.join('?' * len(columns))})", values)

    def savepoint(self, name):
        self.copies += 1
        for table in self.tables:
            self.run(f"CREATE TABLE s{self.copies}_{table} AS SELECT * FROM {table}")
        self.savepoints.append((name, self.copies))

    def position(self, name):
        """The position of the newest savepoint of this name, None if there is none."""
        return next((i for i in range(len(self.savepoints) - 1, 0, -1) if self.savepoints[i][0] == name), None)

    def restore(self, position):
        """Returns to a savepoint, which remains."""
        self.forget(position + 1)
        for table in self.tables:
            self.copy(f"s{self.savepoints[position][1]}_{table}", table)

    def forget(self, position):
        """Drops the savepoints from a position on."""
        for _, copy in self.savepoints[position:]:
            for table in self.tables:
                self.run(f"DROP TABLE s{copy}_{table}")
        del self.savepoints[position:]


class DuckDb(Reference):
    name = "duckdb"

    def __init__(self):
        import duckdb

        super().__init__()
        self.duckdb = duckdb
        self.connection = duckdb.connect(config={"threads": 1})
        self.connection.execute("SET integer_division = true; SET error_on_division_by_zero = false")

    def run(self, sql, values=None):
        errors = self.duckdb
        if EXISTS_OUTER.search(sql):
            raise NoOpinion("EXISTS over an outer join")
        if EXISTS_NESTED.search(sql):
            raise NoOpinion("a subquery with a subquery in its select list")
        if OUTER_HAVING.search(sql):
            raise NoOpinion("HAVING above an outer join")
        if AGGREGATE_SET.search(sql):
            raise NoOpinion("a set operation of aggregates in a subquery")
        sql = IGNORE_NULLS.sub(r" IGNORE NULLS)", sql)
        try:
            cursor = self.connection.execute(sql, values) if values is not None else self.connection.execute(sql)
            rows = cursor.fetchall()
        except (errors.ConstraintException, errors.OutOfRangeException, errors.ConversionException) as error:
            raise StatementError(str(error)) from None
        except errors.Error as error:
            raise NoOpinion(f"{type(error).__name__}: {error}") from None
        if sql.startswith(("INSERT", "UPDATE", "DELETE")) and " RETURNING " not in sql:
            return None, rows[0][0]
        return rows, len(rows)

    def close(self):
        self.connection.close()


class Sqlite(Reference):
    name = "sqlite"

    def __init__(self):
        super().__init__()
        self.connection = sqlite3.connect(":memory:", isolation_level=None)
        self.connection.execute("PRAGMA case_sensitive_like = ON")

    def run(self, sql, values=()):
        if EXISTS_DISTINCT.search(sql):
            raise NoOpinion("EXISTS over distinct rows from an offset on")
        if RETURNING_NOT_IN.search(sql):
            raise NoOpinion("NOT IN in RETURNING")
        try:
            # The types of the simple profile that JSON has as decimals are floats.
            values = [float(value) if isinstance(value, Decimal) else value for value in values]
            cursor = self.connection.execute(sql, values)
            rows = cursor.fetchall()
        except sqlite3.IntegrityError as error:
            raise StatementError(str(error)) from None
        except sqlite3.Error as error:
            raise NoOpinion(f"{type(error).__name__}: {error}") from None
        if sql.startswith(("INSERT", "UPDATE", "DELETE")) and " RETURNING " not in sql:
            return None, cursor.rowcount
        return rows, len(rows)

    def close(self):
        self.connection.close()


# Comparison of rows

def plain(value):
    """A value in a form that is the same for all systems."""
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, (float, Decimal)):
        value = float(value)
        return int(value) if value.is_integer() and abs(value) < 2**53 else value
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, datetime.datetime):
        return value.isoformat(timespec="microseconds").replace(".000000", "")
    if isinstance(value, datetime.date):
        return value.isoformat()
    if isinstance(value, str):
        time_of_day = re.fullmatch(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)\.(\d+)", value)
        return f"{time_of_day[1]}.{time_of_day[2]:0<6}" if time_of_day else value
    return value


def order_key(row):
    """Numbers that differ only by rounding sort alike. SQLite returns some large integers as floats from RETURNING."""
    is_rounded = lambda value: isinstance(value, float) or is_large(value)
    text = lambda value: f"{value:.9g}" if is_rounded(value) else str(value)
    return tuple((value is not None, text(value)) for value in row), tuple(filter(is_large, row))


def is_large(value):
    """Whether a value is an integer that a float may not represent."""
    return isinstance(value, int) and abs(value) >= 2**53


def comparable(rows, ordered=False):
    rows = [tuple(plain(value) for value in row) for row in rows]
    return rows if ordered else sorted(rows, key=order_key)


def close_to(a, b, rounding=0.0):
    if isinstance(a, float) or isinstance(b, float):
        if isinstance(a, (int, float)) and isinstance(b, (int, float)):
            return a == b or abs(a - b) <= max(rounding, 1e-9 * max(abs(a), abs(b)))
    return type(a) is type(b) and a == b


def equal(a, b, rounding=0.0):
    """Whether two comparable lists of rows are equal, floats within a tolerance, which is at least `rounding`."""
    return a == b or len(a) == len(b) and all(
        len(x) == len(y) and all(close_to(v, w, rounding) for v, w in zip(x, y)) for x, y in zip(a, b)
    )


def as_numbers(rows, model):
    """The rows, with numbers in place of texts in the columns in which rows of `model` have only numbers and NULL."""
    numeric = [all(value is None or isinstance(value, (int, Decimal)) for value in column) for column in zip(*model)]
    is_text = lambda value: isinstance(value, str) and re.fullmatch(r"-?\d[\d.]*(e[-+]\d+)?", value)
    convert = lambda value, number: Decimal(value) if number and is_text(value) else value
    return [tuple(map(convert, row, numeric)) for row in rows] if len(rows) == len(model) else rows
