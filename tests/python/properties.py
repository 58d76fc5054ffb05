"""Properties of queries that need no reference (SQLancer): TLP, NoREC and PQS."""

from columns import Column
from steps import Pivot, Same


def step(generator):
    return generator.random.choice([partitions, partitions, counted, aggregated, distinct, pivot, pivot])(generator)


def parts(generator):
    source, scope = generator.source([], 3)
    condition = generator.boolean(scope, 2)
    return source, scope, [condition, f"NOT {condition}", f"{condition} IS NULL"]


def partitions(generator):
    """TLP: the rows for which a condition is true, false and NULL are all rows."""
    source, scope, conditions = parts(generator)
    values = ", ".join(f"{generator.value(generator.type(), scope, 1)} AS v{i}" for i in range(2))
    return Same("TLP", [f"SELECT {values} FROM {source}"], [f"SELECT {values} FROM {source} WHERE {c}" for c in conditions])


def distinct(generator):
    """TLP for DISTINCT: the union of the parts."""
    source, scope, conditions = parts(generator)
    value = f"{generator.value(generator.type(), scope, 1)} AS v0"
    union = " UNION ".join(f"SELECT {value} FROM {source} WHERE {c}" for c in conditions)
    return Same("TLP DISTINCT", [f"SELECT DISTINCT {value} FROM {source}"], [union])


def aggregated(generator):
    """TLP for aggregates: the aggregate of the parts' rows."""
    source, scope, conditions = parts(generator)
    value = generator.integer(scope, 1)
    aggregates = "count(*) AS a, count(v) AS b, sum(v) AS c, min(v) AS d, max(v) AS e"
    rows = " UNION ALL ".join(f"SELECT {value} AS v FROM {source} WHERE {c}" for c in conditions)
    return Same("TLP aggregate", [f"SELECT {aggregates} FROM (SELECT {value} AS v FROM {source}) AS q"],
                [f"SELECT {aggregates} FROM ({rows}) AS q"])


def counted(generator):
    """NoREC: a filter returns as many rows as its condition is true for, evaluated in the select list."""
    source, scope, conditions = parts(generator)
    return Same("NoREC", [f"SELECT count(*) AS v FROM {source} WHERE {conditions[0]}"],
                [f"SELECT COALESCE(sum(CASE WHEN {conditions[0]} THEN 1 ELSE 0 END), 0) AS v FROM {source}"])


def pivot(generator):
    """PQS: a row that satisfies a condition is returned. The condition follows from the row when the step runs."""
    table = generator.random.choice(list(generator.models.values()))
    scope = [Column(f"p.{c.name}", c.type, c.extreme) for c in table.columns]
    return Pivot(table, generator.random.randint(0, 1000), generator.boolean(scope, 3), generator.references[0])
