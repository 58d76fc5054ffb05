"""Queries of rarer forms: set operations with ALL, WITH, LIMIT, DISTINCT ON, GROUPING SETS and window functions.

Each function returns a query with columns v0, v1, … of the given types, whose rows are determined. `outer` are columns of enclosing
queries. SQLite has neither parentheses around operands nor the forms in `DUCKDB_ONLY`.
"""

import windows
from columns import INTEGER, Column, outputs

# How often a query, or a part of one, has one of these forms.
SHARE = 0.15


def query(generator, types, outer, depth):
    kinds = [set_operation, set_operation, limited, with_query, with_query, windows.query, windows.query, windows.ranked,
             windows.over_groups]
    if generator.duckdb:
        kinds += DUCKDB_ONLY
    return generator.random.choice(kinds)(generator, types, outer, depth)


def select(generator, types, outer, depth):
    """A SELECT without further clauses, around a query of such a form."""
    return f"SELECT * FROM ({query(generator, types, outer, depth)}) AS {generator.alias_name()}"


# Set operations and limits

def set_operation(generator, types, outer, depth):
    pick = generator.random.choice
    operators = ["UNION", "UNION ALL", "INTERSECT", "EXCEPT"]
    if generator.duckdb:
        operators += ["INTERSECT ALL", "EXCEPT ALL"] * 3
    text = operand(generator, types, outer, depth - 1)
    for number in range(pick([1, 1, 2])):
        if number == 0 or not generator.duckdb:
            left = text if number == 0 else f"SELECT * FROM ({text}) AS {generator.alias_name()}"
            text = f"{left} {pick(operators)} {operand(generator, types, outer, depth - 1)}"
        else:
            right = operand(generator, types, outer, depth - 1)
            kinds = [f"({text}) {pick(operators)} {right}", f"{right} {pick(operators)} ({text})"]
            # SQLite evaluates from left to right, others INTERSECT first.
            text = pick(kinds if generator.sqlite else [*kinds, f"{text} {pick(operators)} {right}"])
    return text


def operand(generator, types, outer, depth):
    """A SELECT, sometimes with all rows twice."""
    text = generator.select(types, outer, depth)
    # SQLite 3.40 ignores WHERE of RIGHT and FULL joins under UNION ALL in a derived table.
    is_allowed = not (generator.sqlite and ("FULL JOIN" in text or "RIGHT JOIN" in text))
    return f"SELECT * FROM ({text} UNION ALL {text}) AS {generator.alias_name()}" if is_allowed and generator.chance(0.25) else text


def limited(generator, types, outer, depth):
    """Rows that are equal in all columns are the same: ORDER BY determines them."""
    text = f"{generator.select(types, outer, depth - 1)} ORDER BY {generator.order(len(types))}"
    count, offset = generator.random.randint(0, 5), generator.random.randint(0, 2)
    kinds = [f" LIMIT {count}", f" LIMIT {count} OFFSET {offset}"]
    if generator.duckdb:
        kinds += [f" FETCH FIRST {count} ROWS ONLY", f" OFFSET {offset} ROWS FETCH NEXT {count} ROWS ONLY", f" OFFSET {offset}"]
    return text + generator.random.choice(kinds)


def distinct_on(generator, types, outer, depth):
    alias = generator.alias_name()
    columns = outputs(alias, types)
    keys = generator.random.sample(range(len(types)), generator.random.randint(1, len(types)))
    rest = [i for i in range(len(types)) if i not in keys]
    order = ", ".join(generator.direction(columns[i].name) for i in keys + rest)
    values = ", ".join(f"{column.name} AS v{i}" for i, column in enumerate(columns))
    inner = generator.subquery(types, outer, depth - 1)
    return f"SELECT DISTINCT ON ({', '.join(columns[i].name for i in keys)}) {values} FROM ({inner}) AS {alias} ORDER BY {order}"


# WITH

def with_query(generator, types, outer, depth):
    """WITH queries that are joined with themselves and used by each other and by subqueries."""
    pick = generator.random.choice
    parts = []
    for _ in range(pick([1, 1, 2])):
        name = generator.alias_name("w")
        of = [generator.type() for _ in range(generator.random.randint(1, 2))]
        body = pick([generator.subquery, generator.select])(of, outer if generator.chance(0.2) else [], depth - 1)
        parts.append(f"{name} AS{pick(['', '', ' MATERIALIZED', ' NOT MATERIALIZED'])} ({body})")
        generator.tables[name] = [Column(f"v{i}", ty) for i, ty in enumerate(of)]
        generator.with_names.append(name)
    main = pick([self_join, generator.select, generator.subquery])
    text = main(generator, types, outer, depth) if main is self_join else main(types, outer, depth - 1)
    for _ in parts:
        del generator.tables[generator.with_names.pop()]
    if text.startswith("WITH "):
        text = f"SELECT * FROM ({text}) AS {generator.alias_name()}"
    return f"WITH {', '.join(parts)} {text}"


def self_join(generator, types, outer, depth):
    name = generator.with_names[-1]
    left, right = generator.alias_name(), generator.alias_name()
    of = [column.type for column in generator.tables[name]]
    a, b = outputs(left, of), outputs(right, of)
    kinds = ["JOIN", "JOIN", "LEFT JOIN", "FULL JOIN"]
    source = f"{name} AS {left} {generator.random.choice(kinds)} {name} AS {right} ON {generator.join_condition(a, b, a + b)}"
    where = f" WHERE {generator.boolean(a + b + outer, depth - 1)}" if generator.chance(0.6) else ""
    if generator.chance(0.3):
        return generator.grouped(types, source, a + b, outer, where, depth - 1)
    values = ", ".join(f"{generator.value(ty, a + b + outer, depth - 1)} AS v{i}" for i, ty in enumerate(types))
    return f"SELECT {values} FROM {source}{where}"


# Grouping

def grouping_sets(generator, types, outer, depth):
    """Values are keys and grouping() of keys; others are aggregates."""
    pick, sample = generator.random.choice, generator.random.sample
    source, scope = generator.source(outer, depth - 1)
    where = f" WHERE {generator.boolean(scope + outer, depth - 1)}" if generator.chance(0.5) else ""
    keys = sample(scope, min(len(scope), generator.random.randint(1, 3)))
    names = [key.name for key in keys]
    some = lambda: ", ".join(sample(names, generator.random.randint(1, len(names))))
    sets = ", ".join(f"({pick([some(), some(), ''])})" for _ in range(pick([1, 2, 3])))
    listed = ", ".join(names)
    group = pick([f"ROLLUP ({listed})", f"CUBE ({listed})", f"GROUPING SETS (({listed}), {sets})", f"{names[0]}, ROLLUP ({listed})"])
    values = []
    for i, ty in enumerate(types):
        same = [key.name for key in keys if key.type == ty and not key.extreme]
        kinds = [lambda: generator.aggregate(ty, scope, depth - 1)]
        if same:
            kinds += [lambda: pick(same)] * 3
        if ty == INTEGER:
            kinds.append(lambda: f"CAST(grouping({some()}) AS BIGINT)")
        values.append(f"{pick(kinds)()} AS v{i}")
    having = pick(["", "", f" HAVING grouping({some()}) {pick(['=', '>'])} 0", f" HAVING count(*) > {generator.random.randint(0, 2)}"])
    return f"SELECT {', '.join(values)} FROM {source}{where} GROUP BY {group}{having}"


DUCKDB_ONLY = [distinct_on, grouping_sets, windows.qualified]
