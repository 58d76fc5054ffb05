"""Connections for asyncio."""

import asyncio
import unittest

import keyaki
from keyaki import aio

ENDLESS = "SELECT sum(a.value % b.value) FROM generate_series(1, 100000) a, generate_series(1, 100000000) b"


class Aio(unittest.IsolatedAsyncioTestCase):
    async def asyncSetUp(self):
        self.con = await aio.connect(autocommit=True)
        self.addAsyncCleanup(self.con.close)
        await self.con.execute("CREATE TABLE t (id BIGINT PRIMARY KEY, name TEXT)")
        await self.con.executemany("INSERT INTO t VALUES (?, ?)", [(i, f"n{i}") for i in range(3000)])

    async def count(self):
        return (await (await self.con.execute("SELECT count(*) FROM t")).fetchone())[0]

    async def test_results(self):
        cursor = await self.con.execute("SELECT id FROM t WHERE id >= :least ORDER BY id", {"least": 1})
        self.assertEqual(cursor.description[0][:2], ("id", "bigint"))
        self.assertEqual(await cursor.fetchmany(2), [(1,), (2,)])
        self.assertEqual([row async for row in cursor], [(i,) for i in range(3, 3000)])
        self.assertEqual(await cursor.fetchall(), [])
        self.assertEqual((await self.con.execute("DELETE FROM t WHERE id < 10")).rowcount, 10)
        self.assertEqual((await (await self.con.execute("SELECT * FROM t")).arrow()).num_rows, 2990)

    async def test_transactions(self):
        with self.assertRaises(KeyError):
            async with self.con.transaction():
                await self.con.execute("DELETE FROM t")
                raise KeyError
        async with self.con.transaction("serializable"):
            await self.con.execute("DELETE FROM t WHERE id = 1")
        self.assertEqual(await self.count(), 2999)
        await self.con.begin()
        self.assertEqual(await self.con.append("t", [(5000, "x")]), 1)
        await self.con.rollback()
        self.assertEqual(await self.count(), 2999)

    async def test_other_tasks_run_while_a_statement_waits(self):
        steps = 0

        async def step():
            nonlocal steps
            for _ in range(20):
                steps += 1
                await asyncio.sleep(0.001)
            self.con.interrupt()

        task = asyncio.create_task(step())
        with self.assertRaises(keyaki.OperationalError):
            await (await self.con.execute(ENDLESS)).fetchall()
        await task
        self.assertEqual(steps, 20)

    async def test_cancelled_tasks_cancel_their_statement(self):
        with self.assertRaises(asyncio.TimeoutError):
            await asyncio.wait_for(self.con.execute(ENDLESS), 0.2)
        self.assertEqual(await self.count(), 3000)

    async def test_closed_connections(self):
        await self.con.close()
        await self.con.close()
        with self.assertRaises(keyaki.InterfaceError):
            await self.con.execute("SELECT 1")
        with self.assertRaises(keyaki.Error):
            await aio.connect("/dev/null/missing")


if __name__ == "__main__":
    unittest.main()
