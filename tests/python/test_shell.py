"""The interactive shell on a pseudo-terminal: editing, cancelling, completing, leaving."""

import codecs
import os
import pty
import re
import select
import signal
import subprocess
import tempfile
import time
import unittest
from pathlib import Path

import tpch

ESCAPES = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b[=>]|\r")


class Terminal:
    """A shell on a pseudo-terminal of 24 lines."""

    def __init__(self, directory, *arguments, columns=80):
        self.primary, secondary = pty.openpty()
        import fcntl
        import struct
        import termios

        fcntl.ioctl(secondary, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        environment = dict(os.environ, TERM="xterm", PAGER="cat", XDG_DATA_HOME=str(directory), HOME=str(directory))
        for name in ["NO_COLOR", "XDG_CONFIG_HOME"]:
            environment.pop(name, None)
        self.process = subprocess.Popen(
            [tpch.KEYAKI, *map(str, arguments)],
            stdin=secondary, stdout=secondary, stderr=secondary, start_new_session=True, env=environment,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(secondary)
        # A read may end within a character.
        self.decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self.raw = ""
        self.all = ""

    def type(self, text):
        os.write(self.primary, text.encode())

    def wait_for(self, text, seconds=60):
        """Waits until `text` appears in the output without escape sequences. Discards the output up to it."""
        deadline = time.monotonic() + seconds
        while True:
            seen = ESCAPES.sub("", self.raw)
            if text in seen:
                self.raw = seen.split(text, 1)[1]
                return seen
            if time.monotonic() > deadline:
                raise AssertionError(f"{text!r} did not appear in {seen!r}")
            if select.select([self.primary], [], [], 0.2)[0]:
                try:
                    read = self.decoder.decode(os.read(self.primary, 65536))
                except OSError:
                    raise AssertionError(f"the shell ended before {text!r} appeared in {seen!r}") from None
                self.raw += read
                self.all += read

    def wait_for_exit(self, seconds=60):
        """Waits until the shell has ended with status 0, and reads its output meanwhile, so that it never waits."""
        deadline = time.monotonic() + seconds
        while self.process.poll() is None and time.monotonic() < deadline:
            if select.select([self.primary], [], [], 0.2)[0]:
                try:
                    self.all += self.decoder.decode(os.read(self.primary, 65536))
                except OSError:
                    break
        status = self.process.wait(max(1, deadline - time.monotonic()))
        assert status == 0, f"status {status} after {self.all[-2000:]!r}"

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self.primary)


class Shell(unittest.TestCase):
    def setUp(self):
        self.directory = tempfile.TemporaryDirectory()
        self.addCleanup(self.directory.cleanup)
        self.terminal = Terminal(Path(self.directory.name), Path(self.directory.name) / "db")
        self.addCleanup(self.terminal.close)
        self.terminal.wait_for("keyaki> ")

    def run_line(self, line, expected=None):
        """Types a line and waits for `expected`, which must not be part of the line, because the terminal echoes it."""
        self.terminal.type(line + "\r")
        if expected:
            self.terminal.wait_for(expected)

    def test_statements_over_lines(self):
        self.run_line("CREATE TABLE t (id BIGINT PRIMARY KEY,")
        self.run_line("name TEXT);", "CREATE TABLE, ")
        self.run_line("INSERT INTO t VALUES (1, 'one'), (2, NULL);", "INSERT, 2 rows")
        self.run_line("SELECT * FROM t ORDER BY id;", "(2 rows, ")
        self.run_line(".tables", "~")
        self.run_line(".schema t", "PRIMARY KEY")
        self.terminal.type("SELECT nam\t FROM t WHERE id = 1;\r")
        self.terminal.wait_for("│ one")
        self.terminal.wait_for("(1 row, ")

    def test_incomplete_input_has_a_prompt_of_its_own(self):
        self.terminal.type("CREATE TABLE pet (name TEXT PRIMARY KEY,\r")
        self.terminal.wait_for("   ...> ")
        self.run_line("legs INT);", "CREATE TABLE, ")
        # The table of an earlier line gives the names of its columns.
        self.terminal.type("SELECT count(*) AS n FROM pet\rWHERE leg\t = 4\r;\r")
        self.terminal.wait_for("(1 row, ")
        # The lines before can be edited.
        self.terminal.type("SELECT 40 +\r")
        self.terminal.wait_for("   ...> ")
        self.terminal.type("\x1b[A\x1b[A\x05 1 +\r1 AS n;\r")
        self.terminal.wait_for("42")
        # An input that is discarded leaves nothing.
        self.terminal.type("SELECT 'first\r")
        self.terminal.wait_for("   ...> ")
        self.terminal.type("\x03")
        self.terminal.wait_for("keyaki> ")
        self.run_line("SELECT 'next ' || 'input';", "next input")

    def test_input_before_the_prompt_is_kept(self):
        self.terminal.type("SELECT count(*) AS n FROM range(3000000);\rSELECT 'typed ' || 'ahead';\rSELECT 2 * 21;\r")
        self.terminal.wait_for("typed ahead")
        self.terminal.wait_for("42")
        self.run_line("exit")
        self.terminal.wait_for_exit()

    def test_words_are_commands(self):
        self.run_line("help", "psql's commands:")
        self.run_line("\\x")
        self.run_line("SELECT 1 AS one, NULL AS two;", "one = 1")
        self.run_line("\\dt")
        self.run_line("exit;")
        self.terminal.wait_for_exit()

    def test_null_is_dimmed(self):
        self.run_line("SELECT 'NULL' AS a, NULL AS b;", "(1 row, ")
        self.assertIn("│ NULL │ \x1b[2mNULL\x1b[0m │", self.terminal.all)

    def test_long_values_are_cut_at_once(self):
        self.run_line("SELECT repeat('word ', 1600000) AS long, 42 AS n;", "(1 row, ")
        self.assertLess(len(self.terminal.all), 100_000)

    def test_an_open_transaction_is_reported(self):
        self.run_line("BEGIN;", "keyaki*> ")
        self.run_line("quit", "the open transaction is rolled back")
        self.terminal.wait_for_exit()

    def test_errors_do_not_end_the_shell(self):
        self.run_line("SELECT * FROM nowhere;", "error: ")
        self.run_line("SELECT 'still ' || 'here';", "still here")
        self.run_line(".nonsense", "unknown command")

    def test_interrupt_at_the_prompt_drops_the_line(self):
        self.terminal.type("SELECT 'dropped")
        # Each key redraws the prompt. Only the prompt after the whole line is the next one.
        self.terminal.wait_for("'dropped")
        self.terminal.type("\x03")
        self.terminal.wait_for("keyaki> ")
        self.run_line("SELECT 'ke' || 'pt';", "kept")

    def test_interrupt_cancels_the_query_only(self):
        endless = "SELECT count(*) FROM range(1000000000000) b;"
        self.terminal.type(endless + "\r")
        self.terminal.wait_for("b;")
        time.sleep(1)
        os.killpg(os.getpgid(self.terminal.process.pid), signal.SIGINT)
        self.terminal.wait_for("cancelled")
        self.run_line("SELECT 'still ' || 'here';", "still here")

    def test_end_of_input_leaves(self):
        self.terminal.type("\x04")
        self.terminal.wait_for_exit()

    def test_history_is_kept(self):
        self.run_line("SELECT 'remem' || 'bered';", "remembered")
        self.run_line(".quit")
        self.terminal.wait_for_exit()
        history = Path(self.directory.name) / "keyaki" / "history"
        self.assertIn("'remem'", history.read_text())


class Widths(unittest.TestCase):
    """Tables and plans at 80 and 200 columns."""

    def setUp(self):
        self.directory = tempfile.TemporaryDirectory()
        self.addCleanup(self.directory.cleanup)

    def shell(self, columns):
        path = Path(self.directory.name)
        terminal = Terminal(path, path / "db", columns=columns)
        self.addCleanup(terminal.close)
        terminal.wait_for("keyaki> ")
        return terminal

    def output(self, terminal, statement, end):
        """The lines between the statement and `end`."""
        terminal.type(statement + "\r")
        terminal.wait_for(statement[-8:])
        text = terminal.wait_for(end)
        return [line for line in text.split("\n") if line.startswith(("│", "┌", "├", "└"))]

    def test_tables_fit(self):
        texts = ", ".join(f"repeat('x', 60) AS text_{number}" for number in range(8))
        statement = f"SELECT 1234567890123 AS number, DATE '2024-10-04' AS day, {texts}, 9.25 AS price;"
        for columns in [80, 200]:
            terminal = self.shell(columns)
            lines = self.output(terminal, statement, "(1 row, ")
            # The statement itself is echoed over several lines.
            table = lines[-5:]
            self.assertEqual({len(line) for line in table}, {len(table[0])}, table)
            self.assertLessEqual(len(table[0]), columns)
            for whole in [" 1234567890123 ", " 2024-10-04 ", " 9.25 "]:
                self.assertIn(whole, table[3])
            self.assertEqual("│ … │" in table[3], columns == 80)
            terminal.type("quit\r")
            terminal.wait_for_exit()

    def test_plans_fit(self):
        terminal = self.shell(80)
        terminal.type("CREATE TABLE t (a INT PRIMARY KEY, b INT, c TEXT);\r")
        terminal.wait_for("CREATE TABLE, ")
        terminal.type("INSERT INTO t SELECT value, value % 7, 'x' FROM generate_series(1, 1000);\r")
        terminal.wait_for("INSERT, ")
        statement = "EXPLAIN ANALYZE SELECT b, count(*) AS n, min(c) AS c FROM t GROUP BY b ORDER BY n DESC, b LIMIT 5;"
        terminal.type(statement + "\r")
        terminal.wait_for("plan with metrics")
        text = terminal.wait_for("(1 row, ")
        self.assertRegex(text, r"estimated +rows +time +share +operator")
        self.assertIn("└─ ", text)
        self.assertIn(" %  ", text)
        self.assertTrue(all(len(line) <= 80 for line in text.split("\n")), text)

    def test_plots_and_suggestions_fit(self):
        for columns in [80, 200]:
            terminal = self.shell(columns)
            if columns == 80:
                terminal.type("CREATE TABLE t (PRIMARY KEY (id)) AS SELECT value AS id, value % 5000 AS a, md5(value::TEXT) AS b")
                terminal.type(" FROM generate_series(1, 50000);\r")
                terminal.wait_for("CREATE TABLE, 50,000 rows")
                terminal.type("VACUUM;\r")
                terminal.wait_for("VACUUM, ")
            terminal.type("DROP CACHES;\r")
            terminal.wait_for("DROP CACHES, ")
            terminal.type("SELECT max(b) < 'g' FROM t;\r")
            terminal.wait_for("(1 row, ")
            terminal.type(".plot\r")
            terminal.wait_for("reads in flight")
            text = terminal.wait_for("scan t: ")
            plot = [line for line in text.split("\n") if "┤" in line or "┼" in line]
            self.assertEqual(len(plot), 14, text)
            self.assertEqual(max(len(line) for line in plot), columns - 2, text)
            terminal.type(".expert\r")
            terminal.wait_for("keyaki> ")
            terminal.type("SELECT b FROM t WHERE a = 7;\r")
            terminal.wait_for("CREATE INDEX t_a_idx ON t (a)")
            text = terminal.wait_for("keyaki> ")
            self.assertIn("-- estimated: ", text)
            self.assertTrue(all(len(line) <= columns for line in text.split("\n")), text)
            terminal.type("quit\r")
            terminal.wait_for_exit()


class Pipes(unittest.TestCase):
    """Programs that read the output of the shell, or write its input."""

    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.directory = Path(directory.name)

    def run_shell(self, *arguments, **options):
        command = [tpch.KEYAKI, str(self.directory / "db"), *arguments]
        return subprocess.run(command, capture_output=True, timeout=120, **options)

    def test_closed_pipes_are_no_errors(self):
        rows = "SELECT value, repeat('x', 50) FROM generate_series(1, 300000)"
        for arguments in (["--mode", "csv", "-c", rows], ["--mode", "jsonlines", "-c", rows], ["-c", f"COPY ({rows}) TO STDOUT"]):
            with self.subTest(arguments=arguments):
                command = [tpch.KEYAKI, str(self.directory / "db"), *arguments]
                with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
                    self.assertTrue(process.stdout.readline())
                    process.stdout.close()
                    self.assertEqual(process.stderr.read(), b"")
                    self.assertEqual(process.wait(120), 0)

    def test_scripts_begin_with_marks_and_end_in_transactions(self):
        script = "\ufeffCREATE TABLE t (a INT); BEGIN; INSERT INTO t VALUES (1);"
        done = self.run_shell(input=script.encode())
        self.assertEqual((done.returncode, done.stderr.decode()), (0, "the open transaction is rolled back\n"))
        self.assertIn(b" 0 ", self.run_shell("-c", "SELECT count(*) FROM t").stdout)

    def test_programs_receive_results(self):
        script = """CREATE TABLE t (a INT);
INSERT INTO t VALUES (1), (2), (3);
.mode csv
.once |sort -r > sorted.txt
SELECT a FROM t ORDER BY a;
SELECT count(*) AS n FROM t;
.output |tr a-z A-Z > upper.txt
SELECT 'abc' AS x;
SELECT 'def' AS y;
.output
.once |head -c 1
SELECT value FROM generate_series(1, 100000);
SELECT 'end' AS z;
"""
        done = self.run_shell(input=script.encode(), cwd=self.directory)
        self.assertEqual((done.returncode, done.stderr), (0, b""))
        self.assertEqual((self.directory / "sorted.txt").read_text(), "a\n3\n2\n1\n")
        self.assertEqual((self.directory / "upper.txt").read_text(), "X\nABC\nY\nDEF\n")
        self.assertEqual(done.stdout, b"n\n3\nvz\nend\n")
        failed = self.run_shell("-c", ".once |exit 7", "-c", "SELECT 1")
        self.assertEqual((failed.returncode, failed.stdout), (1, b""))
        self.assertIn(b"the command failed (exit status: 7)", failed.stderr)
        failed = self.run_shell("-c", ".output |exit 7", "-c", "SELECT 1")
        self.assertEqual(failed.returncode, 1, "reported at the end")
        self.assertIn(b"a command is missing after |", self.run_shell("-c", ".once |").stderr)

    def test_names_are_suggested(self):
        self.run_shell("-c", "CREATE TABLE customer (id INT PRIMARY KEY); CREATE VIEW old AS SELECT 1")
        for command in [".describe custmer", ".schema custmer", ".indexes custmer", ".dump custmer", "\\d custmer"]:
            with self.subTest(command=command):
                done = self.run_shell("-c", command)
                self.assertEqual(done.returncode, 1)
                self.assertIn(b'custmer" does not exist: did you mean customer?', done.stderr)
        self.assertIn(b'"lineitem" does not exist (.tables', self.run_shell("-c", ".schema lineitem").stderr)
        self.assertEqual(self.run_shell("-c", ".indexes customer").returncode, 0)


class Published(unittest.TestCase):
    """Versions of a database in a directory."""

    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.directory = Path(directory.name)
        self.url = f"file://{self.directory}/versions"
        self.shell(self.directory / "db", "-c", "CREATE TABLE t (a INT PRIMARY KEY); INSERT INTO t VALUES (1), (2)")

    def shell(self, *arguments, status=0):
        done = subprocess.run([tpch.KEYAKI, *map(str, arguments)], capture_output=True, timeout=120)
        self.assertEqual(done.returncode, status, done.stderr)
        return done.stdout.decode() if status == 0 else done.stderr.decode()

    def count(self, database):
        return self.shell(database, "--mode", "list", "-c", ".headers off", "-c", "SELECT count(*) FROM t").strip()

    def test_versions_are_published_read_and_cloned(self):
        self.assertRegex(self.shell("publish", self.directory / "db", self.url), r"^published version 1: .* uploaded, 0 B kept\n$")
        same = self.shell("publish", self.directory / "db", self.url)
        self.assertEqual(same, "version 1 already has this state of the database\n")
        self.shell(self.directory / "db", "-c", "INSERT INTO t VALUES (3)")
        self.assertIn("published version 2: ", self.shell("publish", self.directory / "db", self.url, "--keep", "5"))
        self.assertRegex(self.shell("versions", self.url), r"^ version +published\n +1  20.*Z\n +2  20.*Z\n$")
        self.assertEqual([self.count(url) for url in (self.url, f"{self.url}@1", f"{self.url}@2")], ["3", "2", "3"])
        cached = self.shell(self.url, "--object-cache", self.directory / "cache", "-c", "SELECT sum(a) FROM t")
        self.assertIn("6", cached)
        self.assertIn("read-only", self.shell(self.url, "-c", "DELETE FROM t", status=1))
        clone = self.directory / "clone"
        self.assertIn("cloned version 1 to ", self.shell("clone", f"{self.url}@1", clone))
        self.shell(clone, "-c", "DELETE FROM t WHERE a = 1")
        self.assertEqual(self.count(clone), "1")
        self.assertIn("already exists", self.shell("clone", self.url, clone, status=1))

    def test_problems_are_named(self):
        self.assertIn("has no published version", self.shell(self.url, "-c", "SELECT 1", status=1))
        self.assertFalse((self.directory / "versions").exists(), "reading creates nothing")
        self.assertEqual(self.shell("versions", self.url), "no published versions\n")
        self.assertIn("invalid URL", self.shell("publish", self.directory / "db", "versions", status=1))
        self.assertIn("does not exist", self.shell("publish", self.directory / "none", self.url, status=1))
        self.assertIn("found \"0m\"", self.shell("publish", self.directory / "db", self.url, "--every", "0m", status=2))

    def test_publishing_beside_a_writer(self):
        with subprocess.Popen(
            [tpch.KEYAKI, self.directory / "db"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as writer:
            writer.stdin.write("INSERT INTO t VALUES (10); CHECKPOINT; SELECT 'written';\n")
            writer.stdin.flush()
            while "written" not in writer.stdout.readline():
                pass
            # Another version each time, until Ctrl-C.
            command = [tpch.KEYAKI, "publish", str(self.directory / "db"), self.url, "--every", "1s"]
            with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as publisher:
                self.assertIn("published version 1: ", publisher.stdout.readline())
                writer.stdin.write("INSERT INTO t VALUES (11); CHECKPOINT;\n")
                writer.stdin.flush()
                while "published version 2: " not in publisher.stdout.readline():
                    pass
                publisher.send_signal(signal.SIGINT)
                self.assertEqual(publisher.wait(60), 0)
            done = subprocess.run([*command[:4]], capture_output=True, text=True, timeout=120)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn("another process writes to the database: publishing its newest checkpoint", done.stderr)
            writer.stdin.close()
            self.assertEqual(writer.wait(60), 0)
        self.assertEqual(self.count(self.url), "4")


class Start(unittest.TestCase):
    """The user's start file."""

    def test_init_file(self):
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory)
            configuration = path / ".config" / "keyaki"
            configuration.mkdir(parents=True)
            (configuration / "init.sql").write_text("SELECT 'from ' || 'init';\n.mode line\nSELECT broken;\n")
            terminal = Terminal(path, path / "db")
            self.addCleanup(terminal.close)
            terminal.wait_for("new database")
            terminal.wait_for("from init")
            terminal.wait_for("init.sql:3: ")
            terminal.wait_for("keyaki> ")
            terminal.type("SELECT 4 + 5 AS nine;\r")
            terminal.wait_for("nine = 9")
            terminal.type("quit\r")
            terminal.wait_for_exit()
            terminal = Terminal(path, path / "db", "--no-init")
            self.addCleanup(terminal.close)
            self.assertNotIn("from init", terminal.wait_for("keyaki> "))


if __name__ == "__main__":
    unittest.main()
