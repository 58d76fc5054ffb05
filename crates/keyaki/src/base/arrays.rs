//! Texts of arrays, and lists of elements.
//!
//! Arrays are printed as in PostgreSQL: `{1,2,NULL}`, `{{a,b},{}}`, `{"a b","say \"hi\"",""}`. Two forms are read: that
//! of PostgreSQL, and that of DuckDB and JSON in brackets, `[1, 2, NULL]`, `['a b', "c"]`.

use std::borrow::Cow;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, ListArray, StringViewArray, StringViewBuilder, UInt64Array};
use arrow::buffer::{NullBuffer, OffsetBuffer};
use arrow::compute::take;
use arrow::datatypes::{DataType, Field};
use arrow::error::ArrowError;
use arrow::util::display::{ArrayFormatter, FormatOptions};

/// The type of the elements of a list; `None` for other types.
pub(crate) fn element_type(ty: &DataType) -> Option<&DataType> {
    match ty {
        DataType::List(field)
        | DataType::LargeList(field)
        | DataType::ListView(field)
        | DataType::LargeListView(field)
        | DataType::FixedSizeList(field, _) => Some(field.data_type()),
        _ => None,
    }
}

/// The type of the elements of lists of any number of dimensions; other types themselves.
pub(crate) fn innermost(ty: &DataType) -> &DataType {
    element_type(ty).map_or(ty, innermost)
}

/// The type of lists of elements of a type.
pub(crate) fn list_of(element: DataType) -> DataType {
    DataType::List(Arc::new(Field::new_list_field(element, true)))
}

/// True for lists, and for lists in lists.
pub(crate) fn is_list(ty: &DataType) -> bool {
    element_type(ty).is_some()
}

/// The lists of an array of any list type, without elements that belong to no list; `None` for other types.
///
/// # Errors
/// If there are more elements than lists can have.
pub(crate) fn lists(array: &ArrayRef) -> Result<Option<ListArray>, ArrowError> {
    let Some(element) = element_type(array.data_type()) else { return Ok(None) };
    let lists = match array.data_type() {
        DataType::List(_) => array.as_list::<i32>().clone(),
        _ => arrow::compute::cast(array, &list_of(element.clone()))?.as_list::<i32>().clone(),
    };
    let (offsets, len) = (lists.value_offsets(), lists.len());
    let (first, last) = (offsets[0] as usize, offsets[len] as usize);
    let has_unused = lists.null_count() > 0 && (0..len).any(|row| lists.is_null(row) && lists.value_length(row) > 0);
    if !has_unused {
        let offsets = offsets.iter().map(|offset| offset - first as i32).collect::<Vec<_>>();
        return Ok(Some(list_array(offsets, lists.values().slice(first, last - first), lists.nulls().cloned())));
    }
    let (mut ends, mut used) = (vec![0], Vec::new());
    for row in 0..len {
        if lists.is_valid(row) {
            used.extend(offsets[row] as u64..offsets[row + 1] as u64);
        }
        ends.push(used.len() as i32);
    }
    let elements = take(lists.values(), &UInt64Array::from(used), None)?;
    Ok(Some(list_array(ends, elements, lists.nulls().cloned())))
}

/// Lists with the same numbers of elements, and other elements.
pub(crate) fn with_elements(lists: &ListArray, elements: ArrayRef) -> ListArray {
    list_array(lists.value_offsets().to_vec(), elements, lists.nulls().cloned())
}

/// The lists between ascending offsets.
fn list_array(offsets: Vec<i32>, elements: ArrayRef, nulls: Option<NullBuffer>) -> ListArray {
    let field = Arc::new(Field::new_list_field(elements.data_type().clone(), true));
    ListArray::new(field, OffsetBuffer::new(offsets.into()), elements, nulls)
}

/// Texts of lists with the texts of their elements. Elements of nested lists are not quoted.
pub(crate) fn texts(lists: &ListArray, elements: &StringViewArray, is_nested: bool) -> StringViewArray {
    let mut texts = StringViewBuilder::with_capacity(lists.len());
    let mut text = String::new();
    for (row, range) in lists.value_offsets().windows(2).enumerate() {
        if lists.is_null(row) {
            texts.append_null();
            continue;
        }
        text.clear();
        text.push('{');
        for element in range[0] as usize..range[1] as usize {
            if element > range[0] as usize {
                text.push(',');
            }
            match elements.is_valid(element) {
                true => put_element(elements.value(element), is_nested, &mut text),
                false => text.push_str("NULL"),
            }
        }
        text.push('}');
        texts.append_value(&text);
    }
    texts.finish()
}

