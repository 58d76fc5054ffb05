"""Random queries: Keyaki's answers compared with SQLite's, and with each other.

The seed of a failure is in its message: `KEYAKI_SEED=<seed> python test_differential.py` repeats it, and
`KEYAKI_SEEDS=<number>` tests more seeds than by default. Two properties need no other system:

- TLP: the rows for which a condition is true, false and NULL are all rows.
- NoREC: a filter returns as many rows as its condition is true for, evaluated in the select list.
"""

import json
import os
import re
import sqlite3
import subprocess
import unittest
from decimal import Decimal

import tpch
from columns import INTEGER
from generator import Generator
from steps import Difference, known

SEEDS = int(os.environ.get("KEYAKI_SEEDS", "12"))
QUERIES = 20
PROPERTIES = 4
# Sessions of Keyaki that must give the same answers.
SETTINGS = [[], ["SET keyaki.join = 'index'"], ["SET keyaki.join = 'scan'"], ["SET keyaki.short_path = 'off'"]]
# At most one query of this many may be of an unsupported form.
SUPPORTED_SHARE = 4


def keyaki(statements, queries):
    """Runs statements, then queries. Returns for each query its rows, or the message of its error."""
    script = [statement + ";" for statement in statements]
    for number, query in enumerate(queries):
        script += [f"SELECT {number} AS marker;", f"{query};"]
    command = [tpch.KEYAKI, "--mode", "json", "--continue-on-error", "--durability", "off"]
    process = subprocess.run(command, input="\n".join(script) + "\n", capture_output=True, text=True)
    results = ["" for _ in queries]
    decoder, text, at, current = json.JSONDecoder(parse_float=Decimal), process.stdout, 0, None
    while at < len(text):
        if text[at] != "[":
            at = text.index("\n", at) + 1
            continue
        rows, at = decoder.raw_decode(text, at)
        at += 1
        if len(rows) == 1 and list(rows[0]) == ["marker"]:
            current = rows[0]["marker"]
        elif current is not None:
            results[current] = [tuple(row.values()) for row in rows]
    if current is None and queries:
        raise AssertionError(f"no answers: {process.stderr}")
    return results


def error_of(statements, query):
    """The message of the error of a query."""
    command = [tpch.KEYAKI, "--continue-on-error", "--durability", "off"]
    script = "\n".join(statement + ";" for statement in [*statements, query]) + "\n"
    return subprocess.run(command, input=script, capture_output=True, text=True).stderr


def sqlite(statements, queries):
    connection = sqlite3.connect(":memory:")
    for statement in statements:
        connection.execute(statement)
    return [connection.execute(query).fetchall() for query in queries]


def comparable(rows):
    """Rows as sorted text; truth values are numbers, as in SQLite."""
    return sorted(str(tuple(plain(value) for value in row)) for row in rows)


def plain(value):
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, (float, Decimal)):
        return int(value) if value == int(value) else round(float(value), 9)
    return value


class Differential(unittest.TestCase):
    def seeds(self):
        seed = os.environ.get("KEYAKI_SEED")
        return [int(seed)] if seed else range(SEEDS)

    def explain(self, seed, statements, query, message):
        return f"\nseed {seed}: {message}\n" + "".join(f"{s};\n" for s in [*statements, query])

    def rows_of(self, seed, statements, query, result):
        """The rows of a result; None for an unsupported form, or an instance of an open defect."""
        if result != "":
            return comparable(result)
        error = error_of(statements, query)
        if not re.search("not supported", error) and not known(Difference("error", query, error)):
            self.fail(self.explain(seed, statements, query, error.strip()))
        return None

    def test_answers_are_those_of_sqlite(self):
        total, unsupported, failures = 0, 0, []
        for seed in self.seeds():
            generator = Generator(seed)
            schema, indexes = generator.schema()
            queries = [generator.query() for _ in range(QUERIES)]
            expected = sqlite(schema, queries)
            statements = schema + indexes + SETTINGS[seed % len(SETTINGS)]
            for query, answer, result in zip(queries, expected, keyaki(statements, queries)):
                total += 1
                try:
                    rows = self.rows_of(seed, statements, query, result)
                    if rows is None:
                        unsupported += 1
                    elif rows != comparable(answer) and not known(Difference("rows", query, "")):
                        difference = f"expected {comparable(answer)}\nfound    {rows}"
                        failures.append(self.explain(seed, statements, query, difference))
                except AssertionError as error:
                    failures.append(str(error))
        self.assertEqual(failures, [], f"{len(failures)} failures:\n" + "\n".join(failures))
        self.assertLess(unsupported * SUPPORTED_SHARE, total, "too many queries are not supported")

    def test_properties(self):
        failures = []
        for seed in self.seeds():
            generator = Generator(seed + 1_000_000)
            schema, indexes = generator.schema()
            statements = schema + indexes + SETTINGS[seed % len(SETTINGS)]
            cases, queries = [], []
            for _ in range(PROPERTIES):
                source, scope = generator.source([], 3)
                values = ", ".join(f"{generator.value(INTEGER, scope, 1)} AS v{i}" for i in range(2))
                condition = generator.boolean(scope, 3)
                all_rows = f"SELECT {values} FROM {source}"
                parts = [f"{all_rows} WHERE {c}" for c in (condition, f"NOT {condition}", f"{condition} IS NULL")]
                count = f"SELECT sum(CASE WHEN {condition} THEN 1 ELSE 0 END) AS v0 FROM {source}"
                cases.append((all_rows, parts, count))
                queries += [all_rows, *parts, count]
            results = iter(keyaki(statements, queries))
            for all_rows, parts, count in cases:
                try:
                    whole, *rest = [self.rows_of(seed, statements, q, next(results)) for q in (all_rows, *parts, count)]
                except AssertionError as error:
                    failures.append(str(error))
                    break
                if whole is None or None in rest:
                    continue
                *thirds, found = rest
                if sorted(sum(thirds, [])) != whole:
                    failures.append(self.explain(seed, statements, ";\n".join(parts), f"TLP: {whole} != {thirds}"))
                if found != [f"({len(thirds[0])},)"] and (found, whole) != (["(None,)"], []):
                    failures.append(self.explain(seed, statements, f"{parts[0]};\n{count}", f"NoREC: {found}"))
        self.assertEqual(failures, [], f"{len(failures)} failures:\n" + "\n".join(failures))


if __name__ == "__main__":
    unittest.main()
