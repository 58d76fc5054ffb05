"""The dialect of SQLAlchemy: engines, transactions, types, reflection, pandas, and SQLAlchemy's compliance suite."""

import datetime
import decimal
import os
import pathlib
import subprocess
import sys
import tempfile
import threading
import unittest
import uuid

import keyaki
import pandas
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql as pg
from sqlalchemy.dialects import registry
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, relationship

# An installed package has these names as entry points.
for name in ("keyaki", "keyaki.keyaki"):
    registry.register(name, "keyaki.sqlalchemy", "KeyakiDialect")

COMPLIANCE = pathlib.Path(__file__).parent / "compliance"
# Seconds after which the compliance suite has hung.
LIMIT = 1800


class Base(DeclarativeBase):
    pass


class Author(Base):
    __tablename__ = "authors"
    __table_args__ = {"comment": "people"}
    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(sa.String(40), unique=True)
    books: Mapped[list["Book"]] = relationship(back_populates="author", cascade="all, delete-orphan")


class Book(Base):
    __tablename__ = "books"
    __table_args__ = (sa.Index("books_title", "title", postgresql_include=["price"]), sa.CheckConstraint("price >= 0", name="positive"))
    id: Mapped[int] = mapped_column(sa.Identity(), primary_key=True)
    title: Mapped[str]
    price: Mapped[decimal.Decimal] = mapped_column(sa.Numeric(8, 2), server_default="1.50", comment="in euros")
    author_id: Mapped[int] = mapped_column(sa.ForeignKey("authors.id", ondelete="CASCADE"))
    author: Mapped[Author] = relationship(back_populates="books")


class EngineTest(unittest.TestCase):
    def engine(self, url="keyaki:///:memory:", **options):
        engine = sa.create_engine(url, **options)
        self.addCleanup(engine.dispose)
        return engine


