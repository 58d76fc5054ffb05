"""Peers that join along indexes: the definitions of Keyaki's tables and indexes for their dialects, and SQLite.

Every peer has the keys and indexes of Keyaki's database. Where a dialect lacks INCLUDE, the included columns follow the key.
"""

import re
import sqlite3
import subprocess

import peers
import tpch

FETCH_ROWS = 50_000


def definitions(database):
    """The CREATE TABLE and CREATE INDEX statements of a Keyaki database, as two lists."""
    command = [tpch.KEYAKI, str(database), "--no-create", "--command", ".schema"]
    schema = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    statements = [statement.strip() for statement in schema.split(";\n") if statement.strip()]
    tables = [statement for statement in statements if statement.startswith("CREATE TABLE")]
    return tables, [statement for statement in statements if statement not in tables]


def without_include(index):
    """CREATE INDEX with the included columns at the end of the key."""
    return re.sub(r"\) INCLUDE \(", ", ", index)


class Sqlite:
    """SQLite on a database file. Tables with a key of several columns are stored in its order (WITHOUT ROWID), as in Keyaki."""

    def __init__(self, data, definitions, memory_bytes):
        self.path, self.memory_bytes, self.connection = data / "peer.sqlite", memory_bytes, None
        if not self.path.exists():
            self._load(data, *definitions)

    def _load(self, data, tables, indexes):
        temporary = self.path.with_suffix(".incomplete")
        temporary.unlink(missing_ok=True)
        source = tpch.duckdb_over_files(data)
        connection = sqlite3.connect(temporary)
        connection.execute("PRAGMA journal_mode = OFF")
        connection.execute("PRAGMA synchronous = OFF")
        for table in tables:
            rowid = re.sub(r"BIGINT PRIMARY KEY", "INTEGER PRIMARY KEY", table)
            connection.execute(rowid if rowid != table else f"{table} WITHOUT ROWID")
        for table in tpch.TABLES:
            columns = source.execute(f"DESCRIBE {table}").fetchall()
            # SQLite has neither decimals nor dates.
            cast = lambda type: "DOUBLE" if type.startswith("DECIMAL") else "VARCHAR" if type == "DATE" else type
            values = ", ".join(f"{name}::{cast(type)}" for name, type, *_ in columns)
            insert = f"INSERT INTO {table} VALUES ({', '.join('?' * len(columns))})"
            source.execute(f"SELECT {values} FROM {table}")
            while rows := source.fetchmany(FETCH_ROWS):
                connection.executemany(insert, rows)
        for index in indexes:
            connection.execute(without_include(index))
        # Samples as many rows of each index as SQLite's documentation recommends at most.
        connection.execute("PRAGMA analysis_limit = 1000")
        connection.execute("ANALYZE")
        connection.commit()
        connection.close()
        temporary.rename(self.path)

    def _connect(self):
        self.connection = sqlite3.connect(f"file:{self.path}?mode=ro", uri=True)
        self.connection.execute(f"PRAGMA cache_size = -{self.memory_bytes // 1024}")
        # Reads the catalog, which Keyaki reads when a database opens.
        self.connection.execute("SELECT count(*) FROM sqlite_schema").fetchall()

    def cold(self, sql, limit=None):
        self.close()
        peers.drop_page_cache(self.path)
        self._connect()
        return peers.limited(self.connection, sql, limit)

    def warm(self, sql, runs, limit=None):
        if self.connection is None:
            self._connect()
        return [peers.limited(self.connection, sql, limit)[1] for _ in range(runs + 1)][1:]

    def close(self):
        if self.connection is not None:
            self.connection.close()
            self.connection = None
