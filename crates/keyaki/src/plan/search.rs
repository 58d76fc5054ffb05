//! The search for the cheapest join order of a graph.
//!
//! Dynamic programming over sets of relations, or greedy merging for more than [`EXHAUSTIVE_MAX`] relations. The search
//! keeps up to three plans per set: the cheapest one, the cheapest one that is a single *pipeline* (only pipelines can
//! be extended by lookup steps), and the cheapest one of scans and hash joins, for comparison in EXPLAIN.
//!
//! A lookup step extends a pipeline by one relation through a tree whose leading key columns are equal to columns of
//! the pipeline or to constants. If that tree is a non-covering index, a table lookup follows. The rows of any other plan
//! can drive a pipeline, too. All other joins are hash joins.
//!
//! A pipeline reads one database. In a query of several databases, the rows of a pipeline can drive a pipeline of another
//! one, as those of any plan, and the search keeps the cheapest pipeline of each database.
//!
//! Invariants: a plan's inputs precede it in the list of plans. An outer relation never drives a pipeline that is
//! extended, and it joins only after all relations that its ON uses.

use std::collections::HashMap;
use std::sync::Arc;

use datafusion::common::{Column, ScalarValue};
use datafusion::logical_expr::Expr;
use keyaki_store::ColumnType;

use super::facts::{Facts, RelationFacts, TreeFacts, local_filters};
use super::graph::{ColumnId, Graph, RelationSet, bit, members};
use crate::JoinMode;
use crate::table::cost::{Cost, Lookups, Machine, Readable};
use crate::table::ranges::value_intervals;
use crate::table::{Distribution, PlanContext};

/// Seconds for each row that another operator passes to a pipeline: one thread encodes and sorts the keys.
const PUSH_SECONDS: f64 = 3e-7;
/// Maximum number of relations for the exhaustive search.
const EXHAUSTIVE_MAX: usize = 11;
/// Pipelines read the first databases of a query only; the tables of others are scanned.
const DATABASES_MAX: usize = 3;

/// Source of one key column of a lookup.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum KeySource {
    Column(ColumnId),
    Constant(ScalarValue),
}

/// The access path to one relation in a pipeline.
#[derive(Debug, Clone)]
pub(super) struct Access {
    pub relation: usize,
    /// Index into the relation's trees.
    pub tree: usize,
    /// Sources of the leading key columns of the tree; empty for the driver.
    pub key: Vec<KeySource>,
    /// A table lookup follows: the tree is a non-covering index.
    pub then_table: bool,
}

/// Root operator of a plan. Inputs are indices into the list of plans.
#[derive(Debug, Clone)]
pub(super) enum Node {
    /// The relation as DataFusion plans it.
    Scan(usize),
    /// The driver of a pipeline.
    Driver(Access),
    /// A plan whose rows are the driver of a pipeline.
    Input(usize),
    /// A pipeline extended by a lookup step.
    Step(usize, Access),
    /// A hash join. `left` has fewer estimated rows or, if `outer`, is the preserved side.
    Hash { left: usize, right: usize, outer: bool },
}

/// A plan for a set of relations, with its estimates.
#[derive(Debug, Clone)]
pub(super) struct Plan {
    pub node: Node,
    /// Relations that the plan joins.
    pub set: RelationSet,
    /// Estimated rows.
    pub rows: f64,
    /// Estimated elapsed seconds.
    pub seconds: f64,
    /// Accumulated cost of the accesses of a pipeline; zero for hash joins.
    cost: Cost,
    /// Estimated elapsed seconds of the input of a pipeline.
    pub input_seconds: f64,
    /// The key column of a pipeline's driver after the columns bound to points: rows of the driver arrive about in its
    /// order.
    order: Option<ColumnId>,
    /// The database that a pipeline reads, if its next step cannot be one of any database.
    database: Option<usize>,
    /// How much longer a pipeline takes than its cost, because fewer machines execute it than scans.
    slowdown: f64,
    /// Under [`JoinMode::Index`], the number of hash joins and of accesses that ignore the available key ranges;
    /// otherwise 0. Takes precedence over `seconds`.
    penalty: usize,
}

