"""Errors in the middle of calls, results after the end of their connection, values at the ends of their ranges."""

import asyncio
import os
import threading
import unittest

import keyaki
from keyaki import aio


class Appending(unittest.TestCase):
    def test_an_error_ends_the_load_and_other_threads_go_on(self):
        con = keyaki.connect(autocommit=True)
        self.addCleanup(con.close)
        con.execute("CREATE TABLE t (id BIGINT PRIMARY KEY, name TEXT)")
        con.execute("CREATE TABLE big (n BIGINT PRIMARY KEY)")
        other = con.duplicate()
        self.addCleanup(other.close)
        done = threading.Event()

        def write():
            for part in range(5):
                other.execute("INSERT INTO big SELECT value FROM generate_series(?::bigint, ?) g (value)",
                              (20_000 * part, 20_000 * part + 19_999))
            done.set()

        thread = threading.Thread(target=write, daemon=True)
        thread.start()
        rounds = 0
        while rounds == 0 or not done.is_set():
            first = 10 * rounds
            with self.assertRaises(keyaki.DataError):
                con.append("t", [(first, "a"), (first + 1, "b"), ("x", "c")])
            rounds += 1
        thread.join(60)
        self.assertFalse(thread.is_alive())
        self.assertEqual(con.execute("SELECT count(*) FROM t").fetchone(), (2 * rounds,))
        self.assertEqual(con.execute("SELECT count(*) FROM big").fetchone(), (100_000,))


class Transactions(unittest.TestCase):
    def setUp(self):
        self.con = keyaki.connect()
        self.addCleanup(self.con.close)
        self.con.execute("CREATE TABLE t (id BIGINT PRIMARY KEY)")

    def ids(self):
        return [row[0] for row in self.con.execute("SELECT id FROM t ORDER BY id")]

    def test_comments_do_not_hide_changes(self):
        self.con.execute("/* a /* b */ c */ INSERT INTO t VALUES (1)")
        self.con.rollback()
        self.assertEqual(self.ids(), [])

    def test_locks_behind_with_last(self):
        self.con.execute("INSERT INTO t VALUES (1)")
        self.con.commit()
        self.con.execute("WITH q AS (SELECT 1) SELECT * FROM t FOR SHARE").fetchall()
        self.assertTrue(self.con.in_transaction)

    def test_an_isolation_level_needs_a_transaction_of_its_own(self):
        self.con.execute("INSERT INTO t VALUES (1)")
        with self.assertRaises(keyaki.ProgrammingError), self.con.transaction("serializable"):
            self.fail("the block does not begin")
        self.assertEqual(self.ids(), [1])

    def test_many_executions_take_effect_together(self):
        self.con.execute("INSERT INTO t VALUES (1)")

        def rows():
            yield from ((i,) for i in range(10, 3000))
            raise KeyError("stop")

        with self.assertRaises(KeyError):
            self.con.executemany("INSERT INTO t VALUES (?)", rows())
        with self.assertRaises(keyaki.IntegrityError):
            self.con.executemany("INSERT INTO t VALUES (?)", [(2,), (1,)])
        self.assertEqual(self.con.executemany("INSERT INTO t VALUES (?)", [(3,), (4,)]).rowcount, 2)
        self.con.commit()
        self.assertEqual(self.ids(), [1, 3, 4])
        self.con.executemany("INSERT INTO t VALUES (?)", [])
        self.con.executemany("SELECT id FROM t WHERE id = ?", [(1,), (2,)])
        self.assertFalse(self.con.in_transaction)
        self.assertEqual(self.con.executemany("INSERT INTO t VALUES (?) RETURNING id", [(5,)]).rowcount, -1)

    def test_a_cancelled_block_of_asyncio_leaves_no_transaction(self):
        async def run():
            async with await aio.connect() as con:
                await con.execute("CREATE TABLE t (id BIGINT)")
                for delay in range(20):
                    task = asyncio.ensure_future(con.begin())
                    await asyncio.sleep(delay / 10_000)
                    task.cancel()
                    await asyncio.gather(task, return_exceptions=True)
                    if not task.cancelled():
                        await con.rollback()
                    self.assertFalse(con._connection.in_transaction)

        asyncio.run(run())


