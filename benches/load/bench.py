"""Loads lineitem from Parquet into a table with a primary key and two secondary indexes, against DuckDB.

Measures rows per second, peak resident memory and size on disk. Each load runs in a process of its own. Run by
`cargo xtask bench load`.
"""

import argparse
import os
import shutil
import sys
import time

import report
import tpch

DUCKDB = """
import sys, duckdb
file, database = sys.argv[1:]
connection = duckdb.connect(database)
columns = ", ".join(f"{name} {kind}" for name, kind, *_ in
    connection.execute(f"DESCRIBE SELECT * FROM read_parquet('{file}')").fetchall())
connection.execute(f"CREATE TABLE lineitem ({columns}, PRIMARY KEY (l_orderkey, l_linenumber))")
connection.execute("CREATE INDEX lineitem_part ON lineitem (l_partkey, l_suppkey)")
connection.execute("CREATE INDEX lineitem_shipdate ON lineitem (l_shipdate)")
connection.execute(f"COPY lineitem FROM '{file}'")
connection.execute("CHECKPOINT")
"""


def measure(command):
    """Runs a process. Returns its seconds, its peak resident bytes, and True if it succeeded."""
    start = time.perf_counter()
    pid = os.posix_spawn(command[0], command, os.environ, file_actions=[(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)])
    _, status, usage = os.wait4(pid, 0)
    return time.perf_counter() - start, usage.ru_maxrss * 1024, os.waitstatus_to_exitcode(status) == 0


def size(path):
    if path.is_file():
        return path.stat().st_blocks * 512
    return sum(file.stat().st_blocks * 512 for file in path.rglob("*") if file.is_file())


def main():
    import duckdb

    parser = argparse.ArgumentParser()
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--json")
    arguments = parser.parse_args()
    results = report.Report("load")
    data = tpch.generate(arguments.scale)
    file = data / "lineitem.parquet"
    rows = duckdb.execute(f"SELECT count(*) FROM read_parquet('{file}')").fetchone()[0]
    ours_path, peer_path = data / "load.keyaki", data / "load.duckdb"
    shutil.rmtree(ours_path, ignore_errors=True)
    peer_path.unlink(missing_ok=True)
    ours = measure([tpch.HARNESS, "tpch", "--load", str(ours_path), "--data", str(data),
                    "--tables", "lineitem", "--indexes", "two"])
    peer = measure([sys.executable, "-c", DUCKDB, str(file), str(peer_path)])
    workload = f"lineitem at scale {arguments.scale:g}, {rows:,} rows, primary key and 2 indexes"
    rate = lambda result: rows / result[0] if result[2] else None
    memory = lambda result: result[1] / 2**20 if result[2] else None
    disk = lambda result, path: size(path) / 2**20 if result[2] else None
    results.add(workload, "rows per second", "1/s", rate(ours), rate(peer), "DuckDB", lower_is_better=False)
    results.add(workload, "peak memory", "MiB", memory(ours), memory(peer), "DuckDB")
    results.add(workload, "size on disk", "MiB", disk(ours, ours_path), disk(peer, peer_path), "DuckDB")
    results.write(arguments.json)
    shutil.rmtree(ours_path, ignore_errors=True)
    peer_path.unlink(missing_ok=True)


if __name__ == "__main__":
    main()
