"""Magics of IPython, drawings of plans, and the notebooks in docs/."""

import os
import pathlib
import tempfile
import unittest
import xml.etree.ElementTree as ElementTree

import keyaki
import nbclient
import nbformat
from IPython.core.interactiveshell import InteractiveShell
from keyaki import _magics, _plan

NOTEBOOKS = sorted((pathlib.Path(__file__).resolve().parents[2] / "docs" / "notebooks").glob("*.ipynb"))


class Magics(unittest.TestCase):
    def setUp(self):
        self.shell = InteractiveShell()
        self.addCleanup(InteractiveShell.clear_instance)
        self.shell.run_line_magic("load_ext", "keyaki")
        self.variables = self.shell.user_ns

    def sql(self, line, cell=None):
        return self.shell.run_cell_magic("sql", line, cell) if cell is not None else self.shell.run_line_magic("sql", line)

    def test_statements(self):
        with self.assertRaisesRegex(keyaki.InterfaceError, "no database is open"):
            self.sql("SELECT 1")
        self.assertIsNone(self.sql("keyaki:///:memory:"))
        result = self.sql("", "CREATE TABLE t (id BIGINT PRIMARY KEY, name TEXT);\nINSERT INTO t VALUES (1, 'a;b'), (2, NULL);\nSELECT * FROM t ORDER BY id")
        self.assertEqual((list(result), len(result), result[1]), ([(1, "a;b"), (2, None)], 2, (2, None)))
        self.assertEqual(result.columns, [("id", "bigint"), ("name", "text")])
        self.assertIn("<th>id<br><small>bigint</small></th>", result._repr_html_())
        self.assertIn("│  1 │ a;b  │", repr(result))
        self.assertEqual(result.df()["id"].tolist(), [1, 2])
        self.assertEqual(repr(self.sql("DELETE FROM t")), "2 rows changed")
        self.assertEqual(self.sql("CREATE TABLE u (a INT)")._repr_html_(), "<p>no result</p>")
        self.assertIn("(the first 20 of 30 rows)", repr(self.sql("SELECT * FROM generate_series(1, 30)")))
        self.assertIsNone(self.sql("", "-- nothing"))

    def test_variables_and_assignments(self):
        self.sql("keyaki:///:memory:")
        self.variables.update(low=2, names=["a", "c"])
        self.assertIsNone(self.sql("rows << SELECT i FROM generate_series(1, 5) g (i) WHERE i > $low AND i < $low + 3"))
        self.assertEqual(list(self.variables["rows"]), [(3,), (4,)])
        self.assertIsNone(self.sql("rows <<", "SELECT '$low', $$ $low $$, $low::int -- $low\n"))
        self.assertEqual(list(self.variables["rows"]), [("$low", " $low ", 2)])
        self.assertEqual(list(self.sql("SELECT 'a' = ANY ($names), 'b' = ANY ($names)")), [(True, False)])
        with self.assertRaisesRegex(keyaki.ProgrammingError, r"\$missing: there is no variable"):
            self.sql("SELECT $missing")
        with self.assertRaisesRegex(keyaki.ProgrammingError, "numbered parameters"):
            self.sql("SELECT $low, $1")

    def test_connections(self):
        self.variables["con"] = keyaki.connect()
        self.addCleanup(self.variables["con"].close)
        self.sql("con")
        self.sql("CREATE TABLE t (a INT)")
        self.assertEqual(self.variables["con"].execute("SELECT count(*) FROM t").fetchone(), (0,))
        with tempfile.TemporaryDirectory() as directory:
            path = os.path.join(directory, "my shop")
            self.sql(f"keyaki:///{path.replace(' ', '%20')}?durability=off", "CREATE TABLE t (a INT)")
            self.assertTrue(os.path.isdir(path))
            with self.assertRaises(keyaki.ProgrammingError):
                self.sql("keyaki://host/path")
            self.shell.magics_manager.registry["KeyakiMagics"].connection.close()

    def test_results_of_connections_show_types(self):
        with keyaki.connect() as con:
            cursor = con.execute("SELECT 1 AS n, CAST('1.5' AS DECIMAL(5,1)) AS d, NULL::uuid AS u, '<&>' AS t")
            html = cursor._repr_html_()
        for part in ["<small>bigint", "<small>numeric(5,1)", "<small>uuid", "<em>NULL</em>", "&lt;&amp;&gt;"]:
            self.assertIn(part, html)


