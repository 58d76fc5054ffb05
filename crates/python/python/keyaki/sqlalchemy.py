"""Dialect of SQLAlchemy 2: `create_engine("keyaki:///shop")`.

Keyaki's SQL and its catalog are those of PostgreSQL, so the dialect derives from that of PostgreSQL: its compiler, types and
reflection. The differences:

* Parameters are `$1` without casts. Their values have types, and statements with casts would be planned at each execution.
* A transaction begins explicitly (BEGIN), so that all its statements, queries included, see one state.
* Connections of an engine share its database, also a temporary one.
"""

# Much of SQLAlchemy's dialects has no types.
# mypy: disable-error-code="override, no-untyped-call, type-arg, misc, no-any-return, assignment, arg-type"

from __future__ import annotations

import json
import os
import threading
import weakref
from collections.abc import Callable
from decimal import Decimal
from types import ModuleType
from typing import Any
from uuid import UUID

from sqlalchemy import cast, event, exc, pool
from sqlalchemy.dialects import postgresql as pg
from sqlalchemy.dialects.postgresql.base import PGCompiler, PGDDLCompiler, PGDialect, PGExecutionContext, PGTypeCompiler
from sqlalchemy.dialects.postgresql.json import JSONPathType
from sqlalchemy.engine import URL, Engine
from sqlalchemy.engine.default import DefaultDialect
from sqlalchemy.schema import Index, Table
from sqlalchemy.sql.elements import BindParameter
from sqlalchemy.types import (
    JSON,
    Boolean,
    Date,
    DateTime,
    Float,
    Integer,
    Interval,
    LargeBinary,
    Numeric,
    String,
    Time,
    Uuid,
)

import keyaki

from ._url import options_of

_MEMORY = ":memory:"


def _decimals(value: Any) -> Any:
    # The shortest text of a float has all its digits.
    return Decimal(repr(value)) if isinstance(value, float) else value if value is None else Decimal(value)


def _floats(value: Any) -> Any:
    return value if value is None else float(value)


class _Numeric(Numeric[Any]):
    def bind_processor(self, dialect: Any) -> None:
        return None

    def result_processor(self, dialect: Any, coltype: object) -> Callable[[Any], Any]:
        return _decimals if self.asdecimal else _floats


class _Float(Float[Any]):
    def bind_processor(self, dialect: Any) -> None:
        return None

    def result_processor(self, dialect: Any, coltype: object) -> Callable[[Any], Any]:
        return _decimals if self.asdecimal else _floats


def _document_of(dialect: Any) -> Callable[[Any], Any]:
    serializer = dialect._json_serializer
    if serializer is None:
        return keyaki.Json
    return lambda value: keyaki.Json(json.loads(serializer(value)))


def _objects_of(dialect: Any) -> Callable[[Any], Any] | None:
    """Results are objects. A deserializer of the program makes others of their text."""
    deserializer = dialect._json_deserializer
    if deserializer is None:
        return None
    return lambda value: value if value is None else deserializer(json.dumps(value))


class _Json(pg.JSON):
    render_bind_cast = False

    def bind_processor(self, dialect: Any) -> Any:
        return self._make_bind_processor(None, _document_of(dialect))

    def result_processor(self, dialect: Any, coltype: object) -> Any:
        return _objects_of(dialect)


class _Jsonb(pg.JSONB):
    # Not of JSON's type: operators as @> need it.
    render_bind_cast = True

    def bind_processor(self, dialect: Any) -> Any:
        return self._make_bind_processor(None, _document_of(dialect))

    def result_processor(self, dialect: Any, coltype: object) -> Any:
        return _objects_of(dialect)


class _JsonPath(JSONPathType):
    def bind_processor(self, dialect: Any) -> Callable[[Any], Any]:
        # An array of texts.
        return lambda value: value if value is None or isinstance(value, str) else [str(step) for step in value]


class _Uuid(Uuid[Any]):
    def bind_processor(self, dialect: Any) -> Any:
        if not self.native_uuid:
            return super().bind_processor(dialect)
        return lambda value: UUID(value) if isinstance(value, str) else value

    def result_processor(self, dialect: Any, coltype: object) -> Any:
        if not self.native_uuid:
            return super().result_processor(dialect, coltype)
        return None if self.as_uuid else lambda value: value if value is None else str(value)


class _Array(pg.ARRAY):
    # An empty list has no type of its own.
    render_bind_cast = True


