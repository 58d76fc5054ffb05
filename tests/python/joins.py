"""Joins with USING and NATURAL. The relations of a chain are derived tables whose columns have names that no other table has."""

from columns import INTEGER, Column

KINDS = ["JOIN", "JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN"]


def merged(generator, depth):
    """A FROM list and its columns."""
    pick = generator.random.choice
    keys = [Column(generator.alias_name("k"), generator.type()) for _ in range(pick([1, 1, 2]))]
    text, scope, alias = relation(generator, keys, depth)
    for number in range(pick([1, 1, 2])):
        # SQLite 3.40 loses rows of RIGHT and FULL joins that follow a join without rows.
        join = pick(KINDS if number == 0 or not generator.sqlite else KINDS[:3])
        right, columns, _ = relation(generator, keys, depth)
        if not generator.sqlite and generator.chance(0.2):
            more, others, _ = relation(generator, keys, depth)
            right, columns = joined(generator, right, columns, pick(KINDS), more, others)
            right = f"({right})"
        text, scope = joined(generator, text, scope, join, right, columns)
    # The columns of the relations keep their qualified names.
    own = [Column(f"{alias}.{keys[0].name}", keys[0].type)] if generator.chance(0.2) else []
    return text, scope + own


def joined(generator, left, scope, join, right, columns):
    """A join by the common columns, and the columns of both sides."""
    known = [column.name for column in scope]
    common = [column.name for column in columns if column.name in known]
    generator.random.shuffle(common)
    columns = scope + [column for column in columns if column.name not in known]
    if generator.chance(0.3):
        return f"{left} NATURAL {join} {right}", columns
    return f"{left} {join} {right} USING ({', '.join(common)})", columns


def relation(generator, keys, depth):
    """A derived table with the first key, some of the others and up to two further columns: its text, columns and alias."""
    source, scope = generator.relation(depth - 1)
    chosen = keys[:1] + [key for key in keys[1:] if generator.chance(0.8)]
    columns = chosen + [Column(generator.alias_name("a"), generator.type()) for _ in range(generator.random.randint(0, 2))]
    generator.random.shuffle(columns)
    values = ", ".join(f"{value(generator, column.type, scope)} AS {column.name}" for column in columns)
    where = f" WHERE {generator.boolean(scope, 1)}" if generator.chance(0.3) else ""
    alias = generator.alias_name()
    return f"(SELECT {values} FROM {source}{where}) AS {alias}", columns, alias


def value(generator, ty, scope):
    """Mostly a column, so that rows have partners and NULLs."""
    names = [column.name for column in scope if column.type == ty and not column.extreme]
    text = generator.random.choice(names) if names and generator.chance(0.8) else generator.value(ty, scope, 1)
    return f"CAST({text} % 100 AS INTEGER)" if ty == INTEGER and generator.chance(0.1) else text


def star(generator, _):
    """All columns of a chain: merged columns occur once. Their types follow from the chain."""
    text, scope = merged(generator, 2)
    where = f" WHERE {generator.boolean(scope, 2)}" if generator.chance(0.5) else ""
    return f"SELECT * FROM {text}{where}"


def tables(generator, types):
    """A join of a stored table with itself. In a subquery, an unqualified name could be that of another column: there is none."""
    name = generator.random.choice([name for name in generator.tables if name not in generator.with_names])
    of = generator.tables[name]
    left, right = generator.alias_name(), generator.alias_name()
    common = generator.random.sample(of, min(len(of), generator.random.choice([1, 1, 2])))
    keys = [column.name for column in common]
    scope = common + [Column(f"{alias}.{c.name}", c.type, c.extreme) for alias in (left, right) for c in of if c.name not in keys]
    where = f" WHERE {generator.boolean(scope, 1)}" if generator.chance(0.6) else ""
    source = f"{name} AS {left} {generator.random.choice(KINDS)} {name} AS {right} USING ({', '.join(keys)})"
    if generator.chance(0.4):
        return generator.grouped(types, source, scope, [], where, 1)
    values = ", ".join(f"{generator.value(ty, scope, 1)} AS v{i}" for i, ty in enumerate(types))
    return f"SELECT {values} FROM {source}{where}"
