"""The shell of `python -m keyaki`: statements of several lines, tables of results, dot commands, a history.

It needs nothing but the module. The program `keyaki` has a shell with more commands and completion.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import pathlib
import re
import sys
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keyaki

_HISTORY = pathlib.Path("~/.keyaki_python_history")
_HISTORY_LINES = 1000
# Rows whose values determine the widths of the columns of a table.
_ROWS = 1000
_CHARACTERS = 200

# Parts of statements in which a semicolon does not end the statement, and others.
_TOKEN = re.compile(
    r"""(?P<comment>--[^\n]*|/\*) | (?P<escaped>\b[eE]'(?:[^'\\]|\\.|'')*'?) | (?P<text>'(?:[^']|'')*'?)
      | (?P<name>"(?:[^"]|"")*"?) | (?P<dollar>(?<!\w)\$(?:[^\W\d]\w*)?\$) | (?P<end>;) | (?P<other>[^\W\d]\w*|.)""",
    re.X | re.S,
)


def tokens(script: str) -> Iterator[tuple[str, bool]]:
    """The words, signs, texts, names and comments of a script. The second value is True for words and signs."""
    at = 0
    while at < len(script):
        token = _TOKEN.match(script, at)
        assert token is not None, "the last alternative matches every character"
        end = token.end()
        if token.group() == "/*":
            end = _comment_end(script, end)
        elif token.lastgroup == "dollar":
            closing = script.find(token.group(), end)
            end = len(script) if closing < 0 else closing + len(token.group())
        yield script[at:end], token.lastgroup in ("end", "other")
        at = end


def statements(script: str) -> Iterator[tuple[str, bool]]:
    """The statements of a script. The second value is True if the statement ends with a semicolon."""
    parts: list[str] = []
    has_content = False
    for text, is_plain in tokens(script):
        parts.append(text)
        if is_plain and text == ";":
            if has_content:
                yield "".join(parts).strip(), True
            parts, has_content = [], False
        elif not text.isspace() and not text.startswith(("--", "/*")):
            has_content = True
    if has_content:
        yield "".join(parts).strip(), False


def _comment_end(script: str, at: int) -> int:
    depth = 1
    for mark in re.compile(r"/\*|\*/").finditer(script, at):
        depth += 1 if mark.group() == "/*" else -1
        if depth == 0:
            return mark.end()
    return len(script)


def _shown(value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, bytes):
        return "\\x" + value.hex()
    text = json.dumps(value, ensure_ascii=False) if isinstance(value, dict) else str(value)
    text = text if len(text) <= _CHARACTERS else text[: _CHARACTERS - 1] + "…"
    # Control characters of data must not reach the terminal.
    return "".join(letter if letter.isprintable() else "\\n" if letter == "\n" else "�" for letter in text)


def _width(text: str) -> int:
    return sum(
        0 if unicodedata.combining(letter) else 2 if unicodedata.east_asian_width(letter) in "WF" else 1 for letter in text
    )


def table(columns: Sequence[tuple[Any, ...]], rows: Iterator[tuple[Any, ...]], total: int | None = None) -> Iterator[str]:
    """The lines of a table of rows, of which there are `total`. The first rows determine the widths of its columns."""
    names = [_shown(column[0]) for column in columns]
    are_numbers = [column[1] == keyaki.NUMBER and column[1] != "boolean" for column in columns]
    first = [[_shown(value) for value in row] for row in itertools.islice(rows, _ROWS)]
    widths = [max(map(_width, texts)) for texts in zip(names, *first)]

    def line(texts: list[str]) -> str:
        cells = []
        for text, width, is_number in zip(texts, widths, are_numbers):
            padding = " " * (width - _width(text))
            cells.append(padding + text if is_number else text + padding)
        return "│ " + " │ ".join(cells) + " │"

    def rule(left: str, middle: str, right: str) -> str:
        return left + middle.join("─" * (width + 2) for width in widths) + right

    yield rule("┌", "┬", "┐")
    yield line(names)
    yield rule("├", "┼", "┤")
    count = 0
    for texts in itertools.chain(first, ([_shown(value) for value in row] for row in rows)):
        yield line(texts)
        count += 1
    yield rule("└", "┴", "┘")
    first_of = f"the first {count} of " if total is not None and count < total else ""
    count = max(count, total or 0)
    yield f"({first_of}{count} row{'' if count == 1 else 's'})"


