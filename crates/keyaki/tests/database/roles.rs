//! Roles: their definitions, memberships, logins, and what a session may do with them.

use keyaki::{Connection, Database, Options, Result};

fn state<T>(result: Result<T>) -> String {
    result.map_or_else(|error| error.sqlstate().code().to_string(), |_| String::new())
}

fn run(connection: &Connection, sql: &str) -> String {
    state(connection.execute_batch(sql))
}

fn text(connection: &Connection, sql: &str) -> String {
    connection.query_row(sql, (), |row| row.get(0)).unwrap_or_else(|error| panic!("{sql}: {error}"))
}

fn database() -> (Database, Connection) {
    let database = Database::open_temporary(Options::default()).unwrap();
    let connection = database.connect().unwrap();
    (database, connection)
}

#[test]
fn roles_are_defined_and_changed() {
    let (database, admin) = database();
    assert!(
        !database.has_roles().unwrap()
            && !database.has_login_roles().unwrap()
            && database.role("alice").unwrap().is_none()
    );
    admin
        .execute_batch(
            "CREATE ROLE readers;
             CREATE USER alice WITH PASSWORD 'secret' CONNECTION LIMIT 3 VALID UNTIL '2999-01-01' IN ROLE readers;
             CREATE ROLE \"Bob\" SUPERUSER LOGIN ENCRYPTED PASSWORD NULL VALID UNTIL '2001-01-01 00:00:00+02';
             COMMENT ON ROLE alice IS 'a person'",
        )
        .unwrap();
    assert!(database.has_login_roles().unwrap());
    let alice = database.role("alice").unwrap().unwrap();
    assert!(alice.can_login && !alice.is_superuser && !alice.is_expired);
    assert_eq!(alice.connection_limit, Some(3));
    let verifier = alice.verifier.clone().unwrap();
    assert!(verifier.starts_with("SCRAM-SHA-256$4096:"), "{verifier}");
    assert!(!format!("{alice:?}").contains("SCRAM"));
    let bob = database.role("Bob").unwrap().unwrap();
    assert!(bob.can_login && bob.is_superuser && bob.is_expired && bob.verifier.is_none());
    assert!(!database.role("readers").unwrap().unwrap().can_login);

    admin
        .execute_batch(
            "ALTER ROLE alice NOLOGIN CONNECTION LIMIT -1 VALID UNTIL 'infinity' PASSWORD NULL;
             ALTER USER \"Bob\" RENAME TO bob;
             ALTER ROLE bob NOSUPERUSER",
        )
        .unwrap();
    let alice = database.role("alice").unwrap().unwrap();
    assert!(!alice.can_login && alice.connection_limit.is_none() && alice.verifier.is_none());
    assert!(database.role("Bob").unwrap().is_none() && !database.role("bob").unwrap().unwrap().is_superuser);
    // As psql's \password sends it.
    admin.execute_batch(&format!("ALTER USER bob PASSWORD '{verifier}'")).unwrap();
    assert_eq!(database.role("bob").unwrap().unwrap().verifier, Some(verifier));

    for (sql, expected) in [
        ("CREATE ROLE alice", "42710"),
        ("CREATE ROLE pg_x", "42939"),
        ("CREATE ROLE public", "42939"),
        ("CREATE ROLE x LOGIN NOLOGIN", "42601"),
        ("CREATE ROLE x NOINHERIT", "0A000"),
        ("CREATE ROLE x PASSWORD 'md50123456789abcdef0123456789abcdef'", "0A000"),
        ("CREATE ROLE x CONNECTION LIMIT -2", "22023"),
        ("CREATE ROLE x VALID UNTIL 'soon'", "22007"),
        ("CREATE ROLE x IN ROLE nobody", "42704"),
        ("ALTER ROLE nobody LOGIN", "42704"),
        ("ALTER ROLE pg_read_all_data LOGIN", "42939"),
        ("DROP ROLE nobody", "42704"),
        ("DROP ROLE IF EXISTS nobody", ""),
        ("GRANT readers TO readers", "0LP01"),
        ("GRANT alice TO readers", "0LP01"),
        ("GRANT readers TO bob WITH INHERIT TRUE", "0A000"),
        ("SET ROLE nobody", "42704"),
        ("ALTER ROLE bob SET role = 'alice'", "0A000"),
        ("ALTER ROLE bob SET no_such_setting = 1", "42704"),
        ("ALTER ROLE bob SET keyaki.durability = 'off'", "0A000"),
    ] {
        assert_eq!(run(&admin, sql), expected, "{sql}");
    }
    assert!(database.role("x").unwrap().is_none());
    admin.execute_batch("ALTER ROLE bob NOLOGIN").unwrap();
    assert!(database.has_roles().unwrap() && !database.has_login_roles().unwrap());
    admin.execute_batch("DROP ROLE alice, bob, readers").unwrap();
    assert!(!database.has_roles().unwrap());
}

