//! The members and elements of a document, and documents with changed parts.
//!
//! A part that does not change keeps its text, with the digits of its numbers, its order and its white space.

use std::borrow::Cow;
use std::collections::HashMap;

use jiter::{Jiter, Peek};

use super::path::Step;

/// A document, divided once.
#[derive(Debug, PartialEq)]
pub(super) enum Parts<'a> {
    Object(Vec<(String, Cow<'a, str>)>),
    Array(Vec<Cow<'a, str>>),
    /// A string, number, boolean or null.
    Scalar(&'a str),
}

impl<'a> Parts<'a> {
    /// The parts of a document; `None` if the text is not a document, or nested too deeply.
    pub fn of(document: &'a str) -> Option<Parts<'a>> {
        let mut jiter = Jiter::new(document.as_bytes());
        let parts = match jiter.peek().ok()? {
            Peek::Object => {
                let mut members = Vec::new();
                let mut key = jiter.known_object().ok()?.map(str::to_string);
                while let Some(name) = key {
                    let first = jiter.peek().ok()?;
                    members.push((name, Cow::Borrowed(next(&mut jiter, first, document)?)));
                    key = jiter.next_key().ok()?.map(str::to_string);
                }
                Parts::Object(members)
            }
            Peek::Array => {
                let mut elements = Vec::new();
                let mut first = jiter.known_array().ok()?;
                while let Some(peek) = first {
                    elements.push(Cow::Borrowed(next(&mut jiter, peek, document)?));
                    first = jiter.array_step().ok()?;
                }
                Parts::Array(elements)
            }
            first => Parts::Scalar(next(&mut jiter, first, document)?),
        };
        jiter.finish().ok()?;
        Some(parts)
    }

    /// As [`Parts::of`], with one member of each name: the last one, at the place of the first, as in PostgreSQL's
    /// JSONB.
    pub fn unique(document: &'a str) -> Option<Parts<'a>> {
        let members = match Parts::of(document)? {
            Parts::Object(members) => members,
            other => return Some(other),
        };
        let mut places: HashMap<String, usize> = HashMap::with_capacity(members.len());
        let mut unique: Vec<(String, Cow<'a, str>)> = Vec::with_capacity(members.len());
        for (name, value) in members {
            match places.get(&name) {
                Some(place) => unique[*place].1 = value,
                None => {
                    places.insert(name.clone(), unique.len());
                    unique.push((name, value));
                }
            }
        }
        Some(Parts::Object(unique))
    }

    /// The text of the document, without white space between its parts.
    pub fn text(&self) -> String {
        match self {
            Parts::Object(members) => object(members.iter().map(|(name, value)| (name, value))),
            Parts::Array(elements) => array(elements),
            Parts::Scalar(text) => (*text).to_string(),
        }
    }
}

/// The text of the value that begins with `first`.
pub(super) fn next<'a>(jiter: &mut Jiter<'a>, first: Peek, document: &'a str) -> Option<&'a str> {
    let start = jiter.current_index();
    jiter.known_skip(first).ok()?;
    document.get(start..jiter.current_index())
}

/// Appends a text as a JSON string.
pub(super) fn put_string(text: &str, output: &mut String) {
    output.push('"');
    let mut rest = text;
    while let Some(at) = rest.find(|c: char| c == '"' || c == '\\' || c < ' ') {
        output.push_str(&rest[..at]);
        let special = rest.as_bytes()[at];
        match special {
            b'"' => output.push_str("\\\""),
            b'\\' => output.push_str("\\\\"),
            b'\n' => output.push_str("\\n"),
            b'\r' => output.push_str("\\r"),
            b'\t' => output.push_str("\\t"),
            8 => output.push_str("\\b"),
            12 => output.push_str("\\f"),
            _ => output.push_str(&format!("\\u{special:04x}")),
        }
        rest = &rest[at + 1..];
    }
    output.push_str(rest);
    output.push('"');
}

/// The text of a string, without quotes and escapes; `None` for other documents.
pub(super) fn string(document: &str) -> Option<String> {
    document.trim_ascii_start().starts_with('"').then(|| serde_json::from_str(document).ok()).flatten()
}

/// Documents as an array.
pub(super) fn array(elements: impl IntoIterator<Item = impl AsRef<str>>) -> String {
    let mut text = String::from("[");
    for (i, element) in elements.into_iter().enumerate() {
        if i > 0 {
            text.push(',');
        }
        text.push_str(element.as_ref());
    }
    text.push(']');
    text
}

/// Names and documents as an object.
pub(super) fn object(members: impl IntoIterator<Item = (impl AsRef<str>, impl AsRef<str>)>) -> String {
    let mut text = String::from("{");
    for (i, (name, value)) in members.into_iter().enumerate() {
        if i > 0 {
            text.push(',');
        }
        put_string(name.as_ref(), &mut text);
        text.push(':');
        text.push_str(value.as_ref());
    }
    text.push('}');
    text
}

/// A change at the end of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Change<'a> {
    /// The part gets this value. `replaces`: if it exists; `inserts`: if it does not.
    Value {
        value: &'a str,
        replaces: bool,
        inserts: bool,
    },
    Remove,
}

/// The document with a change at the end of a path; `None` if nothing changes. Members and elements before the last step
/// are created if `creates`.
pub(super) fn changed(document: &str, path: &[Step], change: Change<'_>, creates: bool) -> Option<String> {
    let Some((step, rest)) = path.split_first() else {
        return match change {
            Change::Value { value, replaces: true, .. } => Some(value.to_string()),
            _ => None,
        };
    };
    let mut parts = Parts::unique(document)?;
    let new = || match change {
        Change::Value { value, inserts: true, .. } if rest.is_empty() || creates => created(rest, value),
        _ => None,
    };
    match &mut parts {
        Parts::Object(members) => {
            let name = step.name()?;
            match members.iter().position(|(other, _)| other == name) {
                Some(i) if rest.is_empty() && change == Change::Remove => _ = members.remove(i),
                Some(i) => members[i].1 = Cow::Owned(changed(&members[i].1, rest, change, creates)?),
                None => members.push((name.to_string(), Cow::Owned(new()?))),
            }
        }
        Parts::Array(elements) => match step.place(elements.len())? {
            Ok(i) if rest.is_empty() && change == Change::Remove => _ = elements.remove(i),
            Ok(i) => elements[i] = Cow::Owned(changed(&elements[i], rest, change, creates)?),
            Err(i) => elements.insert(i, Cow::Owned(new()?)),
        },
        Parts::Scalar(_) => return None,
    }
    Some(parts.text())
}

/// The problem of a path to a part that is removed; `None` if there is none. As in PostgreSQL, only the steps to
/// parts that exist are checked.
pub(super) fn path_problem<'a>(document: Parts<'_>, path: impl Iterator<Item = Option<&'a str>>) -> Option<String> {
    if let Parts::Scalar(_) = document {
        return Some("cannot delete path in scalar".into());
    }
    let mut next = Some(document.text());
    for (place, step) in (1..).zip(path) {
        let parts = Parts::unique(next.as_deref()?)?;
        let Some(step) = step else { return Some(format!("path element at position {place} is null")) };
        next = match parts {
            Parts::Object(members) => members.into_iter().find(|(name, _)| name == step).map(|(_, text)| text.into()),
            Parts::Array(elements) => match step.trim_ascii().parse::<i32>() {
                Ok(_) => {
                    let position = Step::Any(step.trim_ascii().into()).place(elements.len()).and_then(Result::ok);
                    position.and_then(|i| elements.into_iter().nth(i)).map(Cow::into_owned)
                }
                Err(_) => return Some(format!("path element at position {place} is not an integer: \"{step}\"")),
            },
            Parts::Scalar(_) => None,
        };
    }
    None
}

/// A value within new objects and arrays; `None` if an array would have other elements before it.
fn created(path: &[Step], value: &str) -> Option<String> {
    path.iter().rev().try_fold(value.to_string(), |value, step| match step {
        Step::Index(0) | Step::End(0) => Some(array([value])),
        Step::Index(_) | Step::End(_) => None,
        Step::Key(name) | Step::Any(name) => Some(object([(name, value)])),
    })
}

/// The document `target` with the changes of `patch` (RFC 7396): members that are null are removed, objects are changed
/// member by member. `None` if one is not a document.
pub(super) fn patched(target: Option<&str>, patch: &str) -> Option<String> {
    let Parts::Object(changes) = Parts::unique(patch)? else { return Some(patch.to_string()) };
    let mut members = match target.map(Parts::unique) {
        Some(Some(Parts::Object(members))) => members,
        Some(None) => return None,
        _ => Vec::new(),
    };
    for (name, change) in changes {
        let place = members.iter().position(|(other, _)| *other == name);
        if change == "null" {
            place.map(|i| members.remove(i));
            continue;
        }
        let value = Cow::Owned(patched(place.map(|i| &*members[i].1), &change)?);
        match place {
            Some(i) => members[i].1 = value,
            None => members.push((name, value)),
        }
    }
    Some(Parts::Object(members).text())
}

/// Both documents as one (PostgreSQL, JSON Functions and Operators, `jsonb || jsonb`): the members of two objects, of which
/// those of `right` replace others, or the elements of two arrays. Other documents count as arrays of one element. `None` if
/// one is not a document.
pub(super) fn joined(left: &str, right: &str) -> Option<String> {
    let elements = |parts, document| match parts {
        Parts::Array(elements) => elements,
        _ => vec![Cow::Borrowed(document)],
    };
    Some(match (Parts::unique(left)?, Parts::unique(right)?) {
        (Parts::Object(mut members), Parts::Object(others)) => {
            for (name, value) in others {
                match members.iter_mut().find(|(other, _)| *other == name) {
                    Some(member) => member.1 = value,
                    None => members.push((name, value)),
                }
            }
            Parts::Object(members).text()
        }
        (a, b) => array([elements(a, left.trim_ascii()), elements(b, right.trim_ascii())].concat()),
    })
}

/// The parts without the member of a name, or without the elements that are this text (PostgreSQL, `jsonb - text`).
pub(super) fn without<'a>(parts: Parts<'a>, name: &str) -> Parts<'a> {
    match parts {
        Parts::Object(mut members) => {
            members.retain(|(other, _)| other != name);
            Parts::Object(members)
        }
        Parts::Array(mut elements) => {
            elements.retain(|element| string(element).as_deref() != Some(name));
            Parts::Array(elements)
        }
        scalar => scalar,
    }
}

/// The document without members that are null, also in its parts. `None` if it is not a document.
pub(super) fn without_nulls(document: &str) -> Option<String> {
    let mut parts = Parts::of(document)?;
    match &mut parts {
        Parts::Object(members) => {
            members.retain(|(_, value)| value != "null");
            for (_, value) in members {
                *value = Cow::Owned(without_nulls(value)?);
            }
        }
        Parts::Array(elements) => {
            for element in elements {
                *element = Cow::Owned(without_nulls(element)?);
            }
        }
        Parts::Scalar(_) => {}
    }
    Some(parts.text())
}

/// Spaces for each level of an indented document.
const INDENT: usize = 4;

/// Appends the document with one member or element per line, indented by `level`. `None` if it is not a document.
pub(super) fn put_indented(document: &str, level: usize, output: &mut String) -> Option<()> {
    let parts = Parts::of(document)?;
    let (open, close) = match &parts {
        Parts::Object(members) if !members.is_empty() => ("{", '}'),
        Parts::Array(elements) if !elements.is_empty() => ("[", ']'),
        other => {
            output.push_str(&other.text());
            return Some(());
        }
    };
    let new_line = |level: usize, output: &mut String| {
        output.push('\n');
        output.extend(std::iter::repeat_n(' ', level * INDENT));
    };
    output.push_str(open);
    let (names, values): (Vec<Option<String>>, Vec<Cow<'_, str>>) = match parts {
        Parts::Object(members) => members.into_iter().map(|(name, value)| (Some(name), value)).unzip(),
        Parts::Array(elements) => elements.into_iter().map(|value| (None, value)).unzip(),
        Parts::Scalar(_) => Default::default(),
    };
    for (i, (name, value)) in names.iter().zip(&values).enumerate() {
        if i > 0 {
            output.push(',');
        }
        new_line(level + 1, output);
        if let Some(name) = name {
            put_string(name, output);
            output.push_str(": ");
        }
        put_indented(value, level + 1, output)?;
    }
    new_line(level, output);
    output.push(close);
    Some(())
}

/// True if all parts of `inner` are parts of `outer`, at the same places except for elements of arrays (PostgreSQL, JSON
/// Types, section "jsonb Containment"). `None` if one is not a document.
pub(super) fn contains(outer: &str, inner: &str) -> Option<bool> {
    let (outer_parts, inner_parts) = (Parts::unique(outer)?, Parts::unique(inner)?);
    match (&outer_parts, &inner_parts) {
        // An array contains a scalar that is one of its elements.
        (Parts::Array(elements), Parts::Scalar(scalar)) => {
            Some(elements.iter().any(|element| is_equal_scalar(element, scalar)))
        }
        _ => holds(&outer_parts, &inner_parts),
    }
}

fn holds(outer: &Parts<'_>, inner: &Parts<'_>) -> Option<bool> {
    let within = |outer: &str, inner: &str| holds(&Parts::unique(outer)?, &Parts::unique(inner)?);
    match (outer, inner) {
        (Parts::Object(outer), Parts::Object(inner)) => {
            for (name, value) in inner {
                match outer.iter().find(|(other, _)| other == name) {
                    Some((_, other)) if within(other, value)? => {}
                    _ => return Some(false),
                }
            }
            Some(true)
        }
        (Parts::Array(outer), Parts::Array(inner)) => {
            for element in inner {
                let mut found = false;
                for other in outer {
                    found = found || within(other, element)?;
                }
                if !found {
                    return Some(false);
                }
            }
            Some(true)
        }
        (Parts::Scalar(outer), Parts::Scalar(inner)) => Some(is_equal_scalar(outer, inner)),
        _ => Some(false),
    }
}

fn is_equal_scalar(left: &str, right: &str) -> bool {
    if left == right {
        return !left.starts_with(['[', '{']);
    }
    match (string(left), string(right)) {
        (Some(left), Some(right)) => return left == right,
        (None, None) => {}
        _ => return false,
    }
    let is_integer = |text: &str| text.bytes().all(|byte| byte == b'-' || byte.is_ascii_digit());
    match (left.parse::<f64>(), right.parse::<f64>()) {
        // Different digits of integers are different numbers, except for -0.
        (Ok(left_number), Ok(right_number)) => {
            left_number == right_number && (!is_integer(left) || !is_integer(right) || left_number == 0.0)
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::super::path::{elements, steps};
    use super::*;

    #[test]
    fn parts_keep_their_texts() {
        let parts = Parts::of(r#" {"a" : 1.50, "b":[1, 2], "a\n": {"x":null} } "#).unwrap();
        assert_eq!(parts.text(), r#"{"a":1.50,"b":[1, 2],"a\n":{"x":null}}"#);
        assert_eq!(Parts::of("12345678901234567890123").unwrap(), Parts::Scalar("12345678901234567890123"));
        for text in ["", "{", "[1,]", "{\"a\":}", "1 2", "{a:1}", "NaN", &"[".repeat(5000)] {
            assert_eq!(Parts::of(text), None, "{text}");
        }
    }

    #[test]
    fn strings_are_quoted_as_by_serde() {
        for text in ["", "a", "say \"hi\"", "\\", "ä\n\t\r\u{8}\u{c}\u{1}\u{7f}", "\"", "x\u{1f}"] {
            let mut quoted = String::new();
            put_string(text, &mut quoted);
            assert_eq!(quoted, serde_json::to_string(text).unwrap());
            assert_eq!(string(&quoted).as_deref(), Some(text));
        }
    }

    #[test]
    fn values_are_set_inserted_replaced_and_removed() {
        let set = |document: &str, path: &str, (replaces, inserts): (bool, bool)| {
            let change = Change::Value { value: "9", replaces, inserts };
            changed(document, &steps(path).unwrap(), change, true).unwrap_or_else(|| "same".into())
        };
        let (both, inserts, replaces) = ((true, true), (false, true), (true, false));
        assert_eq!(set(r#"{"a":1,"b":{"c":2}}"#, "$.b.c", both), r#"{"a":1,"b":{"c":9}}"#);
        assert_eq!(set("{}", "$.a.b", both), r#"{"a":{"b":9}}"#);
        assert_eq!(set("{}", "$.a[0]", both), r#"{"a":[9]}"#);
        assert_eq!(set("{}", "$.a[1]", both), "same");
        assert_eq!(set("[1,2]", "$[1]", both), "[1,9]");
        assert_eq!(set("[1,2]", "$[2]", both), "[1,2,9]");
        assert_eq!(set("[1,2]", "$[3]", both), "same");
        assert_eq!(set("[1,2]", "$[#]", both), "[1,2,9]");
        assert_eq!(set("[1,2]", "$[#-1]", both), "[1,9]");
        assert_eq!(set("[1,2]", "$[0]", inserts), "same");
        assert_eq!(set(r#"{"a":1}"#, "$.b", replaces), "same");
        assert_eq!(set(r#"{"a":1}"#, "$.a", replaces), r#"{"a":9}"#);
        assert_eq!(set("5", "$.a", both), "same");
        assert_eq!(set("5", "$", both), "9");
        let remove = |path: &str| changed(r#"{"a":[1,2,3]}"#, &steps(path).unwrap(), Change::Remove, false);
        assert_eq!(remove("$.a[1]").as_deref(), Some(r#"{"a":[1,3]}"#));
        assert_eq!(remove("$.a").as_deref(), Some("{}"));
        assert_eq!(remove("$.b"), None);
        // PostgreSQL's paths: beyond the ends of an array, an element is added there.
        let at = |path: &[&str]| {
            let change = Change::Value { value: "9", replaces: true, inserts: true };
            changed(r#"{"a":[1,2]}"#, &elements(path.iter().copied()), change, false)
        };
        assert_eq!(at(&["a", "-1"]).as_deref(), Some(r#"{"a":[1,9]}"#));
        assert_eq!(at(&["a", "7"]).as_deref(), Some(r#"{"a":[1,2,9]}"#));
        assert_eq!(at(&["a", "-7"]).as_deref(), Some(r#"{"a":[9,1,2]}"#));
        assert_eq!(at(&["b", "c"]), None);
    }

    #[test]
    fn documents_are_patched() {
        // Examples of RFC 7396, appendix A.
        for (target, patch, expected) in [
            (r#"{"a":"b"}"#, r#"{"a":"c"}"#, r#"{"a":"c"}"#),
            (r#"{"a":"b"}"#, r#"{"b":"c"}"#, r#"{"a":"b","b":"c"}"#),
            (r#"{"a":"b"}"#, r#"{"a":null}"#, "{}"),
            (r#"{"a":["b"]}"#, r#"{"a":"c"}"#, r#"{"a":"c"}"#),
            (r#"{"a":{"b":"c"}}"#, r#"{"a":{"b":"d","c":null}}"#, r#"{"a":{"b":"d"}}"#),
            (r#"["a","b"]"#, r#"["c","d"]"#, r#"["c","d"]"#),
            (r#"{"e":null}"#, r#"{"a":1}"#, r#"{"e":null,"a":1}"#),
            ("[1,2]", r#"{"a":"b","c":null}"#, r#"{"a":"b"}"#),
            ("{}", r#"{"a":{"bb":{"ccc":null}}}"#, r#"{"a":{"bb":{}}}"#),
        ] {
            assert_eq!(patched(Some(target), patch).as_deref(), Some(expected), "{target} {patch}");
        }
        assert_eq!(joined(r#"{"a":1,"b":2}"#, r#"{"b":3,"c":4}"#).as_deref(), Some(r#"{"a":1,"b":3,"c":4}"#));
        assert_eq!(joined("[1]", "[2,3]").as_deref(), Some("[1,2,3]"));
        assert_eq!(joined("1 ", r#"{"a":2}"#).as_deref(), Some(r#"[1,{"a":2}]"#));
        assert_eq!(joined("{", "1"), None);
        let removed = |document, name| without(Parts::of(document).unwrap(), name).text();
        assert_eq!(removed(r#"{"1":2,"b":3}"#, "1"), r#"{"b":3}"#);
        assert_eq!(removed(r#"["a",1,"b","a"]"#, "a"), r#"[1,"b"]"#);
        assert_eq!(removed("[1,2]", "1"), "[1,2]");
        assert_eq!(without_nulls(r#"{"a":null,"b":[null,{"c":null}]}"#).as_deref(), Some(r#"{"b":[null,{}]}"#));
    }

    #[test]
    fn documents_contain_others() {
        for (outer, inner, expected) in [
            (r#"{"a":1,"b":{"c":[1,2]}}"#, r#"{"b":{"c":[2]}}"#, true),
            (r#"{"a":1}"#, r#"{"a":1.0}"#, true),
            (r#"{"a":1}"#, r#"{"a":"1"}"#, false),
            ("[1,2,3]", "[3,1,1]", true),
            ("[1,2,[1,3]]", "[1,3]", false),
            ("[1,2,[1,3]]", "[[1,3]]", true),
            (r#"["foo","bar"]"#, r#""bar""#, true),
            (r#""bar""#, r#"["bar"]"#, false),
            (r#"[{"a":1}]"#, r#"{"a":1}"#, false),
            ("9007199254740993", "9007199254740992", false),
            ("-0", "0", true),
            ("{}", "{}", true),
            ("[]", "[null]", false),
        ] {
            assert_eq!(contains(outer, inner), Some(expected), "{outer} {inner}");
        }
        assert_eq!(contains("{", "1"), None);
    }

    #[test]
    fn documents_are_indented() {
        let mut text = String::new();
        put_indented(r#"{"a":[1,{}],"b":[]}"#, 0, &mut text).unwrap();
        assert_eq!(text, "{\n    \"a\": [\n        1,\n        {}\n    ],\n    \"b\": []\n}");
    }
}
