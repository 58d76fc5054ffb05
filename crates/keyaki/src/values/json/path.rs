//! Paths in documents.

/// A step from an object to a member or from an array to an element.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Step {
    Key(String),
    /// The position from the first element, which is 0.
    Index(usize),
    /// The position before the end, which is 0.
    End(usize),
    /// The name of a member, or the position of an element as PostgreSQL writes it: negative from the end.
    Any(String),
}

impl Step {
    /// The name of a member; `None` for the position of an element.
    pub fn name(&self) -> Option<&str> {
        match self {
            Step::Key(name) | Step::Any(name) => Some(name),
            Step::Index(_) | Step::End(_) => None,
        }
    }

    /// The position of an element, or as an error the position where it can be added. `None` if there is no such element,
    /// and none can be added.
    pub fn place(&self, len: usize) -> Option<Result<usize, usize>> {
        let place = |i: usize| if i < len { Ok(i) } else { Err(i) };
        match self {
            Step::Key(_) => None,
            Step::Index(i) => (*i <= len).then(|| place(*i)),
            Step::End(back) => len.checked_sub(*back).map(place),
            Step::Any(text) => {
                let position: i64 = text.parse().ok()?;
                Some(match usize::try_from(position) {
                    Ok(i) => place(i.min(len)),
                    Err(_) => match len.checked_sub(usize::try_from(position.unsigned_abs()).ok()?) {
                        Some(i) => Ok(i),
                        None => Err(0),
                    },
                })
            }
        }
    }
}

/// The steps of a path as in SQLite, DuckDB and MySQL: `$`, `.key`, `."key"`, `[0]`, `[#-1]`, `[#]`. `None` for other texts.
pub(crate) fn steps(path: &str) -> Option<Vec<Step>> {
    let mut rest = path.strip_prefix('$')?;
    let mut steps = Vec::new();
    while !rest.is_empty() {
        if let Some(position) = rest.strip_prefix('[') {
            let (position, after) = position.split_once(']')?;
            let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?;
            steps.push(match position.strip_prefix('#') {
                Some("") => Step::End(0),
                Some(back) => Step::End(digits(back.strip_prefix('-')?)?),
                None => Step::Index(digits(position)?),
            });
            rest = after;
            continue;
        }
        let name = rest.strip_prefix('.')?;
        let (name, after) = match name.strip_prefix('"') {
            Some(quoted) => quoted.split_once('"')?,
            None => name.split_at(name.find(['.', '[']).unwrap_or(name.len())),
        };
        if name.is_empty() {
            return None;
        }
        steps.push(Step::Key(name.to_string()));
        rest = after;
    }
    Some(steps)
}

/// The steps of a path that is an array of texts, as in PostgreSQL.
pub(super) fn elements<'a>(path: impl Iterator<Item = &'a str>) -> Vec<Step> {
    path.map(|step| Step::Any(step.to_string())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_have_steps() {
        let key = |name: &str| Step::Key(name.into());
        assert_eq!(steps("$"), Some(vec![]));
        assert_eq!(steps("$.a.b[0]"), Some(vec![key("a"), key("b"), Step::Index(0)]));
        assert_eq!(steps("$.\"a.b\"[#-2][#]"), Some(vec![key("a.b"), Step::End(2), Step::End(0)]));
        for path in ["", "a", "$a", "$.", "$[", "$[x]", "$[-1]", "$..a", "$.a[#1]", "$.\"a", "$[]"] {
            assert_eq!(steps(path), None, "{path}");
        }
    }
}
