"""Keyaki and DuckDB in benchmarks over TPC-H data: databases that are loaded once, cold and warm executions, time limits.

An engine has two methods. `cold` executes a query while nothing is cached, and returns its rows and seconds: Keyaki runs in a new
process and reads with direct I/O, DuckDB opens a new connection and reads files that are not in the page cache. `warm` executes a
query several times, and returns the seconds of all executions but the first, which fills the cache.
"""

import os
import subprocess
import threading

import tpch


UNITS = {"K": 10, "M": 20, "G": 30}


def memory_bytes(text):
    """The bytes of a size such as 512M."""
    return int(text[:-1]) << UNITS[text[-1]]


class TimeLimit(Exception):
    """A query ran longer than its time limit."""


def drop_page_cache(path):
    """Writes the dirty pages of a file, or of all files of a directory, and drops them from the kernel's page cache."""
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    for file in files:
        descriptor = os.open(file, os.O_RDONLY)
        try:
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def keyaki_database(data):
    """The database of all tables, with their keys and indexes, on a measured device. That of an earlier run is kept."""
    database, complete = data / "keyaki", data / "keyaki.complete"
    if not complete.exists():
        tpch.load(data, database)
        complete.touch()
    if not (database / "calibration.json").exists():
        subprocess.run([tpch.KEYAKI, "calibrate", "--quick", database], check=True, stdout=subprocess.DEVNULL)
    return database


def duckdb_database(data):
    """The database of all tables, without keys and indexes. An earlier run's database is kept."""
    import duckdb

    path = data / "peer.duckdb"
    if path.exists():
        return path
    temporary = path.with_suffix(".incomplete")
    temporary.unlink(missing_ok=True)
    connection = duckdb.connect(str(temporary))
    for table in tpch.TABLES:
        connection.execute(f"CREATE TABLE {table} AS SELECT * FROM read_parquet('{data}/{table}.parquet')")
    connection.close()
    temporary.rename(path)
    return path


def limited(connection, sql, limit):
    """Runs a query in DuckDB or SQLite, and interrupts it after `limit` seconds. Returns its rows and seconds."""
    if limit is None:
        return tpch.timed(connection, sql)
    interrupted = threading.Event()

    def interrupt():
        interrupted.set()
        connection.interrupt()

    timer = threading.Timer(limit, interrupt)
    timer.start()
    try:
        return tpch.timed(connection, sql)
    except Exception as error:
        if interrupted.is_set():
            raise TimeLimit from error
        raise
    finally:
        timer.cancel()
        timer.join()


class Keyaki:
    """Keyaki with settings of the session and options of the program."""

    def __init__(self, database, settings=(), options=()):
        self.database = database
        self.settings = [f"SET {name} = '{value}'" for name, value in dict(settings).items()]
        self.options = options

    def cold(self, sql, limit=None):
        return self._execute([sql], limit)[0]

    def warm(self, sql, runs, limit=None):
        return [seconds for _, seconds in self._execute([sql] * (runs + 1), limit)][1:]

    def _execute(self, queries, limit):
        timeout = limit and limit * len(queries)
        try:
            results = tpch.keyaki(self.database, [*self.settings, *queries], *self.options, timeout=timeout)
        except subprocess.TimeoutExpired as error:
            raise TimeLimit from error
        return [([tuple(row.values()) for row in rows], seconds) for rows, seconds in results]


class DuckDb:
    """DuckDB on a database file, with options of its configuration.

    It is closed between queries, because connections of one process share their configuration and cache.
    """

    def __init__(self, path, **config):
        self.path, self.config = path, config

    def cold(self, sql, limit=None):
        drop_page_cache(self.path)
        with self._connect() as connection:
            rows, seconds = limited(connection, sql, limit)
        return [tuple(map(tpch.plain, row)) for row in rows], seconds

    def warm(self, sql, runs, limit=None):
        with self._connect() as connection:
            return [limited(connection, sql, limit)[1] for _ in range(runs + 1)][1:]

    def _connect(self):
        import duckdb

        return duckdb.connect(str(self.path), read_only=True, config=self.config)
