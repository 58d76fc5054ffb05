//! SET, SHOW and RESET: settings of the session, of the database, and of DataFusion.
//!
//! | name | scope | values |
//! |---|---|---|
//! | `keyaki.execution` | session | `out_of_order`, `in_order` |
//! | `keyaki.join` | session | `auto`, `index`, `scan` |
//! | `keyaki.short_path` | session | `on`, `off` |
//! | `keyaki.blind_upserts`, `keyaki.row_locks` | session | `on`, `off` |
//! | `keyaki.plan_cache` | session | `on`, `always`, `off` |
//! | `keyaki.request_price`, `keyaki.transfer_price` | session | a number: see [`Prices`](crate::Prices) |
//! | `default_transaction_isolation` | session | `read committed`, `repeatable read`, `serializable` |
//! | `default_transaction_read_only` | session | `on`, `off` |
//! | `transaction_isolation`, `transaction_read_only` | open transaction | the same values |
//! | `lock_timeout` | session | as `transaction_timeout` |
//! | `statement_timeout` | session | as `transaction_timeout`; sessions of servers only |
//! | `transaction_timeout` | session, for transactions that begin later | a number of milliseconds, or with a unit (`30s`, `10min`); 0: none |
//! | `search_path` | session | names of schemas, separated by commas |
//! | `role` | session | a role, or `none`: as SET ROLE; `session_authorization` and `is_superuser` are read-only |
//! | `timezone` | session | a name of the IANA time zone database, or hours east of Greenwich |
//! | `keyaki.durability` | database, until it is closed | `full`, `normal`, `off` |
//! | `keyaki.cache_governor` | database, until it is closed | `on`, `off`; `off` ends all pins |
//! | `application_name`, `client_encoding`, `datestyle` … | session | see [`client_settings`](super::client_settings) |
//! | `datafusion.execution.…`, `datafusion.optimizer.…`, `datafusion.explain.…` | session | see DataFusion's documentation |
//!
//! ROLLBACK restores the values before the transaction, COMMIT those before SET LOCAL ([`local`]).
//!
//! RESET returns to the value with which a server has opened the session, else to the default, and for settings of the database
//! to the value with which it was opened. RESET ALL resets the settings of the session and those of the database.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use arrow::array::{ArrayRef, StringViewArray};
use datafusion::common::config::ConfigOptions;
use datafusion::prelude::SessionConfig;
use datafusion::sql::sqlparser::ast::{
    ContextModifier, Expr, Ident, ObjectName, Reset, ResetStatement, Set, UnaryOperator, Value, ValueWithSpan,
};
use keyaki_store::Durability;

use super::names::{plain_ident, quoted};
use super::roles::Acting;
use super::roles::acting::{NO_ROLE, set_role};
use super::{access, client_settings, local};
use crate::base::options::Isolation;
use crate::engine::transaction::Characteristics;
use crate::sql::Outcome;
use crate::sql::SqlSession;
use crate::values::zone::Zone;
use crate::{CacheGovernor, Error, ExecutionMode, JoinMode, ObjectKind, PlanCacheMode, Result, SessionOptions, Switch};

const EXECUTION: &str = "keyaki.execution";
const JOIN: &str = "keyaki.join";
const SHORT_PATH: &str = "keyaki.short_path";
const BLIND_UPSERTS: &str = "keyaki.blind_upserts";
const ROW_LOCKS: &str = "keyaki.row_locks";
const PLAN_CACHE: &str = "keyaki.plan_cache";
const REQUEST_PRICE: &str = "keyaki.request_price";
const TRANSFER_PRICE: &str = "keyaki.transfer_price";
const DEFAULT_ISOLATION: &str = "default_transaction_isolation";
const DEFAULT_READ_ONLY: &str = "default_transaction_read_only";
const ISOLATION: &str = "transaction_isolation";
const READ_ONLY: &str = "transaction_read_only";
const TRANSACTION_TIMEOUT: &str = "transaction_timeout";
const LOCK_TIMEOUT: &str = "lock_timeout";
const STATEMENT_TIMEOUT: &str = "statement_timeout";
pub(super) const TIME_ZONE: &str = "timezone";
pub(super) const SEARCH_PATH: &str = "search_path";
pub(super) const ROLE: &str = "role";
const DURABILITY: &str = "keyaki.durability";
/// DataFusion's type of TIMESTAMPTZ.
const ENGINE_TIME_ZONE: &str = "datafusion.execution.time_zone";
const CACHE_GOVERNOR: &str = "keyaki.cache_governor";
/// The values of settings of isolation levels.
const ISOLATIONS: &str = "'read committed' 'repeatable read' 'serializable'";
/// Parts of DataFusion's configuration that SET may change: they do not affect the meaning of statements.
const OPEN_PREFIXES: [&str; 3] = ["datafusion.execution.", "datafusion.optimizer.", "datafusion.explain."];