/// The cheapest plans of a set, as indices into the list of plans.
#[derive(Debug, Clone, Copy, Default)]
struct Best {
    any: Option<usize>,
    /// A single pipeline of each database, and at last one whose database the next step decides.
    pipelines: [Option<usize>; DATABASES_MAX + 1],
    /// Scans and hash joins only.
    hash: Option<usize>,
}

/// Result of a search.
#[derive(Debug)]
pub(super) struct SearchResult {
    pub plans: Vec<Plan>,
    /// The cheapest plan for all relations.
    pub root: usize,
    best: HashMap<RelationSet, Best>,
}

impl SearchResult {
    /// Estimated elapsed seconds of the cheapest plan of scans and hash joins for a set of relations.
    pub fn without_seconds(&self, set: RelationSet) -> Option<f64> {
        Some(self.plans[self.best.get(&set)?.hash?].seconds)
    }

    /// True if a plan contains a pipeline.
    pub fn has_pipeline(&self, plan: usize) -> bool {
        match &self.plans[plan].node {
            Node::Scan(_) => false,
            Node::Driver(_) | Node::Input(_) | Node::Step(..) => true,
            Node::Hash { left, right, .. } => self.has_pipeline(*left) || self.has_pipeline(*right),
        }
    }
}

/// State of a search.
pub(super) struct Search<'a> {
    graph: &'a Graph,
    facts: &'a Facts,
    /// The machine of the cost model for each database. The first one is that of the session.
    machines: Vec<Machine>,
    /// The database of each relation; `None` for one that is no table, or beyond [`DATABASES_MAX`].
    databases: Vec<Option<usize>>,
    mode: JoinMode,
    distribution: Option<Arc<Distribution>>,
    /// Columns of each relation that the query uses, in ascending order.
    needed: Vec<Vec<usize>>,
    plans: Vec<Plan>,
    best: HashMap<RelationSet, Best>,
}

impl<'a> Search<'a> {
    /// `facts` belong to `graph`. `context` is that of the session.
    pub fn new(graph: &'a Graph, facts: &'a Facts, context: &PlanContext) -> Self {
        let mut contexts = vec![context];
        let databases = graph.relations.iter().map(|relation| {
            let own = &relation.table()?.context;
            let known = contexts.iter().position(|known| known.is_of(own));
            known.or_else(|| {
                contexts.push(own);
                Some(contexts.len() - 1)
            })
        });
        let databases: Vec<Option<usize>> = databases.collect();
        contexts.truncate(DATABASES_MAX);
        Search {
            databases: databases.into_iter().map(|place| place.filter(|&place| place < contexts.len())).collect(),
            machines: contexts.into_iter().map(PlanContext::machine).collect(),
            graph,
            facts,
            mode: context.options.join,
            distribution: context.distribution.clone(),
            needed: needed(graph, |_| true),
            plans: Vec::new(),
            best: HashMap::new(),
        }
    }

    /// The machine that reads a relation.
    fn machine(&self, relation: usize) -> &Machine {
        &self.machines[self.databases[relation].unwrap_or(0)]
    }

    /// How much longer a pipeline takes than its cost if its driver has this number of rows.
    fn slowdown(&self, rows: f64) -> f64 {
        self.distribution.as_ref().map_or(1.0, |shared| {
            let workers = shared.workers as f64;
            workers / (rows / shared.split.driver_rows).clamp(1.0, workers)
        })
    }

    /// True if pipelines read several databases.
    fn has_several_databases(&self) -> bool {
        self.machines.len() > 1
    }

    /// The place of a pipeline in [`Best::pipelines`].
    fn place(&self, database: Option<usize>) -> usize {
        let undecided = if self.has_several_databases() { DATABASES_MAX } else { 0 };
        database.unwrap_or(undecided)
    }

    /// Searches. Returns `None` if greedy merging finds no pair of sets to join.
    pub fn run(mut self) -> Option<SearchResult> {
        let count = self.graph.relations.len();
        for relation in 0..count {
            self.add_relation(relation);
        }
        let all = self.graph.all();
        if count <= EXHAUSTIVE_MAX {
            for set in (1..=all).filter(|set| set.count_ones() > 1) {
                self.combine_subsets(set);
            }
        } else {
            self.merge_greedily();
        }
        let root = self.best.get(&all)?.any?;
        Some(SearchResult { root, plans: self.plans, best: self.best })
    }

