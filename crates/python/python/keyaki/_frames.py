"""Whole results as objects of data libraries, and such objects as sources of rows.

Rows pass between Keyaki and the library in the streaming format of Arrow IPC. No library is imported before it is used.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any, Iterator

from ._exceptions import NotSupportedError, ProgrammingError

if TYPE_CHECKING:
    import numpy
    import pandas
    import polars
    import pyarrow

    from . import Connection, Cursor


class _Pieces(io.RawIOBase):
    """A file of the pieces of a stream, read while they are made."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._rest:
            piece = next(self._pieces, None)
            if piece is None:
                return 0
            self._rest = memoryview(piece)
        length = min(len(buffer), len(self._rest))
        buffer[:length] = self._rest[:length]
        self._rest = self._rest[length:]
        return length


def _library(name: str, use: str) -> Any:
    import importlib

    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise NotSupportedError(f"{use} needs the package {name} (pip install {name})") from error


def arrow_reader(cursor: Cursor) -> pyarrow.RecordBatchReader:
    pyarrow = _library("pyarrow", "an Arrow result")
    return pyarrow.ipc.open_stream(io.BufferedReader(_Pieces(cursor._ipc_stream()), 1 << 20))


def arrow(cursor: Cursor) -> pyarrow.Table:
    return arrow_reader(cursor).read_all()


def arrow_c_stream(cursor: Cursor, requested_schema: object) -> object:
    return arrow_reader(cursor).__arrow_c_stream__(requested_schema)


def df(cursor: Cursor) -> pandas.DataFrame:
    _library("pandas", "a pandas result")
    return arrow(cursor).to_pandas()


def pl(cursor: Cursor) -> polars.DataFrame:
    polars = _library("polars", "a Polars result")
    return polars.read_ipc_stream(io.BytesIO(b"".join(cursor._ipc_stream())))


def numpy_columns(cursor: Cursor) -> dict[str, numpy.ndarray]:
    numpy = _library("numpy", "a numpy result")
    table = arrow(cursor)
    if len(set(table.column_names)) < table.num_columns:
        raise ProgrammingError("columns have the same name: rename them by AS")
    types = _library("pyarrow", "an Arrow result").types

    def array(column: Any) -> Any:
        is_integer = types.is_integer(column.type) or types.is_boolean(column.type)
        if not is_integer or column.null_count == 0:
            return column.to_numpy()
        # Integers have no value for NULL.
        fill = False if types.is_boolean(column.type) else 0
        return numpy.ma.masked_array(column.fill_null(fill).to_numpy(), column.is_null().to_numpy())

    return {name: array(column) for name, column in zip(table.column_names, table.columns)}


def append(connection: Connection, table: str, source: Any, columns: list[str] | None) -> int:
    stream = _ipc_of(source)
    if stream is not None:
        if columns is not None:
            raise ProgrammingError("the columns of a frame have names: rename them instead of passing columns")
        return connection._append_ipc(table, stream)
    if isinstance(source, dict):
        if columns is not None:
            raise ProgrammingError("the columns of a dict have names: select them instead of passing columns")
        lists = [_listed(values) for values in source.values()]
        if len({len(values) for values in lists}) > 1:
            lengths = ", ".join(f"{name}: {len(values)}" for name, values in zip(source, lists))
            raise ProgrammingError(f"the columns differ in length ({lengths})")
        return connection._append_rows(table, zip(*lists), list(source))
    return connection._append_rows(table, source, columns)


def _listed(values: Any) -> list[Any]:
    # Elements of dates and durations would become numbers of nanoseconds.
    if getattr(getattr(values, "dtype", None), "kind", None) in ("M", "m") or not hasattr(values, "tolist"):
        return list(values)
    listed: list[Any] = values.tolist()
    return listed


def _ipc_of(source: Any) -> bytes | None:
    """A frame as a stream of Arrow IPC; None for other objects."""
    package = type(source).__module__.split(".")[0]
    if package == "polars":
        frame = source.collect() if hasattr(source, "collect") else source
        if not hasattr(frame, "write_ipc_stream"):
            frame = frame.to_frame()
        file = io.BytesIO()
        frame.write_ipc_stream(file)
        return file.getvalue()
    if package == "pandas" and hasattr(source, "columns"):
        pyarrow = _library("pyarrow", "appending a pandas frame")
        return _written(pyarrow, pyarrow.Table.from_pandas(source, preserve_index=False).to_reader())
    if hasattr(source, "__arrow_c_stream__"):
        pyarrow = _library("pyarrow", "appending an Arrow object")
        return _written(pyarrow, pyarrow.RecordBatchReader.from_stream(source))
    if hasattr(source, "__arrow_c_array__"):
        pyarrow = _library("pyarrow", "appending an Arrow object")
        return _written(pyarrow, pyarrow.Table.from_batches([pyarrow.record_batch(source)]).to_reader())
    return None


def _written(pyarrow: Any, reader: pyarrow.RecordBatchReader) -> bytes:
    sink = pyarrow.BufferOutputStream()
    with pyarrow.ipc.new_stream(sink, reader.schema) as writer:
        for batch in reader:
            writer.write_batch(batch)
    return sink.getvalue().to_pybytes()
