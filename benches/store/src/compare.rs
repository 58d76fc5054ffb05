//! A run: the cells of all systems and workloads, in processes of their own.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::Result;
use crate::calibration::{Device, IN_FLIGHT};
use crate::cell::{FILES, READY};
use crate::files::tree::Tree;
use crate::metrics::{Figures, KEYS, derive};
use crate::options::{Options, Workload};
use crate::process::{drop_all_caches, drop_page_cache, file_system};
use crate::report;
use crate::system::Name;

/// The directory of a run. It is removed at the end, also after an error.
struct Data(PathBuf);

impl Drop for Data {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.0) {
            eprintln!("{}: {error}", self.0.display());
        }
    }
}

pub fn run(options: &Options) -> Result {
    let data = Data(options.directory.join(format!("run-{}", std::process::id())));
    std::fs::create_dir_all(&data.0)?;
    println!(
        "{} keys of 16 bytes with values of 100 bytes, {} MiB of memory, {} cores. Cold reads: in a new process, after \
         posix_fadvise(DONTNEED) on all files; Keyaki and RocksDB read with O_DIRECT.",
        options.keys,
        options.memory,
        std::thread::available_parallelism()?,
    );
    let schedule = options.schedule();
    if schedule.contains(&Workload::Create) {
        println!(
            "{} files of 200 to {} bytes, {:.0} MB of contents, created in {} order. File system: {}.",
            options.files,
            options.file_bytes,
            Tree::new(options.files, options.file_bytes).bytes() as f64 / 1e6,
            options.order,
            file_system(&data.0)?
        );
    }
    let is_compared_with_device = |workload: &Workload| matches!(workload, Workload::GetMany | Workload::FullScan);
    let device = schedule.iter().any(is_compared_with_device).then(|| Device::measure(&data.0)).transpose()?;
    if let Some(device) = device {
        println!(
            "device: {:.0} reads of 8 KiB per second, {IN_FLIGHT} in flight; {:.0} MB/s in reads of 1 MiB, 8 in flight",
            device.reads,
            device.bandwidth / 1e6
        );
    }

    let mut figures: BTreeMap<Name, Figures> = options.systems.iter().map(|name| (*name, Figures::new())).collect();
    for &workload in &schedule {
        for (&name, figures) in figures.iter_mut().filter(|(name, _)| workload.runs_on(**name)) {
            match run_cell(options, &data.0, name, workload, figures) {
                Ok(line) => println!("{workload}: {}: {line}", name.title()),
                Err(error) => println!("{workload}: {}: failed: {error}", name.title()),
            }
        }
    }
    figures.values_mut().for_each(|figures| derive(figures, device));
    report::print(options, &figures);
    match &options.json {
        Some(path) => Ok(report::rows(options, &figures).write(path)?),
        None => Ok(()),
    }
}

/// Runs a cell and adds its figures. Returns them as a line.
fn run_cell(options: &Options, data: &Path, name: Name, workload: Workload, figures: &mut Figures) -> Result<String> {
    // These workloads start with an empty directory, which no other workload uses.
    let is_separate = matches!(workload, Workload::Writers | Workload::Recover | Workload::Indexes);
    let directory = data.join(match workload {
        _ if is_separate => format!("{name}-{workload}"),
        _ if workload.is_of_files() => format!("{name}-{}", Workload::Files),
        _ => name.to_string(),
    });
    std::fs::create_dir_all(&directory)?;
    let has_data = match workload.base() {
        Some(Workload::Create) => figures.contains_key(&(Workload::Create, FILES.into())),
        Some(_) => figures.contains_key(&(Workload::Insert, KEYS.into())),
        None => true,
    };
    if !has_data {
        return Err("no data: its creation failed".into());
    }
    let keys = figures.get(&(Workload::Insert, KEYS.into())).map_or(options.keys, |&keys| keys as u64);
    let workloads: Vec<String> = options.workloads.iter().map(Workload::to_string).collect();
    let workloads = workloads.join(",");
    let command = |extra: &[&str]| -> Result<Command> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["--cell", &workload.to_string(), "--systems", &name.to_string()]);
        command.args(["--keys", &keys.to_string(), "--memory", &options.memory.to_string()]);
        command.args(["--gets", &options.gets.to_string(), "--scans", &options.scans.to_string()]);
        command.args(["--files", &options.files.to_string(), "--file-bytes", &options.file_bytes.to_string()]);
        command.args(["--order", &options.order.to_string(), "--workloads", &workloads]);
        command.args(["--seconds", &options.seconds.to_string()]).arg("--directory").arg(&directory).args(extra);
        Ok(command)
    };
    if workload == Workload::Recover {
        crash(&mut command(&["--crash"])?)?;
    }
    if name != Name::FileSystem {
        drop_page_cache(&directory)?;
    } else if let Err(error) = drop_all_caches() {
        eprintln!("{workload}: the caches of the file system may be warm: {error}");
    }
    let output = command(&[])?.output()?;
    if !output.status.success() {
        return Err(format!("{} {}", output.status, String::from_utf8_lossy(&output.stderr).trim_end()).into());
    }
    if is_separate {
        std::fs::remove_dir_all(&directory)?;
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let lines = text.lines().filter_map(|line| line.split_once('\t'));
    let new: Vec<(String, f64)> =
        lines.filter_map(|(metric, value)| Some((metric.to_string(), value.parse().ok()?))).collect();
    let line = new.iter().map(|(metric, value)| format!("{metric} {value:.3}")).collect::<Vec<_>>().join(", ");
    figures.extend(new.into_iter().map(|(metric, value)| ((workload, metric), value)));
    Ok(if line.is_empty() { "not supported".into() } else { line })
}

/// Runs a process until it is ready, and kills it with SIGKILL.
fn crash(command: &mut Command) -> Result {
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let output = child.stdout.take().ok_or("no standard output")?;
    let is_ready = BufReader::new(output).lines().any(|line| line.is_ok_and(|line| line == READY));
    child.kill()?;
    child.wait()?;
    if is_ready { Ok(()) } else { Err("the process to be killed ended early".into()) }
}
