"""The tests of SQLAlchemy's compliance suite."""

from sqlalchemy.testing.suite import *
