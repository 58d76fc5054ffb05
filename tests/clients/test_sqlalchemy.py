"""SQLAlchemy 2: Core, ORM and reflection."""

import decimal

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, relationship

from served import ServedTest


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
    __table_args__ = (
        sa.Index("books_title", "title"),
        sa.CheckConstraint("price >= 0", name="not_negative"),
    )
    id: Mapped[int] = mapped_column(primary_key=True)
    title: Mapped[str]
    price: Mapped[decimal.Decimal] = mapped_column(sa.Numeric(8, 2), server_default="1.50", comment="in euros")
    author_id: Mapped[int] = mapped_column(sa.ForeignKey("authors.id", ondelete="CASCADE"))
    author: Mapped[Author] = relationship(back_populates="books")


class Document(Base):
    __tablename__ = "documents"
    id: Mapped[int] = mapped_column(primary_key=True)
    content: Mapped[dict] = mapped_column(sa.JSON)
    tags: Mapped[list | None] = mapped_column(JSONB)


class SqlAlchemy(ServedTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.engine = sa.create_engine(f"postgresql+psycopg://me@127.0.0.1:{cls.server.port}/keyaki")
        Base.metadata.create_all(cls.engine)
        with cls.engine.begin() as connection:
            connection.execute(sa.text("CREATE VIEW titles AS SELECT title FROM books"))
            connection.execute(sa.text("CREATE SEQUENCE numbers"))

    @classmethod
    def tearDownClass(cls):
        cls.engine.dispose()
        super().tearDownClass()

    def test_orm(self):
        with Session(self.engine) as session:
            session.add(Author(name="Ann", books=[Book(title="A"), Book(title="B", price=decimal.Decimal("3.25"))]))
            session.commit()
            author = session.scalars(sa.select(Author).where(Author.name == "Ann")).one()
            self.assertEqual([(book.title, str(book.price)) for book in author.books], [("A", "1.50"), ("B", "3.25")])
            total = session.scalar(sa.select(sa.func.sum(Book.price)).join(Author).where(Author.name.like("A%")))
            self.assertEqual(total, decimal.Decimal("4.75"))
            author.name = "Anne"
            session.commit()
            session.delete(author)
            session.commit()
            self.assertEqual(session.scalar(sa.select(sa.func.count()).select_from(Book)), 0)

    def test_documents(self):
        with Session(self.engine) as session:
            session.add(Document(content={"a": [1, None], "b": "x"}, tags=["x", {"n": 7}]))
            session.commit()
            document = session.scalars(sa.select(Document).where(Document.content["b"].as_string() == "x")).one()
            self.assertEqual((document.content, document.tags), ({"a": [1, None], "b": "x"}, ["x", {"n": 7}]))
            second = sa.select(Document.tags.op("->")(1)).where(Document.tags.contains(["x"]))
            self.assertEqual(session.scalar(second), {"n": 7})
            session.delete(document)
            session.commit()

    def test_locked_rows(self):
        with Session(self.engine) as session, Session(self.engine) as other:
            session.add_all([Author(name=name) for name in ("Lea", "Max", "Zoe")])
            session.commit()
            lea = session.scalars(sa.select(Author).where(Author.name == "Lea").with_for_update()).one()
            with self.assertRaises(sa.exc.OperationalError) as raised:
                other.scalars(sa.select(Author).where(Author.id == lea.id).with_for_update(nowait=True)).all()
            self.assertEqual(raised.exception.orig.sqlstate, "55P03")
            other.rollback()
            free = sa.select(Author.name).where(Author.name.in_(["Lea", "Max", "Zoe"])).order_by(Author.name).limit(2)
            self.assertEqual(other.scalars(free.with_for_update(skip_locked=True)).all(), ["Max", "Zoe"])
            other.rollback()
            joined = sa.select(Author.name).outerjoin(Book).where(Author.name == "Zoe")
            self.assertEqual(other.scalars(joined.with_for_update(of=Author, key_share=True)).all(), ["Zoe"])
            self.assertEqual(session.scalars(joined.with_for_update(read=True, key_share=True)).all(), ["Zoe"])
            session.rollback()
            other.rollback()
            session.execute(sa.delete(Author).where(Author.name.in_(["Lea", "Max", "Zoe"])))
            session.commit()

    def test_core_returns_generated_keys(self):
        authors = Author.__table__
        with self.engine.begin() as connection:
            names = [{"name": f"author {number}"} for number in range(10)]
            keys = connection.execute(sa.insert(authors).returning(authors.c.id), names).scalars().all()
            self.assertEqual(len(set(keys)), 10)
            statement = sa.delete(authors).where(authors.c.id.in_(keys))
            self.assertEqual(connection.execute(statement).rowcount, 10)

    def test_reflection(self):
        inspector = sa.inspect(self.engine)
        self.assertEqual(inspector.get_schema_names(), ["information_schema", "public"])
        self.assertEqual(inspector.get_table_names(), ["authors", "books", "documents"])
        self.assertEqual(inspector.get_view_names(), ["titles"])
        self.assertIn("numbers", inspector.get_sequence_names())
        self.assertTrue(inspector.has_table("books") and not inspector.has_table("nothing"))
        columns = {column["name"]: column for column in inspector.get_columns("books")}
        self.assertEqual(list(columns), ["id", "title", "price", "author_id"])
        price = columns["price"]
        self.assertEqual((price["type"].precision, price["type"].scale, price["nullable"]), (8, 2, False))
        self.assertEqual((price["default"], price["comment"]), ("'1.50'", "in euros"))
        self.assertTrue(columns["id"]["autoincrement"])
        self.assertEqual(inspector.get_pk_constraint("books")["constrained_columns"], ["id"])
        [key] = inspector.get_foreign_keys("books")
        self.assertEqual((key["constrained_columns"], key["referred_table"]), (["author_id"], "authors"))
        self.assertEqual((key["referred_columns"], key["options"]), (["id"], {"ondelete": "CASCADE"}))
        [index] = inspector.get_indexes("books")
        self.assertEqual((index["name"], index["column_names"], index["unique"]), ("books_title", ["title"], False))
        [unique] = inspector.get_unique_constraints("authors")
        self.assertEqual(unique["column_names"], ["name"])
        [check] = inspector.get_check_constraints("books")
        self.assertEqual((check["name"], check["sqltext"]), ("not_negative", "price >= 0"))
        self.assertEqual(inspector.get_table_comment("authors")["text"], "people")
        metadata = sa.MetaData()
        metadata.reflect(self.engine, views=True)
        self.assertEqual(set(metadata.tables), {"authors", "books", "documents", "titles"})
        self.assertIsNotNone(metadata.tables["books"].columns["id"].identity)
        self.assertIsInstance(metadata.tables["documents"].columns["content"].type, sa.JSON)
        self.assertIsInstance(metadata.tables["documents"].columns["tags"].type, JSONB)
        self.assertEqual([column.name for column in metadata.tables["titles"].columns], ["title"])

    def test_results_are_read_in_parts(self):
        with self.engine.connect() as connection:
            numbers = sa.text("SELECT a FROM generate_series(1, 5000) g (a)")
            result = connection.execution_options(stream_results=True, max_row_buffer=100).execute(numbers)
            self.assertEqual(connection.exec_driver_sql("SELECT count(*) FROM pg_cursors").scalar(), 1)
            self.assertEqual([row.a for row in result], list(range(1, 5001)))
