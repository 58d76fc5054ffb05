//! Authentication by passwords, and on Unix sockets.

use std::time::{Duration, Instant};

use crate::support::raw::{Raw, initial, message, startup};
use crate::support::{Served, code};
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, Error, NoTls};

type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error>>;

const ROLES: &str = "CREATE ROLE app LOGIN PASSWORD 'geheim';
    CREATE ROLE boss SUPERUSER LOGIN PASSWORD 'chef';
    CREATE ROLE group_role NOLOGIN PASSWORD 'geheim';
    CREATE ROLE silent LOGIN;
    CREATE ROLE expired LOGIN PASSWORD 'geheim' VALID UNTIL '2020-01-01';
    CREATE ROLE few LOGIN PASSWORD 'geheim' CONNECTION LIMIT 1;
    CREATE ROLE nobody LOGIN PASSWORD 'geheim' CONNECTION LIMIT 0";

async fn served() -> Served {
    let served = Served::start().await;
    served.execute(ROLES).await;
    served
}

/// A connection, and the values of `is_superuser` and `session_authorization` in its startup.
async fn connect(served: &Served, settings: &str) -> std::result::Result<(Client, [String; 2]), Error> {
    let address = served.address;
    let text = format!("host={} port={} dbname=test {settings}", address.ip(), address.port());
    open(&text).await
}

async fn open(text: &str) -> std::result::Result<(Client, [String; 2]), Error> {
    let (client, connection) = tokio_postgres::connect(text, NoTls).await?;
    let parameter = |name| connection.parameter(name).unwrap_or_default().to_string();
    let parameters = [parameter("is_superuser"), parameter("session_authorization")];
    tokio::spawn(async {
        // Tests see the errors of their requests.
        let _ = connection.await;
    });
    Ok((client, parameters))
}

