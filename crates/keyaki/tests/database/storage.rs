//! Storage parameters of tables and indexes.

use keyaki::Connection;

/// Storage parameters survive SHOW CREATE TABLE, LIKE and reopening.
#[test]
fn compression_is_part_of_the_definition() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("db");
    let show = |connection: &Connection, table: &str| -> String {
        connection.query_row(&format!("SHOW CREATE TABLE {table}"), (), |row| row.get(1)).unwrap()
    };
    let connection = Connection::open(&path).unwrap();
    connection
        .execute_batch(
            "CREATE TABLE t (id BIGINT PRIMARY KEY, a TEXT) WITH (compression = 'zstd');
             CREATE INDEX t_a ON t (a) WITH (compression = none);
             CREATE INDEX t_id ON t USING vast (id) WITH (goal = 'fast', compression = 'zstd');
             CREATE TABLE u (LIKE t INCLUDING COMPRESSION);
             CREATE TABLE v (LIKE t);
             CREATE TABLE w (id INT) WITH (compression = 'lz4');
             ALTER TABLE w SET (compression = 'none')",
        )
        .unwrap();
    let expected = "CREATE TABLE t (\n    id BIGINT PRIMARY KEY,\n    a TEXT\n) WITH (compression = 'zstd');\n\
                    CREATE INDEX t_a ON t (a) WITH (compression = 'none');\n\
                    CREATE INDEX t_id ON t USING vast (id) WITH (goal = 'fast', compression = 'zstd');";
    assert_eq!(show(&connection, "t"), expected);
    drop(connection);
    let connection = Connection::open(&path).unwrap();
    assert_eq!(show(&connection, "t"), expected);
    assert!(show(&connection, "u").ends_with(") WITH (compression = 'zstd');"));
    assert!(show(&connection, "v").ends_with("\n);"));
    assert!(show(&connection, "w").ends_with(") WITH (compression = 'none');"));
    connection.execute_batch(&format!("DROP TABLE t; {expected}")).unwrap();
    assert_eq!(show(&connection, "t"), expected);
}
