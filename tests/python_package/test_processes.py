"""Threads, signals, forks, and the end of the interpreter."""

import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import unittest

import keyaki

# Seconds after which a test has hung.
LIMIT = 120
# Statements after which memory must not have grown by more than LEAKED_BYTES: a leak of 100 bytes in each would be found.
LEAK_STATEMENTS = 100_000
LEAKED_BYTES = 8 << 20
ENDLESS = "SELECT sum(a.value % b.value) FROM generate_series(1, 100000) a, generate_series(1, 100000000) b"


def python(program, *arguments, limit=LIMIT):
    """Runs a program in a new interpreter, for at most `limit` seconds. Returns its standard output."""
    command = [sys.executable, "-c", textwrap.dedent(program), *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=limit)
    if ended.returncode != 0:
        raise AssertionError(f"exit status {ended.returncode}: {ended.stderr}")
    return ended.stdout


class Threads(unittest.TestCase):
    def test_threads_share_a_connection(self):
        with keyaki.connect(autocommit=True) as con:
            con.execute("CREATE TABLE t (id BIGINT PRIMARY KEY)")
            failures = []

            def work(first):
                try:
                    for i in range(first, first + 50):
                        con.execute("INSERT INTO t VALUES (?)", (i,))
                        con.execute("SELECT * FROM t WHERE id = ?", (i,)).fetchall()
                except Exception as error:
                    failures.append(error)

            threads = [threading.Thread(target=work, args=(n * 100,)) for n in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(LIMIT)
            self.assertEqual(failures, [])
            self.assertEqual(con.execute("SELECT count(*) FROM t").fetchone(), (200,))

    def test_other_threads_run_while_a_statement_waits(self):
        with keyaki.connect() as con:
            counted = 0

            def count():
                nonlocal counted
                while counted < 1000:
                    counted += 1
                con.interrupt()

            thread = threading.Timer(0.2, count)
            thread.start()
            with self.assertRaises(keyaki.OperationalError) as caught:
                con.execute(ENDLESS).fetchall()
            thread.join(LIMIT)
            self.assertEqual((caught.exception.sqlstate, counted), ("57014", 1000))
            self.assertEqual(con.execute("SELECT 1").fetchone(), (1,))


class Signals(unittest.TestCase):
    def test_ctrl_c_cancels_the_statement(self):
        with keyaki.connect() as con:
            timer = threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT))
            timer.start()
            with self.assertRaises(KeyboardInterrupt):
                con.execute(ENDLESS).fetchall()
            timer.join(LIMIT)
            self.assertEqual(con.execute("SELECT 1").fetchone(), (1,))

    def test_handlers_run_and_the_statement_goes_on(self):
        calls = []

        with keyaki.connect() as con:

            def handler(*_):
                with self.assertRaisesRegex(keyaki.InterfaceError, "signal handler"):
                    con.execute("SELECT 1")
                calls.append(1)
                if len(calls) == 2:
                    con.interrupt()

            before = signal.signal(signal.SIGALRM, handler)
            signal.setitimer(signal.ITIMER_REAL, 0.2, 0.2)
            try:
                with self.assertRaises(keyaki.OperationalError):
                    con.execute(ENDLESS).fetchall()
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
                signal.signal(signal.SIGALRM, before)
        self.assertGreaterEqual(len(calls), 2)


