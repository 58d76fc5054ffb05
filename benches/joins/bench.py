"""Selective joins against DuckDB, which scans, and SQLite, PostgreSQL and MariaDB, which have Keyaki's indexes. Run by
`cargo xtask bench joins`.

- `sweep`: the query of the out-of-order execution paper (customers by balance, their orders, the items of these) from 0.0001 % to
  100 % of the customers.
- `queries`: ten queries of TPC-H, simplified as in the paper, that read 0.1 to 1 % of the rows of their first table (`queries/`).
- `simulated`: the query of `sweep`, out of order against in order, in the virtual time of an array of 40 drives and of a cloud
  volume (`keyaki demo --simulated`).
- `devices` (not by default): the ten queries, out of order against in order, at the speed of these devices, in real time.

Keyaki chooses its plan (`auto`). Its plans `index` and `scan` are peers of their own, and show the cost of a wrong choice. All
engines have the same memory, but when warm, DuckDB, SQLite and PostgreSQL also find their files in the page cache. Times are
medians. DuckDB runs with several numbers of threads, and its best time counts.

Answers of all engines are compared with DuckDB's. The benchmark fails after the last measurement if one differs.
"""

import argparse
import contextlib
import json
import os
import random
import signal
import sqlite3
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

import answers
import indexed
import peers
import report
import servers
import tpch

QUERIES = {int(path.stem[1:]): path.read_text() for path in sorted(Path(__file__).parent.glob("queries/q*.sql"))}
SHARES = [1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0]
PARTS = ["sweep", "queries", "simulated", "devices"]
AUTO, IN_ORDER = "auto", "in-order execution"
# Keyaki's settings by the name of the engine.
KEYAKI = {
    AUTO: {"keyaki.join": "auto"},
    "index": {"keyaki.join": "index"},
    "scan": {"keyaki.join": "scan"},
    IN_ORDER: {"keyaki.join": "index", "keyaki.execution": "in_order"},
}
SERVERS = [servers.Postgres, servers.MariaDb]
INDEX_PEERS = ["SQLite", *(server.name for server in SERVERS)]
# Devices and the ratio of in-order to out-of-order execution that the query of the sweep must reach on them. The first is the
# array of the paper with the ratio of its figure 5.
DEVICES = {"array(40 ssd)": ("published", 124.0), "cloud(1ms, 64k iops)": ("target", 50.0)}
# The largest ratio of the paper's figure 7, of Q17 on the array.
PUBLISHED_QUERIES = 135.0
# `auto` should not take longer than this times the best of the other plans and DuckDB.
TOLERANCE = 1.1
# Warm executions of short queries are repeated this many times as often as others.
SHORT_SECONDS, SHORT_RUNS = 0.1, 5
KINDS = ["cold", "warm"]
NULLS = (None, "", "NULL")


@dataclass
class Times:
    rows: list
    cold: float
    warm: float


class Measurement:
    """Cold and warm executions of a query by one engine, and its answer."""

    def __init__(self, name, engine, sql, arguments):
        self.name, self.engine, self.sql = name, engine, sql
        self.limit, self.runs = arguments.max_seconds, arguments.runs
        self.rows, self.cold, self.warm = None, [], []
        self.failed, self.error = False, None

    def run_cold(self):
        """Slow queries run less often, so that all cold executions take about the time limit."""
        if self.failed or self.cold and sum(self.cold) + self.cold[0] > self.limit:
            return
        # Writes of a server that has just stopped or started would compete with the reads.
        os.sync()
        with self._failures():
            self.rows, seconds = self.engine.cold(self.sql, self.limit)
            self.cold.append(seconds)

    def run_warm(self):
        if self.failed:
            return
        runs = max(1, min(self.runs, int(self.limit / self.cold[0])))
        with self._failures():
            self.warm = self.engine.warm(self.sql, runs * SHORT_RUNS if self.cold[0] < SHORT_SECONDS else runs, self.limit)

    @contextlib.contextmanager
    def _failures(self):
        try:
            yield
        except peers.TimeLimit:
            print(f"{self.name}: above {self.limit:g} s")
            self.failed = True
        except Exception as error:
            print(f"{self.name}: {error}")
            self.failed, self.error = True, error


def alike(expected, got):
    """True if a peer's value equals DuckDB's. Peers have decimals, floats or texts, and round differently."""
    if expected is None or got in NULLS:
        return expected is None and got in NULLS
    if isinstance(expected, (int, float, Decimal)):
        return abs(float(got) - float(expected)) <= 1e-6 * abs(float(expected))
    return str(got) == str(expected)


def peer_difference(expected, got):
    """A description of the first difference; None if the results are equal."""
    if len(expected) != len(got):
        return f"{len(got)} rows instead of {len(expected)}"
    for wanted, row in zip(expected, got):
        if len(wanted) != len(row) or not all(map(alike, wanted, row)):
            return f"{row} instead of {wanted}"
    return None


