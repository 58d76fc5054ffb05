// Checks of node-postgres: values, named statements, transactions, errors, cursors, notices and notifications, COPY, cancellation, pools.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { Readable, Writable } from "node:stream";
import { pipeline } from "node:stream/promises";
import pg from "pg";
import { from, to } from "pg-copy-streams";
import Cursor from "pg-cursor";

// The driver does not read PGSSLROOTCERT.
const ssl = { ca: readFileSync(process.env.PGSSLROOTCERT), rejectUnauthorized: true };
const connect = async (options = {}) => {
  const client = new pg.Client({ ssl, ...options });
  await client.connect();
  return client;
};
const code = async (expected, promise) => assert.rejects(promise, (error) => error.code === expected);

async function values(client) {
  const cases = [
    ["BOOLEAN", true], ["SMALLINT", -3], ["INTEGER", 70000], ["BIGINT", "1099511627776"], ["REAL", 0.25],
    ["DOUBLE PRECISION", 0.1], ["DECIMAL(20, 4)", "-12345.6789"], ["TEXT", "käyaki 'x'"], ["VARCHAR(20)", "short"],
    ["BYTEA", Buffer.from([0, 255])], ["UUID", "12345678-1234-5678-1234-567812345678"], ["TIME", "23:59:59.123456"],
    ["DATE", new Date(1999, 11, 31)], ["TIMESTAMP", new Date(2024, 1, 29, 1, 2, 3, 4)],
    ["TIMESTAMPTZ", new Date(Date.UTC(2024, 1, 29, 1, 2, 3, 4))], ["INTEGER[]", [1, null, 3]],
    ["TEXT[]", ["a", "b,c", 'd"e']],
  ];
  for (const [number, [type, value]] of cases.entries()) {
    await client.query(`CREATE TABLE of_type_${number} (id INT PRIMARY KEY, v ${type})`);
    await client.query(`INSERT INTO of_type_${number} VALUES (1, $1), (2, NULL)`, [value]);
    const { rows, fields } = await client.query(`SELECT v FROM of_type_${number} ORDER BY id`);
    assert.deepEqual(rows, [{ v: value }, { v: null }], type);
    assert.equal(fields[0].name, "v");
  }
  const binary = await client.query({ text: "SELECT v FROM of_type_2 WHERE id = $1", values: [1], binary: true });
  assert.deepEqual(binary.rows, [{ v: 70000 }]);
}

async function statements(client) {
  await client.query("CREATE TABLE s (id INT PRIMARY KEY, v TEXT NOT NULL)");
  const insert = (id) => client.query({ name: "insert", text: "INSERT INTO s VALUES ($1, $2)", values: [id, `row ${id}`] });
  // Queued without waiting for the answers.
  const results = await Promise.all(Array.from({ length: 200 }, (_, id) => insert(id)));
  assert.ok(results.every((result) => result.rowCount === 1 && result.command === "INSERT"));
  const several = await client.query("SELECT 1::int AS a; SELECT 2::int AS a, 3::int AS b");
  assert.deepEqual(several.map((result) => result.rows[0]), [{ a: 1 }, { a: 2, b: 3 }]);
  const { rows } = await client.query("UPDATE s SET v = 'new' WHERE id < $1 RETURNING id", [3]);
  assert.deepEqual(rows.map((row) => row.id).sort(), [0, 1, 2]);
}

async function transactions(client) {
  await client.query("BEGIN");
  await client.query("INSERT INTO s VALUES (1000, 'x')");
  await client.query("SAVEPOINT p");
  await assert.rejects(client.query("INSERT INTO s VALUES (1000, 'y')"), (error) => {
    assert.deepEqual([error.code, error.table, error.severity], ["23505", "s", "ERROR"]);
    return true;
  });
  await code("25P02", client.query("SELECT 1"));
  await client.query("ROLLBACK TO p");
  await client.query("COMMIT");
  assert.equal((await client.query("SELECT v FROM s WHERE id = 1000")).rows[0].v, "x");
  await assert.rejects(client.query("SELECT 1 FRM s"), (error) => error.code === "42601" && Number(error.position) > 0);
  await code("42P01", client.query("SELECT * FROM nowhere"));
  await code("23502", client.query("INSERT INTO s VALUES (2000, NULL)"));
  await code("22P02", client.query("SELECT $1::int", ["x"]));
  await code("22012", client.query("SELECT 1 / $1::int", [0]));
}

