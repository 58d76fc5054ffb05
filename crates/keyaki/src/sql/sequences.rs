//! Sequences: CREATE SEQUENCE, DROP SEQUENCE, and the functions `nextval`, `currval`, `lastval` and `setval`. ALTER SEQUENCE
//! is in [`super::alter`].
//!
//! The functions find a sequence by name in the catalog that their statement sees, also if the open transaction has
//! created it. Their values do not belong to a transaction ([`crate::engine::sequences`]).

use std::collections::{HashMap, HashSet};
use std::fmt::{self, Debug, Formatter};
use std::hash::{Hash, Hasher};
use std::ops::ControlFlow;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Int64Array};
use arrow::datatypes::{DataType, Int64Type};
use datafusion::error::DataFusionError;
use datafusion::execution::session_state::SessionStateBuilder;
use datafusion::execution::{FunctionRegistry, SessionState};
use datafusion::logical_expr::{
    ColumnarValue, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, TypeSignature, Volatility,
};
use datafusion::sql::sqlparser::ast::{
    ColumnDef as SqlColumn, ColumnOption, ColumnOptionDef, DataType as SqlDataType, Expr, GeneratedAs, ObjectName,
    SequenceOptions, Value, Visitor,
};
use keyaki_store::{ColumnType, WriteBatch};
use parking_lot::Mutex;

use super::names::{SearchPath, relation_name, shown_sql, stored_name};
use super::sequence_options::Options;
use super::{Outcome, SqlSession, access, notices, qualify};
use crate::base::interrupt::Execution;
use crate::catalog::{
    Access, Authority, Catalog, ColumnDef, DefaultKind, DocumentKind, IdentityDef, Privileges, RelationName,
    SequenceDef, Table, TableDef, put, put_new, remove, types,
};
use crate::engine::Engine;
use crate::engine::sequences::Sequences;
use crate::sql::visit::walk;
use crate::{Error, ObjectKind, Result};

/// The values that a session has taken.
#[derive(Debug, Default)]
pub(crate) struct Taken {
    /// The last value of each sequence, by [`SequenceDef::lasting_id`].
    values: HashMap<u64, i64>,
    /// The sequence of the last call of `nextval`.
    last: Option<u64>,
}

/// The surroundings of a call.
struct Context {
    engine: Arc<Engine>,
    catalog: Arc<Catalog>,
    path: Arc<SearchPath>,
    taken: Arc<Mutex<Taken>>,
    is_read_only: bool,
    authority: Authority,
    /// Sequences of identity columns of tables whose rows the statement may change: `nextval` needs no privilege for them.
    permitted: Mutex<HashSet<RelationName>>,
}

impl Context {
    /// A sequence for which the session has one of some privileges.
    ///
    /// # Errors
    /// `NotFound`, `WrongObjectType`, `InsufficientPrivilege`.
    fn sequence(&self, name: &str, privileges: Privileges) -> Result<&SequenceDef> {
        let name = relation_name(&super::parse_name(name)?, &self.catalog, &self.path)?;
        let def = self.catalog.sequence(&name).ok_or_else(|| missing(&self.catalog, &name))?;
        access::relation_any(&self.authority, &self.catalog, &name, privileges)?;
        Ok(def)
    }

    /// The sequence of a call of `nextval`.
    ///
    /// # Errors
    /// As [`Context::sequence`].
    fn next(&self, name: &str) -> Result<&SequenceDef> {
        let relation = relation_name(&super::parse_name(name)?, &self.catalog, &self.path)?;
        match self.catalog.sequence(&relation).filter(|_| self.permitted.lock().contains(&relation)) {
            Some(def) => Ok(def),
            None => self.sequence(name, Privileges::USAGE.and(Privileges::UPDATE)),
        }
    }

    /// # Errors
    /// `ReadOnlyTransaction`.
    fn check_writes(&self, function: &str) -> Result<()> {
        match self.is_read_only {
            true => Err(Error::ReadOnlyTransaction { statement: format!("{function}()") }),
            false => Ok(()),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Kind {
    Next,
    Current,
    Last,
    Set,
}

/// One of the functions.
struct Function {
    kind: Kind,
    signature: Signature,
    /// `None` for a database without sequences.
    context: Option<Arc<Context>>,
}

impl Debug for Function {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.name())
    }
}

impl PartialEq for Function {
    fn eq(&self, other: &Self) -> bool {
        let context = |function: &Self| function.context.as_ref().map(Arc::as_ptr);
        self.kind == other.kind && context(self) == context(other)
    }
}

impl Eq for Function {}

impl Hash for Function {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.kind.hash(state);
    }
}

