//! Workers that are lost, refuse, or are of another kind.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use std::time::Duration;

use common::{Shop, Workers, rows};
use futures::StreamExt;
use keyaki::{Error, SqlState};
use keyaki_cluster::{Coordinator, Security, Tls};

/// A query that takes a while, with one row.
const SLOW: &str = "SELECT count(*), sum(a.l_quantity) FROM lineitem a JOIN nation b ON a.l_linenumber <> b.n_nationkey \
                    JOIN nation c ON a.l_suppkey <> c.n_nationkey";
const COUNT: &str = "SELECT count(*) FROM lineitem WHERE l_tax > 0.03";

fn with_token(token: &str) -> Security {
    Security { token: Some(token.into()), tls: None }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_query_survives_lost_workers() {
    let shop = Shop::new().await;
    let expected = rows(&shop.open().session(), SLOW).await;
    for delay_ms in [0, 20, 100, 300] {
        let mut workers = Workers::start(3, &Security::default());
        let cluster = workers.attach(shop.open(), &Security::default());
        // The workers have the database open.
        rows(&cluster.session(), COUNT).await;
        let session = cluster.session();
        let query = tokio::spawn(async move { rows(&session, SLOW).await });
        tokio::time::sleep(Duration::from_millis(delay_ms)).await;
        workers.kill(1);
        assert_eq!(query.await.unwrap(), expected, "{delay_ms} ms");
        // The others execute further queries.
        let session = cluster.session();
        let query = tokio::spawn(async move { rows(&session, SLOW).await });
        workers.kill(2);
        assert_eq!(query.await.unwrap(), expected, "{delay_ms} ms");
        workers.kill(0);
        let error = cluster.session().query(SLOW).await.err().unwrap();
        assert_eq!(error.sqlstate(), SqlState::CONNECTION_FAILURE);
        assert!(error.to_string().starts_with("no worker of the cluster answers (127.0.0.1:"), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_query_that_has_returned_rows_fails() {
    let shop = Shop::new().await;
    let mut workers = Workers::start(2, &Security::default());
    let cluster = workers.attach(shop.open(), &Security::default());
    let sql = "SELECT a.l_orderkey, b.n_name FROM lineitem a, nation b, nation c, region d";
    let mut batches = match cluster.session().query(sql).await.unwrap() {
        keyaki::Outcome::Rows(batches) => batches,
        other => panic!("{other:?}"),
    };
    assert!(batches.next().await.unwrap().unwrap().num_rows() > 0);
    workers.kill(0);
    let error = loop {
        match batches.next().await.expect("an error before the end") {
            Ok(_) => {}
            Err(error) => break Error::from(error),
        }
    };
    assert_eq!(error.sqlstate(), SqlState::CONNECTION_FAILURE, "{error}");
    let lost = format!("the cluster has lost worker {} (", workers.addresses[0]);
    assert!(error.to_string().starts_with(&lost), "{error}");
    // The end of a stream stays.
    assert!(batches.next().await.is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_are_required() {
    let shop = Shop::new().await;
    let workers = Workers::start(2, &with_token("secret"));
    let cluster = workers.attach(shop.open(), &with_token("secret"));
    assert_eq!(rows(&cluster.session(), COUNT).await, rows(&shop.open().session(), COUNT).await);
    for security in [Security::default(), with_token("secre"), with_token("secret2")] {
        let cluster = workers.attach(shop.open(), &security);
        let error = cluster.session().query(COUNT).await.err().unwrap().to_string();
        let expected = "refuses: the token of the cluster is missing or wrong";
        assert!(error.ends_with(expected), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn certificates_are_required() {
    let authority_key = rcgen::KeyPair::generate().unwrap();
    let mut authority = rcgen::CertificateParams::new(Vec::new()).unwrap();
    authority.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let authority_pem = authority.clone().self_signed(&authority_key).unwrap().pem();
    let issuer = rcgen::Issuer::new(authority, authority_key);
    let machine = || {
        let key = rcgen::KeyPair::generate().unwrap();
        let certificate = rcgen::CertificateParams::new(vec!["127.0.0.1".into()]).unwrap();
        let certificate = certificate.signed_by(&key, &issuer).unwrap();
        Security {
            token: None,
            tls: Some(Tls {
                certificate: certificate.pem().into_bytes(),
                key: key.serialize_pem().into_bytes(),
                authority: authority_pem.clone().into_bytes(),
            }),
        }
    };
    let shop = Shop::new().await;
    let workers = Workers::start(2, &machine());
    let cluster = workers.attach(shop.open(), &machine());
    assert_eq!(rows(&cluster.session(), COUNT).await, rows(&shop.open().session(), COUNT).await);
    // Neither plain text nor a certificate of another authority is accepted.
    let stranger = rcgen::generate_simple_self_signed(vec!["127.0.0.1".into()]).unwrap();
    let tls = Tls {
        certificate: stranger.cert.pem().into_bytes(),
        key: stranger.signing_key.serialize_pem().into_bytes(),
        authority: authority_pem.into_bytes(),
    };
    for security in [Security::default(), Security { token: None, tls: Some(tls) }] {
        let cluster = workers.attach(shop.open(), &security);
        let error = cluster.session().query(COUNT).await.err().unwrap();
        assert_eq!(error.sqlstate(), SqlState::CONNECTION_FAILURE, "{error}");
    }
}

#[test]
fn addresses_are_checked() {
    let new = |addresses: &[&str]| {
        let addresses: Vec<String> = addresses.iter().map(|address| address.to_string()).collect();
        Coordinator::new(&addresses, Security::default())
    };
    assert!(new(&["localhost:7433", "10.0.0.1:1", "[::1]:7433"]).is_ok());
    for wrong in [&[][..], &["localhost"], &["host:70000"], &["http://host:1"], &["host:1/path"], &["a b:1"], &[""]] {
        let error = new(wrong).unwrap_err();
        assert_eq!(error.sqlstate(), SqlState::INVALID_PARAMETER_VALUE, "{wrong:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn only_published_databases_have_workers() {
    let shop = Shop::new().await;
    let workers = Workers::start(1, &Security::default());
    let local = keyaki::Database::open(shop.directory.path().join("shop"), common::options()).unwrap();
    let error = local.with_cluster(std::sync::Arc::new(workers.coordinator(&Security::default()))).unwrap_err();
    assert_eq!(error.sqlstate(), SqlState::FEATURE_NOT_SUPPORTED);
}
