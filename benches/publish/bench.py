"""Published databases in an object store with latency, against DuckDB and DataFusion on Parquet files in the same store. Run by
`cargo xtask bench publish`.

- `updates`: what a second version uploads after random updates of 1 % of the rows of orders and lineitem.
- `opening`: the requests until a database is open, and the time of a process that opens it. Once for TPC-H, once for `--extents`
  extents of two pages each, whose metadata is that of a terabyte: extents of ordinary databases have about a mebibyte.
- `join`: the query of the out-of-order execution paper (customers by balance, their orders, the items of these), out of order and in
  order, with the requests that it needed and the distinct ranges of objects that it read.
- `workers`: three workers against one machine, by processor time (`cluster.py`).

The store is a server with the protocol of S3 in a process of its own, on the same machine (`tests/object_server`). It waits for
`--latency` milliseconds before each answer, and has no other limits. Every execution is that of a new process or connection, with
nothing cached; the time is that of the statement, without opening the database. The Parquet files are sorted as the indexes of
Keyaki are (customers by balance, orders by customer, items by order) and have page indexes. Answers are compared with those of DuckDB
on local files.
"""

import argparse
import contextlib
import importlib.util
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import cluster
import duckdb
import objects
import report
import tpch

PEERS = os.environ["KEYAKI_PEERS"]
SHARES = [1e-4, 1e-3, 1e-2]
# In-order execution of a larger share takes many minutes.
IN_ORDER_MAX = 1e-3
# The order of the rows of Parquet files, and the rows of a group and the bytes of a page in them.
SORTED = {"customer": "c_acctbal", "orders": "o_custkey", "lineitem": "l_orderkey"}
GROUP_ROWS, PAGE_BYTES = 128 << 10, 64 << 10
IN_ORDER = "in-order execution"
UPDATES = [
    "UPDATE orders SET o_totalprice = o_totalprice + 1 WHERE (o_orderkey * 2654435761) % 10007 < 100",
    "UPDATE lineitem SET l_quantity = l_quantity + 1 WHERE ((l_orderkey * 7 + l_linenumber) * 2654435761) % 10007 < 100",
]


def shell(store, database, *statements):
    """Runs statements in a new process. Returns the rows and the seconds of each, and the seconds of the process."""
    command = [tpch.KEYAKI, str(database), "--no-create", "--mode", "json", "--timer"]
    command += [f"--command={statement}" for statement in statements]
    start = time.perf_counter()
    process = subprocess.run(command, env=store.environment(), capture_output=True, text=True)
    seconds = time.perf_counter() - start
    if process.returncode:
        raise RuntimeError(process.stderr)
    times = [float(match) for match in re.findall(r"^\([\d,]+ rows?, ([\d.]+) s\)$", process.stderr, re.M)]
    rows, decoder, at = [], json.JSONDecoder(), 0
    while (at := process.stdout.find("[", at)) >= 0:
        values, at = decoder.raw_decode(process.stdout, at)
        rows.append(values)
    return rows, times, seconds


def execute(database, *statements):
    """Executes statements that return no rows."""
    commands = [f"--command={statement}" for statement in statements]
    subprocess.run([tpch.KEYAKI, str(database), "--no-create", *commands], check=True, stdout=subprocess.DEVNULL)


def publish(store, database, name="shop"):
    """Publishes a version. Returns its row."""
    rows, _, _ = shell(store, database, f"PUBLISH DATABASE TO 's3://bucket/{name}'")
    return rows[0][0]


class Keyaki:
    """A new process for each execution."""

    def __init__(self, store, settings):
        self.store = store
        self.settings = [f"SET {name} = '{value}'" for name, value in settings.items()]

    def run(self, sql):
        rows, times, _ = shell(self.store, "s3://bucket/shop@1", *self.settings, sql)
        return tuple(rows[0][0].values()), times[-1]

    def requests(self, sql):
        """The numbers of requests and of distinct ranges."""
        rows, _, _ = shell(self.store, "s3://bucket/shop@1", *self.settings, f"EXPLAIN ANALYZE {sql}")
        (text,) = (row["plan"] for row in rows[0] if row["plan_type"] == "object_store")
        numbers = dict(part.split("=") for part in text.split(", "))
        return int(numbers["requests"]), int(numbers["ranges"])


