"""Clients of `keyaki serve`, against PostgreSQL with the same clients: pgbench, COPY, results, idle connections.

Both servers sync each commit, and have the same memory for their caches. PostgreSQL's programs are found in PATH or
/usr/lib/postgresql. As root, PostgreSQL runs as the user `postgres`. Run by `cargo xtask bench server`.

`--cold` measures lookups in a table of ten times the memory instead. Each server is restarted with empty caches in a control
group that limits its memory, with the page cache that it uses. Without permission for that (root), only
the caches of the servers are limited, and PostgreSQL also has the page cache of the system.
"""

import argparse
import base64
import contextlib
import glob
import os
import pathlib
import re
import shutil
import signal
import socket
import statistics
import struct
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
# Of the table of --cold: an INTEGER key, an INTEGER, and a text that cannot be compressed much.
COLD_FILLER_BYTES = 100
COLD_ROW_BYTES = 120
COLD_CLIENTS = 32


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


class Limit:
    """A control group that limits the memory of a server, the page cache included."""

    def __init__(self, name, size):
        root = pathlib.Path("/sys/fs/cgroup")
        version_1 = (root / "memory").is_dir()
        self.path = (root / "memory" if version_1 else root) / f"keyaki-bench-{os.getpid()}-{name}"
        self.path.mkdir()
        file = self.path / ("memory.limit_in_bytes" if version_1 else "memory.max")
        try:
            # In version 2, it is missing unless the memory controller is enabled for groups of the root.
            if not file.exists():
                raise OSError(f"{file} does not exist")
            file.write_text(str(size))
        except OSError:
            self.path.rmdir()
            raise

    def enter(self):
        """Called in the process of the server, before its program."""
        (self.path / "cgroup.procs").write_text(str(os.getpid()))

    def remove(self):
        for _ in range(100):
            with contextlib.suppress(OSError):
                return self.path.rmdir()
            time.sleep(0.1)


class Keyaki:
    name, user = "Keyaki", "bench"

    def __init__(self, directory, memory=MEMORY, limit=None):
        self.port = free_port()
        self.process = subprocess.Popen(
            [tpch.KEYAKI, "serve", str(directory / "keyaki"), "--listen", f"127.0.0.1:{self.port}", "--memory", memory,
             "--durability", "full", "--max-connections", str(CONNECTIONS + 100)],
            stderr=subprocess.DEVNULL, preexec_fn=limit and limit.enter)
        wait_for(self.port)

    def memory(self):
        """Bytes of the server."""
        return resident([self.process.pid])

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(120)


