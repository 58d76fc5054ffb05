//! The rows of `pg_operator`, `pg_cast` and `pg_aggregate`.
//!
//! An operator has a row for each pair of types that the analyzer accepts, with the type of its result. Operators that
//! the parser replaces by functions (`AT TIME ZONE`, `IS DISTINCT FROM`) and those of arrays have no rows. Casts have PostgreSQL's contexts.

use std::sync::{Arc, OnceLock};

use datafusion::common::DFSchema;
use datafusion::execution::SessionState;
use datafusion::logical_expr::ExprSchemable;
use xxhash_rust::xxh3::xxh3_64;

use super::objects::{CATALOG_SCHEMA, OWNER, Source, hashed_oid};
use super::procedures;
use super::shapes::Rows;
use super::types;
use crate::engine::Engine;
use crate::sql::state::state_of_definitions;
use crate::sql::{expressions, parse_expr};
use crate::values::zone::Zone;

/// Types whose values are compared with those of the same type.
const COMPARED: [&str; 15] = [
    "bool",
    "bytea",
    "text",
    "int2",
    "int4",
    "int8",
    "float4",
    "float8",
    "numeric",
    "date",
    "time",
    "timestamp",
    "timestamptz",
    "interval",
    "uuid",
];
const NUMBERS: [&str; 6] = ["int2", "int4", "int8", "float4", "float8", "numeric"];
const TIMES: [&str; 5] = ["date", "time", "timestamp", "timestamptz", "interval"];
/// Comparisons, with the operator for exchanged operands and the opposite one.
const COMPARISONS: [(&str, &str, &str); 6] =
    [("=", "=", "<>"), ("<>", "<>", "="), ("<", ">", ">="), ("<=", ">=", ">"), (">", "<", "<="), (">=", "<=", "<")];
/// Patterns, with the opposite operator.
const PATTERNS: [(&str, &str); 8] = [
    ("~~", "!~~"),
    ("!~~", "~~"),
    ("~~*", "!~~*"),
    ("!~~*", "~~*"),
    ("~", "!~"),
    ("!~", "~"),
    ("~*", "!~*"),
    ("!~*", "~*"),
];
/// Operators of documents, with the type of the right operand.
const OF_DOCUMENTS: [(&str, &str); 4] = [("->", "text"), ("->", "int8"), ("->>", "text"), ("->>", "int8")];
/// Names of types.
type Targets = &'static [&'static str];
/// Casts: the type, the types that it becomes in all contexts, in assignments, and only explicitly.
const CASTS: [(&str, Targets, Targets, Targets); 18] = [
    ("int2", &["int4", "int8", "float4", "float8", "numeric"], &[], &[]),
    ("int4", &["int8", "float4", "float8", "numeric", "oid"], &["int2"], &["bool"]),
    ("int8", &["float4", "float8", "numeric", "oid"], &["int2", "int4"], &[]),
    ("float4", &["float8"], &["int2", "int4", "int8", "numeric"], &[]),
    ("float8", &[], &["int2", "int4", "int8", "float4", "numeric"], &[]),
    ("numeric", &["float4", "float8"], &["int2", "int4", "int8"], &[]),
    ("bool", &[], &["text", "varchar"], &["int4"]),
    ("text", &["varchar", "regclass"], &[], &[]),
    ("varchar", &["text", "regclass"], &[], &[]),
    ("date", &["timestamp", "timestamptz"], &[], &[]),
    ("time", &["interval"], &[], &[]),
    ("timestamp", &["timestamptz"], &["date", "time"], &[]),
    ("timestamptz", &[], &["date", "time", "timestamp"], &[]),
    ("interval", &[], &["time"], &[]),
    ("oid", &["regclass", "regtype", "regnamespace", "regrole"], &["int4", "int8"], &[]),
    ("regclass", &["oid"], &["int4", "int8"], &[]),
    ("regtype", &["oid"], &["int4", "int8"], &[]),
    ("json", &[], &["jsonb"], &[]),
];

/// A row of `pg_operator`.
struct Operator {
    name: &'static str,
    left: u32,
    right: u32,
    result: u32,
    commutator: Option<&'static str>,
    negator: Option<&'static str>,
}

/// The OID of an operator.
fn oid(name: &str, left: u32, right: u32) -> u32 {
    hashed_oid(xxh3_64(format!("operator\0{name}\0{left}\0{right}").as_bytes()))
}

