"""Clients of `keyaki serve`, against PostgreSQL with the same clients: pgbench, COPY, results, idle connections.

Both servers sync each commit, and have the same memory for their caches. PostgreSQL's programs are found in PATH or
/usr/lib/postgresql. As root, PostgreSQL runs as the user `postgres`. Run by `cargo xtask bench server`.
"""

import argparse
import contextlib
import glob
import os
import pathlib
import re
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time

import report
import tpch

MEMORY = "2GB"
CONNECTIONS = 1000
# Of tables before the rows are copied.
LINEITEM = """CREATE TABLE lineitem (l_orderkey BIGINT, l_partkey BIGINT, l_suppkey BIGINT, l_linenumber INTEGER,
    l_quantity DECIMAL(15, 2), l_extendedprice DECIMAL(15, 2), l_discount DECIMAL(15, 2), l_tax DECIMAL(15, 2),
    l_returnflag TEXT, l_linestatus TEXT, l_shipdate DATE, l_commitdate DATE, l_receiptdate DATE, l_shipinstruct TEXT,
    l_shipmode TEXT, l_comment TEXT, PRIMARY KEY (l_orderkey, l_linenumber));
    CREATE INDEX lineitem_part ON lineitem (l_partkey, l_suppkey);
    CREATE INDEX lineitem_shipdate ON lineitem (l_shipdate)"""
ROWS = 1_000_000


def program(name):
    """The path of a program of PostgreSQL."""
    found = shutil.which(name) or next(iter(sorted(glob.glob(f"/usr/lib/postgresql/*/bin/{name}"), reverse=True)), None)
    if found is None:
        sys.exit(f"{name} is not installed (Debian and Ubuntu: apt-get install postgresql)")
    return found


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def wait_for(port):
    deadline = time.monotonic() + 60
    while True:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        if time.monotonic() > deadline:
            sys.exit("the server did not start")
        time.sleep(0.05)


class Keyaki:
    name, user = "Keyaki", "bench"

    def __init__(self, directory):
        self.port = free_port()
        self.process = subprocess.Popen(
            [tpch.KEYAKI, "serve", str(directory / "keyaki"), "--listen", f"127.0.0.1:{self.port}", "--memory", MEMORY,
             "--durability", "full", "--max-connections", str(CONNECTIONS + 100)],
            stderr=subprocess.DEVNULL)
        wait_for(self.port)

    def memory(self):
        """Bytes of the server."""
        return resident([self.process.pid])

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(120)


class PostgreSql:
    name, user = "PostgreSQL", "postgres"

    def __init__(self, directory):
        self.port = free_port()
        self.data = directory / "postgresql"
        self.data.mkdir()
        self.prefix = []
        if os.geteuid() == 0:
            shutil.chown(self.data, "postgres", "postgres")
            self.prefix = ["runuser", "-u", "postgres", "--"]
        run = lambda *command: subprocess.run([*self.prefix, *command], check=True, stdout=subprocess.DEVNULL, cwd="/")
        run(program("initdb"), "--auth=trust", "--username=postgres", "--locale=C", "--encoding=UTF8", str(self.data))
        settings = {
            "port": self.port, "listen_addresses": "'127.0.0.1'", "unix_socket_directories": "''", "shared_buffers": MEMORY,
            "max_connections": CONNECTIONS + 100, "max_wal_size": "16GB", "checkpoint_timeout": "30min",
            "maintenance_work_mem": "1GB", "wal_buffers": "64MB", "effective_cache_size": "8GB", "work_mem": "64MB",
            "random_page_cost": "1.1",
        }
        with open(self.data / "postgresql.conf", "a") as file:
            file.writelines(f"{name} = {value}\n" for name, value in settings.items())
        self.process = subprocess.Popen([*self.prefix, program("postgres"), "-D", str(self.data)],
                                        stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL, cwd="/")
        wait_for(self.port)

    def postmaster(self):
        return int((self.data / "postmaster.pid").read_text().split("\n")[0])

    def memory(self):
        """Bytes of all processes, shared pages once."""
        children = subprocess.run(["pgrep", "-P", str(self.postmaster())], capture_output=True, text=True).stdout.split()
        return resident([self.postmaster(), *map(int, children)])

    def stop(self):
        os.kill(self.postmaster(), signal.SIGINT)
        self.process.wait(120)


def resident(pids):
    """Bytes of processes; pages that they share are divided among them (PSS)."""
    total = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            rollup = pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text()
            total += int(re.search(r"^Pss:\s+(\d+) kB", rollup, re.M)[1]) * 1024
    return total


