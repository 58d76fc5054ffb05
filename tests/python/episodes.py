"""Episodes: a schema, changes, transactions and queries. Steps are generated first, so that any subset of them can be run again.

A step compares Keyaki with the references and raises `Difference`. After each change the whole table is compared.
"""

import re

import properties
from changes import BOTH, DECIMAL, DOUBLE, DUCKDB, INTEGER, SMALL, SQLITE, Typed
from columns import Column
from steps import Change, Control, Create, Index, Local, Query

STEPS = 60
# Zeros are one key.
ZERO = re.compile(r"CAST\('?-?0(\.0)?'? AS")
SETTINGS = ["", "", "SET keyaki.join = 'index'", "SET keyaki.join = 'scan'", "SET keyaki.short_path = 'off'"]


class Episode(Typed):
    """The steps of a seed."""

    def __init__(self, seed):
        super().__init__(seed, simple=seed % 2 == 0)
        self.steps = []
        self.references = BOTH if self.simple else DUCKDB
        setting = SETTINGS[seed // 2 % len(SETTINGS)]
        if setting:
            self.steps.append(Local(setting))
        for number in range(self.random.randint(1, 3)):
            self.steps.append(Create(self.table("tuv"[number])))
        # Number of indexes, and the tables that may have further unique ones.
        self.indexes, self.indexed = 0, set()
        for table in self.models.values():
            while self.chance(0.5):
                self.steps.append(self.secondary(table))
            self.steps.append(self.insert(table))
        depth = 0
        while len(self.steps) < STEPS:
            depth = self.control(depth)
            kind = self.random.random()
            if kind < 0.5:
                self.steps.append(self.change())
            elif kind < 0.87:
                query, ordered = self.statement()
                self.steps.append(Query(query, self.references, ordered))
            else:
                self.steps.append(properties.step(self))
        if depth:
            self.steps.append(Control("COMMIT"))

    def secondary(self, table):
        self.indexes += 1
        if self.chance(0.15):
            columns = self.random.sample(table.columns, min(len(table.columns), self.random.choice([1, 2])))
            key = tuple(c.name for c in columns)
            self.indexed.add(table.name)
            return Index(f"CREATE UNIQUE INDEX i{self.indexes}_{table.name} ON {table.name} ({', '.join(key)})", table.name, key)
        return Local(self.index(table, self.indexes))

    def control(self, depth):
        """Begins and ends transactions. `depth` is 0 outside of a transaction, otherwise 1 and the number of savepoints."""
        add = lambda sql, name="": self.steps.append(Control(sql, name))
        kind = self.random.random()
        if kind < 0.02:
            self.steps.append(Local("CHECKPOINT"))
        elif depth == 0 and kind < 0.06:
            table = self.random.choice(list(self.models.values()))
            self.steps.append(self.random.choice([lambda: Local(f"ANALYZE {table.name}"), lambda: self.secondary(table)])())
        elif depth == 0 and kind < 0.14:
            add("BEGIN")
            return 1
        elif depth and kind < 0.14:
            add("COMMIT" if self.chance(0.6) else "ROLLBACK")
            return 0
        elif depth and kind < 0.24:
            add("SAVEPOINT", f"s{self.random.randint(1, 2)}")
            return depth + 1
        elif depth > 1 and kind < 0.34:
            add(self.random.choice(["ROLLBACK TO", "ROLLBACK TO", "RELEASE"]), f"s{self.random.randint(1, 2)}")
        return depth

    # Changes

    def change(self):
        table = self.random.choice(list(self.models.values()))
        kinds = [self.insert] * 3 + [self.insert_select] * 2 + [self.update] * 4 + [self.delete] * 2
        kinds += [self.update_from] * 2 + [self.failing]
        if table.keys:
            kinds += [self.upsert] * 5 + [self.nothing] * 2 + [self.alternative] * 2 * self.simple + [self.twice]
        if not self.simple:
            kinds.append(self.delete_using)
        return self.random.choice(kinds)(table)

    def step(self, table, sql, references=None, returning=True, **options):
        references = references or self.references
        without_sqlite = tuple(name for name in references if name != "sqlite")
        if sql.startswith("UPDATE ") and re.search(rf"(FROM|JOIN) {table.name} AS ", sql):
            references = without_sqlite
        if returning and self.chance(0.25):
            values = self.returning(table)
            if " NULL" not in values:
                sql += f" RETURNING {values}"
            elif without_sqlite:
                sql, references = f"{sql} RETURNING {values}", without_sqlite
        return Change(sql, table.name, references, **options)

    def returning(self, table):
        if self.chance(0.5):
            return "*"
        values = [self.value(self.random.choice(table.columns).type, table.columns, 1) for _ in range(self.random.randint(1, 2))]
        return ", ".join(f"{value} AS r{i}" for i, value in enumerate(values))

    def columns(self, table):
        """The columns of an INSERT: all, or some with all that need a value."""
        if self.chance(0.75):
            return list(table.columns)
        needed = [c for c in table.columns if c.name in table.required and c.name not in table.defaults]
        rest = [c for c in table.columns if c not in needed and self.chance(0.5)]
        return needed + rest or [table.columns[0]]

    def rows(self, table, columns, nulls=True, count=None):
        """Rows of literals. With `nulls`, rarely a NULL in a column that does not allow it."""
        count = count or self.random.choice([1, 1, 1, 2, 3, 8] + [20] * self.chance(0.3))
        return [f"({', '.join(self.cell(table, c, nulls) for c in columns)})" for _ in range(count)]

    def cell(self, table, column, nulls):
        if self.chance(0.01 * nulls if column.name in table.required else 0.15):
            return "NULL"
        if column.name in table.required or self.chance(0.9) or not column.extreme:
            if column.type == INTEGER and not column.extreme and self.is_key(table, column) and self.chance(0.7):
                return str(self.random.randint(-3, 40))
            return self.stored(column)
        return self.literal(column.type)

    def is_key(self, table, column):
        return any(column.name in key for key in table.keys)

    def into(self, table, columns, verb="INSERT"):
        names = "" if columns == list(table.columns) and self.chance(0.7) else f" ({', '.join(c.name for c in columns)})"
        return f"{verb} INTO {table.name}{names}"

    def insert(self, table):
        columns = self.columns(table)
        # All rows of one statement, or one statement for all rows: conflicts fail the whole statement.
        return self.step(table, f"{self.into(table, columns)} VALUES {', '.join(self.rows(table, columns))}")

    def query_for(self, table, columns):
        """A query whose columns fit `columns`; in the simple profile, types must match exactly."""
        source, scope = self.source([], 2)
        values = ", ".join(
            self.stored(c) if c.name in table.required and self.chance(0.2) else
            f"COALESCE({self.value(c.type, scope, 1)}, {self.literal(c.type)})" if c.name in table.required else
            self.value(c.type, scope, 1) for c in columns)
        return f"SELECT {values} FROM {source} WHERE {self.boolean(scope, 2)}"

    def insert_select(self, table):
        columns = self.columns(table)
        return self.step(table, f"{self.into(table, columns)} {self.query_for(table, columns)}")

    def assignments(self, table, scope, depth, keys=0.3):
        """SET list. Columns of keys are rarely assigned: most such changes fail."""
        allowed = [c for c in table.columns if not self.is_key(table, c) or self.chance(keys)] or table.columns
        columns = self.random.sample(allowed, self.random.randint(1, min(3, len(allowed))))
        return ", ".join(f"{c.name} = {self.assigned(table, c, scope, depth)}" for c in columns)

    def assigned(self, table, column, scope, depth):
        if column.extreme or self.chance(0.15):
            return self.cell(table, column, True)
        if column.name in self.defaults(table) and self.chance(0.1):
            return "DEFAULT"
        value = self.value(column.type, scope, depth)
        return f"COALESCE({value}, {self.literal(column.type)})" if column.name in table.required and self.chance(0.9) else value

    def defaults(self, table):
        return {} if self.simple else table.defaults

    def alias(self, table):
        self.aliases += 1
        alias = f"q{self.aliases}"
        return alias, [Column(f"{alias}.{c.name}", c.type, c.extreme) for c in table.columns]

    def where(self, scope, depth=2):
        return f" WHERE {self.boolean(scope, depth)}" if self.chance(0.92) else ""

    def update(self, table):
        alias, scope = self.alias(table)
        depth = self.random.choice([0, 1, 1, 2])
        return self.step(table, f"UPDATE {table.name} AS {alias} SET {self.assignments(table, scope, depth)}{self.where(scope, depth)}")

    def delete(self, table):
        alias, scope = self.alias(table)
        # Most deletions combine two conditions, so that rows remain.
        where = f" WHERE {self.boolean(scope, 1)} AND {self.boolean(scope, self.random.choice([0, 1, 2]))}"
        return self.step(table, f"DELETE FROM {table.name} AS {alias}{where}")

    def partner(self, table, scope):
        """A table with one row per key, its columns, and a condition that joins it to a column of `scope`."""
        other = self.random.choice(list(self.models.values()))
        alias, columns = self.alias(other)
        pairs = [(a, b) for a in scope for b in columns if a.type == b.type and a.type != "BYTEA"]
        if not pairs:
            return None
        mine, key = self.random.choice(pairs)
        self.aliases += 1
        name = f"q{self.aliases}"
        types = [self.random.choice(self.models[table.name].columns).type for _ in range(2)]
        values = ", ".join(f"{self.aggregate(ty, columns, 1)} AS v{i}" for i, ty in enumerate(types))
        query = f"(SELECT {key.name} AS k, {values} FROM {other.name} AS {alias} GROUP BY {key.name}) AS {name}"
        return query, [Column(f"{name}.v{i}", ty) for i, ty in enumerate(types)], f"{mine.name} = {name}.k"

    def update_from(self, table):
        alias, scope = self.alias(table)
        partner = self.partner(table, scope)
        if not partner:
            return self.update(table)
        query, columns, join = partner
        sets = self.assignments(table, scope + columns, 1)
        condition = f" AND {self.boolean(scope + columns, 1)}" if self.chance(0.5) else ""
        return self.step(table, f"UPDATE {table.name} AS {alias} SET {sets} FROM {query} WHERE {join}{condition}")

    def delete_using(self, table):
        alias, scope = self.alias(table)
        source, columns = self.relation(1)
        return self.step(table, f"DELETE FROM {table.name} AS {alias} USING {source} WHERE {self.join_condition(scope, columns, scope + columns)}"
                                f" AND {self.boolean(scope + columns, 1)}")

    def distinct_rows(self, table, columns, key):
        """Rows without two that are equal in the columns of a key."""
        positions = [i for i, c in enumerate(columns) if c.name in key]
        seen, rows = set(), []
        for _ in range(self.random.choice([1, 1, 2, 4, 8])):
            cells = [self.cell(table, c, False) for c in columns]
            value = tuple(ZERO.sub("CAST(0 AS", cells[i]) for i in positions)
            if value not in seen:
                seen.add(value)
                rows.append(f"({', '.join(cells)})")
        return rows

    def upsert(self, table):
        key = self.random.choice(table.keys)
        columns = list(table.columns)
        own = [Column(f"{table.name}.{c.name}", c.type, c.extreme) for c in table.columns]
        new = [Column(f"excluded.{c.name}", c.type, c.extreme) for c in table.columns]
        sets = self.assignments(table, own + new, self.random.choice([0, 1]), keys=0.1)
        where = f" WHERE {self.boolean(own + new, 1)}" if self.chance(0.4) else ""
        rows = self.distinct_rows(table, columns, key)
        if table.name in self.indexed or any(self.is_key(table, c) and f"{c.name} = " in sets for c in table.columns):
            # A later row could conflict with a changed one: an error here and in PostgreSQL, another change in SQLite.
            rows = rows[:1]
        values = ", ".join(rows)
        return self.step(table, f"{self.into(table, columns)} VALUES {values} ON CONFLICT ({', '.join(key)}) DO UPDATE SET {sets}{where}",
                         conflict=True)

    def nothing(self, table):
        columns = list(table.columns)
        one = len(table.keys) == 1 and table.name not in self.indexed
        key = self.random.choice(table.keys)
        target = f" ({', '.join(key)})" if self.chance(0.6) and (one or self.simple) else ""
        references = self.references if one else SQLITE if self.simple else DUCKDB
        if self.chance(0.4):
            query = self.query_for(table, columns)
            # The order of the query decides which of equal keys is inserted: at most one row is.
            query = f"SELECT * FROM ({query}) AS q0 ORDER BY {self.order(len(columns))} LIMIT 1"
            query = f"SELECT * FROM ({query}) AS q WHERE TRUE"
        else:
            rows = self.rows(table, columns, nulls=False) if one else self.distinct_rows(table, columns, key)[:1]
            if "duckdb" in references:
                rows = [row for row in rows if "NULL" not in row] or rows[:1]
            query = f"VALUES {', '.join(rows)}"
        return self.step(table, f"{self.into(table, columns)} {query} ON CONFLICT{target} DO NOTHING", references, conflict=True)

    def alternative(self, table):
        """OR REPLACE and OR IGNORE."""
        verb = self.random.choice(["INSERT OR REPLACE", "INSERT OR IGNORE"])
        rows = self.rows(table, table.columns, nulls=False)
        return self.step(table, f"{self.into(table, table.columns, verb)} VALUES {', '.join(rows)}", SQLITE,
                         returning="IGNORE" in verb, counted="IGNORE" in verb, conflict=True)

    # Statements that must fail

    def twice(self, table):
        """A row that DO UPDATE would change twice."""
        key = self.random.choice(table.keys)
        cells = [self.stored(c) for c in table.columns]
        row = f"({', '.join(cells)})"
        column = self.random.choice(table.columns)
        sets = f"{column.name} = excluded.{column.name}"
        return Change(f"INSERT INTO {table.name} VALUES {row}, {row} ON CONFLICT ({', '.join(key)}) DO UPDATE SET {sets}",
                      table.name, (), must_fail=True)

    def failing(self, table):
        column = self.random.choice(table.columns)
        cells = [self.stored(c) for c in table.columns]
        at = table.columns.index(column)
        bad = self.random.choice(self.bad_values(table, column))
        rows = ", ".join(self.rows(table, table.columns, nulls=False))
        row = f"({', '.join([*cells[:at], bad, *cells[at + 1:]])})"
        sql = self.random.choice([
            lambda: f"INSERT INTO {table.name} VALUES {rows}, {row}",
            lambda: f"INSERT INTO {table.name} VALUES {row}",
            lambda: f"INSERT INTO {table.name} ({column.name}, {column.name}) VALUES ({cells[at]}, {cells[at]})",
            lambda: f"INSERT INTO {table.name} VALUES ({', '.join([*cells, 'NULL'])})",
            lambda: f"UPDATE {table.name} SET nowhere = 1",
            lambda: f"UPDATE {table.name} SET {column.name} = {cells[at]}, {column.name} = {cells[at]}",
            lambda: f"DELETE FROM {table.name} WHERE {column.name} = (SELECT nowhere FROM {table.name})",
            lambda: f"INSERT INTO {table.name} VALUES ({', '.join(cells)}) RETURNING nowhere",
            lambda: f"INSERT INTO {table.name} VALUES ({', '.join(cells)}) RETURNING 1 / (1 - 1)",
        ])()
        return Change(sql, table.name, (), must_fail=True)

    def bad_values(self, table, column):
        """Values that no row can have."""
        bad = []
        if column.name in table.required:
            bad.append("NULL")
        if column.type in (INTEGER, *SMALL):
            bad += ["9223372036854775808", "'x'", "1 / 0", "9223372036854775807 + 1"]
        bad += {"TINYINT": ["128"], "SMALLINT": ["-32769"], "INTEGER": ["2147483648"], DECIMAL: ["1000000.00", "-999999.995"],
                "DATE": ["'2023-02-29'", "'x'"], "TIMESTAMP": ["'2024-01-01 25:00:00'"], DOUBLE: ["'1.5x'"]}.get(column.type, [])
        return bad or ["nowhere"]
