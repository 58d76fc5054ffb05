//! `PUBLISH DATABASE TO 'url' [KEEP n]`: adds a version with all commits so far to an object store, beside writers.

use std::path::Path;
use std::sync::Arc;

use arrow::array::{ArrayRef, BooleanArray, Int64Array, StringArray};
use datafusion::sql::sqlparser::keywords::Keyword;
use datafusion::sql::sqlparser::parser::Parser;
use keyaki_publish::{CollectOptions, PublishOptions, Repository, RequestOptions};
use keyaki_store::Store;

use super::check::over_pages;
use super::transaction::check_outside;
use super::{Outcome, SqlSession, syntax};
use crate::base::interrupt::Execution;
use crate::catalog::CATALOG_TREE;
use crate::engine::published::split_version;
use crate::{Error, Result};

/// The repository, and the number of versions that stay.
#[derive(Debug)]
pub(super) struct Publish {
    url: String,
    keep: Option<usize>,
}

/// Parses a statement whose first word is PUBLISH.
pub(super) fn parse(parser: &mut Parser<'_>) -> Result<Publish> {
    parser.next_token();
    parser.expect_keywords(&[Keyword::DATABASE, Keyword::TO]).map_err(syntax)?;
    let url = parser.parse_literal_string().map_err(syntax)?;
    let keep = match parser.peek_token_ref().token.to_string().eq_ignore_ascii_case("keep") {
        true => {
            parser.next_token();
            Some(parser.parse_literal_uint().map_err(syntax)?)
        }
        false => None,
    };
    let keep = keep.map(|keep| match usize::try_from(keep) {
        Ok(keep @ 1..) => Ok(keep),
        _ => Err(Error::InvalidParameter {
            name: "KEEP".into(),
            value: keep.to_string(),
            expected: "the number of versions that stay, at least 1".into(),
        }),
    });
    Ok(Publish { url, keep: keep.transpose()? })
}

/// Executes the statement. The result is one row: the URL, the number of the version, the bytes uploaded, the bytes
/// that the version before has already, the number of removed versions, and whether the version is new.
pub(super) async fn run(session: &SqlSession, execution: &Execution<'_>, publish: Publish) -> Result<Outcome> {
    check_outside(session, "PUBLISH")?;
    let Publish { url, keep } = publish;
    session.files().access().check_url(&url)?;
    if split_version(&url).1.is_some() {
        return Err(Error::InvalidParameter {
            name: "URL".into(),
            value: url,
            expected: "a URL without @ and a number at its end, which stand for a version".into(),
        });
    }
    let (target, decision) = (url.clone(), execution.decision().clone());
    let settings = session.engine.object_store.clone();
    let work = move |store: &Store, progress: &(dyn Fn(u64, u64) -> bool + Sync)| -> Result<_> {
        let repository = Repository::from_url_with(&target, &settings, RequestOptions::default())?;
        let options = PublishOptions { first_tree: Some(CATALOG_TREE), ..PublishOptions::default() };
        let Some(published) = repository.publish(store, &options, progress)? else {
            return Err(Error::Cancelled);
        };
        // The version exists: interrupts have no effect any more.
        let _ = decision.commit();
        let removed = match keep {
            Some(keep) => repository.collect(&CollectOptions { keep, ..CollectOptions::default() })?.versions,
            None => 0,
        };
        Ok((published, removed))
    };
    let (published, removed) = over_pages(session, execution, "publishing", work).await?;
    session.progress.lock().finish();
    let url: ArrayRef = Arc::new(StringArray::from_iter_values([url]));
    let resumed_or_kept = published.kept_bytes + published.resumed_bytes;
    let numbers = [published.version.number, published.uploaded_bytes, resumed_or_kept, removed];
    let [version, bytes, kept_bytes, removed] =
        numbers.map(|number| Arc::new(Int64Array::from(vec![number as i64])) as ArrayRef);
    let is_new: ArrayRef = Arc::new(BooleanArray::from(vec![published.is_new]));
    Outcome::of_columns([
        ("url", url),
        ("version", version),
        ("bytes", bytes),
        ("kept_bytes", kept_bytes),
        ("removed_versions", removed),
        ("is_new", is_new),
    ])
}

/// The directory of a URL `file:///…`.
pub(super) fn directory_of(url: &str) -> Option<&Path> {
    let scheme = url.get(..FILE.len()).filter(|scheme| scheme.eq_ignore_ascii_case(FILE));
    scheme.map(|_| Path::new(&url[FILE.len()..])).filter(|path| path.is_absolute())
}

const FILE: &str = "file://";
