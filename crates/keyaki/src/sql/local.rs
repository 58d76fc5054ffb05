//! Settings that return to their former values at the end of the transaction, or of a part of it.
//!
//! ROLLBACK restores what SET, RESET and SET ROLE have changed in the transaction, ROLLBACK TO what they have changed since the
//! savepoint, and COMMIT what SET LOCAL has changed. A transaction keeps a journal of the former values: one entry for each
//! setting and savepoint. Settings of the database are not restored.
//!
//! Values are restored after the statement that has ended the transaction, or before the next one.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use datafusion::sql::sqlparser::ast::{ContextModifier, Set};

use super::names::SearchPath;
use super::roles::Acting;
use super::roles::acting::set_role;
use super::{Outcome, SqlSession, notices, settings};
use crate::values::zone::Zone;
use crate::{Error, Result};

/// Maximum number of entries of a journal.
const ENTRIES_MAX: usize = 1_000;

/// A former value of a setting.
#[derive(Debug, Clone)]
pub(crate) enum Former {
    Text(String),
    /// A setting of the program that had no value.
    Unset,
    Path(Arc<SearchPath>),
    Zone(Zone),
    /// The roles of the session.
    Acting(Option<Arc<Acting>>),
    /// The changed settings of DataFusion.
    Overrides(Vec<(String, String)>),
}

impl Former {
    /// The current value.
    ///
    /// # Errors
    /// As [`settings::value`].
    fn of(session: &SqlSession, name: &str) -> Result<Former> {
        Ok(match name {
            settings::SEARCH_PATH => Former::Path(session.path()),
            settings::TIME_ZONE => Former::Zone(session.zone()),
            settings::ROLE => Former::Acting(session.acting()),
            settings::OVERRIDES => Former::Overrides(session.overrides.lock().clone()),
            name => settings::value(session, name)?.map_or(Former::Unset, Former::Text),
        })
    }

    fn restore(self, session: &SqlSession, name: &str) -> Result<()> {
        match self {
            Former::Text(value) => settings::assign(session, name, &value)?,
            Former::Unset => drop(session.client_settings.lock().unset(name)),
            Former::Path(path) => session.change_path(|current| path.with_temporary_of(current)),
            Former::Zone(zone) => *session.zone.lock() = zone,
            Former::Acting(acting) => session.act(acting.map(|acting| Acting::clone(&acting)).unwrap_or_default()),
            Former::Overrides(overrides) => *session.overrides.lock() = overrides,
        }
        session.planning.lock().take();
        Ok(())
    }
}

/// The settings that a transaction has changed.
#[derive(Debug, Default)]
pub(crate) struct Journal {
    entries: Vec<Entry>,
    /// The savepoints, with the number of entries before them.
    savepoints: Vec<(String, usize)>,
}

#[derive(Debug)]
struct Entry {
    name: String,
    /// The value before the changes since the savepoint.
    former: Former,
    changed: Changed,
}

/// How a setting was changed since a savepoint.
#[derive(Debug)]
enum Changed {
    /// By SET LOCAL only.
    Local,
    /// By SET, after which there was no SET LOCAL.
    Set,
    /// By SET, which gave it this value, and later by SET LOCAL.
    SetBefore(Former),
}

impl Journal {
    /// Notes that a setting with the value `former` was changed.
    fn note(&mut self, name: &str, former: Former, is_local: bool) {
        let start = self.savepoints.last().map_or(0, |(_, start)| *start);
        let known = self.entries[start..].iter_mut().rev().find(|entry| entry.name == name);
        match known {
            None => {
                let changed = if is_local { Changed::Local } else { Changed::Set };
                self.entries.push(Entry { name: name.into(), former, changed });
            }
            Some(entry) if !is_local => entry.changed = Changed::Set,
            Some(entry) if matches!(entry.changed, Changed::Set) => entry.changed = Changed::SetBefore(former),
            Some(_) => {}
        }
    }

