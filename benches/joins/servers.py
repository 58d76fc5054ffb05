"""PostgreSQL and MariaDB: servers that a benchmark starts on its own data directories and stops at its end.

The directories are beside the data files. A marker file shows that all tables are loaded. The clients (`psql`, `mariadb`) connect
to a Unix socket and read statements from a pipe. Times are those of a client: they contain about 0.1 ms of communication.

A cold execution follows a restart of the server, whose files are dropped from the page cache while it is stopped. Before the
execution, a query without rows opens each table, because Keyaki reads its catalog when a database opens.
"""

import os
import pwd
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import indexed
import peers
import tpch

START_SECONDS = 120
ACCOUNT = "postgres"
MARKER = "end-of-answer"
# Writes a table as lines of columns separated by "|", which no value of TPC-H contains.
EXPORT = """
import sys, duckdb
file, pipe = sys.argv[1:]
options = "FORMAT csv, HEADER false, DELIMITER '|', QUOTE '', ESCAPE '', USE_TMP_FILE false"
duckdb.execute(f"COPY (SELECT * FROM read_parquet('{file}')) TO '{pipe}' ({options})")
"""


class Unavailable(Exception):
    """The server is not installed, or cannot run on this machine."""


class Client:
    """A client's process, which reads statements and prints rows with tabs between the values."""

    def __init__(self, command, end):
        """`end` is a command that prints a line with MARKER."""
        self.end = end
        streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        self.process = subprocess.Popen(command, **streams, text=True, start_new_session=True)

    def execute(self, sql):
        """Executes statements. Returns the rows of all of them, with values as texts."""
        self.process.stdin.write(f"{sql};\n{self.end}\n")
        self.process.stdin.flush()
        lines = []
        for line in self.process.stdout:
            line = line.removesuffix("\n")
            if line == MARKER:
                break
            lines.append(line)
        else:
            raise RuntimeError(f"the client ended: {' '.join(lines)}")
        if any(line.startswith("ERROR") for line in lines):
            error = " ".join(lines)
            raise peers.TimeLimit if "statement timeout" in error or "max_statement_time" in error else RuntimeError(error)
        return [tuple(line.split("\t")) for line in lines]

    def close(self):
        # The client may wait for the answer to a statement.
        self.process.kill()
        self.process.communicate()


class Server:
    """A server, and a client that is connected to it. Subclasses have the commands."""

    name = None

    def __init__(self, data, definitions, memory_bytes):
        self.directory = data / self.name.lower()
        self.memory_bytes = memory_bytes
        self.client, self.limit = None, None
        self.find()
        # The path of a socket has at most 107 bytes.
        self.socket = Path(tempfile.mkdtemp(prefix="keyaki-"))
        try:
            complete = self.directory.with_suffix(".complete")
            if not complete.exists():
                shutil.rmtree(self.directory, ignore_errors=True)
                self.directory.mkdir()
                self.initialize()
                self._restart()
                self._load(data, *definitions)
                complete.touch()
        except BaseException:
            self.close()
            raise

    def _load(self, data, tables, indexes):
        for statement in self.before_load():
            self.client.execute(statement)
        pipe = self.socket / "rows"
        os.mkfifo(pipe)
        for definition in tables:
            table = definition.split()[2]
            command = [sys.executable, "-c", EXPORT, data / f"{table}.parquet", pipe]
            with subprocess.Popen(command, stdout=subprocess.DEVNULL) as export:
                try:
                    self.client.execute(self.load(self.dialect(definition), table, pipe))
                    if export.wait() != 0:
                        raise RuntimeError(f"{table} is not complete")
                finally:
                    export.kill()
        for index in indexes:
            self.client.execute(self.dialect(index))
        for statement in self.after_load():
            self.client.execute(statement)

    def _restart(self):
        self._stop()
        if self.directory.exists():
            peers.drop_page_cache(self.directory)
        self.start()
        self.client = self.connect()
        self.limit = None

    def _stop(self):
        if self.client is not None:
            self.client.close()
            self.client = None
        self.stop()

    def _timed(self, sql, limit):
        if limit != self.limit:
            self.client.execute(self.limit_statement(limit))
            self.limit = limit
        start = time.perf_counter()
        rows = self.client.execute(sql)
        return rows, time.perf_counter() - start

    def cold(self, sql, limit=None):
        self._restart()
        for table in tpch.TABLES:
            self.client.execute(f"SELECT * FROM {table} LIMIT 0")
        os.sync()
        return self._timed(sql, limit)

    def warm(self, sql, runs, limit=None):
        if self.client is None:
            self._restart()
        return [self._timed(sql, limit)[1] for _ in range(runs + 1)][1:]

    def close(self):
        self._stop()
        shutil.rmtree(self.socket, ignore_errors=True)


