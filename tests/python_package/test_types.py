"""Values of every type in both directions."""

import datetime
import decimal
import random
import unittest
import uuid

import hypothesis
import hypothesis.strategies as st
import keyaki
import numpy
import pandas
from hypothesis import given

# Tests have no time limits: the machine may be busy.
hypothesis.settings.register_profile("keyaki", deadline=None, max_examples=60, derandomize=True)
hypothesis.settings.load_profile("keyaki")

UTC = datetime.timezone.utc

DECIMALS = st.decimals(allow_nan=False, allow_infinity=False, places=9, min_value=-(10**27), max_value=10**27)
DATETIMES = st.datetimes()
ZONES = st.sampled_from([UTC, datetime.timezone(datetime.timedelta(hours=-9, minutes=-30))])
# PostgreSQL's texts have no NUL, and UTF-8 has no surrogates.
TEXTS = st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\0"))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)
SCALARS = {
    "BOOLEAN": st.booleans(),
    "SMALLINT": st.integers(-(2**15), 2**15 - 1),
    "INTEGER": st.integers(-(2**31), 2**31 - 1),
    "BIGINT": st.integers(-(2**63), 2**63 - 1),
    "DOUBLE PRECISION": st.floats(allow_nan=False).map(lambda value: value + 0.0),
    "DECIMAL(38,9)": DECIMALS,
    "TEXT": TEXTS,
    "BYTEA": st.binary(),
    "DATE": st.dates(),
    "TIME": st.times(),
    "TIMESTAMP": DATETIMES,
    "TIMESTAMPTZ": st.datetimes(
        datetime.datetime(2, 1, 1), datetime.datetime(9998, 1, 1), timezones=ZONES, allow_imaginary=False
    ),
    "UUID": st.uuids(),
    "INTERVAL": st.timedeltas(datetime.timedelta(days=-100000), datetime.timedelta(days=100000)),
}


