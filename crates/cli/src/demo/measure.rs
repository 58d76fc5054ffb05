//! Runs the query at several selectivities, cold, in order and out of order.

use arrow::array::{Array, AsArray};
use arrow::datatypes::{Decimal128Type, Int64Type};
use keyaki::{Database, Session};
use keyaki_exec::{Sample, StatsSnapshot};

use crate::arguments::DemoArguments;
use crate::bars::Bars;
use crate::failure::{Failure, Result};

/// Fractions of the customers.
const SELECTIVITIES: [f64; 5] = [1e-6, 1e-5, 1e-4, 1e-3, 1e-2];
/// Expected factor between the in-order times of successive workloads, each of which has ten times the customers of the one
/// before.
const STEP: f64 = 10.0;

/// One range of balances.
#[derive(Debug, Clone)]
pub struct Workload {
    pub selectivity: f64,
    /// Bounds in cents, both inclusive.
    low: i128,
    high: i128,
}

impl Workload {
    /// `0.001 %`.
    pub fn share(&self) -> String {
        format!("{} %", (self.selectivity * 1e8).round() / 1e6)
    }

    fn sql(&self) -> String {
        format!(
            "SELECT count(*), sum(l_quantity) FROM customer JOIN orders ON c_custkey = o_custkey \
             JOIN lineitem ON o_orderkey = l_orderkey WHERE c_acctbal BETWEEN {} AND {}",
            decimal(self.low),
            decimal(self.high)
        )
    }
}

/// A number of cents as SQL.
fn decimal(cents: i128) -> String {
    let sign = if cents < 0 { "-" } else { "" };
    format!("{sign}{}.{:02}", cents.unsigned_abs() / 100, cents.unsigned_abs() % 100)
}

/// One run's answer and figures.
#[derive(Debug, Clone)]
pub struct Run {
    answer: (i64, Option<i128>),
    /// By the device's clock, which is virtual for a simulated device.
    pub seconds: f64,
    pub pages_read: u64,
    pub reads: u64,
    /// Time from the first task to the last row of the longest pipeline or scan.
    pub executor_seconds: f64,
    pub in_flight_max: u64,
    pub timeline: Vec<Sample>,
    pub timeline_ns: u64,
}

impl Run {
    pub fn rows(&self) -> i64 {
        self.answer.0
    }
    /// Pages per second. A read of several neighbouring pages counts each page.
    pub fn page_rate(&self) -> f64 {
        if self.executor_seconds > 0.0 { self.pages_read as f64 / self.executor_seconds } else { 0.0 }
    }
}

#[derive(Debug, Clone)]
pub struct Comparison {
    pub workload: Workload,
    pub out_of_order: Run,
    /// An error is a skipped run: the seconds it was expected to take exceed `--max-seconds`.
    pub in_order: std::result::Result<Run, f64>,
}

impl Comparison {
    fn in_order_seconds(&self) -> f64 {
        self.in_order.as_ref().map_or_else(|&expected| expected, |run| run.seconds)
    }
}

pub async fn customers(database: &Database) -> Result<u64> {
    let batches = database.session().query("SELECT count(*) FROM customer").await?.collect().await?;
    let count = batches.first().map(|batch| batch.column(0).as_primitive::<Int64Type>().value(0));
    Ok(count.unwrap_or(0).unsigned_abs())
}

/// Ranges that begin at different balances and hold the given fraction of the customers, at least one customer. The first
/// customer of each range has orders: in TPC-H, customers whose key is a multiple of three have none.
pub async fn workloads(database: &Database, customers: u64) -> Result<Vec<Workload>> {
    let session = database.session();
    let mut workloads = Vec::new();
    for (number, selectivity) in SELECTIVITIES.into_iter().enumerate() {
        let wanted = ((customers as f64 * selectivity).round() as u64).max(1);
        let from = decimal((number as i128) * 100_000);
        let first = format!("SELECT min(c_acctbal) FROM customer WHERE c_acctbal >= {from} AND c_custkey % 3 <> 0");
        let low = balance(&session, &first).await?;
        let last = format!(
            "SELECT max(b) FROM (SELECT c_acctbal AS b FROM customer WHERE c_acctbal >= {} ORDER BY b LIMIT {wanted})",
            decimal(low)
        );
        let high = balance(&session, &last).await?;
        workloads.push(Workload { selectivity, low, high });
    }
    Ok(workloads)
}

