"""Effect of scans on the CPU caches of queries that follow them or run beside them: Keyaki with its governor off and on, SQLite and
DuckDB, in one run with interleaved repetitions. Run by `cargo xtask bench llc-sql`.

- Query order: A after A, and A after B, whose data is many times as large as the cache.
- A join by index, after itself and after a large scan.
- Point lookups on one thread, alone and beside a full scan on another thread.
- TPC-H Q14 and Q18 at scale 0.01: misses of a simulated last-level cache, from traces of Keyaki's memory accesses.

Figures are medians with quartiles. The last-level cache may be shared with other virtual machines. Their influence shows in the
peers' figures and in the quartiles.
"""

import argparse
import re
import shutil
import sqlite3
import statistics
import subprocess
import time

import report
import tpch

A_ROWS, B_ROWS, PROBES = 800_000, 16_000_000, 1_000
# The same 50-bit numbers in every engine, which no encoding compresses: A has 5 MB, B 100 MB.
VALUE = "(value * value * 7919 % 1000000007) * 1000000 + value * value % 999983"
QUERIES = {
    "scan of A": "SELECT sum(val % 1000) FROM a",
    "index join with A": "SELECT count(a.val) FROM probes JOIN a ON a.id = probes.id",
}
B = "SELECT sum(val % 1000) FROM b"
LOOKUP = "SELECT val FROM a WHERE id = ?"
# As much work as a scan, but 10 MB of memory traffic at most: the effect of a busy second core alone.
COMPUTE = "SELECT count(*) FROM generate_series(1, 10000000) WHERE value % 7 = 3"
ENGINES = ["Keyaki, governor off", "Keyaki, governor on", "SQLite", "DuckDB"]


