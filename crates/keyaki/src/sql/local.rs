//! SET LOCAL: settings that return to their former values at the end of the transaction.
//!
//! The session keeps the former values. They are restored after the statement that has ended the transaction, or before the
//! next one. A later SET or RESET of the same setting in the transaction makes its value that of the session. ROLLBACK TO a
//! savepoint does not restore them.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use datafusion::sql::sqlparser::ast::{ContextModifier, Set};

use super::names::SearchPath;
use super::roles::Acting;
use super::roles::acting::set_role;
use super::{Outcome, SqlSession, notices, settings};
use crate::values::zone::Zone;
use crate::{Error, Result};

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
}

impl Former {
    /// The current value.
    ///
    /// # Errors
    /// `Unsupported` for settings of the database and of DataFusion.
    fn of(session: &SqlSession, name: &str) -> Result<Former> {
        Ok(match name {
            settings::SEARCH_PATH => Former::Path(session.path()),
            settings::TIME_ZONE => Former::Zone(session.zone()),
            settings::ROLE => Former::Acting(session.acting()),
            name if !settings::is_of_session(name) => return Err(Error::Unsupported(format!("SET LOCAL {name}"))),
            name => settings::value(session, name)?.map_or(Former::Unset, Former::Text),
        })
    }

    fn restore(self, session: &SqlSession, name: &str) -> Result<()> {
        match self {
            Former::Text(value) => settings::assign(session, name, &value)?,
            Former::Unset => drop(session.client_settings.lock().reset(name)),
            Former::Path(path) => session.change_path(|current| path.with_temporary_of(current)),
            Former::Zone(zone) => *session.zone.lock() = zone,
            Former::Acting(acting) => session.act(acting.map(|acting| Acting::clone(&acting)).unwrap_or_default()),
        }
        session.planning.lock().take();
        Ok(())
    }
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
/// Errors of the setting.
pub(super) fn set(session: &SqlSession, set: &Set) -> Result<Option<Outcome>> {
    let Some((name, set)) = without_local(set) else { return Ok(None) };
    let done = Ok(Some(Outcome::done("SET")));
    if !session.transaction.is_open() {
        notices::outside_of_transactions(session, "SET LOCAL");
        return done;
    }
    if settings::is_of_transaction(&name) {
        return settings::set(session, set).map(Some);
    }
    let known = session.local.lock().iter().find(|(known, _)| *known == name).map(|(_, former)| former.clone());
    let is_known = known.is_some();
    let former = known.map_or_else(|| Former::of(session, &name), Ok)?;
    let result = match set {
        Set::SetRole { role_name, .. } => {
            let role = role_name.as_ref().map(super::names::plain_ident);
            set_role(session, role.as_deref().filter(|role| *role != "none")).map(drop)
        }
        set => settings::set(session, set).map(drop),
    };
    forget(session, &name);
    if is_known || result.is_ok() {
        session.local.lock().push((name, former));
        session.has_local.store(true, Ordering::Relaxed);
    }
    result.and(done)
}

/// Makes the value of a setting that of the session: a statement without LOCAL has changed it.
pub(super) fn forget(session: &SqlSession, name: &str) {
    if session.has_local.load(Ordering::Relaxed) {
        session.local.lock().retain(|(known, _)| known != name);
    }
}

/// Makes the values of all settings but the role those of the session.
pub(super) fn forget_settings(session: &SqlSession) {
    session.local.lock().retain(|(known, _)| known == settings::ROLE);
}

/// Restores the former values, unless the transaction is open.
pub(crate) fn end(session: &SqlSession) {
    if session.has_local.load(Ordering::Relaxed) && !session.transaction.is_open() {
        restore(session);
    }
}

/// Restores the former values.
pub(super) fn restore(session: &SqlSession) {
    session.has_local.store(false, Ordering::Relaxed);
    let former = std::mem::take(&mut *session.local.lock());
    for (name, former) in former {
        if let Err(error) = former.restore(session, &name) {
            tracing::warn!(setting = %name, %error, "could not restore a setting after SET LOCAL");
        }
    }
}
