"""Examples in docstrings, in the stubs and in docs/python.md."""

import doctest
import importlib
import json
import os
import pathlib
import site
import subprocess
import sys
import tempfile
import unittest

import keyaki

ROOT = pathlib.Path(__file__).resolve().parents[2]
DOCUMENT = ROOT / "docs" / "python.md"
MODULES = ["keyaki", "keyaki._plan", "keyaki._types", "keyaki.aio", "keyaki.ibis"]


# Modules of the package that are checked as a whole.
CHECKED = ["keyaki", "keyaki.aio", "keyaki.sqlalchemy", "keyaki._magics", "keyaki._plan", "keyaki._progress", "keyaki._shell", "keyaki._url"]
PROGRAM = """
import keyaki
from keyaki import aio
con: keyaki.Connection = keyaki.connect('shop', read_only=True, memory='1 GiB')
row = con.execute('SELECT ?', (1,)).fetchone()
reveal_type(row)
with con.transaction('serializable'):
    n: int = con.append('t', [(1,)])
text: str = con.explain("SELECT 1", analyze=True).text

async def count() -> int:
    async with await aio.connect() as other:
        cursor = await other.execute("SELECT 1")
        return len([row async for row in cursor])
"""


class Documentation(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.addCleanup(os.chdir, os.getcwd())
        os.chdir(directory.name)

    def check(self, results):
        self.assertEqual(results.failed, 0)
        return results.attempted

    def test_examples_of_docstrings(self):
        attempted = sum(self.check(doctest.testmod(importlib.import_module(name))) for name in MODULES)
        runner = doctest.DocTestRunner()
        for extension in [keyaki.Connection, keyaki.Cursor]:
            parser = doctest.DocTestParser()
            test = parser.get_doctest(extension.__doc__, {}, extension.__name__, None, 0)
            attempted += self.check(runner.run(test))
        self.assertGreater(attempted, 8)

    def test_examples_of_the_document(self):
        attempted = self.check(doctest.testfile(str(DOCUMENT), module_relative=False))
        self.assertGreater(attempted, 15)

    def test_public_names_are_documented(self):
        for owner in [keyaki.Connection, keyaki.Cursor, keyaki.Transaction]:
            for name, member in vars(owner).items():
                if not name.startswith("_") and not isinstance(member, type):
                    self.assertTrue(member.__doc__, f"{owner.__name__}.{name}")
        self.assertTrue(keyaki.connect.__doc__)


class Stubs(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.program = pathlib.Path(directory.name) / "program.py"
        self.program.write_text(PROGRAM)
        # An installed package is found by the interpreter, and that of `cargo xtask python` by these variables.
        folder = str(pathlib.Path(keyaki.__file__).parent.parent)
        self.environment = {**os.environ, "MYPYPATH": "" if folder in site.getsitepackages() else folder}

    def run_checker(self, *arguments):
        command = [sys.executable, "-m", *arguments]
        return subprocess.run(command, capture_output=True, text=True, env=self.environment, cwd=self.program.parent, timeout=600)

    def mypy(self, *arguments):
        options = ["--strict", "--cache-dir", os.devnull, "--ignore-missing-imports", "--follow-imports", "silent"]
        return self.run_checker("mypy", *options, *arguments)

    def test_programs_pass_mypy(self):
        ended = self.mypy(str(self.program))
        self.assertEqual(ended.returncode, 0, ended.stdout + ended.stderr)
        self.assertIn("tuple[Any, ...] | None", ended.stdout)

    def test_modules_pass_mypy(self):
        ended = self.mypy(*(word for name in CHECKED for word in ("-m", name)))
        self.assertEqual(ended.returncode, 0, ended.stdout + ended.stderr)

    def test_programs_pass_pyright(self):
        # basedpyright is pyright in a package with its runtime. The rules are those of pyright's strict mode.
        rules = {"typeCheckingMode": "strict", "reportMissingTypeStubs": False, "extraPaths": [str(pathlib.Path(keyaki.__file__).parent.parent)]}
        (self.program.parent / "pyrightconfig.json").write_text(json.dumps(rules))
        ended = self.run_checker("basedpyright", "--pythonpath", sys.executable, str(self.program))
        self.assertEqual(ended.returncode, 0, ended.stdout + ended.stderr)
        self.program.write_text("import keyaki\nkeyaki.connect(7, autocommit='x').nothing()\n")
        ended = self.run_checker("basedpyright", "--pythonpath", sys.executable, str(self.program))
        for rule in ["reportArgumentType", "reportAttributeAccessIssue"]:
            self.assertIn(rule, ended.stdout)

    def test_the_stubs_have_the_members_of_the_classes(self):
        stubs = (pathlib.Path(keyaki.__file__).parent / "_keyaki.pyi").read_text()
        for owner in [keyaki.Connection, keyaki.Cursor, keyaki.Transaction]:
            for name, member in vars(owner).items():
                if not name.startswith("_") and not isinstance(member, type):
                    self.assertRegex(stubs, rf"(def {name}\(|    {name}: )", f"{owner.__name__}.{name}")


if __name__ == "__main__":
    unittest.main()