class _Interval(pg.INTERVAL):
    # The difference of a timestamp and a value without a type would be that of two timestamps.
    render_bind_cast = True

    @classmethod
    def adapt_emulated_to_native(cls, interval: Any, **arguments: Any) -> _Interval:
        return cls(precision=interval.second_precision)

    def literal_processor(self, dialect: Any) -> Callable[[Any], str]:
        return lambda value: f"INTERVAL '{value.days} days {value.seconds}.{value.microseconds:06} seconds'"


class _Compiler(PGCompiler):
    def fetch_clause(self, select: Any, **arguments: Any) -> str:
        """FETCH as LIMIT: the number of rows of FETCH cannot be an expression."""
        options = select._fetch_clause_options
        if select._fetch_clause is not None and (options["with_ties"] or options["percent"]):
            raise exc.CompileError("Keyaki has no FETCH with TIES or PERCENT")
        text = ""
        if select._fetch_clause is not None:
            text += f"\n LIMIT {self.process(select._fetch_clause, **arguments)}"
        if select._offset_clause is not None:
            text += f"\n OFFSET {self.process(select._offset_clause, **arguments)}"
        return text

    def visit_add_binary(self, binary: Any, operator: Any, **arguments: Any) -> str:
        return self._arithmetic(binary, " + ", arguments)

    def visit_sub_binary(self, binary: Any, operator: Any, **arguments: Any) -> str:
        return self._arithmetic(binary, " - ", arguments)

    def _arithmetic(self, binary: Any, sign: str, arguments: dict[str, Any]) -> str:
        """A sum or difference whose parameters of dates and times have types: the other operand does not determine them."""
        left, right = (
            cast(operand, operand.type)
            if isinstance(operand, BindParameter) and isinstance(operand.type, (Date, DateTime, Time))
            else operand
            for operand in (binary.left, binary.right)
        )
        if left is not binary.left or right is not binary.right:
            binary = binary._clone()
            binary.left, binary.right = left, right
        return str(self._generate_generic_binary(binary, sign, **arguments))

    def visit_frame_clause(self, frameclause: Any, **arguments: Any) -> str:
        # The offsets of window frames cannot be parameters.
        return super().visit_frame_clause(frameclause, **{**arguments, "literal_execute": True})


class _DdlCompiler(PGDDLCompiler):
    def visit_computed_column(self, generated: Any, **arguments: Any) -> str:
        if generated.persisted is False:
            raise exc.CompileError("Keyaki has stored computed columns only: use persisted=True")
        text = self.sql_compiler.process(generated.sqltext, include_table=False, literal_binds=True)
        return f"GENERATED ALWAYS AS ({text}) STORED"


class _TypeCompiler(PGTypeCompiler):
    def visit_FLOAT(self, type_: Any, **arguments: Any) -> str:
        # CAST to FLOAT without precision makes a REAL.
        return "REAL" if type_.precision is not None and type_.precision <= 24 else "DOUBLE PRECISION"


class _ExecutionContext(PGExecutionContext):
    def create_server_side_cursor(self) -> Any:
        # Every result is read while it is computed.
        return self._dbapi_connection.cursor()