class Shell:
    """Executes statements and dot commands, and prints their results."""

    def __init__(self, connection: keyaki.Connection, write: Callable[[str], Any] = print) -> None:
        self.connection = connection
        self.write = write
        self.is_ended = False
        self.commands: dict[str, tuple[Callable[..., bool | None], str, str]] = {
            ".help": (self.help, "", "list the commands"),
            ".quit": (self.quit, "", "leave the shell, as does Ctrl-D"),
            ".read": (self.read, "FILE", "execute the statements of a file"),
            ".schema": (self.schema, "[TABLE]", "show the statements that create the tables and views"),
            ".tables": (self.tables, "", "list tables and views"),
        }

    def execute(self, statement: str) -> bool:
        """Executes a statement and prints its result or its error. True if it succeeded."""
        try:
            cursor = self.connection.execute(statement)
            if cursor.description is not None:
                for line in table(cursor.description, cursor):
                    self.write(line)
            elif cursor.rowcount >= 0:
                self.write(f"{cursor.rowcount} row{'' if cursor.rowcount == 1 else 's'} changed")
            for notice in self.connection.notices():
                self.write(notice)
        except keyaki.Error as error:
            self.fail(str(error))
            return False
        except KeyboardInterrupt:
            self.fail("cancelled")
            return False
        return True

    def fail(self, message: str) -> None:
        print(f"error: {message}", file=sys.stderr)

    def command(self, line: str) -> bool:
        """Executes a dot command. True if it succeeded."""
        name, *arguments = line.strip().rstrip(";").split()
        if name not in self.commands:
            self.fail(f'unknown command "{name}" (.help lists the commands)')
            return False
        function, parameters, _ = self.commands[name]
        if len(arguments) > (1 if parameters else 0) or (not arguments and parameters and parameters[0] != "["):
            self.fail(f"usage: {name} {parameters}".rstrip())
            return False
        try:
            return function(*arguments) is not False
        except (keyaki.Error, OSError) as error:
            self.fail(str(error))
            return False

    def help(self) -> None:
        """Lists the commands."""
        for name, (_, parameters, summary) in self.commands.items():
            self.write(f"{name + ' ' + parameters:<18}{summary}")
        self.write("Statements end with a semicolon. Ctrl-C cancels a statement.")

    def quit(self) -> None:
        """Ends the shell."""
        self.is_ended = True

    def read(self, file: str) -> bool:
        """Executes a file up to its first error."""
        return self.script(pathlib.Path(file).expanduser().read_text())

    def tables(self) -> None:
        """Lists the tables and views."""
        self.execute(
            "SELECT table_schema AS schema, table_name AS name, CASE table_type WHEN 'VIEW' THEN 'view' ELSE 'table' END AS kind"
            " FROM information_schema.tables WHERE table_schema NOT IN ('pg_catalog', 'information_schema') ORDER BY 1, 2"
        )

    def schema(self, wanted: str | None = None) -> bool:
        """Shows the statements that create the tables and views."""
        found = self.connection.execute(
            "SELECT table_schema, table_name, table_type FROM information_schema.tables"
            " WHERE table_schema NOT IN ('pg_catalog', 'information_schema') ORDER BY table_type = 'VIEW', 1, 2"
        ).fetchall()
        shown = False
        for schema, name, kind in found:
            if wanted not in (None, name, f"{schema}.{name}"):
                continue
            shown = True
            quoted = ".".join('"' + part.replace('"', '""') + '"' for part in (schema, name))
            created = self.connection.execute(f"SHOW CREATE {'VIEW' if kind == 'VIEW' else 'TABLE'} {quoted}")
            for row in created:
                self.write(f"{row[-1]};")
        if wanted is not None and not shown:
            self.fail(f'there is no table or view "{wanted}"')
        return shown or wanted is None

    def script(self, script: str) -> bool:
        """Executes statements and lines with dot commands up to the first error."""
        pending = ""
        for line in script.splitlines(keepends=True):
            if line.startswith(".") and not pending.strip():
                if not self.command(line):
                    return False
                pending = ""
                continue
            pending += line
            if ";" in line:
                pending, succeeded = self.complete(pending, stops=True)
                if not succeeded:
                    return False
            if self.is_ended:
                return True
        return all(self.execute(statement) for statement, _ in statements(pending))

    def complete(self, text: str, stops: bool) -> tuple[str, bool]:
        """Executes the complete statements of a text. Returns the rest, and False after an error, at which it `stops`."""
        rest, succeeded = "", True
        for statement, is_complete in statements(text):
            if not is_complete:
                rest = statement + "\n"
            elif not self.execute(statement):
                succeeded = False
                if stops:
                    return "", False
        return rest, succeeded

    def interact(self, ask: Callable[[str], str] = input) -> None:
        """Reads statements from the terminal."""
        pending = ""
        while not self.is_ended:
            mark = "*" if self.connection.in_transaction else ">"
            try:
                line = ask(f"keyaki{mark} " if not pending else "     …> ")
            except EOFError:
                self.write("")
                return
            except KeyboardInterrupt:
                self.write("")
                pending = ""
                continue
            if not pending and line.lstrip().startswith("."):
                self.command(line)
                continue
            pending, _ = self.complete(pending + line + "\n", stops=False)


@contextlib.contextmanager
def _history() -> Iterator[None]:
    """Edits lines, with those of earlier sessions, if the interpreter has readline."""
    try:
        import readline
    except ImportError:
        yield
        return
    path = os.fspath(_HISTORY.expanduser())
    with contextlib.suppress(OSError):
        readline.read_history_file(path)
    readline.set_history_length(_HISTORY_LINES)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            # Statements may contain passwords.
            os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600))
            readline.write_history_file(path)


def main(words: list[str]) -> int:
    """Runs the shell. Returns its exit code: 0, or 1 if a statement failed."""
    parser = argparse.ArgumentParser(prog="python -m keyaki", description="The shell of Keyaki.")
    parser.add_argument("database", nargs="?", default=":memory:", help="a directory [default: a temporary database]")
    parser.add_argument("-c", "--command", action="append", metavar="SQL", help="execute this and exit (may be repeated)")
    parser.add_argument("--read-only", action="store_true", help="open an existing database for reading")
    parser.add_argument("--memory", help='memory for cache, buffers and queries, as "2 GiB"')
    parser.add_argument("--version", action="version", version=f"keyaki {keyaki.__version__}")
    arguments = parser.parse_args(words)
    try:
        connection = keyaki.connect(
            arguments.database, read_only=arguments.read_only, memory=arguments.memory, autocommit=True
        )
    except keyaki.Error as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    with contextlib.closing(connection):
        shell = Shell(connection)
        try:
            if arguments.command:
                return 0 if all(shell.script(command) for command in arguments.command) else 1
            if not sys.stdin.isatty():
                return 0 if shell.script(sys.stdin.read()) else 1
            shell.write(f'Keyaki {keyaki.__version__}. Statements end with a semicolon; ".help" lists the commands.')
            with _history():
                shell.interact()
        except BrokenPipeError:
            # The reader of the output has ended. Nothing may be written at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 1
    return 0
