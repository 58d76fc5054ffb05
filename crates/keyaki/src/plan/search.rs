//! Finds the cheapest way to join a graph's relations.
//!
//! Dynamic programming over sets of relations (greedy merging beyond [`EXHAUSTIVE_MAX`]). A set has up to three plans: the
//! cheapest of all, the cheapest that is one *pipeline* (it alone can be extended by lookups), and the cheapest of scans and
//! hash joins only, for comparison. A relation joins a pipeline through a tree of which leading key columns are equal to
//! columns that the pipeline has; if that tree is an index without all columns that are needed, a lookup into the table
//! follows. Anything else is a hash join.

use std::collections::HashMap;

use datafusion::common::{Column, ScalarValue};
use datafusion::logical_expr::Expr;
use keyaki_store::ColumnType;

use super::facts::{Facts, TreeFacts, local_filters};
use super::graph::{ColumnId, Graph, Set, bit, members};
use crate::JoinMode;
use crate::table::cost::{Cost, Lookups, Machine, Readable};
use crate::table::ranges::value_intervals;

/// Larger graphs are searched greedily.
const EXHAUSTIVE_MAX: usize = 11;

/// Where a key column of a lookup gets its value from.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum KeySource {
    Column(ColumnId),
    Constant(ScalarValue),
}

/// How a relation is reached.
#[derive(Debug, Clone)]
pub(super) struct Access {
    pub relation: usize,
    /// Index into the relation's trees.
    pub tree: usize,
    /// Of the leading key columns of the tree; empty for the driver of a pipeline.
    pub key: Vec<KeySource>,
    /// A lookup into the table follows.
    pub then_table: bool,
}

#[derive(Debug, Clone)]
pub(super) enum Node {
    /// The relation as it is planned without us.
    Scan(usize),
    /// The start of a pipeline.
    Driver(Access),
    /// A pipeline's next step.
    Step(usize, Access),
    /// A hash join of two plans; the first is the smaller one, or the side that is kept if `outer`.
    Hash { left: usize, right: usize, outer: bool },
}

#[derive(Debug, Clone)]
pub(super) struct Plan {
    pub node: Node,
    pub set: Set,
    pub rows: f64,
    /// Elapsed.
    pub seconds: f64,
    /// What a pipeline takes so far.
    cost: Cost,
    /// The column by which a pipeline's driver is ordered.
    order: Option<ColumnId>,
    /// Where the session insists on pipelines: operators that are none.
    penalty: usize,
}

/// The best plans of a set, as indices into the search's plans.
#[derive(Debug, Clone, Copy, Default)]
struct Best {
    any: Option<usize>,
    pipeline: Option<usize>,
    hash: Option<usize>,
}

/// What was found.
#[derive(Debug)]
pub(super) struct Found {
    pub plans: Vec<Plan>,
    pub root: usize,
    best: HashMap<Set, Best>,
}

impl Found {
    /// What scans and hash joins alone would take for a set of relations.
    pub fn without_seconds(&self, set: Set) -> Option<f64> {
        Some(self.plans[self.best.get(&set)?.hash?].seconds)
    }

    pub fn has_pipeline(&self, plan: usize) -> bool {
        match &self.plans[plan].node {
            Node::Scan(_) => false,
            Node::Driver(_) | Node::Step(..) => true,
            Node::Hash { left, right, .. } => self.has_pipeline(*left) || self.has_pipeline(*right),
        }
    }
}

pub(super) struct Search<'a> {
    graph: &'a Graph,
    facts: &'a Facts,
    machine: &'a Machine,
    mode: JoinMode,
    needed: Vec<Vec<usize>>,
    plans: Vec<Plan>,
    best: HashMap<Set, Best>,
}

impl<'a> Search<'a> {
    pub fn new(graph: &'a Graph, facts: &'a Facts, machine: &'a Machine, mode: JoinMode) -> Self {
        let needed = needed(graph);
        Search { graph, facts, machine, mode, needed, plans: Vec::new(), best: HashMap::new() }
    }

    /// The best plan for all relations.
    pub fn run(mut self) -> Option<Found> {
        let count = self.graph.relations.len();
        for relation in 0..count {
            self.single(relation);
        }
        let all = self.graph.all();
        if count <= EXHAUSTIVE_MAX {
            for set in (1..=all).filter(|set| set.count_ones() > 1) {
                self.split(set);
            }
        } else {
            self.merge_greedily();
        }
        let root = self.best.get(&all)?.any?;
        Some(Found { root, plans: self.plans, best: self.best })
    }