    /// The values that COMMIT restores: those before SET LOCAL.
    fn committed(self) -> Vec<(String, Former)> {
        // A setting is known once a later entry has decided its value.
        let (mut values, mut known) = (Vec::<(String, Former)>::new(), Vec::<String>::new());
        for entry in self.entries.into_iter().rev() {
            if known.contains(&entry.name) {
                continue;
            }
            let (value, is_known) = match entry.changed {
                Changed::Local => (Some(entry.former), false),
                Changed::SetBefore(value) => (Some(value), true),
                Changed::Set => (None, true),
            };
            if is_known {
                known.push(entry.name.clone());
            }
            if let Some(value) = value {
                values.retain(|(name, _)| *name != entry.name);
                values.push((entry.name, value));
            }
        }
        values
    }

    /// Removes the entries from a place on, and returns the values before them.
    fn removed(&mut self, start: usize) -> Vec<(String, Former)> {
        self.entries.drain(start..).rev().map(|entry| (entry.name, entry.former)).collect()
    }
}

/// Makes a change of settings, and keeps their former values if a transaction is open.
///
/// # Errors
/// Errors of the change; `PrerequisiteState` if the transaction has changed too many settings.
pub(super) fn changing<T>(
    session: &SqlSession,
    names: &[&str],
    is_local: bool,
    change: impl FnOnce() -> Result<T>,
) -> Result<T> {
    if !session.transaction.is_open() {
        return change();
    }
    if session.journal.lock().entries.len() >= ENTRIES_MAX {
        let problem = format!("a transaction can change at most {ENTRIES_MAX} settings between its savepoints");
        return Err(Error::PrerequisiteState(problem));
    }
    let names = names.iter().map(|name| if settings::is_override(name) { settings::OVERRIDES } else { *name });
    let kept = names.filter(|name| settings::is_of_session(name) && !settings::is_of_transaction(name));
    let former = kept.map(|name| Ok((name, Former::of(session, name)?))).collect::<Result<Vec<_>>>()?;
    let changed = change()?;
    let mut journal = session.journal.lock();
    former.into_iter().for_each(|(name, former)| journal.note(name, former, is_local));
    session.has_journal.store(true, Ordering::Relaxed);
    Ok(changed)
}

/// The setting and the statement without LOCAL; `None` for statements without LOCAL.
fn without_local(set: &Set) -> Option<(String, Set)> {
    Some(match set {
        Set::SingleAssignment { scope: Some(ContextModifier::Local), hivevar: false, variable, values } => {
            let (variable, values) = (variable.clone(), values.clone());
            let name = settings::setting_name(&variable);
            (name, Set::SingleAssignment { scope: None, hivevar: false, variable, values })
        }
        Set::SetTimeZone { local: true, value } => {
            (settings::TIME_ZONE.into(), Set::SetTimeZone { local: false, value: value.clone() })
        }
        Set::SetRole { context_modifier: Some(ContextModifier::Local), role_name } => {
            (settings::ROLE.into(), Set::SetRole { context_modifier: None, role_name: role_name.clone() })
        }
        _ => return None,
    })
}

/// Executes SET LOCAL; `None` for other statements. Outside of a transaction it has no effect, as in PostgreSQL.
///
/// # Errors
/// `Unsupported` for settings of the database and of DataFusion; errors of the setting.
pub(super) fn set(session: &SqlSession, set: &Set) -> Result<Option<Outcome>> {
    let Some((name, set)) = without_local(set) else { return Ok(None) };
    let done = Ok(Some(Outcome::done("SET")));
    if !session.transaction.is_open() {
        notices::outside_of_transactions(session, "SET LOCAL");
        return done;
    }
    if !settings::is_of_session(&name) || settings::is_override(&name) {
        return Err(Error::Unsupported(format!("SET LOCAL {name}")));
    }
    changing(session, &[&name], true, || match set {
        Set::SetRole { role_name, .. } => {
            let role = role_name.as_ref().map(super::names::plain_ident);
            set_role(session, role.as_deref().filter(|role| *role != "none")).map(drop)
        }
        set => settings::apply(session, set).map(drop),
    })?;
    done
}

