"""`python -m keyaki`."""

import os
import subprocess
import sys
import tempfile
import unittest

import keyaki
from keyaki import _shell


def run(*arguments, script=None):
    command = [sys.executable, "-m", "keyaki", *arguments]
    return subprocess.run(command, input=script or "", capture_output=True, text=True, timeout=120)


class Statements(unittest.TestCase):
    def check(self, script, *expected):
        self.assertEqual(list(_shell.statements(script)), list(expected))

    def test_statements_end_at_semicolons_outside_of_texts(self):
        self.check("SELECT 1; SELECT 2", ("SELECT 1;", True), ("SELECT 2", False))
        self.check("SELECT ';', \";\", E'\\';', $$;$$, $a$;$$;$a$;", ("SELECT ';', \";\", E'\\';', $$;$$, $a$;$$;$a$;", True))
        self.check("-- a;\n/* b; /* ; */ ; */ ; ;")
        self.check("SELECT 'it''s;", ("SELECT 'it''s;", False))
        self.check("SELECT a$b$; SELECT $1;", ("SELECT a$b$;", True), ("SELECT $1;", True))
        self.check("SELECT /* open ;", ("SELECT /* open ;", False))
        self.check("")


class Sessions(unittest.TestCase):
    def setUp(self):
        self.con = keyaki.connect(autocommit=True)
        self.addCleanup(self.con.close)
        self.lines = []
        self.shell = _shell.Shell(self.con, self.lines.append)

    def interact(self, *lines):
        answers = iter(lines)

        def ask(prompt):
            answer = next(answers, EOFError)
            if isinstance(answer, type):
                raise answer
            self.prompts.append(prompt)
            return answer

        self.prompts = []
        self.shell.interact(ask)

    def test_statements_of_several_lines(self):
        self.interact("CREATE TABLE t (id BIGINT PRIMARY KEY,", "name TEXT); INSERT INTO t VALUES (1, 'a'), (22, NULL);", "BEGIN;",
                      "TABLE t;", "ROLLBACK;")
        self.assertEqual(self.prompts, ["keyaki> ", "     …> ", "keyaki> ", "keyaki* ", "keyaki* "])
        self.assertIn("2 rows changed", self.lines)
        self.assertIn("│ id │ name │", self.lines)
        self.assertIn("│  1 │ a    │", self.lines)
        self.assertIn("│ 22 │ NULL │", self.lines)
        self.assertIn("(2 rows)", self.lines)

    def test_control_characters_and_wide_letters(self):
        self.shell.execute("SELECT E'a\\x1b[2J' AS x, '日本' AS y, E'\\\\x00ff'::bytea AS b, true AS t, CAST('{\"é\": null}' AS JSON) AS j")
        self.assertIn("│ a�[2J │ 日本 │ \\x00ff │ true │ {\"é\": null} │", self.lines)

    def test_ctrl_c_clears_the_statement(self):
        answers = iter(["SELECT", KeyboardInterrupt, "SELECT 7 AS n;"])

        def ask(prompt):
            answer = next(answers, EOFError)
            if isinstance(answer, type):
                raise answer
            return answer

        self.shell.interact(ask)
        self.assertIn("│ 7 │", self.lines)

    def test_commands(self):
        self.con.executescript("CREATE SCHEMA s; CREATE TABLE s.u (a INT); CREATE TABLE t (id BIGINT PRIMARY KEY); CREATE VIEW v AS SELECT 1 AS a")
        self.interact(".help", ".tables", ".schema", ".schema s.u;", ".quit", "SELECT 1;")
        text = "\n".join(self.lines)
        self.assertIn(".schema [TABLE]   show the statements", text)
        self.assertRegex(text, r"│ public │ v +│ view +│")
        self.assertRegex(text, r"(?s)CREATE TABLE .*CREATE VIEW v AS SELECT 1")
        self.assertEqual(len(self.prompts), 5)
        self.assertFalse(self.shell.command(".schema missing"))
        self.assertFalse(self.shell.command(".nothing"))
        self.assertFalse(self.shell.command(".read"))
        self.assertFalse(self.shell.command(".tables a b"))
        self.assertFalse(self.shell.command(".read /does/not/exist"))


class Programs(unittest.TestCase):
    def test_commands_and_scripts(self):
        with tempfile.TemporaryDirectory() as directory:
            database = os.path.join(directory, "shop")
            ended = run(database, "-c", "CREATE TABLE t (n BIGINT); INSERT INTO t VALUES (1), (2)", "-c", "SELECT sum(n) FROM t")
            self.assertEqual((ended.returncode, ended.stderr), (0, ""))
            self.assertIn("│      3 │", ended.stdout)
            file = os.path.join(directory, "script.sql")
            with open(file, "w") as script:
                script.write("SELECT count(*)\nFROM t;\n.tables\nSELECT 'last'")
            ended = run(database, "--read-only", script=f".read {file}\n")
            self.assertEqual(ended.returncode, 0, ended.stderr)
            self.assertIn("last", ended.stdout)
            ended = run(database, "--read-only", script="INSERT INTO t VALUES (3);\nSELECT 'not reached';")
            self.assertEqual(ended.returncode, 1)
            self.assertIn("error: ", ended.stderr)
            self.assertNotIn("not reached", ended.stdout)
            self.assertEqual(run(os.path.join(directory, "none"), "--read-only").returncode, 1)
        self.assertIn(keyaki.__version__, run("--version").stdout)


if __name__ == "__main__":
    unittest.main()
