"""Random FOREIGN KEY constraints and changes: the tables after each change compared with SQLite's.

The seed of a failure is in its message: `KEYAKI_SEED=<seed> python test_foreign_keys.py` repeats it, and
`KEYAKI_SEEDS=<number>` tests more seeds than by default.
"""

import os
import random
import sqlite3
import unittest

from test_differential import keyaki

SEEDS = int(os.environ.get("KEYAKI_SEEDS", "10"))
CHANGES = 60
KEYS = 6
ACTIONS = ["NO ACTION", "RESTRICT", "CASCADE", "SET NULL", "SET DEFAULT"]


class Schema:
    """Tables `t0`, `t1`, …: each has the key `id`, the unique columns `(a, b)`, and columns that refer to earlier tables."""

    def __init__(self, rng):
        self.rng = rng
        self.tables = []
        self.definitions = []
        self.indexes = []
        # One action per direction for a whole schema now and then: the longest chains.
        only = rng.choice(ACTIONS + [None] * 5)
        for number in range(rng.randint(2, 4)):
            self._table(number, only)

    def _table(self, number, only):
        rng, name = self.rng, f"t{number}"
        columns = ["id INT NOT NULL PRIMARY KEY", "a INT", "b INT"]
        constraints = ["UNIQUE (a, b)"]
        added = []
        for reference in range(rng.choice([0, 1, 1, 2]) if number else rng.choice([0, 1])):
            target = f"t{rng.randint(0, number)}"
            actions = "".join(f" ON {event} {only or rng.choice(ACTIONS)}" for event in ["DELETE", "UPDATE"])
            default = f" DEFAULT {rng.randint(1, KEYS)}" if rng.random() < 0.5 else ""
            if rng.random() < 0.3:
                first, second = f"r{reference}a", f"r{reference}b"
                columns += [f"{first} INT{default}", f"{second} INT{default}"]
                key = rng.choice(["(a, b)", "(b, a)"])
                constraints.append(f"FOREIGN KEY ({first}, {second}) REFERENCES {target} {key}{actions}")
                added += [first, second]
                indexed = f"{first}, {second}"
            else:
                column = f"r{reference}"
                columns.append(f"{column} INT{default} REFERENCES {target} (id){actions}")
                added.append(column)
                indexed = column
            if rng.random() < 0.5:
                self.indexes.append(f"CREATE INDEX {name}_{reference} ON {name} ({indexed})")
        self.tables.append((name, ["id", "a", "b", *added]))
        self.definitions.append(f"CREATE TABLE {name} ({', '.join(columns + constraints)})")

    def value(self):
        return "NULL" if self.rng.random() < 0.2 else str(self.rng.randint(1, KEYS))

    def change(self):
        """A change of at most one key: SQLite checks unique keys after each row."""
        rng = self.rng
        name, columns = rng.choice(self.tables)
        key = rng.randint(1, KEYS)
        where = rng.choice([f"id = {key}", f"id = {key}", f"a = {self.value()} AND id > {key}", "id % 2 = 0"])
        kind = rng.random()
        if kind < 0.45:
            rows = [[str(rng.randint(1, KEYS)), *(self.value() for _ in columns[1:])] for _ in range(rng.choice([1, 1, 3]))]
            values = ", ".join(f"({', '.join(row)})" for row in rows)
            conflict = rng.choice(["", " ON CONFLICT DO NOTHING"])
            return f"INSERT INTO {name} ({', '.join(columns)}) VALUES {values}{conflict}"
        if kind < 0.65:
            return f"DELETE FROM {name} WHERE {where}"
        if kind < 0.8:
            column = rng.choice(["id", "a"])
            return f"UPDATE {name} SET {column} = {self.value() if column == 'a' else rng.randint(1, KEYS)} WHERE id = {key}"
        if len(columns) == 3:
            return f"UPDATE {name} SET b = {self.value()} WHERE id = {key}"
        return f"UPDATE {name} SET {rng.choice(columns[3:])} = {self.value()} WHERE {where}"


def state(schema):
    """A query of all rows."""
    width = max(len(columns) for _, columns in schema.tables)
    selects = []
    for name, columns in schema.tables:
        padded = columns + ["NULL"] * (width - len(columns))
        selects.append(f"SELECT '{name}' AS c, " + ", ".join(f"{column} AS c{i}" for i, column in enumerate(padded)) + f" FROM {name}")
    return " UNION ALL ".join(selects)


def in_order(rows):
    return sorted(rows, key=lambda row: [(value is not None, value) for value in row])


class ForeignKeys(unittest.TestCase):
    def test_changes(self):
        seeds = [int(os.environ["KEYAKI_SEED"])] if "KEYAKI_SEED" in os.environ else range(SEEDS)
        refused = total = 0
        for seed in seeds:
            schema = Schema(random.Random(seed))
            changes = [schema.change() for _ in range(CHANGES)]
            query = state(schema)
            settings = [[], ["SET keyaki.short_path = 'off'"]][seed % 2]
            queries = [statement for change in changes for statement in (change, query)]
            answers = keyaki(settings + schema.definitions + schema.indexes, queries)[1::2]
            connection = sqlite3.connect(":memory:", isolation_level=None)
            connection.execute("PRAGMA foreign_keys = ON")
            for definition in schema.definitions:
                connection.execute(definition)
            for step, (change, found) in enumerate(zip(changes, answers)):
                error = None
                try:
                    connection.execute(change)
                except sqlite3.IntegrityError as refusal:
                    error = refusal
                refused, total = refused + (error is not None), total + 1
                expected = connection.execute(query).fetchall()
                message = f"seed {seed}, change {step}: {change}\nSQLite: {error}\n" + "\n".join(schema.definitions)
                self.assertNotIsInstance(found, str, message)
                self.assertEqual(in_order(found), in_order(expected), message)
            connection.close()
        self.assertLess(refused, total * 0.8)
        self.assertGreater(refused, total * 0.1)


if __name__ == "__main__":
    unittest.main()