class Plans(unittest.TestCase):
    def setUp(self):
        self.con = keyaki.connect(autocommit=True)
        self.addCleanup(self.con.close)
        self.con.executescript(
            "CREATE TABLE a (id BIGINT PRIMARY KEY, g INT); CREATE TABLE b (id BIGINT PRIMARY KEY, a BIGINT, note TEXT); CREATE INDEX b_a ON b (a)"
        )
        self.con.append("a", ((i, i % 10) for i in range(1000)))
        self.con.append("b", ((i, i % 1000, "x" * 50) for i in range(3000)))

    def test_texts_and_drawings(self):
        sql = "SELECT g, count(*) FROM a JOIN b ON b.a = a.id WHERE note < ? GROUP BY g ORDER BY 2"
        plan = self.con.explain(sql, ("y",))
        self.assertEqual(str(plan), plan.text)
        self.assertRegex(plan.text, r"^Sort.*Exec")
        self.assertEqual(plan.reads, [])
        operators, pending = [], [plan.root]
        while pending:
            operators.append(pending.pop())
            pending += operators[-1].inputs
        self.assertEqual(len(operators), len(plan.text.splitlines()))
        svg = ElementTree.fromstring(plan._repr_svg_())
        boxes = [element for element in svg.iter() if element.tag.endswith("}g")]
        self.assertEqual(len(boxes), len(operators))
        self.assertIn("<svg", plan._repr_html_())
        self.assertIn("ScanExec", plan._repr_html_())

    def test_measured_plans(self):
        self.con.executescript("CHECKPOINT; DROP CACHES")
        plan = self.con.explain("SELECT sum(length(note)) FROM b", analyze=True)
        self.assertIn("output_rows=", plan.text)
        self.assertEqual(plan.root.metrics["output_rows"], "1")
        self.assertGreater(sum(curve.reads for curve in plan.reads), 0)
        svg = plan._repr_svg_()
        ElementTree.fromstring(svg)
        self.assertIn("Reads in flight", svg)
        self.assertRegex(svg, r"1 row</text>|rows</text>")

    def test_changes(self):
        plan = self.con.explain("UPDATE a SET g = 1 WHERE id = 3")
        self.assertRegex(str(plan), r"(?s)^change: Update a.*ScanExec")
        with self.assertRaises(keyaki.ProgrammingError):
            self.con.explain("SELECT * FROM missing")
        self.assertEqual(self.con.execute("SELECT g FROM a WHERE id = 3").fetchone(), (3,))

    def test_trees(self):
        text = "A: x=[1, 2], metrics=[output_rows=3, f=[a=1], time=1.5µs]\n  B\n    C, metrics=[]\n  D: <y>, metrics=[output_rows=1.2 K]"
        root = _plan.tree(text)
        self.assertEqual((root.name, root.details, root.metrics), ("A", "x=[1, 2]", {"output_rows": "3", "f": "[a=1]", "time": "1.5µs"}))
        self.assertEqual([operand.name for operand in root.inputs], ["B", "D"])
        self.assertEqual(root.inputs[0].inputs[0].name, "C")
        ElementTree.fromstring(_plan.drawing(root, []))
        self.assertIsNone(_plan.tree(""))

    def test_means_of_reads_in_flight(self):
        curve = _plan.Reads("t", 0, 200, 9, [(0, 0, 0), (25, 8, 3), (50, 4, 5), (150, 0, 9)])
        self.assertEqual((curve.in_flight(2), curve.in_flight(4)), ([4.0, 2.0], [4.0, 4.0, 4.0, 0.0]))
        self.assertEqual(_plan.Reads("t", 0, 0, 0, []).in_flight(2), [0.0, 0.0])
        self.assertGreater(_plan.Reads("t", 0, 200, 0, [(0, 1, 0), (300, 5, 0)]).in_flight(3)[2], 0)


class Notebooks(unittest.TestCase):
    def test_notebooks_of_the_documentation(self):
        self.assertEqual(len(NOTEBOOKS), 2)
        for path in NOTEBOOKS:
            with self.subTest(path.name), tempfile.TemporaryDirectory() as directory:
                notebook = nbformat.read(path, 4)
                nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": directory}}).execute()


if __name__ == "__main__":
    unittest.main()
