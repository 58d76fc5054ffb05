"""The steps of an episode, their execution on Keyaki and the references, and the reduction of failing episodes."""

import re
import time
from collections import Counter
from dataclasses import dataclass

import changes
from engines import Crash, DuckDb, Keyaki, NoOpinion, Sqlite, StatementError, TooLarge, as_numbers, comparable, equal

UNSUPPORTED = re.compile(r"not supported|not implemented", re.I)
# Cross joins, and joins in which one key has most of the rows, must fit into memory (docs/plan.md).
OUT_OF_MEMORY = re.compile(r"^out of memory: (CrossJoinExec|the hash join) ")
# Errors that a user must never see, also where an error is expected.
INTERNAL = re.compile(r"internal error|panicked|arrow error|schema error|physical|datafusion|execution error", re.I)
# Averages of DECIMAL(8,2) are rounded to six digits after the point.
AVERAGE_ROUNDING = 1e-6
# Of larger results, only the numbers of rows are compared: sorting millions of rows takes minutes.
ROWS_COMPARED_MAX = 50_000
# While a table has more rows, the rows of queries are not inserted, because joins of a table with itself multiply them.
INSERT_ROWS_MAX = 200
# There are no statements whose joins could have more rows: they take minutes.
JOINED_ROWS_MAX = 300_000_000
# Relations of a statement that are joined with each other, at most.
JOINED_RELATIONS_MAX = 6
RELATION = re.compile(r"\b(?:FROM|JOIN|USING|INTO|UPDATE) \w+ AS ")
# Seconds for the reduction of one failure.
REDUCTION = 60


class Difference(Exception):
    """A defect of Keyaki, or a difference of the dialects that the generator does not know."""

    def __init__(self, kind, sql, message):
        super().__init__(message)
        self.kind, self.sql = kind, sql
        # Failures with the same signature have the same cause, probably: the kind, and the message without names and numbers.
        self.signature = kind, "" if "\n  " in message else re.sub(r"\"[^\"]*\"|\d+|\([^)]*\)", "", message.rsplit("Keyaki:", 1)[-1])


class Unsupported(Exception):
    """Keyaki does not support a statement."""


class Context:
    """Keyaki and the references during one run of steps."""

    def __init__(self, references, options=()):
        self.keyaki = Keyaki(*options)
        self.references = [{"sqlite": Sqlite, "duckdb": DuckDb}[name]() for name in references]
        # Outside of a transaction, in one, or in one that an error has made fail.
        self.state = "none"
        # The numbers of rows when the tables were compared last.
        self.sizes = {}
        self.counts = Counter()

    def close(self):
        self.counts["statements"] = self.keyaki.statements
        self.keyaki.close()
        for reference in self.references:
            reference.close()

    def execute(self, sql):
        """Runs a statement on Keyaki: (rows, count, None) or (None, None, error)."""
        try:
            rows, count = self.keyaki.execute(sql)
            error = None
        except StatementError as failure:
            rows, count, error = None, None, str(failure)
        except Crash as crash:
            raise Difference("crash", sql, str(crash)) from None
        except TooLarge as large:
            self.counts["too large"] += 1
            raise Unsupported(str(large)) from None
        if error is not None and OUT_OF_MEMORY.search(error):
            self.counts["out of memory"] += 1
            self.fail()
            raise Unsupported(error)
        if self.state == "failed" and error is None:
            raise Difference("failed transaction", sql, "a statement succeeded in a failed transaction")
        if error is not None and INTERNAL.search(error) and not UNSUPPORTED.search(error):
            raise Difference("internal error", sql, error)
        return rows, count, error

    def query(self, sql):
        """The rows of a query, None in a failed transaction."""
        rows, _, error = self.execute(sql)
        if self.state == "failed":
            return None
        if error is not None:
            self.fail()
            if UNSUPPORTED.search(error):
                self.counts["unsupported"] += 1
                raise Unsupported(error)
            raise Difference("error", sql, error)
        return rows

    def has_more_rows(self, limit):
        """True, and counted, if a table has more rows than the limit."""
        is_large = max(self.sizes.values(), default=0) > limit
        self.counts["too large"] += is_large
        return is_large

    def is_large(self, sql):
        """True, and counted, if the joins of a statement could have too many rows."""
        relations = min(len(RELATION.findall(sql)), JOINED_RELATIONS_MAX)
        is_large = max(self.sizes.values(), default=0) ** relations > JOINED_ROWS_MAX
        self.counts["too large"] += is_large
        return is_large

    def fail(self):
        if self.state == "open":
            self.state = "failed"

    def opinions(self, names, function):
        """(reference, result or StatementError) of the references that support a statement."""
        results = []
        for reference in self.references:
            if reference.name not in names:
                continue
            try:
                results.append((reference, function(reference)))
            except StatementError as error:
                results.append((reference, error))
            except NoOpinion:
                self.counts[f"no opinion of {reference.name}"] += 1
        return results

    def check(self, table, sql, judges):
        """Compares a table with the judges, and copies it to the other references."""
        if self.state == "failed":
            return
        select = f"SELECT * FROM {table}"
        found = self.query(select)
        self.sizes[table] = len(found)
        for reference in judges:
            expected, _ = reference.run(select)
            compare("table", f"{sql};\n{select}", reference.name, expected, found)
        for reference in self.references:
            if reference not in judges:
                reference.replace(table, found)


