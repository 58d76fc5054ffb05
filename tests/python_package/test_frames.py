"""Results as Arrow, pandas, Polars and numpy objects, and such objects as sources."""

import datetime
import decimal
import unittest
import uuid

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

    def test_streams_without_pyarrow(self):
        self.fill(10)
        self.assertEqual(polars.DataFrame(self.all()).height, 10)
        cursor = self.all()
        capsule = cursor.__arrow_c_stream__()
        self.assertIn("arrow_array_stream", repr(capsule))
        with self.assertRaises(keyaki.ProgrammingError):
            cursor.__arrow_c_stream__()
        # A capsule that is never read.
        del capsule
        self.assertEqual(self.con.execute("SELECT count(*) FROM t").fetchone(), (10,))

    def test_requested_schemas(self):
        self.fill(3)
        wanted = pyarrow.schema([("id", pyarrow.int32()), ("name", pyarrow.large_string())])
        reader = pyarrow.RecordBatchReader.from_stream(self.con.execute("SELECT id, name FROM t"), schema=wanted)
        self.assertEqual(reader.read_all().schema, wanted)
        wanted = pyarrow.schema([("id", pyarrow.int8())])
        reader = pyarrow.RecordBatchReader.from_stream(self.con.execute("SELECT 1000 AS id"), schema=wanted)
        with self.assertRaises(pyarrow.ArrowInvalid):
            reader.read_all()
        for types in [[("id", pyarrow.struct([("x", pyarrow.int8())]))], [("id", pyarrow.int8())] * 2]:
            with self.assertRaises(keyaki.NotSupportedError):
                pyarrow.RecordBatchReader.from_stream(self.con.execute("SELECT 1 AS id"), schema=pyarrow.schema(types))

    def test_streams_outlive_cursors_and_end_with_connections(self):
        con = keyaki.connect()
        reader = con.execute("SELECT value FROM generate_series(1, 100000)").arrow_reader()
        other = con.execute("SELECT value FROM generate_series(1, 100000)").arrow_reader()
        self.assertEqual(sum(batch.num_rows for batch in reader), 100000)
        con.close()
        with self.assertRaisesRegex(pyarrow.ArrowInvalid, "closed"):
            other.read_all()
        con = keyaki.connect()
        reader = con.execute("SELECT value FROM generate_series(1, 50000)").arrow_reader()
        del con
        self.assertEqual(reader.read_all().num_rows, 50000)

    def test_errors_of_streams_are_texts(self):
        reader = self.con.execute("SELECT 1 / (value - 20000) FROM generate_series(1, 30000)").arrow_reader()
        with self.assertRaisesRegex(pyarrow.ArrowInvalid, "division by zero"):
            reader.read_all()
        with self.assertRaises(StopIteration):
            reader.read_next_batch()

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

    def test_uuids(self):
        ids = [uuid.UUID(int=7), None, uuid.UUID(int=2**128 - 1)]
        self.con.execute("CREATE TABLE u (id BIGINT PRIMARY KEY, key UUID, keys UUID[])")
        self.con.executemany("INSERT INTO u VALUES (?, ?, ?)", [(i, id, [id, None]) for i, id in enumerate(ids)])
        read = lambda: self.con.execute("SELECT key, keys FROM u ORDER BY id")
        table = read().arrow()
        self.assertEqual(table.schema.field("key").type, pyarrow.uuid())
        self.assertEqual(table["key"].to_pylist(), ids)
        self.assertEqual(pyarrow.concat_tables(pyarrow.Table.from_batches([batch]) for batch in read().arrow_reader()), table)
        # pandas has objects of Python, Polars and numpy have bytes.
        self.assertEqual(self.con.execute("SELECT key FROM u ORDER BY id").df()["key"].tolist(), ids)
        stored = [None if id is None else id.bytes for id in ids]
        # Elements of arrays are plain bytes.
        self.assertEqual(table["keys"].to_pylist(), [[id, None] for id in stored])
        self.assertEqual(self.con.execute("SELECT key FROM u ORDER BY id").pl()["key"].to_list(), stored)
        self.assertEqual(self.con.execute("SELECT key FROM u ORDER BY id").numpy()["key"].tolist(), stored)
        # Without the extension type on request.
        plain = pyarrow.schema([("key", pyarrow.binary(16))])
        cursor = self.con.execute("SELECT key FROM u ORDER BY id")
        self.assertEqual(pyarrow.RecordBatchReader.from_stream(cursor, schema=plain).read_all()["key"].to_pylist(), stored)
        self.con.execute("CREATE TABLE v (key UUID, keys UUID[])")
        self.assertEqual(self.con.append("v", table), 3)
        self.assertEqual(self.con.append("v", pyarrow.table({"key": pyarrow.array(stored, pyarrow.binary(16))})), 3)
        self.assertEqual(self.con.execute("SELECT key FROM v ORDER BY key").fetchall(), [(ids[0],)] * 2 + [(ids[2],)] * 2 + [(None,)] * 2)
        self.con.register("registered", table)
        self.assertEqual(self.con.execute("SELECT key FROM registered ORDER BY key").fetchone(), (ids[0],))

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

    def test_results_as_sources(self):
        self.fill(3)
        other = self.con.duplicate()
        self.assertEqual(other.append("t", self.con.execute("SELECT id + 10 AS id FROM t")), 3)
        # The load keeps the connection from reading the result.
        for source in (self.con.execute("SELECT id + 20 AS id FROM t"), self.con.execute("SELECT 9 AS id").arrow_reader()):
            with self.assertRaisesRegex(keyaki.Error, "the connection is in use"):
                self.con.append("t", source)
        self.assertEqual(self.con.append("t", self.con.execute("SELECT id + 20 AS id FROM t").arrow()), 6)

    def test_broken_sources(self):
        def batches():
            yield pyarrow.record_batch({"id": [1]})
            raise ValueError("the source has failed")

        reader = pyarrow.RecordBatchReader.from_batches(pyarrow.schema([("id", pyarrow.int64())]), batches())
        with self.assertRaisesRegex(keyaki.Error, "the source has failed"):
            self.con.append("t", reader)
        invalid = pyarrow.StringArray.from_buffers(
            1, pyarrow.py_buffer(b"\0\0\0\0\2\0\0\0"), pyarrow.py_buffer(b"\xc3\x28")
        )
        with self.assertRaisesRegex(keyaki.Error, 'column "name" is not valid'):
            self.con.append("t", pyarrow.table({"id": [1], "name": invalid}))
        with self.assertRaises(keyaki.Error):
            self.con.append("t", pyarrow.array([1, 2]))
        self.assertEqual(self.con.execute("SELECT count(*) FROM t").fetchone(), (0,))


