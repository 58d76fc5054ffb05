"""The backend of Ibis: expressions have the results that Ibis has with DuckDB, and tables the operations of Ibis."""

import datetime
import decimal
import tempfile
import unittest
import uuid
from pathlib import Path

import ibis
import ibis.common.exceptions
import pandas
import pyarrow
from ibis import _

import keyaki
import keyaki.ibis

ROWS = 200


def orders():
    numbers = range(ROWS)
    return pyarrow.table({
        "id": pyarrow.array(numbers, pyarrow.int64()),
        "customer": pyarrow.array([number * 7 % 20 for number in numbers], pyarrow.int64()),
        "total": pyarrow.array([None if number % 11 == 0 else number / 8 for number in numbers], pyarrow.float64()),
        "note": pyarrow.array([None if number % 13 == 0 else f"Note {number % 5}" for number in numbers], pyarrow.string()),
        "placed": pyarrow.array([datetime.datetime(2024, 1 + number % 12, 1 + number % 28, number % 24) for number in numbers], pyarrow.timestamp("us")),
        "paid": pyarrow.array([None if number % 17 == 0 else number % 3 == 0 for number in numbers], pyarrow.bool_()),
    })


def customers():
    return pyarrow.table({"customer": list(range(0, 30, 2)), "city": [f"city {number % 4}" for number in range(15)]})


