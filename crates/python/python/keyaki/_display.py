"""Results as HTML tables, for notebooks."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any, Sequence

if TYPE_CHECKING:
    from . import Cursor

# Rows and characters of a value that a table shows.
_ROWS = 20
_CHARACTERS = 200


def html_of_cursor(cursor: Cursor) -> str:
    if cursor.description is None:
        return f"<p>{cursor.rowcount} rows changed</p>" if cursor.rowcount >= 0 else "<p>no result</p>"
    columns = [(column[0], column[1]) for column in cursor.description]
    rows = cursor.fetchmany(_ROWS + 1)
    return html_table(columns, rows[:_ROWS], has_more=len(rows) > _ROWS)


def html_table(columns: Sequence[tuple[str, str]], rows: Sequence[Sequence[Any]], has_more: bool = False) -> str:
    """A table of rows below the names and types of their columns."""
    head = "".join(f"<th>{escape(name)}<br><small>{escape(type_name)}</small></th>" for name, type_name in columns)
    body = "".join("<tr>" + "".join(_cell(value) for value in row) + "</tr>" for row in rows)
    foot = f"<p>The first {len(rows)} rows.</p>" if has_more else ""
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{foot}"


def _cell(value: Any) -> str:
    if value is None:
        return "<td><em>NULL</em></td>"
    text = str(value)
    if len(text) > _CHARACTERS:
        text = text[:_CHARACTERS] + "…"
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return f'<td style="text-align: right">{text}</td>' if is_number else f"<td>{escape(text)}</td>"