orders = pyarrow.table({"id": [1, 2, 3], "customer": ["Ada", "Bob", "Ada"]})


class Names(Frames):
    """Frames as tables of statements."""

    def one(self, sql, *parameters):
        return self.con.execute(sql, parameters).fetchone()[0]

    def test_variables(self):
        local = pandas.DataFrame({"id": [1, 2], "total": [1.5, 2.5]})
        self.assertEqual(self.con.execute("SELECT sum(total) FROM local WHERE id > ?", (1,)).fetchone(), (2.5,))
        sql = "SELECT customer, sum(total) FROM orders JOIN local USING (id) GROUP BY customer ORDER BY 1"
        self.assertEqual(self.con.execute(sql).fetchall(), [("Ada", 1.5), ("Bob", 2.5)])
        orders = polars.DataFrame({"id": [7]})
        self.assertEqual(self.con.execute("SELECT * FROM orders").fetchall(), [(7,)])
        Mixed = polars.LazyFrame({"id": [8]})
        self.assertEqual(self.con.execute("SELECT * FROM Mixed").fetchall(), [(8,)])
        self.assertEqual(self.con.execute('SELECT * FROM "Mixed"').fetchall(), [(8,)])
        del local, orders, Mixed

    def test_variables_of_other_functions_are_not_seen(self):
        hidden = pyarrow.table({"id": [1]})

        def inner():
            return self.con.execute("SELECT * FROM hidden")

        with self.assertRaises(keyaki.ProgrammingError):
            inner()
        self.assertEqual(self.con.execute("SELECT * FROM hidden").fetchall(), [(1,)])
        del hidden

    def test_each_statement_sees_the_current_value(self):
        frame = pyarrow.table({"id": [1]})
        read = lambda frame: self.con.execute("SELECT * FROM frame WHERE ?", (True,)).fetchall()
        self.assertEqual(read(frame), [(1,)])
        self.assertEqual(read(pyarrow.table({"name": ["a", "b"]})), [("a",), ("b",)])
        reader = pyarrow.table({"id": [5]}).to_reader()
        self.assertEqual(self.con.execute("SELECT a.id FROM reader a, reader b WHERE a.id > ?", (1,)).fetchall(), [(5,)])

    def test_statements_that_write(self):
        rows = pyarrow.table({"id": list(range(100)), "name": ["x"] * 100})
        self.assertEqual(self.con.execute("INSERT INTO t (id, name) SELECT id, name FROM rows WHERE id < 50").rowcount, 50)
        self.con.execute("CREATE TABLE copied AS SELECT * FROM rows")
        self.assertEqual(self.one("SELECT count(*) FROM copied"), 100)
        self.assertEqual(self.con.execute("DELETE FROM t USING rows WHERE t.id = rows.id AND rows.id < 10").rowcount, 10)
        with self.assertRaises(keyaki.ProgrammingError):
            self.con.execute("CREATE VIEW v AS SELECT * FROM rows")
        with self.assertRaises(keyaki.ProgrammingError):
            self.con.execute("INSERT INTO rows VALUES (1, 'a')")
        # A table of the database comes first.
        self.con.execute("CREATE TABLE rows (n INT)")
        self.assertEqual(self.one("SELECT count(*) FROM rows"), 0)

    def test_they_can_be_switched_off(self):
        frame = pyarrow.table({"id": [1]})
        self.con.frames = False
        self.con.register("registered", frame)
        with self.assertRaises(keyaki.ProgrammingError) as caught:
            self.con.execute("SELECT * FROM frame")
        self.assertEqual(caught.exception.sqlstate, "42P01")
        self.assertEqual(self.one("SELECT id FROM registered"), 1)
        with keyaki.connect(frames=False) as con, self.assertRaises(keyaki.ProgrammingError):
            self.assertFalse(con.frames or con.duplicate().frames)
            con.execute("SELECT * FROM frame")

    def test_objects_that_are_no_frames(self):
        number, listed, function = 1, [1], len
        for name in ("number", "listed", "function", "missing", "pandas"):
            with self.assertRaises(keyaki.ProgrammingError, msg=name) as caught:
                self.con.execute(f"SELECT * FROM {name}")
            self.assertEqual(caught.exception.sqlstate, "42P01")
        nested = pyarrow.table({"pair": [{"a": 1}]})
        with self.assertRaisesRegex(keyaki.NotSupportedError, 'column "pair" of "nested"'):
            self.con.execute("SELECT * FROM nested")
        cursor = self.con.execute("SELECT 1 AS id")
        with self.assertRaisesRegex(keyaki.Error, "the connection is in use"):
            self.con.execute("SELECT * FROM cursor")
        del number, listed, function, cursor

    def test_registered_objects(self):
        frame = pandas.DataFrame({"id": [1, 2]})
        self.con.register("numbers", frame)
        frame["id"] = [5, 5]
        self.assertEqual(self.one("SELECT sum(id) FROM numbers"), 3)
        self.con.register("numbers", pyarrow.table({"id": [9]}).to_reader())
        self.assertEqual([self.one("SELECT sum(id) FROM numbers") for _ in range(2)], [9, 9])
        self.con.unregister("numbers")
        with self.assertRaises(keyaki.ProgrammingError):
            self.con.execute("SELECT * FROM numbers")
        with self.assertRaisesRegex(keyaki.ProgrammingError, 'nothing is registered as "numbers"'):
            self.con.unregister("numbers")
        with self.assertRaisesRegex(keyaki.ProgrammingError, "an object of type list has no rows"):
            self.con.register("numbers", [1])


if __name__ == "__main__":
    unittest.main()
