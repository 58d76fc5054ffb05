"""Examples in docstrings, in the stubs and in docs/python.md."""

import doctest
import importlib
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

import keyaki

ROOT = pathlib.Path(__file__).resolve().parents[2]
DOCUMENT = ROOT / "docs" / "python.md"
MODULES = ["keyaki", "keyaki._types", "keyaki.aio"]


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
    def test_the_package_passes_mypy(self):
        package = pathlib.Path(keyaki.__file__).parent
        program = pathlib.Path(tempfile.mkdtemp()) / "program.py"
        program.write_text(
            "import keyaki\n"
            "con: keyaki.Connection = keyaki.connect('shop', read_only=True, memory='1 GiB')\n"
            "row = con.execute('SELECT ?', (1,)).fetchone()\n"
            "reveal_type(row)\n"
            "with con.transaction('serializable'):\n"
            "    n: int = con.append('t', [(1,)])\n"
        )
        mypy = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", os.devnull, "--ignore-missing-imports"]
        environment = {**os.environ, "MYPYPATH": str(package.parent)}
        ended = subprocess.run([*mypy, str(program)], capture_output=True, text=True, env=environment, timeout=600)
        self.assertEqual(ended.returncode, 0, ended.stdout + ended.stderr)
        self.assertIn("tuple[Any, ...] | None", ended.stdout)

    def test_the_stubs_have_the_members_of_the_classes(self):
        stubs = (pathlib.Path(keyaki.__file__).parent / "_keyaki.pyi").read_text()
        for owner in [keyaki.Connection, keyaki.Cursor, keyaki.Transaction]:
            for name, member in vars(owner).items():
                if not name.startswith("_") and not isinstance(member, type):
                    self.assertRegex(stubs, rf"(def {name}\(|    {name}: )", f"{owner.__name__}.{name}")


if __name__ == "__main__":
    unittest.main()
