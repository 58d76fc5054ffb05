"""Results as Arrow, pandas, Polars and numpy objects, and such objects as sources."""

import datetime
import decimal
import unittest

import keyaki
import numpy
import pandas
import polars
import pyarrow


class Frames(unittest.TestCase):
    def setUp(self):
        self.con = keyaki.connect(autocommit=True)
        self.addCleanup(self.con.close)
        self.con.execute("CREATE TABLE t (id BIGINT PRIMARY KEY, name TEXT, price DECIMAL(10,2), day DATE, at TIMESTAMP)")

    def fill(self, rows):
        day = datetime.date(2024, 1, 1)
        at = datetime.datetime(2024, 1, 1, 12)
        values = ((i, None if i % 7 == 0 else f"n{i}", decimal.Decimal(i) / 4, day, at) for i in range(rows))
        self.assertEqual(self.con.append("t", values), rows)

    def all(self):
        return self.con.execute("SELECT * FROM t ORDER BY id")


class Results(Frames):
    def test_arrow(self):
        self.fill(20000)
        table = self.all().arrow()
        self.assertEqual((table.num_rows, table.column_names), (20000, ["id", "name", "price", "day", "at"]))
        self.assertEqual(table["id"].to_pylist(), list(range(20000)))
        self.assertEqual(table["name"].null_count, 2858)
        self.assertEqual(table.schema.field("price").type, pyarrow.decimal128(10, 2))
        self.assertEqual(table.to_pylist()[1], dict(zip(table.column_names, self.all().fetchmany(2)[1])))

    def test_readers_are_streams(self):
        cursor = self.con.execute("SELECT value FROM generate_series(1, 100000)")
        self.assertEqual(cursor.fetchmany(3), [(1,), (2,), (3,)])
        reader = cursor.arrow_reader()
        first = reader.read_next_batch()
        self.assertEqual(first["value"][0].as_py(), 4)
        rest = sum(batch.num_rows for batch in reader)
        self.assertEqual(first.num_rows + rest, 99997)
        with self.assertRaises(keyaki.ProgrammingError):
            cursor.fetchone()

    def test_the_capsule_protocol(self):
        self.fill(10)
        self.assertEqual(pyarrow.table(self.all()).num_rows, 10)
        self.assertEqual(polars.from_arrow(pyarrow.table(self.all())).height, 10)

    def test_pandas(self):
        self.fill(100)
        frame = self.all().df()
        self.assertEqual((len(frame), list(frame.columns)), (100, ["id", "name", "price", "day", "at"]))
        self.assertEqual(str(frame["id"].dtype), "int64")
        self.assertTrue(pandas.isna(frame["name"][7]))
        self.assertEqual(frame["price"][3], decimal.Decimal("0.75"))

    def test_polars(self):
        self.fill(100)
        frame = self.all().pl()
        self.assertEqual((frame.height, frame.columns), (100, ["id", "name", "price", "day", "at"]))
        self.assertEqual(frame["id"].sum(), 4950)
        self.assertEqual(frame["name"].null_count(), 15)

    def test_numpy(self):
        columns = self.con.execute("SELECT value AS n, value / 2.0 AS half FROM generate_series(1, 4)").numpy()
        self.assertEqual(columns["n"].dtype, numpy.dtype("int64"))
        self.assertEqual(columns["n"].tolist(), [1, 2, 3, 4])

    def test_empty_results_have_their_columns(self):
        self.assertEqual(self.all().arrow().num_rows, 0)
        self.assertEqual(list(self.all().df().columns), ["id", "name", "price", "day", "at"])
        self.assertEqual(self.all().pl().height, 0)

    def test_errors_of_queries(self):
        self.fill(3)
        with self.assertRaises(keyaki.DataError):
            self.con.execute("SELECT 1 / (id - 2) FROM t").arrow()
        with self.assertRaises(keyaki.ProgrammingError):
            self.con.execute("DELETE FROM t").arrow()

    def test_html(self):
        self.fill(30)
        html = self.all()._repr_html_()
        self.assertIn("<th>price<br><small>numeric", html)
        self.assertIn("<em>NULL</em>", html)
        self.assertIn("The first 20 rows.", html)
        self.assertIn("&lt;b&gt;", self.con.execute("SELECT '<b>'")._repr_html_())
        self.assertEqual(self.con.execute("DELETE FROM t")._repr_html_(), "<p>30 rows changed</p>")


