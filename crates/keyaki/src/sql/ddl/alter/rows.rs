//! The commit of ALTER TABLE: views and rows follow the changed definition.

use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array, RecordBatch, new_null_array};
use datafusion::common::DFSchema;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::sql::sqlparser::ast::{Expr, Ident};
use futures::StreamExt;
use keyaki_store::WriteBatch;

use super::added::Added;
use super::{Draft, Source};
use crate::catalog::{Catalog, ColumnDef, DocumentKind, SequenceDef, Table, TableStatistics, put, remove};
use crate::engine::Engine;
use crate::sql::ddl::{checks, foreign_keys};
use crate::sql::dml::{TargetTable, defaults};
use crate::sql::names::{full_sql, quoted};
use crate::sql::{expressions, parse_expr, parse_query, views};
use crate::values::zone::Zone;
use crate::write::assign::assign;
use crate::write::foreign_keys::{ForeignKey, KeyRows};
use crate::write::generated;
use crate::write::rebuild::{Convert, rebuild, renew_trees};
use crate::write::{self, WriteStatement};
use crate::{ConstraintKind, Error, Result};

impl Draft<'_> {
    /// Makes the rows follow the definition and commits.
    pub(super) async fn commit(mut self, statement: &WriteStatement) -> Result<()> {
        if self.def == self.old.def && !self.rebuilds {
            return Ok(());
        }
        let added = self.extension(statement)?;
        // One index at a time is built from the existing rows, in a transaction in memory.
        let drops = self.def.dropped != self.old.def.dropped;
        let builds_in_memory = drops && !self.indexes.is_empty() && statement.writer.is_in_transaction();
        let rebuilds =
            self.rebuilds || builds_in_memory || self.indexes.len() > 1 || self.changes_schema() && added.is_none();
        if rebuilds {
            self.def.columns.iter_mut().for_each(|column| column.stores_nulls = false);
            self.def.nullable_values = true;
            self.def.dropped.clear();
            renew_trees(&self.session.engine, &mut self.def);
        }
        let statistics = if rebuilds { None } else { self.statistics() };
        let (mut batch, mut changed) = (WriteBatch::new(), Catalog::clone(&self.state.catalog));
        let table = Table::new(self.def.clone(), statistics)?;
        let (cascades, action) = (self.cascades, &self.action);
        let table = foreign_keys::check_referenced(&mut changed, &mut batch, table, cascades, action)?;
        let table = Arc::new(table);
        expressions::compiled(self.session, &table)?;
        changed.tables.insert(table.def.name.clone(), table.clone());
        let changed = self.change_views(changed, &mut batch).await?;
        self.verify_references(statement, &changed, &table).await?;
        if rebuilds {
            let convert = self.conversion(&table)?;
            rebuild(statement, &changed, &self.old, table, convert, batch).await.map_err(|e| self.existing(e))?;
            return Ok(());
        }
        match &added {
            Some(added) => self.verify_added(statement, &table, added).await?,
            None => self.verify(statement, &table).await?,
        }
        put(&mut batch, DocumentKind::Table, &table.def.name, &table.def)?;
        if let Some(statistics) = &table.statistics {
            put(&mut batch, DocumentKind::Statistics, &table.def.name, &**statistics)?;
        }
        if let Some(added) = &added {
            batch.extend_tree(table.def.tree, &added.schema);
        }
        for index in &self.old.def.indexes {
            if !table.has_tree(index.tree) {
                batch.drop_tree(index.tree);
            }
        }
        let new = self.indexes.first().and_then(|name| table.def.indexes.iter().position(|i| i.name == *name));
        match new {
            Some(index) => {
                batch.create_tree(table.def.indexes[index].tree, &table.index_schemas[index]);
                write::create_index(statement, &table, index, batch, changed).await
            }
            None => statement.engine.commit_catalog(&statement.writer, batch, changed).await,
        }
    }

    /// The statistics of the remaining columns.
    fn statistics(&self) -> Option<Arc<TableStatistics>> {
        let old = self.old.statistics.as_ref()?;
        let of_column = |source: &Source| match source {
            Source::Same(column) | Source::Converted(column, _) => old.columns.get(*column).cloned(),
            Source::Default => None,
        };
        let columns = self.sources.iter().map_while(of_column).collect();
        Some(Arc::new(TableStatistics { rows: old.rows, columns }))
    }

    /// The schema that the tree gets; `None` if it keeps its own, or if the rows are converted into new trees.
    fn extension(&self, statement: &WriteStatement) -> Result<Option<Added>> {
        // A transaction cannot extend a tree. Other constraints are checked on rows with the old columns, and an index is
        // built from them.
        let has_constraints = !(self.indexes.is_empty() && self.foreign_keys.is_empty() && self.not_null.is_empty());
        if !self.changes_schema() || self.rebuilds || has_constraints || statement.writer.is_in_transaction() {
            return Ok(None);
        }
        for check in &self.checks {
            if !self.concerns_added(check)? {
                return Ok(None);
            }
        }
        self.added()
    }

    /// The catalog without the views that CASCADE drops.
    ///
    /// # Errors
    /// `DependentObject` with a view that would change.
    async fn change_views(&self, mut changed: Catalog, batch: &mut WriteBatch) -> Result<Catalog> {
        let affected = views::affected(self.session, self.state, &changed, &self.def.name, self.widens).await?;
        if let Some(view) = affected.first().filter(|_| !self.cascades) {
            return Err(Error::DependentObject { action: self.action.clone(), dependent: view.to_string() });
        }
        for view in affected {
            remove(batch, DocumentKind::View, &view)?;
            changed.views.remove(&view);
        }
        Ok(changed)
    }

    /// Checks the existing rows against new constraints.
    async fn verify(&self, statement: &WriteStatement, table: &Table) -> Result<()> {
        for name in &self.not_null {
            let condition = parse_expr(&format!("{} IS NULL", quoted(name)))?;
            if self.has_row(statement, condition).await? {
                return Err(null_values(name, &table.def.name));
            }
        }
        for check in table.def.checks.iter().filter(|check| self.checks.contains(&check.name)) {
            if self.has_row(statement, parse_expr(&format!("NOT ({})", check.sql))?).await? {
                let (table, name) = (table.def.name.to_string(), check.name.clone());
                return Err(Error::CheckViolation { table, name, is_new_row: false });
            }
        }
        Ok(())
    }

    /// Checks the existing rows against new foreign keys.
    async fn verify_references(&self, statement: &WriteStatement, changed: &Catalog, table: &Arc<Table>) -> Result<()> {
        for key in ForeignKey::of(changed, table)? {
            let def = key.def();
            if !self.foreign_keys.contains(&def.name) {
                continue;
            }
            let mut columns = Vec::new();
            for &column in &def.columns {
                match self.sources[column] {
                    Source::Same(old) => columns.push(quoted(&self.old.def.columns[old].name)),
                    // Its values are null, and refer to nothing.
                    Source::Default if !has_values(&self.as_added(column)) => break,
                    _ => {
                        let problem = "a FOREIGN KEY of a column with another type or with a default (add it later)";
                        return Err(Error::Unsupported(problem.into()));
                    }
                }
            }
            if columns.len() < def.columns.len() {
                continue;
            }
            statement.engine.depend_on_table(&statement.writer, &self.old);
            let referenced = self.state.catalog.table(&def.references)?;
            statement.engine.depend_on_table(&statement.writer, referenced);
            let join = |items: Vec<String>, by: &str| items.join(by);
            let pairs = columns.iter().zip(&def.referenced);
            let query = format!(
                "SELECT {} FROM {} AS c WHERE {} AND NOT EXISTS (SELECT 1 FROM {} AS p WHERE {}) LIMIT 1",
                join(columns.iter().map(|column| format!("c.{column}")).collect(), ", "),
                full_sql(&self.old.def.name),
                join(columns.iter().map(|column| format!("c.{column} IS NOT NULL")).collect(), " AND "),
                full_sql(&def.references),
                join(pairs.map(|(column, other)| format!("p.{} = c.{column}", quoted(other))).collect(), " AND "),
            );
            let plan = self.state.plan_own_query(*parse_query(&query)?).await?;
            let mut rows = self.state.run(&plan).await?;
            while let Some(batch) = rows.next().await {
                statement.writer.decision.check()?;
                let batch = batch?;
                if batch.num_rows() > 0 {
                    return Err(key.missing_error(&KeyRows::of(batch.columns().to_vec()), 0));
                }
            }
        }
        Ok(())
    }

    /// True if a row of the old table satisfies a condition.
    pub(super) async fn has_row(&self, statement: &WriteStatement, condition: Expr) -> Result<bool> {
        statement.engine.depend_on_table(&statement.writer, &self.old);
        let alias = Ident::with_quote('"', self.def.name.name.clone());
        let target = TargetTable::of(self.state, &self.old, alias)?;
        let one = parse_expr("1")?;
        let plan = self.state.plan_query(target.select(vec![one], Vec::new(), Some(condition))?).await?;
        let mut rows = self.state.run(&plan).await?;
        statement.writer.decision.check()?;
        while let Some(batch) = rows.next().await {
            statement.writer.decision.check()?;
            if batch?.num_rows() > 0 {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The conversion of the old rows.
    fn conversion(&self, table: &Arc<Table>) -> Result<Convert> {
        let columns = self.sources.iter().zip(&table.def.columns).enumerate().map(|(position, (source, column))| {
            Ok(match source {
                _ if column.generated.is_some() => Converted::Generated(column.clone()),
                Source::Same(old) => Converted::Column(*old, column.clone()),
                Source::Converted(old, None) => Converted::Column(*old, column.clone()),
                Source::Converted(_, Some(using)) => Converted::Expression(self.using(using)?, column.clone()),
                Source::Default if let Some(identity) = &column.identity => {
                    Converted::Sequence(self.session.engine.clone(), identity.sequence.clone(), column.clone())
                }
                Source::Default => {
                    let added = self.as_added(position);
                    match &added.default {
                        None => Converted::Null(added),
                        Some(_) => Converted::Expression(defaults::of_statement(self.state, &added)?, added),
                    }
                }
            })
        });
        let columns = columns.collect::<Result<Vec<_>>>()?;
        let (table, zone) = (table.clone(), self.state.zone);
        Ok(Box::new(move |batch| {
            let values = columns.iter().map(|column| column.values(batch, &table.def.name, zone));
            let mut values = values.collect::<Result<Vec<_>>>()?;
            generated::complete(&table, &mut values, batch.num_rows())?;
            Ok(values)
        }))
    }

    /// The expression of USING over rows of the old table.
    fn using(&self, using: &Expr) -> Result<Arc<dyn PhysicalExpr>> {
        expressions::refuse_queries(using, "USING")?;
        let schema = Arc::new(DFSchema::try_from(self.old.arrow.clone())?);
        let using = checks::unqualified(using, &self.def.name);
        let using = expressions::logical(&self.state.state, using, &schema)?;
        expressions::refuse_forms(&using, "USING")?;
        let using = expressions::analyzed(&self.state.state, using, &schema)?;
        expressions::physical(&self.state.state, using, &schema)
    }

    /// Describes an error of the conversion in terms of existing rows.
    fn existing(&self, error: Error) -> Error {
        match error {
            Error::Constraint { kind: ConstraintKind::NotNull, table, name, .. } => null_values(&name, &table),
            other => other,
        }
    }
}

/// The values of a column of the new table.
enum Converted {
    Column(usize, ColumnDef),
    Expression(Arc<dyn PhysicalExpr>, ColumnDef),
    Null(ColumnDef),
    /// A new identity column.
    Sequence(Arc<Engine>, SequenceDef, ColumnDef),
    /// Computed from the other columns.
    Generated(ColumnDef),
}

impl Converted {
    fn values(&self, old: &RecordBatch, table: &str, zone: Zone) -> Result<ArrayRef> {
        match self {
            Converted::Column(position, column) => assign(old.column(*position), table, column, zone),
            Converted::Expression(expr, column) => {
                let values = expr.evaluate(old)?.into_array(old.num_rows())?;
                assign(&values, table, column, zone)
            }
            Converted::Sequence(engine, sequence, column) => {
                let values = engine.sequences.next(&engine.store, sequence, old.num_rows())?;
                assign(&(Arc::new(Int64Array::from(values)) as ArrayRef), table, column, zone)
            }
            Converted::Generated(column) => Ok(generated::unset(column, old.num_rows())),
            Converted::Null(column) => {
                let nulls = new_null_array(&column.ty.column.arrow(), old.num_rows());
                assign(&nulls, table, column, zone)
            }
        }
    }
}

/// True if a new column may have values other than null.
fn has_values(column: &ColumnDef) -> bool {
    column.has_default() || column.generated.is_some()
}

/// The error for a column with nulls that becomes NOT NULL.
fn null_values(column: &str, table: &str) -> Error {
    Error::NullValues { column: column.into(), relation: table.into() }
}
