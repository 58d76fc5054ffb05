"""The interactive shell on a pseudo-terminal: editing, cancelling, completing, leaving."""

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
    """A shell on a pseudo-terminal of 80 columns and 24 lines."""

    def __init__(self, directory, *arguments):
        self.primary, secondary = pty.openpty()
        import fcntl
        import struct
        import termios

        fcntl.ioctl(secondary, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        environment = dict(os.environ, TERM="xterm", PAGER="cat", XDG_DATA_HOME=str(directory), HOME=str(directory))
        environment.pop("NO_COLOR", None)
        self.process = subprocess.Popen(
            [tpch.KEYAKI, *map(str, arguments)],
            stdin=secondary, stdout=secondary, stderr=secondary, start_new_session=True, env=environment,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(secondary)
        self.raw = ""

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
                    self.raw += os.read(self.primary, 65536).decode(errors="replace")
                except OSError:
                    raise AssertionError(f"the shell ended before {text!r} appeared in {seen!r}") from None

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
        self.assertEqual(self.terminal.process.wait(30), 0)

    def test_history_is_kept(self):
        self.run_line("SELECT 'remem' || 'bered';", "remembered")
        self.run_line(".quit")
        self.assertEqual(self.terminal.process.wait(30), 0)
        history = Path(self.directory.name) / "keyaki" / "history"
        self.assertIn("'remem'", history.read_text())


if __name__ == "__main__":
    unittest.main()
