"""Options of `keyaki.connect()` in the query of a URL."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ._exceptions import ProgrammingError

_TRUTH = {"true": True, "on": True, "yes": True, "1": True, "false": False, "off": False, "no": False, "0": False}


def options_of(pairs: Iterable[tuple[str, str]]) -> dict[str, Any]:
    """The arguments for names and values. Other names are settings, as of SET."""
    options: dict[str, Any] = {}
    settings: dict[str, str] = {}
    for name, value in pairs:
        if name in ("read_only", "create", "progress"):
            if value.lower() not in _TRUTH:
                raise ProgrammingError(f"{name}={value} is neither true nor false")
            options[name] = _TRUTH[value.lower()]
        elif name == "threads":
            if not value.isdecimal():
                raise ProgrammingError(f"threads={value} is not a number")
            options[name] = int(value)
        elif name in ("memory", "durability"):
            options[name] = int(value) if value.isdecimal() else value
        else:
            settings[name] = value
    if settings:
        options["settings"] = settings
    return options
