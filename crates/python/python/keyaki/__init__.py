"""Keyaki: an embedded SQL database for data larger than memory on flash.

>>> import keyaki
>>> con = keyaki.connect()                          # a temporary database; connect("shop") opens a directory
>>> _ = con.execute("CREATE TABLE orders (id BIGINT PRIMARY KEY, total DECIMAL(12,2))")
>>> _ = con.executemany("INSERT INTO orders VALUES (?, ?)", [(1, "9.90"), (2, "20.00")])
>>> con.commit()
>>> con.execute("SELECT sum(total) FROM orders").fetchone()
(Decimal('29.90'),)

The module implements DB-API 2.0 (PEP 249). docs/python.md describes it.
"""

from __future__ import annotations

import atexit as _atexit
import importlib as _importlib
import os as _os
import sys as _sys

from typing import TYPE_CHECKING as _TYPE_CHECKING, Any as _Any

from . import _keyaki
from ._exceptions import (
    DatabaseError,
    DataError,
    Error,
    IntegrityError,
    InterfaceError,
    InternalError,
    NotSupportedError,
    OperationalError,
    ProgrammingError,
    Warning,
)
from ._plan import explain as _explain
from ._keyaki import Connection, Cursor, Transaction, connect
from ._progress import Progress
from ._types import (
    BINARY,
    DATETIME,
    NUMBER,
    ROWID,
    STRING,
    Binary,
    Date,
    DateFromTicks,
    Interval,
    Json,
    Time,
    TimeFromTicks,
    Timestamp,
    TimestampFromTicks,
)

__version__: str = _keyaki.VERSION

apilevel = "2.0"
# Threads may share the module and connections. One statement of a connection runs at a time.
threadsafety = 2
paramstyle = "qmark"

__all__ = [
    "BINARY",
    "DATETIME",
    "NUMBER",
    "ROWID",
    "STRING",
    "Binary",
    "Connection",
    "Cursor",
    "DataError",
    "DatabaseError",
    "Date",
    "DateFromTicks",
    "Error",
    "IntegrityError",
    "InterfaceError",
    "InternalError",
    "Interval",
    "Json",
    "NotSupportedError",
    "OperationalError",
    "ProgrammingError",
    "Progress",
    "Time",
    "TimeFromTicks",
    "Timestamp",
    "TimestampFromTicks",
    "Transaction",
    "Warning",
    "apilevel",
    "connect",
    "paramstyle",
    "threadsafety",
]

# Plans are drawn by Python code.
Connection.explain = _explain  # type: ignore[method-assign, assignment, unused-ignore]

# An extension of DB-API 2.0, for programs with connections to databases of several kinds.
for _exception in (
    Warning,
    Error,
    InterfaceError,
    DatabaseError,
    DataError,
    OperationalError,
    IntegrityError,
    InternalError,
    ProgrammingError,
    NotSupportedError,
):
    setattr(Connection, _exception.__name__, _exception)

# Temporary databases are removed and logs are written, also if the program ends with open connections.
_atexit.register(_keyaki._close_all)

if hasattr(_os, "register_at_fork"):
    _os.register_at_fork(after_in_child=_keyaki._after_fork)


# Modules of the package that are imported when they are first used: some need further packages.
_MODULES = ("adbc", "aio", "sqlalchemy")


if not _TYPE_CHECKING:

    def __getattr__(name: str) -> _Any:
        if name not in _MODULES:
            raise AttributeError(f"module 'keyaki' has no attribute '{name}'", name=name, obj=_sys.modules[__name__])
        try:
            return _importlib.import_module(f".{name}", __name__)
        except ImportError as error:
            message = f"keyaki.{name} needs a package that is not installed: {error}"
            raise AttributeError(message, name=name, obj=_sys.modules[__name__]) from error


def load_ipython_extension(shell: _Any) -> None:
    """`%load_ext keyaki`: adds the magics `%sql` and `%%sql`."""
    from ._magics import KeyakiMagics

    shell.register_magics(KeyakiMagics)