/// Applies the settings of DataFusion that the session has changed.
pub(crate) fn apply_overrides(session: &SqlSession, mut config: SessionConfig) -> Result<SessionConfig> {
    for (name, value) in session.overrides.lock().iter() {
        config.options_mut().set(name, value)?;
    }
    Ok(config)
}

/// The name of all settings of DataFusion together.
pub(super) const OVERRIDES: &str = "datafusion";

/// True for settings that belong to a session.
pub(super) fn is_of_session(name: &str) -> bool {
    ![DURABILITY, CACHE_GOVERNOR].contains(&name)
}

/// True for settings of DataFusion.
pub(super) fn is_override(name: &str) -> bool {
    OPEN_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}

/// True for settings of the open transaction.
pub(super) fn is_of_transaction(name: &str) -> bool {
    [ISOLATION, READ_ONLY].contains(&name)
}

/// Executes SET, also of other scopes than the session.
pub(crate) fn set(session: &SqlSession, set: Set) -> Result<Outcome> {
    if let Some(outcome) = local::set(session, &set)? {
        return Ok(outcome);
    }
    let names = match &set {
        Set::SetTransaction { session: true, .. } => vec![DEFAULT_ISOLATION.into(), DEFAULT_READ_ONLY.into()],
        Set::SetTimeZone { .. } => vec![TIME_ZONE.into()],
        Set::SetNames { .. } => vec!["client_encoding".into()],
        Set::SingleAssignment { variable, .. } => vec![setting_name(variable)],
        _ => Vec::new(),
    };
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    local::changing(session, &names, false, || apply(session, set))
}

/// Executes SET of the scope of the session.
///
/// # Errors
/// Errors of the setting.
pub(super) fn apply(session: &SqlSession, set: Set) -> Result<Outcome> {
    if let Set::SetTransaction { modes, snapshot: None, session: for_session } = &set {
        return super::transaction::set(session, modes, *for_session);
    }
    if let Set::SetTimeZone { local: false, value } = &set {
        return set_zone(session, value);
    }
    if let Set::SetNames { charset_name, collation_name: None } = &set {
        assign(session, "client_encoding", &charset_name.value)?;
        return Ok(Outcome::done("SET"));
    }
    let Set::SingleAssignment { scope: None | Some(ContextModifier::Session), hivevar: false, variable, values } = set
    else {
        return Err(Error::Unsupported(format!("{set}")));
    };
    let name = setting_name(&variable);
    if let [value] = values.as_slice()
        && is_default(value)
    {
        reset_setting(session, &name)?;
        session.planning.lock().take();
        return Ok(Outcome::done("SET"));
    }
    if name == SEARCH_PATH {
        return set_path(session, &values);
    }
    if name == "datestyle" {
        let words = values.iter().map(value_text).collect::<Result<Vec<_>>>()?;
        assign(session, &name, &words.join(", "))?;
        return Ok(Outcome::done("SET"));
    }
    let [value] = values.as_slice() else {
        return Err(Error::syntax(format!("SET {name} takes one value")));
    };
    if name == TIME_ZONE {
        return set_zone(session, value);
    }
    assign(session, &name, &value_text(value)?)?;
    session.planning.lock().take();
    Ok(Outcome::done("SET"))
}

/// True for the word DEFAULT.
fn is_default(value: &Expr) -> bool {
    matches!(value, Expr::Identifier(word) if word.quote_style.is_none() && plain_ident(word) == "default")
}

