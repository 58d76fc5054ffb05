//! The text of `.expert`: the suggested indexes and the plan with them.

use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch, StringArray};
use arrow::datatypes::{DataType, Field, Schema};
use keyaki::IndexSuggestions;

use crate::failure::{Failure, Result};
use crate::output::{Mode, Screen, Style};
use crate::terminal::{bytes, significant};

/// CREATE INDEX statements with the estimated times in comments, and the plan as a tree.
///
/// # Errors
/// [`Failure::Output`] if the plan cannot be formatted.
pub fn text(suggestions: &IndexSuggestions, style: &Style, screen: Option<Screen>) -> Result<String> {
    let milliseconds = |seconds: f64| format!("{} ms", significant(seconds * 1e3));
    let mut text = String::new();
    let mut before = suggestions.seconds;
    for index in &suggestions.indexes {
        let times = format!("{} before, {} with the index", milliseconds(before), milliseconds(index.seconds));
        text.push_str(&format!("{};\n-- estimated: {times}; size {}\n", index.sql, bytes(index.bytes)));
        before = index.seconds;
    }
    let kind = match suggestions.indexes.len() {
        0 => {
            let time = milliseconds(suggestions.seconds);
            text.push_str(&format!("-- no further index is worthwhile; estimated: {time}\n"));
            "plan"
        }
        1 => "plan with the index",
        _ => "plan with the indexes",
    };
    text.push('\n');
    let fields = ["plan_type", "plan"].map(|name| Field::new(name, DataType::Utf8, false));
    let columns = [kind, suggestions.plan.as_str()].map(|text| Arc::new(StringArray::from(vec![text])) as ArrayRef);
    let batch = RecordBatch::try_new(Arc::new(Schema::new(fields.to_vec())), columns.to_vec())?;
    let style = Style { draws_plans: true, ..style.clone() };
    let (mut format, mut drawn) = (Mode::Table.format(batch.schema(), &style, screen), Vec::new());
    format.batch(&batch, &mut drawn).and_then(|()| format.end(&mut drawn)).map_err(Failure::Output)?;
    text.push_str(&String::from_utf8_lossy(&drawn));
    Ok(text)
}

#[cfg(test)]
mod tests {
    use keyaki::SuggestedIndex;

    use super::*;

    #[test]
    fn suggestions_are_statements_with_comments() {
        let index = |sql: &str, seconds| SuggestedIndex { sql: sql.into(), table: "t".into(), bytes: 2048, seconds };
        let plan = "FilterExec: a > 1, statistics=[Rows=Inexact(5)]\n  ScanExec: t\n".to_string();
        let indexes =
            vec![index("CREATE INDEX t_a_idx ON t (a)", 0.004), index("CREATE INDEX u_b_idx ON u (b)", 0.001)];
        let some = IndexSuggestions { seconds: 0.02, indexes, plan: plan.clone() };
        assert_eq!(
            text(&some, &Style::default(), None).unwrap(),
            "CREATE INDEX t_a_idx ON t (a);\n-- estimated: 20.0 ms before, 4.00 ms with the index; size 2.0 KiB\n\
             CREATE INDEX u_b_idx ON u (b);\n-- estimated: 4.00 ms before, 1.00 ms with the index; size 2.0 KiB\n\n\
             plan with the indexes\nestimated  operator\n       ~5  FilterExec: a > 1\n           └─ ScanExec: t\n"
        );
        let none = IndexSuggestions { seconds: 0.02, indexes: Vec::new(), plan };
        let shown = text(&none, &Style::default(), None).unwrap();
        assert!(shown.starts_with("-- no further index is worthwhile; estimated: 20.0 ms\n\nplan\n"), "{shown}");
    }
}