    /// Offers a plan for the selected categories; keeps it if it is the cheapest of one. Returns its index if so.
    fn add(&mut self, plan: Plan, is_any: bool, is_pipeline: bool, is_hash: bool) -> Option<usize> {
        let index = self.plans.len();
        let mut best = self.best.get(&plan.set).copied().unwrap_or_default();
        let better = |known: Option<usize>| {
            known.is_none_or(|known| {
                let known = &self.plans[known];
                (plan.penalty, plan.seconds) < (known.penalty, known.seconds)
            })
        };
        let place = self.place(plan.database);
        let slots = [(is_any, &mut best.any), (is_pipeline, &mut best.pipelines[place]), (is_hash, &mut best.hash)];
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
            // The steps that follow may read another database.
            if is_any && is_pipeline && self.has_several_databases() {
                self.add_input(index);
            }
        }
        used.then_some(index)
    }

    /// Adds the pipeline that a plan drives.
    fn add_input(&mut self, plan: usize) {
        let input = self.plans[plan].clone();
        // An input without rows would cost nothing, however much its rows find.
        let rows = input.rows.max(1.0);
        let (node, input_seconds) = (Node::Input(plan), input.seconds + rows * PUSH_SECONDS);
        let slowdown = self.slowdown(rows);
        let plan =
            Plan { node, rows, input_seconds, cost: Cost::default(), order: None, database: None, slowdown, ..input };
        self.add(plan, false, true, false);
    }

    /// Adds the plans of one relation: a scan, and a driver for each usable access path.
    fn add_relation(&mut self, relation: usize) {
        let facts = &self.facts.relations[relation];
        let bounded = facts.trees.iter().any(|tree| tree.ranges.bounded > 0);
        let penalty = |bounded_here: bool| usize::from(self.mode == JoinMode::Index && bounded && !bounded_here);
        let needed = &self.needed[relation];
        let alone = self.graph.relations.len() == 1;
        let fetched = |rows: f64| match self.graph.fetch {
            Some(fetch) if alone => (fetch as f64 / rows.max(1.0)).min(1.0),
            _ => 1.0,
        };
        // The access path that the table provider would choose.
        let covering: Vec<&TreeFacts> = facts.trees.iter().filter(|tree| self.covers(relation, tree)).collect();
        let readable: Vec<Readable> = covering.iter().map(|tree| tree.readable(1.0)).collect();
        let columns = needed.len() as f64;
        let (cost, scan_penalty) = match self.machine(relation).best_scan(&readable, columns) {
            Some(place) => {
                let tree = covering[place];
                let cost = self.machine(relation).scan_of(tree.readable(fetched(facts.filtered)), columns);
                (cost, penalty(tree.ranges.bounded > 0))
            }
            None => (Cost::default(), 0),
        };
        let base = Plan {
            node: Node::Scan(relation),
            set: bit(relation),
            rows: facts.filtered,
            seconds: self.machine(relation).seconds(cost),
            cost,
            input_seconds: 0.0,
            order: None,
            database: self.databases[relation],
            slowdown: 1.0,
            penalty: scan_penalty,
        };
        let mut drivers = Vec::new();
        let trees = if self.databases[relation].is_some() { facts.trees.as_slice() } else { &[] };
        for (i, tree) in trees.iter().enumerate() {
            let covers = self.covers(relation, tree);
            // The table has the same rows, unless the index is partial.
            if !covers && tree.ranges.bounded == 0 && !tree.partial {
                continue;
            }
            let cost = self.driver_cost(relation, tree, covers, fetched(facts.filtered));
            let access = Access { relation, tree: i, key: Vec::new(), then_table: !covers };
            let column = tree.key().get(tree.ranges.points).copied();
            let slowdown = self.slowdown(tree.range.rows);
            drivers.push(Plan {
                node: Node::Driver(access),
                seconds: self.machine(relation).seconds(cost) * slowdown,
                slowdown,
                cost,
                order: column.map(|column| ColumnId { relation, column }),
                penalty: penalty(tree.ranges.bounded > 0),
                ..base.clone()
            });
        }
        // An outer relation is scanned or looked up; it never drives a pipeline with lookup steps.
        let drives = self.graph.relations[relation].outer.is_none();
        let drives_by_scan = trees.is_empty() || self.has_several_databases();
        let scan = self.add(base, true, false, true);
        // A tree drives pipelines of its database itself.
        if let Some(scan) = scan.filter(|_| drives && drives_by_scan) {
            self.add_input(scan);
        }
        for plan in drivers {
            // A driver alone equals a scan, unless a table lookup follows or it reads several ranges concurrently.
            let Node::Driver(access) = &plan.node else { continue };
            let tree = &self.facts.relations[relation].trees[access.tree];
            let useful = access.then_table || tree.ranges.ranges.len() > 1;
            self.add(plan, useful, drives, false);
        }
    }

    /// True if a tree has all columns of its relation that the query uses. The columns of a condition that holds for all
    /// rows of a partial index are not read.
    fn covers(&self, relation: usize, tree: &TreeFacts) -> bool {
        let has_all = |columns: &[usize]| columns.iter().all(|&column| tree.has(column));
        if has_all(&self.needed[relation]) || !tree.partial || self.graph.relations[relation].outer.is_some() {
            return has_all(&self.needed[relation]);
        }
        let RelationFacts { locals, .. } = &self.facts.relations[relation];
        let implied =
            |place: usize| locals.iter().zip(&tree.implied).any(|(&local, implied)| local == place && *implied);
        has_all(&needed(self.graph, |place| !implied(place))[relation])
    }

    /// Cost of reading the fraction `part` of a tree's ranges, with table lookups if the tree does not cover the query.
    fn driver_cost(&self, relation: usize, tree: &TreeFacts, covers: bool, part: f64) -> Cost {
        let (facts, machine) = (&self.facts.relations[relation], self.machine(relation));
        let range = tree.range;
        let columns = self.needed[relation].iter().filter(|&&c| tree.has(c)).count() as f64;
        let pieces = tree.ranges.ranges.len() as f64;
        let scan = if pieces > 1.0 {
            let start = machine.scan(0.0, 0.0, 0.0, 0.0);
            start + machine.lookups(&lookups_into(tree, pieces * part, pieces, range.rows / pieces, columns))
        } else {
            machine.scan_of(tree.readable(part), columns)
        };
        if covers {
            return scan;
        }
        let table = &facts.trees[0];
        let found = facts.rows * tree.passing * part;
        let clustered = tree.key().get(tree.ranges.points) == table.key().first();
        let columns = self.needed[relation].len() as f64;
        scan + machine.lookups(&Lookups { clustered, ..lookups_into(table, found, found, 1.0, columns) })
    }

    /// Combines every pair of valid subsets. Avoids cross products if the set is connected by join conditions.
    fn combine_subsets(&mut self, set: RelationSet) {
        if !self.is_valid(set) {
            return;
        }
        let connected = self.is_connected(set);
        let rows = self.facts.rows(self.graph, set);
        // The first part contains the lowest relation, so that each split occurs once.
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

    /// Merges the two sets with the smallest join until one is left. Joins with a condition go before cross products.
    fn merge_greedily(&mut self) {
        let mut sets: Vec<RelationSet> = (0..self.graph.relations.len()).map(bit).collect();
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

    /// True if a set can be joined on its own: it is one relation, or it contains an inner relation and, with each
    /// outer relation, all relations that its ON uses.
    fn is_valid(&self, set: RelationSet) -> bool {
        let outers = set & self.graph.outers();
        set.count_ones() == 1
            || (set & !outers != 0 && members(outers).all(|outer| self.graph.needs(outer) & !set == 0))
    }

    /// True if a predicate, a class of equal columns or an ON condition links two sets.
    fn are_joined(&self, a: RelationSet, b: RelationSet) -> bool {
        let links = |relations: RelationSet| relations & a != 0 && relations & b != 0;
        let by_class = |class: &Vec<ColumnId>| links(class.iter().fold(0, |set, c| set | bit(c.relation)));
        let whole = a | b;
        self.graph.predicates.iter().any(|p| !p.late && p.relations & !whole == 0 && links(p.relations))
            || self.facts.classes.iter().any(by_class)
            || members(whole & self.graph.outers()).any(|outer| links(self.graph.needs(outer) | bit(outer)))
    }

    /// True if join conditions link all relations of a set.
    fn is_connected(&self, set: RelationSet) -> bool {
        let mut reached = set & set.wrapping_neg();
        while let Some(next) = members(set & !reached).find(|&r| self.are_joined(reached, bit(r))) {
            reached |= bit(next);
        }
        reached == set
    }

    /// Adds the plans that join two sets: lookup steps if one set is a single relation, and hash joins.
    fn combine(&mut self, a: RelationSet, b: RelationSet, rows: f64) {
        let best = |set: RelationSet, search: &Self| search.best.get(&set).copied().unwrap_or_default();
        for (first, second) in [(a, b), (b, a)] {
            let relation = second.trailing_zeros() as usize;
            let Some(database) = self.databases[relation].filter(|_| second.count_ones() == 1) else { continue };
            let places = [self.place(Some(database)), self.place(None)];
            for &place in &places[..if self.has_several_databases() { 2 } else { 1 }] {
                if let Some(pipeline) = best(first, self).pipelines[place] {
                    self.add_lookup_steps(pipeline, relation, rows);
                }
            }
        }
        let (x, y) = (best(a, self), best(b, self));
        self.add_hash_join(x.any, y.any, rows, false);
        self.add_hash_join(x.hash, y.hash, rows, true);
    }

    /// Adds a hash join. `is_hash` restricts it to the category of scans and hash joins.
    fn add_hash_join(&mut self, a: Option<usize>, b: Option<usize>, rows: f64, is_hash: bool) {
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
        let own = self.machines[0].hash_join(l.rows.min(r.rows), l.rows.max(r.rows), rows, keyless);
        let plan = Plan {
            node: Node::Hash { left, right, outer },
            set: l.set | r.set,
            rows,
            seconds: l.seconds + r.seconds + self.machines[0].seconds(own),
            cost: Cost::default(),
            input_seconds: 0.0,
            order: None,
            database: None,
            slowdown: 1.0,
            penalty: l.penalty + r.penalty + usize::from(self.mode == JoinMode::Index),
        };
        let added = self.add(plan, !is_hash, false, is_hash);
        if let Some(added) = added.filter(|_| !is_hash) {
            self.add_input(added);
        }
    }

    /// True if a hash join of two sets has a key; otherwise it compares all pairs of rows.
    fn has_equality(&self, a: RelationSet, b: RelationSet) -> bool {
        let links = |(x, y): (RelationSet, RelationSet)| (x & !a == 0 && y & !b == 0) || (x & !b == 0 && y & !a == 0);
        let predicates = self.graph.predicates.iter().filter_map(|p| p.sides);
        let outers = members((a | b) & self.graph.outers());
        let on = outers.flat_map(|outer| self.graph.relations[outer].on());
        predicates.chain(on.filter_map(|expr| self.graph.sides(expr))).any(links)
    }

    /// Extends a pipeline by a relation, once for each of its trees that allows a lookup.
    fn add_lookup_steps(&mut self, pipeline: usize, relation: usize, rows: f64) {
        let facts = &self.facts.relations[relation];
        for (i, tree) in facts.trees.iter().enumerate() {
            let set = self.plans[pipeline].set;
            let Some(key) = key_of(self.graph, self.facts, relation, tree, set) else { continue };
            let then_table = !self.covers(relation, tree);
            // Semi and anti joins use the columns of their conditions only.
            let is_existence = self.graph.relations[relation].is_existence();
            if then_table && (is_existence || !self.outer_is_decided_by(relation, tree, &key)) {
                continue;
            }
            let input = &self.plans[pipeline];
            let cost = input.cost + self.step_cost(input, relation, tree, &key, then_table, rows);
            let access = Access { relation, tree: i, key, then_table };
            let plan = Plan {
                node: Node::Step(pipeline, access),
                set: set | bit(relation),
                rows,
                seconds: input.input_seconds + self.machine(relation).seconds(cost) * input.slowdown,
                slowdown: input.slowdown,
                cost,
                input_seconds: input.input_seconds,
                order: input.order,
                database: self.databases[relation],
                penalty: input.penalty,
            };
            self.add(plan, true, true, false);
        }
    }

    /// True if the index alone decides which rows match. A left join by an index lookup and a table lookup requires it,
    /// because the index step emits the row with nulls if there is no match.
    fn outer_is_decided_by(&self, relation: usize, tree: &TreeFacts, key: &[KeySource]) -> bool {
        self.graph.relations[relation].on().iter().all(|expr| {
            let own = self.graph.columns_of(expr).into_iter().filter(|c| c.relation == relation);
            own.into_iter().all(|c| tree.has(c.column)) || is_implied(self.graph, relation, tree.key(), key, expr)
        })
    }

    /// Cost of a lookup step, including the table lookup that follows.
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
        let matches = self.facts.rows_per_lookup(relation, tree, key.len());
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
        let machine = self.machine(relation);
        let cost =
            machine.lookups(&Lookups { clustered, ..lookups_into(tree, input.rows, distinct, matches, columns) });
        if !then_table {
            return cost;
        }
        let table = &facts.trees[0];
        let passing = (tree.passing * facts.rows / tree.rows_of(facts.rows)).min(1.0);
        let found = (input.rows * matches * passing).max(rows.min(input.rows * matches));
        let rows_distinct = found.min(facts.rows);
        cost + machine.lookups(&lookups_into(table, found, rows_distinct, 1.0, needed.len() as f64))
    }

    /// True if predicates make two columns equal.
    fn same_class(&self, a: ColumnId, b: ColumnId) -> bool {
        self.facts.classes.iter().any(|class| class.contains(&a) && class.contains(&b))
    }
}

