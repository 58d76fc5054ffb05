//! Messages of hostile clients, built from the choices of an input: most of them well-formed, with hostile contents.
//!
//! The fuzz targets of the protocol ([`super::targets`]) and `cargo xtask hostile` send them.

/// The types of the messages that a server sends.
const ANSWERS: &[u8] = b"123ACDEGHIKNRSTVWZcdnstv";

const STATEMENTS: &[&str] = &[
    "",
    ";",
    "SELECT 1",
    "SELECT 1; SELECT 2 AS b; SELECT 'c'",
    "SELEC 1",
    "SELECT * FROM t",
    "SELECT v FROM t WHERE id = $1",
    "SELECT $1, $2::text, $3::int[]",
    "SELECT a FROM generate_series(1, 2000) g (a)",
    "SELECT 1 / (a - 5) FROM generate_series(1, 10) g (a)",
    "INSERT INTO t VALUES ($1, $2)",
    "INSERT INTO t VALUES (1, 'again')",
    "INSERT INTO t (id) SELECT max(id) + 1 FROM t RETURNING id",
    "UPDATE t SET v = v || 'x' WHERE id = 1 AND length(v) < 100",
    "DELETE FROM t WHERE id > 50",
    "BEGIN",
    "BEGIN READ ONLY",
    "COMMIT",
    "ROLLBACK",
    "SAVEPOINT s",
    "ROLLBACK TO s",
    "COPY t FROM STDIN",
    "COPY t FROM STDIN (FORMAT binary)",
    "COPY t FROM STDIN (FORMAT csv, HEADER true)",
    "COPY t TO STDOUT",
    "COPY (SELECT 1, 'x', NULL) TO STDOUT (FORMAT binary)",
    "SET timezone = 'Europe/Berlin'",
    "SHOW timezone",
    "PREPARE p AS SELECT 1",
    "EXECUTE p",
    "DEALLOCATE ALL",
    "EXPLAIN SELECT * FROM t",
    "SET ROLE nobody",
    "SELECT $1::numeric * 2, $2::timestamptz, $3::uuid",
    "SELECT $1::interval, $2::date, $3::time",
    "SELECT $1::bytea, $2::json, $3::float4",
    "SELECT * FROM t WHERE id = ANY($1::int[])",
    "INSERT INTO t VALUES ($1, $2) ON CONFLICT (id) DO UPDATE SET v = excluded.v",
    "SELECT count(*) FROM pg_class WHERE relname = $1",
    "SELECT '\u{1F333}' AS tree",
];
const COPY_FROM: &str = "FROM STDIN";
const NAMES: &[&str] = &["", "s", "p", "a rather long name of a statement or a portal"];
const COPIED: &[&[u8]] = &[
    b"",
    b"7\tseven\n",
    b"\\N\t\\N\n",
    b"x\n",
    b"\\.\n",
    b"PGCOPY\n\xFF\r\n\0\0\0\0\0\0\0\0\0",
    b"\0\x02\0\0\0\x04\0\0\0\x09",
    b"id,v\n8,\"e\n\"",
];
const OIDS: &[u32] = &[
    0, 16, 17, 20, 21, 23, 25, 26, 700, 701, 705, 1007, 1009, 1043, 1082, 1083, 1114, 1184, 1186, 1700, 2950, 3802,
    9999,
];

/// Reads choices from the bytes of an input; zeros after their end.
pub struct Choices<'a> {
    pub bytes: &'a [u8],
}

impl<'a> Choices<'a> {
    fn byte(&mut self) -> u8 {
        let Some((&first, rest)) = self.bytes.split_first() else { return 0 };
        self.bytes = rest;
        first
    }

    pub fn below(&mut self, bound: usize) -> usize {
        usize::from(self.byte()) % bound
    }

    fn pick<T: Copy>(&mut self, list: &[T]) -> T {
        list[self.below(list.len())]
    }

    /// Up to `max` bytes of the input.
    fn some(&mut self, max: usize) -> &'a [u8] {
        let len = self.below(max + 1).min(self.bytes.len());
        let (some, rest) = self.bytes.split_at(len);
        self.bytes = rest;
        some
    }

    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }
}

pub fn framed(kind: Option<u8>, body: &[u8]) -> Vec<u8> {
    let len = (body.len() as u32 + 4).to_be_bytes();
    kind.into_iter().chain(len).chain(body.iter().copied()).collect()
}

