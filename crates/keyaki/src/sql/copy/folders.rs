//! Values of columns in the names of folders, as Hive has them: `year=2026/month=7/data_0.parquet`.

use std::path::{Component, Path};

/// The value that stands for NULL.
pub(super) const NULL: &str = "__HIVE_DEFAULT_PARTITION__";

/// The names of columns and the values in the folders of a file.
pub(in crate::sql) fn folders(file: &Path) -> (Vec<String>, Vec<Option<String>>) {
    let parents = file.parent().into_iter().flat_map(Path::components).filter_map(|component| match component {
        Component::Normal(name) => name.to_str()?.split_once('='),
        _ => None,
    });
    let named = parents.filter(|(name, _)| !name.is_empty());
    named.map(|(name, value)| (unescaped(name), Some(value).filter(|value| *value != NULL).map(unescaped))).unzip()
}

/// A text without the escapes of URLs. Invalid ones stay.
fn unescaped(text: &str) -> String {
    let (mut bytes, mut rest) = (Vec::with_capacity(text.len()), text.as_bytes());
    while let Some((&first, behind)) = rest.split_first() {
        let hex = |byte: u8| char::from(byte).to_digit(16);
        match behind {
            [high, low, behind @ ..] if first == b'%' && hex(*high).is_some() && hex(*low).is_some() => {
                bytes.push((hex(*high).unwrap_or(0) << 4 | hex(*low).unwrap_or(0)) as u8);
                rest = behind;
            }
            _ => {
                bytes.push(first);
                rest = behind;
            }
        }
    }
    String::from_utf8(bytes).unwrap_or_else(|_| text.into())
}

/// A text as a part of the name of a folder: other characters than letters, digits, `-`, `.`, `_` and `~` as in URLs.
pub(super) fn escaped(text: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    let escape = |byte: u8| match is_plain(byte) {
        true => char::from(byte).to_string(),
        false => format!("%{byte:02X}"),
    };
    match text {
        // These would be other folders.
        "." => "%2E".into(),
        ".." => "%2E%2E".into(),
        // This would be NULL.
        NULL => format!("%5F{}", &NULL[1..]),
        text => text.bytes().map(escape).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_have_values() {
        let of = |path: &str| folders(Path::new(path));
        let text = |text: &str| Some(text.to_owned());
        assert_eq!(of("/a/y=2026/m=07/c=d.csv"), (vec!["y".into(), "m".into()], vec![text("2026"), text("07")]));
        assert_eq!(of("s3://b/a%20b=x%2Fy%zz/f"), (vec!["a b".into()], vec![text("x/y%zz")]));
        assert_eq!(of("x=__HIVE_DEFAULT_PARTITION__/y=/=z/f"), (vec!["x".into(), "y".into()], vec![None, text("")]));
    }

    #[test]
    fn values_are_names() {
        for (value, name) in [
            ("a-b_1.5~", "a-b_1.5~"),
            ("a/b=ü %", "a%2Fb%3D%C3%BC%20%25"),
            ("..", "%2E%2E"),
            ("", ""),
            (NULL, "%5F_HIVE_DEFAULT_PARTITION__"),
        ] {
            assert_eq!(escaped(value), name);
        }
    }
}
