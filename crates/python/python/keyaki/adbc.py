"""Connections through ADBC, Arrow's database interface. Needs the package adbc-driver-manager.

>>> from keyaki import adbc
>>> with adbc.connect() as con, con.cursor() as cur:
...     _ = cur.execute("SELECT 6 * 7 AS n")
...     cur.fetch_arrow_table().to_pydict()
{'n': [42]}
"""

from __future__ import annotations

from os import PathLike, fspath
from typing import TYPE_CHECKING, Any

from . import _keyaki
from ._frames import _library

if TYPE_CHECKING:
    from adbc_driver_manager import dbapi

#: The function that initializes the driver, for other driver managers.
ENTRYPOINT = "KeyakiDriverInit"


def driver() -> str:
    """The path of the library with the driver."""
    path: str = _keyaki.__file__
    return path


def connect(
    path: str | PathLike[str] = ":memory:",
    *,
    autocommit: bool = False,
    **options: object,
) -> dbapi.Connection:
    """Opens a database as a connection of `adbc_driver_manager.dbapi`.

    `options`: `read_only`, `create`, `memory`, `threads` and `durability`, as for `keyaki.connect()`.
    """
    manager = _library("adbc_driver_manager.dbapi", "keyaki.adbc")
    texts: dict[str, Any] = {"uri": fspath(path)}
    for name, value in options.items():
        text = str(value).lower() if isinstance(value, bool) else str(value)
        texts[f"adbc.keyaki.{name}"] = text
    connection: dbapi.Connection = manager.connect(
        driver=driver(), entrypoint=ENTRYPOINT, db_kwargs=texts, autocommit=autocommit
    )
    return connection
