"""DB-API 2.0: the module, connections, cursors, parameters, transactions and exceptions."""

import decimal
import os
import pathlib
import subprocess
import sys
import tempfile
import threading
import unittest

import keyaki


class Database(unittest.TestCase):
    def setUp(self):
        self.con = keyaki.connect()
        self.addCleanup(self.con.close)

    def table(self, rows=3):
        self.con.execute("CREATE TABLE t (id BIGINT PRIMARY KEY, name TEXT)")
        self.con.executemany("INSERT INTO t VALUES (?, ?)", [(i, f"name {i}") for i in range(rows)])
        self.con.commit()

    def count(self, con=None):
        return (con or self.con).execute("SELECT count(*) FROM t").fetchone()[0]


class Module(unittest.TestCase):
    def test_globals(self):
        self.assertEqual((keyaki.apilevel, keyaki.threadsafety, keyaki.paramstyle), ("2.0", 2, "qmark"))
        for name in keyaki.__all__:
            self.assertTrue(hasattr(keyaki, name), name)
        self.assertRegex(keyaki.__version__, r"^\d+\.\d+\.\d+$")

    def test_modules_of_the_package_are_imported_when_they_are_used(self):
        program = "import keyaki, sys; assert 'keyaki.aio' not in sys.modules; print(keyaki.aio.connect.__name__)"
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
        self.assertEqual((done.stdout, done.stderr), ("connect\n", ""))
        with self.assertRaisesRegex(AttributeError, "module 'keyaki' has no attribute 'conect'"):
            keyaki.conect

    def test_exceptions_are_those_of_the_standard(self):
        self.assertTrue(issubclass(keyaki.Warning, Exception))
        self.assertTrue(issubclass(keyaki.Error, Exception))
        self.assertTrue(issubclass(keyaki.InterfaceError, keyaki.Error))
        self.assertTrue(issubclass(keyaki.DatabaseError, keyaki.Error))
        for name in ["Data", "Operational", "Integrity", "Internal", "Programming", "NotSupported"]:
            exception = getattr(keyaki, name + "Error")
            self.assertTrue(issubclass(exception, keyaki.DatabaseError), name)
            self.assertIs(getattr(keyaki.Connection, name + "Error"), exception)

    def test_constructors(self):
        self.assertEqual(keyaki.Date(2024, 2, 29).isoformat(), "2024-02-29")
        self.assertEqual(keyaki.Binary(b"a"), b"a")
        self.assertEqual(keyaki.DateFromTicks(0.0).year in (1969, 1970), True)
        self.assertEqual(keyaki.TimestampFromTicks(86400.5).microsecond, 500000)
        self.assertEqual(keyaki.TimeFromTicks(0.25).microsecond, 250000)


