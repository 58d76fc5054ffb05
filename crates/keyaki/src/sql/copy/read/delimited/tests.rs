//! Tests of the reader.

use std::io::Write;

use proptest::prelude::*;

use super::*;
use crate::sql::copy::options::Compression;
use crate::sql::files::Files;

fn csv() -> Dialect {
    Dialect {
        delimiter: b',',
        quote: Some(b'"'),
        escape: b'"',
        nulls: vec![String::new()],
        quoted_nulls: false,
        comment: None,
        skip: 0,
        ignore_errors: false,
        trailing_delimiter: false,
    }
}

fn tbl() -> Dialect {
    Dialect { delimiter: b'|', quote: None, nulls: vec!["\\N".into()], trailing_delimiter: true, ..csv() }
}

fn file(bytes: &[u8]) -> tempfile::NamedTempFile {
    let mut file = tempfile::NamedTempFile::new().expect("a file");
    file.write_all(bytes).expect("write");
    file
}

fn open(file: &tempfile::NamedTempFile, dialect: Dialect) -> Result<DelimitedReader> {
    DelimitedReader::open(Source::open(file.path(), &Files::default(), Compression::None)?, dialect)
}

type Record = Vec<Option<String>>;

fn read(bytes: &[u8], dialect: Dialect, width: usize) -> std::result::Result<Vec<Record>, String> {
    let file = file(bytes);
    let mut reader = open(&file, dialect).map_err(|error| error.to_string())?;
    let mut records = Vec::new();
    while let Some(rows) = reader.next(width).map_err(|error| error.to_string())? {
        let FileRows::Text(columns) = rows else { panic!("text") };
        assert_eq!(columns.len(), width);
        for row in 0..columns[0].iter().len() {
            let value = |column: &StringViewArray| column.iter().nth(row).flatten().map(str::to_string);
            records.push(columns.iter().map(value).collect());
        }
    }
    Ok(records)
}

fn record(values: &[Option<&str>]) -> Record {
    values.iter().map(|value| value.map(str::to_string)).collect()
}

#[test]
fn nulls_quotes_and_line_ends() {
    let text = b"a,b\r\n,\"\"\n\n\"x\"\"y,\nz\",it\"s\n\"\\N\",\" \"\r\nlast,\"end\"";
    let expected = [
        record(&[Some("a"), Some("b")]),
        record(&[None, Some("")]),
        record(&[Some("x\"y,\nz"), Some("it\"s")]),
        record(&[Some("\\N"), Some(" ")]),
        record(&[Some("last"), Some("end")]),
    ];
    assert_eq!(read(text, csv(), 2).expect("records"), expected);
    assert_eq!(read(b"", csv(), 2).expect("records"), Vec::<Record>::new());
    assert_eq!(read(b"\n\r\n", csv(), 2).expect("records"), Vec::<Record>::new());
    assert_eq!(
        read(b"\n\"\"\nx", csv(), 1).expect("records"),
        [record(&[None]), record(&[Some("")]), record(&[Some("x")])]
    );
    assert_eq!(read(b"\xef\xbb\xbfa,b\n", csv(), 2).expect("records"), [record(&[Some("a"), Some("b")])]);
}

#[test]
fn another_escape_and_quote() {
    let dialect = Dialect { quote: Some(b'\''), escape: b'\\', ..csv() };
    let expected = [record(&[Some("a'b\\c\\d"), Some("\"x\"")])];
    assert_eq!(read(b"'a\\'b\\\\c\\d',\"x\"\n", dialect, 2).expect("records"), expected);
}

#[test]
fn dbgen_files() {
    let expected = [record(&[Some("1"), Some("\"a"), Some("")]), record(&[Some("2"), None, Some("x y")])];
    assert_eq!(read(b"1|\"a||\n2|\\N|x y|\n", tbl(), 3).expect("records"), expected);
    assert_eq!(read(b"1|\"a|\n2|\\N|x y", tbl(), 3).expect("records"), expected);
}

#[test]
fn errors_name_the_row() {
    let message = |bytes: &[u8]| read(bytes, csv(), 2).expect_err("an error");
    assert!(message(b"a,b\nc\n").ends_with("row 2: row has 1 values, expected 2 (line 2)"));
    assert!(message(b"a,b\nc,d,e\n").ends_with("row 2: row has 3 values, expected 2 (line 2)"));
    assert!(message(b"a,b\n\nc,\"d").contains("row 2: unterminated quoted value"));
    assert!(message(b"a,\"b\"c\n").contains("row 1: a closing quote"));
    assert!(message(b"a,b\nc,\xff\xfe\n").contains("row 2: value 2 is not valid UTF-8"));
    assert!(message(b"a,b\nc,\"\"\"\xff\"\n").contains("row 2: value 2 is not valid UTF-8"));
    assert!(message(b"\xff\xfea\0,\0").contains("UTF-16"));
    assert!(message(b"\x1f\x8b\x08\0").contains("compressed"));
    assert_eq!(read(b"a\0b,c\n", csv(), 2).expect("a record"), [record(&[Some("a\0b"), Some("c")])]);
}

