"""A backend of Ibis. Needs the package ibis-framework.

>>> import keyaki.ibis
>>> con = keyaki.ibis.connect()
>>> orders = con.create_table("orders", schema={"id": "int64", "total": "float64"})
>>> con.insert("orders", [(1, 2.5), (2, 4.0)])
>>> orders.total.sum().execute()
6.5

Ibis finds the backend by its name, too: `ibis.keyaki.connect("shop")`, `ibis.connect("keyaki://shop")`. A database of Ibis is
a schema of Keyaki.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import ibis
import ibis.common.exceptions as com
import ibis.expr.datatypes as dt
import ibis.expr.operations as ops
import ibis.expr.schema as sch
import ibis.expr.types as ir
import sqlglot as sg
import sqlglot.expressions as sge
from ibis.backends import CanCreateDatabase, HasCurrentDatabase, PyArrowExampleLoader, SupportsTempTables, UrlFromPath
from ibis.backends.sql import SQLBackend
from ibis.backends.sql.compilers.postgres import PostgresCompiler
from ibis.formats.pandas import PandasData
from ibis.formats.pyarrow import PyArrowData, PyArrowType

from . import _keyaki
from ._exceptions import Error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from os import PathLike

    import pandas
    import pyarrow

#: Schemas without tables of users.
_SYSTEM_SCHEMAS = ("information_schema", "pg_catalog")


class Backend(
    SupportsTempTables, SQLBackend, UrlFromPath, PyArrowExampleLoader, CanCreateDatabase, HasCurrentDatabase
):  # type: ignore[misc]
    """A connection of Ibis to a database. Statements are those of PostgreSQL; results pass as Arrow data."""

    name = "keyaki"
    compiler = PostgresCompiler()
    supports_temporary_tables = True
    supports_create_or_replace = False

    def do_connect(self, database: str | PathLike[str] | None = None, **options: Any) -> None:
        """Opens a database; `options` are those of `keyaki.connect()`."""
        path = ":memory:" if database is None else database
        self.con = _keyaki.connect(path, autocommit=True, frames=False, **options)

    @classmethod
    def from_connection(cls, con: _keyaki.Connection, /) -> Backend:
        """A backend with an open connection. Statements outside of its transactions are committed at once."""
        con.autocommit = True
        backend = cls()
        backend._can_reconnect = False
        backend.con = con
        return backend

    def disconnect(self) -> None:
        self.con.close()

    @property
    def version(self) -> str:
        return _keyaki.VERSION

    @property
    def current_database(self) -> str:
        row = self.con.execute("SELECT current_schema()").fetchone()
        return row[0] if row and row[0] else "public"

    def raw_sql(self, query: str | sg.Expression, **_: Any) -> _keyaki.Cursor:
        """Executes a statement, and returns its cursor."""
        return self.con.execute(query if isinstance(query, str) else query.sql(dialect=self.dialect))

    @contextlib.contextmanager
    def _safe_raw_sql(self, query: str | sg.Expression, **options: Any) -> Iterator[_keyaki.Cursor]:
        with contextlib.closing(self.raw_sql(query, **options)) as cursor:
            yield cursor

    def _names(self, query: str, parameters: list[str], like: str | None) -> list[str]:
        names = [name for (name,) in self.con.execute(query, parameters).fetchall()]
        return self._filter_with_like(names, like)

    def list_tables(self, *, like: str | None = None, database: str | None = None) -> list[str]:
        """The names of the tables and views of a schema, by default of the current one and of temporary tables."""
        query = "SELECT table_name FROM information_schema.tables WHERE table_schema = $1 ORDER BY 1"
        if database is not None:
            return self._names(query, [database], like)
        # Those of other sessions are not shown.
        query = query.replace(" ORDER", " OR table_type = 'LOCAL TEMPORARY' ORDER")
        return self._names(query, [self.current_database], like)

    def list_databases(self, *, like: str | None = None, catalog: str | None = None) -> list[str]:
        """The names of the schemas."""
        query = "SELECT schema_name FROM information_schema.schemata WHERE schema_name NOT LIKE 'pg\\_temp%' ORDER BY 1"
        return [name for name in self._names(query, [], like) if name not in _SYSTEM_SCHEMAS]

    def create_database(self, name: str, /, *, catalog: str | None = None, force: bool = False) -> None:
        """Creates a schema."""
        self._change(sge.Create(kind="SCHEMA", this=sg.table(name, quoted=True), exists=force))

    def drop_database(
        self, name: str, /, *, catalog: str | None = None, force: bool = False, cascade: bool = False
    ) -> None:
        """Drops a schema."""
        self._change(sge.Drop(kind="SCHEMA", this=sg.table(name, quoted=True), exists=force, cascade=cascade))

    def _change(self, *statements: str | sg.Expression) -> None:
        """Executes statements, all of them or none."""
        transaction = contextlib.nullcontext() if self.con.in_transaction else self.con.transaction()
        with transaction:
            for statement in statements:
                self.raw_sql(statement).close()

    def get_schema(self, table_name: str, *, catalog: str | None = None, database: str | None = None) -> sch.Schema:
        """The columns of a table or view."""
        table = sg.table(table_name, db=database, quoted=True)
        try:
            return self._get_schema_using_query(sg.select(sge.Star()).from_(table).sql(self.dialect))
        except Error as error:
            if error.sqlstate == "42P01":
                raise com.TableNotFound(table_name) from error
            raise

    def _get_schema_using_query(self, query: str) -> sch.Schema:
        with self._safe_raw_sql(f"SELECT * FROM ({query}) AS t LIMIT 0") as cursor:
            return sch.Schema({field.name: _type(field) for field in cursor.arrow_reader().schema})

    def _register_in_memory_table(self, op: ops.InMemoryTable) -> None:
        self.con.register(op.name, op.data.to_pyarrow(op.schema))

    def _make_memtable_finalizer(self, name: str) -> Callable[..., None]:
        con = self.con

        def unregister() -> None:
            with contextlib.suppress(Error):
                con.unregister(name)

        return unregister

    def create_table(
        self,
        name: str,
        /,
        obj: Any = None,
        *,
        schema: sch.IntoSchema | None = None,
        database: str | None = None,
        temp: bool = False,
        overwrite: bool = False,
    ) -> ir.Table:
        """Creates a table with the rows of an expression, a frame or Arrow data, or an empty one with a schema."""
        if obj is None and schema is None:
            raise ValueError("create_table needs obj or schema")
        if temp and database is not None:
            raise com.UnsupportedArgumentError("temporary tables have no database")
        rows = obj if obj is None or isinstance(obj, ir.Expr) else ibis.memtable(obj)
        columns = rows.schema() if schema is None else ibis.schema(schema)
        made = sg.table(name, db=database, quoted=True)
        # The rows may come from the table that is replaced.
        new = sg.table(ibis.util.gen_name("keyaki"), db=database, quoted=True) if overwrite else made
        temporary = sge.Properties(expressions=[sge.TemporaryProperty()] if temp else [])
        definition = sge.Schema(this=new, expressions=columns.to_sqlglot_column_defs(self.dialect))
        statements: list[str | sg.Expression] = [sge.Create(kind="TABLE", this=definition, properties=temporary)]
        if rows is not None:
            self._run_pre_execute_hooks(rows)
            statements.append(sge.Insert(this=new, expression=self.compiler.to_sqlglot(rows)))
        if overwrite:
            old, other, final = [table.sql(dialect=self.dialect) for table in (made, new, sg.table(name, quoted=True))]
            statements += [f"DROP TABLE IF EXISTS {old}", f"ALTER TABLE {other} RENAME TO {final}"]
        self._change(*statements)
        return self.table(name, database=database)

    def compile(
        self, expr: ir.Expr, /, *, limit: int | None = None, params: Mapping[ir.Expr, Any] | None = None, pretty: bool = False
    ) -> str:
        """The statement of an expression."""
        query = self.compiler.to_sqlglot(expr, limit=limit, params=params)
        # Ibis lets sqlglot change the query while it is written, which does not add all casts of operands that several
        # columns share.
        sql = query.sql(dialect=self.dialect, pretty=pretty, copy=True, unsupported_level=sg.ErrorLevel.RAISE)
        self._log(sql)
        return sql

    def to_pyarrow_batches(
        self,
        expr: ir.Expr,
        /,
        *,
        params: Mapping[ir.Scalar, Any] | None = None,
        limit: int | str | None = None,
        chunk_size: int = 1_000_000,
        **_: Any,
    ) -> pyarrow.RecordBatchReader:
        """The rows of an expression as a stream of batches, which have the sizes in which Keyaki makes them."""
        import pyarrow

        self._run_pre_execute_hooks(expr)
        table = expr.as_table()
        query = self.compile(table, limit=limit, params=params)
        reader = self.raw_sql(query).arrow_reader()
        schema = table.schema()
        batches = (
            part for batch in reader for part in _converted(pyarrow.Table.from_batches([batch]), schema).to_batches()
        )
        return pyarrow.RecordBatchReader.from_batches(schema.to_pyarrow(), batches)

    def to_pyarrow(
        self,
        expr: ir.Expr,
        /,
        *,
        params: Mapping[ir.Scalar, Any] | None = None,
        limit: int | str | None = None,
        **options: Any,
    ) -> Any:
        """The rows of an expression as Arrow data."""
        table = self.to_pyarrow_batches(expr, params=params, limit=limit, **options).read_all()
        return expr.__pyarrow_result__(table)

    def execute(
        self,
        expr: ir.Expr,
        /,
        *,
        params: Mapping[ir.Scalar, Any] | None = None,
        limit: int | str | None = None,
        **options: Any,
    ) -> pandas.DataFrame | pandas.Series | Any:
        """The rows of an expression as a frame, a column as a series, and a scalar as a value."""
        table = expr.as_table()
        rows = self.to_pyarrow_batches(table, params=params, limit=limit, **options).read_all()
        frame = rows.to_pandas(timestamp_as_object=False, date_as_object=False)
        return expr.__pandas_result__(PandasData.convert_table(frame, table.schema()))


def connect(path: str | PathLike[str] = ":memory:", **options: Any) -> Backend:
    """Opens a database as a connection of Ibis; `options` are those of `keyaki.connect()`."""
    backend = Backend()
    backend.do_connect(path, **options)
    return backend


def _type(field: pyarrow.Field) -> dt.DataType:
    """The type of a column. Ibis has none for intervals of months and days."""
    import pyarrow

    arrow, nullable = field.type, field.nullable
    declared = (field.metadata or {}).get(b"keyaki.type")
    if declared is not None and declared.startswith(b"json"):
        return dt.JSON(binary=declared == b"jsonb", nullable=nullable)
    if isinstance(arrow, pyarrow.BaseExtensionType):
        return dt.UUID(nullable=nullable) if arrow.extension_name == "arrow.uuid" else dt.Unknown(nullable=nullable)
    if pyarrow.types.is_list(arrow):
        return dt.Array(_type(arrow.value_field), nullable=nullable)
    if arrow == pyarrow.string_view():
        return dt.String(nullable=nullable)
    if arrow == pyarrow.binary_view():
        return dt.Binary(nullable=nullable)
    if pyarrow.types.is_timestamp(arrow) and arrow.tz is not None:
        return dt.Timestamp(timezone="UTC", scale=6, nullable=nullable)
    try:
        return PyArrowType.to_ibis(arrow, nullable=nullable)
    except (KeyError, ValueError):
        return dt.Unknown(nullable=nullable)


def _converted(table: pyarrow.Table, schema: sch.Schema) -> pyarrow.Table:
    """Rows with the names and types that Ibis expects."""
    import pyarrow

    columns = [
        pyarrow.array([None if value is None else str(value) for value in column.to_pylist()], pyarrow.string())
        if isinstance(column.type, pyarrow.BaseExtensionType)
        else column
        for column in table.columns
    ]
    return PyArrowData.convert_table(pyarrow.table(columns, names=list(schema.names)), schema)
