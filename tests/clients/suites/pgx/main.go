// Checks of pgx: values, batches, COPY, transactions, errors, cancellation, pools.
package main

import (
	"context"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"reflect"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"
)

var ctx = context.Background()

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func equal(found, expected any) {
	if !reflect.DeepEqual(found, expected) {
		panic(fmt.Sprintf("found %#v, expected %#v", found, expected))
	}
}

// code is the SQLSTATE of an error of the server.
func code(err error) string {
	var failure *pgconn.PgError
	if errors.As(err, &failure) {
		return failure.Code
	}
	panic(fmt.Sprintf("no error of the server: %v", err))
}

func execute(c *pgx.Conn, sql string, arguments ...any) {
	_, err := c.Exec(ctx, sql, arguments...)
	must(err)
}

func values(c *pgx.Conn) {
	numeric := func(text string) pgtype.Numeric {
		var value pgtype.Numeric
		must(value.Scan(text))
		return value
	}
	var id pgtype.UUID
	must(id.Scan("12345678-1234-5678-1234-567812345678"))
	cases := []struct {
		kind  string
		value any
	}{
		{"BOOLEAN", true},
		{"SMALLINT", int16(-3)},
		{"INTEGER", int32(70000)},
		{"BIGINT", int64(1) << 40},
		{"REAL", float32(0.25)},
		{"DOUBLE PRECISION", 0.1},
		{"DECIMAL(20, 4)", numeric("-12345.6789")},
		{"TEXT", "käyaki 'x'"},
		{"VARCHAR(20)", "short"},
		{"BYTEA", []byte{0, 255}},
		{"UUID", id},
		{"DATE", time.Date(1999, 12, 31, 0, 0, 0, 0, time.UTC)},
		{"TIMESTAMP", time.Date(2024, 2, 29, 1, 2, 3, 4000, time.UTC)},
		{"TIMESTAMPTZ", time.Date(2024, 2, 29, 1, 2, 3, 4000, time.UTC)},
		{"TIME", pgtype.Time{Microseconds: 86399123456, Valid: true}},
		{"INTERVAL", pgtype.Interval{Microseconds: 4000000, Days: 3, Months: 2, Valid: true}},
		{"INTEGER[]", []int32{1, -2, 3}},
		{"TEXT[]", []string{"a", "b,c", "d\"e"}},
	}
	modes := []pgx.QueryExecMode{pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe,
		pgx.QueryExecModeDescribeExec, pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol}
	for number, test := range cases {
		table := fmt.Sprintf("of_type_%d", number)
		execute(c, fmt.Sprintf("CREATE TABLE %s (id INT PRIMARY KEY, v %s)", table, test.kind))
		for place, mode := range modes {
			execute(c, fmt.Sprintf("INSERT INTO %s VALUES ($1, $2)", table), mode, place, test.value)
			found := reflect.New(reflect.TypeOf(test.value))
			query := fmt.Sprintf("SELECT v FROM %s WHERE id = $1", table)
			must(c.QueryRow(ctx, query, mode, place).Scan(found.Interface()))
			if moment, ok := found.Elem().Interface().(time.Time); ok {
				equal(moment.UTC(), test.value)
			} else {
				equal(found.Elem().Interface(), test.value)
			}
		}
		execute(c, fmt.Sprintf("INSERT INTO %s VALUES (-1, NULL)", table))
		var absent any
		must(c.QueryRow(ctx, fmt.Sprintf("SELECT v FROM %s WHERE id = -1", table)).Scan(&absent))
		equal(absent, nil)
	}
	var length int
	must(c.QueryRow(ctx, "SELECT length($1::text)", hex.EncodeToString(make([]byte, 500_000))).Scan(&length))
	equal(length, 1_000_000)
}

func batchesAndCopies(c *pgx.Conn) {
	execute(c, "CREATE TABLE b (id INT PRIMARY KEY, v TEXT, at TIMESTAMPTZ, d NUMERIC(10,2), a INT[])")
	at := time.Unix(1_000_000_000, 0)
	var price pgtype.Numeric
	must(price.Scan("1.50"))
	row := func(i int) ([]any, error) {
		if i%2 == 1 {
			return []any{i, nil, nil, nil, nil}, nil
		}
		return []any{i, fmt.Sprint(i), at, price, []int32{int32(i)}}, nil
	}
	copied, err := c.CopyFrom(ctx, pgx.Identifier{"b"}, []string{"id", "v", "at", "d", "a"}, pgx.CopyFromSlice(1000, row))
	must(err)
	equal(copied, int64(1000))
	batch := &pgx.Batch{}
	for i := range 100 {
		batch.Queue("SELECT v, at, a FROM b WHERE id = $1", i*2)
	}
	results := c.SendBatch(ctx, batch)
	for i := range 100 {
		var v string
		var moment time.Time
		var a []int32
		must(results.QueryRow().Scan(&v, &moment, &a))
		equal(v, fmt.Sprint(i*2))
		equal(moment.Equal(at), true)
		equal(a, []int32{int32(i * 2)})
	}
	must(results.Close())
	// The error of one statement undoes the whole batch.
	batch = &pgx.Batch{}
	batch.Queue("INSERT INTO b (id) VALUES (5000)")
	batch.Queue("INSERT INTO b (id) VALUES (0)")
	batch.Queue("INSERT INTO b (id) VALUES (5001)")
	equal(code(c.SendBatch(ctx, batch).Close()), "23505")
	var count int
	must(c.QueryRow(ctx, "SELECT count(*) FROM b").Scan(&count))
	equal(count, 1000)
	_, err = c.CopyFrom(ctx, pgx.Identifier{"b"}, []string{"id"}, pgx.CopyFromSlice(10, func(i int) ([]any, error) { return []any{i}, nil }))
	equal(code(err), "23505")
}

