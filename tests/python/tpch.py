"""TPC-H for tests and benchmarks: data files, both engines, results as comparable values.

The program under test is $KEYAKI_BIN (default: target/debug/keyaki); data lives in $KEYAKI_TARGET (default: target).
"""

import datetime
import json
import os
import re
import shutil
import subprocess
import time
from decimal import Decimal
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TARGET = Path(os.environ.get("KEYAKI_TARGET", ROOT / "target"))
KEYAKI = os.environ.get("KEYAKI_BIN", str(TARGET / "debug" / "keyaki"))
TABLES = ["region", "nation", "supplier", "customer", "part", "partsupp", "orders", "lineitem"]
QUERIES = {int(path.stem[1:]): path.read_text() for path in sorted((ROOT / "benches/tpch/queries").glob("q*.sql"))}


def generate(scale):
    """The directory with a Parquet file for each table."""
    directory = TARGET / "tpch" / f"sf{scale:g}"
    subprocess.run([KEYAKI, "tpch", "--generate", directory, "--scale", str(scale)], check=True)
    return directory


def load(data, database, *options):
    """A fresh Keyaki database of the files."""
    shutil.rmtree(database, ignore_errors=True)
    command = [KEYAKI, "tpch", "--load", database, "--data", data, *options]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def keyaki(database, statements, *options):
    """Runs statements in one process; a list of (rows, seconds or None) for those that return rows.

    A row is a dict. Numbers are ints or Decimals.
    """
    command = [KEYAKI, str(database), "--no-create", "--mode", "json", "--timer", *options]
    for statement in statements:
        command += ["-c", statement]
    process = subprocess.run(command, capture_output=True, text=True)
    if process.returncode != 0:
        raise RuntimeError(f"exit code {process.returncode}: {process.stderr.strip()}")
    results, decoder, text = [], json.JSONDecoder(parse_float=Decimal), process.stdout
    at = 0
    while at < len(text):
        if text[at] != "[":  # what statements without rows say
            at = text.index("\n", at) + 1
            continue
        rows, at = decoder.raw_decode(text, at)
        results.append(rows)
        at += 1
    seconds = [float(match) for match in re.findall(r"^\([\d,]+ rows?, ([\d.]+) s\)$", process.stderr, re.M)]
    return list(zip(results, seconds if len(seconds) == len(results) else [None] * len(results)))


def duckdb_over_files(data, **config):
    """A DuckDB connection with a view for each Parquet file."""
    import duckdb

    connection = duckdb.connect(config=config)
    for table in TABLES:
        connection.execute(f"CREATE VIEW {table} AS SELECT * FROM read_parquet('{data}/{table}.parquet')")
    return connection


def timed(connection, sql):
    """Rows and seconds of a query in DuckDB."""
    start = time.perf_counter()
    rows = connection.execute(sql).fetchall()
    return rows, time.perf_counter() - start


def plain(value):
    """A DuckDB value as the JSON output shows it."""
    if isinstance(value, (datetime.date, datetime.datetime)):
        return value.isoformat()
    return value
