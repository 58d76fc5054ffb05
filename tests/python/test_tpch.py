"""All 22 TPC-H queries in every execution mode, compared with DuckDB over the same files, value by value.

Scale factor: $TPCH_SCALE (default 0.01).
"""

import os
import tempfile
import unittest
from decimal import Decimal
from pathlib import Path

import tpch

SCALE = float(os.environ.get("TPCH_SCALE", "0.01"))

# execution, join
MODES = [
    ("out_of_order", "auto"),
    ("out_of_order", "index"),
    ("out_of_order", "scan"),
    ("in_order", "index"),
    ("in_order", "scan"),
]

# Sort columns of results with ties: rows with equal sort columns may come in any order.
SORT_COLUMNS = {3: [1, 2], 5: [1], 10: [2], 11: [1], 18: [4, 3]}


def same(expected, got):
    """True if a value equals DuckDB's. Floats, and decimals where DuckDB has a float, are compared with a tolerance."""
    if expected is None or got is None:
        return expected is got
    if isinstance(expected, float):
        got_float = float(got)
        # DataFusion gives averages and quotients of decimals as decimals, which are exact to their last digit.
        digit = 10.0 ** got.as_tuple().exponent if isinstance(got, Decimal) else 0.0
        return abs(got_float - expected) <= max(1e-9 * abs(expected), digit)
    if isinstance(expected, (int, Decimal)) and not isinstance(expected, bool):
        return isinstance(got, (int, Decimal)) and Decimal(got) == Decimal(expected)
    return expected == got


def same_row(expected, got):
    return len(expected) == len(got) and all(map(same, expected, got))


def difference(number, expected, got):
    """A description of the first difference; None if the results are equal."""
    if len(expected) != len(got):
        return f"{len(got)} rows instead of {len(expected)}"
    for position, (wanted, row) in enumerate(zip(expected, got)):
        if same_row(wanted, row):
            continue
        columns = SORT_COLUMNS.get(number, range(len(wanted)))
        if all(same(wanted[c], row[c]) for c in columns):
            # A tie: the row must be among the expected rows with the same sort columns.
            if any(same_row(other, row) and all(same(other[c], wanted[c]) for c in columns) for other in expected):
                continue
        return f"row {position}: {row} instead of {wanted}"
    return None


class Tpch(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.directory = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.directory.cleanup)
        cls.database = Path(cls.directory.name) / "tpch"
        data = tpch.generate(SCALE)
        tpch.load(data, cls.database)
        connection = tpch.duckdb_over_files(data)
        cls.expected = {}
        for number, sql in tpch.QUERIES.items():
            rows, _ = tpch.timed(connection, sql)
            cls.expected[number] = [tuple(map(tpch.plain, row)) for row in rows]

    def check(self, execution, join):
        settings = [f"SET keyaki.execution = '{execution}'", f"SET keyaki.join = '{join}'"]
        for number, sql in tpch.QUERIES.items():
            with self.subTest(query=number):
                rows = tpch.keyaki(self.database, [*settings, sql])[-1][0]
                got = [tuple(row.values()) for row in rows]
                self.assertIsNone(difference(number, self.expected[number], got))

    def test_counts(self):
        for table in tpch.TABLES:
            with self.subTest(table=table):
                sql = f"SELECT count(*) AS n FROM {table}"
                expected = tpch.duckdb_over_files(tpch.generate(SCALE)).execute(sql).fetchone()[0]
                self.assertEqual(tpch.keyaki(self.database, [sql])[0][0], [{"n": expected}])


def _add_tests():
    for execution, join in MODES:
        def test(self, execution=execution, join=join):
            self.check(execution, join)

        setattr(Tpch, f"test_{execution}_{join}", test)


_add_tests()


class Comparison(unittest.TestCase):
    """Tests of the comparison itself."""

    def test_values(self):
        self.assertTrue(same(Decimal("1.50"), Decimal("1.5")))
        self.assertFalse(same(Decimal("1.50"), Decimal("1.51")))
        self.assertTrue(same(25.5375871, Decimal("25.537587")))
        self.assertFalse(same(25.5375871, Decimal("25.53")) and same(25.5375871, Decimal("25.55")))
        self.assertFalse(same(None, 0))
        self.assertTrue(same(None, None))
        self.assertFalse(same("a", "b"))

    def test_ties(self):
        expected = [(1, 5), (2, 5), (3, 4)]
        self.assertIsNone(difference(11, expected, [(2, 5), (1, 5), (3, 4)]))
        self.assertIsNotNone(difference(11, expected, [(3, 4), (1, 5), (2, 5)]))
        self.assertIsNotNone(difference(1, expected, [(2, 5), (1, 5), (3, 4)]))
        self.assertIsNotNone(difference(11, expected, [(9, 5), (1, 5), (3, 4)]))


if __name__ == "__main__":
    unittest.main()
