"""Runs the compliance suite of SQLAlchemy (`sqlalchemy.testing.suite`) on the dialect `keyaki`.

`exclusions.txt` is the ledger of tests that fail: a test of it that passes is a failure, too, and so is an entry without a test.
"""

import os
import pathlib
import re

import pytest
from sqlalchemy.dialects import registry

for name in ("keyaki", "keyaki.keyaki"):
    registry.register(name, "keyaki.sqlalchemy", "KeyakiDialect")
pytest.register_assert_rewrite("sqlalchemy.testing.assertions")

import keyaki
import sqlalchemy.dialects.postgresql.provision
from sqlalchemy.engine import make_url
from sqlalchemy.testing import provision
from sqlalchemy.testing.plugin import pytestplugin
from sqlalchemy.testing.plugin.pytestplugin import *
from sqlalchemy.testing.provision import (
    set_default_schema_on_connection,
    temp_table_keyword_args,
    upsert,
)

# Combinations that take most of the time and differ little from others. They run if KEYAKI_COMPLIANCE is set.
LONG = re.compile(
    r"test_(get_multi|multi_get)_\w+\[(?!False-ObjectKind\.(TABLE|ANY)-ObjectScope\.DEFAULT-)"
    r"|BizarroCharacterTest::test_\w+\[(?!plain-plainname|per % cent-col%p)"
    r"|test_index_cross_casts\[path-"
)
LEDGER = pathlib.Path(__file__).parent / "exclusions.txt"


def pytest_configure(config):
    # Holds the database open: the engines of the tests connect to it.
    config.held = keyaki.connect(make_url(config.option.dburi[0]).database, durability="off", autocommit=True)
    config.held.executescript("CREATE SCHEMA test_schema; CREATE SCHEMA test_schema_2")
    pytestplugin.pytest_configure(config)


def ledger():
    """The reasons of the excluded tests by regular expressions of their names (`class::test[parameters]`)."""
    entries, reason = {}, None
    for line in LEDGER.read_text().splitlines():
        if line.startswith("#"):
            reason = line[1:].strip()
        elif line.strip():
            entries[re.compile(line.strip())] = reason
    return entries


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config, items):
    entries = ledger()
    unused = set(entries)
    for item in items:
        name = "::".join(item.nodeid.split("::")[1:])
        for pattern in (pattern for pattern in entries if pattern.fullmatch(name)):
            item.add_marker(pytest.mark.xfail(reason=entries[pattern], strict=True))
            unused.discard(pattern)
    is_whole = not config.option.keyword and not any("::" in argument for argument in config.args)
    if unused and is_whole:
        raise pytest.UsageError(f"{LEDGER.name} names tests that do not exist: {[pattern.pattern for pattern in unused]}")
    if not os.environ.get("KEYAKI_COMPLIANCE"):
        config.hook.pytest_deselected(items=[item for item in items if LONG.search(item.nodeid)])
        items[:] = [item for item in items if not LONG.search(item.nodeid)]


@temp_table_keyword_args.for_db("keyaki")
def _temporary_tables(cfg, engine):
    return {"prefixes": ["TEMPORARY"]}


@set_default_schema_on_connection.for_db("keyaki")
def _set_default_schema(cfg, dbapi_connection, schema_name):
    dbapi_connection.execute(f"SET search_path = '{schema_name}'")


@upsert.for_db("keyaki")
def _upsert(cfg, table, returning, **arguments):
    return provision.upsert.fns["postgresql"](cfg, table, returning, **arguments)
