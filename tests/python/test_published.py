"""All 22 TPC-H queries and the query of the out-of-order execution paper on a published database, beside those of the local one.

The store is slow and unreliable: 20 ms for each request, 200 ms for every tenth one, refusals, truncated and wrong answers.
Scale factor: $TPCH_SCALE (default 0.01).
"""

import os
import subprocess
import tempfile
import unittest
from pathlib import Path

import objects
import tpch
from answers import difference

SCALE = float(os.environ.get("TPCH_SCALE", "0.01"))
FAULTS = {
    "latency_ms": 20, "slow_one_in": 10, "slow_ms": 200, "refused_one_in": 20, "truncated_one_in": 20, "wrong_one_in": 20,
}
JOIN = ("SELECT count(*) AS n, sum(l_quantity) AS q FROM customer JOIN orders ON c_custkey = o_custkey "
        "JOIN lineitem ON o_orderkey = l_orderkey WHERE c_acctbal BETWEEN 0 AND 500")
URL = "s3://bucket/shop"


class Published(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        directory = tempfile.TemporaryDirectory()
        cls.addClassCleanup(directory.cleanup)
        folder = Path(directory.name)
        cls.database = folder / "tpch"
        tpch.load(tpch.generate(SCALE), cls.database)
        cls.server = objects.Server(folder / "store", **FAULTS)
        cls.addClassCleanup(cls.server.close)
        # The client of the shell reads them.
        os.environ.update(cls.server.variables)
        cls.addClassCleanup(lambda: [os.environ.pop(name) for name in cls.server.variables])
        subprocess.run([tpch.KEYAKI, "publish", cls.database, URL], check=True, stdout=subprocess.DEVNULL)

    def check(self, *settings, location=URL, queries=None, prefix=()):
        queries = queries or [*tpch.QUERIES.values(), JOIN]
        settings = [f"SET {name} = '{value}'" for name, value in settings]
        local = tpch.keyaki(self.database, [*settings, *queries])
        remote = tpch.keyaki(location, [*settings, *prefix, *queries])
        self.assertEqual(len(local), len(queries))
        for sql, (expected, _), (got, _) in zip(queries, local, remote, strict=True):
            with self.subTest(sql=sql):
                rows = [[tuple(row.values()) for row in rows] for rows in (expected, got)]
                # The same plan adds floats in another order, and rows with equal sort columns come in any order.
                self.assertIsNone(difference(sorted(rows[0], key=str), sorted(rows[1], key=str)))

    def test_queries(self):
        self.check()

    def test_by_lookups(self):
        self.check(("keyaki.join", "index"))

    def test_faults_happened(self):
        self.check(queries=[JOIN])
        stats = self.server.stats()
        for fault in ("refused", "truncated", "wrong"):
            self.assertGreater(stats[fault], 0, stats)

    def test_requests_are_explained(self):
        statements = ["SET keyaki.request_price = '0.0004'", f"EXPLAIN ANALYZE {JOIN}"]
        (rows, _), = tpch.keyaki(URL, statements)
        (text,) = (row["plan"] for row in rows if row["plan_type"] == "object_store")
        numbers = dict(part.split("=") for part in text.split(", "))
        self.assertGreater(int(numbers["requests"]), 0)
        self.assertGreaterEqual(int(numbers["requests"]), int(numbers["ranges"]))
        self.assertGreater(float(numbers["cost"]), 0)

    def test_attached(self):
        with tempfile.TemporaryDirectory() as directory:
            local = Path(directory) / "local"
            subprocess.run([tpch.KEYAKI, local, "-c", "SELECT 1"], check=True, stdout=subprocess.DEVNULL)
            prefix = [f"ATTACH '{URL}' AS archive", "SET search_path = archive, public"]
            self.check(location=local, prefix=prefix)


if __name__ == "__main__":
    unittest.main()
