"""Comparison of Keyaki's answers with those of other systems, value by value."""

from decimal import Decimal


def same(expected, got):
    """True if a value equals DuckDB's. Floats, and decimals where DuckDB has a float, are compared with a tolerance."""
    if expected is None or got is None:
        return expected is got
    if isinstance(expected, float):
        got_float = float(got)
        # DataFusion gives averages and quotients of decimals as decimals, which are exact to their last digit.
        digit = 10.0 ** got.as_tuple().exponent if isinstance(got, Decimal) else 0.0
        return abs(got_float - expected) <= max(1e-9 * abs(expected), digit)
    if isinstance(expected, (int, Decimal)) and not isinstance(expected, bool):
        return isinstance(got, (int, Decimal)) and Decimal(got) == Decimal(expected)
    return expected == got


def same_row(expected, got):
    return len(expected) == len(got) and all(map(same, expected, got))


def difference(expected, got, sort_columns=None):
    """A description of the first difference; None if the results are equal.

    Rows with equal sort columns (default: all columns) may come in any order.
    """
    if len(expected) != len(got):
        return f"{len(got)} rows instead of {len(expected)}"
    for position, (wanted, row) in enumerate(zip(expected, got)):
        if same_row(wanted, row):
            continue
        columns = range(len(wanted)) if sort_columns is None else sort_columns
        if all(same(wanted[c], row[c]) for c in columns):
            # A tie: the row must be among the expected rows with the same sort columns.
            if any(same_row(other, row) and all(same(other[c], wanted[c]) for c in columns) for other in expected):
                continue
        return f"row {position}: {row} instead of {wanted}"
    return None