impl Function {
    fn all(context: Option<&Arc<Context>>) -> impl Iterator<Item = ScalarUDF> {
        [Kind::Next, Kind::Current, Kind::Last, Kind::Set].into_iter().map(move |kind| {
            let (name, number, called) = (DataType::Utf8View, DataType::Int64, DataType::Boolean);
            let signature = match kind {
                Kind::Next | Kind::Current => Signature::exact(vec![name], Volatility::Volatile),
                Kind::Last => Signature::nullary(Volatility::Volatile),
                Kind::Set => {
                    let signatures = [vec![name.clone(), number.clone()], vec![name, number, called]];
                    Signature::one_of(signatures.into_iter().map(TypeSignature::Exact).collect(), Volatility::Volatile)
                }
            };
            ScalarUDF::new_from_impl(Function { kind, signature, context: context.cloned() })
        })
    }

    /// The value of one call.
    fn call(&self, context: &Context, name: &str, value: i64, is_called: bool) -> Result<i64> {
        let store = &context.engine.store;
        let sequences = &context.engine.sequences;
        match self.kind {
            Kind::Next => Ok(self.next(context, name, 1)?[0]),
            Kind::Current => {
                let def = context.sequence(name, Privileges::USAGE.and(Privileges::SELECT))?;
                let taken = context.taken.lock().values.get(&def.lasting_id()).copied();
                taken.ok_or_else(|| {
                    let problem = format!("currval of sequence \"{}\" is not yet defined in this session", def.name);
                    Error::PrerequisiteState(problem)
                })
            }
            Kind::Last => {
                let taken = context.taken.lock();
                let last = taken.last.and_then(|id| taken.values.get(&id).copied());
                last.ok_or_else(|| Error::PrerequisiteState("lastval is not yet defined in this session".into()))
            }
            Kind::Set => {
                context.check_writes("setval")?;
                let def = context.sequence(name, Privileges::UPDATE)?;
                if !(def.min..=def.max).contains(&value) {
                    return Err(Error::InvalidParameter {
                        name: format!("setval of sequence \"{}\"", def.name),
                        value: value.to_string(),
                        expected: format!("{} to {}", def.min, def.max),
                    });
                }
                sequences.set(store, def, value, is_called)?;
                if is_called {
                    context.taken.lock().values.insert(def.lasting_id(), value);
                }
                Ok(value)
            }
        }
    }

    fn next(&self, context: &Context, name: &str, count: usize) -> Result<Vec<i64>> {
        context.check_writes("nextval")?;
        let def = context.next(name)?;
        let values = context.engine.sequences.next(&context.engine.store, def, count)?;
        context.taken.lock().note(def.lasting_id(), &values);
        Ok(values)
    }

    fn invoke(&self, args: &ScalarFunctionArgs) -> Result<ArrayRef> {
        let Some(context) = &self.context else {
            let name = match args.args.first() {
                Some(ColumnarValue::Scalar(name)) => name.to_string(),
                _ => self.name().into(),
            };
            return Err(Error::NotFound { kind: ObjectKind::Sequence, name });
        };
        let rows = args.number_rows;
        if let (Kind::Next, Some(ColumnarValue::Scalar(name))) = (self.kind, args.args.first()) {
            return Ok(match name.try_as_str().flatten() {
                Some(name) => Arc::new(Int64Array::from(self.next(context, name, rows)?)),
                None => Arc::new(Int64Array::new_null(rows)),
            });
        }
        let columns = args.args.iter().map(|arg| Ok(arg.to_array(rows)?)).collect::<Result<Vec<_>>>()?;
        let names = columns.first().and_then(|names| names.as_string_view_opt());
        let numbers = columns.get(1).and_then(|numbers| numbers.as_primitive_opt::<Int64Type>());
        let called = columns.get(2).and_then(|called| called.as_boolean_opt());
        let call = |row: usize| {
            if columns.iter().any(|column| column.is_null(row)) {
                return Ok(None);
            }
            let name = names.map_or("", |names| names.value(row));
            let value = numbers.map_or(0, |numbers| numbers.value(row));
            self.call(context, name, value, called.is_none_or(|called| called.value(row))).map(Some)
        };
        Ok(Arc::new((0..rows).map(call).collect::<Result<Int64Array>>()?))
    }
}

