"""Whole results as objects of data libraries, and such objects as sources of rows.

Rows pass between Keyaki and the libraries through Arrow's C data interface, without copies. No library is imported before it is
used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, TypeVar

from ._exceptions import NotSupportedError, ProgrammingError

if TYPE_CHECKING:
    import numpy
    import pandas
    import polars
    import pyarrow

    from . import Connection, Cursor

_T = TypeVar("_T")


def _library(name: str, use: str) -> Any:
    import importlib

    try:
        return importlib.import_module(name)
    except ImportError as error:
        package = name.split(".")[0].replace("_", "-")
        raise NotSupportedError(f"{use} needs the package {package} (pip install {package})") from error


def _read(cursor: Cursor, reader: Callable[[Any], _T]) -> _T:
    """Reads the stream of a result with another library, whose errors are only texts."""
    stream = cursor._stream()
    try:
        return reader(stream)
    except BaseException as error:
        try:
            stream.check()
        except BaseException as original:
            raise original from error
        raise


def arrow_reader(cursor: Cursor) -> pyarrow.RecordBatchReader:
    pyarrow = _library("pyarrow", "an Arrow result")
    return pyarrow.RecordBatchReader.from_stream(cursor._stream())


def arrow(cursor: Cursor) -> pyarrow.Table:
    pyarrow = _library("pyarrow", "an Arrow result")
    return _read(cursor, lambda stream: pyarrow.RecordBatchReader.from_stream(stream).read_all())


def df(cursor: Cursor) -> pandas.DataFrame:
    _library("pandas", "a pandas result")
    return arrow(cursor).to_pandas()


def pl(cursor: Cursor) -> polars.DataFrame:
    polars = _library("polars", "a Polars result")
    return _read(cursor, polars.DataFrame)


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
    if columns is not None and arrow_object(source) is not None:
        raise ProgrammingError("the columns of a frame have names: rename them instead of passing columns")
    appended = connection._append_arrow(table, source)
    if appended is not None:
        return appended
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


def unshared(source: Any) -> Any:
    """The object, or a copy if its rows can change."""
    is_frame = type(source).__module__.split(".")[0] == "pandas" and hasattr(source, "columns")
    return source.copy() if is_frame else source


def arrow_object(source: Any) -> Any:
    """An object of Arrow's PyCapsule protocol with the rows of a frame; None for other objects."""
    # A class has the methods of the protocol, too.
    if isinstance(source, type):
        return None
    package = type(source).__module__.split(".")[0]
    if package == "polars":
        frame = source.collect() if hasattr(source, "collect") else source
        return frame if hasattr(frame, "columns") else frame.to_frame() if hasattr(frame, "to_frame") else None
    if package == "pandas":
        if not hasattr(source, "columns"):
            return None
        pyarrow = _library("pyarrow", "a pandas frame as a source of rows")
        return pyarrow.Table.from_pandas(source, preserve_index=False)
    if package == "pyarrow" and hasattr(source, "scanner"):
        return source.scanner().to_reader()
    if hasattr(source, "__arrow_c_stream__") or hasattr(source, "__arrow_c_array__"):
        return source
    return None