#[test]
fn definitions_of_roles_are_transactional_and_persist() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("db");
    {
        let database = Database::open(&path, Options::default()).unwrap();
        let admin = database.connect().unwrap();
        admin.execute_batch("BEGIN; CREATE USER gone; ROLLBACK").unwrap();
        admin.execute_batch("BEGIN; CREATE USER kept PASSWORD 'p'; CREATE TABLE t (a BIGINT); COMMIT").unwrap();
        admin.execute_batch("ALTER TABLE t OWNER TO kept; GRANT SELECT ON t TO PUBLIC").unwrap();
        // Documents of other kinds do not lower the format version.
        admin.execute_batch("CREATE SCHEMA s; CREATE TEMP TABLE u (a BIGINT); DROP SCHEMA s").unwrap();
    }
    let database = Database::open(&path, Options::default()).unwrap();
    assert!(database.role("gone").unwrap().is_none());
    assert!(database.role("kept").unwrap().unwrap().verifier.is_some());
    let admin = database.connect().unwrap();
    assert_eq!(run(&admin, "DROP ROLE kept"), "2BP01", "it owns a table");
    admin.execute_batch("CREATE ROLE other; SET ROLE other; SELECT * FROM t; RESET ROLE").unwrap();
}

#[test]
fn sessions_switch_roles() {
    let (database, connection) = database();
    connection
        .execute_batch(
            "CREATE ROLE staff; CREATE USER alice IN ROLE staff; CREATE USER carol; CREATE USER root SUPERUSER",
        )
        .unwrap();
    let users = "SELECT current_user || ' ' || session_user || ' ' || user || ' ' || current_role";
    connection.execute_batch("SET SESSION AUTHORIZATION alice").unwrap();
    assert_eq!(text(&connection, users), "alice alice alice alice");
    connection.execute_batch("SET ROLE staff").unwrap();
    assert_eq!(text(&connection, users), "staff alice staff staff");
    assert_eq!(text(&connection, "SHOW role"), "staff");
    assert_eq!(text(&connection, "SHOW is_superuser"), "off");
    assert_eq!(text(&connection, "SHOW session_authorization"), "alice");
    assert_eq!(run(&connection, "SET ROLE carol"), "42501", "the session user counts, which is no member");
    connection.execute_batch("SET ROLE NONE").unwrap();
    assert_eq!(text(&connection, users), "alice alice alice alice");
    connection.execute_batch("SET ROLE 'staff'; RESET ROLE; SET role = staff; RESET role").unwrap();
    // The session has logged in without a role: it may switch to any user.
    connection.execute_batch("SET SESSION AUTHORIZATION root; SET ROLE carol; RESET SESSION AUTHORIZATION").unwrap();
    assert_eq!(text(&connection, "SHOW is_superuser"), "on");
    drop(database);
}

#[tokio::test]
async fn logins_apply_settings_and_stay_with_their_role() {
    let database = Database::open_temporary(Options::default()).unwrap();
    let admin = database.session();
    admin
        .execute(
            "CREATE SCHEMA s; CREATE TABLE s.t (a BIGINT);
             CREATE USER alice; CREATE ROLE plain; CREATE USER root SUPERUSER;
             GRANT USAGE ON SCHEMA s TO alice; GRANT SELECT ON s.t TO alice;
             ALTER ROLE alice SET search_path = s, public; ALTER ROLE alice SET timezone TO 'Asia/Tokyo'",
        )
        .await
        .unwrap();
    let session = database.session();
    assert_eq!(session.current_user(), None);
    assert_eq!(state(session.log_in("nobody")), "42704");
    assert_eq!(state(session.log_in("plain")), "42501", "it has no LOGIN");
    session.log_in("alice").unwrap();
    assert_eq!(session.current_user().as_deref(), Some("alice"));
    assert_eq!(session.time_zone(), "Asia/Tokyo");
    session.execute("SELECT * FROM t").await.unwrap();
    assert_eq!(state(session.execute("SET SESSION AUTHORIZATION root").await), "42501");
    assert_eq!(state(session.execute("SET ROLE root").await), "42501");
    assert_eq!(state(session.execute("DROP ROLE alice").await), "42501");
    assert_eq!(state(admin.execute("DROP ROLE alice").await), "2BP01");
    admin
        .execute("ALTER ROLE alice RESET ALL; REVOKE ALL ON s.t FROM alice; REVOKE ALL ON SCHEMA s FROM alice; DROP ROLE alice")
        .await
        .unwrap();
    // A new role with the same name is another one for the session.
    admin.execute("CREATE USER alice SUPERUSER").await.unwrap();
    assert_eq!(state(session.execute("SELECT 1").await), "42704");
    assert_eq!(state(session.execute("CREATE TABLE s.u (a BIGINT)").await), "42704");
    session.log_in("alice").unwrap();
    session.execute("CREATE TABLE s.u (a BIGINT)").await.unwrap();
    // So is a role with another name.
    admin.execute("ALTER ROLE alice RENAME TO alicia").await.unwrap();
    assert_eq!(state(session.execute("SELECT * FROM s.u").await), "42704");
    // The table belongs to the renamed role.
    assert_eq!(state(admin.execute("DROP ROLE alicia").await), "2BP01");
    admin.execute("DROP TABLE s.u; DROP ROLE alicia").await.unwrap();
}