impl ScalarUDFImpl for Function {
    fn name(&self) -> &str {
        match self.kind {
            Kind::Next => "nextval",
            Kind::Current => "currval",
            Kind::Last => "lastval",
            Kind::Set => "setval",
        }
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> datafusion::error::Result<DataType> {
        Ok(DataType::Int64)
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> datafusion::error::Result<ColumnarValue> {
        Ok(ColumnarValue::Array(self.invoke(&args).map_err(DataFusionError::from)?))
    }
}

impl Taken {
    /// Notes values that the session has taken.
    pub fn note(&mut self, id: u64, values: &[i64]) {
        if let Some(last) = values.last() {
            self.values.insert(id, *last);
            self.last = Some(id);
        }
    }
}

/// Adds the functions, for databases without sequences.
pub(super) fn registered(mut builder: SessionStateBuilder) -> SessionStateBuilder {
    let functions = builder.scalar_functions().get_or_insert_default();
    functions.extend(Function::all(None).map(Arc::new));
    builder
}

/// Gives the functions of a statement's state their surroundings.
pub(super) fn register_for(state: &mut SessionState, session: &SqlSession, catalog: &Arc<Catalog>) -> Result<()> {
    if catalog.sequences().next().is_none() {
        return Ok(());
    }
    let context = Arc::new(Context {
        engine: session.engine.clone(),
        catalog: catalog.clone(),
        path: session.path(),
        taken: session.taken.clone(),
        is_read_only: session.is_read_only(),
        authority: session.authority(catalog)?,
        permitted: Mutex::default(),
    });
    for function in Function::all(Some(&context)) {
        state.register_udf(Arc::new(function))?;
    }
    Ok(())
}

/// The surroundings of the functions in a statement's state; `None` for a database without sequences.
fn context(state: &SessionState) -> Option<&Context> {
    let function = state.scalar_functions().get("nextval")?.inner().downcast_ref::<Function>()?;
    function.context.as_deref()
}

/// Permits a statement that may change the rows of a table to take values for its identity columns.
pub(super) fn permit_identity(state: &SessionState, def: &TableDef) {
    let Some(context) = context(state).filter(|context| !context.authority.is_all()) else { return };
    let identities = def.columns.iter().filter_map(|column| column.identity.as_ref());
    context.permitted.lock().extend(identities.map(|identity| identity.sequence.name.clone()));
}

/// Permits a statement what it was permitted in another state.
pub(super) fn keep_permitted(state: &SessionState, other: &SessionState) {
    if let (Some(own), Some(other)) = (context(state), context(other)) {
        let permitted = own.permitted.lock().clone();
        other.permitted.lock().extend(permitted);
    }
}

/// The error for a name that is not that of a sequence.
pub(super) fn missing(catalog: &Catalog, name: &RelationName) -> Error {
    let name_of_relation = catalog.tables.contains_key(name) || catalog.views.contains_key(name);
    let (kind, name) = (ObjectKind::Sequence, name.to_string());
    match name_of_relation {
        true => Error::WrongObjectType { name, found: ObjectKind::Relation, expected: kind, hint: None },
        false => Error::NotFound { kind, name },
    }
}

/// The definition of a sequence with values of an integer type.
///
/// # Errors
/// `InvalidDefinition`, `Syntax`, `OutOfRange`.
pub(super) fn definition(name: RelationName, ty: ColumnType, options: &[SequenceOptions]) -> Result<SequenceDef> {
    Options::of(options)?.create(name, ty)
}

/// A parsed CREATE SEQUENCE.
#[derive(Debug)]
pub(super) struct CreateSequence {
    pub name: ObjectName,
    pub is_temporary: bool,
    pub if_not_exists: bool,
    pub options: Options,
}

/// CREATE SEQUENCE.
pub(super) async fn create(session: &SqlSession, execution: &Execution<'_>, create: CreateSequence) -> Result<Outcome> {
    let CreateSequence { name, is_temporary, if_not_exists, options } = create;
    let writer = session.writer(execution, "CREATE SEQUENCE").await?;
    let (catalog, _) = session.engine.latest(&writer);
    let name = session.new_relation(&catalog, &name, is_temporary)?;
    let def = options.create(name.clone(), ColumnType::Int64)?;
    if if_not_exists && catalog.sequence(&name).is_some() {
        notices::relation_exists(session, &name);
        return Ok(Outcome::done("CREATE SEQUENCE"));
    }
    catalog.check_free(&name)?;
    access::creation(session, &catalog, &name)?;
    let access = access::new_access(session, &catalog, DefaultKind::Sequences, Some(&*name.schema))?;
    let def = SequenceDef { access, ..def };
    let (mut batch, mut changed) = (WriteBatch::new(), Catalog::clone(&catalog));
    put_new(&mut batch, DocumentKind::Sequence, &name, &def)?;
    changed.sequences.insert(name, Arc::new(def));
    session.engine.commit_catalog(&writer, batch, changed).await?;
    Ok(Outcome::done("CREATE SEQUENCE"))
}

/// DROP SEQUENCE. With CASCADE, columns lose a DEFAULT that uses the sequence.
pub(super) async fn drop(
    session: &SqlSession,
    execution: &Execution<'_>,
    names: &[ObjectName],
    if_exists: bool,
    cascades: bool,
) -> Result<Outcome> {
    let writer = session.writer(execution, "DROP SEQUENCE").await?;
    let (catalog, _) = session.engine.latest(&writer);
    let (mut batch, mut changed) = (WriteBatch::new(), Catalog::clone(&catalog));
    for name in names {
        let name = session.relation(&catalog, name)?;
        access::removal(session, &catalog, &name)?;
        if !changed.sequences.contains_key(&name) {
            match catalog.sequences().find(|(def, _)| def.name == name) {
                Some((_, Some((table, column)))) => {
                    let dependent = format!("column \"{column}\" of table \"{table}\"");
                    let action = format!("drop sequence \"{name}\"");
                    return Err(Error::DependentColumn { action, dependent });
                }
                _ if if_exists => {
                    notices::missing(session, "sequence", &name.to_string());
                    continue;
                }
                _ => return Err(Error::NotFound { kind: ObjectKind::Sequence, name: name.to_string() }),
            }
        }
        remove_from(&mut changed, &mut batch, &name, cascades)?;
    }
    if !batch.is_empty() {
        session.engine.commit_catalog(&writer, batch, changed).await?;
    }
    Ok(Outcome::done("DROP SEQUENCE"))
}

/// Removes a sequence of CREATE SEQUENCE. If the removal `cascades`, defaults that use it are removed, too.
///
/// # Errors
/// `DependentColumn` with such a default otherwise.
pub(super) fn remove_from(
    changed: &mut Catalog,
    batch: &mut WriteBatch,
    name: &RelationName,
    cascades: bool,
) -> Result<()> {
    if changed.sequences.remove(name).is_none() {
        return Ok(());
    }
    remove(batch, DocumentKind::Sequence, name)?;
    without_users(changed, batch, name, cascades.then_some(()).ok_or(&format!("drop sequence \"{name}\"")))
}

/// As [`without_users`], for the sequences of the identity columns of a table that is no longer in `changed`.
///
/// # Errors
/// As [`without_users`].
pub(super) fn without_users_of(
    changed: &mut Catalog,
    batch: &mut WriteBatch,
    table: &TableDef,
    cascades: std::result::Result<(), &str>,
) -> Result<()> {
    let identities = table.columns.iter().filter_map(|column| column.identity.as_ref());
    identities
        .map(|identity| &identity.sequence.name)
        .try_for_each(|name| without_users(changed, batch, name, cascades))
}

/// Removes the defaults that use a sequence. `cascades`: `Ok`, or the action that is refused if there are any.
///
/// # Errors
/// `DependentColumn` with such a default.
fn without_users(
    changed: &mut Catalog,
    batch: &mut WriteBatch,
    name: &RelationName,
    cascades: std::result::Result<(), &str>,
) -> Result<()> {
    let tables: Vec<Arc<Table>> = changed.tables.values().cloned().collect();
    for table in tables {
        let mut def = table.def.clone();
        for column in &mut def.columns {
            if !uses(column, name)? {
                continue;
            }
            if let Err(action) = cascades {
                let dependent = format!("the default of column \"{}\" of table \"{}\"", column.name, table.def.name);
                return Err(Error::DependentColumn { action: action.into(), dependent });
            }
            column.default = None;
        }
        if def != table.def {
            put(batch, DocumentKind::Table, &def.name, &def)?;
            let table = Table::new(def, table.statistics.clone())?;
            changed.tables.insert(table.def.name.clone(), Arc::new(table));
        }
    }
    Ok(())
}

/// True if the default of a column calls a function of this module with a sequence's name.
pub(super) fn uses(column: &ColumnDef, name: &RelationName) -> Result<bool> {
    let Some(sql) = &column.default else { return Ok(false) };
    let mut found = false;
    let mut expr = super::parse_expr(sql)?;
    qualify::calls(&mut expr, |used| {
        found |= stored_name(used).is_ok_and(|used| used == *name);
        None
    });
    Ok(found)
}

/// True for the functions of this module.
pub(super) fn is_sequence_function(name: &ObjectName) -> bool {
    let name = name.to_string().to_ascii_lowercase();
    ["nextval", "currval", "lastval", "setval"].contains(&name.as_str())
}

/// True if an expression calls a function of this module: evaluating it takes a value.
pub(super) fn calls_sequence(expr: &Expr) -> bool {
    struct Calls;
    impl Visitor for Calls {
        type Break = ();
        fn pre_visit_expr(&mut self, expr: &Expr) -> ControlFlow<()> {
            match expr {
                Expr::Function(function) if is_sequence_function(&function.name) => ControlFlow::Break(()),
                _ => ControlFlow::Continue(()),
            }
        }
    }
    walk(expr, &mut Calls).is_break()
}

/// SQL text of the options of a sequence that differ from their defaults, for values of type `ty`.
pub(super) fn options_sql(def: &SequenceDef, ty: ColumnType) -> String {
    let plain = |increment| {
        let increment = SequenceOptions::IncrementBy(number(increment), true);
        definition(def.name.clone(), ty, &[increment]).ok()
    };
    let Some(default) = plain(def.increment) else { return String::new() };
    let mut options = Vec::new();
    let mut add = |what: &str, value: i64, is_default: bool| {
        if !is_default {
            options.push(format!("{what} {value}"));
        }
    };
    add("INCREMENT BY", def.increment, def.increment == 1);
    add("MINVALUE", def.min, def.min == default.min);
    add("MAXVALUE", def.max, def.max == default.max);
    let first = if def.increment > 0 { def.min } else { def.max };
    add("START WITH", def.start, def.start == first);
    if def.cycles {
        options.push("CYCLE".into());
    }
    options.join(" ")
}

fn number(value: i64) -> Expr {
    Expr::value(Value::Number(value.to_string(), false))
}

/// SQL text of CREATE SEQUENCE.
pub(super) fn create_sql(def: &SequenceDef) -> String {
    let ty = match def.ty {
        ColumnType::Int64 => String::new(),
        ty => format!(" AS {}", types::column_type_name(ty)),
    };
    let options = options_sql(def, def.ty);
    let space = if options.is_empty() { "" } else { " " };
    format!("CREATE SEQUENCE {}{ty}{space}{options}", shown_sql(&def.name))
}

/// The identity that the type and options of a column define; `None` if it has none. `name` is the name of its sequence.
///
/// # Errors
/// As [`definition`]; `Syntax`.
pub(super) fn identity(name: RelationName, column: &SqlColumn, ty: ColumnType) -> Result<Option<IdentityDef>> {
    let mut found = serial_type(&column.data_type).map(|_| (false, Vec::new()));
    for option in &column.options {
        let ColumnOption::Generated { generated_as, sequence_options, .. } = &option.option else { continue };
        if !is_identity(option) {
            continue;
        }
        let identity = (*generated_as == GeneratedAs::Always, sequence_options.clone().unwrap_or_default());
        if found.replace(identity).is_some() {
            return Err(Error::syntax(format!("multiple identity specifications for column {}", column.name)));
        }
    }
    let Some((always, options)) = found else { return Ok(None) };
    Ok(Some(IdentityDef { always, sequence: definition(name, ty, &options)? }))
}

/// The identity column of another table, with a sequence of its own that begins at its start.
pub(super) fn copied(identity: &IdentityDef, name: RelationName) -> IdentityDef {
    let mut sequence = identity.sequence.clone();
    sequence.renew(Sequences::new_id());
    let sequence =
        SequenceDef { name, origin: None, restart: None, comment: None, access: Access::default(), ..sequence };
    IdentityDef { sequence, ..identity.clone() }
}

/// True for GENERATED … AS IDENTITY.
pub(super) fn is_identity(option: &ColumnOptionDef) -> bool {
    match &option.option {
        ColumnOption::Generated { generated_as, generation_expr: None, generated_keyword: true, .. } => {
            matches!(generated_as, GeneratedAs::Always | GeneratedAs::ByDefault)
        }
        _ => false,
    }
}

/// The name of the sequence of an identity column, if it is not in use.
pub(super) fn identity_name(table: &RelationName, column: &str) -> RelationName {
    table.sibling(format!("{}_{column}_seq", table.name))
}

/// Gives the sequences of the identity columns of a new table or column names that are not in use, and default privileges.
pub(super) fn name_identities(def: &mut TableDef, catalog: &Catalog) {
    let own: Vec<String> =
        std::iter::once(&def.name.name).chain(def.indexes.iter().map(|index| &index.name)).cloned().collect();
    let old = catalog.tables.get(&def.name).map(|table| table.def.clone());
    let is_old = |name: &RelationName| {
        let columns = old.iter().flat_map(|def| &def.columns).filter_map(|column| column.identity.as_ref());
        columns.clone().any(|identity| identity.sequence.name == *name)
    };
    let mut used: Vec<RelationName> = Vec::new();
    for identity in def.columns.iter_mut().filter_map(|column| column.identity.as_mut()) {
        let base = identity.sequence.name.clone();
        if !is_old(&base) || used.contains(&base) {
            let is_free = |name: &RelationName| {
                catalog.check_free(name).is_ok() && !own.contains(&name.name) && !used.contains(name)
            };
            let numbered = (1_u32..).map(|n| base.sibling(format!("{}{n}", base.name)));
            let name = std::iter::once(base.clone()).chain(numbered).find(is_free);
            identity.sequence.name = name.unwrap_or(base);
        }
        used.push(identity.sequence.name.clone());
    }
    access::default_identities(catalog, old.as_ref(), def);
}

/// Changes the type of the values of an identity column's sequence.
///
/// # Errors
/// `InvalidDefinition`, errors of the store.
pub(super) fn retype(engine: &Engine, sequence: &mut SequenceDef, before: ColumnType, after: ColumnType) -> Result<()> {
    let old = SequenceDef { ty: before, ..sequence.clone() };
    let new = Options::default().change_to(&old, after)?;
    check_position(engine, &old, &new)?;
    *sequence = new;
    Ok(())
}

/// Checks that the position of a sequence lies between the limits of its new definition.
///
/// # Errors
/// `InvalidDefinition`, errors of the store.
pub(super) fn check_position(engine: &Engine, old: &SequenceDef, new: &SequenceDef) -> Result<()> {
    let position = engine.sequences.settle(&engine.store, old)?;
    match position.filter(|value| !(new.min..=new.max).contains(value)) {
        None => Ok(()),
        Some(value) => {
            let problem = format!(
                "the current value ({value}) of sequence \"{}\" must lie between MINVALUE ({}) and MAXVALUE ({}) (use \
                 RESTART)",
                new.name, new.min, new.max
            );
            Err(Error::InvalidDefinition { kind: ObjectKind::Sequence, problem })
        }
    }
}

/// Refuses values for columns that are GENERATED ALWAYS. `is_default` tells for a column if its value is DEFAULT.
///
/// # Errors
/// `GeneratedAlways`.
pub(super) fn check_given(
    table: &Table,
    columns: &[usize],
    updates: bool,
    is_default: impl Fn(usize) -> bool,
) -> Result<()> {
    let columns = columns.iter().enumerate().map(|(position, &column)| (position, &table.def.columns[column]));
    let is_always = |column: &ColumnDef| {
        column.generated.is_some() || column.identity.as_ref().is_some_and(|identity| identity.always)
    };
    let mut always = columns.filter(|(_, column)| is_always(column));
    match always.find(|(position, _)| !is_default(*position)) {
        None => Ok(()),
        Some((_, column)) => Err(Error::GeneratedAlways { column: column.name.clone(), updates }),
    }
}

/// SQL text of GENERATED … AS IDENTITY.
pub(super) fn identity_sql(identity: &IdentityDef, ty: ColumnType) -> String {
    let kind = if identity.always { "ALWAYS" } else { "BY DEFAULT" };
    match options_sql(&identity.sequence, ty).as_str() {
        "" => format!("GENERATED {kind} AS IDENTITY"),
        options => format!("GENERATED {kind} AS IDENTITY ({options})"),
    }
}

/// The integer type of SERIAL and its variants.
pub(super) fn serial_type(ty: &SqlDataType) -> Option<ColumnType> {
    let SqlDataType::Custom(name, arguments) = ty else { return None };
    let column = match name.to_string().to_ascii_lowercase().as_str() {
        "smallserial" | "serial2" => ColumnType::Int16,
        "serial" | "serial4" => ColumnType::Int32,
        "bigserial" | "serial8" => ColumnType::Int64,
        _ => return None,
    };
    arguments.is_empty().then_some(column)
}