class Keyaki:
    """A process that runs and times statements (`keyaki-harness session`)."""

    def __init__(self, database):
        command = [tpch.HARNESS, "session", str(database), "--memory-mib", "2048"]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)

    def ask(self, line):
        self.process.stdin.write(" ".join(line.split("\n")) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline().strip()
        if not answer:
            raise RuntimeError(f"no answer to: {line}")
        return answer

    def govern(self, mode):
        self.ask(f"sql SET keyaki.cache_governor = {mode}")

    def time(self, sql):
        return float(self.ask(f"time {sql}"))

    def close(self):
        self.process.stdin.close()
        self.process.wait()


class Peer:
    def __init__(self, connection):
        self.connection = connection

    def time(self, sql):
        start = time.perf_counter()
        self.connection.execute(sql).fetchall()
        return (time.perf_counter() - start) * 1e3


def create(directory):
    """Creates the tables a, b and probes in all three databases, unless an earlier run did."""
    import duckdb

    done = directory / "complete"
    if done.exists():
        return
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    series = "generate_series(1, {})"
    statements = ["CREATE TABLE a (id BIGINT PRIMARY KEY, val BIGINT NOT NULL)",
                  "CREATE TABLE b (id BIGINT PRIMARY KEY, val BIGINT NOT NULL)",
                  "CREATE TABLE probes (number BIGINT PRIMARY KEY, id BIGINT NOT NULL)"]
    fill = {"a": A_ROWS, "b": B_ROWS}
    probes = f"SELECT value, value * 104729 % {A_ROWS} + 1 FROM " + series.format(PROBES)
    database = directory / "keyaki"
    command = [tpch.KEYAKI, str(database)]
    for statement in statements:
        command += ["-c", statement]
    for table, rows in fill.items():
        command += ["-c", f"INSERT INTO {table} SELECT value, {VALUE} FROM " + series.format(rows)]
    command += ["-c", f"INSERT INTO probes {probes}", "-c", "ANALYZE", "-c", "CHECKPOINT"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    duck = duckdb.connect(str(directory / "duck"))
    duck.execute("SET enable_progress_bar = false")
    lite = sqlite3.connect(directory / "lite")
    for statement in statements:
        duck.execute(statement)
        lite.execute(statement)
    numbers = "(WITH RECURSIVE n(value) AS (SELECT 1 UNION ALL SELECT value + 1 FROM n WHERE value < {}) SELECT * FROM n)"
    for table, rows in fill.items():
        duck.execute(f"INSERT INTO {table} SELECT value, {VALUE} FROM range(1, {rows} + 1) t(value)")
        lite.execute(f"INSERT INTO {table} SELECT value, {VALUE} FROM " + numbers.format(rows))
    lite.execute("INSERT INTO probes " + probes.replace(series.format(PROBES), numbers.format(PROBES)))
    duck.execute("INSERT INTO probes " + probes.replace(series.format(PROBES), f"range(1, {PROBES} + 1) t(value)"))
    lite.commit()
    lite.close()
    duck.close()
    done.touch()


def quartiles(values):
    low, median, high = statistics.quantiles(values, n=4, method="inclusive")
    return f"{median:.2f} ({low:.2f}-{high:.2f})"


def order(results, engines, keyaki, sql, what, repetitions):
    """Times A after A, and A after B, in turn for each engine."""
    alone, after, other = ({name: [] for name in ENGINES} for _ in range(3))
    paused = []
    for repetition in range(repetitions + 1):
        for name in ENGINES:
            if name.startswith("Keyaki"):
                keyaki.govern(name.rsplit(" ", 1)[1])
            engine = engines[name]
            engine.time(sql)
            times = [engine.time(sql), engine.time(B), engine.time(sql)]
            if repetition > 0:
                for sink, value in zip((alone, other, after), times):
                    sink[name].append(value)
        # A pause as long as B: the effect of other users of the cache.
        keyaki.time(sql)
        end = time.perf_counter() + times_of_b(other, repetition)
        while time.perf_counter() < end:
            pass
        if repetition > 0:
            paused.append(keyaki.time(sql))
    print(f"\n{what} ({repetitions} interleaved repetitions): ms, median and quartiles")
    slower = {}
    for name in ENGINES:
        slower[name] = statistics.median(after[name]) / statistics.median(alone[name]) - 1
        print(f"{name:24} after itself {quartiles(alone[name]):24} after B {quartiles(after[name]):24} "
              f"slowdown {100 * slower[name]:5.1f} %   B {quartiles(other[name])}")
    off, on = ENGINES[:2]
    pause = statistics.median(paused) / statistics.median(alone[on]) - 1
    print(f"{'Keyaki, no query between':24} after a pause of equal length {quartiles(paused)}, slowdown {100 * pause:.1f} %")
    if slower[off] > 0:
        print(f"with the governor on, {100 * slower[on] / slower[off]:.0f} % of the unprotected slowdown remains")
    results.add(what, "slowdown after B", "share", slower[on], pause, "a pause")
    price = statistics.median(other[on]) / statistics.median(other[off]) - 1
    print(f"time of B with the governor on: {100 * price:+.1f} %")
    for name in ENGINES[2:]:
        results.add(what, "slowdown after B", "share", slower[on], slower[name], name)
    results.add(what, "slowdown after B", "share", slower[on], slower[off], "unprotected")
    results.add(what, "time of B", "ms", statistics.median(other[on]), statistics.median(other[off]), "unprotected")


def times_of_b(other, repetition):
    """Seconds of Keyaki's latest B."""
    return other[ENGINES[0]][-1] / 1e3 if repetition > 0 else 0.05


def lookups(results, keyaki, count, repetitions):
    """Median and 99th percentile of lookups alone and beside a scan, in turn."""
    names = ["alone", "beside a computation", "beside a scan, governor off", "beside a scan, governor on"]
    samples = {name: [] for name in names}
    for repetition in range(repetitions + 1):
        for name in samples:
            keyaki.govern("off" if name.endswith("off") else "on")
            if name == "alone":
                answer = keyaki.ask(f"lookups {count} {A_ROWS} {LOOKUP}")
            else:
                other = COMPUTE if name.endswith("computation") else B
                answer = keyaki.ask(f"lookups-beside {count} {A_ROWS} {LOOKUP} ;; {other}")
            if repetition > 0:
                samples[name].append([float(number) for number in answer.split()])
    print(f"\nPoint lookups ({repetitions} times {count}): microseconds")
    middle = lambda name, place: statistics.median(sample[place] for sample in samples[name])
    for name, rows in samples.items():
        shown = [quartiles([row[place] for row in rows]) for place in range(2)]
        print(f"{name:30} median {shown[0]:26} p99 {shown[1]:26} {middle(name, 1) / middle('alone', 1):.2f}x; "
              f"scans per second {middle(name, 2):.2f}")
    for name in names[1:]:
        results.add(f"lookups {name}", "p99", "µs", middle(name, 1), middle("alone", 1), "alone")
    off, on = names[2:]
    results.add(f"lookups {on}", "p99", "µs", middle(on, 1), middle(names[1], 1), "computation")
    results.add("the scan beside lookups", "rate", "1/s", middle(on, 2), middle(off, 2), "unprotected",
                lower_is_better=False)


def simulated(results, directory):
    """Misses of the published machine's last-level cache, from traces of TPC-H queries."""
    data = tpch.generate(0.01)
    database = directory / "tpch"
    if not database.exists():
        tpch.load(data, database)
    print("\nTPC-H at scale 0.01, traced: misses of a simulated last level of 10 MiB when a query is repeated after a sweep")
    for number in (14, 18):
        trace = directory / f"q{number}.trace"
        command = [tpch.KEYAKI, "trace", str(database), "--memory", str(trace), "--", tpch.QUERIES[number]]
        subprocess.run(command, check=True, capture_output=True)
        command = [tpch.KEYAKI, "trace", "--replay", str(trace)]
        text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        print(f"Q{number}:\n{text}")
        line = next(line for line in text.splitlines() if line.strip().startswith("all "))
        without, kept = (float(share) for share in re.findall(r"([\d.]+) %", line))
        results.add(f"simulated, Q{number}", "missed", "%", kept, without, "unprotected")


def main():
    import duckdb

    parser = argparse.ArgumentParser()
    parser.add_argument("--repetitions", type=int, default=25)
    parser.add_argument("--lookups", type=int, default=3000)
    parser.add_argument("--json")
    arguments = parser.parse_args()
    results = report.Report("llc-sql")
    directory = tpch.TARGET / "caches"
    create(directory)
    calibration = subprocess.run([tpch.KEYAKI, "calibrate", "--cache", str(directory / "keyaki")], check=True,
                                 capture_output=True, text=True).stdout
    print("\n".join(calibration.splitlines()[-3:-1]))
    keyaki = Keyaki(directory / "keyaki")
    lite = sqlite3.connect(directory / "lite")
    lite.execute("PRAGMA cache_size = -1000000")
    duck = duckdb.connect(str(directory / "duck"), read_only=True)
    duck.execute("SET enable_progress_bar = false")
    engines = {ENGINES[0]: keyaki, ENGINES[1]: keyaki, ENGINES[2]: Peer(lite), ENGINES[3]: Peer(duck)}
    for table in ("a", "b", "probes"):
        keyaki.ask(f"sql WARM TABLE {table}")
    for sql, what in ((sql, what) for what, sql in QUERIES.items()):
        keyaki.ask(f"sql SET keyaki.join = {'index' if 'JOIN' in sql else 'auto'}")
        order(results, engines, keyaki, sql, what, arguments.repetitions)
    lookups(results, keyaki, arguments.lookups, max(arguments.repetitions // 3, 3))
    keyaki.close()
    simulated(results, directory)
    results.write(arguments.json)


if __name__ == "__main__":
    main()