pub fn text(text: &str) -> Vec<u8> {
    [text.as_bytes(), b"\0"].concat()
}

/// The messages of an answer: their types and bodies.
///
/// # Errors
/// If the answer does not consist of whole messages of the protocol.
pub fn messages(mut answer: &[u8]) -> Result<Vec<(u8, &[u8])>, String> {
    let mut messages = Vec::new();
    while let Some((&kind, rest)) = answer.split_first() {
        if !ANSWERS.contains(&kind) {
            return Err(format!("message type {kind} in an answer"));
        }
        let Some((len, rest)) = rest.split_first_chunk() else { return Err("a message without a length".into()) };
        let len = (u32::from_be_bytes(*len) as usize).wrapping_sub(4);
        let Some((body, rest)) = rest.split_at_checked(len) else {
            return Err(format!("a message of {len} bytes, {} are left", rest.len()));
        };
        messages.push((kind, body));
        answer = rest;
    }
    Ok(messages)
}

/// Replaces bytes as the input says.
pub fn change(choices: &mut Choices<'_>, bytes: &mut Vec<u8>) {
    // Half of all inputs remain as they are.
    for _ in 0..choices.below(8).saturating_sub(4) {
        if bytes.is_empty() {
            return;
        }
        let at = (choices.below(256) * 256 + choices.below(256)) % bytes.len();
        match choices.below(4) {
            0 => bytes.truncate(at),
            1 => bytes.insert(at, choices.byte()),
            _ => bytes[at] = choices.byte(),
        }
    }
}

fn startup(choices: &mut Choices<'_>) -> Vec<u8> {
    let mut body = choices.pick(&[196_608_u32, 196_608, 196_610, 196_707, 131_072, 80_877_104]).to_be_bytes().to_vec();
    let names = ["user", "database", "options", "application_name", "replication", "_pq_.x", "TimeZone", "nonsense"];
    let values = ["me", "", "-c timezone=UTC", "--x", "\\ \\", "true", "'; SELECT 1", "UTC"];
    for name in names.iter().take(1 + choices.below(4)) {
        body.extend(text(if choices.below(8) == 0 { choices.pick(&names) } else { name }));
        body.extend(text(if *name == "user" { "me" } else { choices.pick(&values) }));
    }
    body.push(0);
    framed(None, &body)
}

/// A message before or during the authentication.
pub fn opening(choices: &mut Choices<'_>) -> Vec<u8> {
    match choices.below(8) {
        0 => framed(None, &80_877_103_u32.to_be_bytes()),
        1 => framed(None, &80_877_104_u32.to_be_bytes()),
        2 => framed(None, &[&80_877_102_u32.to_be_bytes()[..], choices.some(40)].concat()),
        3 | 4 => startup(choices),
        5 => {
            let mut body = text(choices.pick(&["SCRAM-SHA-256", "SCRAM-SHA-256-PLUS", "PLAIN", ""]));
            let data = choices.pick(&[
                &b"n,,n=,r=abc"[..],
                b"y,,n=me,r=abc",
                b"p=tls-server-end-point,,n=,r=abc",
                b"n,a=x,n=,r=,",
                b"",
            ]);
            body.extend(choices.pick(&[data.len() as u32, u32::MAX, 1]).to_be_bytes());
            body.extend(data);
            framed(Some(b'p'), &body)
        }
        6 => framed(Some(b'p'), choices.pick(&[&b"c=biws,r=abc,p=AAAA"[..], b"c=,r=,p=", b"secret\0", b"\xFF"])),
        _ => message(choices),
    }
}

/// Values in the text or the binary format. Their lengths are right if `is_whole`.
fn values(choices: &mut Choices<'_>, is_whole: bool) -> Vec<u8> {
    let count = choices.below(4) as u16;
    let mut body = count.to_be_bytes().to_vec();
    for _ in 0..count {
        let value = choices.pick(&[
            &b"1"[..],
            b"x",
            b"\0\0\0\x01",
            b"\0\0\0\0\0\0\0\x07",
            b"{1,2}",
            b"\0\x01\0\0\0\0\0\0\0\x05",
            b"\0\0\0\x01\0\0\0\0\0\0\0\x17\0\0\0\x01\0\0\0\x01\0\0\0\x04\0\0\0\x09",
            b"2024-02-29",
            b"\0\x02\0\x01\0\0\0\x02\0\x05\x13\x88",
            b"\x7F\xFF\xFF\xFF\xFF\xFF\xFF\xFF",
            b"\xFF\xFE",
            b"",
        ]);
        match choices.below(8) {
            0 => body.extend([255; 4]),
            1 if !is_whole => body.extend((value.len() as u32 + 1).to_be_bytes()),
            2 => {
                let random = choices.some(24);
                body.extend((random.len() as u32).to_be_bytes());
                body.extend(random);
            }
            _ => {
                body.extend((value.len() as u32).to_be_bytes());
                body.extend(value);
            }
        }
    }
    body
}

