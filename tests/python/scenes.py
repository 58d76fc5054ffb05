"""The scenes of docs/shell.md: what the shell shows on a terminal of 80 columns.

As a program, writes the scenes to the document, or compares them with it (--check). Times, shares of time and sizes of files
differ from run to run: the comparison ignores them.
"""

import codecs
import os
import pty
import re
import select
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import tpch

DOCUMENT = tpch.ROOT / "docs" / "shell.md"
PROMPTS = ("keyaki> ", "keyaki*> ", "keyaki!> ", "   ...> ")
VARYING = re.compile(r"[ ~]*[\d.,]+ ?(?:ns|µs|ms|s|%|B|KiB|MiB|GiB)(?![A-Za-z])")

SHOP = """
CREATE TABLE customer (id BIGINT PRIMARY KEY, name TEXT NOT NULL, city TEXT);
CREATE TABLE orders (id BIGINT PRIMARY KEY, customer BIGINT REFERENCES customer (id), placed DATE, total DECIMAL(10,2), note TEXT);
INSERT INTO customer SELECT value, 'Customer ' || value, CASE WHEN value % 5 > 0 THEN 'City ' || value % 7 END
FROM generate_series(1, 1000);
INSERT INTO orders SELECT value, value * 7 % 1000 + 1, DATE '2024-01-01' + (value % 366)::int, value % 500 + 0.25,
    CASE WHEN value % 3 > 0 THEN 'please deliver to the back door, after six, and ring twice' END
FROM generate_series(1, 20000);
CREATE INDEX orders_by_customer ON orders (customer);
CREATE VIEW large AS SELECT id, total FROM orders WHERE total > 400;
ANALYZE;
"""

# The lengths of measured numbers decide where the lines of these scenes are broken: they are not compared.
MEASURED = {"measured plans"}

# The name of a scene, and the lines that are typed. Those that begin with "$ " are commands of the operating system's shell.
SCENES = {
    "first steps": [
        "CREATE TABLE pet (name TEXT PRIMARY KEY, born DATE, weight DOUBLE);",
        "INSERT INTO pet VALUES ('Kiki', '2021-05-17', 4.2), ('NULL', NULL, 31);",
        "SELECT * FROM pet ORDER BY name;",
        "quit",
    ],
    "lists": [".tables", "\\d orders", "\\dv", "quit"],
    "wide tables": [
        "SELECT o.*, c.name, c.city FROM orders o JOIN customer c ON c.id = o.customer WHERE o.id < 4 ORDER BY 1;",
        "SELECT o.*, c.*, o.placed + 30 AS due, o.total * 1.19 AS gross FROM orders o JOIN customer c ON c.id = o.customer WHERE o.id < 3 ORDER BY 1;",
        "\\x",
        "SELECT * FROM orders WHERE id = 3;",
        "quit",
    ],
    "long tables": [".mode duckbox", ".maxrows 6", "SELECT id, placed, total FROM orders ORDER BY id;", "quit"],
    "plans": ["EXPLAIN SELECT id, placed, note FROM orders WHERE customer = 42;", "quit"],
    "measured plans": [
        "EXPLAIN ANALYZE SELECT c.city, sum(o.total) AS total FROM orders o JOIN customer c ON c.id = o.customer GROUP BY c.city ORDER BY total DESC;",
        "quit",
    ],
    "suggestions": [".expert SELECT id, total FROM orders WHERE placed = '2024-03-01';", "quit"],
    "formats": [
        ".mode insert pet",
        "SELECT id, name FROM customer ORDER BY id LIMIT 2;",
        ".mode jsonlines",
        "SELECT id, name, city FROM customer WHERE id = 5;",
        ".mode csv",
        ".separator ;",
        ".nullvalue -",
        ".once customers.csv",
        "SELECT * FROM customer WHERE id < 6 ORDER BY id;",
        ".shell tail -2 customers.csv",
        "quit",
    ],
    "parameters": [
        ".parameter set city 'City 3'",
        ".parameter set least 990",
        "SELECT id, name FROM customer WHERE city = :city AND id > :least;",
        ".parameter list",
        "quit",
    ],
    "imports": [
        ".shell printf 'id,name,born\\n1,Kiki,2021-05-17\\n2,,\\n' > pets.csv",
        "SELECT * FROM 'pets.csv';",
        ".import --key id pets.csv pets",
        ".schema pets",
        "quit",
    ],
    "mistakes": [
        ".tabels",
        "SELECT id, FROM orders WHERE;",
        "SELECT nme FROM customer;",
        "BEGIN;",
        "DELETE FROM customer WHERE id = 1;",
        "quit",
    ],
    "other files": [
        "$ printf 'SQLite format 3\\0' > old.db; keyaki old.db",
        "$ printf PAR1 > rows.parquet; keyaki rows.parquet",
        "$ keyaki srve shop",
        "$ keyaki srve",
    ],
    "pipes": [
        "$ keyaki shop --param city='City 2' -c 'SELECT count(*) AS n FROM customer WHERE city = :city'",
        "$ keyaki shop --mode tsv -c 'SELECT id, total FROM orders ORDER BY id' | head -3",
        "$ keyaki shop -c '.dump pet' ; keyaki shop -c '.dump customer' | head -4",
    ],
}


