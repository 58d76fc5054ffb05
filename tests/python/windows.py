"""Window functions with determined results: no two rows are equal in all columns of ORDER BY, or the frame has all of a row's peers."""

from columns import INTEGER, outputs

FRAMES = [
    "", "", "ROWS 2 PRECEDING", "ROWS BETWEEN 1 PRECEDING AND 1 FOLLOWING", "ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING",
    "ROWS BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING", "ROWS BETWEEN 1 FOLLOWING AND 2 FOLLOWING",
    "RANGE BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING", "RANGE BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING",
    "GROUPS BETWEEN 1 PRECEDING AND CURRENT ROW", "GROUPS BETWEEN 1 PRECEDING AND 2 FOLLOWING",
    "GROUPS BETWEEN 2 PRECEDING AND 1 PRECEDING", "GROUPS BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING",
]
# Frames for ORDER BY of one integer.
RANGES = ["RANGE BETWEEN 2 PRECEDING AND 1 FOLLOWING", "RANGE 3 PRECEDING", "RANGE BETWEEN 1 FOLLOWING AND 3 FOLLOWING", *FRAMES[9:]]


def query(generator, types, outer, depth):
    """Some columns are window functions, over several windows, which may have names."""
    source, scope = distinct_rows(generator, types, outer, depth)
    where = f" WHERE {generator.boolean(scope + outer, depth - 1)}" if generator.chance(0.3) else ""
    named = [window(generator, scope) for _ in range(generator.random.randint(0, 2))]
    names = [f"n{i}" for i in range(len(named))]
    over = lambda: generator.random.choice([*names, f"({window(generator, scope)})"])
    if generator.chance(0.3):
        # A window that others extend.
        name, column = f"n{len(named)}", generator.random.choice(scope).name
        named.append(f"PARTITION BY {column}")
        over = lambda: f"({name} {window(generator, scope, partitions=False)})"
        if generator.chance(0.5):
            named[-1] = window(generator, scope, frames=False)
            over = lambda: f"({name} {generator.random.choice(FRAMES)})"
        names.append(name)
    values = ", ".join(f"{value(generator, ty, scope, over)} AS v{i}" for i, ty in enumerate(types))
    definitions = ", ".join(f"{name} AS ({definition})" for name, definition in zip(names, named))
    return f"SELECT {values} FROM {source}{where}" + (f" WINDOW {definitions}" if named else "")


def ranked(generator, types, outer, depth):
    """A filter over a rank in a derived table."""
    source, scope = distinct_rows(generator, types, outer, depth)
    alias = generator.alias_name()
    values = ", ".join(f"{column.name} AS v{i}" for i, column in enumerate(scope[: len(types)]))
    rank = f"{ranking(generator)} OVER ({window(generator, scope, frames=False)}) AS r"
    columns = outputs(alias, types)
    results = ", ".join(f"{generator.value(ty, columns, 1)} AS v{i}" for i, ty in enumerate(types))
    more = f" AND {generator.boolean(columns + outer, depth - 1)}" if generator.chance(0.4) else ""
    return f"SELECT {results} FROM (SELECT {values}, {rank} FROM {source}) AS {alias} WHERE {alias}.r {limit(generator)}{more}"


def qualified(generator, types, outer, depth):
    source, scope = distinct_rows(generator, types, outer, depth)
    where = f" WHERE {generator.boolean(scope + outer, depth - 1)}" if generator.chance(0.3) else ""
    values = ", ".join(f"{generator.value(ty, scope, 1)} AS v{i}" for i, ty in enumerate(types))
    rank = f"{ranking(generator)} OVER ({window(generator, scope, frames=False)})"
    return f"SELECT {values} FROM {source}{where} QUALIFY {rank} {limit(generator)}"