/// Sets a setting to a value as SQL text.
///
/// # Errors
/// `Syntax`; errors of the setting.
pub(crate) fn set_text(session: &SqlSession, name: &str, value: &str) -> Result<()> {
    let name = name.split('.').map(quoted).collect::<Vec<_>>().join(".");
    match super::parse(&super::split::single(&format!("SET {name} TO {value}"))?)? {
        super::Parsed::Sql(sql) => match *sql {
            datafusion::sql::sqlparser::ast::Statement::Set(statement) => set(session, statement).map(drop),
            other => Err(Error::syntax(format!("{other} is no setting"))),
        },
        _ => Err(Error::syntax(format!("{name} is no setting"))),
    }
}

/// Checks a setting of ALTER ROLE, which later sessions get.
///
/// # Errors
/// `Unsupported` for settings of the database; errors of the setting.
pub(crate) fn check_of_role(session: &SqlSession, name: &str, value: &str) -> Result<()> {
    if [DURABILITY, CACHE_GOVERNOR].iter().any(|known| name.eq_ignore_ascii_case(known)) {
        return Err(Error::Unsupported(format!("ALTER ROLE … SET {name} (it is a setting of the database)")));
    }
    let other = SqlSession::new(session.engine.clone(), session.plans.clone());
    other.has_timeouts.store(true, Ordering::Relaxed);
    if let Some(acting) = session.acting() {
        other.act(Acting::clone(&acting));
    }
    set_text(&other, name, value)
}

/// Sets the time zone of the session to a name, a number of hours, LOCAL or DEFAULT.
fn set_zone(session: &SqlSession, value: &Expr) -> Result<Outcome> {
    let zone = match value {
        Expr::Identifier(word) if ["local", "default"].contains(&plain_ident(word).as_str()) => {
            session.initial_settings().zone
        }
        Expr::Value(ValueWithSpan { value: Value::Number(hours, _), .. }) => Zone::of_hours(hours)?,
        Expr::UnaryOp { op: UnaryOperator::Minus, expr } => Zone::of_hours(&format!("-{}", value_text(expr)?))?,
        value => match value_text(value)? {
            hours if hours.trim_start_matches(['+', '-']).bytes().all(|byte| byte.is_ascii_digit()) => {
                Zone::of_hours(&hours)?
            }
            name => Zone::named(&name)?,
        },
    };
    *session.zone.lock() = zone;
    session.planning.lock().take();
    Ok(Outcome::done("SET"))
}

/// Sets the search path to a list of names, or to a text that contains such a list.
fn set_path(session: &SqlSession, values: &[Expr]) -> Result<Outcome> {
    let mut schemas = Vec::new();
    for value in values {
        match value {
            value if is_default(value) => return Err(Error::syntax("DEFAULT stands alone in SET search_path")),
            Expr::Identifier(schema) => schemas.push(schema.clone()),
            value => schemas.extend(super::parse_idents(&value_text(value)?)?),
        }
    }
    session.change_path(|path| path.with_schemas(&schemas));
    Ok(Outcome::done("SET"))
}