class Connecting(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.path = os.path.join(directory.name, "shop")

    def test_connections_of_a_process_share_a_database(self):
        with keyaki.connect(self.path) as first:
            first.execute("CREATE TABLE t (id BIGINT PRIMARY KEY)")
            with keyaki.connect(pathlib.Path(self.path)) as second:
                second.execute("INSERT INTO t VALUES (1)")
            self.assertEqual(first.execute("SELECT * FROM t").fetchall(), [(1,)])
            with first.duplicate() as third:
                self.assertEqual(third.execute("SELECT * FROM t").fetchall(), [(1,)])
            self.assertEqual(first.path, pathlib.Path(self.path).resolve())
            self.assertIn("shop", repr(first))
        self.assertTrue(first.closed)
        with keyaki.connect(self.path, read_only=True) as reader:
            self.assertEqual(reader.execute("SELECT * FROM t").fetchall(), [(1,)])
            with self.assertRaisesRegex(keyaki.ProgrammingError, "already open in this process with read_only=True"):
                keyaki.connect(self.path)
            with self.assertRaises(keyaki.Error) as caught:
                reader.execute("INSERT INTO t VALUES (2)")
            self.assertEqual(caught.exception.sqlstate, "25006")

    def test_options(self):
        with self.assertRaises(keyaki.Error) as caught:
            keyaki.connect(self.path, create=False)
        self.assertEqual(caught.exception.sqlstate, "3D000")
        with keyaki.connect(self.path, memory="64 MiB", threads=1, durability="off") as con:
            self.assertEqual(con.execute("SHOW keyaki.durability").fetchone()[-1], "off")
            for other in [{"memory": 1 << 30}, {"threads": 2}, {"durability": "full"}]:
                with self.assertRaisesRegex(keyaki.ProgrammingError, "only its first connection can choose memory"):
                    keyaki.connect(self.path, **other)
            # The same options, or some of them.
            keyaki.connect(self.path, memory=64 << 20, threads=1, durability="off").close()
            keyaki.connect(self.path, threads=1).close()
        settings = {"timezone": "Europe/Berlin", "keyaki.short_path": False}
        with keyaki.connect(self.path, settings=settings) as con:
            self.assertEqual(con.execute("SHOW timezone").fetchone()[-1], "Europe/Berlin")
            self.assertEqual(con.execute("SHOW keyaki.short_path").fetchone()[-1], "off")
        for wrong in [{"memory": "much"}, {"memory": -1}, {"durability": "half"}, {"settings": {"a b": 1}}]:
            with self.assertRaises(keyaki.ProgrammingError, msg=str(wrong)):
                keyaki.connect(self.path, **wrong)
        with self.assertRaises(keyaki.ProgrammingError):
            keyaki.connect(read_only=True)
        with self.assertRaises(TypeError):
            keyaki.connect(7)

    def test_a_closed_connection_refuses_all_calls(self):
        con = keyaki.connect(self.path)
        cursor = con.execute("SELECT value FROM generate_series(1, 100000)")
        self.assertEqual(cursor.fetchone(), (1,))
        con.close()
        con.close()
        for call in [con.cursor, con.commit, con.rollback, con.duplicate, cursor.fetchone, cursor.fetchall]:
            with self.assertRaisesRegex(keyaki.InterfaceError, "the connection is closed"):
                call()
        with self.assertRaises(keyaki.InterfaceError):
            cursor.execute("SELECT 1")
        # The open result does not keep the database open.
        keyaki.connect(self.path, memory="64 MiB").close()

    def test_blocks_commit_or_roll_back(self):
        with keyaki.connect(self.path) as con:
            con.execute("CREATE TABLE t (id BIGINT PRIMARY KEY)")
            con.execute("INSERT INTO t VALUES (1)")
        with self.assertRaises(ZeroDivisionError):
            with keyaki.connect(self.path) as con:
                con.execute("INSERT INTO t VALUES (2)")
                1 / 0
        self.assertTrue(con.closed)
        con = keyaki.connect(self.path)
        con.execute("INSERT INTO t VALUES (3)")
        con.close()
        with keyaki.connect(self.path) as con:
            self.assertEqual(con.execute("SELECT * FROM t").fetchall(), [(1,)])


class Cursors(Database):
    def test_rows_are_fetched(self):
        self.table(10)
        cursor = self.con.cursor()
        self.assertIs(cursor.execute("SELECT id, name FROM t ORDER BY id"), cursor)
        self.assertIs(cursor.connection, self.con)
        self.assertEqual(cursor.fetchone(), (0, "name 0"))
        self.assertEqual(cursor.arraysize, 1)
        self.assertEqual(cursor.fetchmany(), [(1, "name 1")])
        self.assertEqual([row[0] for row in cursor.fetchmany(3)], [2, 3, 4])
        cursor.arraysize = 2
        self.assertEqual([row[0] for row in cursor.fetchmany()], [5, 6])
        self.assertEqual(next(cursor)[0], 7)
        self.assertEqual([row[0] for row in cursor], [8, 9])
        self.assertIsNone(cursor.fetchone())
        self.assertEqual((cursor.fetchall(), cursor.fetchmany(5)), ([], []))

    def test_large_results_are_streams(self):
        cursor = self.con.execute("SELECT value FROM generate_series(1, 100000)")
        self.assertEqual(len(cursor.fetchmany(30000)), 30000)
        self.assertEqual(sum(row[0] for row in cursor), sum(range(30001, 100001)))

    def test_descriptions(self):
        self.table()
        cursor = self.con.execute("SELECT id, name, CAST(1 AS DECIMAL(12,2)) AS d, now() AS z, CAST('{}' AS JSON) j FROM t")
        described = [(column[0], column[1], column[4], column[5]) for column in cursor.description]
        self.assertEqual(described[0], ("id", "bigint", None, None))
        self.assertEqual(described[1], ("name", "text", None, None))
        self.assertEqual((described[2][0], described[2][2:]), ("d", (12, 2)))
        types = [column[1] for column in cursor.description]
        expected = [keyaki.NUMBER, keyaki.STRING, keyaki.NUMBER, keyaki.DATETIME, keyaki.STRING]
        for found, wanted in zip(types, expected):
            self.assertEqual(wanted, found)
        self.assertNotEqual(keyaki.NUMBER, types[1])
        self.assertTrue(all(len(column) == 7 for column in cursor.description))
        cursor.fetchall()
        self.assertEqual(len(cursor.description), 5)
        self.assertIsNone(self.con.execute("CREATE TABLE u (id BIGINT)").description)

    def test_descriptions_while_another_thread_fetches(self):
        cursor = self.con.execute("SELECT value FROM generate_series(1, 3000000)")
        thread = threading.Thread(target=cursor.fetchall)
        thread.start()
        while thread.is_alive():
            self.assertEqual(cursor.description[0][:2], ("value", "bigint"))
        thread.join()

    def test_counts_of_rows(self):
        self.table()
        cursor = self.con.cursor()
        self.assertEqual(cursor.rowcount, -1)
        self.assertEqual(cursor.execute("UPDATE t SET name = 'x' WHERE id < 2").rowcount, 2)
        self.assertEqual(cursor.execute("SELECT * FROM t").rowcount, -1)
        self.assertEqual(cursor.execute("DELETE FROM t WHERE id = 7").rowcount, 0)
        self.assertEqual(cursor.execute("DROP TABLE t").rowcount, -1)
        self.assertIsNone(cursor.lastrowid)

    def test_returning(self):
        self.table()
        cursor = self.con.execute("INSERT INTO t VALUES (10, 'ten') RETURNING id, name")
        self.assertEqual(cursor.fetchall(), [(10, "ten")])

    def test_cursors_without_a_result(self):
        self.table()
        cursor = self.con.cursor()
        with self.assertRaisesRegex(keyaki.ProgrammingError, "there is no result"):
            cursor.fetchone()
        cursor.execute("SELECT 1")
        cursor.execute("DELETE FROM t")
        with self.assertRaises(keyaki.Error):
            cursor.fetchall()
        with self.assertRaises(keyaki.NotSupportedError):
            cursor.callproc("f")
        cursor.setinputsizes([10])
        cursor.setoutputsize(10, 1)
        with cursor:
            pass
        with self.assertRaisesRegex(keyaki.InterfaceError, "the cursor is closed"):
            cursor.execute("SELECT 1")
        cursor.close()

    def test_scripts(self):
        self.con.executescript("CREATE TABLE a (n BIGINT); INSERT INTO a VALUES (1); INSERT INTO a VALUES (2);")
        self.assertEqual(self.con.execute("SELECT sum(n) FROM a").fetchone(), (3,))
        self.con.execute("DROP TABLE IF EXISTS missing")
        self.assertEqual(self.con.notices(), ['NOTICE: table "missing" does not exist, skipping'])
        self.assertEqual(self.con.notices(), [])


class Parameters(Database):
    def test_forms(self):
        self.assertEqual(self.con.execute("SELECT ? + ?", (1, 2)).fetchone(), (3,))
        self.assertEqual(self.con.execute("SELECT $2 - $1", [1, 2]).fetchone(), (1,))
        self.assertEqual(self.con.execute("SELECT :b - :a + :b", {"a": 1, "b": 2, "c": 3}).fetchone(), (3,))
        self.assertEqual(self.con.execute("SELECT ?", iter(["x"])).fetchone(), ("x",))
        self.assertEqual(self.con.execute("SELECT 1", ()).fetchone(), (1,))
        self.assertEqual(self.con.execute("SELECT 1", {}).fetchone(), (1,))

    def test_names_are_found_outside_of_texts_and_comments(self):
        sql = """SELECT ':a', ":a", 'it''s :a', E'\\' :a', $$ :a $$, $x$ :a $x$, /* :a /* */ :a */ :b::bigint -- :a
            , CAST(:b AS TEXT) FROM (SELECT 1 AS ":a") q"""
        row = self.con.execute(sql, {"b": 7}).fetchone()
        self.assertEqual(row, (":a", 1, "it's :a", "' :a", " :a ", " :a ", 7, "7"))
        slices = self.con.execute("SELECT (ARRAY[1, 2, 3, 4])[2:3], :größe", {"größe": 1}).fetchone()
        self.assertEqual(slices, ([2, 3], 1))

    def test_wrong_parameters(self):
        for sql, parameters, sqlstate in [
            ("SELECT ?", (), None),
            ("SELECT ?", (1, 2), "07001"),
            ("SELECT :a", {"b": 1}, None),
            ("SELECT ?", "x", None),
            ("SELECT ?", 7, None),
            ("SELECT ?", (object(),), "42804"),
        ]:
            with self.assertRaises(keyaki.ProgrammingError, msg=sql) as caught:
                self.con.execute(sql, parameters).fetchall()
            if sqlstate:
                self.assertEqual(caught.exception.sqlstate, sqlstate)

    def test_messages_have_the_python_value(self):
        class Thing:
            def __repr__(self):
                return "<a thing>"

        with self.assertRaisesRegex(keyaki.ProgrammingError, r"parameter \$2: <a thing> of type .*Thing has no counterpart"):
            self.con.execute("SELECT ?, ?", (1, Thing()))
        with self.assertRaisesRegex(keyaki.ProgrammingError, 'parameter ":n": <a thing>'):
            self.con.execute("SELECT :n", {"n": Thing()})
        with self.assertRaisesRegex(keyaki.DataError, "1000000000.* of type int has more than 38 digits"):
            self.con.execute("SELECT ?", (10**38,))

    def test_many(self):
        self.con.execute("CREATE TABLE t (id BIGINT PRIMARY KEY, name TEXT)")
        cursor = self.con.executemany("INSERT INTO t VALUES (:id, :name)", ({"id": i, "name": "x"} for i in range(3000)))
        self.assertEqual(cursor.rowcount, 3000)
        self.assertTrue(self.con.in_transaction)
        self.con.commit()
        self.assertEqual(cursor.executemany("DELETE FROM t WHERE id = ?", [[1], [2], [9999]]).rowcount, 2)
        self.con.rollback()
        self.assertEqual(self.count(), 3000)
        with self.assertRaises(keyaki.IntegrityError):
            self.con.executemany("INSERT INTO t VALUES (?, ?)", [(5000, "a"), (5001, "b"), (1, "duplicate")])
        self.assertFalse(self.con.in_transaction)

        def broken():
            yield (6000, "a")
            raise KeyError("broken")

        with self.assertRaises(KeyError):
            self.con.executemany("INSERT INTO t VALUES (?, ?)", broken())
        self.assertEqual((self.count(), self.con.in_transaction), (3000, False))
        self.assertEqual(self.con.executemany("INSERT INTO t VALUES (?, ?)", []).rowcount, 0)


class ManyRows(Database):
    """executemany with enough rows for statements of several rows."""

    def setUp(self):
        super().setUp()
        self.con.execute("CREATE TABLE t (id BIGINT PRIMARY KEY, name TEXT DEFAULT 'd', price DECIMAL(10,2), seen TIMESTAMPTZ DEFAULT now())")

    def rows(self):
        return self.con.execute("SELECT id, name, price FROM t ORDER BY id").fetchall()

    def test_forms_of_statements(self):
        numbers = range(2000)
        for sql, row, expected in [
            ("INSERT INTO t (id, name) VALUES (?, ?)", lambda i: (i, f"n{i}"), lambda i: (i, f"n{i}", None)),
            ("INSERT INTO t (id, name) VALUES ($2, $1)", lambda i: (f"n{i}", i), lambda i: (i, f"n{i}", None)),
            ("INSERT INTO t (id, name) VALUES (:id, :id)", lambda i: {"id": i}, lambda i: (i, str(i), None)),
            (
                'insert into "t" (price, "id") /* ( */ values (-1.5, -- ?\n ?);',
                lambda i: [i],
                lambda i: (i, "d", decimal.Decimal("-1.50")),
            ),
            ("INSERT INTO t (name, id) VALUES (DEFAULT, ?)", lambda i: (i,), lambda i: (i, "d", None)),
            ("INSERT INTO t (name, id) VALUES ('a?''$1', ?)", lambda i: (i,), lambda i: (i, "a?'$1", None)),
            ("INSERT INTO t (name, id) VALUES (upper('x'), ?)", lambda i: (i,), lambda i: (i, "X", None)),
            ("INSERT INTO t (id, price) VALUES (?, (SELECT count(*) FROM t))", lambda i: (i,), lambda i: (i, "d", i)),
            ("INSERT INTO t (id) VALUES (?) ON CONFLICT DO NOTHING", lambda i: (i,), lambda i: (i, "d", None)),
        ]:
            with self.subTest(sql):
                # A statement with a subquery is planned for each row.
                some = numbers[:300] if "SELECT" in sql else numbers
                cursor = self.con.executemany(sql, map(row, some))
                self.assertEqual(cursor.rowcount, len(some))
                self.assertEqual(self.rows(), [expected(i) for i in some])
                self.con.rollback()

    def test_values_of_different_types(self):
        prices = [None, 1, "2.50", decimal.Decimal("3.25"), 4.5]
        rows = [(i, prices[i % 5]) for i in range(1000)]
        self.con.executemany("INSERT INTO t (id, price) VALUES (?, ?)", rows)
        expected = [None if price is None else decimal.Decimal(str(price)) for _, price in rows]
        self.assertEqual([row[2] for row in self.rows()], expected)
        self.assertEqual(self.con.execute("SELECT count(*) FROM t WHERE seen IS NULL").fetchone(), (0,))

    def test_errors_are_those_of_one_row(self):
        for wrong, exception, message in [
            ((700, "x", "much"), keyaki.DataError, r'parameter \$3: .*"much"'),
            ((3, "x", 1), keyaki.IntegrityError, r"Key \(id\)=\(3\) already exists"),
            ((None, "x", 1), keyaki.IntegrityError, '"id"'),
            ((700, "x"), keyaki.ProgrammingError, "parameter"),
            ((700, "x", object()), keyaki.ProgrammingError, r"parameter \$3: <object"),
        ]:
            with self.subTest(wrong):
                rows = [(i, "n", i) for i in range(1500)]
                rows[700] = wrong
                with self.assertRaisesRegex(exception, message):
                    self.con.executemany("INSERT INTO t (id, name, price) VALUES (?, ?, ?)", rows)
                self.assertFalse(self.con.in_transaction)
                self.assertEqual(self.rows(), [])

    def test_savepoints(self):
        self.con.execute("INSERT INTO t (id) VALUES (-1)")
        with self.assertRaises(keyaki.IntegrityError):
            self.con.executemany("INSERT INTO t (id) VALUES (?)", [(i % 1500,) for i in range(1600)])
        self.assertTrue(self.con.in_transaction)
        self.con.executemany("INSERT INTO t (id) VALUES (?)", [(i,) for i in range(1600)])
        self.con.commit()
        self.assertEqual(self.con.execute("SELECT count(*), min(id) FROM t").fetchone(), (1601, -1))

    def test_generated_values(self):
        self.con.execute("CREATE TABLE g (id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, n BIGINT, twice BIGINT GENERATED ALWAYS AS (n * 2) STORED)")
        self.con.executemany("INSERT INTO g (n) VALUES (?)", [(i,) for i in range(1000)])
        found = self.con.execute("SELECT count(DISTINCT id), sum(twice) FROM g").fetchone()
        self.assertEqual(found, (1000, 999000))

    def test_wide_rows(self):
        columns = [f"c{i}" for i in range(1000)]
        self.con.execute(f"CREATE TABLE w (id BIGINT PRIMARY KEY, {', '.join(f'{name} INTEGER' for name in columns)})")
        sql = f"INSERT INTO w VALUES (?{', ?' * len(columns)})"
        self.assertEqual(self.con.executemany(sql, [(i, *range(1000)) for i in range(3)]).rowcount, 3)


class Transactions(Database):
    def test_changes_begin_a_transaction(self):
        self.table()
        self.con.execute("SELECT * FROM t").fetchall()
        self.assertFalse(self.con.in_transaction)
        for change in [
            "INSERT INTO t VALUES (10, 'x')",
            "  -- a comment\n /* another */ UPDATE t SET name = 'y'",
            "WITH q AS (SELECT 1 AS id) DELETE FROM t USING q WHERE t.id = q.id",
            "SELECT * FROM t FOR UPDATE",
        ]:
            self.con.execute(change)
            self.assertTrue(self.con.in_transaction, change)
            self.con.rollback()
            self.assertFalse(self.con.in_transaction)
        self.assertEqual(self.count(), 3)
        self.con.rollback()
        self.con.commit()

    def test_a_failed_first_statement_leaves_no_transaction(self):
        self.table()
        with self.assertRaises(keyaki.IntegrityError):
            self.con.execute("INSERT INTO t VALUES (1, 'duplicate')")
        self.assertFalse(self.con.in_transaction)
        self.con.execute("INSERT INTO t VALUES (4, 'x')")
        with self.assertRaises(keyaki.IntegrityError):
            self.con.execute("INSERT INTO t VALUES (1, 'duplicate')")
        with self.assertRaises(keyaki.OperationalError) as caught:
            self.con.execute("SELECT 1")
        self.assertEqual(caught.exception.sqlstate, "25P02")
        with self.assertRaises(keyaki.OperationalError):
            self.con.commit()
        self.assertFalse(self.con.in_transaction)
        self.assertEqual(self.count(), 3)

    def test_autocommit(self):
        self.table()
        self.con.autocommit = True
        self.con.execute("INSERT INTO t VALUES (10, 'x')")
        self.assertFalse(self.con.in_transaction)
        self.con.begin("serializable")
        self.con.execute("DELETE FROM t")
        with self.assertRaises(keyaki.ProgrammingError):
            self.con.begin()
        self.con.rollback()
        self.con.executemany("INSERT INTO t VALUES (?, ?)", [(11, "a"), (12, "b")])
        self.assertFalse(self.con.in_transaction)
        self.assertEqual(self.count(), 6)
        self.con.autocommit = False
        self.con.execute("DELETE FROM t")
        with self.assertRaises(keyaki.ProgrammingError):
            self.con.autocommit = True
        with self.assertRaisesRegex(keyaki.ProgrammingError, 'isolation "chaos"'):
            self.con.begin("chaos")

    def test_blocks(self):
        self.table()
        with self.con.transaction():
            self.con.execute("INSERT INTO t VALUES (10, 'x')")
            with self.assertRaises(ZeroDivisionError):
                with self.con.transaction():
                    self.con.execute("INSERT INTO t VALUES (11, 'x')")
                    1 / 0
            with self.con.transaction():
                self.con.execute("INSERT INTO t VALUES (12, 'x')")
        self.assertFalse(self.con.in_transaction)
        self.assertEqual(self.con.execute("SELECT id FROM t WHERE id > 9 ORDER BY id").fetchall(), [(10,), (12,)])
        with self.assertRaises(KeyError):
            with self.con.transaction("read committed"):
                self.con.execute("DELETE FROM t")
                raise KeyError
        self.assertEqual(self.count(), 5)

    def test_conflicts(self):
        self.table()
        other = self.con.duplicate()
        self.con.execute("UPDATE t SET name = 'a' WHERE id = 1")
        other.execute("UPDATE t SET name = 'b' WHERE id = 1")
        self.con.commit()
        with self.assertRaises(keyaki.OperationalError) as caught:
            other.commit()
        self.assertEqual(caught.exception.sqlstate, "40001")
        self.assertEqual(other.execute("SELECT name FROM t WHERE id = 1").fetchone(), ("a",))
        other.close()


class Errors(Database):
    def test_classes_and_states(self):
        self.table()
        for sql, exception, sqlstate in [
            ("SELEC 1", keyaki.ProgrammingError, "42601"),
            ("SELECT * FROM missing", keyaki.ProgrammingError, "42P01"),
            ("SELECT missing FROM t", keyaki.ProgrammingError, "42703"),
            ("SELECT 1 / (id - 1) FROM t", keyaki.DataError, "22012"),
            ("INSERT INTO t VALUES (1, 'x')", keyaki.IntegrityError, "23505"),
            ("INSERT INTO t VALUES (NULL, 'x')", keyaki.IntegrityError, "23502"),
            ("SELECT CAST('x' AS INTEGER)", keyaki.DataError, "22P02"),
        ]:
            with self.assertRaises(exception, msg=sql) as caught:
                self.con.execute(sql).fetchall()
            self.assertEqual(caught.exception.sqlstate, sqlstate, sql)
            self.assertNotIn("DataFusion", str(caught.exception))
            self.con.rollback()
        with self.assertRaises(TypeError):
            self.con.execute(b"SELECT 1")


if __name__ == "__main__":
    unittest.main()
