"""Types of DB-API 2.0, and Python types for SQL types without a counterpart in the standard library."""

from __future__ import annotations

import datetime
from typing import Any, NamedTuple


class Interval(NamedTuple):
    """An INTERVAL with months, whose length in days depends on the date to which it is added.

    Intervals without months are `datetime.timedelta`.
    """

    months: int = 0
    days: int = 0
    microseconds: int = 0


class Json:
    """A JSON document as a parameter. A `dict` is a document without it; lists, texts and numbers are not.

    >>> import keyaki
    >>> con = keyaki.connect()
    >>> con.execute("SELECT CAST(? AS JSON)", (keyaki.Json([1, None, "a"]),)).fetchone()
    ([1, None, 'a'],)
    """

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __repr__(self) -> str:
        return f"Json({self.value!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Json) and self.value == other.value

    def __hash__(self) -> int:
        return hash(repr(self.value))


class TypeObject:
    """A type object of DB-API 2.0. It equals the names of its types in `Cursor.description`."""

    __slots__ = ("_name", "_types")

    def __init__(self, name: str, *types: str) -> None:
        self._name = name
        self._types = frozenset(types)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, TypeObject):
            return self._types == other._types
        # "numeric(12,2)" is a numeric, "timestamp(3) without time zone" a timestamp.
        return isinstance(other, str) and other.split("(")[0].strip() in self._types

    def __hash__(self) -> int:
        return hash(self._types)

    def __repr__(self) -> str:
        return f"keyaki.{self._name}"


STRING = TypeObject("STRING", "text", "character varying", "character", "json", "jsonb", "uuid")
BINARY = TypeObject("BINARY", "bytea")
NUMBER = TypeObject(
    "NUMBER", "boolean", "tinyint", "smallint", "integer", "bigint", "real", "double precision", "numeric"
)
DATETIME = TypeObject(
    "DATETIME",
    "date",
    "time",
    "time without time zone",
    "timestamp",
    "timestamp without time zone",
    "timestamp with time zone",
    "interval",
)
ROWID = TypeObject("ROWID")

Date = datetime.date
Time = datetime.time
Timestamp = datetime.datetime
Binary = bytes


def DateFromTicks(ticks: float) -> datetime.date:
    """The local date of a number of seconds since 1970."""
    return datetime.date.fromtimestamp(ticks)


def TimeFromTicks(ticks: float) -> datetime.time:
    """The local time of day of a number of seconds since 1970."""
    return datetime.datetime.fromtimestamp(ticks).time()


def TimestampFromTicks(ticks: float) -> datetime.datetime:
    """The local time of a number of seconds since 1970."""
    return datetime.datetime.fromtimestamp(ticks)