/// Sets a setting other than the search path and the time zone to a text.
///
/// # Errors
/// `NotFound`, `InvalidParameter`; errors of the setting.
pub(super) fn assign(session: &SqlSession, name: &str, value: &str) -> Result<()> {
    let wrong = |names: &str| Error::InvalidParameter {
        name: name.into(),
        value: value.into(),
        expected: format!("one of {}", names.trim_end().replace("' '", "', '")),
    };
    match name {
        EXECUTION => session.options.lock().execution = value.parse::<ExecutionMode>().map_err(wrong)?,
        JOIN => session.options.lock().join = value.parse::<JoinMode>().map_err(wrong)?,
        SHORT_PATH => session.options.lock().short_path = value.parse::<Switch>().map_err(wrong)?,
        BLIND_UPSERTS => session.options.lock().blind_upserts = value.parse::<Switch>().map_err(wrong)?,
        ROW_LOCKS => session.options.lock().row_locks = value.parse::<Switch>().map_err(wrong)?,
        PLAN_CACHE => session.options.lock().plan_cache = value.parse::<PlanCacheMode>().map_err(wrong)?,
        REQUEST_PRICE => session.options.lock().prices.request = price(name, value)?,
        TRANSFER_PRICE => session.options.lock().prices.transfer = price(name, value)?,
        ROLE => drop(set_role(session, (!value.eq_ignore_ascii_case("none")).then_some(value))?),
        DURABILITY => {
            access::superuser(session, "change settings of the database")?;
            let durability = parse_durability(value).ok_or_else(|| wrong("'full' 'normal' 'off'"))?;
            session.engine.set_durability(durability);
        }
        CACHE_GOVERNOR => {
            access::superuser(session, "change settings of the database")?;
            session.engine.set_cache_governor(value.parse::<CacheGovernor>().map_err(wrong)?);
        }
        DEFAULT_ISOLATION => session.options.lock().isolation = isolation(value).ok_or_else(|| wrong(ISOLATIONS))?,
        DEFAULT_READ_ONLY => session.options.lock().is_read_only = switch(value).map_err(wrong)?,
        TRANSACTION_TIMEOUT => session.options.lock().transaction_timeout = timeout(name, value)?,
        LOCK_TIMEOUT => session.options.lock().lock_timeout = timeout(name, value)?,
        STATEMENT_TIMEOUT => {
            let timeout = timeout(name, value)?;
            if timeout.is_some() && !session.has_timeouts.load(Ordering::Relaxed) {
                let expected = "0 (only servers cancel statements; programs use an InterruptHandle)".into();
                return Err(Error::InvalidParameter { name: name.into(), value: value.into(), expected });
            }
            session.options.lock().statement_timeout = timeout;
        }
        ISOLATION => {
            let isolation = isolation(value).ok_or_else(|| wrong(ISOLATIONS))?;
            change_transaction(session, name, |characteristics| characteristics.isolation = isolation)?;
        }
        READ_ONLY => {
            let is_read_only = switch(value).map_err(wrong)?;
            change_transaction(session, name, |characteristics| characteristics.is_read_only = is_read_only)?;
        }
        ENGINE_TIME_ZONE => return Err(Error::Unsupported(format!("SET {name} (use SET {TIME_ZONE})"))),
        _ if is_override(name) => {
            // An invalid value fails here and not in a later statement.
            let mut config = apply_overrides(session, SessionConfig::new())?;
            config.options_mut().set(name, value).map_err(|error| match Error::from(error) {
                Error::NotFound { .. } => unknown(name),
                _ => wrong_type(name, value),
            })?;
            session.overrides.lock().push((name.into(), value.into()));
        }
        _ if session.client_settings.lock().set(name, value)? => show_application(session),
        _ => return Err(unknown(name)),
    }
    Ok(())
}

/// Shows the name of the application to other sessions.
fn show_application(session: &SqlSession) {
    session.activity.set_application(session.client_settings.lock().application());
}

/// Returns all settings of a session but the role to their initial values.
pub(super) fn reset_session(session: &SqlSession) {
    let initial = session.initial_settings();
    *session.options.lock() = initial.options.clone();
    session.overrides.lock().clone_from(&initial.overrides);
    session.client_settings.lock().clone_from(&initial.client);
    show_application(session);
    *session.zone.lock() = initial.zone;
    session.change_path(|path| initial.path.with_temporary_of(path));
    session.planning.lock().take();
}

/// The settings that RESET ALL changes, except those of the database.
fn all_of_session(session: &SqlSession) -> Vec<String> {
    let own = [EXECUTION, JOIN, SHORT_PATH, BLIND_UPSERTS, ROW_LOCKS, PLAN_CACHE, DEFAULT_ISOLATION, DEFAULT_READ_ONLY];
    let timeouts = [TRANSACTION_TIMEOUT, LOCK_TIMEOUT, STATEMENT_TIMEOUT];
    let others = [REQUEST_PRICE, TRANSFER_PRICE, TIME_ZONE, SEARCH_PATH, OVERRIDES];
    let initial = session.initial_settings();
    let client = session.client_settings.lock();
    let mut client: Vec<&str> = client.names().chain(initial.client.names()).collect();
    client.sort_unstable();
    client.dedup();
    own.into_iter().chain(timeouts).chain(others).chain(client).map(String::from).collect()
}

