"""Random tables, changes and queries of many types, in the SQL that Keyaki shares with DuckDB or with DuckDB and SQLite.

The generator never looks at data: an episode follows from its seed and the profile. Floats are multiples of 0.25 so that sums do
not depend on the order; extreme values are stored and compared, and not used in arithmetic.
"""

import re
from dataclasses import dataclass, field

from columns import COMPARISONS, INTEGER, TEXT, Column
from generator import Generator

# Differences between the dialects, and how the generator avoids them.
DIALECTS = {
    "1 / 0": "an error in Keyaki, NULL in SQLite: only in statements that must fail, and where a condition protects",
    "a / b": "DuckDB divides integers as floats, unless it is set to do otherwise",
    "IGNORE NULLS": "inside of the parentheses in DuckDB, which engines.DuckDb changes; not in SQLite",
    "TINYINT + 5": "DuckDB computes in the column's type and overflows: small integers are cast to BIGINT first",
    "integers beyond BIGINT": "SQLite continues with floats: extreme values are only compared",
    "types of values": "SQLite stores any value in any column: out-of-range and malformed values only with DuckDB",
    "NOT NULL and OR REPLACE, OR IGNORE": "SQLite uses the default, or skips the row: no NULL for such columns",
    "OR REPLACE with several keys": "DuckDB refuses it: only with SQLite",
    "DO NOTHING for several keys": "DuckDB compares new rows with each other before it drops conflicting ones: only with SQLite",
    "NULL in a key and DO NOTHING": "DuckDB drops all but one of several new rows with a NULL: no NULL beside other rows",
    "a row twice in DO UPDATE": "an error in Keyaki and PostgreSQL, updated twice in SQLite and DuckDB: must fail",
    "DELETE … USING": "not in SQLite: only with DuckDB",
    "uniqueness": "Keyaki checks at the end of a statement, DuckDB and SQLite row by row: engines.Reference checks by a query",
    "subqueries of UPDATE": "SQLite evaluates correlated ones over rows changed before: only with DuckDB",
    "IS NULL in RETURNING": "SQLite 3.40 takes columns that an INSERT omits for NOT NULL: only with DuckDB",
    "-0.0": "stored as 0.0 by Keyaki: no casts of floats to text",
    "avg": "Keyaki rounds those of DECIMAL(8,2) to six digits: compared with a tolerance, only in the outermost select list",
    "RETURNING": "SQLite can return a number as text: compared as a number where Keyaki has one",
}

# Open defects of Keyaki: (name, a pattern of the statement, a pattern of the error or None for wrong rows, minimal SQL).
# Differences that match are counted, not reported. docs/plan.md lists them.
DEFECTS = []

BOTH, DUCKDB, SQLITE = ("sqlite", "duckdb"), ("duckdb",), ("sqlite",)
DOUBLE, DECIMAL, BOOLEAN = "DOUBLE PRECISION", "DECIMAL(8,2)", "BOOLEAN"
QUARTERS = ["0.0", "0.25", "1.5", "-2.25", "3.0", "-1.0", "7.75"]
POOLS = {
    DOUBLE: [f"CAST({value} AS DOUBLE PRECISION)" for value in [*QUARTERS, "-0.0"]],
    "REAL": [f"CAST({value} AS REAL)" for value in QUARTERS],
    DECIMAL: ["0.00", "0.25", "1.50", "-2.25", "3.00", "-0.01", "12.34"],
    BOOLEAN: ["TRUE", "FALSE"],
    "TINYINT": ["-128", "127", "0", "-1", "1", "5"],
    "SMALLINT": ["-32768", "32767", "0", "-1", "2", "5"],
    "INTEGER": ["-2147483648", "2147483647", "0", "-1", "3", "5"],
    "DATE": [f"DATE '{d}'" for d in ["0001-01-01", "9999-12-31", "1970-01-01", "1969-12-31", "2000-02-29", "2024-03-31"]],
    "TIMESTAMP": [f"TIMESTAMP '{t}'" for t in [
        "1970-01-01 00:00:00", "1969-12-31 23:59:59.999999", "2024-02-29 12:34:56.789", "2000-01-01 00:00:01",
        "0001-01-01 00:00:00", "9999-12-31 23:59:59.999999"]],
    "BYTEA": [f"X'{b}'" for b in ["", "00", "00ff", "ff", "616263"]],
}
EXTREMES = {
    INTEGER: ["9223372036854775807", "-9223372036854775807", "(-9223372036854775807 - 1)", "0", "1"],
    DOUBLE: [f"CAST('{value}' AS DOUBLE PRECISION)"
             for value in ["1.7976931348623157e308", "-1.7976931348623157e308", "5e-324", "1e300", "0.1", "-0.0", "0"]],
    DECIMAL: ["999999.99", "-999999.99", "0.00", "0.01"],
}
SMALL = ["TINYINT", "SMALLINT", "INTEGER"]
# The clauses of `Generator.query` after ORDER BY over all columns.
TOTAL_ORDER = re.compile(r" ORDER BY (\d \w+ NULLS \w+(, )?)+( LIMIT \d+)?( OFFSET \d+)?$")
WORDS = ["", "a", "ab", "b", "B", "a b", "é", "zz", "日本", "😀", "a%", "a_b", "''", "e\u0301", "\U0010ffff", "NULL"]
PATTERNS = ["%", "a%", "%b", "_", "a_", "%a%", "", "é", "_b%", "%%", "日%", "a b"]