class Results(unittest.TestCase):
    def setUp(self):
        self.con = keyaki.connect()
        self.addCleanup(self.con.close)

    def test_streams_end_with_their_connection(self):
        reader = self.con.execute("SELECT value FROM generate_series(1, 1000000) g (value)").arrow_reader()
        reader.read_next_batch()
        self.con.close()
        with self.assertRaises(Exception) as raised:
            reader.read_all()
        self.assertIn("the connection is closed", str(raised.exception))

    def test_descriptions_outlive_their_rows(self):
        cursor = self.con.execute("SELECT 1 AS n")
        cursor.arrow()
        self.assertEqual(cursor.description[0][0], "n")

    def test_results_do_not_work_in_a_fork(self):
        cursor = self.con.execute("SELECT value FROM generate_series(1, 10) g (value)")
        self.assertEqual(cursor.fetchone(), (1,))
        child = os.fork()
        if child == 0:
            status = 1
            try:
                cursor.fetchone()
            except keyaki.InterfaceError:
                # Another database works.
                with keyaki.connect() as other:
                    status = 0 if other.execute("SELECT 7").fetchone() == (7,) else 2
            finally:
                os._exit(status)
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 0)
        self.assertEqual(cursor.fetchone(), (2,))

    def test_numpy_columns_keep_integers_beside_nulls(self):
        import numpy

        columns = self.con.execute("SELECT * FROM (VALUES (9007199254740993, TRUE), (NULL, NULL)) v (n, b)").numpy()
        self.assertEqual(int(columns["n"][0]), 9007199254740993)
        self.assertIs(columns["n"][1], numpy.ma.masked)
        self.assertIs(columns["b"][1], numpy.ma.masked)
        with self.assertRaises(keyaki.ProgrammingError):
            self.con.execute("SELECT 1 AS n, 2 AS n").numpy()


class Values(unittest.TestCase):
    def setUp(self):
        self.con = keyaki.connect()
        self.addCleanup(self.con.close)

    def value(self, value, cast=""):
        return self.con.execute(f"SELECT ?{cast}", (value,)).fetchone()[0]

    def test_arrays_of_times(self):
        import datetime

        import numpy

        days = numpy.array(["2024-01-01", "2024-02-29"], "datetime64[ns]")
        expected = [datetime.datetime(2024, 1, 1), datetime.datetime(2024, 2, 29)]
        self.assertEqual(self.value(days), expected)
        self.con.execute("CREATE TABLE t (id BIGINT, at TIMESTAMP)")
        self.con.append("t", {"id": [1, 2], "at": days})
        self.assertEqual([row[0] for row in self.con.execute("SELECT at FROM t ORDER BY id")], expected)

    def test_values_that_do_not_fit_are_errors(self):
        import numpy
        import pandas

        for value in (numpy.datetime64(300_000, "Y"), numpy.timedelta64(1, "M"), numpy.datetime64(1, "ns"),
                      pandas.Timedelta(1, "ns"), keyaki.Interval(2**40, 0, 0), {"a": float("nan")}):
            with self.subTest(value=value), self.assertRaises(keyaki.DataError) as raised:
                self.value(value)
            self.assertIn("parameter $1", str(raised.exception))

    def test_zeros_of_many_digits(self):
        from decimal import Decimal

        self.assertEqual(self.value(Decimal("0E-999999999")), 0)

    def test_local_times_outside_of_the_range(self):
        self.con.execute("SET timezone = 'America/New_York'")
        with self.assertRaises(keyaki.DataError):
            self.con.execute("SELECT TIMESTAMPTZ '0001-01-01 00:00:00+00'").fetchone()


if __name__ == "__main__":
    unittest.main()
