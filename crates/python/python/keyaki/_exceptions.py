"""Exceptions of DB-API 2.0."""

from __future__ import annotations


class Warning(Exception):
    """A warning of the database. Keyaki raises none: see `Connection.notices()`."""


class Error(Exception):
    """An error of the database or in its use.

    `sqlstate` is the SQLSTATE of the error, five characters as in PostgreSQL, or None for errors in the use of this package.
    """

    sqlstate: str | None = None


class InterfaceError(Error):
    """An error in the use of this package, for example of a closed connection."""


class DatabaseError(Error):
    """An error of the database."""


class DataError(DatabaseError):
    """A value is invalid or out of range."""


class OperationalError(DatabaseError):
    """An error in the operation of the database: conflicts of transactions, cancelled statements, full disks, lack of memory."""


class IntegrityError(DatabaseError):
    """A constraint is violated."""


class InternalError(DatabaseError):
    """A damaged database, or an error within Keyaki."""


class ProgrammingError(DatabaseError):
    """A statement is wrong: its syntax, a name, the number of its parameters."""


class NotSupportedError(DatabaseError):
    """The statement is valid SQL that Keyaki does not support."""


# Messages and pickle show the classes as members of the public module.
for _exception in (Warning, *(value for value in list(globals().values()) if isinstance(value, type) and issubclass(value, Error))):
    _exception.__module__ = "keyaki"
