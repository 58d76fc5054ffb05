//! The columns of joins and what unqualified names mean among them.

use std::collections::HashSet;

use datafusion::sql::sqlparser::ast::{
    BinaryOperator, Expr, Ident, JoinConstraint, JoinOperator, ObjectName, ObjectNamePart,
};

use super::columns::Columns;
use crate::sql::names::{ident, plain_ident};
use crate::sql::parameters::call;
use crate::sql::parse_expr;
use crate::{Error, Result};

/// An item of FROM that is not a join.
#[derive(Clone)]
pub(super) struct Factor {
    /// Its name in expressions.
    pub alias: Option<Ident>,
    pub columns: Columns,
}

impl Factor {
    pub fn column(&self, name: &str) -> Option<Expr> {
        Some(Expr::CompoundIdentifier(vec![self.alias.clone()?, ident(name)]))
    }

    /// True if it has a column; `None` if that is not known.
    pub fn has(&self, name: &str) -> Option<bool> {
        self.columns.as_ref().map(|columns| columns.iter().any(|column| column == name))
    }
}

/// A merged column.
#[derive(Clone)]
pub(super) struct Merged {
    pub name: String,
    pub value: Expr,
    /// Columns that are equal to the value in all rows, because they are merged by inner joins.
    pub equal: Vec<Expr>,
    /// The factors whose columns are merged, in ascending order.
    pub factors: Vec<usize>,
}

/// The meaning of an unqualified name.
pub(super) enum Meaning {
    Merged(usize),
    /// A column of a factor.
    Column(usize),
    Ambiguous,
    Missing,
    Unknown,
}

/// The columns of a join, of FROM, or of a SELECT.
#[derive(Clone, Default)]
pub(super) struct Scope {
    pub factors: Vec<Factor>,
    pub merged: Vec<Merged>,
    /// Aliases in the select list. Columns come first.
    pub aliases: Vec<String>,
    /// New constraints of the joins.
    pub constraints: Vec<Option<JoinConstraint>>,
    /// A constraint depends on columns that are not known.
    pub is_undecided: bool,
}

impl Scope {
    pub fn beside(mut self, mut other: Scope) -> Scope {
        let before = self.factors.len();
        other.merged.iter_mut().flat_map(|merged| &mut merged.factors).for_each(|factor| *factor += before);
        self.factors.append(&mut other.factors);
        self.merged.append(&mut other.merged);
        self.constraints.append(&mut other.constraints);
        self.is_undecided |= other.is_undecided;
        self
    }

    /// The factor with an alias.
    pub fn factor(&self, alias: &Ident) -> Option<&Factor> {
        let is_named = |factor: &&Factor| factor.alias.as_ref().map(plain_ident) == Some(plain_ident(alias));
        self.factors.iter().find(is_named)
    }

    /// The merged columns with a name, more than one if items of FROM separated by commas have it.
    pub fn merged(&self, name: &str) -> impl Iterator<Item = usize> {
        (0..self.merged.len()).filter(move |i| self.merged[*i].name == name)
    }

    pub fn meaning(&self, name: &str) -> Meaning {
        let is_merged = |factor| self.merged(name).any(|i| self.merged[i].factors.contains(&factor));
        let unmerged =
            |has| (0..self.factors.len()).filter(move |i| self.factors[*i].has(name) == has && !is_merged(*i));
        let columns = unmerged(Some(true)).map(Meaning::Column);
        let mut found = self.merged(name).map(Meaning::Merged).chain(columns);
        match (found.next(), found.next(), unmerged(None).next()) {
            (Some(_), Some(_), _) => Meaning::Ambiguous,
            (Some(Meaning::Column(_)), None, Some(_)) => Meaning::Unknown,
            (Some(found), None, _) => found,
            (None, _, Some(only)) if self.factors.len() == 1 => Meaning::Column(only),
            (None, _, Some(_)) => Meaning::Unknown,
            (None, _, None) => Meaning::Missing,
        }
    }

    /// A column to merge; `None` if its factors are not known.
    ///
    /// # Errors
    /// `AmbiguousColumn`.
    fn key(&self, name: &str) -> Result<Option<Merged>> {
        let alone = |value, factor| Merged { name: name.into(), value, equal: Vec::new(), factors: vec![factor] };
        Ok(match self.meaning(name) {
            Meaning::Merged(i) => Some(self.merged[i].clone()),
            Meaning::Column(i) => self.factors[i].column(name).map(|value| alone(value, i)),
            Meaning::Ambiguous if !self.is_undecided => return Err(Error::AmbiguousColumn(name.into())),
            _ => None,
        })
    }

