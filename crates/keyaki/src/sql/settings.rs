//! SET, SHOW and RESET: settings of the session, of the database, and of DataFusion.
//!
//! | name | scope | values |
//! |---|---|---|
//! | `keyaki.execution` | session | `out_of_order`, `in_order` |
//! | `keyaki.join` | session | `auto`, `index`, `scan` |
//! | `keyaki.short_path` | session | `on`, `off` |
//! | `keyaki.blind_upserts`, `keyaki.row_locks` | session | `on`, `off` |
//! | `keyaki.plan_cache` | session | `on`, `always`, `off` |
//! | `default_transaction_isolation` | session | `read committed`, `repeatable read`, `serializable` |
//! | `default_transaction_read_only` | session | `on`, `off` |
//! | `transaction_isolation`, `transaction_read_only` | open transaction | the same values |
//! | `lock_timeout` | session | as `transaction_timeout` |
//! | `transaction_timeout` | session, for transactions that begin later | a number of milliseconds, or with a unit (`30s`, `10min`); 0: none |
//! | `search_path` | session | names of schemas, separated by commas |
//! | `role` | session | a role, or `none`: as SET ROLE; `session_authorization` and `is_superuser` are read-only |
//! | `timezone` | session | a name of the IANA time zone database, or hours east of Greenwich |
//! | `keyaki.durability` | database, until it is closed | `full`, `normal`, `off` |
//! | `keyaki.cache_governor` | database, until it is closed | `on`, `off`; `off` ends all pins |
//! | `application_name`, `client_encoding`, `datestyle` … | session | see [`client_settings`](super::client_settings) |
//! | `datafusion.execution.…`, `datafusion.optimizer.…`, `datafusion.explain.…` | session | see DataFusion's documentation |
//!
//! SET LOCAL restores the former value at the end of the transaction ([`local`]).
//!
//! RESET returns to the default of a session, or to the value with which the database was opened. RESET ALL resets the
//! settings of the session and those of the database.

use std::sync::Arc;
use std::time::Duration;

use arrow::array::{ArrayRef, StringViewArray};
use datafusion::common::config::ConfigOptions;
use datafusion::prelude::SessionConfig;
use datafusion::sql::sqlparser::ast::{
    ContextModifier, Expr, Ident, ObjectName, Reset, ResetStatement, Set, UnaryOperator, Value, ValueWithSpan,
};
use keyaki_store::Durability;

use super::names::{SearchPath, plain_ident, quoted};
use super::roles::Acting;
use super::roles::acting::{NO_ROLE, set_role};
use super::{access, local};
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
const DEFAULT_ISOLATION: &str = "default_transaction_isolation";
const DEFAULT_READ_ONLY: &str = "default_transaction_read_only";
const ISOLATION: &str = "transaction_isolation";
const READ_ONLY: &str = "transaction_read_only";
const TRANSACTION_TIMEOUT: &str = "transaction_timeout";
const LOCK_TIMEOUT: &str = "lock_timeout";
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

/// True for settings that belong to a session and whose value [`assign`] can restore.
pub(super) fn is_of_session(name: &str) -> bool {
    ![DURABILITY, CACHE_GOVERNOR].contains(&name) && !OPEN_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}

/// True for settings of the open transaction.
pub(super) fn is_of_transaction(name: &str) -> bool {
    [ISOLATION, READ_ONLY].contains(&name)
}

pub(crate) fn set(session: &SqlSession, set: Set) -> Result<Outcome> {
    if let Some(outcome) = local::set(session, &set)? {
        return Ok(outcome);
    }
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
    local::forget(session, &name);
    session.planning.lock().take();
    Ok(Outcome::done("SET"))
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
    if let Some(acting) = session.acting() {
        other.act(Acting::clone(&acting));
    }
    set_text(&other, name, value)
}