class Sources(Frames):
    def test_rows(self):
        self.assertEqual(self.con.append("t", [(1, "a", "1.5", None, None)]), 1)
        self.assertEqual(self.con.append("t", ([i, str(i)] for i in range(2, 5000)), columns=["id", "name"]), 4998)
        self.assertEqual(self.con.execute("SELECT count(*), max(name) FROM t").fetchone(), (4999, "a"))
        self.assertEqual(self.con.append("t", []), 0)

    def test_wrong_rows(self):
        for rows, exception in [
            ([(1, "a")], keyaki.ProgrammingError),
            ([(1, "a", None, None, None), {"id": 2}], keyaki.ProgrammingError),
            ([(1, "a", "x", None, None)], keyaki.DataError),
            ([(None, "a", None, None, None)], keyaki.IntegrityError),
            (7, TypeError),
        ]:
            with self.assertRaises(exception, msg=repr(rows)):
                self.con.append("t", rows)
        with self.assertRaises(keyaki.ProgrammingError):
            self.con.append("missing", [(1,)])
        with self.assertRaises(keyaki.ProgrammingError):
            self.con.append("t", [(1,)], columns=["missing"])

    def test_dicts_of_columns(self):
        self.assertEqual(self.con.append("t", {"id": numpy.arange(1000), "name": ["x"] * 1000}), 1000)
        self.assertEqual(self.con.execute("SELECT sum(id), min(name) FROM t").fetchone(), (499500, "x"))
        with self.assertRaisesRegex(keyaki.ProgrammingError, r"differ in length \(id: 1, name: 2\)"):
            self.con.append("t", {"id": [1], "name": ["a", "b"]})

    def test_arrow_pandas_and_polars(self):
        columns = {"name": ["a", None, "c"], "id": [1, 2, 3]}
        day = datetime.date(2024, 2, 29)
        table = pyarrow.table({**columns, "day": [day, None, day]})
        reader = pyarrow.table({"id": [20, 21]}).to_reader()
        batch = pyarrow.record_batch({"id": [30]})
        frames = [
            (table, 3),
            (reader, 2),
            (batch, 1),
            (pandas.DataFrame({"id": [40, 41], "at": pandas.to_datetime(["2024-01-01", None])}), 2),
            (polars.DataFrame({"id": [50, 51], "name": ["p", None]}), 2),
            (polars.LazyFrame({"id": [60]}), 1),
        ]
        for frame, rows in frames:
            self.assertEqual(self.con.append("t", frame), rows, type(frame))
        found = self.con.execute("SELECT id, name, day FROM t WHERE id < 4 ORDER BY id").fetchall()
        self.assertEqual(found, [(1, "a", day), (2, None, None), (3, "c", day)])
        self.assertEqual(self.con.execute("SELECT count(*) FROM t").fetchone(), (11,))
        with self.assertRaises(keyaki.IntegrityError):
            self.con.append("t", table)
        with self.assertRaisesRegex(keyaki.ProgrammingError, "rename them"):
            self.con.append("t", table, columns=["id"])
        with self.assertRaises(keyaki.ProgrammingError):
            self.con.append("t", pyarrow.table({"id": [70], "missing": [1]}))

    def test_frames_within_a_transaction(self):
        self.con.begin()
        self.con.append("t", pyarrow.table({"id": [1, 2]}))
        self.con.append("t", [(3,)], columns=["id"])
        self.con.rollback()
        self.assertEqual(self.con.execute("SELECT count(*) FROM t").fetchone(), (0,))

    def test_a_round_trip_of_a_large_table(self):
        self.fill(50000)
        table = self.all().arrow()
        self.con.execute("CREATE TABLE u (id BIGINT PRIMARY KEY, name TEXT, price DECIMAL(10,2), day DATE, at TIMESTAMP)")
        self.assertEqual(self.con.append("u", table), 50000)
        self.assertEqual(self.con.execute("SELECT * FROM u ORDER BY id").arrow(), table)


if __name__ == "__main__":
    unittest.main()