/// Appends the text of an element, quoted if it needs to be.
pub(crate) fn put_element(element: &str, is_nested: bool, text: &mut String) {
    let special = |c: char| matches!(c, '"' | '\\' | '{' | '}' | ',') || c.is_ascii_whitespace() || c == '\x0b';
    if is_nested || !(element.is_empty() || element.eq_ignore_ascii_case("null") || element.contains(special)) {
        return text.push_str(element);
    }
    text.push('"');
    for c in element.chars() {
        if matches!(c, '"' | '\\') {
            text.push('\\');
        }
        text.push(c);
    }
    text.push('"');
}

/// The texts of an array of lists whose elements Arrow prints after `printable`; `None` for other types, and for values
/// that Arrow cannot print.
pub(crate) fn printed(array: &ArrayRef, printable: &dyn Fn(&ArrayRef) -> ArrayRef) -> Option<StringViewArray> {
    let lists = lists(array).ok()??;
    if is_list(lists.values().data_type()) {
        return Some(texts(&lists, &printed(lists.values(), printable)?, true));
    }
    if let DataType::Binary | DataType::LargeBinary | DataType::BinaryView = lists.values().data_type() {
        let bytes = arrow::compute::cast(lists.values(), &DataType::BinaryView).ok()?;
        let hex = |bytes: &[u8]| bytes.iter().fold(String::from("\\x"), |hex, byte| hex + &format!("{byte:02x}"));
        let hex: StringViewArray = bytes.as_binary_view().iter().map(|bytes| bytes.map(hex)).collect();
        return Some(texts(&lists, &hex, false));
    }
    let elements = printable(lists.values());
    let options = FormatOptions::default();
    let formatter = ArrayFormatter::try_new(&elements, &options).ok()?;
    let nulls = elements.logical_nulls();
    let mut printed = StringViewBuilder::with_capacity(elements.len());
    for row in 0..elements.len() {
        match nulls.as_ref().is_some_and(|nulls| nulls.is_null(row)) {
            true => printed.append_null(),
            false => printed.append_value(formatter.value(row).try_to_string().ok()?),
        }
    }
    Some(texts(&lists, &printed.finish(), false))
}

/// Lists of the elements of texts as texts, with null for texts that are not arrays, and the row of the first such text.
/// With `is_nested`, all elements are arrays; without, none of them is.
pub(crate) fn split(texts: &StringViewArray, is_nested: bool) -> (ListArray, Option<usize>) {
    let mut elements = StringViewBuilder::new();
    let (mut offsets, mut valid, mut malformed) = (vec![0], Vec::with_capacity(texts.len()), None);
    let mut count = 0;
    for (row, text) in texts.iter().enumerate() {
        let items = text.map(|text| items(text, is_nested));
        if matches!(items, Some(None)) {
            malformed = malformed.or(Some(row));
        }
        let items = items.flatten();
        valid.push(items.is_some());
        for item in items.unwrap_or_default() {
            elements.append_option(item);
            count += 1;
        }
        offsets.push(count);
    }
    (list_array(offsets, Arc::new(elements.finish()), Some(valid.into())), malformed)
}

/// The items of the text of an array; `None` for NULL among them. Returns `None` if the text is not an array.
fn items(text: &str, is_nested: bool) -> Option<Vec<Option<Cow<'_, str>>>> {
    let mut reader = Items { text, at: 0 };
    reader.skip_space();
    let is_braced = match reader.next()? {
        '{' => true,
        '[' => false,
        _ => return None,
    };
    let close = if is_braced { '}' } else { ']' };
    let mut items = Vec::new();
    reader.skip_space();
    if reader.peek() == Some(close) {
        reader.next();
    } else {
        loop {
            items.push(reader.item(is_braced, is_nested)?);
            reader.skip_space();
            match reader.next()? {
                ',' => reader.skip_space(),
                c if c == close => break,
                _ => return None,
            }
        }
    }
    reader.skip_space();
    (reader.at == text.len()).then_some(items)
}

