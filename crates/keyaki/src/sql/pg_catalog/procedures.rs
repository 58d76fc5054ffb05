//! The functions of `pg_proc`: those of DataFusion and Keyaki, and those of the catalog.
//!
//! A function has a row for each list of argument types that it declares. Arguments of other functions have the type "any", and
//! functions with any number of arguments are variadic. Forms with a syntax of their own (`substring(a FROM b)`) have no rows.

use std::collections::BTreeMap;

use arrow::datatypes::DataType;
use datafusion::logical_expr::{Signature, TypeSignature, Volatility};
use xxhash_rust::xxh3::xxh3_64;

use super::functions::catalog_functions;
use super::objects::{CATALOG_SCHEMA, OWNER, Source, hashed_oid};
use super::shapes::{Rows, Value};
use super::types;
use crate::catalog::types::from_arrow;
use crate::engine::Engine;
use crate::sql::state::state_of_definitions;
use crate::values::zone::Zone;

/// The pseudo-type "any".
pub(super) const ANY: u32 = 2276;
/// `pg_language`: functions of the program.
const INTERNAL: u32 = 12;
/// Functions whose names begin so are not those of SQL.
const OWN_PREFIXES: [&str; 2] = ["keyaki_", "_"];

/// A row of `pg_proc`.
#[derive(Debug)]
pub(super) struct Procedure {
    pub oid: u32,
    pub name: String,
    /// `f` for functions, `a` for aggregates, `w` for window functions.
    pub kind: &'static str,
    returns_set: bool,
    volatility: &'static str,
    /// OIDs of the types of the arguments.
    arguments: Vec<u32>,
    is_variadic: bool,
    result: u32,
}

impl Procedure {
    /// The types of the arguments as text.
    pub fn arguments(&self) -> String {
        let types = self.arguments.iter().enumerate().map(|(place, oid)| {
            let is_last = self.is_variadic && place + 1 == self.arguments.len();
            format!("{}{}", if is_last { "VARIADIC " } else { "" }, types::sql_name(*oid, None))
        });
        types.collect::<Vec<_>>().join(", ")
    }

    /// The type of the result as text.
    pub fn result(&self) -> String {
        format!("{}{}", if self.returns_set { "SETOF " } else { "" }, types::sql_name(self.result, None))
    }
}

/// The OID of an Arrow type; that of "any" if PostgreSQL has no such type.
pub(super) fn oid(ty: &DataType) -> u32 {
    match ty {
        DataType::UInt32 => types::named("oid").unwrap_or(ANY),
        DataType::Null => ANY,
        ty => from_arrow(ty).map_or(ANY, |column| types::of_column(column.into()).0),
    }
}

/// The declared lists of argument types; `None` in place of a list for functions with any number of arguments.
fn lists(signature: &TypeSignature) -> Vec<Option<Vec<DataType>>> {
    let repeated = |ty: &DataType, count: usize| Some(vec![ty.clone(); count]);
    match signature {
        TypeSignature::Nullary => vec![Some(Vec::new())],
        TypeSignature::Exact(types) => vec![Some(types.clone())],
        TypeSignature::Uniform(count, types) => types.iter().map(|ty| repeated(ty, *count)).collect(),
        TypeSignature::String(count) => vec![repeated(&DataType::Utf8, *count)],
        TypeSignature::Any(count) | TypeSignature::Comparable(count) | TypeSignature::Numeric(count) => {
            vec![repeated(&DataType::Null, *count)]
        }
        TypeSignature::Coercible(arguments) => vec![repeated(&DataType::Null, arguments.len())],
        TypeSignature::OneOf(all) => all.iter().flat_map(lists).collect(),
        TypeSignature::Variadic(_)
        | TypeSignature::VariadicAny
        | TypeSignature::UserDefined
        | TypeSignature::ArraySignature(_) => vec![None],
    }
}

