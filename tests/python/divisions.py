"""Divisions that conditions protect from zero: Keyaki must not raise an error, where references may return NULL."""

from columns import COMPARISONS, INTEGER

DOUBLE, DECIMAL = "DOUBLE PRECISION", "DECIMAL(8,2)"


def operands(generator, scope):
    """(dividend, divisor), which may be zero or NULL. Neither has subqueries."""
    divisor = generator.integer(scope, 0)
    if generator.chance(0.3):
        divisor = f"({divisor} {generator.random.choice('+-')} {generator.random.choice([generator.integer(scope, 0), 1, 2])})"
    return generator.integer(scope, generator.random.randint(0, 1)), divisor


def fraction(generator, scope):
    """(a condition on a quotient or remainder, its divisor). Quotients of floats and decimals are only compared with numbers that
    they are not close to."""
    types = [c.type for c in scope if c.type in (DOUBLE, DECIMAL) and not c.extreme]
    if types and generator.chance(0.4):
        ty = generator.random.choice(types)
        divisor = generator.value(ty, scope, 0)
        return f"{generator.value(ty, scope, 0)} / {divisor} {generator.random.choice('<>')} 0.7", divisor
    dividend, divisor = operands(generator, scope)
    operator = generator.random.choice(["/", "/", "%"])
    return f"{dividend} {operator} {divisor} {generator.random.choice(COMPARISONS)} {generator.integer_literal()}", divisor


def condition(generator, scope):
    part, divisor = fraction(generator, scope)
    guard = generator.random.choice([f"{divisor} <> 0", f"{divisor} <> 0", f"{divisor} > 0", f"0 < {divisor}", f"{divisor} BETWEEN 1 AND 5",
                                     f"{divisor} IN (1, 2, -1)", f"NOT {divisor} = 0", f"NOT ({divisor} >= 0 AND {divisor} < 1)"])
    other = generator.boolean(scope, 0)
    text = generator.random.choice([
        f"{guard} AND {part}", f"{guard} AND {part}", f"{guard} AND {other} AND {part}", f"{other} AND {guard} AND {part}",
        f"{guard} AND ({part} OR {other})", f"({guard} AND {part}) OR {other}", f"{divisor} IS NOT NULL AND {guard} AND {part}",
        f"{divisor} = 0 OR {part}", f"{other} OR {divisor} = 0 OR {part}", f"NOT ({divisor} = 0 OR {part})", f"NOT ({guard} AND {part})",
        f"CASE WHEN {guard} THEN {part} END", f"CASE WHEN {divisor} = 0 THEN {other} ELSE {part} END",
        f"CASE {divisor} WHEN 0 THEN FALSE ELSE {part} END", f"CASE WHEN {guard} THEN {part} ELSE {other} END",
        f"({guard} AND {part}) IS NULL", f"({divisor} = 0 OR {part}) IS NOT TRUE",
    ])
    return f"({text})"


def value(generator, scope):
    """An integer."""
    dividend, divisor = operands(generator, scope)
    quotient = f"({dividend} {generator.random.choice(['/', '/', '%'])} {divisor})"
    literal = generator.integer_literal()
    return generator.random.choice([
        f"CASE WHEN {divisor} <> 0 THEN {quotient} END", f"CASE WHEN {divisor} = 0 THEN {literal} ELSE {quotient} END",
        f"CASE {divisor} WHEN 0 THEN {literal} ELSE {quotient} END", f"({dividend} / NULLIF({divisor}, 0))",
        f"CASE WHEN {divisor} <> 0 AND {quotient} > {literal} THEN {quotient} ELSE {literal} END",
        f"CASE WHEN {divisor} IS NULL THEN {literal} WHEN {divisor} = 0 THEN 0 ELSE {quotient} END",
        f"COALESCE(CASE WHEN {divisor} <> 0 THEN {quotient} END, {literal})",
    ])


def having(generator, scope):
    """A condition on aggregates."""
    divisor = generator.random.choice(["count(*)", f"count({generator.value(INTEGER, scope, 0)})", f"sum({generator.integer(scope, 0)})",
                                       f"min({generator.integer(scope, 0)})"])
    part = f"sum({generator.integer(scope, 0)}) / {divisor} {generator.random.choice(COMPARISONS)} {generator.integer_literal()}"
    return generator.random.choice([f"{divisor} <> 0 AND {part}", f"({divisor} = 0 OR {part})",
                                    f"CASE WHEN {divisor} <> 0 THEN {part} ELSE count(*) > 1 END"])


def filtered(generator, types):
    """Quotients in the select list or in aggregates of rows that WHERE, or FILTER, selects, also below further conditions."""
    source, scope = generator.source([], 2)
    dividend, divisor = operands(generator, scope)
    more = f" AND {generator.boolean(scope, 1)}" if generator.chance(0.4) else ""
    guard = f"{divisor} <> 0{more}"
    quotient = f"{dividend} {generator.random.choice(['/', '%'])} {divisor}"
    kind = generator.random.random()
    if kind < 0.3:
        values = f"sum({quotient}) AS v0, count(*) AS v1"
        return f"SELECT {values} FROM {source} WHERE {guard}"
    if kind < 0.5:
        key = generator.random.choice(scope).name
        return f"SELECT {key} AS v0, sum({quotient}) FILTER (WHERE {guard}) AS v1 FROM {source} GROUP BY {key}"
    others = ", ".join(f"{generator.value(ty, scope, 1)} AS v{i + 1}" for i, ty in enumerate(types))
    text = f"SELECT {quotient} AS v0, {others} FROM {source} WHERE {guard}"
    if kind < 0.75:
        alias = generator.alias_name()
        comparison = f"{generator.random.choice(COMPARISONS)} {generator.integer_literal()}"
        return f"SELECT * FROM ({text}) AS {alias} WHERE {alias}.v0 {comparison}"
    return text