#[tokio::test(flavor = "multi_thread")]
async fn passwords() -> Result {
    let served = served().await;
    let (client, parameters) = connect(&served, "user=app password=geheim").await?;
    assert_eq!(parameters, ["off", "app"]);
    assert_eq!(client.query_one("SELECT 1", &[]).await?.get::<_, i64>(0), 1);
    assert_eq!(client.query_one("SELECT current_user::TEXT", &[]).await?.get::<_, &str>(0), "app");
    let (_, parameters) = connect(&served, "user=boss password=chef").await?;
    assert_eq!(parameters, ["on", "boss"]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn refused_users() {
    let served = served().await;
    for (settings, expected, message) in [
        ("user=app password=falsch", SqlState::INVALID_PASSWORD, "password authentication failed for user \"app\""),
        ("user=unknown password=geheim", SqlState::INVALID_PASSWORD, "failed for user \"unknown\""),
        ("user=silent password=geheim", SqlState::INVALID_PASSWORD, "failed for user \"silent\""),
        ("user=expired password=geheim", SqlState::INVALID_PASSWORD, "failed for user \"expired\""),
        ("user=APP password=geheim", SqlState::INVALID_PASSWORD, "failed for user \"APP\""),
        ("user=group_role password=falsch", SqlState::INVALID_PASSWORD, "failed for user \"group_role\""),
        ("user=group_role password=geheim", SqlState::INVALID_AUTHORIZATION_SPECIFICATION, "not permitted to log in"),
        ("user=nobody password=geheim", SqlState::TOO_MANY_CONNECTIONS, "too many connections for role \"nobody\""),
    ] {
        let refused = connect(&served, settings).await.map(drop).expect_err(settings);
        let error = refused.as_db_error().expect("an error of the server");
        assert_eq!((error.severity(), error.code()), ("FATAL", &expected), "{settings}");
        assert!(error.message().contains(message), "{settings}: {error}");
    }
    assert_eq!(served.connections(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn connection_limits_of_roles() -> Result {
    let served = served().await;
    let first = connect(&served, "user=few password=geheim").await?;
    let refused = connect(&served, "user=few password=geheim").await.map(drop);
    assert_eq!(code(refused), SqlState::TOO_MANY_CONNECTIONS);
    connect(&served, "user=app password=geheim").await?;
    drop(first);
    while connect(&served, "user=few password=geheim").await.is_err() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    Ok(())
}

/// The first role that can log in ends the trust, and a changed password holds at once.
#[tokio::test(flavor = "multi_thread")]
async fn roles_that_change() -> Result {
    let served = Served::start().await;
    let (client, parameters) = connect(&served, "user=anybody").await?;
    assert_eq!(parameters, ["on", "anybody"]);
    client.batch_execute("CREATE ROLE later NOLOGIN PASSWORD 'one'").await?;
    // Any role closes the server to others, also one that cannot log in.
    assert!(connect(&served, "user=anybody").await.is_err());
    assert!(connect(&served, "user=later password=one").await.is_err());
    client.batch_execute("ALTER ROLE later LOGIN").await?;
    assert!(connect(&served, "user=anybody").await.is_err());
    connect(&served, "user=later password=one").await?;
    client.batch_execute("ALTER ROLE later PASSWORD 'two'").await?;
    assert_eq!(code(connect(&served, "user=later password=one").await.map(drop)), SqlState::INVALID_PASSWORD);
    connect(&served, "user=later password=two").await?;
    client.batch_execute("DROP ROLE later").await?;
    // The server listens on a loopback address only.
    connect(&served, "user=anybody").await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn unix_sockets() -> Result {
    let directory = tempfile::TempDir::new()?;
    let served = Served::start_with(|options| options.socket = Some(directory.path().into())).await;
    let on_socket = async |user: &str| open(&format!("host={} user={user}", directory.path().display())).await;
    assert_eq!(on_socket("anybody").await?.1, ["on", "anybody"]);
    served.execute(ROLES).await;
    assert_eq!(on_socket("app").await?.1, ["off", "app"]);
    assert_eq!(on_socket("silent").await?.1, ["off", "silent"]);
    for user in ["anybody", "group_role"] {
        assert_eq!(code(on_socket(user).await.map(drop)), SqlState::INVALID_AUTHORIZATION_SPECIFICATION, "{user}");
    }
    assert_eq!(code(on_socket("nobody").await.map(drop)), SqlState::TOO_MANY_CONNECTIONS);
    // The user who runs the server is a superuser, unless a role has its name. It is never locked out.
    let owner = nix::unistd::User::from_uid(nix::unistd::geteuid())?.ok_or("the user has no name")?.name;
    assert_eq!(on_socket(&owner).await?.1, ["on", owner.as_str()]);
    served.execute(&format!("CREATE ROLE \"{owner}\" LOGIN")).await;
    assert_eq!(on_socket(&owner).await?.1, ["off", owner.as_str()]);
    for locked in [
        format!("ALTER ROLE \"{owner}\" NOLOGIN"),
        format!("ALTER ROLE \"{owner}\" LOGIN; DROP ROLE boss"),
        "CREATE ROLE boss SUPERUSER NOLOGIN".into(),
    ] {
        served.execute(&locked).await;
        assert_eq!(on_socket(&owner).await?.1[0], "on", "{locked}");
    }
    served.execute("ALTER ROLE boss LOGIN").await;
    assert_eq!(on_socket(&owner).await?.1[0], "off");
    Ok(())
}

/// Settings of users that are not authenticated have no effect.
#[tokio::test(flavor = "multi_thread")]
async fn settings_follow_the_authentication() {
    let served = served().await;
    let wrong = "user=app password=falsch options='-c nix=1'";
    assert_eq!(code(connect(&served, wrong).await.map(drop)), SqlState::INVALID_PASSWORD);
    let right = "user=app password=geheim options='-c nix=1'";
    assert_eq!(code(connect(&served, right).await.map(drop)), SqlState::UNDEFINED_OBJECT);
    // Neither are requests executed that are sent along.
    let mut raw = Raw::connect(served.address).await;
    raw.send(&[startup("app"), message(b'Q', b"CREATE TABLE t (id INTEGER PRIMARY KEY)\0")].concat()).await;
    assert_eq!(raw.failure().await, "08P01");
    assert!(served.database.session().query("SELECT * FROM t").await.is_err());
}

/// Sends a startup message and other messages, which the server refuses.
async fn abuse(served: &Served, user: &str, messages: &[Vec<u8>]) -> String {
    let mut raw = Raw::connect(served.address).await;
    raw.send(&[startup(user), messages.concat()].concat()).await;
    raw.failure().await
}

#[tokio::test(flavor = "multi_thread")]
async fn malformed_exchanges() {
    const FIRST: &[u8] = b"n,,n=,r=abcdefgh";
    let served = served().await;
    let scram = |data: &[u8]| initial("SCRAM-SHA-256", data);
    let cases: Vec<(Vec<Vec<u8>>, &str)> = vec![
        // Other messages.
        (vec![message(b'S', b"")], "08P01"),
        (vec![message(b'X', b"")], "08P01"),
        (vec![scram(FIRST), message(b'Q', b"SELECT 1\0")], "08P01"),
        // Neither a password as text nor other mechanisms.
        (vec![message(b'p', b"geheim\0")], "08P01"),
        (vec![initial("SCRAM-SHA-1", FIRST)], "08P01"),
        (vec![initial("scram-sha-256", FIRST)], "08P01"),
        (vec![initial("", FIRST)], "08P01"),
        (vec![initial("PLAIN", b"\0app\0geheim")], "08P01"),
        // PLUS is offered with TLS only.
        (vec![initial("SCRAM-SHA-256-PLUS", b"p=tls-server-end-point,,n=,r=abcdefgh")], "08P01"),
        // Long messages, before their bodies have arrived.
        (vec![vec![b'p', 0, 0, 7, 209]], "08P01"),
        (vec![vec![b'p', 127, 255, 255, 255]], "08P01"),
        (vec![vec![b'p', 0, 0, 0, 3]], "08P01"),
        (vec![message(b'p', &[b'x'; 1_990])], "08P01"),
        (vec![message(b'p', b"")], "08P01"),
        (vec![message(b'p', b"SCRAM-SHA-256\0\x7F\xFF\xFF\xFFn")], "08P01"),
        // Messages of the exchange.
        (vec![scram(b"")], "08P01"),
        (vec![scram(b"\0")], "08P01"),
        (vec![scram(b"n,,n=a\0b,r=abc")], "08P01"),
        (vec![scram(b"n,,n=\xFF,r=abc")], "08P01"),
        (vec![scram(b"n,a=boss,n=app,r=abc")], "0A000"),
        (vec![scram(FIRST), message(b'p', b"")], "08P01"),
        (vec![scram(FIRST), message(b'p', FIRST)], "08P01"),
        (vec![scram(FIRST), scram(FIRST)], "08P01"),
        (vec![scram(FIRST), message(b'p', b"c=biws,r=abcdefgh,p=")], "08P01"),
        (vec![scram(FIRST), message(b'p', b"c=eSws,r=abcdefgh,p=")], "28000"),
    ];
    for (messages, expected) in cases {
        for user in ["app", "unknown"] {
            // The limit of failures would refuse some of them.
            let fresh = served_again(&served).await;
            assert_eq!(abuse(&fresh, user, &messages).await, expected, "{user}: {messages:?}");
        }
    }
    assert_eq!(abuse(&served, "", &[]).await, "28000");
    // A client without a first message waits for the server to begin.
    let mut raw = Raw::connect(served.address).await;
    raw.send(&[startup("app"), message(b'p', b"SCRAM-SHA-256\0\xFF\xFF\xFF\xFF")].concat()).await;
    raw.authentication(10).await;
    assert!(raw.authentication(11).await.is_empty());
    raw.send(&message(b'p', FIRST)).await;
    assert!(raw.authentication(11).await.starts_with(b"r=abcdefgh"));
}

/// Another server of the same database.
async fn served_again(served: &Served) -> Served {
    Served::start_database(served.database.clone(), |_| {}).await
}

/// The first message of the server to a user.
async fn server_first(served: &Served, user: &str) -> String {
    let mut raw = Raw::connect(served.address).await;
    raw.send(&startup(user)).await;
    assert_eq!(raw.authentication(10).await, b"SCRAM-SHA-256\0\0");
    raw.send(&initial("SCRAM-SHA-256", b"n,,n=,r=abcdefgh")).await;
    String::from_utf8_lossy(&raw.authentication(11).await).into_owned()
}

/// Names without a role look like names with one, also in several attempts.
#[tokio::test(flavor = "multi_thread")]
async fn unknown_names_look_like_roles() {
    let served = served().await;
    let mut salts = Vec::new();
    for user in ["app", "unknown", "other", "silent", "expired"] {
        let (one, two) = (server_first(&served, user).await, server_first(&served, user).await);
        let parts = |text: &str| text.split(',').map(String::from).collect::<Vec<_>>();
        let (one, two) = (parts(&one), parts(&two));
        assert!(one[0] != two[0], "{user}: the nonce of the server is new");
        assert_eq!((one.len(), &one[1..]), (3, &two[1..]), "{user}");
        assert_eq!((one[1].len(), one[2].as_str()), ("s=".len() + 24, "i=4096"), "{user}");
        salts.push(one[1].clone());
    }
    salts.sort_unstable();
    salts.dedup();
    assert_eq!(salts.len(), 5);
}

/// A client cannot tell names of roles by salts that a restart changes.
#[tokio::test(flavor = "multi_thread")]
async fn salts_of_unknown_names_survive_a_restart() -> Result {
    let directory = tempfile::TempDir::new()?;
    let options = || keyaki::Options { memory_bytes: Some(128 << 20), threads: Some(2), ..keyaki::Options::default() };
    let mut salts = Vec::new();
    for number in 0..2 {
        let open = || keyaki::Database::open(directory.path().join("db"), options());
        let mut opened = open();
        // The task of a connection that was closed may still hold the database.
        for _ in 0..100 {
            if !matches!(opened, Err(keyaki::Error::Locked { .. })) {
                break;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
            opened = open();
        }
        let database = opened?;
        if number == 0 {
            database.session().execute("CREATE ROLE app LOGIN PASSWORD 'geheim'").await?;
        }
        let mut served = Served::start_database(database, |_| {}).await;
        for user in ["app", "unknown"] {
            let first = server_first(&served, user).await;
            salts.push(first.split(',').find(|part| part.starts_with("s=")).ok_or("no salt")?.to_string());
        }
        served.stop().await;
    }
    assert!(salts[0] == salts[2] && salts[1] == salts[3] && salts[0] != salts[1], "{salts:?}");
    Ok(())
}

/// The last connections are for superusers.
#[tokio::test(flavor = "multi_thread")]
async fn reserved_connections() -> Result {
    let served = Served::start_with(|options| {
        (options.max_connections, options.superuser_reserved_connections) = (3, 1);
    })
    .await;
    served.execute(ROLES).await;
    let app = "user=app password=geheim";
    let _clients = (connect(&served, app).await?, connect(&served, app).await?);
    let refused = connect(&served, app).await.map(drop).expect_err("too many connections");
    let error = refused.as_db_error().ok_or("no error of the server")?;
    assert_eq!(error.code(), &SqlState::TOO_MANY_CONNECTIONS);
    assert!(error.message().contains("reserved for superusers"), "{error}");
    let _boss = connect(&served, "user=boss password=chef").await?;
    let full = connect(&served, "user=boss password=chef").await.map(drop).expect_err("too many connections");
    let error = full.as_db_error().ok_or("no error of the server")?;
    assert!(error.message().contains("too many clients"), "{error}");
    Ok(())
}

/// A client that stops during its authentication does not keep its place.
#[tokio::test(flavor = "multi_thread")]
async fn slow_clients() {
    let served = Served::start_with(|options| options.startup_timeout = Duration::from_millis(300)).await;
    served.execute(ROLES).await;
    for messages in [
        vec![],
        startup("app")[..7].to_vec(),
        startup("app"),
        [startup("app"), vec![b'p', 0, 0, 0, 99]].concat(),
        [startup("app"), initial("SCRAM-SHA-256", b"n,,n=,r=abcdefgh")].concat(),
    ] {
        let start = Instant::now();
        let mut raw = Raw::connect(served.address).await;
        raw.send(&messages).await;
        assert_eq!(raw.failure().await, "");
        assert!(start.elapsed() < Duration::from_secs(10));
    }
}

/// Clients that are not authenticated do not count as connections.
#[tokio::test(flavor = "multi_thread")]
async fn connections_in_their_authentication() -> Result {
    let served = Served::start_with(|options| options.max_connections = 1).await;
    served.execute(ROLES).await;
    let mut waiting = Vec::new();
    for _ in 0..5 {
        let mut raw = Raw::connect(served.address).await;
        raw.send(&startup("app")).await;
        raw.authentication(10).await;
        waiting.push(raw);
    }
    assert_eq!(served.connections(), 0);
    let _client = connect(&served, "user=app password=geheim").await?;
    assert_eq!(code(connect(&served, "user=app password=falsch").await.map(drop)), SqlState::INVALID_PASSWORD);
    assert_eq!(code(connect(&served, "user=app password=geheim").await.map(drop)), SqlState::TOO_MANY_CONNECTIONS);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn failures_delay_further_attempts() -> Result {
    let served = served().await;
    // None waits: there are no failures before them.
    let wrong = (0..20).map(|_| connect(&served, "user=app password=falsch"));
    for refused in futures::future::join_all(wrong).await {
        assert_eq!(code(refused.map(drop)), SqlState::INVALID_PASSWORD);
    }
    let start = Instant::now();
    connect(&served, "user=app password=geheim").await?;
    assert!(start.elapsed() > Duration::from_secs(2), "{:?}", start.elapsed());
    // Few attempts wait at a time.
    let right = (0..20).map(|_| connect(&served, "user=app password=geheim"));
    let refused = futures::future::join_all(right).await.into_iter().filter_map(std::result::Result::err);
    let refused: Vec<_> = refused.map(|error| code(Err::<(), _>(error))).collect();
    assert_eq!(refused, vec![SqlState::INVALID_AUTHORIZATION_SPECIFICATION; 16]);
    Ok(())
}