/// Sets the time zone of the session to a name, a number of hours, LOCAL or DEFAULT.
fn set_zone(session: &SqlSession, value: &Expr) -> Result<Outcome> {
    let zone = match value {
        Expr::Identifier(word) if ["local", "default"].contains(&plain_ident(word).as_str()) => Zone::UTC,
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
    local::forget(session, TIME_ZONE);
    Ok(Outcome::done("SET"))
}

/// Sets the search path to a list of names, or to a text that contains such a list.
fn set_path(session: &SqlSession, values: &[Expr]) -> Result<Outcome> {
    let mut schemas = Vec::new();
    for value in values {
        match value {
            Expr::Identifier(word) if word.quote_style.is_none() && plain_ident(word) == "default" => {
                if values.len() > 1 {
                    return Err(Error::syntax("DEFAULT stands alone in SET search_path"));
                }
                session.change_path(SearchPath::reset);
                local::forget(session, SEARCH_PATH);
                return Ok(Outcome::done("SET"));
            }
            Expr::Identifier(schema) => schemas.push(schema.clone()),
            value => schemas.extend(super::parse_idents(&value_text(value)?)?),
        }
    }
    session.change_path(|path| path.with_schemas(&schemas));
    local::forget(session, SEARCH_PATH);
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
        ISOLATION => {
            let isolation = isolation(value).ok_or_else(|| wrong(ISOLATIONS))?;
            change_transaction(session, name, |characteristics| characteristics.isolation = isolation)?;
        }
        READ_ONLY => {
            let is_read_only = switch(value).map_err(wrong)?;
            change_transaction(session, name, |characteristics| characteristics.is_read_only = is_read_only)?;
        }
        ENGINE_TIME_ZONE => return Err(Error::Unsupported(format!("SET {name} (use SET {TIME_ZONE})"))),
        _ if OPEN_PREFIXES.iter().any(|prefix| name.starts_with(prefix)) => {
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

/// Returns all settings of a session to their defaults.
pub(super) fn reset_session(session: &SqlSession) {
    let isolation = *session.default_isolation.lock();
    *session.options.lock() = SessionOptions { isolation, ..SessionOptions::default() };
    session.overrides.lock().clear();
    session.client_settings.lock().reset_all();
    show_application(session);
    *session.zone.lock() = Zone::UTC;
    session.change_path(SearchPath::reset);
    local::forget_settings(session);
    session.planning.lock().take();
}

pub(crate) fn reset(session: &SqlSession, statement: &ResetStatement) -> Result<Outcome> {
    let initial = session.engine.initial;
    match &statement.reset {
        Reset::ALL => {
            reset_session(session);
            // Those of the database belong to superusers.
            if access::superuser(session, "change settings of the database").is_ok() {
                session.engine.set_durability(initial.durability);
                session.engine.set_cache_governor(initial.cache_governor);
            }
        }
        Reset::ConfigurationParameter(name) => match setting_name(name).as_str() {
            EXECUTION => session.options.lock().execution = ExecutionMode::default(),
            JOIN => session.options.lock().join = JoinMode::default(),
            SHORT_PATH => session.options.lock().short_path = Switch::default(),
            BLIND_UPSERTS => session.options.lock().blind_upserts = Switch::default(),
            ROW_LOCKS => session.options.lock().row_locks = Switch::default(),
            PLAN_CACHE => session.options.lock().plan_cache = PlanCacheMode::default(),
            DEFAULT_ISOLATION => session.options.lock().isolation = *session.default_isolation.lock(),
            DEFAULT_READ_ONLY => session.options.lock().is_read_only = SessionOptions::default().is_read_only,
            TRANSACTION_TIMEOUT => session.options.lock().transaction_timeout = None,
            LOCK_TIMEOUT => session.options.lock().lock_timeout = None,
            TIME_ZONE => *session.zone.lock() = Zone::UTC,
            SEARCH_PATH => session.change_path(SearchPath::reset),
            ROLE => drop(set_role(session, None)?),
            DURABILITY | CACHE_GOVERNOR => {
                access::superuser(session, "change settings of the database")?;
                match setting_name(name).as_str() {
                    DURABILITY => session.engine.set_durability(initial.durability),
                    _ => session.engine.set_cache_governor(initial.cache_governor),
                }
            }
            name if OPEN_PREFIXES.iter().any(|prefix| name.starts_with(prefix)) => {
                session.overrides.lock().retain(|(known, _)| known != name);
            }
            name if session.client_settings.lock().reset(name) => show_application(session),
            name => return Err(unknown(name)),
        },
    }
    if let Reset::ConfigurationParameter(name) = &statement.reset {
        local::forget(session, &setting_name(name));
    }
    session.planning.lock().take();
    Ok(Outcome::done("RESET"))
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
    Ok(all(session)?.into_iter().find(|(known, _)| known == name).map(|(_, value)| value))
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
    let on_off = |is_on: bool| if is_on { "on" } else { "off" };
    let transaction = session.transaction.characteristics().unwrap_or_else(|| session.characteristics());
    all.push((DEFAULT_ISOLATION.into(), session_options.isolation.to_string()));
    all.push((DEFAULT_READ_ONLY.into(), on_off(session_options.is_read_only).into()));
    all.push((TRANSACTION_TIMEOUT.into(), shown_timeout(session_options.transaction_timeout)));
    all.push((LOCK_TIMEOUT.into(), shown_timeout(session_options.lock_timeout)));
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
    if text.eq_ignore_ascii_case("default") {
        return Ok(None);
    }
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
