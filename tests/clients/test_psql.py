"""psql: the commands that describe objects. Skipped where psql is not installed."""

import shutil
import subprocess
import unittest

from served import ServedTest

DEFINITIONS = """
CREATE TABLE parent (id INT PRIMARY KEY, name TEXT NOT NULL DEFAULT 'x', n DECIMAL(10, 2) CHECK (n > 0));
CREATE TABLE child (id INT GENERATED ALWAYS AS IDENTITY, parent INT REFERENCES parent ON DELETE CASCADE);
CREATE INDEX child_parent ON child (parent) WHERE parent > 3;
CREATE VIEW names AS SELECT name FROM parent;
CREATE SEQUENCE numbers;
COMMENT ON TABLE parent IS 'described';
"""


@unittest.skipUnless(shutil.which("psql"), "psql is not installed")
class Psql(ServedTest):
    def run_psql(self, *commands):
        arguments = ["psql", "-X", "-h", "127.0.0.1", "-p", str(self.server.port), "-U", "me", "-v", "ON_ERROR_STOP=1"]
        for command in commands:
            arguments += ["-c", command]
        done = subprocess.run([*arguments, "keyaki"], capture_output=True, text=True, timeout=120)
        self.assertEqual((done.returncode, done.stderr), (0, ""), commands)
        return done.stdout

    def test_descriptions(self):
        self.run_psql(DEFINITIONS)
        for command, expected in [
            (r"\d", ["child", "child_id_seq", "names        | view", "numbers      | sequence"]),
            (r"\dt+", ["parent", "described", "permanent"]),
            (r"\d parent", ['"parent_pkey" PRIMARY KEY, btree (id)', "numeric(10,2)", "'x'", "CHECK (n > 0)",
                            'TABLE "child" CONSTRAINT "child_parent_fkey" FOREIGN KEY (parent) REFERENCES parent(id) ON DELETE CASCADE']),
            (r"\d+ child", ["generated always as identity", '"child_parent" btree (parent) WHERE (parent > 3)']),
            (r"\d child_parent", ['btree, for table "public.child", predicate (parent > 3)']),
            (r"\d+ names", ["View definition:", "SELECT name FROM parent"]),
            (r"\d numbers", ["bigint", "9223372036854775807"]),
            (r"\sv names", ["CREATE OR REPLACE VIEW public.names"]),
            (r"\di", ["parent_pkey"]),
            (r"\dn", ["public"]),
            (r"\du", ["List of roles"]),
            (r"\l", ["keyaki", "UTF8"]),
            (r"\df", ["(0 rows)"]),
            (r"\dT", ["(0 rows)"]),
            (r"\dp", ["Access privileges"]),
        ]:
            shown = self.run_psql(command)
            for text in expected:
                self.assertIn(text, shown, command)