class Postgres(Server):
    """PostgreSQL. It refuses to run as root, and then runs as the user postgres."""

    name = "PostgreSQL"

    def find(self):
        versions = sorted(Path("/usr/lib/postgresql").glob("*/bin/pg_ctl"), key=lambda path: int(path.parts[4].split(".")[0]))
        found = versions[-1] if versions else shutil.which("pg_ctl")
        if not found or not shutil.which("psql"):
            raise Unavailable("not installed (apt-get install postgresql)")
        self.programs = Path(found).parent
        if os.geteuid() == 0:
            try:
                pwd.getpwnam(ACCOUNT)
            except KeyError:
                raise Unavailable(f"the user {ACCOUNT} does not exist, and the server cannot run as root") from None

    def _run(self, program, *arguments):
        command = [str(self.programs / program), "-D", str(self.directory), *arguments]
        if os.geteuid() == 0:
            command = ["su", ACCOUNT, "-s", "/bin/sh", "-c", shlex.join(command)]
        # The server inherits the streams of `pg_ctl start`: a pipe would not end before the server.
        with tempfile.TemporaryFile("w+") as output:
            status = subprocess.run(command, cwd="/", stdin=subprocess.DEVNULL, stdout=output, stderr=output).returncode
            output.seek(0)
            if status != 0:
                raise RuntimeError(f"{program}: {output.read().strip()}")

    def initialize(self):
        if os.geteuid() == 0:
            shutil.chown(self.directory, ACCOUNT)
        self._run("initdb", "--auth=trust", "--username=postgres", "--encoding=UTF8", "--locale=C")

    def start(self):
        if os.geteuid() == 0:
            shutil.chown(self.socket, ACCOUNT)
        cores = os.cpu_count()
        settings = {
            "listen_addresses": "", "unix_socket_directories": self.socket, "shared_buffers": f"{self.memory_bytes >> 10}kB",
            "work_mem": f"{self.memory_bytes >> 14}kB", "maintenance_work_mem": f"{self.memory_bytes >> 12}kB",
            # Costs and prefetching for flash.
            "random_page_cost": 1.1, "effective_io_concurrency": 256,
            "max_parallel_workers": cores, "max_parallel_workers_per_gather": cores, "jit": "off",
            # The data are loaded once and not changed. Nothing may run beside the queries.
            "autovacuum": "off", "fsync": "off", "wal_level": "minimal", "max_wal_senders": 0, "max_wal_size": "4GB",
        }
        options = " ".join(shlex.quote(f"--{name}={value}") for name, value in settings.items())
        log = self.directory / "server.log"
        self._run("pg_ctl", "start", "--wait", f"--timeout={START_SECONDS}", f"--log={log}", f"--options={options}")

    def stop(self):
        if (self.directory / "postmaster.pid").exists():
            self._run("pg_ctl", "stop", "--wait", "--mode=fast", f"--timeout={START_SECONDS}")

    def connect(self):
        options = ["--no-psqlrc", "--quiet", "--no-align", "--tuples-only", "--field-separator=\t"]
        return Client(["psql", *options, "--host", str(self.socket), "--username=postgres", "postgres"], f"\\echo {MARKER}")

    def limit_statement(self, limit):
        return f"SET statement_timeout = {int(1000 * (limit or 0))}"

    def dialect(self, definition):
        return definition

    def before_load(self):
        return []

    def load(self, definition, table, pipe):
        # The log skips a table that the same transaction creates.
        return f"BEGIN; {definition};\n\\copy {table} FROM '{pipe}' (DELIMITER '|')\nCOMMIT"

    def after_load(self):
        return ["VACUUM (FREEZE, ANALYZE)", "CHECKPOINT"]


