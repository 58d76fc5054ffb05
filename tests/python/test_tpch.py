"""All 22 TPC-H queries in every execution mode, compared with DuckDB over the same files, value by value.

Scale factor: $TPCH_SCALE (default 0.01).
"""

import os
import tempfile
import unittest
from decimal import Decimal
from pathlib import Path

import tpch
from answers import difference, same

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
                self.assertIsNone(difference(self.expected[number], got, SORT_COLUMNS.get(number)))

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
        self.assertIsNone(difference(expected, [(2, 5), (1, 5), (3, 4)], [1]))
        self.assertIsNotNone(difference(expected, [(3, 4), (1, 5), (2, 5)], [1]))
        self.assertIsNotNone(difference(expected, [(2, 5), (1, 5), (3, 4)]))
        self.assertIsNotNone(difference(expected, [(9, 5), (1, 5), (3, 4)], [1]))


if __name__ == "__main__":
    unittest.main()