/// Adds a savepoint.
pub(super) fn save(session: &SqlSession, name: &str) {
    let mut journal = session.journal.lock();
    let start = journal.entries.len();
    journal.savepoints.push((name.into(), start));
    session.has_journal.store(true, Ordering::Relaxed);
}

/// Removes the newest savepoint with a name, and later ones.
pub(super) fn release(session: &SqlSession, name: &str) {
    let mut journal = session.journal.lock();
    if let Some(place) = journal.savepoints.iter().rposition(|(known, _)| known == name) {
        journal.savepoints.truncate(place);
    }
}

/// Restores the values before the newest savepoint with a name, and removes later savepoints.
pub(super) fn roll_back_to(session: &SqlSession, name: &str) {
    let former = {
        let mut journal = session.journal.lock();
        let Some(place) = journal.savepoints.iter().rposition(|(known, _)| known == name) else { return };
        journal.savepoints.truncate(place + 1);
        let start = journal.savepoints[place].1;
        journal.removed(start)
    };
    restore(session, former);
}

/// Restores what SET LOCAL has changed in a transaction that was committed.
pub(super) fn commit(session: &SqlSession) {
    if session.has_journal.swap(false, Ordering::Relaxed) {
        let journal = std::mem::take(&mut *session.journal.lock());
        restore(session, journal.committed());
    }
}

/// Restores what was changed in a transaction that was rolled back.
pub(super) fn roll_back(session: &SqlSession) {
    if session.has_journal.swap(false, Ordering::Relaxed) {
        let mut journal = std::mem::take(&mut *session.journal.lock());
        restore(session, journal.removed(0));
    }
}

/// Restores what a transaction has changed that has ended without COMMIT.
pub(crate) fn end(session: &SqlSession) {
    if session.has_journal.load(Ordering::Relaxed) && !session.transaction.is_open() {
        roll_back(session);
    }
}

fn restore(session: &SqlSession, former: Vec<(String, Former)>) {
    for (name, former) in former {
        if let Err(error) = former.restore(session, &name) {
            tracing::warn!(setting = %name, %error, "could not restore a setting at the end of a transaction");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn journal(changes: &[(&str, i32, bool)]) -> Journal {
        let mut journal = Journal::default();
        for (name, former, is_local) in changes {
            match *name {
                "SAVEPOINT" => journal.savepoints.push(("s".into(), journal.entries.len())),
                name => journal.note(name, Former::Text(former.to_string()), *is_local),
            }
        }
        journal
    }

    fn texts(values: Vec<(String, Former)>) -> Vec<String> {
        let text = |(name, former)| match former {
            Former::Text(value) => format!("{name} {value}"),
            other => format!("{name} {other:?}"),
        };
        values.into_iter().map(text).collect()
    }

    #[test]
    fn commit_keeps_the_last_value_of_set() {
        let committed = |changes: &[_]| texts(journal(changes).committed());
        assert!(committed(&[("a", 0, false), ("a", 1, false)]).is_empty());
        assert_eq!(committed(&[("a", 0, true), ("a", 1, true)]), ["a 0"]);
        assert_eq!(committed(&[("a", 0, false), ("a", 1, true), ("a", 2, true)]), ["a 1"]);
        assert!(committed(&[("a", 0, true), ("a", 1, false)]).is_empty());
        let savepoint = ("SAVEPOINT", 0, false);
        assert_eq!(committed(&[("a", 0, false), savepoint, ("a", 1, true), ("b", 7, false)]), ["a 1"]);
        assert_eq!(committed(&[("a", 0, true), savepoint, ("a", 1, true)]), ["a 0"]);
        assert!(committed(&[("a", 0, true), savepoint, ("a", 1, false)]).is_empty());
    }

    #[test]
    fn rollback_restores_the_first_value() {
        let savepoint = ("SAVEPOINT", 0, false);
        let mut journal = journal(&[("a", 0, false), ("a", 1, false), savepoint, ("a", 2, true), ("b", 3, false)]);
        assert_eq!(texts(journal.removed(1)), ["b 3", "a 2"]);
        assert_eq!(texts(journal.removed(0)), ["a 0"]);
    }
}
