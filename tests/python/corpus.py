"""Runs files of SQLite's sqllogictest corpus against the shell: `python corpus.py FILE …`.

Records for other systems are skipped as PostgreSQL would skip them. Prints each difference, and the number of statements and
queries. The corpus is not part of this repository: see https://www.sqlite.org/sqllogictest.
"""

import collections
import hashlib
import re
import sys
from pathlib import Path

from engines import Crash, Keyaki, StatementError

SYSTEM = "postgresql"
HASH = re.compile(r"\d+ values hashing to [0-9a-f]{32}")


def records(text):
    """The records of a file: (words of the first line, SQL, lines of the result)."""
    for record in re.split(r"\n\s*\n", text):
        lines = [line for line in record.splitlines() if line and not line.startswith("#")]
        conditions = []
        while lines and lines[0].startswith(("skipif", "onlyif")):
            conditions.append(lines.pop(0).split())
        is_skipped = any((word == "skipif") == (system == SYSTEM) for word, system, *_ in conditions)
        if not lines or is_skipped:
            continue
        end = lines.index("----") if "----" in lines else len(lines)
        yield lines[0].split(), "\n".join(lines[1:end]), lines[end + 1:]


def shown(value, kind):
    """A value as the corpus writes it."""
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        value = int(value)
    if kind == "R":
        return f"{float(value):.3f}"
    if kind == "I":
        # SQLite reads a text as the number at its start.
        return str(int(re.match(r"-?\d+|", value)[0] or 0) if isinstance(value, str) else int(value))
    return str(value) or "(empty)"


def result(rows, kinds, order):
    """The values of rows as the corpus lists or hashes them."""
    rows = [[shown(value, kind) for value, kind in zip(row, kinds)] for row in rows]
    if order == "rowsort":
        rows.sort()
    values = [value for row in rows for value in row]
    if order == "valuesort":
        values.sort()
    digest = hashlib.md5("".join(f"{value}\n" for value in values).encode()).hexdigest()
    return values, f"{len(values)} values hashing to {digest}"


def run(path, counts):
    shell = Keyaki("--memory", "512M")
    try:
        for words, sql, expected in records(path.read_text()):
            if words[0] == "halt":
                break
            if words[0] not in ("statement", "query"):
                continue
            counts[words[0]] += 1
            try:
                rows, _ = shell.execute(sql)
                problem = None
            except StatementError as error:
                rows, problem = None, str(error).splitlines()[0]
            if words[0] == "statement":
                is_same = (problem is not None) == (words[1] == "error")
            elif problem is None:
                values, digest = result(rows or [], words[1], words[2] if len(words) > 2 else "nosort")
                is_hash = len(expected) == 1 and HASH.fullmatch(expected[0])
                is_same = expected == ([digest] if is_hash else values)
                problem = digest if is_hash else " ".join(values[:20])
            else:
                is_same = False
            if not is_same:
                counts[f"different {words[0]}"] += 1
                print(f"{path}: {sql}\n  expected: {' '.join(expected[:20]) or words[1]}\n  found: {problem}")
    finally:
        shell.close()


def main():
    counts = collections.Counter()
    for path in map(Path, sys.argv[1:]):
        try:
            run(path, counts)
        except Crash as crash:
            counts["crash"] += 1
            print(f"{path}: {crash}")
    print(", ".join(f"{count} of kind {kind}" for kind, count in counts.items()))
    sys.exit(any(kind not in ("statement", "query") for kind in counts))


if __name__ == "__main__":
    main()