class Engines(EngineTest):
    def test_connections_share_a_temporary_database(self):
        engine = self.engine()
        with engine.begin() as first:
            first.execute(sa.text("CREATE TABLE t (n BIGINT)"))
        with engine.connect() as first, engine.connect() as second:
            first.execute(sa.text("INSERT INTO t VALUES (1)"))
            self.assertEqual(second.scalar(sa.text("SELECT count(*) FROM t")), 0)
            first.commit()
            # One transaction sees one state.
            self.assertEqual(second.scalar(sa.text("SELECT count(*) FROM t")), 0)
            second.rollback()
            self.assertEqual(second.scalar(sa.text("SELECT count(*) FROM t")), 1)
        self.assertFalse(sa.inspect(self.engine()).has_table("t"))
        engine.dispose()
        self.assertFalse(sa.inspect(engine).has_table("t"))

    def test_threads_have_connections_of_their_own(self):
        engine = self.engine()
        with engine.begin() as connection:
            connection.execute(sa.text("CREATE TABLE t (n BIGINT PRIMARY KEY)"))
        failures = []

        def insert(number):
            try:
                with engine.begin() as connection:
                    connection.execute(sa.text("INSERT INTO t VALUES (:n)"), {"n": number})
            except Exception as error:
                failures.append(error)

        threads = [threading.Thread(target=insert, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(failures, [])
        with engine.connect() as connection:
            self.assertEqual(connection.scalar(sa.text("SELECT count(*) FROM t")), 8)

    def test_urls(self):
        with tempfile.TemporaryDirectory() as directory:
            path = os.path.join(directory, "shop")
            engine = self.engine(f"keyaki:///{path}?memory=64 MiB&durability=off&timezone=Asia/Tokyo")
            with engine.begin() as first, engine.connect() as second:
                first.execute(sa.text("CREATE TABLE t (n BIGINT)"))
                for connection in (first, second):
                    self.assertEqual(connection.scalar(sa.text("SHOW timezone")), "Asia/Tokyo")
                self.assertEqual(first.scalar(sa.text("SHOW keyaki.durability")), "off")
            engine.dispose()
            engine = self.engine(f"keyaki+keyaki:///{path}?read_only=true")
            with engine.connect() as reader:
                self.assertEqual(reader.scalar(sa.text("SELECT count(*) FROM t")), 0)
                with self.assertRaises(sa.exc.DBAPIError) as caught:
                    reader.execute(sa.text("INSERT INTO t VALUES (1)"))
                self.assertEqual(caught.exception.orig.sqlstate, "25006")
            engine.dispose()
            with self.assertRaises(sa.exc.OperationalError):
                self.engine(f"keyaki:///{directory}/none?create=false").connect()
        for wrong in ["keyaki://host/path", "keyaki:///x?read_only=perhaps", "keyaki:///x?threads=many"]:
            with self.assertRaises(sa.exc.ArgumentError, msg=wrong):
                self.engine(wrong).connect()
        with self.assertRaisesRegex(sa.exc.ArgumentError, "not accepted by dialect 'keyaki'"):
            sa.Index("i", sa.column("a"), keyaki_using="vast")

    def test_two_engines_with_the_same_options(self):
        with tempfile.TemporaryDirectory() as directory:
            url = f"keyaki:///{os.path.join(directory, 'shop')}?memory=64 MiB&threads=1&durability=off&progress=false"
            first, second = self.engine(url), self.engine(url)
            with first.begin() as connection:
                connection.execute(sa.text("CREATE TABLE t (n BIGINT)"))
                self.assertIs(connection.connection.driver_connection.progress, False)
            with second.connect() as connection:
                self.assertEqual(connection.scalar(sa.text("SELECT count(*) FROM t")), 0)
            other = self.engine(url.replace("threads=1", "threads=2"))
            with self.assertRaisesRegex(sa.exc.DBAPIError, "only its first connection can choose"):
                other.connect()
            first.dispose()
            second.dispose()

    def test_forked_processes(self):
        with tempfile.TemporaryDirectory() as directory:
            program = f"""
import os, warnings, sqlalchemy as sa
from sqlalchemy.dialects import registry
registry.register("keyaki", "keyaki.sqlalchemy", "KeyakiDialect")
warnings.simplefilter("ignore")
engine = sa.create_engine("keyaki:///{directory}/shop?create=true")
with engine.begin() as connection:
    connection.execute(sa.text("CREATE TABLE t (n BIGINT)"))
child = os.fork()
if child == 0:
    engine.dispose(close=False)
    try:
        engine.connect()
    except sa.exc.OperationalError as error:
        # The parent has the lock.
        os._exit(0 if error.orig.sqlstate == "55006" else 2)
    os._exit(1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
            ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=LIMIT)
            self.assertEqual((ended.stdout, ended.stderr), ("0\n", ""))

    def test_isolation_levels(self):
        engine = self.engine(isolation_level="SERIALIZABLE")
        with engine.connect() as connection:
            self.assertEqual(connection.get_isolation_level(), "SERIALIZABLE")
            self.assertEqual(connection.scalar(sa.text("SHOW transaction_isolation")), "serializable")
        engine = self.engine()
        with engine.connect() as connection:
            self.assertEqual(connection.default_isolation_level, "REPEATABLE READ")
            connection.execution_options(isolation_level="AUTOCOMMIT")
            connection.execute(sa.text("CREATE TABLE t (n BIGINT)"))
            connection.execute(sa.text("INSERT INTO t VALUES (1)"))
            connection.rollback()
            self.assertEqual(connection.scalar(sa.text("SELECT count(*) FROM t")), 1)
        with engine.connect().execution_options(postgresql_readonly=True) as connection:
            with self.assertRaises(sa.exc.DBAPIError):
                connection.execute(sa.text("INSERT INTO t VALUES (2)"))
        with engine.begin() as connection:
            connection.execute(sa.text("INSERT INTO t VALUES (3)"))
        with self.assertRaises(sa.exc.ArgumentError):
            engine.connect().execution_options(postgresql_deferrable=True)

    def test_savepoints_and_failed_transactions(self):
        engine = self.engine()
        with engine.begin() as connection:
            connection.execute(sa.text("CREATE TABLE t (n BIGINT PRIMARY KEY)"))
            with connection.begin_nested():
                connection.execute(sa.text("INSERT INTO t VALUES (1)"))
            with self.assertRaises(sa.exc.IntegrityError), connection.begin_nested():
                connection.execute(sa.text("INSERT INTO t VALUES (2), (1)"))
            self.assertEqual(connection.scalars(sa.text("SELECT n FROM t")).all(), [1])

    def test_results_are_streams(self):
        with self.engine().connect() as connection:
            numbers = sa.text("SELECT a FROM generate_series(1, 5000) g (a)")
            result = connection.execution_options(stream_results=True, max_row_buffer=100).execute(numbers)
            self.assertEqual([row.a for row in result], list(range(1, 5001)))

    def test_closed_connections_are_replaced(self):
        engine = self.engine(pool_pre_ping=True)
        with engine.connect() as connection:
            connection.connection.driver_connection.close()
            with self.assertRaises(sa.exc.DBAPIError) as caught:
                connection.execute(sa.text("SELECT 1"))
            self.assertTrue(caught.exception.connection_invalidated)
        with engine.connect() as connection:
            self.assertEqual(connection.scalar(sa.text("SELECT 1")), 1)


class Tables(EngineTest):
    def setUp(self):
        self.database = self.engine()
        Base.metadata.create_all(self.database)

    def test_orm(self):
        with Session(self.database) as session:
            session.add(Author(name="Ann", books=[Book(title="A"), Book(title="B", price=decimal.Decimal("3.25"))]))
            session.add_all(Author(name=f"author {number}") for number in range(2000))
            session.commit()
            author = session.scalars(sa.select(Author).where(Author.name == "Ann")).one()
            self.assertEqual([(book.title, str(book.price)) for book in author.books], [("A", "1.50"), ("B", "3.25")])
            total = session.scalar(sa.select(sa.func.sum(Book.price)).join(Author).where(Author.name.like("A%")))
            self.assertEqual(total, decimal.Decimal("4.75"))
            session.delete(author)
            session.commit()
            self.assertEqual(session.scalar(sa.select(sa.func.count()).select_from(Book)), 0)
            self.assertEqual(session.scalar(sa.select(sa.func.count(sa.distinct(Author.id)))), 2000)

    def test_locked_rows_and_upserts(self):
        authors = Author.__table__
        with self.database.begin() as connection:
            insert = pg.insert(authors).values(name="Lea").returning(authors.c.id)
            key = connection.scalar(insert)
            again = insert.on_conflict_do_update(index_elements=["name"], set_={"name": insert.excluded.name + "!"})
            self.assertEqual(connection.scalar(again), key)
        with Session(self.database) as session, Session(self.database) as other:
            session.scalars(sa.select(Author).with_for_update()).one()
            with self.assertRaises(sa.exc.OperationalError) as raised:
                other.scalars(sa.select(Author).with_for_update(nowait=True)).all()
            self.assertEqual(raised.exception.orig.sqlstate, "55P03")

    def test_types(self):
        values = sa.Table(
            "values", sa.MetaData(), sa.Column("id", sa.Integer, primary_key=True), sa.Column("document", sa.JSON),
            sa.Column("binary", pg.JSONB), sa.Column("key", sa.Uuid), sa.Column("text_key", sa.Uuid(as_uuid=False)),
            sa.Column("numbers", sa.ARRAY(sa.Integer)), sa.Column("span", sa.Interval), sa.Column("price", sa.Numeric(10, 2)),
            sa.Column("ratio", sa.Float), sa.Column("kind", sa.Enum("a", "b", name="kind")),
            sa.Column("at", sa.DateTime(timezone=True)), sa.Column("bytes", sa.LargeBinary), sa.Column("truth", sa.Boolean),
        )
        values.create(self.database)
        row = {
            "id": 1, "document": {"a": [1, None], "b": "x"}, "binary": ["x", {"n": 7}], "key": uuid.uuid4(), "text_key": str(uuid.uuid4()),
            "numbers": [1, 2], "span": datetime.timedelta(days=1, seconds=2), "price": decimal.Decimal("1.25"), "ratio": 0.1,
            "kind": "b", "at": datetime.datetime(2024, 2, 29, 12, tzinfo=datetime.timezone.utc), "bytes": b"\0\xff", "truth": True,
        }
        empty = {name: None for name in row} | {"id": 2, "numbers": []}
        columns = values.c
        with self.database.begin() as connection:
            connection.execute(values.insert(), [row, empty])
            found = connection.execute(sa.select(values).order_by(columns.id)).mappings().all()
            self.assertEqual(dict(found[0]), row)
            self.assertEqual(dict(found[1]), empty)
            for condition in [
                columns.document["b"].as_string() == "x", columns.document[("a", 0)].as_integer() == 1, columns.binary.contains(["x"]),
                sa.literal(2) == sa.any_(columns.numbers), columns.span < datetime.timedelta(days=2), columns.at > datetime.datetime(2024, 1, 1),
                columns.key == row["key"], columns.text_key == row["text_key"], columns.price.in_([decimal.Decimal("1.25")]),
                columns.at - datetime.timedelta(days=1) == datetime.datetime(2024, 2, 28, 12, tzinfo=datetime.timezone.utc),
            ]:
                self.assertEqual(connection.scalars(sa.select(columns.id).where(condition)).all(), [1], str(condition))
            self.assertEqual(connection.scalar(sa.select(sa.cast(sa.literal(0.1), sa.Float))), 0.1)

    def test_serializers_of_the_program(self):
        import json

        engine = self.engine(json_serializer=lambda value: json.dumps([value]), json_deserializer=lambda text: json.loads(text)[0])
        table = sa.Table("t", sa.MetaData(), sa.Column("document", sa.JSON))
        table.create(engine)
        with engine.begin() as connection:
            connection.execute(table.insert(), {"document": {"a": 1}})
            self.assertEqual(connection.scalar(sa.select(table.c.document)), {"a": 1})
            self.assertEqual(connection.scalar(sa.text("SELECT document::text FROM t")), '[{"a": 1}]')

    def test_reflection(self):
        with self.database.begin() as connection:
            for statement in ["CREATE VIEW titles AS SELECT title FROM books", "CREATE SEQUENCE numbers", "CREATE SCHEMA other",
                              "CREATE TABLE other.t (id BIGINT PRIMARY KEY, book BIGINT REFERENCES public.books (id))"]:
                connection.execute(sa.text(statement))
        inspector = sa.inspect(self.database)
        self.assertEqual(inspector.get_schema_names(), ["information_schema", "other", "public"])
        self.assertEqual(inspector.get_table_names(), ["authors", "books"])
        self.assertEqual((inspector.get_view_names(), inspector.get_table_names("other")), (["titles"], ["t"]))
        self.assertIn("title", inspector.get_view_definition("titles"))
        self.assertIn("numbers", inspector.get_sequence_names())
        columns = {column["name"]: column for column in inspector.get_columns("books")}
        price = columns["price"]
        self.assertEqual((price["type"].precision, price["type"].scale, price["nullable"]), (8, 2, False))
        self.assertEqual((price["default"], price["comment"]), ("'1.50'", "in euros"))
        self.assertEqual(columns["id"]["identity"]["start"], 1)
        self.assertEqual(inspector.get_pk_constraint("books")["constrained_columns"], ["id"])
        [key] = inspector.get_foreign_keys("books")
        self.assertEqual((key["referred_table"], key["options"]), ("authors", {"ondelete": "CASCADE"}))
        [index] = inspector.get_indexes("books")
        self.assertEqual((index["name"], index["dialect_options"]), ("books_title", {"postgresql_include": ["price"]}))
        [unique] = inspector.get_unique_constraints("authors")
        self.assertEqual(unique["column_names"], ["name"])
        [check] = inspector.get_check_constraints("books")
        self.assertEqual((check["name"], check["sqltext"]), ("positive", "price >= 0"))
        self.assertEqual(inspector.get_table_comment("authors")["text"], "people")
        metadata = sa.MetaData()
        metadata.reflect(self.database, views=True)
        metadata.reflect(self.database, schema="other")
        self.assertEqual(set(metadata.tables), {"authors", "books", "titles", "other.t"})

    def test_pandas(self):
        frame = pandas.DataFrame({"n": [1, 2, 3], "name": ["a", None, "c"], "at": pandas.to_datetime(["2024-01-01"] * 3)})
        self.assertEqual(frame.to_sql("frames", self.database, index=False), 3)
        self.assertEqual(frame.to_sql("frames", self.database, index=False, if_exists="append", method="multi"), 3)
        with self.assertRaises(ValueError):
            frame.to_sql("frames", self.database)
        read = pandas.read_sql("SELECT * FROM frames WHERE n > 1 ORDER BY n", self.database)
        self.assertEqual(read["n"].tolist(), [2, 2, 3, 3])
        self.assertEqual(str(read["at"].dtype)[:10], "datetime64")
        selected = pandas.read_sql(sa.text("SELECT n FROM frames WHERE name = :name"), self.database, params={"name": "a"})
        self.assertEqual(selected["n"].tolist(), [1, 1])
        self.assertEqual(len(pandas.read_sql_table("frames", self.database, columns=["n"])), 6)
        chunks = pandas.read_sql("SELECT a FROM generate_series(1, 1000) g (a)", self.database, chunksize=300)
        self.assertEqual([len(chunk) for chunk in chunks], [300, 300, 300, 100])


class Compliance(unittest.TestCase):
    def test_the_suite_of_sqlalchemy(self):
        """KEYAKI_COMPLIANCE=all also runs the combinations that take long."""
        with tempfile.TemporaryDirectory() as directory:
            pytest = [sys.executable, "-m", "pytest", "-c", "setup.cfg", "-p", "no:cacheprovider", "-q", "--tb=short", "--maxfail=50"]
            command = [*pytest, "--dburi", f"keyaki:///{directory}/db", "."]
            ended = subprocess.run(command, cwd=COMPLIANCE, capture_output=True, text=True, timeout=LIMIT)
        print(ended.stdout.splitlines()[-1], file=sys.stderr)
        self.assertEqual(ended.returncode, 0, ended.stdout[-20000:] + ended.stderr[-5000:])


if __name__ == "__main__":
    unittest.main()
