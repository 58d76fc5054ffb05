//! Tests of boxed tables.

use std::sync::Arc;

use arrow::array::{ArrayRef, Date32Array, Int64Array, RecordBatch, StringArray};

use crate::output::tests::{batch, styled, written};
use crate::output::{Mode, Screen, Style};

#[test]
fn numbers_are_right_aligned_and_null_is_shown() {
    let text = written(Mode::Table, Some(80), &[batch(&[Some(1), None], &[Some("ab"), None])]);
    let expected = "\
┌──────┬──────┬───────┐
│   id │ name │ total │
├──────┼──────┼───────┤
│    1 │ ab   │  1.50 │
│ NULL │ NULL │  NULL │
└──────┴──────┴───────┘
";
    assert_eq!(text, expected);
}

#[test]
fn null_differs_from_its_text() {
    let rows = [batch(&[None], &[Some("NULL")]), batch(&[None], &[None])];
    let screen = Some(Screen { width: 80, colours: true });
    let text = styled(Mode::Table, &Style::default(), screen, &rows);
    assert!(text.contains("│ NULL │") && text.contains("│ \x1b[2mNULL\x1b[0m │"), "{text}");
    let style = Style { null: Some("∅".into()), ..Style::default() };
    let text = styled(Mode::Table, &style, None, &rows);
    assert!(text.contains("│ NULL │") && text.contains("│ ∅    │"), "{text}");
}

#[test]
fn wide_values_are_cut_to_the_terminal() {
    let long = "x".repeat(200);
    let text = written(Mode::Table, Some(40), &[batch(&[Some(1)], &[Some(&long)])]);
    assert!(text.lines().all(|line| line.chars().count() <= 40), "{text}");
    assert!(text.contains('…'));
    let whole = written(Mode::Table, None, &[batch(&[Some(1)], &[Some(&long)])]);
    assert!(whole.contains(&long));
}

#[test]
fn values_of_several_lines_are_whole() {
    for width in [None, Some(40)] {
        let text = written(Mode::Table, width, &[batch(&[Some(1)], &[Some("first\n  second\tline")])]);
        assert!(text.contains("│ first ") && text.contains("│   second line │"), "{text}");
        assert_eq!(text.lines().count(), 6);
    }
    let plan = "Join\n  Scan of a table with a long list of columns: a, b, c, d, e";
    let text = written(Mode::Table, Some(40), &[batch(&[Some(1)], &[Some(plan)])]);
    assert!(text.lines().all(|line| line.chars().count() <= 40) && !text.contains('…'), "{text}");
}

#[test]
fn later_rows_keep_the_widths_and_numbers_stay_whole() {
    let ids: Vec<Option<i64>> = (0..2500).map(Some).collect();
    let names = vec![Some("n"); 2500];
    for width in [None, Some(60)] {
        let late = batch(&[Some(1_000_000_007)], &[Some("late, and wider")]);
        let text = written(Mode::Table, width, &[batch(&ids, &names), late]);
        assert_eq!(text.lines().count(), 2501 + 4);
        assert_eq!(text.lines().filter(|line| line.contains("name")).count(), 1);
        let widths: Vec<usize> = text.lines().take(1003).map(|line| line.chars().count()).collect();
        assert!(widths.iter().all(|&width| width == widths[0]), "{widths:?}");
        assert!(text.contains("│ 2499 │"));
        assert!(text.contains("│ 1000000007 │"));
        assert_eq!(text.contains("late, and wider"), width.is_none());
    }
}

/// A row with a number, a date and texts.
fn wide(texts: usize) -> RecordBatch {
    let mut columns: Vec<(String, ArrayRef)> = vec![
        ("number_with_a_long_name".into(), Arc::new(Int64Array::from(vec![1_234_567_890_123]))),
        ("day".into(), Arc::new(Date32Array::from(vec![20_000]))),
    ];
    for index in 0..texts {
        columns.insert(2, (format!("text{index}"), Arc::new(StringArray::from(vec!["x".repeat(50)]))));
    }
    columns.push(("last".into(), Arc::new(Int64Array::from(vec![987_654_321]))));
    RecordBatch::try_from_iter(columns).unwrap()
}

#[test]
fn tables_fit_terminals() {
    for width in [60, 80, 200] {
        for texts in [1, 3, 10, 100] {
            let text = written(Mode::Table, Some(width), &[wide(texts)]);
            let table: Vec<&str> = text.lines().filter(|line| !line.starts_with('(')).collect();
            let cells: Vec<usize> = table.iter().map(|line| line.chars().count()).collect();
            assert!(cells.iter().all(|&count| count == cells[0] && count <= width), "{text}");
            for whole in [" 1234567890123 │", "│ 2024-10-04 │", " 987654321 │"] {
                assert!(text.contains(whole), "{whole}: {text}");
            }
        }
    }
    let text = written(Mode::Table, Some(80), &[wide(100)]);
    assert!(text.contains("│ … │") && text.ends_with(" of 103 columns shown)\n"), "{text}");
    assert!(!written(Mode::Table, None, &[wide(100)]).contains('…'));
}

#[test]
fn long_tables_show_the_first_and_last_rows() {
    let batches: Vec<RecordBatch> = (0..10)
        .map(|part| {
            let ids: Vec<Option<i64>> = (part * 7..part * 7 + 7).map(Some).collect();
            batch(&ids, &[Some("n"); 7])
        })
        .collect();
    for max_rows in 1..75_usize {
        let style = Style { max_rows: Some(max_rows), ..Style::default() };
        let text = styled(Mode::Table, &style, None, &batches);
        let shown: Vec<i64> = text.lines().filter_map(|line| line.split('│').nth(1)?.trim().parse().ok()).collect();
        let first = max_rows.min(70).div_ceil(2) as i64;
        let last = max_rows.min(70) as i64 - first;
        let expected: Vec<i64> = (0..first).chain(70 - last..70).collect();
        assert_eq!(shown, expected, "{max_rows}");
        assert_eq!(text.contains('⋮'), max_rows < 70);
        assert_eq!(text.ends_with(&format!("({max_rows} of 70 rows shown)\n")), max_rows < 70, "{text}");
    }
}

#[test]
fn chosen_widths_and_names() {
    let rows = [batch(&[Some(123_456)], &[Some("abcdefgh")])];
    let style = Style { widths: vec![3, 5], headers: false, ..Style::default() };
    let text = styled(Mode::Table, &style, None, &rows);
    assert_eq!(text.lines().nth(1), Some("│ 123456 │ abcd… │ 185184.00 │"), "{text}");
    assert_eq!(text.lines().count(), 3);
}

#[test]
fn types_are_below_the_names() {
    let text = styled(Mode::Duckbox, &Style::default(), None, &[batch(&[Some(1)], &[None])]);
    let expected = "\
┌────────┬──────┬───────────────┐
│     id │ name │         total │
│ bigint │ text │ numeric(12,2) │
├────────┼──────┼───────────────┤
│      1 │ NULL │          1.50 │
└────────┴──────┴───────────────┘
";
    assert_eq!(text, expected);
}

#[test]
fn long_values_take_linear_time() {
    // With a quadratic algorithm, this takes hours.
    let long = "x y ".repeat(2 << 20);
    for width in [None, Some(80)] {
        let text = written(Mode::Table, width, &[batch(&[Some(1)], &[Some(&long)])]);
        assert_eq!(text.len() > long.len(), width.is_none());
    }
    let lines = "line\n".repeat(1 << 20);
    assert_eq!(written(Mode::Table, Some(80), &[batch(&[Some(1)], &[Some(&lines)])]).lines().count(), (1 << 20) + 5);
}