def over_groups(generator, types, outer, depth):
    """Windows over the groups of a query, ordered by its keys."""
    source, scope = generator.source(outer, depth - 1)
    where = f" WHERE {generator.boolean(scope + outer, depth - 1)}" if generator.chance(0.5) else ""
    keys = generator.random.sample(scope, min(len(scope), generator.random.randint(1, 2)))
    values = []
    for i, ty in enumerate(types):
        kinds = [lambda: generator.aggregate(ty, scope, 0)]
        kinds += [lambda key=key: f"{positional(generator, ty, key.name)} OVER ({window(generator, keys)})"
                  for key in keys if key.type == ty and not key.extreme]
        if ty == INTEGER:
            aggregate = generator.random.choice(["count(*)", "sum(count(*))", f"max({generator.aggregate(INTEGER, scope, 0)})"])
            kinds += [lambda: f"{aggregate} OVER ({window(generator, keys)})"]
            kinds += [lambda: f"{ranking(generator)} OVER ({window(generator, keys, frames=False)})"]
        values.append(f"{generator.random.choice(kinds)()} AS v{i}")
    having = generator.random.choice(["", f" HAVING count(*) > {generator.random.randint(0, 2)}"])
    return f"SELECT {', '.join(values)} FROM {source}{where} GROUP BY {', '.join(key.name for key in keys)}{having}"


def distinct_rows(generator, types, outer, depth):
    """A source without equal rows, whose first columns have the given types."""
    types = types + [generator.type() for _ in range(generator.random.randint(0, 1))]
    inner, alias = generator.alias_name(), generator.alias_name()
    return f"(SELECT DISTINCT * FROM ({generator.subquery(types, outer, depth - 1)}) AS {inner}) AS {alias}", outputs(alias, types)


def window(generator, scope, frames=True, partitions=True):
    """A window whose ORDER BY has all columns."""
    columns = generator.random.sample(scope, len(scope))
    partition = f"PARTITION BY {generator.random.choice(scope).name} " if partitions and generator.chance(0.4) else ""
    order = f"ORDER BY {', '.join(generator.direction(column.name) for column in columns)}"
    frame = generator.random.choice(FRAMES) if frames else ""
    return f"{partition}{order} {frame}".strip()


def ranking(generator):
    return generator.random.choice(["row_number()", "rank()", "dense_rank()", f"ntile({generator.random.randint(2, 3)})"])


def limit(generator):
    number = generator.random.randint(1, 4)
    return generator.random.choice([f"<= {number}", f"< {number}", f"= {number}", f"BETWEEN {number} AND 4", f"> {number}"])


def value(generator, ty, scope, over):
    """A window function of a type, or another value if there is none."""
    pick = generator.random.choice
    names = [column.name for column in scope if column.type == ty and not column.extreme]
    integers = [column for column in scope if column.type == INTEGER and not column.extreme]
    if ty == INTEGER and integers and generator.chance(0.2):
        return with_peers(generator, scope, pick(integers))
    kinds = []
    for name in names:
        kinds += [lambda name=name: positional(generator, ty, name)]
        if ty != "BOOLEAN":
            kinds += [lambda name=name: filtered(generator, f"{pick(['min', 'max'])}({name})", scope)]
    if ty == INTEGER:
        any_name = pick(scope).name
        kinds += [lambda: ranking(generator), lambda: filtered(generator, pick(["count(*)", f"count({any_name})"]), scope)]
        kinds += [lambda column=column: filtered(generator, f"sum({column.name})", scope) for column in integers]
    if not kinds or generator.chance(0.2):
        return generator.value(ty, scope, 1)
    return f"{pick(kinds)()} OVER {over()}"


def positional(generator, ty, name):
    pick = generator.random.choice
    number = generator.random.randint(1, 3)
    text = pick([f"lag({name})", f"lead({name})", f"lag({name}, {number})", f"lead({name}, {number})", f"first_value({name})",
                 f"last_value({name})", f"nth_value({name}, {number})", f"lag({name}, {number}, {generator.literal(ty)})"])
    return f"{text} IGNORE NULLS" if generator.duckdb and text.count(",") < 2 and generator.chance(0.2) else text


def filtered(generator, aggregate, scope):
    # SQLite 3.40 takes min and max of no rows in a sliding frame for 0.
    if generator.sqlite and aggregate.startswith("m"):
        return aggregate
    return f"{aggregate} FILTER (WHERE {generator.boolean(scope, 1)})" if generator.chance(0.25) else aggregate


def with_peers(generator, scope, key):
    """An aggregate whose frame has all peers of its first and last row."""
    partition = f"PARTITION BY {generator.random.choice(scope).name} " if generator.chance(0.4) else ""
    column = generator.random.choice(scope).name
    aggregate = generator.random.choice(["count(*)", f"sum({key.name})", f"min({key.name})", f"count({column})"])
    return f"{aggregate} OVER ({partition}ORDER BY {generator.direction(key.name)} {generator.random.choice(RANGES)})"
