"""The 22 TPC-H queries, cold and warm, against DuckDB on its own files with one thread per core, and warm against DataFusion
over Parquet (`--datafusion`: numbers of queries). Keyaki and DuckDB have the same memory. Run by `cargo xtask bench tpch`.

Cold means that nothing is cached: Keyaki reads with direct I/O, and DuckDB's files are dropped from the page cache.
"""

import argparse
import os
import statistics
import subprocess

import peers
import report
import tpch


def keyaki_times(keyaki, sql, runs):
    """Median seconds (cold, warm). Prints the error and returns (None, None) if the query fails."""
    try:
        cold = [keyaki.cold(sql)[1] for _ in range(runs)]
        return statistics.median(cold), statistics.median(keyaki.warm(sql, runs))
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
    parser = argparse.ArgumentParser()
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--memory", default="8G", help="memory of Keyaki and of DuckDB, for example 512M")
    parser.add_argument("--datafusion", type=int, nargs="*", default=[1, 6], help="queries that DataFusion executes, too")
    parser.add_argument("--json")
    arguments = parser.parse_args()
    results = report.Report("tpch")
    data = tpch.generate(arguments.scale)
    duckdb = peers.DuckDb(peers.duckdb_database(data), memory_limit=f"{peers.memory_bytes(arguments.memory) >> 20}MiB")
    keyaki = peers.Keyaki(peers.keyaki_database(data), options=["--memory", arguments.memory])
    name = lambda number: f"TPC-H scale {arguments.scale:g}, Q{number}"
    ours = {number: keyaki_times(keyaki, sql, arguments.runs) for number, sql in tpch.QUERIES.items()}
    for number, sql in tpch.QUERIES.items():
        peer = statistics.median(duckdb.cold(sql)[1] for _ in range(arguments.runs))
        results.add(name(number), "cold time", "s", ours[number][0], peer, "DuckDB")
    for number, sql in tpch.QUERIES.items():
        peer = statistics.median(duckdb.warm(sql, arguments.runs))
        results.add(name(number), "warm time", "s", ours[number][1], peer, "DuckDB")
    for number, peer in datafusion_times(data, arguments.datafusion, arguments.runs).items():
        results.add(name(number), "warm time", "s", ours[number][1], peer, "DataFusion")
    for peer in ["DuckDB", "DataFusion"]:
        for metric in ["cold time", "warm time"]:
            results.geometric_mean(metric, peer)
            results.total(metric, peer)
    results.write(arguments.json)


if __name__ == "__main__":
    main()
