//! `keyaki demo`: the experiment of the out-of-order execution paper's figure 4 on generated TPC-H data.
//!
//! Customers with a balance in a narrow range are picked (they lie at random places), their orders, and the items of these:
//! index lookups all the way. Each query runs cold, in order (one read at a time) and out of order (thousands in flight);
//! the answers must agree.

mod measure;
mod prepare;
mod report;
mod simulate;

use keyaki::Database;
use keyaki_device::calibrate::Calibration;

use crate::arguments::DemoArguments;
use crate::failure::Result;

/// What the queries run on.
struct Stage {
    database: Database,
    /// Of the device that the database is on.
    calibration: Calibration,
    /// For headings: `"uring, 2 workers"`.
    description: String,
}

pub async fn run(arguments: &DemoArguments) -> Result<()> {
    let directory = prepare::directory(arguments);
    let stage = prepare::stage(arguments, &directory).await?;
    let stage = match arguments.simulated {
        Some(device) => simulate::stage(stage, device)?,
        None => stage,
    };
    println!("{}\n", stage.description);
    let customers = measure::customers(&stage.database).await?;
    let mut results = Vec::new();
    for workload in measure::workloads(&stage.database, customers).await? {
        let result = measure::run(&stage.database, workload, results.last(), arguments).await?;
        results.push(result);
    }
    let report = report::Report::new(&stage, arguments.scale, &results);
    println!("{}", report.table());
    println!("{}", report.plots());
    if let Some(path) = &arguments.json {
        report.write_json(path)?;
    }
    Ok(())
}
