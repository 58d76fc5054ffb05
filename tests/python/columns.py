"""Columns in scope, their types, and literals that all generators share."""

from dataclasses import dataclass

INTEGER, TEXT = "BIGINT", "TEXT"
COMPARISONS = ["=", "<>", "<", "<=", ">", ">=", "IS DISTINCT FROM", "IS NOT DISTINCT FROM"]


@dataclass
class Column:
    """A column in scope: its qualified name, its type, and whether it may hold extreme values."""

    name: str
    type: str
    extreme: bool = False


def outputs(alias, types):
    """The columns v0, v1, … of a query with an alias."""
    return [Column(f"{alias}.v{i}", ty) for i, ty in enumerate(types)]