class Screen:
    """A shell on a terminal without colours and editing, so that its output is the text on the screen."""

    def __init__(self, directory, arguments):
        import fcntl
        import struct
        import termios

        self.primary, secondary = pty.openpty()
        fcntl.ioctl(secondary, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 80, 0, 0))
        self.process = subprocess.Popen(
            arguments, stdin=secondary, stdout=secondary, stderr=secondary, start_new_session=True, cwd=directory,
            env=environment(directory), preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(secondary)
        # A read may end within a character.
        self.decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self.text = ""

    def read(self):
        """Reads what there is. Returns false at the end."""
        if select.select([self.primary], [], [], 0.1)[0]:
            try:
                data = os.read(self.primary, 65536)
            except OSError:
                return False
            self.text += self.decoder.decode(data).replace("\r", "")
            return bool(data)
        return True

    def wait_for_prompt(self, after):
        deadline = time.monotonic() + 120
        while self.read() and time.monotonic() < deadline:
            if len(self.text) > after and self.text.endswith(PROMPTS):
                return
        raise AssertionError(f"no prompt appeared in {self.text!r}")

    def type(self, line):
        os.write(self.primary, line.encode() + b"\n")

    def finish(self):
        deadline = time.monotonic() + 120
        while self.read() and time.monotonic() < deadline:
            pass
        self.process.wait(60)
        os.close(self.primary)
        return self.text


def environment(directory):
    """Variables with which every machine shows the same."""
    kept = {name: value for name, value in os.environ.items() if name in ("PATH", "LD_LIBRARY_PATH", "RUST_MIN_STACK")}
    home = {"HOME": str(directory), "TERM": "dumb", "PAGER": "cat", "LANG": "C.UTF-8"}
    return {**kept, **home, "PATH": f"{directory / 'bin'}:{kept['PATH']}"}


def captured(directory, lines):
    """The text of a scene."""
    if lines[0].startswith("$ "):
        shown = []
        for line in lines:
            done = subprocess.run(
                ["bash", "-c", line[2:]], cwd=directory, env=environment(directory), text=True, timeout=120,
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            )
            shown.append(f"{line}\n{done.stdout}")
        return "".join(shown).rstrip("\n")
    screen = Screen(directory, ["keyaki", "shop", "--no-init"])
    screen.wait_for_prompt(0)
    for line in lines[:-1]:
        before = len(screen.text)
        screen.type(line)
        screen.wait_for_prompt(before + len(line) + 1)
    screen.type(lines[-1])
    text = screen.finish()
    # The time that closing takes varies.
    lines = [line.rstrip() for line in text.split("\n") if not line.startswith("closing the database")]
    return "$ keyaki shop\n" + "\n".join(lines).strip("\n")


def all_scenes():
    """The text of each scene."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        (directory / "bin").mkdir()
        (directory / "bin" / "keyaki").symlink_to(Path(tpch.KEYAKI).resolve())
        subprocess.run(["keyaki", "shop"], input=SHOP, text=True, cwd=directory, env=environment(directory), check=True)
        return {scene: captured(directory, lines) for scene, lines in SCENES.items()}


def places(document):
    """The scenes of a document: between a comment with the name of the scene and the end of the block after it."""
    return re.compile(r"(<!-- scene: (.+?) -->\n```text\n)(.*?)(\n```)", re.DOTALL).finditer(document)


def stable(text):
    """A text without what differs from run to run. The width of a column can depend on it."""
    text = VARYING.sub(" _", text)
    return re.sub(r" +", " ", re.sub(r"─+", "─", text))


def differences():
    """The scenes that are not those of the document, with both texts."""
    scenes, document = all_scenes(), DOCUMENT.read_text()
    known = {place[2]: place[3] for place in places(document)}
    assert known.keys() == scenes.keys(), f"docs/shell.md has the scenes {sorted(known)}"
    compared = {name: text for name, text in scenes.items() if name not in MEASURED}
    return {name: (known[name], text) for name, text in compared.items() if stable(known[name]) != stable(text)}


def main():
    if "--check" in sys.argv[1:]:
        different = differences()
        for name, (known, text) in different.items():
            print(f"scene {name}: docs/shell.md has\n{known}\nbut the shell shows\n{text}\n")
        sys.exit("run cargo xtask scenes" if different else 0)
    scenes, document = all_scenes(), DOCUMENT.read_text()
    for place in list(places(document))[::-1]:
        document = document[: place.start(3)] + scenes[place[2]] + document[place.end(3) :]
    DOCUMENT.write_text(document)


if __name__ == "__main__":
    main()
