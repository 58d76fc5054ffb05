"""All 22 TPC-H queries and the query of the out-of-order execution paper on three workers, beside those of the local database.

Workers are killed. Scale factor: $TPCH_SCALE (default 0.01).
"""

import os
import subprocess
import tempfile
import threading
import unittest
from pathlib import Path

import objects
import tpch
from answers import difference
from workers import Workers

SCALE = float(os.environ.get("TPCH_SCALE", "0.01"))
FAULTS = {"latency_ms": 2, "refused_one_in": 50, "truncated_one_in": 50, "wrong_one_in": 50}
JOIN = ("SELECT count(*) AS n, sum(l_quantity) AS q FROM customer JOIN orders ON c_custkey = o_custkey "
        "JOIN lineitem ON o_orderkey = l_orderkey WHERE c_acctbal BETWEEN 0 AND 500")
# It takes some seconds.
SLOW = ("SELECT count(*) AS n, sum(a.l_quantity) AS q FROM lineitem a JOIN nation b ON a.l_linenumber <> b.n_nationkey "
        "JOIN nation c ON a.l_suppkey <> c.n_nationkey")
COUNT = "SELECT count(*) AS n FROM lineitem WHERE l_tax > 0.03"
PIPELINE = ("SELECT count(*) AS n, sum(l_quantity) AS q FROM orders JOIN lineitem ON o_orderkey = l_orderkey "
            "WHERE o_orderkey < 30000")
URL = "s3://bucket/shop"
# Small tables are divided, too.
SHARE = "--workers-share=5000"
TOKEN = "KEYAKI_CLUSTER_TOKEN"


class Cluster(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        directory = tempfile.TemporaryDirectory()
        cls.addClassCleanup(directory.cleanup)
        folder = Path(directory.name)
        cls.database = folder / "tpch"
        tpch.load(tpch.generate(SCALE), cls.database)
        cls.server = objects.Server(folder / "store", **FAULTS)
        cls.addClassCleanup(cls.server.close)
        # The shell and the workers read them.
        variables = {**cls.server.variables, TOKEN: "a token"}
        os.environ.update(variables)
        cls.addClassCleanup(lambda: [os.environ.pop(name) for name in variables])
        subprocess.run([tpch.KEYAKI, "publish", cls.database, URL], check=True, stdout=subprocess.DEVNULL)

    def workers(self, count, **variables):
        workers = Workers(count, {**os.environ, **variables}, "--memory=256M")
        self.addCleanup(workers.close)
        return workers

    def on(self, workers, statements):
        return tpch.keyaki(URL, statements, workers.option, SHARE)

    def check(self, workers, queries):
        local = tpch.keyaki(self.database, queries)
        divided = self.on(workers, queries)
        self.assertEqual(len(local), len(queries))
        for sql, (expected, _), (got, _) in zip(queries, local, divided, strict=True):
            with self.subTest(sql=sql):
                rows = [[tuple(row.values()) for row in rows] for rows in (expected, got)]
                # Floats are added in another order, and rows with equal sort columns come in any order.
                self.assertIsNone(difference(sorted(rows[0], key=str), sorted(rows[1], key=str)))

    def failed(self, *options, **variables):
        """The message of the shell for a query that fails."""
        command = [tpch.KEYAKI, URL, SHARE, *options, "-c", COUNT]
        process = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **variables})
        self.assertEqual(process.returncode, 1, process.stdout)
        return process.stderr

    def test_queries(self):
        workers = self.workers(3)
        queries = [*tpch.QUERIES.values(), JOIN, PIPELINE]
        self.check(workers, queries)
        plans = [rows for rows, _ in self.on(workers, [f"EXPLAIN {sql}" for sql in queries])]
        divided = [rows[0]["plan"] for rows in plans if rows[0]["plan_type"] == "stages"]
        self.assertGreaterEqual(len(divided), 20)
        (rows, _), = self.on(workers, ["SET keyaki.join = 'index'", f"EXPLAIN ANALYZE {PIPELINE}"])
        self.assertRegex(rows[0]["plan"], r"IndexPipelineExec: .*tasks=3, metrics=\[.*pages_read=")

    def test_workers_are_killed(self):
        expected, = tpch.keyaki(self.database, [SLOW])
        for delay in (0.3, 1, 2):
            workers = self.workers(3)
            self.on(workers, [COUNT])
            timer = threading.Timer(delay, workers.kill, [1])
            timer.start()
            got, = self.on(workers, [SLOW])
            timer.join()
            self.assertEqual(got[0], expected[0])
            # One of them is missing from the beginning.
            self.check(workers, [tpch.QUERIES[1], JOIN])
            workers.kill(0)
            workers.kill(2)
            self.assertIn("no worker of the cluster answers", self.failed(workers.option))

    def test_refusals(self):
        workers = self.workers(2)
        self.assertIn("refuses: the token of the cluster is missing or wrong", self.failed(workers.option, **{TOKEN: "x"}))
        limited = Workers(2, dict(os.environ), "--allow-url=s3://other/")
        self.addCleanup(limited.close)
        self.assertIn("the worker may not open s3://bucket/shop@1", self.failed(limited.option))
        self.assertIn("expected addresses of workers", self.failed("--workers=here"))
        command = [tpch.KEYAKI, self.database, workers.option, "-c", COUNT]
        process = subprocess.run(command, capture_output=True, text=True)
        self.assertIn("a database that is not published", process.stderr)
        environment = {name: value for name, value in os.environ.items() if name != TOKEN}
        command = [tpch.KEYAKI, "worker", "--listen", "0.0.0.0:0"]
        process = subprocess.run(command, capture_output=True, text=True, env=environment)
        self.assertEqual(process.returncode, 1)
        self.assertIn("and need no token: set KEYAKI_CLUSTER_TOKEN", process.stderr)


if __name__ == "__main__":
    unittest.main()