func transactions(c *pgx.Conn) {
	execute(c, "CREATE TABLE t (id INT PRIMARY KEY, v TEXT NOT NULL)")
	must(pgx.BeginFunc(ctx, c, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, "INSERT INTO t VALUES (1, 'a')")
		must(err)
		inner := pgx.BeginFunc(ctx, tx, func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, "INSERT INTO t VALUES (2, NULL)")
			return err
		})
		equal(code(inner), "23502")
		_, err = tx.Exec(ctx, "INSERT INTO t VALUES (3, 'c')")
		return err
	}))
	tx, err := c.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.Serializable, AccessMode: pgx.ReadOnly})
	must(err)
	_, err = tx.Exec(ctx, "DELETE FROM t")
	equal(code(err), "25006")
	_, err = tx.Exec(ctx, "SELECT 1")
	equal(code(err), "25P02")
	must(tx.Rollback(ctx))
	rows, _ := c.Query(ctx, "SELECT id FROM t ORDER BY id")
	ids, err := pgx.CollectRows(rows, pgx.RowTo[int32])
	must(err)
	equal(ids, []int32{1, 3})
	for sql, expected := range map[string]string{
		"SELEC 1": "42601", "SELECT * FROM nowhere": "42P01", "SELECT nothing FROM t": "42703", "SELECT 1/0": "22012",
		"INSERT INTO t VALUES (1, 'x')": "23505", "SELECT 'x'::int": "22P02",
	} {
		_, err := c.Exec(ctx, sql)
		equal(code(err), expected)
	}
}

func cancellation(c *pgx.Conn) {
	limited, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
	defer cancel()
	started := time.Now()
	var sum int64
	err := c.QueryRow(limited, "SELECT sum(a % 7) FROM generate_series(1, 100000000000) g (a)").Scan(&sum)
	equal(err != nil, true)
	equal(time.Since(started) < 30*time.Second, true)
	// A request to cancel leaves the connection usable.
	other, err := pgx.Connect(ctx, "")
	must(err)
	defer other.Close(ctx)
	time.AfterFunc(300*time.Millisecond, func() { must(other.PgConn().CancelRequest(ctx)) })
	err = other.QueryRow(ctx, "SELECT sum(a % 7) FROM generate_series(1, 100000000000) g (a)").Scan(&sum)
	equal(code(err), "57014")
	must(other.QueryRow(ctx, "SELECT 1").Scan(&sum))
}

func largeResults(c *pgx.Conn) {
	rows, err := c.Query(ctx, "SELECT a, a::text FROM generate_series(1, 300000) g (a)")
	must(err)
	var sum int64
	for rows.Next() {
		var number int64
		var text string
		must(rows.Scan(&number, &text))
		sum += number
	}
	must(rows.Err())
	equal(sum, int64(300000)*300001/2)
}

func pools() {
	pool, err := pgxpool.New(ctx, "pool_max_conns=8")
	must(err)
	defer pool.Close()
	done := make(chan error)
	for worker := range 16 {
		go func() {
			for i := range 50 {
				var found int
				if err := pool.QueryRow(ctx, "SELECT $1::int + $2::int", worker, i).Scan(&found); err != nil || found != worker+i {
					done <- fmt.Errorf("found %d, error %w", found, err)
					return
				}
			}
			done <- nil
		}()
	}
	for range 16 {
		must(<-done)
	}
}

func main() {
	c, err := pgx.Connect(ctx, "")
	must(err)
	_, isEncrypted := c.PgConn().Conn().(*tls.Conn)
	equal(isEncrypted, true)
	for _, check := range []struct {
		name string
		run  func()
	}{
		{"values", func() { values(c) }},
		{"batches and COPY", func() { batchesAndCopies(c) }},
		{"transactions and errors", func() { transactions(c) }},
		{"large results", func() { largeResults(c) }},
		{"pools", pools},
		{"cancellation", func() { cancellation(c) }},
	} {
		check.run()
		fmt.Println("ok", check.name)
	}
	_, err = pgx.Connect(ctx, "password=wrong")
	equal(code(err), "28P01")
	fmt.Println("ok wrong password")
}