class RoundTrips(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.con = keyaki.connect(autocommit=True)
        cls.addClassCleanup(cls.con.close)
        columns = ", ".join(f"c{number} {name}" for number, name in enumerate(SCALARS))
        cls.con.execute(f"CREATE TABLE scalars (id BIGINT PRIMARY KEY, {columns})")

    def test_every_type_has_a_round_trip_through_a_table(self):
        insert = f"INSERT INTO scalars VALUES (?{', ?' * len(SCALARS)})"
        row_of = st.tuples(*(st.none() | values for values in SCALARS.values()))
        number = iter(range(10**9))

        @given(st.lists(row_of, min_size=1, max_size=4))
        def check(rows):
            first = next(number) * 10
            self.con.executemany(insert, [(first + at, *row) for at, row in enumerate(rows)])
            found = self.con.execute("SELECT * FROM scalars WHERE id BETWEEN ? AND ? ORDER BY id", (first, first + 9))
            for (_, *values), expected in zip(found.fetchall(), rows, strict=True):
                for name, value, wanted in zip(SCALARS, values, expected, strict=True):
                    self.assertEqual(value, wanted, name)
                    self.assertEqual(type(value), type(wanted), name)

        check()

    def test_every_type_has_a_round_trip_through_a_parameter(self):
        @given(st.data())
        def check(data):
            name = data.draw(st.sampled_from(list(SCALARS)))
            value = data.draw(SCALARS[name])
            (found,) = self.con.execute(f"SELECT CAST(? AS {name})", (value,)).fetchone()
            self.assertEqual(found, value)

        check()

    def test_arrays(self):
        names = ["BIGINT", "TEXT", "BOOLEAN", "DATE", "UUID", "TIMESTAMP"]

        @given(st.data())
        def check(data):
            name = data.draw(st.sampled_from(names))
            value = data.draw(st.lists(st.none() | SCALARS[name], max_size=5))
            (found,) = self.con.execute(f"SELECT CAST(? AS {name}[])", (value,)).fetchone()
            self.assertEqual(found, value)

        check()
        nested = [[1, 2], [3, 4]]
        self.assertEqual(self.con.execute("SELECT CAST(? AS BIGINT[][])", (nested,)).fetchone(), (nested,))
        self.assertEqual(self.con.execute("SELECT CAST(? AS BIGINT[])", ((1, 2),)).fetchone(), ([1, 2],))

    def test_documents(self):
        @given(JSON)
        def check(value):
            (found,) = self.con.execute("SELECT CAST(? AS JSON)", (keyaki.Json(value),)).fetchone()
            self.assertEqual(found, value)
            (found,) = self.con.execute("SELECT CAST(? AS JSON)", ({"k": value},)).fetchone()
            self.assertEqual(found, {"k": value})

        check()
        with self.assertRaisesRegex(keyaki.DataError, "is no JSON document"):
            self.con.execute("SELECT ?", ({"k": object()},))


class Values(unittest.TestCase):
    def setUp(self):
        self.con = keyaki.connect(autocommit=True)
        self.addCleanup(self.con.close)

    def value(self, sql, *parameters):
        (row,) = self.con.execute("SELECT " + sql, parameters).fetchall()
        return row[0]

    def test_large_integers_are_decimals(self):
        self.assertEqual(self.value("CAST(? AS DECIMAL(38,0))", 10**37 + 1), decimal.Decimal(10**37 + 1))
        self.assertEqual(self.value("?", -(2**63)), -(2**63))
        for wrong in [10**38, -(10**40)]:
            with self.assertRaises(keyaki.DataError) as caught:
                self.value("?", wrong)
            self.assertEqual(caught.exception.sqlstate, "22003")

    def test_decimals(self):
        for text in ["0", "-0.00", "1E+5", "1.50", "-1E-10", "0E+100", "9" * 38, "0." + "9" * 38]:
            value = decimal.Decimal(text)
            found = self.value("?", value)
            self.assertEqual((type(found), found), (decimal.Decimal, value), text)
        for text in ["NaN", "Infinity", "-Infinity", "1E+38", "1E-39", "1" * 39, "1.5E+1000000"]:
            with self.assertRaises(keyaki.DataError, msg=text):
                self.value("?", decimal.Decimal(text))

    def test_bytes_like_objects(self):
        for value in [b"\0\xff", bytearray(b"\0\xff"), memoryview(b"\0\xff"), memoryview(b"\0.\xff.")[::2]]:
            self.assertEqual(self.value("?", value), b"\0\xff")

    def test_zones(self):
        moment = datetime.datetime(2024, 7, 1, 12, tzinfo=UTC)
        self.con.execute("SET timezone = 'America/New_York'")
        found = self.value("CAST(? AS TIMESTAMPTZ)", moment)
        self.assertEqual((found, found.hour, str(found.tzinfo)), (moment, 8, "America/New_York"))
        self.con.execute("SET timezone = 'Asia/Kolkata'")
        found = self.value("CAST(? AS TIMESTAMPTZ)", moment)
        self.assertEqual((found, found.hour, found.utcoffset().total_seconds()), (moment, 17, 19800))
        self.assertEqual(self.value("ARRAY[CAST(? AS TIMESTAMPTZ)]", moment)[0].hour, 17)
        with self.assertRaisesRegex(keyaki.DataError, "has a time zone"):
            self.value("?", datetime.time(1, tzinfo=UTC))

    def test_times_outside_of_the_range_of_python(self):
        for sql in ["DATE '0044-03-15 BC'", "DATE '20000-01-01'", "TIMESTAMP '10000-01-01'"]:
            with self.assertRaisesRegex(keyaki.DataError, 'column "t": .*is outside of the range of Python') as caught:
                self.value(sql + " AS t")
            self.assertEqual(caught.exception.sqlstate, "22008")

    def test_intervals(self):
        day = datetime.timedelta(days=1)
        self.assertEqual(self.value("INTERVAL '1 day -2 hours'"), day - datetime.timedelta(hours=2))
        months = self.value("INTERVAL '1 year 2 months 3 days 0.5 seconds'")
        self.assertEqual(months, keyaki.Interval(14, 3, 500000))
        self.assertEqual(self.value("CAST(? AS INTERVAL)", months), months)
        self.assertEqual(self.value("DATE '2024-01-31' + ?", keyaki.Interval(months=1)).date(), datetime.date(2024, 2, 29))

    def test_numpy_scalars_and_arrays(self):
        for value, expected in [
            (numpy.int8(-5), -5),
            (numpy.uint64(2**64 - 1), decimal.Decimal(2**64 - 1)),
            (numpy.float32(0.5), 0.5),
            (numpy.float64(0.1), 0.1),
            (numpy.bool_(True), True),
            (numpy.str_("a"), "a"),
            (numpy.bytes_(b"a"), b"a"),
            (numpy.datetime64("2024-02-29T12:00:00.000001"), datetime.datetime(2024, 2, 29, 12, 0, 0, 1)),
            (numpy.datetime64("2024-02-29T12", "ns"), datetime.datetime(2024, 2, 29, 12)),
            (numpy.timedelta64(90, "s"), datetime.timedelta(seconds=90)),
            (numpy.datetime64("NaT"), None),
            (numpy.array([1, 2, 3]), [1, 2, 3]),
            (numpy.array(["a", "b"]), ["a", "b"]),
        ]:
            self.assertEqual(self.value("?", value), expected, repr(value))
        with self.assertRaisesRegex(keyaki.DataError, "has nanoseconds"):
            self.value("?", numpy.datetime64("2024-02-29T12:00:00.000000001"))
        with self.assertRaises(keyaki.ProgrammingError):
            self.value("?", numpy.complex128(1j))

    def test_pandas_scalars(self):
        moment = datetime.datetime(2024, 2, 29, 12)
        for value, expected in [(pandas.NA, None), (pandas.NaT, None), (pandas.Timestamp(moment), moment)]:
            self.assertEqual(self.value("?", value), expected, repr(value))
        zoned = pandas.Timestamp("2024-07-01 12:00", tz="Europe/Berlin")
        self.assertEqual(self.value("CAST(? AS TIMESTAMPTZ)", zoned), zoned.to_pydatetime())

    def test_lists_that_contain_themselves(self):
        endless = []
        endless.append(endless)
        with self.assertRaisesRegex(keyaki.DataError, "nested too deeply"):
            self.value("?", endless)

    def test_subclasses(self):
        class Text(str):
            pass

        class Number(int):
            pass

        self.assertEqual((self.value("?", Text("a")), self.value("?", Number(7))), ("a", 7))

    def test_random_decimals_as_texts(self):
        numbers = random.Random(1)
        for _ in range(50):
            value = decimal.Decimal(numbers.randrange(-(10**20), 10**20)).scaleb(-numbers.randrange(0, 15))
            self.assertEqual(self.value("CAST(? AS TEXT)", value), format(value, "f"))

    def test_uuids(self):
        value = uuid.UUID(int=7)
        self.assertEqual(self.value("CAST(? AS TEXT)", value), str(value))


if __name__ == "__main__":
    unittest.main()