def pgbench(server, *options):
    """Runs pgbench. Returns its output."""
    command = [program("pgbench"), "-h", "127.0.0.1", "-p", str(server.port), "-U", server.user, "-n", *options, "postgres"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        print(f"{server.name}: {' '.join(options)}: {done.stderr.strip()[-300:]}")
    return done.stdout


def rate(server, seconds, *options):
    """Transactions per second."""
    found = re.search(r"tps = ([\d.]+)", pgbench(server, "-T", str(seconds), *options))
    return float(found[1]) if found else None


def alternated(servers, measure, rounds=3):
    """The medians of measurements of each server, one after the other in each round."""
    values = [[measure(server) for server in servers] for _ in range(rounds)]
    return [statistics.median(column) if all(column) else None for column in zip(*values)]


def connect(server):
    import psycopg

    return psycopg.connect(host="127.0.0.1", port=server.port, user=server.user, dbname="postgres", autocommit=True)


def transactions(results, servers, seconds):
    for name, options, clients in [
        ("select-only, prepared", ["-S", "-M", "prepared"], [1, 8, 32]),
        ("select-only, extended", ["-S", "-M", "extended"], [8]),
        ("select-only, simple", ["-S", "-M", "simple"], [8]),
        ("TPC-B, prepared", ["-M", "prepared", "--max-tries=1000"], [8, 32]),
    ]:
        for count in clients:
            measured = alternated(servers, lambda server: rate(server, seconds, "-c", str(count), "-j", "2", *options))
            results.add(f"pgbench {name}, {count} clients", "rate", "1/s", *measured, "PostgreSQL", lower_is_better=False)


def check_balances(servers):
    """The balances of TPC-B add up."""
    for server in servers:
        with connect(server) as connection:
            sums = [connection.execute(f"SELECT sum({column}) FROM pgbench_{table}").fetchone()[0]
                    for table, column in [("accounts", "abalance"), ("tellers", "tbalance"), ("branches", "bbalance"),
                                          ("history", "delta")]]
        if len({int(value or 0) for value in sums}) != 1:
            sys.exit(f"{server.name}: the balances differ: {sums}")


def copying(results, servers, scale):
    import duckdb

    data = tpch.generate(scale)
    file = data / "lineitem.csv"
    rows = duckdb.execute(f"COPY (SELECT * FROM read_parquet('{data / 'lineitem.parquet'}')) TO '{file}' (HEADER false)").fetchone()[0]
    rates = []
    for server in servers:
        with connect(server) as connection, open(file, "rb") as source:
            for statement in LINEITEM.split(";"):
                connection.execute(statement)
            start = time.perf_counter()
            with connection.cursor().copy("COPY lineitem FROM STDIN (FORMAT csv)") as copy:
                while block := source.read(1 << 20):
                    copy.write(block)
            rates.append(rows / (time.perf_counter() - start))
    file.unlink()
    results.add(f"COPY FROM STDIN, lineitem at scale {scale:g}, primary key and 2 indexes", "rate", "1/s", *rates, "PostgreSQL",
                lower_is_better=False)

    def read(server):
        query = f"SELECT l_orderkey, l_partkey, l_quantity, l_shipdate, l_comment FROM lineitem LIMIT {ROWS}"
        with connect(server) as connection:
            start = time.perf_counter()
            with connection.cursor().copy(f"COPY ({query}) TO STDOUT (FORMAT binary)") as copy:
                for _ in copy:
                    pass
            return time.perf_counter() - start

    measured = alternated(servers, read)
    results.add(f"COPY TO STDOUT, binary, {min(rows, ROWS):,} rows of 5 columns", "time", "s", *measured, "PostgreSQL")


def idle(results, servers, count):
    """The memory of further connections: the first ones fill caches, and use memory that was freed before."""
    bytes_each = []
    for server in servers:
        connections, before = [], 0
        for _ in range(2):
            before = server.memory()
            for _ in range(count):
                connections.append(connect(server))
                connections[-1].execute("SELECT abalance FROM pgbench_accounts WHERE aid = 1").fetchone()
            time.sleep(2)
        bytes_each.append((server.memory() - before) / count / 1024)
        for connection in connections:
            connection.close()
    results.add(f"{count} more idle connections after one statement", "memory each", "KiB", *bytes_each, "PostgreSQL")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--scale", type=float, default=1.0, help="TPC-H scale factor of the copied rows")
    parser.add_argument("--pgbench-scale", type=int, default=10, help="100,000 accounts for each")
    parser.add_argument("--seconds", type=int, default=10, help="of each run of pgbench")
    parser.add_argument("--connections", type=int, default=500, help="number of idle connections")
    parser.add_argument("--json")
    arguments = parser.parse_args()
    results = report.Report("server")
    tpch.TARGET.mkdir(parents=True, exist_ok=True)
    directory = pathlib.Path(tempfile.mkdtemp(prefix="bench-server-", dir=tpch.TARGET))
    directory.chmod(0o755)
    servers = []
    try:
        servers += [Keyaki(directory), PostgreSql(directory)]
        for server in servers:
            pgbench(server, "-i", "-q", "-s", str(arguments.pgbench_scale))
            with connect(server) as connection:
                connection.execute("CHECKPOINT")
        idle(results, servers, arguments.connections)
        transactions(results, servers, arguments.seconds)
        check_balances(servers)
        copying(results, servers, arguments.scale)
    finally:
        for server in servers:
            server.stop()
        shutil.rmtree(directory)
    results.write(arguments.json)


if __name__ == "__main__":
    main()