/// The rows of functions, without duplicates.
#[derive(Default)]
struct Found(BTreeMap<(String, &'static str, Option<Vec<u32>>), Procedure>);

impl Found {
    /// Adds a function with a list of argument types, or with any number of arguments.
    fn add(&mut self, name: &str, kind: &'static str, volatility: Volatility, list: Option<Vec<u32>>, result: u32) {
        let is_sql = name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_');
        if !is_sql || OWN_PREFIXES.iter().any(|prefix| name.starts_with(prefix)) {
            return;
        }
        let key = format!("function\0{name}\0{kind}\0{list:?}");
        let procedure = Procedure {
            oid: hashed_oid(xxh3_64(key.as_bytes())),
            name: name.into(),
            kind,
            returns_set: false,
            volatility: match volatility {
                Volatility::Immutable => "i",
                Volatility::Stable => "s",
                Volatility::Volatile => "v",
            },
            is_variadic: list.is_none(),
            arguments: list.clone().unwrap_or_else(|| vec![ANY]),
            result,
        };
        self.0.entry((name.into(), kind, list)).or_insert(procedure);
    }

    /// Adds the lists of a signature. `result`: the type of the result for exact types of arguments.
    fn add_all(
        &mut self,
        name: &str,
        kind: &'static str,
        signature: &Signature,
        result: impl Fn(&[DataType]) -> Option<DataType>,
    ) {
        for list in lists(&signature.type_signature) {
            let known = list.as_ref().filter(|list| !list.contains(&DataType::Null));
            let result = known.and_then(|list| result(list)).map_or(ANY, |ty| oid(&ty));
            let list = list.map(|list| list.iter().map(oid).collect());
            self.add(name, kind, signature.volatility, list, result);
        }
    }
}

/// All functions, sorted by name.
pub(super) fn all(engine: &Engine) -> Vec<Procedure> {
    let (state, mut found) = (state_of_definitions(engine, Zone::UTC), Found::default());
    for (name, function) in state.scalar_functions() {
        found.add_all(name, "f", function.signature(), |types| function.return_type(types).ok());
    }
    for (name, function) in state.aggregate_functions() {
        found.add_all(name, "a", function.signature(), |types| function.return_type(types).ok());
    }
    for (name, function) in state.window_functions() {
        found.add_all(name, "w", function.signature(), |_| None);
    }
    for (name, arguments, result) in catalog_functions() {
        for count in arguments {
            found.add(name, "f", Volatility::Stable, Some(vec![ANY; count]), oid(&result));
        }
    }
    let mut all: Vec<Procedure> = found.0.into_values().collect();
    for name in state.table_functions().keys() {
        let mut of_table = Found::default();
        of_table.add(name, "f", Volatility::Volatile, None, ANY);
        all.retain(|known| known.name != *name);
        all.extend(of_table.0.into_values().map(|known| Procedure { returns_set: true, ..known }));
    }
    all.sort_by(|a, b| (&a.name, a.kind).cmp(&(&b.name, b.kind)));
    all
}

/// A function as hints describe it.
#[derive(Debug)]
pub(in crate::sql) struct Known {
    pub name: String,
    /// As that of [`Procedure`].
    pub kind: &'static str,
    pub returns_set: bool,
    /// Number of arguments; `None` for any number.
    pub arguments: Option<usize>,
}

/// All functions, sorted by name.
pub(in crate::sql) fn known(engine: &Engine) -> Vec<Known> {
    let described = |procedure: Procedure| Known {
        name: procedure.name,
        kind: procedure.kind,
        returns_set: procedure.returns_set,
        arguments: (!procedure.is_variadic).then_some(procedure.arguments.len()),
    };
    all(engine).into_iter().map(described).collect()
}

/// Adds the rows of `pg_proc`.
pub(super) fn add(source: &Source, rows: &mut Rows) {
    for procedure in source.functions() {
        let arguments: Vec<i64> = procedure.arguments.iter().map(|oid| i64::from(*oid)).collect();
        rows.add(&[
            ("oid", procedure.oid.into()),
            ("proname", procedure.name.as_str().into()),
            ("pronamespace", CATALOG_SCHEMA.into()),
            ("proowner", OWNER.into()),
            ("prolang", INTERNAL.into()),
            ("procost", 1.0.into()),
            ("prorows", if procedure.returns_set { 1000.0 } else { 0.0 }.into()),
            ("provariadic", if procedure.is_variadic { ANY } else { 0 }.into()),
            ("prosupport", "-".into()),
            ("prokind", procedure.kind.into()),
            ("proretset", procedure.returns_set.into()),
            ("provolatile", procedure.volatility.into()),
            ("proparallel", "s".into()),
            ("pronargs", arguments.len().into()),
            ("prorettype", procedure.result.into()),
            ("proargtypes", arguments.into()),
            ("prosrc", procedure.name.as_str().into()),
            ("proacl", Value::Null),
        ]);
    }
}
