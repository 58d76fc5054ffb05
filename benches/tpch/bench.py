"""The 22 TPC-H queries, cold and warm, against DuckDB on its own files with one thread per core. Q1 and Q6 warm against
DataFusion over Parquet. Run by `cargo xtask bench tpch`.

Cold means that nothing is cached: Keyaki reads with direct I/O, and DuckDB's files are dropped from the page cache.
"""

import argparse
import os
import statistics
import subprocess

import report
import tpch


def drop_page_cache(path):
    """Writes a file's dirty pages and drops its pages from the kernel's page cache."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


def duckdb_database(data, path):
    import duckdb

    if path.exists():
        return
    temporary = path.with_suffix(".incomplete")
    temporary.unlink(missing_ok=True)
    connection = duckdb.connect(str(temporary))
    for table in tpch.TABLES:
        connection.execute(f"CREATE TABLE {table} AS SELECT * FROM read_parquet('{data}/{table}.parquet')")
    connection.close()
    temporary.rename(path)


def duckdb_cold(path, sql):
    """Seconds of a query on a new connection over uncached files."""
    import duckdb

    drop_page_cache(path)
    connection = duckdb.connect(str(path), read_only=True)
    _, seconds = tpch.timed(connection, sql)
    connection.close()
    return seconds


def keyaki_times(database, sql, runs):
    """Median seconds (cold, warm). Prints the error and returns (None, None) if the query fails."""
    try:
        # A new process has an empty cache, and reads bypass the page cache.
        cold = [tpch.keyaki(database, [sql])[0][1] for _ in range(runs)]
        warm = [seconds for _, seconds in tpch.keyaki(database, [sql] * (runs + 1))][1:]
        return statistics.median(cold), statistics.median(warm)
    except RuntimeError as error:
        print(f"Keyaki: {error}")
        return None, None


def datafusion_times(data, numbers, runs):
    """Median seconds of warm runs by query number."""
    queries = {str(tpch.ROOT / f"benches/tpch/queries/q{number:02}.sql"): number for number in numbers}
    command = [os.environ["KEYAKI_PEERS"], data, str(runs + 1), *queries]
    times = {}
    for line in subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines():
        path, run, seconds, _ = line.split("\t")
        if int(run) > 0:
            times.setdefault(queries[path], []).append(float(seconds))
    return {number: statistics.median(seconds) for number, seconds in times.items()}


def main():
    import duckdb

    parser = argparse.ArgumentParser()
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--json")
    arguments = parser.parse_args()
    results = report.Report("tpch")
    data = tpch.generate(arguments.scale)
    peer_path = data / "peer.duckdb"
    duckdb_database(data, peer_path)
    database = data / "keyaki"
    if not (data / "keyaki.complete").exists():
        tpch.load(data, database)
        (data / "keyaki.complete").touch()
    name = lambda number: f"TPC-H scale {arguments.scale:g}, Q{number}"
    ours = {number: keyaki_times(database, sql, arguments.runs) for number, sql in tpch.QUERIES.items()}
    for number, sql in tpch.QUERIES.items():
        peer = statistics.median(duckdb_cold(peer_path, sql) for _ in range(arguments.runs))
        results.add(name(number), "cold time", "s", ours[number][0], peer, "DuckDB")
    warm_peer = duckdb.connect(str(peer_path), read_only=True)
    for number, sql in tpch.QUERIES.items():
        peer = statistics.median([tpch.timed(warm_peer, sql)[1] for _ in range(arguments.runs + 1)][1:])
        results.add(name(number), "warm time", "s", ours[number][1], peer, "DuckDB")
    warm_peer.close()
    for number, peer in datafusion_times(data, [1, 6], arguments.runs).items():
        results.add(name(number), "warm time", "s", ours[number][1], peer, "DataFusion")
    results.geometric_mean("warm time", "DuckDB")
    results.geometric_mean("cold time", "DuckDB")
    results.write(arguments.json)


if __name__ == "__main__":
    main()
