"""Progress of statements: callbacks, terminals, notebooks."""

import io
import os
import pty
import subprocess
import sys
import tempfile
import threading
import time
import types
import unittest
from unittest import mock

import keyaki
import nbclient
import nbformat
from keyaki import _progress
from keyaki._progress import Progress

# Takes longer than any test, and waits while it runs.
ENDLESS = "SELECT sum(a.value % (b.value + 1)) FROM generate_series(1, 10000) a, generate_series(1, 100000000) b"
# Shows progress at once.
AT_ONCE = "import keyaki, sys\nfrom keyaki import _progress\n_progress._DISPLAY_AFTER_SECONDS = _progress._Display.after = 0.0\n"
# The callback ends the statement after its third report.
PROGRAM = f"""
shown = _progress._Display.show
reports = []
def show(self, *values):
    shown(self, *values)
    reports.append(values)
    if len(reports) == 3:
        raise EOFError
_progress._Display.show = show
con = keyaki.connect(progress=MODE)
try:
    con.execute("{ENDLESS}").fetchall()
except EOFError:
    print("ended")
"""


class Callbacks(unittest.TestCase):
    def setUp(self):
        self.con = keyaki.connect(autocommit=True)
        self.addCleanup(self.con.close)

    def test_reports_of_a_query(self):
        reports = []

        def report(progress):
            reports.append(progress)
            if len(reports) == 3:
                self.con.interrupt()

        self.con.progress = report
        self.assertIs(self.con.progress, report)
        with self.assertRaises(keyaki.OperationalError) as caught:
            self.con.execute(ENDLESS).fetchall()
        self.assertEqual(caught.exception.sqlstate, "57014")
        self.assertGreaterEqual(len(reports), 3)
        self.assertIsInstance(reports[0], keyaki.Progress)
        self.assertEqual((reports[0].phase, reports[0].rows, reports[0].total), (None, 0, None))
        times = [progress.seconds for progress in reports]
        self.assertEqual(times, sorted(times))
        self.assertGreaterEqual(times[0], 0.25)

    def test_exceptions_cancel_the_statement(self):
        def fail(progress):
            raise ZeroDivisionError

        self.con.progress = fail
        with self.assertRaises(ZeroDivisionError):
            self.con.execute(ENDLESS).fetchall()
        self.con.progress = False
        self.assertEqual(self.con.execute("SELECT 1").fetchall(), [(1,)])

    def test_callbacks_cannot_use_the_connection(self):
        self.con.progress = lambda progress: self.con.execute("SELECT 1")
        with self.assertRaisesRegex(keyaki.InterfaceError, "the connection is in use"):
            self.con.execute(ENDLESS).fetchall()

    def test_reports_of_many_executions(self):
        self.con.execute("CREATE TABLE t (id BIGINT PRIMARY KEY)")
        reports = []
        self.con.progress = reports.append

        def rows(count):
            for number in range(count):
                if number % 1024 == 0 and not any(report.phase for report in reports):
                    time.sleep(0.1)
                yield (number,)

        self.assertEqual(self.con.executemany("INSERT INTO t VALUES (?)", rows(8192)).rowcount, 8192)
        first = next(report for report in reports if report.phase)
        self.assertEqual((first.phase, first.rows % 1024, first.total), ("executing", 0, None))

    def test_failures_of_callbacks_undo_many_executions(self):
        self.con.execute("CREATE TABLE t (id BIGINT PRIMARY KEY)")

        def fail(progress):
            raise ZeroDivisionError

        def rows():
            for number in range(8192):
                if number % 1024 == 0:
                    time.sleep(0.1)
                yield (number,)

        self.con.progress = fail
        with self.assertRaises(ZeroDivisionError):
            self.con.executemany("INSERT INTO t VALUES (?)", rows())
        self.con.progress = False
        self.assertEqual(self.con.execute("SELECT count(*) FROM t").fetchone(), (0,))

    def test_other_threads_report_their_calls(self):
        threads = set()

        def report(progress):
            threads.add(threading.get_ident())
            self.con.interrupt()

        def run():
            with self.assertRaises(keyaki.OperationalError):
                self.con.execute(ENDLESS).fetchall()

        self.con.progress = report
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        self.assertEqual(threads, {thread.ident})

    def test_short_statements_are_not_reported(self):
        self.con.progress = lambda progress: self.fail("a report")
        for _ in range(3):
            self.assertEqual(self.con.execute("SELECT 1").fetchall(), [(1,)])

    def test_options(self):
        self.assertIsNone(self.con.progress)
        for option in (True, False, None, print):
            with keyaki.connect(progress=option) as con, con.duplicate() as other:
                self.assertIs(con.progress, option)
                self.assertIs(other.progress, option)
        with self.assertRaisesRegex(keyaki.ProgrammingError, "progress=7 is not"):
            keyaki.connect(progress=7)
        with self.assertRaises(keyaki.ProgrammingError):
            self.con.progress = "on"


