//! `keyaki demo`: the experiment of the out-of-order execution paper's figure 4 on generated TPC-H data.
//!
//! Each query selects the customers with a balance in a narrow range, who are at random places of the table, and joins their
//! orders and the items of these, all by index lookups. It runs cold, in order (one read at a time) and out of order (thousands
//! of reads in flight). Both answers must agree.

mod measure;
mod pace;
mod prepare;
mod report;
mod simulate;

use keyaki::Database;
use keyaki_device::calibrate::Calibration;

use crate::arguments::DemoArguments;
use crate::failure::Result;

/// The database that the queries run on, and its device.
struct Setup {
    database: Database,
    /// Calibration of the database's device.
    calibration: Calibration,
    /// The device, for the figures in JSON.
    device: String,
    /// One line for the heading.
    description: String,
}

pub async fn run(arguments: &DemoArguments) -> Result<()> {
    let directory = prepare::directory(arguments);
    let database = prepare::database(arguments, &directory).await?;
    let setup = match (arguments.device, arguments.simulated) {
        (Some(device), _) => pace::setup(database, device, arguments)?,
        (None, Some(device)) => simulate::setup(database, device)?,
        (None, None) => prepare::setup(database)?,
    };
    println!("{}\n", setup.description);
    let customers = measure::customers(&setup.database).await?;
    let mut results = Vec::new();
    for workload in measure::workloads(&setup.database, customers).await? {
        let result = measure::run(&setup.database, workload, results.last(), arguments).await?;
        results.push(result);
    }
    let report = report::Report::new(&setup, arguments.scale, &results);
    println!("{}", report.table());
    println!("{}", report.plots());
    if let Some(path) = &arguments.json {
        report.write_json(path)?;
    }
    Ok(())
}