class PostgreSql:
    name, user = "PostgreSQL", "postgres"

    def __init__(self, directory, memory=MEMORY, limit=None):
        self.port = free_port()
        self.data = directory / "postgresql"
        self.prefix = ["runuser", "-u", "postgres", "--"] if os.geteuid() == 0 else []
        if not self.data.exists():
            self.create()
        settings = {
            "port": self.port, "listen_addresses": "'127.0.0.1'", "unix_socket_directories": "''", "shared_buffers": memory,
            "max_connections": CONNECTIONS + 100, "max_wal_size": "16GB", "checkpoint_timeout": "30min",
            "maintenance_work_mem": "1GB", "wal_buffers": "64MB", "effective_cache_size": "8GB", "work_mem": "64MB",
            "random_page_cost": "1.1",
        }
        with open(self.data / "postgresql.conf", "a") as file:
            file.writelines(f"{name} = {value}\n" for name, value in settings.items())
        self.process = subprocess.Popen([*self.prefix, program("postgres"), "-D", str(self.data)],
                                        stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL, cwd="/",
                                        preexec_fn=limit and limit.enter)
        wait_for(self.port)
        # It listens before it has recovered.
        while subprocess.run([program("pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(self.port)]).returncode == 1:
            time.sleep(0.1)

    def create(self):
        self.data.mkdir()
        if self.prefix:
            shutil.chown(self.data, "postgres", "postgres")
        command = [program("initdb"), "--auth=trust", "--username=postgres", "--locale=C", "--encoding=UTF8", str(self.data)]
        subprocess.run([*self.prefix, *command], check=True, stdout=subprocess.DEVNULL, cwd="/")

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
        ("TPC-B, prepared", ["-M", "prepared", "--max-tries=1000"], [1, 8, 32]),
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


def binary_result(results, servers):
    """A result by the extended protocol, in the binary format. One client only receives it, the other one is libpq, which
    makes an object of each row but does not convert values."""
    query = f"SELECT l_orderkey, l_partkey, l_quantity, l_shipdate, l_comment FROM lineitem LIMIT {ROWS}"
    counts = set()

    def kept(server):
        with connect(server) as connection:
            start = time.perf_counter()
            result = connection.pgconn.exec_params(query.encode(), None, result_format=1)
            elapsed = time.perf_counter() - start
            counts.add(result.ntuples)
            return elapsed

    # The first execution fills the cache.
    for server in servers:
        received(server, query)
    only_received = alternated(servers, lambda server: received(server, query), rounds=5)
    measured = alternated(servers, kept, rounds=5)
    if len(counts) != 1:
        sys.exit(f"the numbers of rows differ: {counts}")
    name = f"SELECT, extended protocol, binary, {counts.pop():,} rows of 5 columns"
    results.add(name, "time", "s", *only_received, "PostgreSQL")
    results.add(f"{name}, kept by libpq", "time", "s", *measured, "PostgreSQL")
    return name, query, only_received[0]


def received(server, query):
    """Seconds until a client without a library has received the result of a query. It keeps none of it."""
    ready = b"Z\0\0\0\x05I"

    def message(kind, body):
        return kind + struct.pack("!i", 4 + len(body)) + body

    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        buffer = bytearray(1 << 20)

        def receive():
            """Reads to the end of the answer."""
            end = b""
            while end != ready:
                count = connection.recv_into(buffer)
                # ErrorResponse, in place of the answer to the first message.
                if count == 0 or not end and buffer[0] == ord("E"):
                    sys.exit(f"{server.name}: the query has failed")
                end = (end + buffer[max(0, count - len(ready)):count])[-len(ready):]

        startup = struct.pack("!i", 3 << 16) + f"user\0{server.user}\0database\0postgres\0\0".encode()
        connection.sendall(message(b"", startup))
        receive()
        start = time.perf_counter()
        # Parse, Bind with binary results, Describe, Execute, Sync.
        connection.sendall(message(b"P", b"\0" + query.encode() + b"\0\0\0") + message(b"B", b"\0\0\0\0\0\0\0\1\0\1")
                           + message(b"D", b"P\0") + message(b"E", b"\0\0\0\0\0") + message(b"S", b""))
        receive()
        return time.perf_counter() - start


def in_process(results, directory, name, query, served):
    """The same query without a server, which must not run."""
    harness = subprocess.Popen([tpch.HARNESS, "session", str(directory / "keyaki"), "--memory-mib", "2048"],
                               stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with harness:
        # The first execution fills the cache.
        answers = [answer(harness, f"time {query}") for _ in range(6)]
        harness.stdin.close()
    results.add(name, "time", "s", served, statistics.median(map(float, answers[1:])) / 1e3, "Keyaki in process")


def answer(harness, line):
    harness.stdin.write(f"{line}\n")
    harness.stdin.flush()
    text = harness.stdout.readline().strip()
    if not text:
        sys.exit("the harness has ended")
    return text


def cold(results, directory, memory_mib, seconds):
    """Lookups by key in a table of ten times the memory, from empty caches."""
    memory = memory_mib << 20
    count = 10 * memory // COLD_ROW_BYTES
    script = directory / "lookup.sql"
    script.write_text(f"\\set id random(1, {count})\nSELECT v FROM cold WHERE id = :id;\n")
    script.chmod(0o644)
    rates, is_limited = [], True
    for kind in [Keyaki, PostgreSql]:
        server = kind(directory)
        try:
            load_cold(server, count)
        finally:
            server.stop()
        drop_page_cache()
        try:
            limit = Limit(kind.name, memory)
        except OSError as problem:
            print(f"the memory of {kind.name} is not limited: {problem}")
            limit, is_limited = None, False
        # Of Keyaki, the program and 32 connections need memory beside the cache. PostgreSQL's other cache is that of the system.
        cache = max(memory_mib - 96, memory_mib // 2) if kind is Keyaki else memory_mib // 4 if limit else memory_mib
        server = kind(directory, f"{cache}MB", limit)
        try:
            rates.append(rate(server, seconds, "-c", str(COLD_CLIENTS), "-j", "2", "-M", "prepared", "-f", str(script)))
        finally:
            server.stop()
            if limit:
                limit.remove()
    limits = "memory" if is_limited else "own caches"
    name = f"cold lookups, {count:,} rows of {COLD_ROW_BYTES} bytes, {memory_mib} MiB of {limits}, {COLD_CLIENTS} clients"
    results.add(name, "rate", "1/s", *rates, "PostgreSQL", lower_is_better=False)


def load_cold(server, count):
    block = 10_000
    with connect(server) as connection:
        connection.execute("CREATE TABLE cold (id INTEGER PRIMARY KEY, v INTEGER, filler TEXT)")
        with connection.cursor().copy("COPY cold FROM STDIN") as copy:
            for first in range(1, count + 1, block):
                rows = min(block, count + 1 - first)
                # Six bits in each character.
                fillers = base64.b64encode(os.urandom(rows * COLD_FILLER_BYTES * 3 // 4 + 3)).decode()
                copy.write("".join(
                    f"{first + row}\t{row}\t{fillers[row * COLD_FILLER_BYTES:(row + 1) * COLD_FILLER_BYTES]}\n"
                    for row in range(rows)))
        # Of PostgreSQL: lookups would set hint bits and write the pages otherwise.
        connection.execute("VACUUM ANALYZE cold" if isinstance(server, PostgreSql) else "ANALYZE cold")
        connection.execute("CHECKPOINT")


def drop_page_cache():
    os.sync()
    try:
        pathlib.Path("/proc/sys/vm/drop_caches").write_text("3")
    except OSError as problem:
        print(f"the page cache is not empty: {problem}")


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
    parser.add_argument("--cold", action="store_true", help="only lookups in a table of ten times the memory, from empty caches")
    parser.add_argument("--cold-memory", type=int, default=256, metavar="MIB", help="memory of each server with --cold")
    parser.add_argument("--json")
    arguments = parser.parse_args()
    results = report.Report("server")
    tpch.TARGET.mkdir(parents=True, exist_ok=True)
    directory = pathlib.Path(tempfile.mkdtemp(prefix="bench-server-", dir=tpch.TARGET))
    directory.chmod(0o755)
    servers = []
    try:
        if arguments.cold:
            cold(results, directory, arguments.cold_memory, arguments.seconds)
            return results.write(arguments.json)
        servers += [Keyaki(directory), PostgreSql(directory)]
        for server in servers:
            pgbench(server, "-i", "-q", "-s", str(arguments.pgbench_scale))
            with connect(server) as connection:
                connection.execute("CHECKPOINT")
        idle(results, servers, arguments.connections)
        transactions(results, servers, arguments.seconds)
        check_balances(servers)
        copying(results, servers, arguments.scale)
        extended = binary_result(results, servers)
        while servers:
            servers.pop().stop()
        in_process(results, directory, *extended)
    finally:
        for server in servers:
            server.stop()
        shutil.rmtree(directory)
    results.write(arguments.json)


if __name__ == "__main__":
    main()
