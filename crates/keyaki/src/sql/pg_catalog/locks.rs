//! The view `pg_locks`, and the sessions that a session waits for.
//!
//! Transactions have locks of rows only ([`crate::base::row_locks`]). A row is known by a hash, which the columns `page` and
//! `tuple` show: rows with the same numbers are the same.

use std::collections::HashMap;

use keyaki_store::TreeId;

use super::objects::{DATABASE, Source};
use super::shapes::{Rows, Value};
use crate::base::row_locks::LockMode;

/// Adds the rows of `pg_locks`.
pub(super) fn add(source: &Source, rows: &mut Rows) {
    let locks = source.engine.row_locks.list();
    if locks.is_empty() {
        return;
    }
    let mut relations: HashMap<TreeId, u32> = HashMap::new();
    for (name, table) in &source.catalog.tables {
        let Some(relation) = source.objects().named(name) else { continue };
        let trees = table.def.indexes.iter().map(|index| index.tree).chain([table.def.tree]);
        relations.extend(trees.map(|tree| (tree, relation.oid)));
    }
    for lock in locks {
        let mode = match lock.mode {
            LockMode::KeyShare => "AccessShareLock",
            LockMode::Share => "RowShareLock",
            LockMode::NoKeyUpdate => "ExclusiveLock",
            LockMode::Update => "AccessExclusiveLock",
        };
        rows.add(&[
            ("locktype", "tuple".into()),
            ("database", DATABASE.into()),
            ("relation", relations.get(&lock.tree).map_or(Value::Null, |oid| (*oid).into())),
            ("page", (((lock.row >> 33) as u32).cast_signed()).into()),
            ("tuple", ((lock.row & 0x7fff) as i32).into()),
            ("virtualxid", Value::Null),
            ("transactionid", Value::Null),
            ("classid", Value::Null),
            ("objid", Value::Null),
            ("objsubid", Value::Null),
            ("virtualtransaction", format!("{}/0", lock.session).into()),
            ("pid", lock.session.into()),
            ("mode", mode.into()),
            ("granted", lock.is_granted.into()),
            ("fastpath", false.into()),
            ("waitstart", Value::Null),
        ]);
    }
}

/// The numbers of the sessions that a session waits for.
pub(super) fn blocking(source: &Source, process: i64) -> Value {
    let sessions = i32::try_from(process).map(|process| source.engine.row_locks.blocking(process)).unwrap_or_default();
    Value::Numbers(sessions.into_iter().map(i64::from).collect())
}