def compare(kind, sql, name, expected, found, ordered=False, rounding=0.0):
    if min(len(expected), len(found)) > ROWS_COMPARED_MAX:
        expected, found = [(f"{len(expected)} rows",)], [(f"{len(found)} rows",)]
    a, b = comparable(expected, ordered), comparable(found, ordered)
    if not equal(a, b, rounding):
        rows = lambda rows: "\n  ".join(map(str, rows[:40])) or "(no rows)"
        raise Difference(kind, sql, f"{name}:\n  {rows(a)}\nKeyaki:\n  {rows(b)}")


@dataclass
class Create:
    table: object

    def run(self, context):
        self.sql = self.table.definition()
        if context.execute(self.sql)[2] is not None:
            raise Difference("create", self.sql, context.execute(self.sql)[2])
        for reference in context.references:
            reference.create(self.table)


@dataclass
class Local:
    """A statement that the references do not need."""

    sql: str

    def run(self, context):
        _, _, error = context.execute(self.sql)
        if error is not None and context.state != "failed":
            raise Difference("error", self.sql, error)


@dataclass
class Index:
    """CREATE UNIQUE INDEX: fails if the table has duplicates."""

    sql: str
    table: str
    key: tuple

    def run(self, context):
        _, _, error = context.execute(self.sql)
        if context.state == "failed":
            return
        for reference in context.references:
            keys = reference.keys[self.table]
            try:
                reference.keys[self.table] = [self.key]
                reference.check(self.table)
                expected = None
            except StatementError as failure:
                expected = str(failure)
            reference.keys[self.table] = keys + [self.key] * (error is None)
            if (expected is None) != (error is None):
                raise Difference("unique", self.sql, f"{reference.name}: {expected or 'no error'}\nKeyaki: {error or 'no error'}")


@dataclass
class Control:
    """BEGIN, COMMIT, ROLLBACK and savepoints."""

    action: str
    name: str = ""

    def run(self, context):
        self.sql = f"{self.action} {self.name}".strip()
        before, target = context.state, None
        inside = before != "none"
        if self.name and self.action != "SAVEPOINT":
            target = context.references[0].position(self.name) if inside else None
        valid = not inside if self.action == "BEGIN" else inside and (target is not None or not self.name or self.action == "SAVEPOINT")
        if before == "failed" and self.action in ("SAVEPOINT", "RELEASE"):
            valid = False
        context.state = "none" if before == "failed" and valid else before
        _, _, error = context.execute(self.sql)
        context.state = before
        if (error is None) != valid:
            raise Difference("transaction", self.sql, error or "no error")
        if not valid:
            context.fail()
            return
        self.apply(context, before, target)
        for name in context.references[0].tables:
            context.check(name, self.sql, context.references)

    def apply(self, context, before, target):
        for reference in context.references:
            if self.action in ("BEGIN", "SAVEPOINT"):
                reference.savepoint(self.name)
            elif self.action == "ROLLBACK TO":
                reference.restore(target)
            elif self.action == "RELEASE":
                reference.forget(target)
            else:
                if self.action == "ROLLBACK" or before == "failed":
                    reference.restore(0)
                reference.forget(0)
        context.state = "none" if self.action in ("COMMIT", "ROLLBACK") else "open"


@dataclass
class Change:
    """INSERT, UPDATE or DELETE. `conflict`: it has a conflict clause; `counted`: the number of changed rows is comparable."""

    sql: str
    table: str
    references: tuple
    conflict: bool = False
    counted: bool = True
    must_fail: bool = False

    def run(self, context):
        if re.match("INSERT.*SELECT", self.sql, re.S) and context.has_more_rows(INSERT_ROWS_MAX):
            return
        if context.is_large(self.sql):
            return
        rows, count, error = context.execute(self.sql)
        if context.state == "failed":
            return
        if error is not None:
            context.fail()
        if self.must_fail:
            if error is None:
                raise Difference("must fail", self.sql, "no error")
            return context.check(self.table, self.sql, context.references)
        opinions = context.opinions(self.references, lambda reference: reference.change(self))
        if error is not None and UNSUPPORTED.search(error):
            context.counts["unsupported"] += 1
            for reference, result in opinions:
                if not isinstance(result, StatementError):
                    reference.undo(self.table)
            return context.check(self.table, self.sql, context.references)
        for reference, result in opinions:
            self.judge(reference.name, result, rows, count, error)
        judges = context.references if error is not None else [reference for reference, _ in opinions]
        context.counts["changes that failed"] += error is not None
        context.check(self.table, self.sql, judges)

    def judge(self, name, result, rows, count, error):
        failed = isinstance(result, StatementError)
        if failed != (error is not None):
            raise Difference("error", self.sql, f"{name}: {result if failed else 'no error'}\nKeyaki: {error or 'no error'}")
        if failed:
            return
        expected, expected_count = result
        if expected is not None:
            rows = rows or []
            compare("returning", self.sql, name, as_numbers(expected, rows) if name == "sqlite" else expected, rows)
        elif self.counted and count != expected_count:
            raise Difference("count", self.sql, f"{name}: {expected_count} rows changed\nKeyaki: {count}")