class Bench:
    """The engines by name, each with its alternatives, and the results."""

    def __init__(self, arguments, engines):
        self.arguments, self.engines = arguments, engines
        self.results = report.Report("joins")
        self.failures, self.slow = [], []
        self.random = random.Random(1)

    def compare(self, workload, sql, engines):
        """Measures a query, and reports `auto` beside every other engine. Returns the times by engine, None if there are none."""
        times = self.measure(workload, sql, engines)
        self.check(workload, times)
        for kind in KINDS:
            figure = lambda name: times.get(name) and getattr(times[name], kind)
            for name in engines:
                if name not in (AUTO, IN_ORDER):
                    self.results.add(workload, f"{kind} time", "s", figure(AUTO), figure(name), name)
            if IN_ORDER in times:
                self.results.add(f"{workload}, index", f"{kind} time", "s", figure("index"), figure(IN_ORDER), IN_ORDER)
            best, name = min(((figure(name), name) for name in ("index", "scan", "DuckDB") if figure(name)), default=(None, None))
            if best and figure(AUTO) and figure(AUTO) > TOLERANCE * best:
                self.slow.append(f"{workload}, {kind}: {figure(AUTO) / best:.2f} times {name}")
        return times

    def check(self, workload, times):
        """Compares all answers with DuckDB's."""
        if not times["DuckDB"]:
            return
        for name, measured in times.items():
            compare = answers.difference if name in KEYAKI else peer_difference
            difference = measured and name != "DuckDB" and compare(times["DuckDB"].rows, measured.rows)
            if difference:
                self.failures.append(f"{workload}: the answers of {name} and DuckDB differ: {difference}")

    def measure(self, workload, sql, engines):
        """The times by engine; None above the time limit or after an error.

        The engines take turns, so that slow minutes of a shared machine affect all of them. Their order is random, because the
        start of a server disturbs the next engine.
        """
        alternatives = [Measurement(name, engine, sql, self.arguments) for name in engines for engine in self.engines[name]]
        for _ in range(self.arguments.runs):
            for measurement in self.random.sample(alternatives, len(alternatives)):
                measurement.run_cold()
        for measurement in alternatives:
            measurement.run_warm()
        times = {}
        for measurement in alternatives:
            if measurement.error and measurement.name in KEYAKI:
                self.failures.append(f"{workload}: {measurement.name}: {measurement.error}")
        for name in engines:
            complete = [measurement for measurement in alternatives if measurement.name == name and not measurement.failed]
            best = lambda kind: min(statistics.median(getattr(measurement, kind)) for measurement in complete)
            times[name] = Times(complete[0].rows, best("cold"), best("warm")) if complete else None
        return times

    def means(self, workload):
        for kind in KINDS:
            for name in self.engines:
                self.results.geometric_mean(f"{kind} time", name, workload)


def customers(connection, scale):
    """The workloads of the sweep and their queries.

    The ranges are those of `keyaki demo`: they begin at different balances, at a customer with orders (in TPC-H, customers whose
    key is a multiple of three have none).
    """
    value = lambda sql: connection.execute(sql).fetchone()[0]
    count = value("SELECT count(*) FROM customer")
    for position, share in enumerate(SHARES):
        low, high = connection.execute("SELECT min(c_acctbal), max(c_acctbal) FROM customer").fetchone()
        if share < 1:
            low = value(f"SELECT min(c_acctbal) FROM customer WHERE c_acctbal >= {1000 * position} AND c_custkey % 3 <> 0")
            wanted = max(1, round(count * share))
            balances = f"SELECT c_acctbal AS b FROM customer WHERE c_acctbal >= {low} ORDER BY b LIMIT {wanted}"
            high = value(f"SELECT max(b) FROM ({balances})")
        yield f"TPC-H scale {scale:g}, {100 * share:g} % of customers", (
            "SELECT count(*), sum(l_quantity) FROM customer JOIN orders ON c_custkey = o_custkey "
            f"JOIN lineitem ON o_orderkey = l_orderkey WHERE c_acctbal BETWEEN {low} AND {high}")


def sweep(bench, connection):
    """The paper's figure 5. An engine that exceeds the time limit does not run with larger shares."""
    engines = [name for name in bench.engines if name != IN_ORDER]
    for workload, sql in list(customers(connection, bench.arguments.scale)):
        times = bench.compare(workload, sql, engines)
        engines = [name for name in engines if times[name] or name not in ("index", *INDEX_PEERS)]
    bench.means(" % of customers")


def queries(bench):
    """The paper's figures 6 and 7."""
    for number, sql in QUERIES.items():
        bench.compare(f"TPC-H scale {bench.arguments.scale:g}, selective Q{number}", sql, bench.engines)
    bench.means("selective")