/// The only value of a query's result, in cents.
async fn balance(session: &Session, sql: &str) -> Result<i128> {
    let batches = session.query(sql).await?.collect().await?;
    let values = batches.first().and_then(|batch| batch.column(0).as_primitive_opt::<Decimal128Type>());
    match values {
        Some(values) if values.len() == 1 && values.is_valid(0) => Ok(values.value(0)),
        _ => Err(Failure::message("too few customers (raise --scale)")),
    }
}

/// Runs a workload in both modes. `previous` is the workload with a tenth of the customers.
pub async fn run(
    database: &Database,
    workload: Workload,
    previous: Option<&Comparison>,
    arguments: &DemoArguments,
) -> Result<Comparison> {
    let bars = Bars::new();
    bars.status(format!("{} of customers, out of order", workload.share()));
    let out_of_order = median(database, &workload, "out_of_order", arguments.runs).await?;
    let expected = previous.map_or(0.0, |previous| previous.in_order_seconds() * STEP);
    let in_order = match arguments.max_seconds {
        Some(limit) if expected > limit => Err(expected),
        _ => {
            bars.status(format!("{} of customers, in order", workload.share()));
            Ok(median(database, &workload, "in_order", arguments.runs).await?)
        }
    };
    bars.clear();
    if let Ok(in_order) = &in_order
        && in_order.answer != out_of_order.answer
    {
        return Err(Failure::Message(format!(
            "in-order and out-of-order results differ: {:?} and {:?} for {}",
            in_order.answer,
            out_of_order.answer,
            workload.sql()
        )));
    }
    Ok(Comparison { workload, out_of_order, in_order })
}

/// The run with the median time of `runs` cold runs.
async fn median(database: &Database, workload: &Workload, execution: &str, runs: u16) -> Result<Run> {
    let session = database.session();
    session.execute(&format!("SET keyaki.execution = '{execution}'")).await?;
    session.execute("SET keyaki.join = 'index'").await?;
    let mut measured: Vec<Run> = Vec::new();
    for _ in 0..runs {
        database.drop_caches();
        let run = once(&session, &workload.sql()).await?;
        if measured.first().is_some_and(|first| first.answer != run.answer) {
            return Err(Failure::Message(format!("two runs of the same query differ: {}", workload.sql())));
        }
        measured.push(run);
    }
    measured.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
    let middle = measured.len() / 2;
    Ok(measured.swap_remove(middle))
}

async fn once(session: &Session, sql: &str) -> Result<Run> {
    let device = session.database().store().device().clone();
    let start_ns = device.now_ns();
    let batches = session.query(sql).await?.collect().await?;
    let elapsed_ns = device.now_ns().saturating_sub(start_ns);
    let batch = batches.first().ok_or_else(|| Failure::message("the query returned no row"))?;
    let sum = batch.column(1).as_primitive::<Decimal128Type>();
    let answer = (batch.column(0).as_primitive::<Int64Type>().value(0), (!sum.is_null(0)).then(|| sum.value(0)));
    let stats: Vec<StatsSnapshot> = session.last_stats().iter().map(|(_, stats)| stats.snapshot()).collect();
    let longest = stats.iter().max_by_key(|snapshot| snapshot.elapsed_ns).cloned().unwrap_or_default();
    Ok(Run {
        answer,
        seconds: elapsed_ns as f64 / 1e9,
        pages_read: stats.iter().map(|snapshot| snapshot.pages_read).sum(),
        reads: stats.iter().map(|snapshot| snapshot.reads).sum(),
        executor_seconds: longest.elapsed_ns as f64 / 1e9,
        in_flight_max: stats.iter().map(|snapshot| snapshot.in_flight_max).max().unwrap_or(0),
        timeline: longest.timeline,
        timeline_ns: longest.elapsed_ns,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cents() {
        assert_eq!(decimal(0), "0.00");
        assert_eq!(decimal(-5), "-0.05");
        assert_eq!(decimal(100_000), "1000.00");
        assert_eq!(decimal(-99_999), "-999.99");
    }
}