class DuckDB:
    """A new connection for each execution, with the extension for object stores."""

    def __init__(self, store):
        folder = Path(importlib.util.find_spec("duckdb_extension_httpfs").origin).parent
        (self.extension,) = folder.glob(f"extensions/v{duckdb.__version__}/httpfs.duckdb_extension")
        self.variables = store.variables

    def run(self, sql):
        with duckdb.connect() as connection:
            connection.execute(f"LOAD '{self.extension}'")
            endpoint = self.variables["AWS_ENDPOINT"].removeprefix("http://")
            connection.execute(
                f"CREATE SECRET (TYPE s3, KEY_ID '{self.variables['AWS_ACCESS_KEY_ID']}', "
                f"SECRET '{self.variables['AWS_SECRET_ACCESS_KEY']}', ENDPOINT '{endpoint}', USE_SSL false, "
                f"URL_STYLE 'path', REGION '{self.variables['AWS_REGION']}')")
            start = time.perf_counter()
            for table in SORTED:
                connection.execute(f"CREATE VIEW {table} AS SELECT * FROM read_parquet('s3://bucket/{table}.parquet')")
            rows = connection.execute(sql).fetchall()
            return rows[0], time.perf_counter() - start


class DataFusion:
    """A new process for each execution."""

    def __init__(self, store):
        self.store = store

    def run(self, sql):
        with tempfile.NamedTemporaryFile("w", suffix=".sql") as query:
            query.write(sql)
            query.flush()
            command = [PEERS, "--row", "s3://bucket", "1", query.name]
            process = subprocess.run(command, env=self.store.environment(), capture_output=True, text=True)
        if process.returncode:
            raise RuntimeError(process.stderr)
        _, _, seconds, _, row = process.stdout.strip().split("\t")
        return tuple(row.split("|")), float(seconds)


def write_parquet(data, folder):
    """Writes the sorted files."""
    from pyarrow import parquet

    with duckdb.connect() as connection:
        for table, key in SORTED.items():
            reader = connection.execute(
                f"SELECT * FROM read_parquet('{data}/{table}.parquet') ORDER BY {key}").to_arrow_reader(GROUP_ROWS)
            options = {"compression": "zstd", "write_page_index": True, "data_page_size": PAGE_BYTES}
            with parquet.ParquetWriter(folder / f"{table}.parquet", reader.schema, **options) as writer:
                for batch in reader:
                    writer.write_batch(batch, row_group_size=GROUP_ROWS)


def queries(data):
    """The queries by share, with their answers by DuckDB on local files."""
    connection = tpch.duckdb_over_files(data)
    value = lambda sql: connection.execute(sql).fetchone()[0]
    count = value("SELECT count(*) FROM customer")
    for position, share in enumerate(SHARES):
        low = value(f"SELECT min(c_acctbal) FROM customer WHERE c_acctbal >= {1000 * position} AND c_custkey % 3 <> 0")
        balances = f"SELECT c_acctbal AS b FROM customer WHERE c_acctbal >= {low} ORDER BY b LIMIT {max(1, round(count * share))}"
        high = value(f"SELECT max(b) FROM ({balances})")
        sql = ("SELECT count(*) AS n, sum(l_quantity) AS q FROM customer JOIN orders ON c_custkey = o_custkey "
               f"JOIN lineitem ON o_orderkey = l_orderkey WHERE c_acctbal BETWEEN {low} AND {high}")
        yield share, sql, connection.execute(sql).fetchone()


def alike(expected, got):
    return all(abs(float(a or 0) - float(b or 0)) <= 1e-9 * abs(float(a or 0)) for a, b in zip(expected, got, strict=True))


