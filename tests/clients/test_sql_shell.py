"""`keyaki sql` on a pseudo-terminal: transactions in the prompt, completion, cancellation, a password without echo."""

import os
import signal
import tempfile
import time
import unittest
from pathlib import Path

from served import Server, ServedTest
from test_shell import Terminal


class SqlShell(ServedTest):
    def setUp(self):
        self.directory = tempfile.TemporaryDirectory()
        self.addCleanup(self.directory.cleanup)
        self.terminal = self.open(self.server, "me")
        self.terminal.wait_for("keyaki> ")

    def open(self, server, user):
        terminal = Terminal(Path(self.directory.name), "sql", f"postgres://{user}@127.0.0.1:{server.port}/shop")
        self.addCleanup(terminal.close)
        return terminal

    def run_line(self, line, expected):
        self.terminal.type(line + "\r")
        self.terminal.wait_for(expected)

    def test_the_prompt_shows_transactions(self):
        self.run_line("BEGIN;", "keyaki*> ")
        self.run_line("SELECT 1 / 0;", "division by zero")
        self.terminal.wait_for("keyaki!> ")
        self.run_line("ROLLBACK;", "ROLLBACK, ")
        self.terminal.wait_for("keyaki> ")

    def test_names_of_new_tables_are_completed(self):
        self.run_line("CREATE TABLE completed (id BIGINT PRIMARY KEY, a_long_name TEXT);", "CREATE TABLE, ")
        self.run_line("INSERT INTO completed VALUES (1, 'found');", "INSERT, 1 row")
        self.terminal.type("SELECT a_lo\t FROM comple\t;\r")
        self.terminal.wait_for("│ found")
        self.terminal.wait_for("(1 row, ")
        self.run_line(".schema completed", "PRIMARY KEY (id)")

    def test_an_interrupt_cancels_the_statement_only(self):
        for query in ["sum(a % 7)", "a"]:
            self.terminal.type(f"SELECT {query} FROM generate_series(1, 100000000000) g (a);\r")
            time.sleep(1.5)
            os.killpg(os.getpgid(self.terminal.process.pid), signal.SIGINT)
            self.terminal.wait_for("cancelled")
            self.run_line("SELECT 'still ' || 'here';", "still here")

    def test_the_end_of_the_server_does_not_end_the_shell(self):
        server = Server()
        terminal = self.open(server, "me")
        terminal.wait_for("keyaki> ")
        self.assertEqual(server.stop(), 0)
        terminal.type("SELECT 1;\r")
        terminal.wait_for("error: ")
        terminal.type(f".open postgres://me@127.0.0.1:{self.server.port}/shop\r")
        # Input before the prompt would be dropped.
        terminal.wait_for("/shop\nkeyaki> ")
        terminal.type("SELECT 'another ' || 'server';\r")
        terminal.wait_for("another server")
        terminal.type(".quit\r")
        self.assertEqual(terminal.process.wait(30), 0)

    def test_a_password_is_read_without_echo(self):
        server = Server(setup="CREATE ROLE app LOGIN PASSWORD 'hidden'")
        self.addCleanup(server.stop)
        terminal = self.open(server, "app")
        terminal.wait_for('Password of "app": ')
        terminal.type("hidden\r")
        seen = terminal.wait_for("keyaki> ")
        self.assertNotIn("hidden", seen)
        terminal.type("SELECT current_user || ' is here';\r")
        terminal.wait_for("app is here")


if __name__ == "__main__":
    unittest.main()
