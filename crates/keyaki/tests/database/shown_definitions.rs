//! The definitions that SHOW CREATE TABLE and the API give.

use keyaki::Connection;

/// SHOW CREATE TABLE gives statements that recreate the table.
#[test]
fn shown_definitions_recreate_tables() {
    let connection = Connection::open_temporary().unwrap();
    connection
        .execute_batch(
            "CREATE TABLE t (id INT, \"Name\" VARCHAR(9) NOT NULL DEFAULT 'it''s', n DECIMAL(9, 2) UNIQUE CHECK (n > 0),
                 at TIMESTAMPTZ DEFAULT now(), \"select\" TEXT, day DATE CHECK (day > DATE '2020-01-01'),
                 CONSTRAINT \"Key\" PRIMARY KEY (\"Name\", id), CONSTRAINT u UNIQUE (n, \"Name\"),
                 CHECK (\"select\" IN ('a', 'b''c') OR n IS NULL));
             CREATE INDEX t_name ON t USING masstree (\"Name\") INCLUDE (n);
             CREATE UNIQUE INDEX t_n ON t USING vast (id, n) WITH (goal = 'fast', memory = '1 MiB');
             COMMENT ON TABLE t IS 'it''s'; COMMENT ON COLUMN t.\"Name\" IS 'n'; COMMENT ON INDEX u IS 'i';
             CREATE TABLE h (a INT NOT NULL, b TEXT, CHECK (CASE WHEN a > 1 THEN b LIKE 'x%' ELSE NOT (a = 7) END));
             CREATE TABLE \"P q\" (\"x y\" INT PRIMARY KEY, b TEXT, a TEXT, UNIQUE (a, b));
             CREATE TABLE f (id INT PRIMARY KEY, x INT DEFAULT 3 REFERENCES \"P q\" ON UPDATE RESTRICT ON DELETE SET DEFAULT,
                 up INT CONSTRAINT \"Up\" REFERENCES f (id) ON DELETE CASCADE, b TEXT, a TEXT,
                 FOREIGN KEY (b, a) REFERENCES \"P q\" (b, a) ON UPDATE SET NULL)",
        )
        .unwrap();
    let show = |table: &str| -> String {
        connection.query_row(&format!("SHOW CREATE TABLE {table}"), (), |row| row.get(1)).unwrap()
    };
    let changes = [
        "SELECT 1",
        "ALTER TABLE t RENAME COLUMN \"Name\" TO \"Other \"\"name\"\"\"",
        "ALTER TABLE t RENAME COLUMN \"select\" TO plain",
        "ALTER TABLE t ADD COLUMN extra BIGINT DEFAULT 2 * 3 CHECK (extra < 100)",
        "ALTER TABLE t DROP CONSTRAINT u, ALTER COLUMN plain SET NOT NULL, ALTER COLUMN at DROP DEFAULT",
        "ALTER TABLE h ADD CONSTRAINT hk PRIMARY KEY (a)",
        "ALTER TABLE t RENAME CONSTRAINT \"Key\" TO t_pkey",
        "ALTER TABLE \"P q\" RENAME COLUMN a TO \"A\"",
        "ALTER TABLE f RENAME COLUMN up TO \"select\"",
    ];
    for change in changes {
        connection.query(change, ()).map(drop).unwrap_or_else(|error| panic!("{change}: {error}"));
        for table in ["t", "h", "f"] {
            let before = show(table);
            connection.execute(&format!("DROP TABLE {table}"), ()).unwrap();
            connection.execute_batch(&before).unwrap_or_else(|error| panic!("{before}\n{error}"));
            assert_eq!(show(table), before);
        }
    }
    // The descriptions of the API recreate the table, too.
    let database = connection.database();
    let before = show("t");
    let described = database.tables().into_iter().find(|table| table.name == "t").unwrap();
    let mut script = vec![described.sql];
    script.extend(database.indexes().into_iter().filter(|index| index.table == "t").map(|index| index.sql));
    script.extend(described.comments);
    connection.execute("DROP TABLE t", ()).unwrap();
    connection.execute_batch(&script.join(";\n")).unwrap();
    let lines = |text: &str| {
        let mut lines: Vec<String> = text.lines().map(|line| line.trim_end_matches(',').to_string()).collect();
        lines.sort();
        lines
    };
    assert_eq!(lines(&show("t")), lines(&before));
}
