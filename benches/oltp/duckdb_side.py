"""DuckDB's side of the benchmark of small statements: prints a JSON object of median microseconds by experiment.

Statements with parameters are parsed once and bound by each execution: in the Python API, this is faster than PREPARE and
EXECUTE. INSERT of 1,000 rows is one statement, because executemany takes 17 times as long.
"""

import argparse
import json
import random
import statistics
import time

import duckdb

PER_KEY = 10
MANY = 1000
GROUPS = 10


class Table:
    """Table t of the benchmark in a new database. Its commits do not wait for the disk."""

    def __init__(self, path, rows):
        self.connection = duckdb.connect(path)
        self.next_id = rows
        self.connection.execute("SET fsync_mode = 'NONE'")
        self.connection.execute("CREATE TABLE t (id BIGINT PRIMARY KEY, k BIGINT NOT NULL, c TEXT)")
        self.connection.execute(
            f"INSERT INTO t SELECT id, id // {PER_KEY}, format('row {{:>12}} {{:>40}}', id, id * 7919 % 1000003) "
            f"FROM range({rows}) AS ids(id)")
        self.connection.execute("CREATE INDEX t_k ON t (k)")

    def by_key(self, sql, keys, expected):
        """Times of a statement with a key, which returns or changes `expected` rows."""
        statement, = self.connection.extract_statements(sql)
        for key in keys:
            start = time.perf_counter()
            rows = self.connection.execute(statement, [key]).fetchall()
            yield time.perf_counter() - start
            assert (len(rows) if "SELECT" in sql else rows[0][0]) == expected, (sql, key, rows)

    def group(self, keys):
        sql = "SELECT k, count(*), max(c) FROM t WHERE k BETWEEN ? AND ? GROUP BY k"
        statement, = self.connection.extract_statements(sql)
        for key in keys:
            start = time.perf_counter()
            rows = self.connection.execute(statement, [key, key + GROUPS - 1]).fetchall()
            yield time.perf_counter() - start
            assert len(rows) == GROUPS, (key, rows)

    def new_row(self):
        id = self.next_id
        self.next_id += 1
        return id, id // PER_KEY, f"row {id:>12} {id * 7919 % 1_000_003:>40}"

    def insert(self, statements):
        statement, = self.connection.extract_statements("INSERT INTO t VALUES (?, ?, ?)")
        for _ in range(statements):
            row = self.new_row()
            start = time.perf_counter()
            self.connection.execute(statement, row)
            yield time.perf_counter() - start

    def insert_many(self, statements):
        for _ in range(statements):
            rows = (self.new_row() for _ in range(MANY))
            sql = "INSERT INTO t VALUES " + ",".join(f"({id},{k},'{c}')" for id, k, c in rows)
            start = time.perf_counter()
            self.connection.execute(sql)
            yield time.perf_counter() - start

    def count(self, statements):
        for _ in range(statements):
            start = time.perf_counter()
            self.connection.execute("SELECT count(*) FROM t").fetchall()
            yield time.perf_counter() - start


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("path")
    parser.add_argument("--rows", type=int, required=True)
    parser.add_argument("--statements", type=int, required=True)
    parser.add_argument("--experiments", type=lambda names: names.split(","), required=True)
    arguments = parser.parse_args()
    table = Table(arguments.path, arguments.rows)
    statements = arguments.statements
    generator = random.Random(1)
    ids = [generator.randrange(arguments.rows) for _ in range(statements)]
    step = max(arguments.rows // statements, 1)
    # In the order of their execution.
    experiments = {
        "point": lambda: table.by_key("SELECT c FROM t WHERE id = ?", ids, 1),
        "index": lambda: table.by_key("SELECT id, c FROM t WHERE k = ?", [id // PER_KEY for id in ids], PER_KEY),
        "group": lambda: table.group([min(id, arguments.rows - GROUPS * PER_KEY) // PER_KEY for id in ids]),
        "insert": lambda: table.insert(statements),
        "update": lambda: table.by_key("UPDATE t SET k = k + 1 WHERE id = ?", ids, 1),
        "delete": lambda: table.by_key("DELETE FROM t WHERE id = ?", range(0, arguments.rows, step)[:statements], 1),
        "insert-many": lambda: table.insert_many(max(statements // 100, 1)),
        "count": lambda: table.count(20),
    }
    times = {name: statistics.median(run()) * 1e6 for name, run in experiments.items() if name in arguments.experiments}
    print(json.dumps(times))


if __name__ == "__main__":
    main()