/// Executes RESET.
///
/// # Errors
/// `NotFound`; `InsufficientPrivilege` for settings of the database.
pub(crate) fn reset(session: &SqlSession, statement: &ResetStatement) -> Result<Outcome> {
    match &statement.reset {
        Reset::ALL => {
            let names = all_of_session(session);
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            local::changing(session, &names, false, || {
                reset_session(session);
                Ok(())
            })?;
            // Those of the database belong to superusers.
            if access::superuser(session, "change settings of the database").is_ok() {
                let initial = session.engine.initial;
                session.engine.set_durability(initial.durability);
                session.engine.set_cache_governor(initial.cache_governor);
            }
        }
        Reset::ConfigurationParameter(name) => {
            let name = setting_name(name);
            local::changing(session, &[&name], false, || reset_setting(session, &name))?;
        }
    }
    session.planning.lock().take();
    Ok(Outcome::done("RESET"))
}

/// Returns a setting to its initial value.
///
/// # Errors
/// `NotFound`; `InsufficientPrivilege` for settings of the database.
fn reset_setting(session: &SqlSession, name: &str) -> Result<()> {
    let initial = session.initial_settings();
    let options = &initial.options;
    match name {
        EXECUTION => session.options.lock().execution = options.execution,
        JOIN => session.options.lock().join = options.join,
        SHORT_PATH => session.options.lock().short_path = options.short_path,
        BLIND_UPSERTS => session.options.lock().blind_upserts = options.blind_upserts,
        ROW_LOCKS => session.options.lock().row_locks = options.row_locks,
        PLAN_CACHE => session.options.lock().plan_cache = options.plan_cache,
        REQUEST_PRICE => session.options.lock().prices.request = options.prices.request,
        TRANSFER_PRICE => session.options.lock().prices.transfer = options.prices.transfer,
        DEFAULT_ISOLATION => session.options.lock().isolation = options.isolation,
        DEFAULT_READ_ONLY => session.options.lock().is_read_only = options.is_read_only,
        TRANSACTION_TIMEOUT => session.options.lock().transaction_timeout = options.transaction_timeout,
        LOCK_TIMEOUT => session.options.lock().lock_timeout = options.lock_timeout,
        STATEMENT_TIMEOUT => session.options.lock().statement_timeout = options.statement_timeout,
        TIME_ZONE => *session.zone.lock() = initial.zone,
        SEARCH_PATH => session.change_path(|path| initial.path.with_temporary_of(path)),
        ROLE => drop(set_role(session, None)?),
        DURABILITY | CACHE_GOVERNOR => {
            access::superuser(session, "change settings of the database")?;
            let initial = session.engine.initial;
            match name {
                DURABILITY => session.engine.set_durability(initial.durability),
                _ => session.engine.set_cache_governor(initial.cache_governor),
            }
        }
        name if is_override(name) => {
            let kept = initial.overrides.iter().filter(|(known, _)| known == name);
            let mut overrides = session.overrides.lock();
            overrides.retain(|(known, _)| known != name);
            overrides.extend(kept.cloned());
        }
        name if session.client_settings.lock().reset(name, &initial.client) => show_application(session),
        name => return Err(unknown(name)),
    }
    Ok(())
}

pub(crate) fn show(session: &SqlSession, variable: &[Ident]) -> Result<Outcome> {
    let name = variable.iter().map(plain_ident).collect::<Vec<_>>().join(".");
    let all = all(session)?;
    let texts = |texts: Vec<String>| -> ArrayRef { Arc::new(StringViewArray::from_iter_values(texts)) };
    if name == "all" {
        let (names, values) = all.into_iter().unzip();
        return Outcome::of_columns([("name", texts(names)), ("setting", texts(values))]);
    }
    let name = match name.as_str() {
        "time.zone" => TIME_ZONE,
        "transaction.isolation.level" => ISOLATION,
        name => name,
    };
    let Some((_, value)) = all.into_iter().find(|(known, _)| known == name) else { return Err(unknown(name)) };
    // As in PostgreSQL, the column has the name of the setting.
    Outcome::of_columns([(name, texts(vec![value]))])
}

