"""The ADBC driver, loaded by Arrow's driver manager."""

import pathlib
import tempfile
import unittest
import uuid

import adbc_driver_manager
import keyaki
import polars
import pyarrow
from keyaki import adbc


class Adbc(unittest.TestCase):
    def setUp(self):
        self.con = adbc.connect()
        self.addCleanup(self.con.close)
        self.cur = self.con.cursor()
        self.addCleanup(self.cur.close)

    def rows(self, sql, parameters=None):
        self.cur.execute(sql, parameters)
        return self.cur.fetchall()

    def test_queries(self):
        self.assertEqual(self.rows("SELECT 1 AS a, 'x' AS b, NULL AS c"), [(1, "x", None)])
        self.cur.execute("SELECT value FROM generate_series(1, 20000)")
        table = self.cur.fetch_arrow_table()
        self.assertEqual((table.num_rows, table.column_names), (20000, ["value"]))
        self.assertEqual(self.rows("SELECT $1 + 1", (41,)), [(42,)])
        self.assertEqual(self.cur.adbc_execute_schema("SELECT 1 AS n").names, ["n"])
        self.assertEqual(polars.read_database("SELECT 2 AS n", self.con)["n"].to_list(), [2])

    def test_uuids(self):
        ids = [uuid.UUID(int=7), None]
        self.cur.execute("CREATE TABLE u (id UUID)")
        self.cur.executemany("INSERT INTO u VALUES (?)", [(str(ids[0]),), (None,)])
        self.cur.execute("SELECT id FROM u ORDER BY id")
        table = self.cur.fetch_arrow_table()
        self.assertEqual((table.schema.field("id").type, table["id"].to_pylist()), (pyarrow.uuid(), ids))
        self.assertEqual(self.cur.adbc_execute_schema("SELECT id FROM u").field("id").type, pyarrow.uuid())
        self.cur.adbc_ingest("u", table, mode="append")
        self.assertEqual(self.rows("SELECT count(id) FROM u"), [(2,)])

    def test_transactions(self):
        self.cur.execute("CREATE TABLE t (id BIGINT PRIMARY KEY, name TEXT)")
        self.cur.executemany("INSERT INTO t VALUES (?, ?)", [(1, "a"), (2, None)])
        self.con.rollback()
        self.assertEqual(self.rows("SELECT count(*) FROM t"), [(0,)])
        self.cur.executemany("INSERT INTO t VALUES (?, ?)", [(1, "a"), (2, None)])
        self.con.commit()
        self.con.rollback()
        self.assertEqual(self.rows("SELECT * FROM t ORDER BY id"), [(1, "a"), (2, None)])
        self.cur.executemany("UPDATE t SET name = ?", [("b",), ("c",)])
        self.assertEqual(self.cur.rowcount, 4)
        with adbc.connect(autocommit=True) as con, con.cursor() as cur:
            cur.execute("CREATE TABLE u AS SELECT 1 AS n")
            cur.execute("SELECT n FROM u")
            self.assertEqual(cur.fetchone(), (1,))

    def test_several_rows_of_parameters(self):
        table = pyarrow.table({"p": [1, 5, 7]})
        with adbc_driver_manager.AdbcStatement(self.con.adbc_connection) as statement:
            statement.set_sql_query("SELECT $1::bigint * 2 AS n")
            statement.prepare()
            parameters = pyarrow.schema(statement.get_parameter_schema())
            self.assertEqual(parameters.types, [pyarrow.int64()])
            statement.bind_stream(table)
            stream, _ = statement.execute_query()
            reader = pyarrow.RecordBatchReader.from_stream(stream)
            self.assertEqual(reader.read_all()["n"].to_pylist(), [2, 10, 14])

    def test_ingestion(self):
        table = pyarrow.table({"id": pyarrow.array(range(10000), pyarrow.uint16()), "name": ["n"] * 10000})
        self.assertEqual(self.cur.adbc_ingest("t", table, mode="create"), 10000)
        self.con.commit()
        with self.assertRaises(adbc_driver_manager.ProgrammingError) as caught:
            self.cur.adbc_ingest("t", table, mode="create")
        self.assertEqual(caught.exception.sqlstate, "42P07")
        self.con.rollback()
        self.assertEqual(self.cur.adbc_ingest("t", table.slice(0, 10), mode="append"), 10)
        self.assertEqual(self.cur.adbc_ingest("t", table.slice(0, 5), mode="create_append"), 5)
        self.assertEqual(self.rows("SELECT count(*) FROM t"), [(10015,)])
        self.assertEqual(self.cur.adbc_ingest("t", table.slice(0, 7), mode="replace"), 7)
        self.assertEqual(self.rows("SELECT count(*), max(id) FROM t"), [(7, 6)])
        self.cur.execute("CREATE SCHEMA s")
        self.con.commit()
        self.cur.adbc_ingest("t", table.slice(0, 3), mode="create", db_schema_name="s")
        self.cur.adbc_ingest("Mixed Case", table.slice(0, 2), mode="create", temporary=True)
        self.assertEqual(self.rows('SELECT (SELECT count(*) FROM s.t), (SELECT count(*) FROM "Mixed Case")'), [(3, 2)])
        polars.DataFrame({"a": [1, 2]}).write_database("p", self.con, engine="adbc")
        self.assertEqual(self.rows("SELECT sum(a) FROM p"), [(3,)])

    def test_descriptions(self):
        self.cur.execute("CREATE TABLE parent (id BIGINT PRIMARY KEY, code TEXT UNIQUE, n DECIMAL(10,2) DEFAULT 1)")
        self.cur.execute("CREATE TABLE child (a BIGINT REFERENCES parent (id), b INT NOT NULL)")
        self.cur.execute("CREATE VIEW v AS SELECT id FROM parent")
        self.con.commit()
        self.assertEqual(self.con.adbc_get_table_schema("parent").names, ["id", "code", "n"])
        with self.assertRaises(adbc_driver_manager.ProgrammingError):
            self.con.adbc_get_table_schema("missing")
        self.assertEqual(self.con.adbc_get_table_types(), ["BASE TABLE", "LOCAL TEMPORARY", "VIEW"])
        info = self.con.adbc_get_info()
        self.assertEqual((info["vendor_name"], info["vendor_version"]), ("Keyaki", keyaki.__version__))
        self.assertEqual(self.con.adbc_current_db_schema, "public")
        [catalog] = self.con.adbc_get_objects().read_all().to_pylist()
        self.assertEqual(catalog["catalog_name"], self.con.adbc_current_catalog)
        [public] = [schema for schema in catalog["catalog_db_schemas"] if schema["db_schema_name"] == "public"]
        tables = {table["table_name"]: table for table in public["db_schema_tables"]}
        self.assertEqual(tables["v"]["table_type"], "VIEW")
        columns = tables["parent"]["table_columns"]
        self.assertEqual([column["xdbc_type_name"] for column in columns], ["bigint", "text", "numeric"])
        self.assertEqual([column["xdbc_is_nullable"] for column in columns], ["NO", "YES", "YES"])
        keys = {key["constraint_type"]: key for key in tables["child"]["table_constraints"]}
        self.assertEqual(keys["FOREIGN KEY"]["constraint_column_names"], ["a"])
        [usage] = keys["FOREIGN KEY"]["constraint_column_usage"]
        self.assertEqual((usage["fk_table"], usage["fk_column_name"]), ("parent", "id"))
        for depth, key in [("catalogs", "catalog_db_schemas"), ("db_schemas", "db_schema_tables")]:
            [catalog] = self.con.adbc_get_objects(depth=depth).read_all().to_pylist()
            lists = [catalog[key]] if depth == "catalogs" else [s[key] for s in catalog["catalog_db_schemas"]]
            self.assertEqual(set(map(type, lists)), {type(None)}, depth)
        objects = self.con.adbc_get_objects(table_name_filter="par%", table_types_filter=["BASE TABLE"])
        [catalog] = objects.read_all().to_pylist()
        names = [t["table_name"] for s in catalog["catalog_db_schemas"] for t in s["db_schema_tables"]]
        self.assertEqual(names, ["parent"])

    def test_errors(self):
        for sql, exception, sqlstate in [
            ("SELECT * FROM missing", adbc_driver_manager.ProgrammingError, "42P01"),
            ("SELEC 1", adbc_driver_manager.ProgrammingError, "42601"),
            ("SELECT 1 / 0", adbc_driver_manager.DataError, "22012"),
        ]:
            with self.assertRaises(exception, msg=sql) as caught:
                self.rows(sql)
            self.assertEqual(caught.exception.sqlstate, sqlstate, caught.exception)
        self.cur.execute("CREATE TABLE k (id INT PRIMARY KEY)")
        self.con.commit()
        with self.assertRaises(adbc_driver_manager.IntegrityError):
            self.cur.executemany("INSERT INTO k VALUES (?)", [(1,), (1,)])
        self.con.rollback()
        with self.assertRaises(adbc_driver_manager.Error):
            adbc.connect(memory="much")
        with self.assertRaises(adbc_driver_manager.Error):
            adbc.connect(wrong=1)
        with self.assertRaises(adbc_driver_manager.Error):
            self.cur.execute(b"\x08plan")

    def test_databases_are_shared_with_other_connections(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "shop"
            with keyaki.connect(path) as con:
                con.execute("CREATE TABLE t (n INT)")
                con.execute("INSERT INTO t VALUES (1)")
                con.commit()
                with adbc.connect(path) as other, other.cursor() as cur:
                    cur.execute("SELECT n FROM t")
                    self.assertEqual(cur.fetchall(), [(1,)])
            with adbc.connect(f"keyaki://{path}", read_only=True) as other, other.cursor() as cur:
                cur.execute("SELECT n FROM t")
                self.assertEqual(cur.fetchall(), [(1,)])
                with self.assertRaises(adbc_driver_manager.Error):
                    cur.execute("DELETE FROM t")
                    cur.fetchall()


if __name__ == "__main__":
    unittest.main()