/// Input of the cost model for `count` lookups of `distinct` keys into a tree, each finding `matches` rows.
fn lookups_into(tree: &TreeFacts, count: f64, distinct: f64, matches: f64, columns: f64) -> Lookups {
    Lookups {
        count,
        distinct,
        matches,
        tree_rows: tree.total.rows,
        tree_pages: tree.total.pages,
        page_bytes: tree.page_bytes(),
        cached: tree.cached.whole,
        clustered: false,
        columns,
    }
}

/// Columns of each relation that the output, an ON condition or a predicate uses, in ascending order. `is_used` selects the
/// predicates.
pub(super) fn needed(graph: &Graph, is_used: impl Fn(usize) -> bool) -> Vec<Vec<usize>> {
    let on = graph.relations.iter().flat_map(|relation| relation.on());
    let predicates = graph.predicates.iter().enumerate().filter(|(place, _)| is_used(*place));
    let exprs = graph.output.iter().chain(predicates.map(|(_, predicate)| &predicate.expr)).chain(on);
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

/// Sources for the leading key columns of a tree: equal columns of `set`, or constants. Returns `None` unless at least
/// one source is a column.
fn key_of(graph: &Graph, facts: &Facts, relation: usize, tree: &TreeFacts, set: RelationSet) -> Option<Vec<KeySource>> {
    let mut key = Vec::new();
    for (place, &column) in tree.key().iter().enumerate() {
        let ty = tree.view.schema().columns()[place].ty;
        // No lookups by floats: operators and key encodings may disagree on the equality of -0, 0 and NaN.
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
    // Constants narrow the lookup, but a key of constants alone is not a join.
    key.iter().any(|source| matches!(source, KeySource::Column(_))).then_some(key)
}

/// A column of `set` that is equal to `id` in every matching row of the join.
fn equal_column(graph: &Graph, facts: &Facts, id: ColumnId, set: RelationSet) -> Option<ColumnId> {
    match &graph.relations[id.relation].outer {
        None => {
            let class = facts.classes.iter().find(|class| class.contains(&id))?;
            class.iter().copied().find(|c| set & bit(c.relation) != 0)
        }
        Some(outer) => outer.on.iter().filter_map(|expr| graph.equality(expr)).find_map(|(a, b)| {
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

/// The value of a column, if the relation's own filters fix it to one value other than null.
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

/// True if a condition is an equality that a lookup by `key` implies. `tree_key` are the key columns of the tree.
pub(super) fn is_implied(graph: &Graph, relation: usize, tree_key: &[usize], key: &[KeySource], expr: &Expr) -> bool {
    let Some((a, b)) = graph.equality(expr) else { return false };
    key.iter().zip(tree_key).any(|(source, &column)| {
        let own = ColumnId { relation, column };
        match source {
            KeySource::Column(other) => (own, *other) == (a, b) || (*other, own) == (a, b),
            KeySource::Constant(_) => false,
        }
    })
}