/// The value of a setting; `None` if there is none with this name, in lower case.
///
/// # Errors
/// As [`SqlSession::moment`].
pub(super) fn value(session: &SqlSession, name: &str) -> Result<Option<String>> {
    if let Some(value) = session.client_settings.lock().value(name) {
        return Ok(Some(value.into()));
    }
    if client_settings::is_own(name) {
        return Ok(None);
    }
    Ok(all(session)?.into_iter().find(|(known, _)| known == name).map(|(_, value)| value))
}

/// Names and values of the options that PostgreSQL has, too.
pub(super) fn of_options(options: &SessionOptions) -> [(&'static str, String); 5] {
    [
        (DEFAULT_ISOLATION, options.isolation.to_string()),
        (DEFAULT_READ_ONLY, on_off(options.is_read_only).into()),
        (LOCK_TIMEOUT, shown_timeout(options.lock_timeout)),
        (STATEMENT_TIMEOUT, shown_timeout(options.statement_timeout)),
        (TRANSACTION_TIMEOUT, shown_timeout(options.transaction_timeout)),
    ]
}

fn on_off(is_on: bool) -> &'static str {
    if is_on { "on" } else { "off" }
}

/// All settings with their values, sorted by name.
fn all(session: &SqlSession) -> Result<Vec<(String, String)>> {
    let session_options = session.options();
    let durability = match *session.engine.durability.lock() {
        Durability::Full => "full",
        Durability::Normal => "normal",
        Durability::Off => "off",
    };
    let config = apply_overrides(session, session.engine.base_state.config().clone())?;
    let open = |name: &str| OPEN_PREFIXES.iter().any(|prefix| name.starts_with(prefix));
    let options: &ConfigOptions = config.options();
    let mut all: Vec<(String, String)> = options
        .entries()
        .into_iter()
        .filter(|entry| open(&entry.key) && entry.key != ENGINE_TIME_ZONE)
        .map(|entry| (entry.key, entry.value.unwrap_or_default()))
        .collect();
    all.push((EXECUTION.into(), session_options.execution.to_string()));
    all.push((JOIN.into(), session_options.join.to_string()));
    all.push((SHORT_PATH.into(), session_options.short_path.to_string()));
    all.push((BLIND_UPSERTS.into(), session_options.blind_upserts.to_string()));
    all.push((ROW_LOCKS.into(), session_options.row_locks.to_string()));
    all.push((PLAN_CACHE.into(), session_options.plan_cache.to_string()));
    all.push((REQUEST_PRICE.into(), session_options.prices.request.to_string()));
    all.push((TRANSFER_PRICE.into(), session_options.prices.transfer.to_string()));
    let transaction = session.transaction.characteristics().unwrap_or_else(|| session.characteristics());
    all.extend(of_options(&session_options).map(|(name, value)| (name.into(), value)));
    all.push((ISOLATION.into(), transaction.isolation.to_string()));
    all.push((READ_ONLY.into(), on_off(transaction.is_read_only).into()));
    all.push((TIME_ZONE.into(), session.zone().to_string()));
    all.push((SEARCH_PATH.into(), session.path().to_string()));
    let acting = session.acting();
    let (catalog, _) = session.moment()?;
    let role = acting.as_ref().filter(|acting| acting.current_user() != acting.session_user());
    all.push((ROLE.into(), role.map_or("none", |acting| acting.current_user()).into()));
    all.push(("session_authorization".into(), acting.as_ref().map_or(NO_ROLE, |acting| acting.session_user()).into()));
    let is_superuser = session.authority(&catalog).is_ok_and(|authority| authority.is_all());
    all.push(("is_superuser".into(), on_off(is_superuser).into()));
    all.push((DURABILITY.into(), durability.into()));
    all.push((CACHE_GOVERNOR.into(), session.engine.cache.mode().to_string()));
    let client = session.client_settings.lock();
    all.extend(client.all().map(|(name, value)| (name.into(), value.into())));
    all.sort();
    Ok(all)
}

/// The names of all settings.
pub(super) fn names(session: &SqlSession) -> Vec<String> {
    all(session).unwrap_or_default().into_iter().map(|(name, _)| name).collect()
}

