"""The magics `%sql` and `%%sql` of IPython and Jupyter, after `%load_ext keyaki`.

| line | effect |
|---|---|
| `%sql keyaki:///shop` | opens a database and makes it the current one; `keyaki:///:memory:` is a temporary one |
| `%sql con` | makes a connection of the notebook the current one |
| `%sql SELECT …` | executes statements, and returns the result of the last one |
| `%%sql` | executes those of the cell |
| `%sql rows << SELECT …`, `%%sql rows <<` | assigns the result to a variable |
| `$name` in a statement | the value of a variable of the notebook, as a parameter |
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, unquote, urlsplit

from IPython.core.magic import Magics, line_cell_magic, magics_class, no_var_expand

import keyaki

from ._display import html_table
from ._shell import statements, table, tokens
from ._url import options_of

if TYPE_CHECKING:
    import pandas

_URL = "keyaki://"
_ASSIGNMENT = re.compile(r"\s*([^\W\d]\w*)\s*<<(.*)", re.S)
# Rows that are shown.
_ROWS = 20


class Result:
    """The rows of a statement: a sequence of tuples. Notebooks show a table with the types of the columns."""

    def __init__(self, cursor: keyaki.Cursor) -> None:
        #: Name and type of each column; empty for statements without a result.
        self.columns = [(column[0], column[1]) for column in cursor.description or ()]
        #: Number of rows that the statement has changed; -1 for others.
        self.rowcount = cursor.rowcount
        self._rows = cursor.fetchall() if self.columns else []

    def df(self) -> pandas.DataFrame:
        """The rows as a pandas.DataFrame."""
        import pandas

        return pandas.DataFrame(self._rows, columns=[name for name, _ in self.columns])

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        return iter(self._rows)

    def __getitem__(self, index: Any) -> Any:
        return self._rows[index]

    def __repr__(self) -> str:
        if not self.columns:
            return f"{self.rowcount} rows changed" if self.rowcount >= 0 else "no result"
        return "\n".join(table(self.columns, iter(self._rows[:_ROWS]), len(self)))

    def _repr_html_(self) -> str:
        if not self.columns:
            return f"<p>{self!r}</p>"
        return html_table(self.columns, self._rows[:_ROWS], has_more=len(self) > _ROWS)


@magics_class
class KeyakiMagics(Magics):  # type: ignore[misc, unused-ignore]
    """`%sql` and `%%sql`."""

    connection: keyaki.Connection | None = None

    @property
    def _variables(self) -> dict[str, Any]:
        assert self.shell is not None, "magics belong to a shell"
        variables: dict[str, Any] = self.shell.user_ns
        return variables

    @no_var_expand  # type: ignore[untyped-decorator, unused-ignore]
    @line_cell_magic  # type: ignore[untyped-decorator, unused-ignore]
    def sql(self, line: str, cell: str | None = None) -> Any:
        """Executes SQL, or chooses the database: see docs/python.md."""
        assigned = _ASSIGNMENT.fullmatch(line)
        name, line = (assigned[1], assigned[2]) if assigned else (None, line)
        line = line.strip()
        if self._connects(line):
            line = ""
            if cell is None:
                return None
        result = self._execute(f"{line}\n{cell or ''}")
        if name is None:
            return result
        self._variables[name] = result
        return None

    def _connects(self, line: str) -> bool:
        """Makes the database that a line names the current one. False if it names none."""
        if line.startswith(_URL):
            self.connection = _opened(line)
            return True
        named = self._variables.get(line) if line.isidentifier() else None
        if isinstance(named, keyaki.Connection):
            self.connection = named
            return True
        return False

    def _execute(self, script: str) -> Result | None:
        parts = [statement for statement, _ in statements(script)]
        if not parts:
            return None
        if self.connection is None or self.connection.closed:
            raise keyaki.InterfaceError("no database is open: use %sql keyaki:///path or %sql keyaki:///:memory:")
        result = None
        for part in parts:
            sql, parameters = bound(part, self._variables)
            result = Result(self.connection.execute(sql, parameters or None))
        return result


def _opened(url: str) -> keyaki.Connection:
    parts = urlsplit(url)
    if parts.netloc:
        raise keyaki.ProgrammingError(f"{url}: a database is a directory: keyaki:///relative/path, keyaki:////absolute/path")
    path = unquote(parts.path.removeprefix("/"))
    return keyaki.connect(path or ":memory:", autocommit=True, **options_of(parse_qsl(parts.query, keep_blank_values=True)))


def bound(statement: str, variables: dict[str, Any]) -> tuple[str, list[Any]]:
    """Replaces `$name` by a parameter. Returns the statement and the values."""
    names: list[str] = []
    parts: list[str] = []
    follows_dollar = False
    for text, is_plain in tokens(statement):
        if follows_dollar and is_plain and text.isidentifier():
            if text not in variables:
                raise keyaki.ProgrammingError(f"${text}: there is no variable of this name")
            if text not in names:
                names.append(text)
            parts[-1] = f"${names.index(text) + 1}"
        else:
            parts.append(text)
        follows_dollar = is_plain and text == "$"
    if names and re.search(r"\$\d", statement):
        raise keyaki.ProgrammingError("a statement with variables ($name) cannot have numbered parameters ($1)")
    return "".join(parts), [variables[name] for name in names]
