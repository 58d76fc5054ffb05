"""TPC-H for tests and benchmarks: data files, both engines, results as comparable values.

The program under test is $KEYAKI_BIN (default: target/debug/keyaki), the harness is $KEYAKI_HARNESS (default:
target/debug/keyaki-harness). Data files are in $KEYAKI_TARGET (default: target).
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
HARNESS = os.environ.get("KEYAKI_HARNESS", str(TARGET / "debug" / "keyaki-harness"))
TABLES = ["region", "nation", "supplier", "customer", "part", "partsupp", "orders", "lineitem"]
QUERIES = {int(path.stem[1:]): path.read_text() for path in sorted((ROOT / "benches/tpch/queries").glob("q*.sql"))}


def generate(scale):
    """Generates a Parquet file for each table, unless it exists. Returns their directory."""
    directory = TARGET / "tpch" / f"sf{scale:g}"
    subprocess.run([HARNESS, "tpch", "--generate", directory, "--scale", str(scale)], check=True)
    return directory


def load(data, database, *options):
    """Creates a Keyaki database from the files, replacing an older one."""
    shutil.rmtree(database, ignore_errors=True)
    command = [HARNESS, "tpch", "--load", database, "--data", data, *options]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def keyaki(database, statements, *options, timeout=None):
    """Runs statements in one process. Returns (rows, seconds or None) for each statement that returns rows.

    A row is a dict. Numbers are ints or Decimals. The process is killed after `timeout` seconds (subprocess.TimeoutExpired).
    """
    command = [KEYAKI, str(database), "--no-create", "--mode", "json", "--timer", *options]
    for statement in statements:
        # One word: a statement may begin with a comment.
        command.append(f"--command={statement}")
    process = subprocess.run(command, capture_output=True, text=True, timeout=timeout)
    if process.returncode != 0:
        raise RuntimeError(f"exit code {process.returncode}: {process.stderr.strip()}")
    results, decoder, text = [], json.JSONDecoder(parse_float=Decimal), process.stdout
    at = 0
    while at < len(text):
        if text[at] != "[":  # the message of a statement without rows
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
    """Runs a query in DuckDB. Returns its rows and seconds."""
    start = time.perf_counter()
    rows = connection.execute(sql).fetchall()
    return rows, time.perf_counter() - start


def plain(value):
    """A DuckDB value as the JSON output shows it."""
    if isinstance(value, (datetime.date, datetime.datetime)):
        return value.isoformat()
    return value