class KeyakiDialect(PGDialect):
    """The dialect `keyaki`."""

    name = "keyaki"
    driver = "keyaki"
    supports_statement_cache = True
    supports_server_side_cursors = True
    supports_sane_multi_rowcount = True
    # There is no CREATE TYPE: enumerations are texts.
    supports_native_enum = False
    default_paramstyle = "numeric_dollar"
    supports_constraint_comments = False
    execution_ctx_cls = _ExecutionContext
    statement_compiler = _Compiler
    ddl_compiler = _DdlCompiler
    type_compiler_cls = _TypeCompiler
    # Options of tables and indexes have the names of PostgreSQL (`postgresql_include`).
    construct_arguments = [(Table, {}), (Index, {})]

    colspecs = {
        **{type_: spec for type_, spec in PGDialect.colspecs.items() if type_ not in (JSON, pg.JSON, pg.JSONB)},
        String: String,
        Integer: Integer,
        Boolean: Boolean,
        Date: Date,
        DateTime: DateTime,
        Time: Time,
        LargeBinary: LargeBinary,
        Interval: _Interval,
        pg.INTERVAL: _Interval,
        Float: _Float,
        Numeric: _Numeric,
        Uuid: _Uuid,
        JSON: _Json,
        JSON.JSONPathType: _JsonPath,
        pg.JSON: _Json,
        pg.JSONB: _Jsonb,
        pg.ARRAY: _Array,
    }

    def __init__(self, paramstyle: str | None = None, **arguments: Any) -> None:
        super().__init__(paramstyle=paramstyle or "numeric_dollar", **arguments)
        self._opening = threading.Lock()
        self._open: weakref.WeakSet[keyaki.Connection] = weakref.WeakSet()
        self._process = os.getpid()
        # Keeps a temporary database while the pool has no connection.
        self._temporary: keyaki.Connection | None = None

    @classmethod
    def import_dbapi(cls) -> ModuleType:
        return keyaki

    @classmethod
    def get_pool_class(cls, url: URL) -> type[pool.Pool]:
        return pool.QueuePool

    @classmethod
    def engine_created(cls, engine: Engine) -> None:
        event.listen(engine, "engine_disposed", lambda disposed: disposed.dialect._forget())

    def create_connect_args(self, url: URL) -> tuple[list[str], dict[str, Any]]:
        if url.host or url.username or url.password or url.port:
            raise exc.ArgumentError(
                f"{url.render_as_string()}: a database is a directory: keyaki:///relative/path, keyaki:////absolute/path"
            )
        pairs = [(name, value) for name, values in url.normalized_query.items() for value in values]
        try:
            options = options_of(pairs)
        except keyaki.ProgrammingError as error:
            raise exc.ArgumentError(str(error)) from error
        return [url.database or _MEMORY], options

    def connect(self, path: str, **options: Any) -> Any:
        with self._opening:
            if self._process != os.getpid() and self._temporary is None:
                # Connections of the parent of a forked process do not work here.
                self._open = weakref.WeakSet()
                self._process = os.getpid()
            known = next((con for con in self._open if not con.closed), None)
            if known is None:
                opened = keyaki.connect(path, **options)
                if path == _MEMORY:
                    self._temporary = opened
                    self._open.add(opened)
                    known = opened
            if known is not None:
                opened = known.duplicate()
                opened.autocommit = options.get("autocommit", False)
                for name, value in options.get("settings", {}).items():
                    opened.execute("SELECT set_config(?, ?, false)", (name, str(value))).fetchall()
            self._open.add(opened)
            return opened

    def _forget(self) -> None:
        """Removes the temporary database."""
        with self._opening:
            if self._temporary is not None:
                self._temporary.close()
                self._temporary = None
                self._open = weakref.WeakSet()

    def do_begin(self, dbapi_connection: Any) -> None:
        if not dbapi_connection.autocommit:
            dbapi_connection.begin()

    def do_ping(self, dbapi_connection: Any) -> bool:
        # The database is in this process.
        return not dbapi_connection.closed

    def is_disconnect(self, e: Any, connection: Any, cursor: Any) -> bool:
        return isinstance(e, keyaki.InterfaceError) and (connection is None or bool(connection.closed))

    def get_isolation_level_values(self, dbapi_conn: Any) -> tuple[str, ...]:
        return ("AUTOCOMMIT", "READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE")

    def get_default_isolation_level(self, dbapi_conn: Any) -> str:
        return self._default_isolation(dbapi_conn)

    def get_isolation_level(self, dbapi_connection: Any) -> str:
        return "AUTOCOMMIT" if dbapi_connection.autocommit else self._default_isolation(dbapi_connection)

    def _default_isolation(self, dbapi_connection: Any) -> str:
        row = dbapi_connection.execute("SHOW transaction_isolation").fetchone()
        return str(row[0]).upper()

    def set_isolation_level(self, dbapi_connection: Any, level: str) -> None:
        dbapi_connection.autocommit = level == "AUTOCOMMIT"
        if level != "AUTOCOMMIT":
            dbapi_connection.execute(f"SET default_transaction_isolation = '{level.lower()}'")

    def detect_autocommit_setting(self, dbapi_conn: Any) -> bool:
        return bool(dbapi_conn.autocommit)

    def set_readonly(self, connection: Any, value: bool) -> None:
        connection.execute(f"SET default_transaction_read_only = {'on' if value else 'off'}")

    def get_readonly(self, connection: Any) -> bool:
        return bool(connection.execute("SHOW default_transaction_read_only").fetchone()[0] == "on")

    def set_deferrable(self, connection: Any, value: bool) -> None:
        if value:
            raise exc.ArgumentError("postgresql_deferrable: Keyaki has no deferrable transactions")

    def get_deferrable(self, connection: Any) -> bool:
        return False

    def do_begin_twophase(self, connection: Any, xid: Any) -> None:
        raise exc.InvalidRequestError("Keyaki has no two-phase transactions")

    def _load_domains(self, connection: Any, schema: Any = None, **arguments: Any) -> list[Any]:
        # There are none.
        return []