async function cursors(client) {
  const cursor = client.query(new Cursor("SELECT a FROM generate_series(1, 100000) g (a)"));
  let count = 0;
  for (let rows; (rows = await cursor.read(1000)).length; ) count += rows.length;
  assert.equal(count, 100000);
  await cursor.close();
  const abandoned = client.query(new Cursor("SELECT a FROM generate_series(1, 100000) g (a)"));
  assert.equal((await abandoned.read(10)).length, 10);
  await abandoned.close();
  assert.equal((await client.query("SELECT 1::int AS one")).rows[0].one, 1);
  await client.query("BEGIN");
  await client.query("DECLARE c CURSOR FOR SELECT a::int AS a FROM generate_series(1, 100000) g (a) ORDER BY 1");
  assert.deepEqual((await client.query("FETCH 2 FROM c")).rows, [{ a: 1 }, { a: 2 }]);
  await client.query("COMMIT");
}

async function messages(client) {
  const received = [];
  client.on("notice", (notice) => received.push(notice.message));
  client.on("notification", (message) => received.push(`${message.channel}: ${message.payload}`));
  await client.query("DROP TABLE IF EXISTS nowhere");
  await client.query("LISTEN channel");
  const other = await connect();
  await other.query("BEGIN");
  await other.query("NOTIFY channel, 'first'");
  await other.query("SELECT pg_notify($1, $2)", ["channel", "second"]);
  await other.query("COMMIT");
  await other.end();
  for (let waits = 0; received.length < 3 && waits < 300; waits++) await new Promise((done) => setTimeout(done, 100));
  assert.deepEqual(received, ['table "nowhere" does not exist, skipping', "channel: first", "channel: second"]);
}

async function copies(client) {
  await client.query("CREATE TABLE c (id INT PRIMARY KEY, v TEXT)");
  const lines = Array.from({ length: 5000 }, (_, id) => `${id}\t${id % 3 ? `row\\t${id}` : "\\N"}\n`);
  await pipeline(Readable.from(lines), client.query(from("COPY c FROM STDIN")));
  assert.equal(Number((await client.query("SELECT count(v) AS n FROM c")).rows[0].n), 3333);
  let text = "";
  const sink = new Writable({ write: (chunk, _, done) => ((text += chunk), done()) });
  await pipeline(client.query(to("COPY (SELECT * FROM c WHERE id < 2 ORDER BY id) TO STDOUT (FORMAT csv)")), sink);
  assert.equal(text, "0,\n1,row\t1\n");
  await code("23505", pipeline(Readable.from(["1\tagain\n"]), client.query(from("COPY c FROM STDIN"))));
  assert.equal((await client.query("SELECT 1::int AS one")).rows[0].one, 1);
}

async function cancellation(client) {
  const slow = client.query("SELECT sum(a % 7) FROM generate_series(1, 100000000000) g (a)");
  setTimeout(() => new pg.Client({ ssl }).cancel(client, client.activeQuery ?? client._getActiveQuery()), 300);
  await code("57014", slow);
}

async function pools() {
  const pool = new pg.Pool({ ssl, max: 8 });
  const sums = await Promise.all(Array.from({ length: 400 }, (_, i) => pool.query("SELECT ($1::int + 1)::int AS n", [i])));
  assert.deepEqual(sums.map((result) => result.rows[0].n), Array.from({ length: 400 }, (_, i) => i + 1));
  await pool.end();
}

async function access(client) {
  assert.ok(client.connection.stream.encrypted && client.connection.stream.authorized);
  await code("28P01", connect({ password: "wrong" }));
}

const client = await connect();
const checks = { access, values, statements, transactions, cursors, messages, COPY: copies, pools, cancellation };
for (const [name, check] of Object.entries(checks)) {
  await check(client);
  console.log(`ok ${name}`);
}
await client.end();