#[test]
fn creators_of_roles_cannot_exceed_their_own_power() {
    let (_database, admin) = database();
    admin
        .execute_batch(
            "CREATE USER root SUPERUSER; CREATE ROLE rooted IN ROLE root; CREATE ROLE reader IN ROLE pg_read_all_data;
             CREATE USER creator CREATEROLE; CREATE USER plain; CREATE ROLE owned",
        )
        .unwrap();
    admin.execute_batch("SET SESSION AUTHORIZATION creator").unwrap();
    for (sql, expected) in [
        ("CREATE ROLE x SUPERUSER", "42501"),
        ("ALTER ROLE creator SUPERUSER", "42501"),
        ("ALTER ROLE root PASSWORD 'x'", "42501"),
        ("ALTER ROLE rooted LOGIN PASSWORD 'x'", "42501"),
        ("ALTER ROLE reader LOGIN", "42501"),
        ("DROP ROLE root", "42501"),
        ("GRANT root TO creator", "42501"),
        ("GRANT rooted TO creator", "42501"),
        ("GRANT pg_write_all_data TO creator", "42501"),
        ("REVOKE root FROM rooted", "42501"),
        ("CREATE ROLE x IN ROLE pg_read_all_data", "42501"),
        ("CREATE ROLE x LOGIN PASSWORD 'x'", ""),
        ("ALTER ROLE x CREATEDB", ""),
        ("GRANT owned TO x", ""),
        ("REVOKE owned FROM x", ""),
        ("DROP ROLE x", ""),
        ("DROP ROLE creator", "55006"),
        ("ALTER ROLE creator RENAME TO c", "55006"),
    ] {
        assert_eq!(run(&admin, sql), expected, "{sql}");
    }
    admin.execute_batch("SET SESSION AUTHORIZATION plain").unwrap();
    for (sql, expected) in [
        ("CREATE ROLE x", "42501"),
        ("ALTER ROLE plain CREATEROLE", "42501"),
        ("ALTER ROLE plain VALID UNTIL 'infinity'", "42501"),
        ("ALTER ROLE plain PASSWORD 'new'", ""),
        ("ALTER ROLE CURRENT_USER SET timezone = 'UTC'", ""),
        ("ALTER ROLE owned PASSWORD 'new'", "42501"),
        ("ALTER ROLE owned SET timezone = 'UTC'", "42501"),
        ("GRANT owned TO plain", "42501"),
        ("COMMENT ON ROLE owned IS 'x'", "42501"),
        ("DROP ROLE owned", "42501"),
    ] {
        assert_eq!(run(&admin, sql), expected, "{sql}");
    }
}

#[test]
fn passwords_are_in_no_record_and_no_error() {
    let (_database, connection) = database();
    let secret = "hunter2";
    for sql in [
        format!("CREATE USER u PASSWORD '{secret}'"),
        format!("ALTER USER u WITH PASSWORD '{secret}' VALID UNTIL 'never'"),
        format!("ALTER USER u PASSWORD {secret}"),
        format!("ALTER USER u PASSWORD '{secret}' {secret}"),
        format!("ALTER USER u PASSWORD '{secret}', {secret}"),
        format!("ALTER USER nobody ENCRYPTED PASSWORD '{secret}'"),
        format!("CREATE USER u PASSWORD '{secret}'"),
        format!("EXPLAIN CREATE USER v PASSWORD '{secret}'"),
        format!("PREPARE p AS CREATE USER v PASSWORD '{secret}'"),
    ] {
        if let Err(error) = connection.execute_batch(&sql) {
            assert!(!format!("{error} {error:?}").contains(secret), "{sql}: {error:?}");
        }
        let prepared = connection.prepare(&sql).and_then(|statement| statement.execute(()).map(drop));
        if let Err(error) = prepared {
            assert!(!format!("{error} {error:?}").contains(secret), "{sql}: {error:?}");
        }
    }
    let count = "SELECT count(*) FILTER (WHERE query LIKE '%hunter%')::TEXT FROM keyaki_queries";
    // The statement itself is recorded, with its pattern.
    assert_eq!(text(&connection, count), "1");
}