    fn add(&mut self, plan: Plan, is_any: bool, is_pipeline: bool, is_hash: bool) {
        let index = self.plans.len();
        let mut best = self.best.get(&plan.set).copied().unwrap_or_default();
        let better = |known: Option<usize>| {
            known.is_none_or(|known| {
                let known = &self.plans[known];
                (plan.penalty, plan.seconds) < (known.penalty, known.seconds)
            })
        };
        let slots = [(is_any, &mut best.any), (is_pipeline, &mut best.pipeline), (is_hash, &mut best.hash)];
        let mut used = false;
        for (wanted, slot) in slots {
            if wanted && better(*slot) {
                *slot = Some(index);
                used = true;
            }
        }
        if used {
            self.best.insert(plan.set, best);
            self.plans.push(plan);
        }
    }

    fn single(&mut self, relation: usize) {
        let facts = &self.facts.relations[relation];
        let bounded = facts.trees.iter().any(|tree| tree.ranges.bounded > 0);
        let penalty = |bounded_here: bool| usize::from(self.mode == JoinMode::Index && bounded && !bounded_here);
        let needed = &self.needed[relation];
        let alone = self.graph.relations.len() == 1;
        let fetched = |rows: f64| match self.graph.fetch {
            Some(fetch) if alone => (fetch as f64 / rows.max(1.0)).min(1.0),
            _ => 1.0,
        };
        // What the table provider would choose.
        let covering: Vec<&TreeFacts> = facts.trees.iter().filter(|tree| needed.iter().all(|&c| tree.has(c))).collect();
        let readable: Vec<Readable> = covering.iter().map(|tree| tree.readable(1.0)).collect();
        let columns = needed.len() as f64;
        let (cost, scan_penalty) = match self.machine.best_scan(&readable, columns) {
            Some(place) => {
                let tree = covering[place];
                let cost = self.machine.scan_of(tree.readable(fetched(facts.filtered)), columns);
                (cost, penalty(tree.ranges.bounded > 0))
            }
            None => (Cost::default(), 0),
        };
        let base = Plan {
            node: Node::Scan(relation),
            set: bit(relation),
            rows: facts.filtered,
            seconds: self.machine.seconds(cost),
            cost,
            order: None,
            penalty: scan_penalty,
        };
        let mut drivers = Vec::new();
        for (i, tree) in facts.trees.iter().enumerate() {
            let covers = needed.iter().all(|&c| tree.has(c));
            if !covers && tree.ranges.bounded == 0 {
                continue;
            }
            let cost = self.driver_cost(relation, tree, covers, fetched(facts.filtered));
            let access = Access { relation, tree: i, key: Vec::new(), then_table: !covers };
            let column = tree.key().get(tree.ranges.points).copied();
            drivers.push(Plan {
                node: Node::Driver(access),
                seconds: self.machine.seconds(cost),
                cost,
                order: column.map(|column| ColumnId { relation, column }),
                penalty: penalty(tree.ranges.bounded > 0),
                ..base.clone()
            });
        }
        self.add(base, true, false, true);
        // A null-supplied side is looked up or scanned, but drives nothing.
        let drives = self.graph.relations[relation].outer.is_none();
        for plan in drivers {
            // A plain scan does what a driver alone does, unless there are many ranges to read at once.
            let Node::Driver(access) = &plan.node else { continue };
            let tree = &self.facts.relations[relation].trees[access.tree];
            let useful = access.then_table || tree.ranges.ranges.len() > 1;
            self.add(plan, useful, drives, false);
        }
    }