def measure(engine, sql, expected, runs):
    """The median time of some executions; None if an execution fails."""
    times = []
    for _ in range(runs):
        try:
            row, seconds = engine.run(sql)
        except Exception as error:
            print(f"{type(engine).__name__}: {error}", file=sys.stderr)
            return None
        if not alike(expected, row):
            sys.exit(f"{type(engine).__name__} returned {row} instead of {expected} for {sql}")
        times.append(seconds)
    return statistics.median(times)


def updates(results, store, database):
    execute(database, *UPDATES)
    version = publish(store, database)
    share = 100 * version["bytes"] / (version["bytes"] + version["kept_bytes"])
    results.add("a second version after 1 % random updates", "uploaded", "% bytes", share, 10, "target")


def opening(results, store, runs, workload, name="shop"):
    before = store.stats()
    seconds = [shell(store, f"s3://bucket/{name}", "SELECT 1")[2] for _ in range(runs)]
    after = store.stats()
    requests = sum(after[kind] - before[kind] for kind in ("gets", "others")) / runs
    results.add(workload, "requests", "", requests, 5, "target")
    results.add(workload, "time", "s", statistics.median(seconds), 2, "target")


def many_extents(results, store, folder, extents, runs):
    database = folder / "large"
    subprocess.run([tpch.HARNESS, "extents", database, f"--extents={extents}"], check=True, stdout=subprocess.DEVNULL)
    publish(store, database, "large")
    (manifest,) = (store.root / "bucket" / "large" / "versions").iterdir()
    print(f"manifest for {extents:,} extents: {manifest.stat().st_size / 1e6:.1f} MB")
    opening(results, store, runs, f"opening {extents:,} extents", "large")
    shutil.rmtree(database)


def joins(results, store, data, runs):
    out_of_order = Keyaki(store, {})
    in_order = Keyaki(store, {"keyaki.join": "index", "keyaki.execution": "in_order"})
    peers = {"DuckDB": DuckDB(store), "DataFusion": DataFusion(store)}
    for share, sql, expected in queries(data):
        workload = f"{100 * share:g} % of customers"
        ours = measure(out_of_order, sql, expected, runs)
        for name, peer in peers.items():
            results.add(workload, "time", "s", ours, measure(peer, sql, expected, runs), name)
        if share <= IN_ORDER_MAX:
            results.add(workload, "time", "s", ours, measure(in_order, sql, expected, 1), IN_ORDER)
        requests, ranges = out_of_order.requests(sql)
        results.add(workload, "requests", "", requests, 1.5 * ranges, "1.5 x ranges")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=float, default=1, help="scale of TPC-H")
    parser.add_argument("--latency", type=int, default=20, help="milliseconds before each answer")
    parser.add_argument("--runs", type=int, default=3, help="executions of a query; the median counts")
    parser.add_argument("--extents", type=int, default=1_000_000, help="extents of the database with much metadata; 0 for none")
    parser.add_argument("--only", choices=["opening", "joins", "updates", "extents", "workers"], help="one part")
    parser.add_argument("--json", help="write rows to this file")
    arguments = parser.parse_args()
    wanted = lambda part: arguments.only in (None, part)
    results = report.Report("publish")
    data = tpch.generate(arguments.scale)
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=tpch.TARGET)))
        database = folder / "shop"
        tpch.load(data, database)
        store = objects.Server(folder / "store", latency_ms=arguments.latency)
        stack.callback(store.close)
        bytes_of = publish(store, database)["bytes"]
        print(f"version 1: {bytes_of / 1e6:,.0f} MB")
        if wanted("opening"):
            opening(results, store, arguments.runs, "opening TPC-H")
        if wanted("joins"):
            write_parquet(data, store.root / "bucket")
            joins(results, store, data, arguments.runs)
        if wanted("workers"):
            (join,) = (sql for share, sql, _ in queries(data) if share == SHARES[-1])
            cluster.run(results, store, "s3://bucket/shop@1", join, arguments.runs)
        if wanted("updates"):
            updates(results, store, database)
        if wanted("extents") and arguments.extents:
            many_extents(results, store, folder, arguments.extents, arguments.runs)
    results.write(arguments.json)


if __name__ == "__main__":
    main()