class MariaDb(Server):
    """MariaDB with InnoDB, which reads with direct I/O."""

    name = "MariaDB"
    process = None

    def find(self):
        if not all(map(shutil.which, ["mariadbd", "mariadb", "mariadb-install-db"])):
            raise Unavailable("not installed (apt-get install mariadb-server)")

    def _account(self):
        return ["--user=root"] if os.geteuid() == 0 else []

    def initialize(self):
        command = ["mariadb-install-db", "--no-defaults", f"--datadir={self.directory}", "--skip-test-db",
                   "--auth-root-authentication-method=normal", *self._account()]
        subprocess.run(command, check=True, capture_output=True)

    def start(self):
        part = self.memory_bytes >> 4
        options = {
            "datadir": self.directory, "socket": self.socket / "socket", "pid-file": self.socket / "pid",
            "innodb-buffer-pool-size": self.memory_bytes, "innodb-log-file-size": 1 << 30,
            "sort-buffer-size": part, "join-buffer-size": part, "join-buffer-space-limit": 4 * part,
            "tmp-table-size": part, "max-heap-table-size": part,
            # A restart empties the buffer pool.
            "innodb-buffer-pool-dump-at-shutdown": 0, "innodb-buffer-pool-load-at-startup": 0,
            # The data are loaded once and not changed.
            "innodb-flush-log-at-trx-commit": 0, "innodb-doublewrite": 0, "local-infile": 1,
            "character-set-server": "latin1", "collation-server": "latin1_bin",
        }
        command = ["mariadbd", "--no-defaults", "--skip-networking", "--skip-log-bin", *self._account()]
        command += [f"--{name}={value}" for name, value in options.items()]
        with open(self.directory / "server.log", "ab") as log:
            # In a session of its own, so that an interrupt does not reach it before the benchmark stops it.
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
        ping = [*self._client(), "--execute", "SELECT 1"]
        for _ in range(10 * START_SECONDS):
            if self.process.poll() is not None:
                raise RuntimeError(f"mariadbd ended, see {self.directory}/server.log")
            if subprocess.run(ping, capture_output=True).returncode == 0:
                return
            time.sleep(0.1)
        raise RuntimeError(f"mariadbd does not answer, see {self.directory}/server.log")

    def stop(self):
        if self.process is not None:
            self.process.terminate()
            self.process.wait()
            self.process = None

    def _client(self):
        return ["mariadb", "--no-defaults", f"--socket={self.socket}/socket", "--user=root"]

    def connect(self):
        options = ["--batch", "--raw", "--skip-column-names", "--unbuffered", "--force", "--local-infile=1"]
        client = Client([*self._client(), *options], f"SELECT '{MARKER}';")
        client.execute("CREATE DATABASE IF NOT EXISTS tpch; USE tpch")
        return client

    def limit_statement(self, limit):
        return f"SET max_statement_time = {limit or 0}"

    def dialect(self, definition):
        # No text of TPC-H is longer. Texts without a limit would not fit into temporary tables in memory.
        return indexed.without_include(definition).replace(" TEXT", " VARCHAR(255)")

    def before_load(self):
        return ["SET unique_checks = 0", "SET foreign_key_checks = 0"]

    def load(self, definition, table, pipe):
        return f"{definition}; LOAD DATA LOCAL INFILE '{pipe}' INTO TABLE {table} FIELDS TERMINATED BY '|' ESCAPED BY ''"

    def after_load(self):
        # A slow shutdown purges and merges everything that later queries would have to.
        return [f"ANALYZE TABLE {', '.join(tpch.TABLES)}", "SET GLOBAL innodb_fast_shutdown = 0"]