/// The type of the result of an operator; `None` if it does not accept the types.
fn result(state: &SessionState, left: &str, name: &str, right: &str) -> Option<u32> {
    let name_of = |ty: &str| types::named(ty).map(|oid| types::sql_name(oid, None));
    let sql = format!("CAST(NULL AS {}) {name} CAST(NULL AS {})", name_of(left)?, name_of(right)?);
    let schema = Arc::new(DFSchema::empty());
    let expr = expressions::logical(state, parse_expr(&sql).ok()?, &schema).ok()?;
    let ty = expressions::analyzed(state, expr, &schema).ok()?.get_type(&*schema).ok()?;
    Some(procedures::oid(&ty)).filter(|oid| *oid != procedures::ANY)
}

/// All operators. They are the same in all databases.
fn operators(engine: &Engine) -> &'static [Operator] {
    static OPERATORS: OnceLock<Vec<Operator>> = OnceLock::new();
    OPERATORS.get_or_init(|| {
        let state = state_of_definitions(engine, Zone::UTC);
        let mut operators = Vec::new();
        let mut add = |left: &str, name, right: &str, commutator, negator| {
            let (Some(left_oid), Some(right_oid)) = (types::named(left), types::named(right)) else { return };
            if let Some(result) = result(&state, left, name, right) {
                operators.push(Operator { name, left: left_oid, right: right_oid, result, commutator, negator });
            }
        };
        for ty in COMPARED {
            COMPARISONS.iter().for_each(|(name, other, not)| add(ty, *name, ty, Some(*other), Some(*not)));
        }
        for left in NUMBERS {
            for right in NUMBERS {
                for (name, other, not) in COMPARISONS.iter().filter(|_| left != right) {
                    add(left, *name, right, Some(*other), Some(*not));
                }
                ["+", "*"].iter().for_each(|name| add(left, *name, right, Some(*name), None));
                ["-", "/", "%"].iter().for_each(|name| add(left, *name, right, None, None));
            }
        }
        for left in TIMES {
            for right in TIMES {
                ["+", "-"].iter().for_each(|name| add(left, *name, right, None, None));
            }
        }
        PATTERNS.iter().for_each(|(name, not)| add("text", *name, "text", None, Some(*not)));
        ["text", "bytea"].iter().for_each(|ty| add(ty, "||", ty, None, None));
        OF_DOCUMENTS.iter().for_each(|(name, right)| add("json", *name, right, None, None));
        operators
    })
}

/// Adds the rows of `pg_operator`.
pub(super) fn add_operators(engine: &Engine, rows: &mut Rows) {
    for operator in operators(engine) {
        let Operator { name, left, right, result, commutator, negator } = *operator;
        let is_equality = name == "=";
        rows.add(&[
            ("oid", oid(name, left, right).into()),
            ("oprname", name.into()),
            ("oprnamespace", CATALOG_SCHEMA.into()),
            ("oprowner", OWNER.into()),
            ("oprkind", "b".into()),
            ("oprcanmerge", is_equality.into()),
            ("oprcanhash", is_equality.into()),
            ("oprleft", left.into()),
            ("oprright", right.into()),
            ("oprresult", result.into()),
            ("oprcom", commutator.map_or(0, |other| oid(other, right, left)).into()),
            ("oprnegate", negator.map_or(0, |not| oid(not, left, right)).into()),
            ("oprcode", "-".into()),
            ("oprrest", "-".into()),
            ("oprjoin", "-".into()),
        ]);
    }
}

/// Adds the rows of `pg_cast`.
pub(super) fn add_casts(rows: &mut Rows) {
    for (source, implicit, assigned, explicit) in CASTS {
        for (context, targets) in [("i", implicit), ("a", assigned), ("e", explicit)] {
            for target in targets {
                let (Some(from), Some(to)) = (types::named(source), types::named(target)) else { continue };
                // Values of these types are the same texts.
                let is_binary = ["text", "varchar"].contains(&source) && ["text", "varchar"].contains(target);
                rows.add(&[
                    ("oid", hashed_oid(xxh3_64(format!("cast\0{source}\0{target}").as_bytes())).into()),
                    ("castsource", from.into()),
                    ("casttarget", to.into()),
                    ("castcontext", context.into()),
                    ("castmethod", if is_binary { "b" } else { "i" }.into()),
                ]);
            }
        }
    }
}

/// Adds the rows of `pg_aggregate`.
pub(super) fn add_aggregates(source: &Source, rows: &mut Rows) {
    for procedure in source.functions().iter().filter(|procedure| procedure.kind == "a") {
        rows.add(&[
            ("aggfnoid", procedure.oid.into()),
            ("aggkind", "n".into()),
            ("aggtransfn", "-".into()),
            ("aggfinalfn", "-".into()),
            ("aggfinalmodify", "r".into()),
            ("aggmfinalmodify", "r".into()),
        ]);
    }
}