struct Items<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Items<'a> {
    fn peek(&self) -> Option<char> {
        self.text[self.at..].chars().next()
    }

    fn next(&mut self) -> Option<char> {
        let next = self.peek()?;
        self.at += next.len_utf8();
        Some(next)
    }

    fn skip_space(&mut self) {
        while self.peek().is_some_and(|c| c.is_ascii_whitespace() || c == '\x0b') {
            self.at += 1;
        }
    }

    /// One item, up to the comma or bracket behind it.
    fn item(&mut self, is_braced: bool, is_nested: bool) -> Option<Option<Cow<'a, str>>> {
        let (open, close) = if is_braced { ('{', '}') } else { ('[', ']') };
        let is_quote = |c: char| c == '"' || c == '\'' && !is_braced;
        let start = self.at;
        match self.peek()? {
            c if c == open => {
                self.skip_nested(is_braced)?;
                is_nested.then(|| Some(Cow::Borrowed(&self.text[start..self.at])))
            }
            quote if is_quote(quote) => {
                self.next();
                let mut value = String::new();
                loop {
                    match self.next()? {
                        '\\' => value.push(self.next()?),
                        // A quote is doubled in literals of SQL.
                        c if c == quote && quote == '\'' && self.peek() == Some('\'') => {
                            self.next();
                            value.push('\'');
                        }
                        c if c == quote => break,
                        c => value.push(c),
                    }
                }
                (!is_nested).then_some(Some(Cow::Owned(value)))
            }
            _ => {
                let (mut value, mut is_escaped, mut len) = (String::new(), false, 0);
                while let Some(c) = self.peek().filter(|c| *c != ',' && *c != close) {
                    self.next();
                    match c {
                        '\\' => {
                            value.push(self.next()?);
                            is_escaped = true;
                            len = value.len();
                        }
                        c if c == open || is_quote(c) => return None,
                        c => {
                            value.push(c);
                            if !c.is_ascii_whitespace() && c != '\x0b' {
                                len = value.len();
                            }
                        }
                    }
                }
                value.truncate(len);
                match () {
                    () if value.is_empty() => None,
                    () if !is_escaped && value.eq_ignore_ascii_case("null") => Some(None),
                    () => (!is_nested).then_some(Some(Cow::Owned(value))),
                }
            }
        }
    }

    /// Skips an array in an array.
    fn skip_nested(&mut self, is_braced: bool) -> Option<()> {
        let (open, close) = if is_braced { ('{', '}') } else { ('[', ']') };
        let mut depth = 0_usize;
        loop {
            match self.next()? {
                '\\' => _ = self.next()?,
                c if c == open => depth += 1,
                c if c == close && depth == 1 => return Some(()),
                c if c == close => depth -= 1,
                quote if quote == '"' || quote == '\'' && !is_braced => loop {
                    match self.next()? {
                        '\\' => _ = self.next()?,
                        c if c == quote => break,
                        _ => {}
                    }
                },
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Option<Vec<Option<String>>> {
        Some(items(text, false)?.into_iter().map(|item| item.map(Cow::into_owned)).collect())
    }

    #[test]
    fn texts_of_both_forms_are_read() {
        let some = |items: &[&str]| Some(items.iter().map(|item| Some((*item).to_string())).collect::<Vec<_>>());
        assert_eq!(read(" {1, 2 ,3} "), some(&["1", "2", "3"]));
        assert_eq!(read("[1, 2,3]"), some(&["1", "2", "3"]));
        assert_eq!(read("{}"), some(&[]));
        assert_eq!(read("[ ]"), some(&[]));
        assert_eq!(read(r#"{"a b",c d,"","say \"hi\"",x\,y,é}"#), some(&["a b", "c d", "", "say \"hi\"", "x,y", "é"]));
        assert_eq!(read(r#"['it''s', "a, b", c]"#), some(&["it's", "a, b", "c"]));
        assert_eq!(read("{null,NULL}"), Some(vec![None, None]));
        assert_eq!(read(r#"{"NULL",nul\l}"#), some(&["NULL", "null"]));
        assert_eq!(items("{{1,2},null,{}}", true).map(|items| items.len()), Some(3));
        assert_eq!(items(r#"{{"}"},{\}}}"#, true).map(|items| items.len()), Some(2));
    }

    #[test]
    fn other_texts_are_malformed() {
        for text in
            ["", "1", "{", "{1", "{1,}", "{,1}", "{1}x", "{1]", "[1}", "{{1}}", "{\"a\"b}", "{a\"b\"}", "{1,,2}", "{\\"]
        {
            assert_eq!(read(text), None, "{text}");
        }
        for text in ["{1}", "{\"{1}\"}", "{{1}", "{{1},2}"] {
            assert!(items(text, true).is_none(), "{text}");
        }
    }

    #[test]
    fn elements_are_quoted_if_they_need_it() {
        let quoted = |element: &str| {
            let mut text = String::new();
            put_element(element, false, &mut text);
            text
        };
        let cases = [("a", "a"), ("", "\"\""), ("Null", "\"Null\""), ("a b", "\"a b\""), ("a\"\\", "\"a\\\"\\\\\"")];
        for (element, text) in cases {
            assert_eq!(quoted(element), text);
            assert_eq!(read(&format!("{{{text}}}")), Some(vec![Some(element.to_string())]));
        }
    }
}