def simulated(bench, data):
    """The paper's figure 5 in virtual time. Computation takes none, so that the figures are those of the device alone."""
    for device, (source, target) in DEVICES.items():
        with tempfile.NamedTemporaryFile() as file:
            options = {"scale": f"{bench.arguments.scale:g}", "dir": data / "demo", "simulated": device, "json": file.name,
                       "memory": bench.arguments.memory, "runs": 1}
            command = [tpch.KEYAKI, "demo", *(f"--{name}={value}" for name, value in options.items())]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            rows = [row for row in json.load(file) if row["metric"] == "time"]
        for row in rows:
            bench.results.add(row["workload"], "virtual time", "s", row["keyaki"], row["peer"], row["peer_name"])
        ratio(bench, f"TPC-H scale {bench.arguments.scale:g}, customers, {device}, virtual time", rows, source, target)


def ratio(bench, workload, rows, source, target):
    """Reports the largest ratio of rows beside the ratio that it must reach."""
    ratios = [row["ratio"] for row in rows if row["ratio"]]
    largest = max(ratios, default=None)
    bench.results.add(workload, "largest ratio", "1", largest, target, source, lower_is_better=False)


def devices(bench, database):
    """The paper's figure 7 in real time: a device's model delays each read, and computation takes its own time."""
    scale = f"TPC-H scale {bench.arguments.scale:g}"
    for device, (source, _) in DEVICES.items():
        before = len(bench.results.rows)
        options = ["--memory", bench.arguments.memory, "--device", device]
        engines = {name: peers.Keyaki(database, KEYAKI[name], options) for name in ("index", IN_ORDER)}
        for number, sql in QUERIES.items():
            runs = [Measurement(name, engine, sql, bench.arguments) for name, engine in engines.items()]
            for run in runs:
                run.run_cold()
            ours, theirs = (run.cold[0] if run.cold else None for run in runs)
            bench.results.add(f"{scale}, selective Q{number}, index, {device}", "cold time", "s", ours, theirs, IN_ORDER)
        if source == "published":
            rows = bench.results.rows[before:]
            ratio(bench, f"{scale}, selective queries, {device}", rows, source, PUBLISHED_QUERIES)


def prepare(arguments, data, stack):
    """The engines by name, with their data loaded. Peers that are not available are skipped with a notice."""
    memory = peers.memory_bytes(arguments.memory)
    database = peers.keyaki_database(data)
    keyaki = lambda settings: peers.Keyaki(database, settings, ["--memory", arguments.memory])
    engines = {name: [keyaki(settings)] for name, settings in KEYAKI.items()}
    # Neither Keyaki nor DuckDB is open between queries: only the other peers are closed.
    path = peers.duckdb_database(data)
    limit = f"{memory >> 20}MiB"
    engines["DuckDB"] = [peers.DuckDb(path, threads=threads, memory_limit=limit) for threads in arguments.duckdb_threads]
    definitions = indexed.definitions(database)
    factories = {"SQLite": indexed.Sqlite, **{server.name: server for server in SERVERS}}
    for name in arguments.peers:
        try:
            engine = factories[name](data, definitions, memory)
            stack.callback(engine.close)
            engines[name] = [engine]
        except (servers.Unavailable, RuntimeError, OSError, subprocess.SubprocessError, sqlite3.Error) as error:
            print(f"{name}: skipped: {error}")
    return engines


def words(values, convert=str):
    """A parser of values that are separated by commas."""
    def parse(text):
        parsed = [convert(word) for word in text.split(",") if word]
        if values and not set(parsed) <= set(values):
            raise argparse.ArgumentTypeError(f"one or more of {','.join(values)} expected")
        return parsed

    return parse


def main():
    cores = os.cpu_count()
    parser = argparse.ArgumentParser()
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--runs", type=int, default=3, help="cold executions of each query")
    parser.add_argument("--memory", default="1G", help="memory of each engine, for example 512M")
    parser.add_argument("--max-seconds", type=float, default=60.0, help="time limit of an execution")
    parser.add_argument("--parts", type=words(PARTS), default=PARTS[:3],
                        help=f"some of {','.join(PARTS)}; default: all but the last")
    parser.add_argument("--peers", type=words(INDEX_PEERS), default=INDEX_PEERS,
                        help=f"some of {','.join(INDEX_PEERS)}; DuckDB always runs")
    parser.add_argument("--duckdb-threads", type=words(None, int), default=[cores, 4 * cores], help="for example 2,8")
    parser.add_argument("--json")
    arguments = parser.parse_args()
    # Stops the servers, as an interrupt does.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    data = tpch.generate(arguments.scale)
    with contextlib.ExitStack() as stack:
        bench = Bench(arguments, prepare(arguments, data, stack))
        if "sweep" in arguments.parts:
            sweep(bench, tpch.duckdb_over_files(data))
        if "queries" in arguments.parts:
            queries(bench)
        if "simulated" in arguments.parts:
            simulated(bench, data)
        if "devices" in arguments.parts:
            devices(bench, data / "keyaki")
    for line in bench.slow:
        print(f"auto is slow: {line}")
    bench.results.write(arguments.json)
    if bench.failures:
        sys.exit("\n".join(bench.failures))


if __name__ == "__main__":
    main()