class Processes(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.path = os.path.join(directory.name, "shop")

    def test_forks_are_detected(self):
        output = python(
            """
            import os, sys, warnings, keyaki
            warnings.simplefilter("ignore")
            con = keyaki.connect(sys.argv[1])
            con.execute("CREATE TABLE t (id BIGINT)")
            cursor = con.execute("SELECT value FROM generate_series(1, 100000)")
            cursor.fetchone()
            child = os.fork()
            if child == 0:
                for call in [con.cursor().execute, con.execute]:
                    try:
                        call("SELECT 1")
                    except keyaki.InterfaceError as error:
                        print(type(error).__name__, "forked" in str(error), flush=True)
                del cursor, con
                with keyaki.connect() as other:
                    print(other.execute("SELECT 2").fetchone(), flush=True)
                sys.exit(0)
            assert os.waitpid(child, 0)[1] == 0
            print(con.execute("SELECT count(*) FROM t").fetchone())
            """,
            self.path,
        )
        self.assertEqual(output.splitlines(), ["InterfaceError True"] * 2 + ["(2,)", "(0,)"])

    def test_the_end_of_the_interpreter_closes_databases(self):
        python(
            """
            import sys, threading, keyaki
            con = keyaki.connect(sys.argv[1], durability="normal", autocommit=True)
            con.execute("CREATE TABLE t (id BIGINT)")
            con.execute("INSERT INTO t VALUES (1)")
            con.begin()
            con.execute("INSERT INTO t VALUES (2)")
            other = keyaki.connect()
            running = other.execute("SELECT value FROM generate_series(1, 100000000)")
            running.fetchone()
            threading.Thread(target=lambda: con.duplicate().execute(sys.argv[2]).fetchall(), daemon=True).start()
            """,
            self.path,
            "SELECT 1",
        )
        with keyaki.connect(self.path) as con:
            self.assertEqual(con.execute("SELECT * FROM t").fetchall(), [(1,)])

    def test_temporary_databases_are_removed(self):
        temporary = os.path.join(os.path.dirname(self.path), "temporary")
        os.mkdir(temporary)
        os.environ["TMPDIR"], before = temporary, os.environ.get("TMPDIR")
        try:
            python("import keyaki; con = keyaki.connect(); con.execute('CREATE TABLE t (id BIGINT)')")
        finally:
            if before is None:
                del os.environ["TMPDIR"]
            else:
                os.environ["TMPDIR"] = before
        self.assertEqual(os.listdir(temporary), [])


class Leaks(unittest.TestCase):
    """Objects, memory and files after many statements, in a process of its own."""

    def test_statements_and_results_leak_nothing(self):
        output = python(
            """
            import gc, os, keyaki

            def resident():
                with open("/proc/self/statm") as file:
                    return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

            def files():
                return len(os.listdir("/proc/self/fd"))

            con = keyaki.connect(autocommit=True, memory="64 MiB")
            con.execute("CREATE TABLE t (id BIGINT PRIMARY KEY, name TEXT)")
            con.executemany("INSERT INTO t VALUES (?, ?)", [(i, "x" * 100) for i in range(1000)])

            def work(times):
                for i in range(times):
                    key = i % 1000
                    con.execute("SELECT id, name FROM t WHERE id = ?", (key,)).fetchone()
                    con.execute("SELECT name FROM t WHERE id = :id", {"id": key}).fetchall()
                    # A result that is not read.
                    con.execute("SELECT id, name FROM t WHERE id = $1", (key,))
                    con.cursor().execute("SELECT name FROM t WHERE id = ?", (key,)).description
                    if i % 100 == 0:
                        # Errors of parsing, of planning and of execution; long results; other connections.
                        for wrong in ["SELEC", "SELECT * FROM missing", "SELECT 1 / (id - 1) FROM t"]:
                            try:
                                con.execute(wrong).fetchall()
                            except keyaki.Error:
                                pass
                        con.execute("SELECT * FROM generate_series(1, 10000)").fetchmany(10)
                    if i % 1000 == 0:
                        con.duplicate().close()
                        keyaki.connect().close()

            # Caches and the allocator have grown after these.
            work(TIMES // 4)
            gc.collect()
            before = resident(), files(), len(gc.get_objects())
            work(TIMES)
            gc.collect()
            after = resident(), files(), len(gc.get_objects())
            print(*(later - earlier for earlier, later in zip(before, after)))
            """.replace("TIMES", str(LEAK_STATEMENTS // 4)),
            limit=10 * LIMIT,
        )
        memory, files, objects = map(int, output.split())
        self.assertLess(memory, LEAKED_BYTES)
        self.assertLessEqual(files, 0)
        self.assertLess(objects, 50)


if __name__ == "__main__":
    unittest.main()