    fn driver_cost(&self, relation: usize, tree: &TreeFacts, covers: bool, part: f64) -> Cost {
        let facts = &self.facts.relations[relation];
        let range = tree.range;
        let columns = self.needed[relation].iter().filter(|&&c| tree.has(c)).count() as f64;
        let pieces = tree.ranges.ranges.len() as f64;
        let scan = if pieces > 1.0 {
            let start = self.machine.scan(0.0, 0.0, 0.0, 0.0);
            start + self.machine.lookups(&lookups_into(tree, pieces * part, pieces, range.rows / pieces, columns))
        } else {
            self.machine.scan_of(tree.readable(part), columns)
        };
        if covers {
            return scan;
        }
        let table = &facts.trees[0];
        let found = facts.rows * tree.passing * part;
        let clustered = tree.key().get(tree.ranges.points) == table.key().first();
        let columns = self.needed[relation].len() as f64;
        scan + self.machine.lookups(&Lookups { clustered, ..lookups_into(table, found, found, 1.0, columns) })
    }

    /// Tries every way to put a set together from two plans.
    fn split(&mut self, set: Set) {
        if !self.is_valid(set) {
            return;
        }
        let connected = self.is_connected(set);
        let rows = self.facts.rows(self.graph, set);
        // Every split once: the first part has the lowest relation.
        let low = set & set.wrapping_neg();
        let rest = set & !low;
        let mut part = rest;
        loop {
            part = part.wrapping_sub(1) & rest;
            let (a, b) = (low | part, rest & !part);
            if self.is_valid(a) && self.is_valid(b) && (!connected || self.are_joined(a, b)) {
                self.combine(a, b, rows);
            }
            if part == 0 {
                break;
            }
        }
    }

    /// Merges the pair whose join is the smallest, again and again.
    fn merge_greedily(&mut self) {
        let mut sets: Vec<Set> = (0..self.graph.relations.len()).map(bit).collect();
        while sets.len() > 1 {
            let mut choice: Option<(bool, f64, usize, usize)> = None;
            for i in 0..sets.len() {
                for j in i + 1..sets.len() {
                    if !self.is_valid(sets[i] | sets[j]) {
                        continue;
                    }
                    let apart = !self.are_joined(sets[i], sets[j]);
                    let rows = self.facts.rows(self.graph, sets[i] | sets[j]);
                    if choice.is_none_or(|(known_apart, known, ..)| (apart, rows) < (known_apart, known)) {
                        choice = Some((apart, rows, i, j));
                    }
                }
            }
            let Some((_, rows, i, j)) = choice else { return };
            let (a, b) = (sets[i], sets.swap_remove(j));
            sets[i] = a | b;
            self.combine(a, b, rows);
        }
    }

    /// Whether a set of relations can be joined by itself: what a left join supplies needs what it is joined to.
    fn is_valid(&self, set: Set) -> bool {
        let outers = set & self.graph.outers();
        set.count_ones() == 1
            || (set & !outers != 0 && members(outers).all(|outer| self.graph.needs(outer) & !set == 0))
    }

    /// Whether a condition links two sets, directly or by way of a class of equal columns.
    fn are_joined(&self, a: Set, b: Set) -> bool {
        let links = |relations: Set| relations & a != 0 && relations & b != 0;
        let by_class = |class: &Vec<ColumnId>| links(class.iter().fold(0, |set, c| set | bit(c.relation)));
        let whole = a | b;
        self.graph.predicates.iter().any(|p| !p.late && p.relations & !whole == 0 && links(p.relations))
            || self.facts.classes.iter().any(by_class)
            || members(whole & self.graph.outers()).any(|outer| links(self.graph.needs(outer) | bit(outer)))
    }

    fn is_connected(&self, set: Set) -> bool {
        let mut reached = set & set.wrapping_neg();
        while let Some(next) = members(set & !reached).find(|&r| self.are_joined(reached, bit(r))) {
            reached |= bit(next);
        }
        reached == set
    }

    fn combine(&mut self, a: Set, b: Set, rows: f64) {
        let best = |set: Set, search: &Self| search.best.get(&set).copied().unwrap_or_default();
        for (first, second) in [(a, b), (b, a)] {
            if second.count_ones() == 1
                && let Some(pipeline) = best(first, self).pipeline
            {
                self.steps(pipeline, second.trailing_zeros() as usize, rows);
            }
        }
        let (x, y) = (best(a, self), best(b, self));
        self.hash(x.any, y.any, rows, false);
        self.hash(x.hash, y.hash, rows, true);
    }