/// Changes the open transaction.
fn change_transaction(session: &SqlSession, name: &str, change: impl FnOnce(&mut Characteristics)) -> Result<()> {
    match session.transaction.set(change)? {
        true => Ok(()),
        false => Err(Error::NoActiveTransaction(format!("SET {name} can only be used in transaction blocks"))),
    }
}

fn isolation(value: &str) -> Option<Isolation> {
    match value.to_ascii_lowercase().as_str() {
        "read uncommitted" => Some(Isolation::ReadCommitted),
        level => level.parse().ok(),
    }
}

fn switch(value: &str) -> std::result::Result<bool, &'static str> {
    match value.to_ascii_lowercase().as_str() {
        "on" | "true" | "1" => Ok(true),
        "off" | "false" | "0" => Ok(false),
        _ => Err("'on' 'off'"),
    }
}

fn parse_durability(value: &str) -> Option<Durability> {
    match value.to_ascii_lowercase().as_str() {
        "full" => Some(Durability::Full),
        "normal" => Some(Durability::Normal),
        "off" => Some(Durability::Off),
        _ => None,
    }
}

/// The units of timeouts, in milliseconds.
const TIME_UNITS: [(&str, u64); 5] = [("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1000), ("ms", 1)];

/// A timeout: a number of milliseconds, or of the unit that follows it; `None` for 0.
fn timeout(name: &str, value: &str) -> Result<Option<Duration>> {
    let text = value.trim();
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = (&text[..end], text[end..].trim());
    let millis = match unit {
        "" => Some(1),
        unit => TIME_UNITS.iter().find(|(known, _)| *known == unit).map(|(_, millis)| *millis),
    };
    // As in PostgreSQL, about 24 days.
    let most = u64::from(i32::MAX.unsigned_abs());
    let total = number.parse::<u64>().ok().zip(millis).and_then(|(number, millis)| number.checked_mul(millis));
    match total.filter(|total| *total <= most) {
        Some(0) => Ok(None),
        Some(total) => Ok(Some(Duration::from_millis(total))),
        None => {
            let expected = "milliseconds, or a number with one of ms, s, min, h and d, at most 24 days".into();
            Err(Error::InvalidParameter { name: name.into(), value: value.into(), expected })
        }
    }
}

fn price(name: &str, value: &str) -> Result<f64> {
    let price = value.trim().parse::<f64>().ok().filter(|price| price.is_finite() && *price >= 0.0);
    price.ok_or_else(|| {
        let expected = "a number that is not negative".into();
        Error::InvalidParameter { name: name.into(), value: value.into(), expected }
    })
}

/// A timeout in the longest unit of which it is a multiple.
fn shown_timeout(timeout: Option<Duration>) -> String {
    let Some(millis) = timeout.map(|timeout| timeout.as_millis() as u64) else { return "0".into() };
    let unit = TIME_UNITS.iter().find(|(_, unit)| millis.is_multiple_of(*unit));
    unit.map_or_else(|| millis.to_string(), |(name, unit)| format!("{}{name}", millis / unit))
}

fn wrong_type(name: &str, value: &str) -> Error {
    let expected = "a value of the setting's type, see DataFusion's configuration settings".into();
    Error::InvalidParameter { name: name.into(), value: value.into(), expected }
}

fn unknown(name: &str) -> Error {
    Error::NotFound { kind: ObjectKind::Setting, name: name.into() }
}

pub(super) fn setting_name(name: &ObjectName) -> String {
    name.to_string().to_ascii_lowercase().replace('"', "")
}

/// The value of a setting or option as text: a string, number, boolean or word.
pub(super) fn value_text(value: &Expr) -> Result<String> {
    match value {
        Expr::Value(value) => match &value.value {
            Value::SingleQuotedString(text) | Value::DoubleQuotedString(text) => Ok(text.clone()),
            Value::Number(number, _) => Ok(number.to_string()),
            Value::Boolean(value) => Ok(value.to_string()),
            other => Err(Error::syntax(format!("a setting takes a constant, not {other}"))),
        },
        Expr::Identifier(ident) => Ok(ident.value.clone()),
        other => Err(Error::syntax(format!("a setting takes a constant, not {other}"))),
    }
}
