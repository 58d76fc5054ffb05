"""psycopg 3: values, transactions, COPY, pipelines, cursors, cancellation, errors."""

import datetime
import decimal
import threading
import time
import uuid

import psycopg
import psycopg.rows
import psycopg.types.json
from psycopg import errors

from served import ServedTest


class Psycopg(ServedTest):
    def setUp(self):
        self.connection = psycopg.connect(host="127.0.0.1", port=self.server.port, user="me", dbname="keyaki")
        self.addCleanup(self.connection.close)

    def test_values_of_all_types_return_as_text_and_binary(self):
        values = {
            "BOOLEAN": True,
            "SMALLINT": -3,
            "INTEGER": 70_000,
            "BIGINT": 1 << 40,
            "DOUBLE PRECISION": 0.1,
            "DECIMAL(20, 4)": decimal.Decimal("-12345.6789"),
            "TEXT": "käyaki 'x'",
            "BYTEA": b"\x00\xff",
            "UUID": uuid.UUID("12345678-1234-5678-1234-567812345678"),
            "DATE": datetime.date(1999, 12, 31),
            "TIME": datetime.time(23, 59, 59, 123456),
            "TIMESTAMP": datetime.datetime(2024, 2, 29, 1, 2, 3, 4),
            "TIMESTAMPTZ": datetime.datetime(2024, 2, 29, 1, 2, 3, 4, datetime.timezone.utc),
            "INTERVAL": datetime.timedelta(days=3, seconds=4),
            "INTEGER[]": [1, None, 3],
            "TEXT[]": ["a", "b,c", 'd"e'],
        }
        self.connection.execute("SET timezone = 'UTC'")
        for number, (name, value) in enumerate(values.items()):
            table = f"of_type_{number}"
            self.connection.execute(f"CREATE TABLE {table} (id INT PRIMARY KEY, v {name})")
            self.connection.execute(f"INSERT INTO {table} VALUES (1, %s), (2, NULL)", [value])
            for binary in [False, True]:
                with self.connection.cursor(binary=binary) as cursor:
                    rows = cursor.execute(f"SELECT v FROM {table} ORDER BY id").fetchall()
                    self.assertEqual(rows, [(value,), (None,)], (name, binary))

    def test_transactions_and_errors(self):
        self.connection.execute("CREATE TABLE t (id INT PRIMARY KEY, v TEXT NOT NULL)")
        self.connection.commit()
        with self.assertRaises(errors.UniqueViolation) as raised, self.connection.transaction():
            self.connection.execute("INSERT INTO t VALUES (1, 'a')")
            self.connection.execute("INSERT INTO t VALUES (1, 'b')")
        self.assertEqual(raised.exception.diag.table_name, "t")
        with self.connection.transaction():
            self.connection.execute("INSERT INTO t VALUES (1, 'a')")
            with self.assertRaises(errors.NotNullViolation), self.connection.transaction():
                self.connection.execute("INSERT INTO t VALUES (2, NULL)")
            self.connection.execute("INSERT INTO t VALUES (3, 'c')")
        self.assertEqual(self.connection.execute("SELECT array_agg(id ORDER BY id) FROM t").fetchone(), ([1, 3],))
        with self.assertRaises(errors.SyntaxError):
            self.connection.execute("SELEC 1")
        self.connection.rollback()

    def test_copy_pipeline_and_prepared_statements(self):
        self.connection.execute("CREATE TABLE c (id INT PRIMARY KEY, v TEXT)")
        with self.connection.cursor() as cursor:
            with cursor.copy("COPY c FROM STDIN") as copy:
                for number in range(1000):
                    copy.write_row((number, f"row\t{number}"))
            with cursor.copy("COPY (SELECT v FROM c WHERE id < 3 ORDER BY id) TO STDOUT") as copy:
                self.assertEqual(list(copy.rows()), [("row\t0",), ("row\t1",), ("row\t2",)])
            cursor.executemany("INSERT INTO c VALUES (%s, %s)", [(1000 + n, None) for n in range(100)])
        self.connection.commit()
        with self.connection.pipeline():
            cursors = [self.connection.execute("SELECT v FROM c WHERE id = %s", [n], prepare=True) for n in range(50)]
        self.assertEqual([cursor.fetchone()[0] for cursor in cursors], [f"row\t{n}" for n in range(50)])
        # The statement that a driver sends again is planned anew after a change of the table.
        for added in range(3):
            row = self.connection.execute("SELECT * FROM c WHERE id = %s", [1], prepare=False).fetchone()
            self.assertEqual(len(row), 2 + added)
            self.connection.execute(f"ALTER TABLE c ADD COLUMN n{added} INT")

    def test_a_running_statement_is_cancelled(self):
        self.connection.autocommit = True
        timer = threading.Timer(0.3, self.connection.cancel)
        timer.start()
        started = time.monotonic()
        with self.assertRaises(errors.QueryCanceled):
            self.connection.execute(
                "SELECT sum(a % 7) FROM generate_series(1, 100000000000) g (a)"
            )
        self.assertLess(time.monotonic() - started, 30)
        timer.join()
        self.assertEqual(self.connection.execute("SELECT 1").fetchone(), (1,))

    def test_documents_are_loaded(self):
        self.connection.execute("CREATE TABLE documents (id INT PRIMARY KEY, v JSON, vs JSON[])")
        value = {"a": [1, None, "x"]}
        self.connection.execute("INSERT INTO documents VALUES (1, %s, ARRAY['1', '{}'])", [psycopg.types.json.Json(value)])
        for binary in [False, True]:
            with self.connection.cursor(binary=binary) as cursor:
                row = cursor.execute("SELECT v, vs, v -> 'a', v::TEXT FROM documents WHERE id = %s", [1]).fetchone()
                self.assertEqual(row[:3], (value, [1, {}], value["a"]))
                self.assertIsInstance(row[3], str)

    def test_documents_of_type_jsonb_are_loaded(self):
        self.connection.execute("CREATE TABLE binary_documents (id INT PRIMARY KEY, v JSONB, vs JSONB[])")
        value = {"a": [1, None, "x"]}
        insert = "INSERT INTO binary_documents VALUES (%s, %s, ARRAY['1', '{}'])"
        for number, binary in enumerate([False, True]):
            with self.connection.cursor(binary=binary) as cursor:
                cursor.execute(insert, [number, psycopg.types.json.Jsonb(value)])
                sql = "SELECT v, vs, v -> 'a' AS a, v -> 'a' -> %s::int, jsonb_build_object('k', 1) FROM binary_documents WHERE id = %s"
                row = cursor.execute(sql, [0, number]).fetchone()
                self.assertEqual(row, (value, [1, {}], value["a"], 1, {"k": 1}))
                self.assertEqual([column.type_code for column in cursor.description], [3802, 3807, 3802, 3802, 3802])
        with self.connection.cursor(binary=True) as cursor, cursor.copy("COPY binary_documents TO STDOUT BINARY") as copy:
            copy.set_types(["int4", "jsonb", "jsonb[]"])
            self.assertEqual(list(copy.rows()), [(0, value, [1, {}]), (1, value, [1, {}])])
        with self.connection.cursor() as cursor, cursor.copy("COPY binary_documents FROM STDIN BINARY") as copy:
            copy.set_types(["int4", "jsonb", "jsonb[]"])
            copy.write_row((2, psycopg.types.json.Jsonb(value), None))
        self.assertEqual(self.connection.execute("SELECT v FROM binary_documents WHERE id = 2").fetchone(), (value,))

    def test_rows_have_the_names_of_postgresql(self):
        with self.connection.cursor(row_factory=psycopg.rows.dict_row) as cursor:
            row = cursor.execute("SELECT count(*), max(a), 7 AS x, a::text FROM generate_series(1, 3) g (a) GROUP BY a LIMIT 1").fetchone()
            self.assertEqual(list(row), ["count", "max", "x", "a"])
            names = cursor.execute("SELECT 1, 'x'::text, true, CASE WHEN true THEN 1 END, coalesce(1, 2)", prepare=True)
            self.assertEqual([column.name for column in names.description], ["?column?", "text", "bool", "case", "coalesce"])

    def test_advisory_locks(self):
        self.connection.autocommit = True
        self.assertEqual(self.connection.execute("SELECT pg_try_advisory_lock(%s)", [7]).fetchone(), (True,))
        with psycopg.connect(host="127.0.0.1", port=self.server.port, user="me", dbname="keyaki", autocommit=True) as other:
            self.assertEqual(other.execute("SELECT pg_try_advisory_lock(7)").fetchone(), (False,))
            other.execute("SET lock_timeout = '50ms'")
            with self.assertRaises(errors.LockNotAvailable):
                other.execute("SELECT pg_advisory_lock(7)")
            self.assertEqual(self.connection.execute("SELECT pg_advisory_unlock(7)").fetchone(), (True,))
            other.execute("SELECT pg_advisory_lock(7)")
        # The end of a session releases its locks.
        self.connection.execute("SELECT pg_advisory_lock(7)")

    def test_sessions_are_listed_and_terminated(self):
        self.connection.autocommit = True
        own = self.connection.execute("SELECT pg_backend_pid()").fetchone()[0]
        self.assertEqual(own, self.connection.info.backend_pid)
        with psycopg.connect(host="127.0.0.1", port=self.server.port, user="me", dbname="keyaki") as other:
            pid = other.info.backend_pid
            row = self.connection.execute("SELECT state FROM pg_stat_activity WHERE pid = %s", [pid]).fetchone()
            self.assertEqual(row, ("idle",))
            ended = self.connection.execute("SELECT pg_terminate_backend(%s, 10000)", [pid]).fetchone()
            self.assertEqual(ended, (True,))
            with self.assertRaises(psycopg.OperationalError):
                other.execute("SELECT 1")

    def test_named_cursors(self):
        self.connection.execute("CREATE TABLE named (id INT PRIMARY KEY, v TEXT)")
        self.connection.execute("INSERT INTO named SELECT a, 'v' || a FROM generate_series(1, 10000) g (a)")
        self.connection.commit()
        for binary in [False, True]:
            with self.connection.cursor(name="a cursor", binary=binary) as cursor:
                cursor.itersize = 1000
                cursor.execute("SELECT id, v FROM named WHERE id > %s ORDER BY id", [10])
                self.assertEqual([column.name for column in cursor.description], ["id", "v"])
                self.assertEqual(cursor.fetchone(), (11, "v11"))
                self.assertEqual(cursor.fetchmany(2), [(12, "v12"), (13, "v13")])
                self.assertEqual([row[0] for row in cursor], list(range(14, 10001)))
        with self.connection.cursor(name="scrolling", scrollable=True) as cursor:
            cursor.execute("SELECT id FROM named ORDER BY id")
            cursor.scroll(5)
            self.assertEqual(cursor.fetchone(), (6,))
            cursor.scroll(1, mode="absolute")
            self.assertEqual(cursor.fetchone(), (2,))
        with self.connection.cursor(name="held", withhold=True) as cursor:
            cursor.execute("SELECT id FROM named ORDER BY id")
            self.connection.commit()
            self.assertEqual(len(cursor.fetchall()), 10000)
        self.assertEqual(self.connection.execute("SELECT count(*) FROM pg_cursors").fetchone(), (0,))
        with self.assertRaises(errors.UndefinedTable), self.connection.cursor(name="unknown") as cursor:
            cursor.execute("SELECT * FROM nowhere")

    def test_notifications_and_notices(self):
        self.connection.autocommit = True
        notices = []
        self.connection.add_notice_handler(lambda notice: notices.append((notice.severity, notice.message_primary)))
        self.connection.execute("DROP TABLE IF EXISTS nowhere")
        self.assertEqual(notices, [("NOTICE", 'table "nowhere" does not exist, skipping')])
        self.connection.execute("LISTEN channel")
        with psycopg.connect(host="127.0.0.1", port=self.server.port, user="me", dbname="keyaki") as other:
            pid = other.info.backend_pid
            other.execute("NOTIFY channel, 'first'")
            other.execute("SELECT pg_notify(%s, %s)", ["channel", "second"])
        found = list(self.connection.notifies(timeout=30, stop_after=2))
        self.assertEqual([(n.channel, n.payload, n.pid) for n in found], [("channel", "first", pid), ("channel", "second", pid)])