class Texts(unittest.TestCase):
    def test_lines(self):
        for progress, text in [
            (Progress(None, 0, None, 3.24, None, 12345, 7), "3.2 s, 12,345 pages read, 7 reads in flight"),
            (Progress("indexing t", 1000, 4000, 2.0, 6.0, 0, 0), "indexing t: 25%, 1,000 of 4,000 rows, 2.0 s, 6 s left"),
            (Progress("loading t", 1000, None, 2.0, None, 0, 0), "loading t: 1,000 rows, 2.0 s"),
        ]:
            self.assertEqual(str(progress), text)
        self.assertEqual(Progress("p", 9, 4, 1.0, None, 0, 0).fraction, 1.0)

    def test_terminals(self):
        stream = io.StringIO()
        with mock.patch.object(sys, "stderr", stream):
            display = _progress._Display(True)
            display.show("indexing \x1b", 1, 4, 2.0, None, 0, 0)
            display.show("a", 1, None, 2.0, None, 0, 0)
            display.clear()
            display.clear()
        first, second, blank, rest = stream.getvalue().split("\r")[1:]
        self.assertEqual(first, "█████░░░░░░░░░░░░░░░ indexing ?: 25%, 1 of 4 rows, 2.0 s")
        self.assertEqual((second.rstrip(), len(second)), ("a: 1 rows, 2.0 s", len(first)))
        self.assertEqual((blank.strip(), rest), ("", ""))

    def test_one_connection_has_the_line(self):
        stream = io.StringIO()
        with mock.patch.object(sys, "stderr", stream):
            first, second = _progress._Display(True), _progress._Display(True)
            first.show("first", 1, None, 2.0, None, 0, 0)
            second.show("second", 1, None, 2.0, None, 0, 0)
            first.clear()
            second.show("second", 1, None, 2.0, None, 0, 0)
            second.clear()
        self.assertEqual(stream.getvalue().count("first"), 1)
        self.assertEqual(stream.getvalue().count("second"), 1)

    def test_broken_streams_end_the_display(self):
        class Broken(io.StringIO):
            def write(self, text):
                raise BrokenPipeError

        with mock.patch.object(sys, "stderr", Broken()):
            display = _progress._Display(True)
            display.show(None, 0, None, 2.0, None, 0, 0)
            display.clear()
        stream = io.StringIO()
        with mock.patch.object(sys, "stderr", stream):
            display.show(None, 0, None, 2.0, None, 0, 0)
            display.clear()
            following = _progress._Display(True)
            following.show(None, 0, None, 2.0, None, 0, 0)
            following.clear()
        self.assertEqual(stream.getvalue().count("pages read"), 1)

    def test_notebooks_use_one_output_for_each_cell(self):
        shown, updated = [], []
        handle = types.SimpleNamespace(update=updated.append)
        shell = types.SimpleNamespace(kernel=object(), execution_count=1)
        display = _progress._Display(False)
        with (
            mock.patch("IPython.get_ipython", lambda: shell),
            mock.patch("IPython.display.display", lambda html, display_id: shown.append(html) or handle),
        ):
            for cell in (1, 1, 2):
                shell.execution_count = cell
                display.show("a<b", 1, 2, 2.0, None, 0, 0)
                display.clear()
        self.assertEqual((len(shown), len(updated)), (2, 4))
        self.assertIn('<progress value="0.500"', shown[0]._repr_html_())
        self.assertIn("a&lt;b: 50%", shown[0]._repr_html_())
        self.assertEqual(repr(updated[0]), "")


class Programs(unittest.TestCase):
    """Programs of their own, with a terminal or a file as the standard error."""

    def run_with(self, mode, stderr):
        program = AT_ONCE + PROGRAM.replace("MODE", mode)
        return subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=stderr, text=True, timeout=300)

    def test_redirected_errors_stay_empty(self):
        done = self.run_with("None", subprocess.PIPE)
        self.assertEqual((done.stdout, done.stderr, done.returncode), ("ended\n", "", 0))

    def test_forced_progress(self):
        done = self.run_with("True", subprocess.PIPE)
        self.assertEqual((done.stdout, done.returncode), ("ended\n", 0))
        self.assertIn("pages read", done.stderr)

    def test_terminals(self):
        ours, theirs = pty.openpty()
        parts = []

        def read():
            try:
                while part := os.read(ours, 4096):
                    parts.append(part)
            except OSError:
                pass

        reader = threading.Thread(target=read)
        reader.start()
        try:
            done = self.run_with("None", theirs)
        finally:
            os.close(theirs)
            reader.join()
            os.close(ours)
        text = b"".join(parts).decode()
        self.assertEqual((done.stdout, done.returncode), ("ended\n", 0), text)
        self.assertIn("pages read", text)
        # The line is erased.
        self.assertEqual(text.split("\r")[-2].strip(), "")

    def test_notebooks(self):
        cell = AT_ONCE + PROGRAM.replace("MODE", "None")
        notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell)])
        with tempfile.TemporaryDirectory() as directory:
            resources = {"metadata": {"path": directory}}
            nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3", resources=resources).execute()
        kinds = [output.output_type for output in notebook.cells[0].outputs]
        self.assertEqual(sorted(kinds), ["display_data", "stream"])
        (shown,) = (output for output in notebook.cells[0].outputs if output.output_type == "display_data")
        # The last update has erased it.
        self.assertEqual(shown.data["text/html"], "<div></div>")


if __name__ == "__main__":
    unittest.main()