#[test]
fn header_is_peeked_and_skipped() {
    let file = file(b"\n\"a\"\"b\",c\n1,2\n");
    let mut reader = open(&file, csv()).expect("a reader");
    assert_eq!(reader.peek().expect("peek"), Some(vec![Some("a\"b".to_string()), Some("c".to_string())]));
    reader.skip_header().expect("skip");
    assert_eq!(reader.next(2).expect("next").map(|rows| rows.len()), Some(1));
    assert!(reader.next(2).expect("next").is_none());
}

#[test]
fn records_longer_than_blocks() {
    let long = "x".repeat(3 * BLOCK_BYTES) + "\"\n,";
    let quoted = format!("\"{}\"", long.replace('"', "\"\""));
    let text = format!("1,a\n2,{quoted}\n3,{quoted}\n4,d\n");
    let records = read(text.as_bytes(), csv(), 2).expect("records");
    let expected = [("1", "a"), ("2", &long), ("3", &long), ("4", "d")];
    assert!(records == expected.map(|(a, b)| record(&[Some(a), Some(b)])));
}

#[test]
fn many_blocks() {
    let text: String = (0..400_000).map(|i| format!("{i},\"text {i}\"\n")).collect();
    let records = read(text.as_bytes(), csv(), 2).expect("records");
    assert_eq!(records.len(), 400_000);
    for (i, values) in records.iter().enumerate().step_by(997) {
        assert_eq!(*values, record(&[Some(&i.to_string()), Some(&format!("text {i}"))]));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn arbitrary_bytes_yield_rows_or_an_error(bytes in prop::collection::vec(prop::sample::select(
        vec![b'a', b',', b'"', b'\n', b'\r', b'\\', 0xff, 0xc3, 0]), 0..60), width in 1usize..4) {
        let _ = read(&bytes, csv(), width);
        let _ = read(&bytes, tbl(), width);
    }
}

#[test]
fn comments_and_skipped_lines() {
    let dialect = Dialect { comment: Some(b'#'), skip: 2, ..csv() };
    let text = b"a title\n\n# comment\nx,y # tail\n  # \"another\n\n1,\"#2\"#\n#\n3,4\n# end";
    let expected =
        [record(&[Some("x"), Some("y ")]), record(&[Some("1"), Some("#2")]), record(&[Some("3"), Some("4")])];
    assert_eq!(read(text, dialect.clone(), 2).expect("records"), expected);
    for skip in [7, 1000, u64::MAX] {
        let none = Dialect { skip, ..dialect.clone() };
        assert_eq!(read(b"1,2\n3,4\n", none, 2).expect("records"), Vec::<Record>::new());
    }
    let lines: String = (0..400_000).map(|i| format!("{i},text\n")).collect();
    let last = Dialect { skip: 399_999, ..csv() };
    assert_eq!(read(lines.as_bytes(), last, 2).expect("records"), [record(&[Some("399999"), Some("text")])]);
}

#[test]
fn several_texts_for_null() {
    let dialect = Dialect { nulls: vec!["NA".into(), "-".into()], ..csv() };
    let text = b"NA,\"NA\"\n-,\n\"-\",\"N\"\"A\"\n";
    let expected = [record(&[None, Some("NA")]), record(&[None, Some("")]), record(&[Some("-"), Some("N\"A")])];
    assert_eq!(read(text, dialect.clone(), 2).expect("records"), expected);
    let quoted = [record(&[None, None]), record(&[None, Some("")]), record(&[None, Some("N\"A")])];
    assert_eq!(read(text, Dialect { quoted_nulls: true, ..dialect }, 2).expect("records"), quoted);
}

#[test]
fn malformed_records_are_left_out() {
    let lenient = Dialect { ignore_errors: true, ..csv() };
    let text = b"1,a\nx\n2,\"b\"c\"\n3,\xff\n\"\xfe\"\"\",y\n4,d,e\n5,f\n6,\"open\n7,g\n";
    let expected = [record(&[Some("1"), Some("a")]), record(&[Some("5"), Some("f")])];
    assert_eq!(read(text, lenient.clone(), 2).expect("records"), expected);
    let source = file(text);
    let mut reader = open(&source, lenient.clone()).expect("a reader");
    while reader.next(2).expect("rows").is_some() {}
    assert_eq!(reader.skipped(), 6);
    // Blocks without any record.
    let text = format!("{}1,2\n{}", "x\n".repeat(1_500_000), "y,z,\n".repeat(500_000));
    assert_eq!(read(text.as_bytes(), lenient, 2).expect("records"), [record(&[Some("1"), Some("2")])]);
}

#[test]
fn lines_of_records() {
    let text = "skipped\n\nh,i\n1,\"a\nb\"\n\n2,c\n".to_string() + &"3,d\n".repeat(600_000);
    let source = file(text.as_bytes());
    let mut reader = open(&source, Dialect { skip: 1, ..csv() }).expect("a reader");
    reader.skip_header().expect("a header");
    let first = reader.next(2).expect("rows").expect("rows").len();
    assert_eq!([0, 1, 2, 3].map(|row| reader.line(row)), [Some(4), Some(7), Some(8), Some(9)]);
    reader.next(2).expect("rows").expect("rows");
    assert_eq!(reader.line(10), Some(8 + first as u64 - 2 + 10));
    assert_eq!(reader.line(usize::MAX / 4), None);
}