@dataclass
class Table:
    name: str
    columns: list
    required: set
    primary: tuple
    unique: list
    defaults: dict = field(default_factory=dict)

    @property
    def keys(self):
        return ([self.primary] if self.primary else []) + self.unique

    def definition(self, keys=True):
        """CREATE TABLE. Without keys for references, where the columns of the primary key are only NOT NULL."""
        parts = []
        for column in self.columns:
            text = f"{column.name} {column.type}"
            if column.name in self.defaults:
                text += f" DEFAULT ({self.defaults[column.name]})"
            if column.name in self.required:
                text += " NOT NULL"
            parts.append(text)
        if keys and self.primary:
            parts.append(f"PRIMARY KEY ({', '.join(self.primary)})")
        if keys:
            parts += [f"UNIQUE ({', '.join(key)})" for key in self.unique]
        return f"CREATE TABLE {self.name} ({', '.join(parts)})"

    def column(self, name):
        return next(column for column in self.columns if column.name == name)


class Typed(Generator):
    """Queries over all types of a profile; `simple` is the profile that SQLite shares."""

    columns_max = 8
    duckdb = True

    def __init__(self, seed, simple):
        super().__init__(seed)
        self.simple = self.sqlite = simple
        self.types = [INTEGER, TEXT, DOUBLE] if simple else [INTEGER, TEXT, *POOLS]
        self.models = {}

    def table(self, name):
        pick = self.random.choice
        columns = [Column(f"{name[0]}{i}", self.type()) for i in range(self.random.randint(1, 6))]
        for column in columns:
            column.extreme = column.type in EXTREMES and self.chance(0.2)
        keys = self.random.sample(columns, min(len(columns), pick([0, 1, 1, 1, 2, 3])))
        primary = tuple(c.name for c in keys if c.type != "REAL")
        required = {c.name for c in columns if c.name in primary or self.chance(0.15)}
        unique = []
        while self.chance(0.25) and len(unique) < 2:
            key = tuple(c.name for c in self.random.sample(columns, min(len(columns), pick([1, 1, 2]))))
            if key != primary and key not in unique:
                unique.append(key)
        table = Table(name, columns, required, primary, unique)
        for column in columns:
            if self.chance(0.25):
                table.defaults[column.name] = self.stored(column)
        self.models[name] = table
        self.tables[name] = columns
        return table

    def index(self, table, number):
        columns = self.random.sample(table.columns, min(len(table.columns), self.random.choice([1, 1, 2])))
        first = columns[0].type
        methods = ["", "", " USING betree", " USING masstree"]
        if first in [INTEGER, *SMALL, "DATE", "TIMESTAMP"]:
            methods.append(" USING vast")
        rest = [c.name for c in table.columns if c not in columns]
        include = f" INCLUDE ({self.random.choice(rest)})" if rest and self.chance(0.3) else ""
        return (f"CREATE INDEX i{number}_{table.name} ON {table.name}{self.random.choice(methods)} "
                f"({', '.join(c.name for c in columns)}){include}")

    # Values

    def type(self):
        return self.random.choice(self.types) if self.chance(0.5) else INTEGER if self.chance(0.7) else TEXT

    def literal(self, ty):
        if ty in POOLS:
            return self.random.choice(POOLS[ty])
        return super().literal(ty)

    def text_literal(self):
        return f"'{self.random.choice(WORDS)}'"

    def stored(self, column):
        """A literal for a column."""
        return self.random.choice(EXTREMES[column.type]) if column.extreme else self.literal(column.type)

    def value(self, ty, scope, depth):
        if ty == INTEGER:
            return self.integer(scope, depth)
        if ty == TEXT:
            return self.text(scope, depth)
        columns = [c for c in scope if c.type == ty and not c.extreme]
        inner = lambda: self.value(ty, scope, depth - 1)
        functions = [lambda: f"NULLIF({inner()}, {inner()})", lambda: f"CASE WHEN {self.boolean(scope, depth - 1)} THEN {inner()} END"]
        if ty == DOUBLE:
            functions += [lambda: f"({inner()} {self.random.choice('+-')} {inner()})", lambda: f"abs({inner()})"]
        if ty == BOOLEAN:
            functions += [lambda: self.boolean(scope, depth - 1)] * 2
        return self.expression(ty, lambda: self.literal(ty), columns, inner, functions, scope, depth)

    def integer(self, scope, depth):
        small = [Column(f"CAST({c.name} AS BIGINT)", INTEGER) for c in scope if c.type in SMALL]
        if depth > 0 and self.chance(0.1):
            return self.random.choice([
                lambda: f"length({self.text(scope, depth - 1)})",
                lambda: f"({self.integer(scope, depth - 1)} % {self.random.choice([2, 3, -5])})",
                lambda: f"({self.integer(scope, 0)} * {self.random.choice([0, 2, -3])})",
            ])()
        return super().integer(scope + small, depth)

    def text(self, scope, depth):
        if depth > 0 and self.chance(0.1):
            # The upper case of letters beyond ASCII depends on the system.
            return self.random.choice([
                lambda: f"substr({self.text(scope, depth - 1)}, {self.random.randint(1, 3)}, {self.random.randint(0, 3)})",
                lambda: f"replace({self.text(scope, depth - 1)}, 'a', 'bb')",
            ])()
        return super().text(scope, depth)

    def aggregate(self, ty, scope, depth):
        if ty in (INTEGER, TEXT):
            return super().aggregate(ty, scope, depth)
        inner = self.value(ty, scope, min(depth, 1))
        if ty == DOUBLE and self.chance(0.5):
            return f"sum({inner})"
        if ty == BOOLEAN:
            return f"(count(*) > {self.integer_literal()})"
        return f"{self.random.choice(['min', 'max'])}({inner})"

    def boolean(self, scope, depth):
        if self.chance(0.12):
            return f"({self.text(scope, 0)} {self.negation()}LIKE '{self.random.choice(PATTERNS)}')"
        extremes = [c for c in scope if c.type in (DOUBLE, DECIMAL) and c.extreme]
        if extremes and self.chance(0.1):
            column = self.random.choice(extremes)
            return f"({column.name} {self.random.choice(COMPARISONS)} {self.stored(column)})"
        return super().boolean([c for c in scope if c not in extremes], depth)

    # Queries

    def statement(self):
        """(query, whether its order is total)."""
        kind = self.random.random()
        if kind < 0.15:
            return self.window(), False
        if kind < 0.25:
            return self.averages(), False
        query = self.query()
        return query, TOTAL_ORDER.search(query) is not None

    def window(self):
        """A window function. Peers in the order of all columns are equal rows, so the frames are the same for all systems.
        Two functions could order peers differently."""
        types = [self.type() for _ in range(self.random.randint(1, 3))]
        inner = self.subquery(types, [], 2)
        keys = [f"v{i} {d} NULLS {n}" for i in self.random.sample(range(len(types)), len(types))
                for d in [self.random.choice(["ASC", "DESC"])] for n in [self.random.choice(["FIRST", "LAST"])]]
        values = [f"v{i}" for i in range(len(types))]
        partition = f"PARTITION BY v{self.random.randrange(len(types))} " if self.chance(0.5) else ""
        column = self.random.randrange(len(types))
        frame = self.random.choice([
            "", "", " ROWS BETWEEN 1 PRECEDING AND 1 FOLLOWING", " ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW",
            " ROWS BETWEEN 2 PRECEDING AND 1 PRECEDING", " ROWS BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING",
            " RANGE BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING"])
        aggregates = ["count(*)", f"count(v{column})", f"first_value(v{column})", f"last_value(v{column})"]
        if types[column] != BOOLEAN:
            aggregates += [f"min(v{column})", f"max(v{column})"]
        if types[column] in (INTEGER, DOUBLE):
            aggregates.append(f"sum(v{column})")
        function = self.random.choice([
            "row_number()", "rank()", "dense_rank()", f"lag(v{column})", f"lead(v{column}, 2)",
            f"ntile({self.random.randint(1, 4)})", *[a + "\0" for a in aggregates]])
        frame = frame if function.endswith("\0") else ""
        values.append(f"{function.rstrip(chr(0))} OVER ({partition}ORDER BY {', '.join(keys)}{frame}) AS w0")
        return f"SELECT {', '.join(values)} FROM ({inner}) AS q0"

    def averages(self):
        source, scope = self.source([], 2)
        where = f" WHERE {self.boolean(scope, 2)}" if self.chance(0.6) else ""
        numbers = [c for c in scope if c.type in (INTEGER, DOUBLE, DECIMAL, *SMALL) and not c.extreme]
        values = [f"avg({self.random.choice(numbers).name}) AS v0" if numbers else "count(*) AS v0"]
        values.append(f"count(*) FILTER (WHERE {self.boolean(scope, 1)}) AS v1")
        if self.chance(0.5):
            key = self.random.choice(scope)
            return f"SELECT {key.name} AS k, {', '.join(values)} FROM {source}{where} GROUP BY {key.name}"
        return f"SELECT {', '.join(values)} FROM {source}{where}"