# Each with the tables `o` of orders and `c` of customers; the results are sorted by all columns.
EXPRESSIONS = {
    "filters": lambda o, c: o.filter((o.total > 3) & o.note.notnull() & ~o.paid)[["id", "note"]],
    "arithmetic": lambda o, c: o.mutate(a=o.id % 7, b=o.total * 2 - 1, c=-o.id, d=o.id / 4, e=(o.id // 3)).drop("placed"),
    "conditions": lambda o, c: o.select("id", a=ibis.cases((o.id < 10, "few"), (o.id < 100, "some"), else_="many"), b=o.total.fill_null(-1.0), c=o.note.nullif("Note 1")),
    "texts": lambda o, c: o.select("id", a=o.note.upper(), b=o.note.length(), c=o.note.substr(2, 3), d=o.note.contains("3"), e=o.note.replace("Note", "N"), f=o.note.startswith("Note 1"), g=o.note.lpad(9, "*"), h=o.note + "!"),
    "patterns": lambda o, c: o.filter(o.note.like("%e 2") | o.note.re_search("4$")).select("id", "note"),
    "times": lambda o, c: o.select("id", a=o.placed.year(), b=o.placed.month(), c=o.placed.day(), d=o.placed.hour(), e=o.placed.truncate("month"), f=o.placed.date(), g=o.placed.day_of_week.index()),
    "sums": lambda o, c: o.aggregate(n=o.count(), a=o.total.sum(), b=o.total.mean(), c=o.total.min(), d=o.placed.max(), e=o.note.nunique(), f=o.total.count(), g=o.paid.any(), h=o.paid.all()),
    "groups": lambda o, c: o.group_by("customer", "note").aggregate(n=o.count(), total=o.total.sum(), paid=o.id.sum(where=o.paid)),
    "having": lambda o, c: o.group_by("customer").having(o.count() > 5).aggregate(n=o.count()),
    "inner joins": lambda o, c: o.join(c, "customer").select("id", "city"),
    "left joins": lambda o, c: o.left_join(c, "customer").select("id", "city"),
    "outer joins": lambda o, c: o.outer_join(c, o.customer == c.customer).select("id", "city"),
    "semi joins": lambda o, c: o.semi_join(c, "customer").select("id"),
    "anti joins": lambda o, c: o.anti_join(c, "customer").select("id"),
    "windows": lambda o, c: o.mutate(
        n=ibis.row_number().over(group_by="customer", order_by="id"),
        before=o.total.lag().over(group_by="customer", order_by="id"),
        running=o.id.sum().over(group_by="customer", order_by="id", rows=(None, 0)),
        share=o.id.max().over(group_by="note"),
    ).select("id", "n", "before", "running", "share"),
    "first rows": lambda o, c: o.order_by(ibis.desc("id")).limit(7, offset=3),
    "distinct": lambda o, c: o[["customer", "paid"]].distinct(),
    "unions": lambda o, c: o[["customer"]].union(c[["customer"]], distinct=True),
    "differences": lambda o, c: o[["customer"]].distinct().difference(c[["customer"]]),
    "membership": lambda o, c: o.filter(o.customer.isin(c.filter(c.city == "city 1").customer)).select("id"),
    "subqueries": lambda o, c: o.filter(o.total > o.total.mean()).select("id", "total"),
    "memory tables": lambda o, c: o.join(ibis.memtable({"customer": [1, 2, 3], "rank": ["a", "b", "c"]}), "customer").select("id", "rank"),
    "casts": lambda o, c: o.select("id", a=o.id.cast("string"), b=o.total.cast("int64"), c=o.id.cast("float64"), d=ibis.literal("2024-02-29").cast("date")),
    "math": lambda o, c: o.filter(o.id > 0).select("id", a=o.id.sqrt().round(6), b=o.total.ceil(), c=o.total.floor(), d=(o.id - 50).abs(), e=o.id.cast("float64").ln().round(6), f=(o.id - 50).sign()),
    "greatest": lambda o, c: o.select("id", a=ibis.greatest(o.id, o.customer), b=ibis.least(o.id, o.customer), c=ibis.coalesce(o.total, 0.0)),
}


def comparable(frame):
    """The rows of a frame, sorted, with values of Python that two backends have in common."""
    def value(of):
        if of is None or of is pandas.NaT or of != of:
            return "null"
        if isinstance(of, (float, decimal.Decimal)):
            return f"{round(float(of), 6) + 0.0:.6f}"
        if hasattr(of, "item"):
            return value(of.item())
        if isinstance(of, (bool, int)):
            return f"{float(of):.6f}"
        if isinstance(of, (datetime.datetime, datetime.date)):
            return pandas.Timestamp(of).isoformat()
        return str(of)

    return sorted(tuple(value(of) for of in row) for row in frame.itertuples(index=False, name=None))


class Expressions(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.backends = {}
        for name, con in [("keyaki", keyaki.ibis.connect()), ("duckdb", ibis.duckdb.connect())]:
            tables = con.create_table("orders", orders()), con.create_table("customers", customers())
            cls.backends[name] = con, *tables

    def test_results_are_those_of_duckdb(self):
        for name, expression in EXPRESSIONS.items():
            with self.subTest(name):
                (own, *own_tables), (other, *other_tables) = self.backends["keyaki"], self.backends["duckdb"]
                result = own.execute(expression(*own_tables))
                expected = other.execute(expression(*other_tables))
                self.assertEqual(list(result.columns), list(expected.columns))
                self.assertEqual(comparable(result), comparable(expected))
                self.assertGreater(len(result), 0)

    def test_results_have_the_types_of_the_expression(self):
        own, table, _customers = self.backends["keyaki"]
        for name, expression in EXPRESSIONS.items():
            with self.subTest(name):
                rows = own.to_pyarrow(expression(table, _customers))
                self.assertEqual(rows.schema, expression(table, _customers).schema().to_pyarrow())

    def test_scalars_columns_and_batches(self):
        own, table, _customers = self.backends["keyaki"]
        self.assertEqual(table.id.max().execute(), ROWS - 1)
        self.assertEqual(list(table.order_by("id").limit(3).id.execute()), [0, 1, 2])
        self.assertEqual(own.to_pyarrow(table.id.sum()).as_py(), sum(range(ROWS)))
        batches = own.to_pyarrow_batches(table.select("id"))
        self.assertEqual(sum(batch.num_rows for batch in batches), ROWS)
        self.assertEqual(len(table.execute(limit=5)), 5)
        limit = ibis.param("int64")
        self.assertEqual(table.filter(table.id < limit).count().execute(params={limit: 9}), 9)

    def test_statements_as_expressions(self):
        own, _table, _customers = self.backends["keyaki"]
        found = own.sql("SELECT customer, count(*) AS n FROM orders GROUP BY customer").filter(_.customer < 3)
        self.assertEqual(found.n.sum().execute(), 30)


class Tables(unittest.TestCase):
    def setUp(self):
        self.con = keyaki.ibis.connect()
        self.addCleanup(self.con.disconnect)

    def test_tables_are_created_changed_and_dropped(self):
        con = self.con
        made = con.create_table("t", pandas.DataFrame({"a": [1, 2, 3], "s": ["x", None, "z"]}))
        self.assertEqual(made.schema(), ibis.schema({"a": "int64", "s": "string"}))
        con.insert("t", [(4, "w")])
        con.insert("t", made.filter(made.a == 1))
        self.assertEqual(sorted(made.a.execute()), [1, 1, 2, 3, 4])
        # The rows come from the table that is replaced.
        replaced = con.create_table("t", made.mutate(b=made.a * 2), overwrite=True)
        self.assertEqual(replaced.b.sum().execute(), 22)
        con.truncate_table("t")
        self.assertEqual(replaced.count().execute(), 0)
        con.create_table("other", schema={"a": "int64"})
        con.create_table("temporary", schema={"a": "int64"}, temp=True)
        con.create_view("v", replaced.filter(replaced.a > 1))
        self.assertEqual(con.list_tables(), ["other", "t", "temporary", "v"])
        self.assertEqual(con.list_tables(like="^t"), ["t", "temporary"])
        con.drop_view("v")
        con.drop_table("t")
        con.drop_table("t", force=True)
        with self.assertRaises(keyaki.ProgrammingError):
            con.drop_table("t")
        self.assertEqual(con.list_tables(), ["other", "temporary"])

    def test_failed_tables_leave_nothing(self):
        broken = self.con.sql("SELECT 1 AS a").mutate(b=(_.a.cast("string") + "x").cast("int64"))
        with self.assertRaises(keyaki.DataError):
            self.con.create_table("t", broken)
        self.assertEqual(self.con.list_tables(), [])
        with self.assertRaises(ValueError):
            self.con.create_table("t")
        with self.assertRaises(ibis.common.exceptions.TableNotFound):
            self.con.table("t")

    def test_schemas_are_databases(self):
        con = self.con
        con.create_database("archive")
        con.create_table("t", schema={"a": "int64"}, database="archive")
        self.assertEqual(con.list_databases(), ["archive", "public"])
        self.assertEqual((con.list_tables(), con.list_tables(database="archive")), ([], ["t"]))
        con.insert("t", [(1,)], database="archive")
        self.assertEqual(con.table("t", database="archive").count().execute(), 1)
        self.assertEqual(con.current_database, "public")
        con.drop_database("archive", cascade=True)
        con.drop_database("archive", force=True)
        self.assertEqual(con.list_databases(), ["public"])

    def test_types(self):
        con = self.con
        con.raw_sql(
            "CREATE TABLE t (i BIGINT PRIMARY KEY, s SMALLINT, r REAL, n NUMERIC(10, 2), u UUID, j JSON, b JSONB, a BIGINT[], d DATE,"
            " t TIME, ts TIMESTAMP, tz TIMESTAMPTZ, y BYTEA, l TEXT[], v INTERVAL)"
        )
        con.raw_sql(
            "INSERT INTO t VALUES (1, 2, 1.5, 12.34, '00112233-4455-6677-8899-aabbccddeeff', '{\"a\": [1, 2]}', '[3]', '{1,NULL,3}',"
            " '2024-02-29', '12:34:56.5', '2024-02-29 12:00', '2024-02-29 12:00+02', '\\x00ff', '{a,b}', '1 month')"
        )
        con.raw_sql("INSERT INTO t (i) VALUES (2)")
        table = con.table("t")
        types = ["!int64", "int16", "float32", "decimal(10, 2)", "uuid", "json", "jsonb", "array<int64>", "date", "time", "timestamp(6)",
                 "timestamp('UTC', 6)", "binary", "array<string>", "unknown"]
        self.assertEqual([str(of) for of in table.schema().types], types)
        known = table.drop("v").order_by("i")
        first, second = con.to_pyarrow(known).to_pylist()
        self.assertEqual(first["n"], decimal.Decimal("12.34"))
        self.assertEqual(first["tz"], datetime.datetime(2024, 2, 29, 10, tzinfo=datetime.timezone.utc))
        self.assertEqual((first["y"], first["l"], first["a"]), (b"\x00\xff", ["a", "b"], [1, None, 3]))
        self.assertEqual(set(second.values()), {2, None})
        frame = known.execute()
        self.assertEqual(frame.u[0], uuid.UUID("00112233-4455-6677-8899-aabbccddeeff"))
        self.assertEqual((frame.j[0], frame.b[0]), ({"a": [1, 2]}, [3]))

    def test_connections(self):
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory) / "shop"
            con = keyaki.ibis.connect(path, memory="64 MiB")
            con.create_table("t", {"a": [1, 2]})
            con.disconnect()
            for opened in [ibis.connect(f"keyaki://{path}"), ibis.keyaki.connect(path, read_only=False)] if self.is_installed() else []:
                self.assertEqual(opened.table("t").count().execute(), 2)
                opened.disconnect()
            native = keyaki.connect(path)
            shared = keyaki.ibis.Backend.from_connection(native)
            self.assertEqual((shared.name, shared.table("t").a.sum().execute()), ("keyaki", 3))
            self.assertTrue(shared.version)
            native.close()

    def is_installed(self):
        """False if the package was assembled by `cargo xtask python`, without the entry points of a wheel."""
        import importlib.metadata

        return any(point.name == "keyaki" for point in importlib.metadata.entry_points(group="ibis.backends"))

    def test_transactions_of_the_caller(self):
        self.con.create_table("t", {"a": [1]})
        with self.assertRaises(ZeroDivisionError), self.con.con.transaction():
            self.con.create_table("u", {"a": [1]})
            self.con.insert("t", [(2,)])
            raise ZeroDivisionError
        self.assertEqual((self.con.list_tables(), self.con.table("t").count().execute()), (["t"], 1))


if __name__ == "__main__":
    unittest.main()