    /// True if a factor's column is not at its place in `*`, because it is merged with one of an earlier factor.
    pub fn is_later(&self, factor: usize, name: &str) -> bool {
        self.merged(name).any(|i| self.merged[i].factors[0] != factor && self.merged[i].factors.contains(&factor))
    }

    /// The columns of `*`.
    pub fn columns(&self) -> Columns {
        let mut all = Vec::new();
        for (i, factor) in self.factors.iter().enumerate() {
            all.extend(factor.columns.iter().flatten().filter(|name| !self.is_later(i, name)).cloned());
        }
        (!self.is_undecided && self.factors.iter().all(|factor| factor.columns.is_some())).then_some(all)
    }
}

/// The columns of two sides of a join, and its constraint.
///
/// # Errors
/// `AmbiguousColumn` for a column to merge that occurs twice on one side.
pub(super) fn joined(left: Scope, right: Scope, operator: &mut JoinOperator) -> Result<Scope> {
    let names = match constraint(operator) {
        None => return Ok(left.beside(right)),
        Some(JoinConstraint::Using(names)) => names.iter().map(|name| only(name).map(plain_ident)).collect::<Columns>(),
        Some(JoinConstraint::Natural) => left.columns().zip(right.columns()).map(|(mut columns, others)| {
            columns.retain(|name| others.contains(name));
            columns
        }),
        Some(_) => {
            let mut scope = left.beside(right);
            scope.constraints.push(None);
            return Ok(scope);
        }
    };
    let is_known = names.is_some();
    let mut names: Vec<String> = names.unwrap_or_default();
    let mut seen = HashSet::new();
    names.retain(|name| seen.insert(name.clone()));
    let mut keys = Vec::new();
    for name in &names {
        if let (Some(first), Some(second)) = (left.key(name)?, right.key(name)?) {
            keys.push((first, second));
        }
    }
    let is_undecided = !is_known || keys.len() < names.len();
    let before = left.factors.len();
    let mut scope = left.beside(right);
    let mut condition: Option<Expr> = None;
    for (left, right) in keys {
        let condition_of_key = both(left.value.clone(), BinaryOperator::Eq, right.value.clone());
        let factors = left.factors.iter().copied().chain(right.factors.iter().map(|factor| factor + before)).collect();
        let (name, value, equal) = match operator {
            JoinOperator::Right(_) | JoinOperator::RightOuter(_) => (left.name, right.value, right.equal),
            JoinOperator::FullOuter(_) => {
                (left.name, call("coalesce(NULL, NULL)", [left.value, right.value])?, Vec::new())
            }
            JoinOperator::Join(_) | JoinOperator::Inner(_) => {
                (left.name, left.value, [left.equal, vec![right.value], right.equal].concat())
            }
            _ => (left.name, left.value, left.equal),
        };
        scope.merged.retain(|merged| merged.name != name);
        scope.merged.push(Merged { name, value, equal, factors });
        condition = Some(match condition {
            Some(condition) => both(condition, BinaryOperator::And, condition_of_key),
            None => condition_of_key,
        });
    }
    scope.is_undecided |= is_undecided;
    let condition = condition.map_or_else(|| parse_expr("true"), Ok)?;
    scope.constraints.push(Some(JoinConstraint::On(condition)));
    Ok(scope)
}

fn both(left: Expr, op: BinaryOperator, right: Expr) -> Expr {
    Expr::BinaryOp { left: Box::new(left), op, right: Box::new(right) }
}

/// The constraint of a join; `None` for joins that DataFusion refuses or that have none.
pub(super) fn constraint(operator: &mut JoinOperator) -> Option<&mut JoinConstraint> {
    use JoinOperator as J;
    match operator {
        J::Join(c) | J::Inner(c) | J::Left(c) | J::LeftOuter(c) | J::Right(c) | J::RightOuter(c) => Some(c),
        J::FullOuter(c) | J::LeftSemi(c) | J::RightSemi(c) | J::LeftAnti(c) | J::RightAnti(c) => Some(c),
        _ => None,
    }
}

/// The identifier of a name without qualifiers.
pub(super) fn only(name: &ObjectName) -> Option<&Ident> {
    match name.0.as_slice() {
        [ObjectNamePart::Identifier(only)] => Some(only),
        _ => None,
    }
}