fn formats(choices: &mut Choices<'_>, is_whole: bool) -> Vec<u8> {
    let whole = [&b"\0\0"[..], b"\0\x01\0\0", b"\0\x01\0\x01", b"\0\x02\0\0\0\x01", b"\0\x01\0\x07"];
    match choices.below(6) {
        5 if !is_whole => b"\xFF\xFF".to_vec(),
        place => whole[place % whole.len()].to_vec(),
    }
}

/// A message of a session.
pub fn message(choices: &mut Choices<'_>) -> Vec<u8> {
    match choices.below(20) {
        0 => ending(choices),
        _ => request(choices, false),
    }
}

/// A message with which the session goes on if `is_whole`.
pub fn request(choices: &mut Choices<'_>, is_whole: bool) -> Vec<u8> {
    match choices.below(20) {
        0..4 => {
            let statement = choices.pick(STATEMENTS);
            let mut message = framed(Some(b'Q'), &text(statement));
            if is_whole && statement.contains(COPY_FROM) {
                // Other messages than these end the session.
                (0..choices.below(4)).for_each(|_| message.extend(framed(Some(b'd'), choices.pick(COPIED))));
                message.extend(if choices.below(2) == 0 {
                    framed(Some(b'c'), b"")
                } else {
                    framed(Some(b'f'), b"no\0")
                });
            }
            message
        }
        4 => {
            let random = String::from_utf8_lossy(choices.some(48)).replace('\0', "");
            framed(Some(b'Q'), &text(&random))
        }
        5..8 => {
            let (name, statement) = (choices.pick(NAMES), choices.pick(STATEMENTS));
            let is_copy = is_whole && statement.contains(COPY_FROM);
            let mut body = [text(name), text(if is_copy { "COPY t TO STDOUT" } else { statement })].concat();
            let count = choices.below(4) as u16;
            body.extend(count.to_be_bytes());
            (0..count).for_each(|_| body.extend(choices.pick(OIDS).to_be_bytes()));
            framed(Some(b'P'), &body)
        }
        8..11 => {
            let names = [text(choices.pick(NAMES)), text(choices.pick(NAMES))].concat();
            let (before, values) = (formats(choices, is_whole), values(choices, is_whole));
            framed(Some(b'B'), &[names, before, values, formats(choices, is_whole)].concat())
        }
        11 => {
            let kinds: &[u8] = if is_whole { b"SP" } else { b"SPx" };
            framed(Some(b'D'), &[vec![choices.pick(kinds)], text(choices.pick(NAMES))].concat())
        }
        12 | 13 => {
            let limit = choices.pick(&[0_u32, 1, 3, u32::MAX]).to_be_bytes();
            framed(Some(b'E'), &[text(choices.pick(NAMES)), limit.to_vec()].concat())
        }
        14 => framed(Some(b'C'), &[vec![choices.pick(b"SP")], text(choices.pick(NAMES))].concat()),
        15 => framed(Some(choices.pick(b"HSSS")), b""),
        16 => framed(Some(b'd'), choices.pick(COPIED)),
        17 => framed(Some(b'd'), choices.some(40)),
        18 => match choices.below(3) {
            0 => framed(Some(b'f'), b"no\0"),
            _ => framed(Some(b'c'), b""),
        },
        _ => framed(Some(b'S'), b""),
    }
}

/// A message that ends most sessions.
pub fn ending(choices: &mut Choices<'_>) -> Vec<u8> {
    match choices.below(6) {
        0 => framed(Some(b'X'), b""),
        1 => framed(Some(b'F'), choices.some(16)),
        2 => framed(Some(choices.byte()), choices.some(32)),
        3 => vec![b'Q', 127, 255, 255, 255],
        4 => framed(Some(b'Q'), choices.some(48)),
        _ => {
            let mut damaged = request(choices, false);
            change(choices, &mut damaged);
            damaged
        }
    }
}