@dataclass
class Query:
    sql: str
    references: tuple
    ordered: bool

    def run(self, context):
        if context.is_large(self.sql):
            return
        found = context.query(self.sql)
        if found is None:
            return
        for reference, result in context.opinions(self.references, lambda reference: reference.answer(self.sql)):
            if isinstance(result, StatementError):
                # Whether an expression is evaluated for a row that is filtered out depends on the plan.
                context.counts[f"no opinion of {reference.name}"] += 1
            else:
                rounding = AVERAGE_ROUNDING if "avg(" in self.sql else 0.0
                compare("rows", self.sql, reference.name, result[0], found, self.ordered, rounding)


@dataclass
class Same:
    """Two lists of queries that have the same rows in total."""

    property: str
    left: list
    right: list

    def run(self, context):
        self.sql = ";\n".join(self.left + self.right)
        if any(context.is_large(sql) for sql in self.left + self.right):
            return
        results = [[context.query(sql) for sql in side] for side in (self.left, self.right)]
        if context.state != "failed":
            left, right = [sum(rows, []) for rows in results]
            compare(self.property, self.sql, " + ".join(self.left), left, right)


@dataclass
class Pivot:
    """A row of a table satisfies a condition, that NOT or IS NULL makes true for it, and must be returned."""

    table: object
    number: int
    condition: str
    reference: str

    def run(self, context):
        self.sql = f"SELECT * FROM {self.table.name}"
        rows = context.query(self.sql)
        if not rows:
            return
        row = rows[self.number % len(rows)]
        literals = ", ".join(f"{literal(v, c.type)} AS {c.name}" for v, c in zip(row, self.table.columns))
        value = f"SELECT {self.condition} FROM (SELECT {literals}) AS p"
        for _, result in context.opinions([self.reference], lambda reference: reference.run(value)):
            if isinstance(result, StatementError):
                continue
            truth = result[0][0][0]
            condition = self.condition if truth else f"{self.condition} IS NULL" if truth is None else f"NOT {self.condition}"
            self.sql = f"SELECT * FROM {self.table.name} AS p WHERE {condition}"
            found = comparable(context.query(self.sql))
            if not any(equal([expected], [other]) for expected in comparable([row]) for other in found):
                raise Difference("PQS", self.sql, f"row {row} is missing in\n  " + "\n  ".join(map(str, found)))


def literal(value, ty):
    if value is None:
        return f"CAST(NULL AS {ty})"
    if ty == "BYTEA":
        return f"X'{value}'"
    text = str(value).replace("'", "''")
    return f"CAST('{text}' AS {ty})"


def known(difference):
    """The open defect that a difference is an instance of."""
    for name, statement, message, _ in changes.DEFECTS:
        if re.search(statement, difference.sql, re.S) and re.search(message, f"{difference.kind}: {difference}", re.S):
            return name
    return None


def run(steps, references, options=()):
    """Runs steps. Returns (index of the step that fails, difference), or (None, None), and statistics."""
    context = Context(references, options)
    try:
        for index, step in enumerate(steps):
            try:
                step.run(context)
            except Unsupported:
                pass
            except Difference as difference:
                name = known(difference)
                if name is None:
                    return index, difference, context.counts
                context.counts[f"defect: {name}"] += 1
                # The episode ends, because the references may differ from here on.
                return None, None, context.counts
        return None, None, context.counts
    finally:
        context.close()


def reduced(steps, references, options, signature):
    """The steps without those that the failure of the last one does not need (delta debugging)."""
    deadline = time.monotonic() + REDUCTION
    size = max(1, len(steps) // 2)
    while time.monotonic() < deadline:
        at, removed = 0, False
        while at < len(steps) - 1 and time.monotonic() < deadline:
            candidate = steps[:at] + steps[min(at + size, len(steps) - 1):]
            try:
                index, difference, _ = run(candidate, references, options)
            except Exception:
                # Without its CREATE TABLE, a step fails on a reference.
                index, difference = None, None
            if index == len(candidate) - 1 and difference.signature == signature:
                steps, removed = candidate, True
            else:
                at += size
        if size == 1 and not removed:
            break
        size = max(1, size // 2)
    return steps