    fn hash(&mut self, a: Option<usize>, b: Option<usize>, rows: f64, is_hash: bool) {
        let (Some(a), Some(b)) = (a, b) else { return };
        let alone = |plan: usize| {
            let set = self.plans[plan].set;
            set.count_ones() == 1 && set & self.graph.outers() != 0
        };
        let outer = alone(a) || alone(b);
        let swap = if outer { alone(a) } else { self.plans[a].rows > self.plans[b].rows };
        let (left, right) = if swap { (b, a) } else { (a, b) };
        let (l, r) = (&self.plans[left], &self.plans[right]);
        let keyless = !self.has_equality(l.set, r.set);
        let own = self.machine.hash_join(l.rows.min(r.rows), l.rows.max(r.rows), rows, keyless);
        let plan = Plan {
            node: Node::Hash { left, right, outer },
            set: l.set | r.set,
            rows,
            seconds: l.seconds + r.seconds + self.machine.seconds(own),
            cost: Cost::default(),
            order: None,
            penalty: l.penalty + r.penalty + usize::from(self.mode == JoinMode::Index),
        };
        self.add(plan, !is_hash, false, is_hash);
    }

    fn has_equality(&self, a: Set, b: Set) -> bool {
        let links = |(x, y): (Set, Set)| (x & !a == 0 && y & !b == 0) || (x & !b == 0 && y & !a == 0);
        let predicates = self.graph.predicates.iter().filter_map(|p| p.sides);
        let outers = members((a | b) & self.graph.outers());
        let on = outers.flat_map(|outer| self.graph.relations[outer].outer.iter().flatten());
        predicates.chain(on.filter_map(|expr| self.graph.sides(expr))).any(links)
    }

    /// Extends a pipeline by a relation, by way of each of its trees that can be looked up.
    fn steps(&mut self, pipeline: usize, relation: usize, rows: f64) {
        let facts = &self.facts.relations[relation];
        for (i, tree) in facts.trees.iter().enumerate() {
            let set = self.plans[pipeline].set;
            let Some(key) = key_of(self.graph, self.facts, relation, tree, set) else { continue };
            let then_table = !self.needed[relation].iter().all(|&c| tree.has(c));
            if then_table && !self.outer_is_decided_by(relation, tree, &key) {
                continue;
            }
            let input = &self.plans[pipeline];
            let cost = input.cost + self.step_cost(input, relation, tree, &key, then_table, rows);
            let access = Access { relation, tree: i, key, then_table };
            let plan = Plan {
                node: Node::Step(pipeline, access),
                set: set | bit(relation),
                rows,
                seconds: self.machine.seconds(cost),
                cost,
                order: input.order,
                penalty: input.penalty,
            };
            self.add(plan, true, true, false);
        }
    }

    /// A left join through an index and then the table must know at the index whether a row matches.
    fn outer_is_decided_by(&self, relation: usize, tree: &TreeFacts, key: &[KeySource]) -> bool {
        let Some(on) = &self.graph.relations[relation].outer else { return true };
        on.iter().all(|expr| {
            let own = self.graph.columns_of(expr).into_iter().filter(|c| c.relation == relation);
            own.into_iter().all(|c| tree.has(c.column)) || is_implied(self.graph, relation, tree, key, expr)
        })
    }

    fn step_cost(
        &self,
        input: &Plan,
        relation: usize,
        tree: &TreeFacts,
        key: &[KeySource],
        then_table: bool,
        rows: f64,
    ) -> Cost {
        let facts = &self.facts.relations[relation];
        let sources = key.iter().filter_map(|source| match source {
            KeySource::Column(column) => Some(self.facts.distinct(*column)),
            KeySource::Constant(_) => None,
        });
        let distinct = sources.product::<f64>().min(input.rows);
        let matches = self.facts.matches(relation, tree, key.len());
        let first = key.iter().find_map(|source| match source {
            KeySource::Column(column) => Some(*column),
            KeySource::Constant(_) => None,
        });
        let clustered = match (input.order, first) {
            (Some(order), Some(first)) => order == first || self.same_class(order, first),
            _ => false,
        };
        let needed = &self.needed[relation];
        let columns = needed.iter().filter(|&&c| tree.has(c)).count() as f64;
        let cost =
            self.machine.lookups(&Lookups { clustered, ..lookups_into(tree, input.rows, distinct, matches, columns) });
        if !then_table {
            return cost;
        }
        let table = &facts.trees[0];
        let found = (input.rows * matches * tree.passing).max(rows.min(input.rows * matches));
        let rows_distinct = found.min(facts.rows);
        cost + self.machine.lookups(&lookups_into(table, found, rows_distinct, 1.0, needed.len() as f64))
    }

