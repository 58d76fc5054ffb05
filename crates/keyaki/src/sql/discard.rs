//! DISCARD: returns a session to its initial state, for pools of connections.

use datafusion::sql::sqlparser::ast::DiscardObject;

use super::roles::acting::set_session;
use super::sequences::Taken;
use super::{Outcome, SqlSession, login, named, settings};
use crate::{Error, Result};

/// Executes the statement. DISCARD ALL keeps the settings of the database.
///
/// # Errors
/// `ActiveTransaction` for ALL and TEMP inside a transaction.
pub(super) async fn run(session: &SqlSession, object: DiscardObject) -> Result<Outcome> {
    if matches!(object, DiscardObject::ALL | DiscardObject::TEMP) && session.transaction.is_open() {
        return Err(Error::ActiveTransaction(format!("DISCARD {object} cannot run inside a transaction block")));
    }
    match object {
        DiscardObject::ALL => {
            set_session(session, None)?;
            settings::reset_session(session);
            if session.initial.lock().is_none() {
                restore_role(session);
            }
            named::deallocate_all(session);
            session.cursors.close_all();
            session.channels.unlisten_all();
            plans(session);
            sequences(session);
            session.advisory_locks.unlock_all();
            temporary(session).await;
        }
        DiscardObject::PLANS => plans(session),
        DiscardObject::SEQUENCES => sequences(session),
        DiscardObject::TEMP => temporary(session).await,
    }
    Ok(Outcome::done(&format!("DISCARD {object}")))
}

/// Applies the settings of the role that has logged in, to a session that has not kept them.
fn restore_role(session: &SqlSession) {
    let Some((name, id)) = session.acting().and_then(|acting| acting.login()) else { return };
    let catalog = session.engine.catalog.read().clone();
    if let Some(role) = catalog.roles.get(&*name).filter(|role| role.id == id) {
        login(session, role);
    }
}

/// The plans of prepared statements are checked at each execution. DataFusion's state is built again.
fn plans(session: &SqlSession) {
    session.planning.lock().take();
}

fn sequences(session: &SqlSession) {
    *session.taken.lock() = Taken::default();
}

/// Drops the temporary objects.
async fn temporary(session: &SqlSession) {
    let Some(schema) = session.path().temporary().cloned() else { return };
    session.change_path(|path| path.without_temporary());
    session.engine.temporary.end(schema);
    session.remove_ended().await;
}
