"""Connections for asyncio.

>>> import asyncio
>>> from keyaki import aio
>>> async def main():
...     async with await aio.connect() as con:
...         await con.execute("CREATE TABLE t (n BIGINT)")
...         await con.executemany("INSERT INTO t VALUES (?)", [(1,), (2,)])
...         cur = await con.execute("SELECT n FROM t ORDER BY n")
...         return [row async for row in cur]
>>> asyncio.run(main())
[(1,), (2,)]

Each connection has a thread that runs its statements one after another. Cancelling a task cancels its statement, and waits until that has ended.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import AsyncIterator, Callable, Iterable
from concurrent.futures import Future
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

import keyaki

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Connection", "Cursor", "Transaction", "connect"]

T = TypeVar("T")

# Rows that an iteration fetches at a time.
_ROWS = 1024
# Seconds between two attempts to cancel a statement that may not have begun yet.
_CANCEL_SECONDS = 0.05


class _Worker:
    """A thread that calls functions one after another.

    The interpreter does not wait for it at its end, in contrast to those of `concurrent.futures`: connections are closed then.
    """

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        threading.Thread(target=self._work, name="keyaki-aio", daemon=True).start()

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            call()

    def submit(self, function: Callable[..., T], *arguments: Any) -> Future[T]:
        future: Future[T] = Future()

        def call() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(function(*arguments))
            except BaseException as error:
                future.set_exception(error)

        self._calls.put(call)
        return future

    def end(self) -> None:
        """Ends the thread after the functions that were submitted."""
        self._calls.put(None)


async def connect(path: Any = ":memory:", **options: Any) -> Connection:
    """As `keyaki.connect()`, with the same arguments."""
    executor = _Worker()
    try:
        opened = executor.submit(lambda: keyaki.connect(path, **options))
        return Connection(await asyncio.wrap_future(opened), executor)
    except BaseException:
        executor.end()
        raise


class Connection:
    """The counterpart of `keyaki.Connection`: the same methods, as coroutines."""

    def __init__(self, connection: keyaki.Connection, executor: _Worker) -> None:
        self._connection = connection
        self._executor = executor

    async def _run(self, function: Callable[..., T], *arguments: Any, undo: Callable[[], object] | None = None) -> T:
        """Calls a function in the thread. `undo` is called if it succeeds although its task was cancelled."""
        if self._connection.closed:
            raise keyaki.InterfaceError("the connection is closed")
        submitted = self._executor.submit(function, *arguments)
        waiting = asyncio.wrap_future(submitted)
        try:
            return await asyncio.shield(waiting)
        except asyncio.CancelledError:
            while not submitted.cancel() and not submitted.done():
                self._connection.interrupt()
                await asyncio.wait([waiting], timeout=_CANCEL_SECONDS)
            # Its exception is that of the interrupt.
            if not submitted.cancelled() and submitted.exception() is None and undo is not None:
                await asyncio.shield(asyncio.wrap_future(self._executor.submit(undo)))
            raise

    async def execute(self, sql: str, parameters: Any = None) -> Cursor:
        """Executes one statement with a new cursor, and returns the cursor."""
        return Cursor(self, await self._run(self._connection.execute, sql, parameters))

    async def executemany(self, sql: str, rows: Iterable[Any]) -> Cursor:
        """Executes a statement once for each row of parameters, in one transaction."""
        return Cursor(self, await self._run(self._connection.executemany, sql, rows))

    async def executescript(self, script: str) -> None:
        """Executes all statements of a script."""
        await self._run(self._connection.executescript, script)

    async def append(self, table: str, source: Any, columns: list[str] | None = None) -> int:
        """Appends rows or a frame to a table."""
        return await self._run(self._connection.append, table, source, columns)

    async def begin(self, isolation: Any = None) -> None:
        """Begins a transaction."""
        await self._run(self._connection.begin, isolation, undo=self._connection.rollback)

    async def commit(self) -> None:
        """Commits the open transaction, if there is one."""
        await self._run(self._connection.commit)

    async def rollback(self) -> None:
        """Rolls the open transaction back, if there is one."""
        await self._run(self._connection.rollback)

    def transaction(self, isolation: Any = None) -> Transaction:
        """A transaction as a block, or a savepoint within another one."""
        return Transaction(self, self._connection.transaction(isolation))

    def interrupt(self) -> None:
        """Cancels the running statement."""
        self._connection.interrupt()

    async def close(self) -> None:
        """Closes the connection and ends its thread."""
        if not self._connection.closed:
            await self._run(self._connection.close)
        self._executor.end()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Commits, or rolls back after an exception, and closes the connection."""
        if self._connection.closed:
            return
        try:
            await (self.commit() if exc_type is None else self.rollback())
        finally:
            await self.close()


class Transaction:
    """A transaction as a block, made by `Connection.transaction()`."""

    def __init__(self, connection: Connection, transaction: keyaki.Transaction) -> None:
        self._connection = connection
        self._transaction = transaction

    async def __aenter__(self) -> Self:
        # A block that does not begin has no end.
        undo = lambda: self._transaction.__exit__(asyncio.CancelledError, None, None)
        await self._connection._run(self._transaction.__enter__, undo=undo)
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._connection._run(self._transaction.__exit__, exc_type, exc, traceback)


class Cursor:
    """The counterpart of `keyaki.Cursor`."""

    def __init__(self, connection: Connection, cursor: keyaki.Cursor) -> None:
        self._connection = connection
        self._cursor = cursor

    @property
    def description(self) -> Any:
        """Seven values for each column of the result; None without a result."""
        return self._cursor.description

    @property
    def rowcount(self) -> int:
        """Number of rows that the statement has changed; -1 for others."""
        return self._cursor.rowcount

    async def fetchone(self) -> tuple[Any, ...] | None:
        """The next row; None at the end."""
        return await self._connection._run(self._cursor.fetchone)

    async def fetchmany(self, size: int | None = None) -> list[tuple[Any, ...]]:
        """The next rows."""
        return await self._connection._run(self._cursor.fetchmany, size)

    async def fetchall(self) -> list[tuple[Any, ...]]:
        """All remaining rows."""
        return await self._connection._run(self._cursor.fetchall)

    async def arrow(self) -> Any:
        """The remaining rows as a pyarrow.Table."""
        return await self._connection._run(self._cursor.arrow)

    async def df(self) -> Any:
        """The remaining rows as a pandas.DataFrame."""
        return await self._connection._run(self._cursor.df)

    async def pl(self) -> Any:
        """The remaining rows as a polars.DataFrame."""
        return await self._connection._run(self._cursor.pl)

    async def __aiter__(self) -> AsyncIterator[tuple[Any, ...]]:
        while rows := await self.fetchmany(_ROWS):
            for row in rows:
                yield row