    fn same_class(&self, a: ColumnId, b: ColumnId) -> bool {
        self.facts.classes.iter().any(|class| class.contains(&a) && class.contains(&b))
    }
}

fn lookups_into(tree: &TreeFacts, count: f64, distinct: f64, matches: f64, columns: f64) -> Lookups {
    Lookups {
        count,
        distinct,
        matches,
        tree_rows: tree.total.rows,
        tree_pages: tree.total.pages,
        page_bytes: tree.page_bytes(),
        cached: tree.cached,
        clustered: false,
        columns,
    }
}

/// The columns of each relation that anything looks at.
fn needed(graph: &Graph) -> Vec<Vec<usize>> {
    let on = graph.relations.iter().flat_map(|relation| relation.outer.iter().flatten());
    let exprs = graph.output.iter().chain(graph.predicates.iter().map(|predicate| &predicate.expr)).chain(on);
    let mut needed = vec![Vec::new(); graph.relations.len()];
    for column in exprs.flat_map(|expr| graph.columns_of(expr)) {
        needed[column.relation].push(column.column);
    }
    for columns in &mut needed {
        columns.sort_unstable();
        columns.dedup();
    }
    needed
}

/// Values for leading key columns of a tree: columns of `set` that are equal to them, and constants. None unless at least
/// one is a column.
fn key_of(graph: &Graph, facts: &Facts, relation: usize, tree: &TreeFacts, set: Set) -> Option<Vec<KeySource>> {
    let mut key = Vec::new();
    for (place, &column) in tree.key().iter().enumerate() {
        let ty = tree.view.schema().columns()[place].ty;
        // Engines disagree on which floats are equal.
        if matches!(ty, ColumnType::Float32 | ColumnType::Float64) {
            break;
        }
        let id = ColumnId { relation, column };
        let source = match equal_column(graph, facts, id, set) {
            Some(column) => KeySource::Column(column),
            None => match constant(graph, id, ty) {
                Some(constant) => KeySource::Constant(constant),
                None => break,
            },
        };
        key.push(source);
    }
    // Constants behind the last column narrow the lookup; constants alone are no join.
    key.iter().any(|source| matches!(source, KeySource::Column(_))).then_some(key)
}

/// A column of `set` that is equal to `id` in every row of the join.
fn equal_column(graph: &Graph, facts: &Facts, id: ColumnId, set: Set) -> Option<ColumnId> {
    match &graph.relations[id.relation].outer {
        None => {
            let class = facts.classes.iter().find(|class| class.contains(&id))?;
            class.iter().copied().find(|c| set & bit(c.relation) != 0)
        }
        Some(on) => on.iter().filter_map(|expr| graph.equality(expr)).find_map(|(a, b)| {
            let other = if a == id {
                b
            } else if b == id {
                a
            } else {
                return None;
            };
            (set & bit(other.relation) != 0 && graph.data_type(a) == graph.data_type(b)).then_some(other)
        }),
    }
}

/// The one value that the relation's own filters leave of a column.
fn constant(graph: &Graph, id: ColumnId, ty: ColumnType) -> Option<ScalarValue> {
    let filters: Vec<&Expr> = local_filters(graph, id.relation).into_iter().map(|(_, filter)| filter).collect();
    let is_column = |name: &Column| graph.column(name) == Some(id);
    match value_intervals(ty, &filters, &is_column)?.as_slice() {
        [(std::ops::Bound::Included(low), std::ops::Bound::Included(high))] if low == high && !low.is_null() => {
            Some(low.clone())
        }
        _ => None,
    }
}

/// Whether a condition is an equality that a lookup by `key` guarantees.
pub(super) fn is_implied(graph: &Graph, relation: usize, tree: &TreeFacts, key: &[KeySource], expr: &Expr) -> bool {
    let Some((a, b)) = graph.equality(expr) else { return false };
    key.iter().zip(tree.key()).any(|(source, &column)| {
        let own = ColumnId { relation, column };
        match source {
            KeySource::Column(other) => (own, *other) == (a, b) || (*other, own) == (a, b),
            KeySource::Constant(_) => false,
        }
    })
}
