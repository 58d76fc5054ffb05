"""The Python package against the module sqlite3 and DuckDB: import, point SELECTs, results as frames, appending an Arrow table.

Every side runs in this process, one after the other, with its default settings; each measured load fills a new database. Run by
`cargo xtask bench python`.
"""

import argparse
import itertools
import os
import pathlib
import random
import shutil
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time

import duckdb
import keyaki
import numpy
import pandas
import pyarrow
import report

COLUMNS = "id BIGINT, k BIGINT, v DOUBLE PRECISION, name TEXT"
INDEXES = ["CREATE INDEX t_k ON t (k)", "CREATE INDEX t_name ON t (name)"]
IMPORT_REPETITIONS = 9
SQLITE_ROWS = 100_000


def rows(count, seed=1):
    """An Arrow table. Keys ascend, values of the indexed columns are random."""
    numbers = numpy.random.default_rng(seed)
    names = pyarrow.array(numbers.integers(0, count, count).astype("U12"))
    return pyarrow.table({"id": numpy.arange(count), "k": numbers.integers(0, count, count), "v": numbers.random(count), "name": names})


class Keyaki:
    name, module = "Keyaki", "keyaki"

    def __init__(self, path):
        self.connection = keyaki.connect(path, autocommit=True)

    def create(self, declaration, statements=()):
        self.connection.execute(f"CREATE TABLE t ({declaration})")
        for statement in statements:
            self.connection.execute(statement)

    def append(self, table):
        self.connection.append("t", table)

    def lookup(self):
        connection, sql = self.connection, "SELECT k, v, name FROM t WHERE id = ?"
        return lambda key: connection.execute(sql, (key,)).fetchone()

    def arrow(self):
        return self.connection.execute("SELECT * FROM t").arrow()

    def pandas(self):
        return self.connection.execute("SELECT * FROM t").df()

    def count(self):
        return self.connection.execute("SELECT count(*) FROM t").fetchone()[0]

    def close(self):
        self.connection.close()


class DuckDB(Keyaki):
    name, module = "DuckDB", "duckdb"

    def __init__(self, path):
        self.connection = duckdb.connect(path)

    def append(self, table):
        self.connection.register("appended", table)
        self.connection.execute("INSERT INTO t SELECT * FROM appended")
        self.connection.unregister("appended")

    def lookup(self):
        connection = self.connection
        # Parsed once.
        statement, = connection.extract_statements("SELECT k, v, name FROM t WHERE id = ?")
        return lambda key: connection.execute(statement, (key,)).fetchall()[0]

    def arrow(self):
        return self.connection.sql("SELECT * FROM t").to_arrow_table()


class SQLite(Keyaki):
    name, module = "sqlite3", "sqlite3"

    def __init__(self, path):
        self.connection = sqlite3.connect(path)

    def append(self, table):
        insert = f"INSERT INTO t VALUES ({', '.join('?' * table.num_columns)})"
        with self.connection:
            for batch in table.to_batches(SQLITE_ROWS):
                self.connection.executemany(insert, zip(*(column.to_pylist() for column in batch.columns)))

    def pandas(self):
        return pandas.read_sql_query("SELECT * FROM t", self.connection)

    arrow = None


def new_path(directory, number=itertools.count()):
    return os.path.join(directory, f"database{next(number)}")


def remove(path):
    for file in pathlib.Path(path).parent.glob(pathlib.Path(path).name + "*"):
        shutil.rmtree(file) if file.is_dir() else file.unlink()


def measured(function, *arguments):
    """Seconds, and the result."""
    start = time.perf_counter()
    result = function(*arguments)
    return time.perf_counter() - start, result


def import_seconds(module):
    program = f"import time; start = time.perf_counter(); import {module}; print(time.perf_counter() - start)"
    run = lambda: float(subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout)
    run()
    return statistics.median(run() for _ in range(IMPORT_REPETITIONS))


def lookup_seconds(side, keys):
    lookup = side.lookup()
    times = []
    for key in keys:
        seconds, row = measured(lookup, key)
        assert row is not None, key
        times.append(seconds)
    return statistics.median(times)


def frame_seconds(function, count, repetitions):
    if function is None:
        return None
    times = []
    for _ in range(repetitions):
        seconds, frame = measured(function)
        assert len(frame) == count
        times.append(seconds)
    return statistics.median(times)


def append_seconds(side_class, directory, declaration, statements, table):
    path = new_path(directory)
    side = side_class(path)
    side.create(declaration, statements)
    seconds, _ = measured(side.append, table)
    assert side.count() == table.num_rows
    side.close()
    remove(path)
    return seconds


def compare(results, workload, metric, unit, figures, factor=1.0):
    """Adds a row for each peer that has a figure."""
    ours = figures[Keyaki]
    for side, theirs in figures.items():
        if side is not Keyaki and theirs is not None:
            results.add(workload, metric, unit, ours * factor, theirs * factor, side.name)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=1_000_000, help="rows of the table of lookups and results")
    parser.add_argument("--append-rows", type=int, default=10_000_000, help="rows of the table that is appended")
    parser.add_argument("--lookups", type=int, default=20_000)
    parser.add_argument("--repetitions", type=int, default=5, help="of each result")
    parser.add_argument("--json")
    arguments = parser.parse_args()
    results = report.Report("python")
    sides = [Keyaki, SQLite, DuckDB]
    # Not of sqlite3, which is a part of the interpreter.
    compare(results, "import", "import time", "ms", {side: import_seconds(side.module) for side in (Keyaki, DuckDB)}, 1e3)

    with tempfile.TemporaryDirectory(dir=os.environ.get("KEYAKI_TARGET"), prefix="bench-python-") as directory:
        keys = random.Random(1).choices(range(arguments.rows), k=arguments.lookups)
        lookups, arrows, frames = {}, {}, {}
        table = rows(arguments.rows)
        for side_class in sides:
            side = side_class(new_path(directory))
            side.create(f"{COLUMNS}, PRIMARY KEY (id)")
            side.append(table)
            lookups[side_class] = lookup_seconds(side, keys)
            arrows[side_class] = frame_seconds(side.arrow, arguments.rows, arguments.repetitions)
            frames[side_class] = frame_seconds(side.pandas, arguments.rows, arguments.repetitions)
            side.close()
        compare(results, f"SELECT by key of {arguments.rows:,} rows", "lookup time", "µs", lookups, 1e6)
        compare(results, f"result of {arguments.rows:,} rows to Arrow", "result time", "s", arrows)
        compare(results, f"result of {arguments.rows:,} rows to pandas", "result time", "s", frames)

        table = rows(arguments.append_rows)
        for name, declaration, statements in [
            ("with primary key and 2 indexes", f"{COLUMNS}, PRIMARY KEY (id)", INDEXES),
            ("without keys and indexes", COLUMNS, []),
        ]:
            times = {side: append_seconds(side, directory, declaration, statements, table) for side in sides}
            compare(results, f"append {arguments.append_rows:,} rows {name}", "append time", "s", times)
    results.write(arguments.json)


if __name__ == "__main__":
    main()
