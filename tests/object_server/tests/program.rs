//! The program: it prints how clients find it, counts requests, and ends with its standard input.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};

fn get(address: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn requests_are_counted_until_standard_input_ends() {
    let root = tempfile::tempdir().unwrap();
    std::fs::create_dir(root.path().join("bucket")).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_keyaki-object-server"));
    command.arg(root.path()).args(["--refused-one-in", "1"]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut server = command.spawn().unwrap();
    let mut lines = BufReader::new(server.stdout.take().unwrap()).lines();
    let variables: HashMap<String, String> = lines
        .by_ref()
        .map(Result::unwrap)
        .take_while(|line| !line.is_empty())
        .map(|line| line.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned())).unwrap())
        .collect();
    let address = variables["AWS_ENDPOINT"].strip_prefix("http://").unwrap();
    assert!(get(address, "/bucket/object").starts_with("HTTP/1.1 503"));
    let stats = get(address, "/-/stats");
    assert!(
        stats.starts_with("HTTP/1.1 200") && stats.contains("gets 1\n") && stats.contains("refused 1\n"),
        "{stats}"
    );
    drop(server.stdin.take());
    assert!(server.wait().unwrap().success());
    assert!(lines.map(Result::unwrap).any(|line| line == "gets 1"));
}

#[test]
fn a_missing_directory_is_an_error() {
    let output = Command::new(env!("CARGO_BIN_EXE_keyaki-object-server")).arg("/nonexistent").output().unwrap();
    assert!(!output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).starts_with("/nonexistent: "));
}
