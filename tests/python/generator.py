"""Random schemas, rows and queries in the SQL that Keyaki and SQLite share.

Everything follows from a seed. Expressions have a type: integers stay small enough for sums, except in the columns named
`x`, which hold extreme values and are only compared. Text is compared byte by byte in both systems.
"""

import random

import divisions
import forms
import joins
from columns import COMPARISONS, INTEGER, TEXT, Column, outputs

EXTREMES = ["9223372036854775807", "-9223372036854775807", "4611686018427387904", "0"]
WORDS = ["", "a", "ab", "b", "B", "a b", "é", "zz"]


class Generator:
    # Joins are added to a FROM list while it has fewer columns.
    columns_max = 16
    # The systems that judge.
    sqlite, duckdb = True, False

    def __init__(self, seed):
        self.random = random.Random(seed)
        # Tables and, inside of their scope, WITH queries; the names of these.
        self.tables, self.with_names = {}, []
        self.aliases = 0

    # Schemas and rows

    def schema(self):
        """Statements that create and fill the tables, for both systems, and CREATE INDEX statements for Keyaki."""
        statements, indexes = [], []
        for number in range(self.random.randint(2, 4)):
            name = f"t{number}"
            columns = [Column("id", INTEGER)] if self.chance(0.6) else []
            columns += [Column(f"c{i}", INTEGER) for i in range(self.random.randint(1, 3))]
            columns += [Column(f"s{i}", TEXT) for i in range(self.random.randint(0, 2))]
            if self.chance(0.3):
                columns.append(Column("x", INTEGER, True))
            required = {column.name for column in columns if column.name == "id" or self.chance(0.2)}
            self.tables[name] = columns
            definitions = [
                f"{column.name} {column.type}"
                + (" PRIMARY KEY" if column.name == "id" else " NOT NULL" if column.name in required else "")
                for column in columns
            ]
            statements.append(f"CREATE TABLE {name} ({', '.join(definitions)})")
            rows = [self.row(columns, required, i) for i in range(self.random.choice([0, 1, 5, 12, 25]))]
            if rows:
                statements.append(f"INSERT INTO {name} VALUES {', '.join(rows)}")
            for column in columns:
                if column.name != "id" and self.chance(0.3):
                    indexes.append(f"CREATE INDEX ON {name} ({column.name})")
        return statements, indexes

    def row(self, columns, required, number):
        values = []
        for column in columns:
            if column.name == "id":
                values.append(str(number * 2 - 3))
            elif column.name not in required and self.chance(0.2):
                values.append("NULL")
            elif column.extreme:
                values.append(self.random.choice(EXTREMES))
            else:
                values.append(self.integer_literal() if column.type == INTEGER else self.text_literal())
        return f"({', '.join(values)})"

    # Queries

    def query(self):
        """A query whose rows do not depend on the order of execution."""
        kind = self.random.random()
        if kind < 0.15:
            types = [self.type() for _ in range(self.random.randint(1, 2))]
            operator = self.random.choice(["UNION", "UNION ALL", "INTERSECT", "EXCEPT"])
            left, right = self.select(types, [], 2), self.select(types, [], 2)
            query = f"{left} {operator} {right}"
            return f"{query} ORDER BY {self.order(len(types))} LIMIT 7" if self.chance(0.3) else query
        types = [self.type() for _ in range(self.random.randint(1, 3))]
        if kind < 0.21:
            return self.random.choice([joins.star, joins.tables, divisions.filtered])(self, types)
        if kind < 0.35:
            return forms.query(self, types, [], self.random.choice([2, 2, 3]))
        query = self.select(types, [], 3)
        if kind < 0.55:
            limit = f" LIMIT {self.random.randint(0, 6)}" + (f" OFFSET {self.random.randint(0, 3)}" if self.chance(0.4) else "")
            query += f" ORDER BY {self.order(len(types))}{limit}"
        return query

    def order(self, columns):
        """All columns, in any order: rows that are equal in them are the same."""
        return ", ".join(self.direction(i) for i in self.random.sample(range(1, columns + 1), columns))

    def direction(self, key):
        return f"{key} {self.random.choice(['ASC', 'DESC'])} NULLS {self.random.choice(['FIRST', 'LAST'])}"

    def alias_name(self, prefix="q"):
        self.aliases += 1
        return f"{prefix}{self.aliases}"

    def subquery(self, types, outer, depth):
        """As `select`, for a place where any query may stand in parentheses."""
        return forms.query(self, types, outer, depth) if depth > 1 and self.chance(forms.SHARE) else self.select(types, outer, depth)

    def select(self, types, outer, depth):
        """SELECT with columns v0, v1, … of the given types, without clauses after HAVING. `outer` are columns of enclosing queries."""
        if depth > 1 and self.chance(forms.SHARE / 2):
            return forms.select(self, types, outer, depth)
        source, scope = self.source(outer, depth)
        visible = scope + outer
        where = f" WHERE {self.boolean(visible, depth)}" if self.chance(0.7) else ""
        if self.chance(0.3):
            return self.grouped(types, source, scope, outer, where, depth)
        values = [f"{self.value(ty, visible, depth)} AS v{i}" for i, ty in enumerate(types)]
        distinct = "DISTINCT " if self.chance(0.2) else ""
        return f"SELECT {distinct}{', '.join(values)} FROM {source}{where}"

    def grouped(self, types, source, scope, outer, where, depth):
        keys = self.random.sample(scope, min(len(scope), self.random.randint(0, 2)))
        known = keys + outer
        values, grouped = [], bool(keys)
        for i, ty in enumerate(types):
            if known and self.chance(0.4):
                value = self.value(ty, known, depth - 1)
            else:
                value, grouped = self.aggregate(ty, scope, depth), True
            values.append(f"{value} AS v{i}")
        group = f" GROUP BY {', '.join(key.name for key in keys)}" if keys else ""
        condition = f"{self.aggregate(INTEGER, scope, depth)} {self.random.choice(COMPARISONS[:6])} {self.integer_literal()}"
        if self.chance(0.3):
            condition = divisions.having(self, scope)
        having = f" HAVING {condition}" if grouped and self.chance(0.3) else ""
        return f"SELECT {', '.join(values)} FROM {source}{where}{group}{having}"

    def source(self, outer, depth):
        """A FROM list and its columns."""
        is_merged = depth > 1 and self.chance(0.1)
        text, scope = joins.merged(self, depth) if is_merged else self.relation(depth)
        # SQLite 3.40 loses rows of RIGHT and FULL joins that follow a join without rows.
        kinds = ["JOIN", "JOIN", "LEFT JOIN", "LEFT JOIN", "CROSS JOIN", "RIGHT JOIN", "FULL JOIN"]
        if is_merged and self.sqlite:
            kinds = kinds[:5]
        while depth > 1 and self.chance(0.45) and len(scope) < self.columns_max:
            right, columns = self.relation(depth - 1)
            both = scope + columns
            join = self.random.choice(kinds)
            kinds = kinds[:5] if self.sqlite else kinds
            text = f"{text} {join} {right}"
            if join != "CROSS JOIN":
                text += f" ON {self.join_condition(scope, columns, both)}"
            scope = both
        return text, scope

    def relation(self, depth):
        alias = self.alias_name()
        if depth > 1 and self.chance(0.2):
            types = [self.type() for _ in range(self.random.randint(1, 2))]
            if self.chance(0.2):
                query = f"{self.select(types, [], depth - 1)} ORDER BY {self.order(len(types))} LIMIT {self.random.randint(1, 5)}"
            else:
                query = self.subquery(types, [], depth - 1)
            return f"({query}) AS {alias}", outputs(alias, types)
        name = self.random.choice(self.with_names if self.with_names and self.chance(0.6) else list(self.tables))
        columns = [Column(f"{alias}.{c.name}", c.type, c.extreme) for c in self.tables[name]]
        return f"{name} AS {alias}", columns

    def join_condition(self, left, right, both):
        pairs = [(a, b) for a in left for b in right if a.type == b.type]
        conditions = []
        if pairs and self.chance(0.9):
            a, b = self.random.choice(pairs)
            operator = self.random.choice(["=", "=", "=", "IS NOT DISTINCT FROM", "<"])
            conditions.append(f"{a.name} {operator} {b.name}")
        if not conditions or self.chance(0.3):
            conditions.append(self.boolean(both, 1))
        return " AND ".join(conditions)

    # Expressions

    def value(self, ty, scope, depth):
        return self.integer(scope, depth) if ty == INTEGER else self.text(scope, depth)

    def integer(self, scope, depth):
        columns = [c for c in scope if c.type == INTEGER and not c.extreme]
        inner = lambda: self.integer(scope, depth - 1)
        functions = [
            lambda: f"({inner()} {self.random.choice('+-')} {inner()})",
            lambda: f"CASE WHEN {self.boolean(scope, depth - 1)} THEN {inner()} END",
            lambda: f"NULLIF({inner()}, {inner()})",
            lambda: f"abs({inner()})",
        ]
        return self.expression(INTEGER, self.integer_literal, columns, inner, functions, scope, depth)

    def text(self, scope, depth):
        columns = [c for c in scope if c.type == TEXT]
        inner = lambda: self.text(scope, depth - 1)
        functions = [lambda: f"({inner()} || {inner()})"]
        return self.expression(TEXT, self.text_literal, columns, inner, functions, scope, depth)

    def expression(self, ty, literal, columns, inner, functions, scope, depth):
        """A literal, a column, an expression of `inner` expressions, or a subquery."""
        choices = [literal]
        if columns:
            choices += [lambda: self.random.choice(columns).name] * 4
        if depth > 0:
            choices += functions
            choices += [
                lambda: f"CASE WHEN {self.boolean(scope, depth - 1)} THEN {inner()} ELSE {inner()} END",
                lambda: f"COALESCE({inner()}, {inner()})",
            ]
            if ty == INTEGER:
                choices.append(lambda: divisions.value(self, scope))
        if depth > 1:
            choices.append(lambda: self.scalar(ty, scope, depth))
        return self.random.choice(choices)()

    def scalar(self, ty, scope, depth):
        """A scalar subquery with at most one row."""
        if depth > 2 and self.chance(0.3):
            alias = self.alias_name()
            return f"(SELECT {self.aggregate(ty, outputs(alias, [ty]), 0)} FROM ({self.subquery([ty], scope, depth - 1)}) AS {alias})"
        source, columns = self.source(scope, depth - 1)
        where = f" WHERE {self.boolean(columns + scope, depth - 2)}" if self.chance(0.8) else ""
        if self.chance(0.6):
            return f"(SELECT {self.aggregate(ty, columns, depth - 2)} FROM {source}{where})"
        value = self.value(ty, columns, 0)
        return f"(SELECT {value} FROM {source}{where} ORDER BY 1 {self.random.choice(['ASC NULLS LAST', 'DESC NULLS FIRST'])} LIMIT 1)"

    def aggregate(self, ty, scope, depth):
        inner = lambda t: self.value(t, scope, min(depth, 1))
        if ty == TEXT:
            return f"{self.random.choice(['min', 'max'])}({inner(TEXT)})"
        extremes = [c.name for c in scope if c.extreme]
        choices = [
            lambda: "count(*)",
            lambda: f"count({inner(self.type())})",
            lambda: f"count(DISTINCT {inner(self.type())})",
            lambda: f"sum({inner(INTEGER)})",
            lambda: f"min({inner(INTEGER)})",
            lambda: f"max({inner(INTEGER)})",
        ]
        if extremes:
            choices.append(lambda: f"count({self.random.choice(extremes)})")
        return self.random.choice(choices)()

    def boolean(self, scope, depth):
        ty = self.type()
        extremes = [c for c in scope if c.extreme]
        simple = [
            lambda: f"{self.value(ty, scope, 0)} {self.random.choice(COMPARISONS)} {self.value(ty, scope, 0)}",
            lambda: f"{self.value(ty, scope, 0)} {self.random.choice(COMPARISONS[:6])} {self.literal(ty)}",
            lambda: f"{self.value(ty, scope, 0)} IS {self.random.choice(['', 'NOT '])}NULL",
            lambda: f"{self.value(ty, scope, 0)} {self.negation()}IN ({self.items(ty, scope)})",
            lambda: f"{self.value(ty, scope, 0)} {self.negation()}BETWEEN {self.literal(ty)} AND {self.literal(ty)}",
        ]
        if extremes:
            simple.append(lambda: f"{self.random.choice(extremes).name} {self.random.choice(COMPARISONS[:6])} {self.random.choice(EXTREMES)}")
        if depth <= 0:
            return f"({self.random.choice(simple)()})"
        inner = lambda: self.boolean(scope, depth - 1)
        choices = simple + [lambda: f"{inner()} AND {inner()}", lambda: f"{inner()} OR {inner()}"] * 3 + [
            lambda: f"NOT {inner()}",
            lambda: f"{inner()} IS {self.random.choice(['NULL', 'NOT NULL', 'TRUE', 'NOT FALSE'])}",
            lambda: f"{self.value(ty, scope, depth - 1)} {self.random.choice(COMPARISONS)} {self.value(ty, scope, depth - 1)}",
            lambda: divisions.condition(self, scope),
        ]
        if depth > 1:
            choices += [
                lambda: f"{self.negation()}EXISTS ({self.subquery([ty], scope, depth - 1)})",
                lambda: f"{self.value(ty, scope, 0)} {self.negation()}IN ({self.subquery([ty], scope, depth - 1)})",
                lambda: f"{self.value(ty, scope, 0)} {self.negation()}IN ({self.subquery([ty], [], depth - 1)})",
            ]
            if self.duckdb:
                choices.append(lambda: self.quantified(ty, self.random.choice([scope, []]), scope, depth))
        return f"({self.random.choice(choices)()})"

    def quantified(self, ty, outer, scope, depth):
        """A comparison with ANY or ALL."""
        operator = f"{self.random.choice(COMPARISONS[:6])} {self.random.choice(['ANY', 'ALL'])}"
        return f"{self.value(ty, scope, 0)} {operator} ({self.subquery([ty], outer, depth - 1)})"

    def items(self, ty, scope):
        return ", ".join(
            "NULL" if self.chance(0.07) else self.value(ty, scope, 0) if self.chance(0.15) else self.literal(ty)
            for _ in range(self.random.randint(1, 6))
        )

    # Leaves

    def literal(self, ty):
        return self.integer_literal() if ty == INTEGER else self.text_literal()

    def integer_literal(self):
        return str(self.random.randint(-3, 7))

    def text_literal(self):
        return f"'{self.random.choice(WORDS)}'"

    def negation(self):
        return "NOT " if self.chance(0.4) else ""

    def type(self):
        return INTEGER if self.chance(0.7) else TEXT

    def chance(self, probability):
        return self.random.random() < probability
