"""The shell against those of sqlite3 and DuckDB: start, small statements, CSV files, and long tables.

Each measurement is a process of its own, from its start to its end (start to prompt: to the prompt). The shells take turns. DuckDB's
comes from PyPI, sqlite3 from the packages of the system; without one of them, its figures are missing. Run by
`cargo xtask bench shell`.
"""

import argparse
import fcntl
import importlib.util
import os
import pathlib
import pty
import random
import re
import select
import shutil
import statistics
import struct
import subprocess
import tempfile
import termios
import time

import report

COLUMNS = "id BIGINT{}, k BIGINT, v DOUBLE PRECISION, name TEXT"
ESCAPES = re.compile(rb"\x1b\][^\x07\x1b]*(\x07|\x1b\\)|\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b[=>]")
# What a terminal answers to the questions for its background colour and its kind.
ANSWERS = b"\x1b]11;rgb:0000/0000/0000\x07\x1b[?62;c"


class Keyaki:
    name, prompt = "Keyaki", b"keyaki> "
    program = os.environ["KEYAKI_BIN"]
    table_mode = ["--mode", "table"]
    csv_mode = ["--mode", "csv"]

    def arguments(self, database, *statements):
        return [self.program, database, *(word for statement in statements for word in ("-c", statement))]

    def export(self, database, file):
        return self.arguments(database, f"COPY t TO '{file}' (FORMAT CSV, HEADER)")

    def load(self, database, file):
        return self.arguments(database, f"COPY t FROM '{file}' (FORMAT CSV, HEADER)")

    def printed(self, database, sql, mode):
        return [self.program, *mode, *self.arguments(database, sql)[1:]]


class DuckDB(Keyaki):
    name, prompt = "DuckDB", b" D "
    table_mode = ["-box"]
    csv_mode = ["-csv"]

    def __init__(self):
        specification = importlib.util.find_spec("duckdb_cli")
        self.program = specification and os.path.join(os.path.dirname(specification.origin), "duckdb")


class SQLite(Keyaki):
    name, prompt = "sqlite3", b"sqlite> "
    table_mode = ["-box"]
    csv_mode = ["-header", "-csv"]

    def __init__(self):
        self.program = shutil.which("sqlite3")

    def arguments(self, database, *statements):
        return [self.program, database, *statements]

    def export(self, database, file):
        return self.arguments(database, ".headers on", ".mode csv", f".output {file}", "SELECT * FROM t")

    def load(self, database, file):
        return self.arguments(database, f".import --csv --skip 1 {file} t")


def run(command, output=subprocess.DEVNULL):
    """Seconds."""
    start = time.perf_counter()
    subprocess.run(command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.PIPE, check=True)
    return time.perf_counter() - start


def prompt_seconds(side, database):
    """Seconds from the start of the program to its prompt on a terminal."""
    primary, secondary = pty.openpty()
    fcntl.ioctl(secondary, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 120, 0, 0))
    start = time.perf_counter()
    process = subprocess.Popen(
        [side.program, database], stdin=secondary, stdout=secondary, stderr=secondary, start_new_session=True,
        env=dict(os.environ, TERM="xterm-256color"), preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )
    os.close(secondary)
    output, answered = b"", False
    try:
        while side.prompt not in ESCAPES.sub(b"", output):
            if time.perf_counter() - start > 30:
                raise TimeoutError(f"no prompt of {side.name} in {output!r}")
            if select.select([primary], [], [], 0.1)[0]:
                output += os.read(primary, 65536)
                if b"\x1b[c" in output and not answered:
                    os.write(primary, ANSWERS)
                    answered = True
        return time.perf_counter() - start
    finally:
        process.terminate()
        process.wait()
        os.close(primary)


def in_turns(sides, repetitions, measure):
    """The median of the seconds of each side."""
    times = {side: [] for side in sides}
    for _ in range(repetitions):
        for side in sides:
            times[side].append(measure(side))
    return {side: statistics.median(values) for side, values in times.items()}


def compare(results, workload, metric, unit, figures, factor=1.0):
    ours = next(figure for side, figure in figures.items() if type(side) is Keyaki)
    for side, theirs in figures.items():
        if type(side) is not Keyaki:
            results.add(workload, metric, unit, ours * factor, theirs * factor, side.name)


def write_rows(file, count):
    random_numbers = random.Random(1)
    with open(file, "w") as output:
        output.write("id,k,v,name\n")
        for number in range(count):
            output.write(f"{number},{random_numbers.randrange(count)},{random_numbers.random()!r},name {random_numbers.randrange(count)}\n")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=1_000_000, help="rows of the CSV files")
    parser.add_argument("--printed-rows", type=int, default=100_000, help="rows of the printed table")
    parser.add_argument("--starts", type=int, default=21, help="starts of each shell")
    parser.add_argument("--repetitions", type=int, default=5, help="of each other measurement")
    parser.add_argument("--json")
    arguments = parser.parse_args()
    results = report.Report("shell")
    sides = [side for side in (Keyaki(), SQLite(), DuckDB()) if side.program]

    with tempfile.TemporaryDirectory(dir=os.environ.get("KEYAKI_TARGET"), prefix="bench-shell-") as directory:
        directory = pathlib.Path(directory)
        source = directory / "rows.csv"
        write_rows(source, arguments.rows)
        databases = {side: str(directory / side.name) for side in sides}
        for side in sides:
            run(side.arguments(databases[side], f"CREATE TABLE t ({COLUMNS.format('')})"))

        starts = in_turns(sides, arguments.starts, lambda side: prompt_seconds(side, databases[side]))
        compare(results, "start to prompt", "time", "ms", starts, 1e3)
        selects = in_turns(sides, arguments.starts, lambda side: run(side.arguments(databases[side], "SELECT 1")))
        compare(results, "-c 'SELECT 1'", "time", "ms", selects, 1e3)

        for name, key in [("without keys", ""), ("with primary key", " PRIMARY KEY")]:
            def load(side):
                side_directory = pathlib.Path(tempfile.mkdtemp(dir=directory))
                database = str(side_directory / "database")
                run(side.arguments(database, f"CREATE TABLE t ({COLUMNS.format(key)})"))
                seconds = run(side.load(database, source))
                shutil.rmtree(side_directory)
                return seconds
            loads = in_turns(sides, arguments.repetitions, load)
            compare(results, f"import {arguments.rows:,} rows, {name}", "time", "s", loads)

        for side in sides:
            run(side.load(databases[side], source))
        exports = in_turns(sides, arguments.repetitions, lambda side: run(side.export(databases[side], directory / "out.csv")))
        compare(results, f"export {arguments.rows:,} rows", "time", "s", exports)

        def printed(mode, sql):
            def measure(side):
                with open(directory / "printed", "wb") as output:
                    seconds = run(side.printed(databases[side], sql, getattr(side, mode)), output)
                return seconds
            return in_turns(sides, arguments.repetitions, measure)
        compare(results, f"print {arguments.rows:,} rows as CSV", "time", "s", printed("csv_mode", "SELECT * FROM t"))
        rows = arguments.printed_rows
        compare(results, f"print a table of {rows:,} rows", "time", "s", printed("table_mode", f"SELECT * FROM t LIMIT {rows}"))
        wide = ", ".join(f"k + {number} AS c{number}" for number in range(12))
        sql = f"SELECT id, {wide}, name FROM t LIMIT {rows}"
        compare(results, f"print a table of {rows:,} rows, 14 columns", "time", "s", printed("table_mode", sql))
    results.write(arguments.json)


if __name__ == "__main__":
    main()
