//! The command line.

mod cluster;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use keyaki::{DiskCacheOptions, Durability, FileAccess};
use keyaki_device::model::DeviceSpec;
use keyaki_server::{ServerOptions, TlsOptions};

pub use cluster::{ClusterArguments, SecurityArguments, WorkerArguments};

use crate::bars::Bars;
use crate::device;
use crate::failure::Result;
use crate::intervals::parse_interval;
use crate::output::Mode;

#[derive(Debug, Parser)]
#[command(
    name = "keyaki",
    version,
    about = "An embedded SQL database for data larger than memory on flash",
    after_help = "Without a command, keyaki opens the database FILE (a directory, created if missing) in the interactive shell.\n\
                  If standard input is not a terminal, keyaki runs the SQL that it reads there and exits.\n\n\
                  Exit codes: 0 success, 1 a statement or command failed, 2 invalid usage,\n\
                  3 data was lost in a repair, 130 cancelled.",
    args_conflicts_with_subcommands = true
)]
pub struct Arguments {
    #[command(subcommand)]
    pub command: Option<Command>,
    #[command(flatten)]
    pub shell: ShellArguments,
}

#[derive(Debug, Args)]
pub struct ShellArguments {
    /// Database directory [default: a temporary database, removed on exit]
    pub file: Option<PathBuf>,
    #[command(flatten)]
    pub input: InputArguments,
    #[command(flatten)]
    pub cluster: ClusterArguments,
    #[command(flatten)]
    pub open: OpenArguments,
}

#[derive(Debug, Args)]
pub struct SqlArguments {
    /// The server: postgres://USER@HOST:PORT/DATABASE?sslmode=MODE, with missing parts from PGHOST, PGPORT, PGUSER and the like
    #[arg(value_name = "ADDRESS")]
    pub address: String,
    #[command(flatten)]
    pub input: InputArguments,
}

/// The statements and the output of a shell.
#[derive(Debug, Args)]
pub struct InputArguments {
    /// Run this SQL or dot command and exit; can be repeated
    #[arg(short = 'c', long = "command", value_name = "SQL")]
    pub commands: Vec<String>,
    /// Output format of results
    #[arg(long, value_enum, default_value_t = Mode::Table)]
    pub mode: Mode,
    /// Continue after a failed statement (the exit code is still 1)
    #[arg(long)]
    pub continue_on_error: bool,
    /// Print the elapsed time of each statement [default: only in the interactive shell]
    #[arg(long)]
    pub timer: bool,
    /// Run this file first [default: ~/.config/keyaki/init.sql, only in the interactive shell]
    #[arg(long, value_name = "FILE", conflicts_with = "no_init")]
    pub init: Option<PathBuf>,
    /// Ignore the user's init.sql
    #[arg(long)]
    pub no_init: bool,
    /// Give a parameter of statements (:NAME, $NAME) a value, as .parameter set; can be repeated
    #[arg(long = "param", value_name = "NAME=VALUE", value_parser = parse_parameter)]
    pub parameters: Vec<(String, String)>,
}

fn disk_cache(directory: Option<&PathBuf>, limit: Option<ByteSize>) -> Option<DiskCacheOptions> {
    Some(DiskCacheOptions {
        directory: directory?.clone(),
        bytes_max: limit.map_or(OBJECT_CACHE_BYTES, |size| size.0 as u64),
    })
}

/// Default limit of the cache for published databases.
const OBJECT_CACHE_BYTES: u64 = 10 << 30;

/// Options for opening a database.
#[derive(Debug, Clone, Default, Args)]
pub struct OpenArguments {
    /// Memory for cache, buffers and queries together, e.g. 512M or 4G [default: a quarter of the machine's]
    #[arg(long, value_name = "SIZE")]
    pub memory: Option<ByteSize>,
    /// Worker threads [default: one per core]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: Option<u16>,
    /// Durability of a commit at its acknowledgement
    #[arg(long, value_enum, default_value_t)]
    pub durability: DurabilityArgument,
    /// Fail if the database does not exist
    #[arg(long)]
    pub no_create: bool,
    /// Open an existing database for reading, also while another process has it open for writing
    #[arg(long)]
    pub readonly: bool,
    /// Keep pages of a published database in this directory, which several processes can share
    #[arg(long, value_name = "DIRECTORY")]
    pub object_cache: Option<PathBuf>,
    /// Limit of the files in that directory [default: 10G]
    #[arg(long, value_name = "SIZE", requires = "object_cache")]
    pub object_cache_size: Option<ByteSize>,
    /// Slow the files down to the speed of a device: array(N ssd), cloud(LATENCY, N iops[, N MB/s]), disk(LATENCY) or nvme
    #[arg(long, value_name = "DEVICE")]
    pub device: Option<DeviceSpec>,
}

impl OpenArguments {
    pub fn options(&self) -> Result<keyaki::Options> {
        let options = keyaki::Options {
            must_exist: self.no_create,
            read_only: self.readonly,
            memory_bytes: self.memory.map(|size| size.0),
            threads: self.threads.map(usize::from),
            durability: self.durability.into(),
            object_cache: disk_cache(self.object_cache.as_ref(), self.object_cache_size),
            progress: Some(Arc::new(Bars::default())),
            ..Default::default()
        };
        match self.device {
            Some(device) => device::on_device(options, device),
            None => Ok(options),
        }
    }
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum DurabilityArgument {
    /// The commit is on stable storage
    #[default]
    Full,
    /// The commit is in memory; the log is synced in the background
    Normal,
    /// The commit is in memory; the operating system writes it when it chooses
    Off,
}

impl From<DurabilityArgument> for Durability {
    fn from(argument: DurabilityArgument) -> Durability {
        match argument {
            DurabilityArgument::Full => Durability::Full,
            DurabilityArgument::Normal => Durability::Normal,
            DurabilityArgument::Off => Durability::Off,
        }
    }
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Compare in-order and out-of-order execution of a selective query over generated TPC-H data
    Demo(DemoArguments),
    /// Measure the device under a database or directory and store the result there
    Calibrate(CalibrateArguments),
    /// Copy a database to a new directory, and verify all its pages
    Backup(BackupArguments),
    /// Add the newest state of a database to an object store as a version, which `keyaki URL` opens for reading
    Publish(PublishArguments),
    /// List the published versions of a database
    Versions(VersionsArguments),
    /// Copy a published version to a new directory, as a database that can be changed
    Clone(CloneArguments),
    /// Write a database to a directory as SQL scripts and Parquet files
    Dump(DumpArguments),
    /// Create a database from the directory of a dump
    Restore(RestoreArguments),
    /// Verify all pages of a database and compare its indexes with their tables; exit with 1 if there is damage
    Check(CheckArguments),
    /// Salvage the intact rows of a damaged database into a new one; exit with 3 if data is lost
    Repair(RepairArguments),
    /// Serve a database to clients of PostgreSQL: psql, drivers, tools
    Serve(Box<ServeArguments>),
    /// Execute parts of queries over published databases, for `keyaki URL --workers` on other machines
    Worker(WorkerArguments),
    /// Open the shell on a server that speaks PostgreSQL's protocol, such as `keyaki serve`
    Sql(SqlArguments),
    /// Draw the reads of a query over time, out of order and in order, as an SVG
    Plot(PlotArguments),
    /// Record the reads or the memory accesses of a query, or replay the latter in a simulated cache
    Trace(TraceArguments),
    /// Print the completions of a shell, for its start file or its directory of completions
    Completions(CompletionsArguments),
    /// Print the manual page of the program or of a command, for `man -l`
    Man(ManArguments),
}

#[derive(Debug, Args)]
pub struct CompletionsArguments {
    /// The shell
    #[arg(value_enum)]
    pub shell: clap_complete::Shell,
}

#[derive(Debug, Args)]
pub struct ManArguments {
    /// A command, such as serve
    pub command: Option<String>,
}

#[derive(Debug, Args)]
pub struct DemoArguments {
    /// TPC-H scale factor (1 is about 8.7 million rows)
    #[arg(long, default_value_t = 1.0, value_parser = parse_scale)]
    pub scale: f64,
    /// Directory of the database [default: keyaki/demo-sf<SCALE> in the user's cache directory]
    #[arg(long)]
    pub dir: Option<PathBuf>,
    /// Also write the figures to this file as JSON rows
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Columns to load
    #[arg(long, value_enum, default_value_t)]
    pub tables: DemoTables,
    /// Skip in-order runs that are expected to take longer [default: skip none]
    #[arg(long, value_name = "SECONDS")]
    pub max_seconds: Option<f64>,
    /// Run the queries at the speed of a device: array(N ssd), cloud(LATENCY, N iops[, N MB/s]), disk(LATENCY) or nvme
    #[arg(long, value_name = "DEVICE")]
    pub device: Option<DeviceSpec>,
    /// Run the queries on a copy in memory, in the virtual time of a device, in which computation takes no time
    #[arg(long, value_name = "DEVICE", conflicts_with = "device")]
    pub simulated: Option<DeviceSpec>,
    /// Runs of each query, of which the median is shown
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=99))]
    pub runs: u16,
    #[command(flatten)]
    pub open: DemoOpenArguments,
}

#[derive(Debug, Clone, Args)]
pub struct DemoOpenArguments {
    /// Memory for cache, buffers and queries together, e.g. 512M or 4G [default: a quarter of the machine's]
    #[arg(long, value_name = "SIZE")]
    pub memory: Option<ByteSize>,
    /// Worker threads [default: one per core]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: Option<u16>,
}

impl DemoOpenArguments {
    pub fn options(&self) -> keyaki::Options {
        keyaki::Options {
            memory_bytes: self.memory.map(|size| size.0),
            threads: self.threads.map(usize::from),
            ..Default::default()
        }
    }
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum DemoTables {
    /// All columns of customer, orders and lineitem
    #[default]
    All,
    /// Only the columns that the query reads, and the keys
    Query,
}

#[derive(Debug, Args)]
pub struct CalibrateArguments {
    /// A database, or a directory on the device to measure (with --cache: the database to store the result in)
    #[arg(required_unless_present = "cache")]
    pub path: Option<PathBuf>,
    /// Measure the CPU caches instead, and the ways of scanning that spare them
    #[arg(long, conflicts_with = "quick")]
    pub cache: bool,
    /// Measure fewer request sizes, and each for a shorter time
    #[arg(long)]
    pub quick: bool,
    /// Measure files slowed down to the speed of a device (as keyaki --device), and store nothing
    #[arg(long, value_name = "DEVICE", conflicts_with = "cache")]
    pub device: Option<DeviceSpec>,
}

#[derive(Debug, Args)]
pub struct BackupArguments {
    /// The database to copy
    pub database: PathBuf,
    /// The directory of the copy, which must not exist or be empty, unless an earlier copy is updated
    pub directory: PathBuf,
    /// Update an earlier copy in the directory, if there is one: write only the changed extents
    #[arg(long)]
    pub incremental: bool,
    #[command(flatten)]
    pub open: OpenArguments,
}

#[derive(Debug, Args)]
pub struct PublishArguments {
    /// The database
    pub database: PathBuf,
    /// The place of its versions: s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, az://CONTAINER/PREFIX or file:///DIRECTORY
    pub url: String,
    /// Remove older versions than the newest N
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub keep: Option<u32>,
    /// Publish at this interval, e.g. 5m, beside other processes that write, until Ctrl-C
    #[arg(long, value_name = "INTERVAL", value_parser = parse_interval)]
    pub every: Option<Duration>,
    #[command(flatten)]
    pub open: OpenArguments,
}

#[derive(Debug, Args)]
pub struct VersionsArguments {
    /// The URL of the published database
    pub url: String,
}

#[derive(Debug, Args)]
pub struct CloneArguments {
    /// The URL of the published database; @N at its end selects version N instead of the newest one
    pub url: String,
    /// The directory of the new database, which must not exist or be empty
    pub directory: PathBuf,
}

#[derive(Debug, Args)]
pub struct DumpArguments {
    /// The database to write
    pub database: PathBuf,
    /// The directory of the dump, which must not exist or be empty
    pub directory: PathBuf,
    /// Write the verifiers of the roles' passwords, too
    #[arg(long)]
    pub passwords: bool,
    #[command(flatten)]
    pub open: OpenArguments,
}

#[derive(Debug, Args)]
pub struct RestoreArguments {
    /// The directory of a dump
    pub directory: PathBuf,
    /// The new database, whose directory must not exist or be empty
    pub database: PathBuf,
    #[command(flatten)]
    pub open: OpenArguments,
}

#[derive(Debug, Args)]
pub struct CheckArguments {
    /// The database to check
    pub database: PathBuf,
    #[command(flatten)]
    pub open: OpenArguments,
}

#[derive(Debug, Args)]
pub struct RepairArguments {
    /// The damaged database, which is only read
    pub source: PathBuf,
    /// The new database, whose directory must not exist or be empty
    pub target: PathBuf,
    #[command(flatten)]
    pub open: OpenArguments,
}

#[derive(Debug, Args)]
pub struct ServeArguments {
    /// The database to serve (a directory, created if missing)
    pub database: PathBuf,
    /// Configuration file (TOML) with the names of these options, e.g. max-connections = 50; options given here override it
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Address to listen on; can be repeated [default: 127.0.0.1:5432, unless there is a socket]
    #[arg(long, value_name = "ADDRESS")]
    pub listen: Vec<SocketAddr>,
    /// Unix socket to listen on, or a directory for the socket .s.PGSQL.5432
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
    /// Certificate of the server for TLS, followed by those of intermediate authorities (PEM)
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub tls_certificate: Option<PathBuf>,
    /// Private key of the certificate (PEM), which others must not be able to read
    #[arg(long, value_name = "FILE", requires = "tls_certificate")]
    pub tls_key: Option<PathBuf>,
    /// Authorities of clients (PEM): every client of TCP must present a certificate of one, whose common name is the user name
    #[arg(long, value_name = "FILE", requires = "tls_certificate")]
    pub tls_client_ca: Option<PathBuf>,
    /// Revocation lists of these authorities (PEM): clients without a current list, and revoked ones, are refused
    #[arg(long, value_name = "FILE", requires = "tls_client_ca")]
    pub tls_client_crl: Option<PathBuf>,
    /// Listen on addresses that other machines can reach, although connections are not encrypted, or not authenticated
    #[arg(long)]
    pub allow_unprotected: bool,
    /// Serve figures over HTTP also at an address that other machines can reach
    #[arg(long, requires = "http")]
    pub allow_unprotected_http: bool,
    /// Directory on the server whose files COPY, read_csv and the like may use; can be repeated [default: none]
    #[arg(long, value_name = "DIRECTORY")]
    pub allow_files: Vec<PathBuf>,
    /// Address of figures over HTTP: /metrics (Prometheus), /health, /ready
    #[arg(long, value_name = "ADDRESS")]
    pub http: Option<SocketAddr>,
    /// Maximum number of connections
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub max_connections: u32,
    /// Number of these that only superusers may use
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub superuser_reserved_connections: u32,
    /// Cancel statements after this time, e.g. 500ms, 30s, 10min
    #[arg(long, value_name = "TIME")]
    pub statement_timeout: Option<Time>,
    /// End connections whose transaction is idle for this time
    #[arg(long, value_name = "TIME")]
    pub idle_transaction_timeout: Option<Time>,
    /// End connections whose clients receive nothing for this time, although there is something to send
    #[arg(long, value_name = "TIME", default_value = "10min")]
    pub send_timeout: Time,
    /// Log statements that take longer than this time; texts that may contain passwords are not shown
    #[arg(long, value_name = "TIME")]
    pub log_statements_slower_than: Option<Time>,
    /// Format of the log on standard error
    #[arg(long, value_enum, default_value_t)]
    pub log_format: LogFormat,
    /// Time that a shutdown gives to running statements
    #[arg(long, value_name = "TIME", default_value = "30s")]
    pub shutdown_timeout: Time,
    #[command(flatten)]
    pub cluster: ClusterArguments,
    #[command(flatten)]
    pub open: OpenArguments,
}

impl ServeArguments {
    pub fn options(&self) -> ServerOptions {
        let default = ServerOptions::default();
        let listen = match self.listen.as_slice() {
            [] if self.socket.is_none() => default.listen.clone(),
            listen => listen.to_vec(),
        };
        let tls = self.tls_certificate.clone().zip(self.tls_key.clone());
        ServerOptions {
            listen,
            socket: self.socket.clone(),
            tls: tls.map(|(certificate, key)| TlsOptions {
                certificate,
                key,
                client_ca: self.tls_client_ca.clone(),
                client_crl: self.tls_client_crl.clone(),
            }),
            http: self.http,
            allow_unprotected: self.allow_unprotected,
            allow_unprotected_http: self.allow_unprotected_http,
            files: FileAccess::Within(self.allow_files.clone()),
            max_connections: self.max_connections as usize,
            superuser_reserved_connections: self.superuser_reserved_connections as usize,
            statement_timeout: self.statement_timeout.map(|time| time.0),
            idle_transaction_timeout: self.idle_transaction_timeout.map(|time| time.0),
            send_timeout: Some(self.send_timeout.0),
            log_statements_slower_than: self.log_statements_slower_than.map(|time| time.0),
            shutdown_timeout: self.shutdown_timeout.0,
            ..default
        }
    }
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// A line of text for each event
    #[default]
    Text,
    /// A JSON object for each event
    Json,
}

/// A number of seconds, or of the unit that follows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Time(pub Duration);

impl FromStr for Time {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Time, String> {
        const UNITS: [(&str, u64); 6] =
            [("", 1000), ("ms", 1), ("s", 1000), ("min", 60_000), ("h", 3_600_000), ("d", 86_400_000)];
        let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        let unit = UNITS.iter().find(|(unit, _)| *unit == text[end..].trim());
        let millis =
            text[..end].parse::<u64>().ok().zip(unit).and_then(|(number, (_, unit))| number.checked_mul(*unit));
        let millis = millis.filter(|millis| *millis > 0);
        millis.map(|millis| Time(Duration::from_millis(millis))).ok_or_else(|| {
            format!("\"{text}\" is not a time above 0 (a number of seconds, or with one of ms, s, min, h and d)")
        })
    }
}

#[derive(Debug, Args)]
pub struct PlotArguments {
    /// The database to query
    pub database: PathBuf,
    /// The file to write
    #[arg(short, long, value_name = "FILE")]
    pub output: PathBuf,
    /// Which executions to draw
    #[arg(long, value_enum, default_value_t)]
    pub execution: PlotExecution,
    /// Keep the pages in the cache before each execution [default: read them from the device]
    #[arg(long)]
    pub warm: bool,
    #[command(flatten)]
    pub open: OpenArguments,
    /// The query
    #[arg(last = true, required = true)]
    pub sql: Vec<String>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum PlotExecution {
    /// Out of order, then in order
    #[default]
    Both,
    /// As many lookups at a time as the device takes
    OutOfOrder,
    /// One lookup after another
    InOrder,
}

impl PlotExecution {
    /// The values of the setting `keyaki.execution`.
    pub fn settings(self) -> &'static [&'static str] {
        match self {
            PlotExecution::Both => &["out_of_order", "in_order"],
            PlotExecution::OutOfOrder => &["out_of_order"],
            PlotExecution::InOrder => &["in_order"],
        }
    }
}

#[derive(Debug, Args)]
pub struct TraceArguments {
    /// The database to query
    pub database: Option<PathBuf>,
    /// Write the scans and pipelines of the query and their reads over time to this file, as JSON for Perfetto or chrome://tracing
    #[arg(short, long, value_name = "FILE", requires = "database")]
    pub output: Option<PathBuf>,
    /// Record the memory accesses of the query in this file
    #[arg(long, value_name = "FILE", requires = "database")]
    pub memory: Option<PathBuf>,
    /// Replay this trace and show the misses of the last-level cache, with and without partitioning
    #[arg(long, value_name = "FILE", conflicts_with_all = ["memory", "output"])]
    pub replay: Option<PathBuf>,
    /// Size of the simulated last-level cache in KiB [default: 10240]
    #[arg(long, value_name = "KIB", requires = "replay", value_parser = clap::value_parser!(u64).range(64..=1 << 20))]
    pub cache_kib: Option<u64>,
    /// The query to trace
    #[arg(last = true)]
    pub sql: Vec<String>,
}

/// A number of bytes with an optional unit: `65536`, `512M`, `1.5GiB` (units are powers of 1024).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ByteSize(pub usize);

impl FromStr for ByteSize {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let wrong = || format!("invalid size \"{text}\" (examples: 65536, 512M, 1.5G)");
        let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic()).trim_end();
        let unit = text[digits.len()..].trim().to_ascii_lowercase();
        let shift = match unit.trim_end_matches('b').trim_end_matches('i') {
            "" => 0,
            "k" => 10,
            "m" => 20,
            "g" => 30,
            "t" => 40,
            _ => return Err(wrong()),
        };
        let number: f64 = digits.parse().map_err(|_| wrong())?;
        let bytes = number * (1u64 << shift) as f64;
        if !(bytes >= 0.0 && bytes < (1u64 << 60) as f64) {
            return Err(wrong());
        }
        Ok(ByteSize(bytes as usize))
    }
}

/// A name and a value with an equals sign between them.
fn parse_parameter(text: &str) -> std::result::Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.into(), value.into())),
        _ => Err("a parameter has the form NAME=VALUE".into()),
    }
}

fn parse_scale(text: &str) -> std::result::Result<f64, String> {
    match text.parse::<f64>() {
        Ok(scale) if scale > 0.0 && scale <= 100_000.0 => Ok(scale),
        _ => Err("the scale must be greater than 0 and at most 100000".into()),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn arguments_are_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn sizes() {
        let parse = |text: &str| text.parse::<ByteSize>().map(|size| size.0);
        assert_eq!(parse("65536"), Ok(65536));
        assert_eq!(parse("512M"), Ok(512 << 20));
        assert_eq!(parse("1.5GiB"), Ok(3 << 29));
        assert_eq!(parse("4 kb"), Ok(4096));
        for wrong in ["", "G", "-1", "4X", "1e300", "NaN", "1 2"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn file_and_commands() {
        let arguments = Arguments::try_parse_from(["keyaki", "shop", "-c", "SELECT 1", "-c", "SELECT 2"]);
        let shell = arguments.expect("valid arguments").shell;
        assert_eq!(shell.input.commands, ["SELECT 1", "SELECT 2"]);
        assert!(Arguments::try_parse_from(["keyaki", "demo", "--scale", "-1"]).is_err());
        assert!(Arguments::try_parse_from(["keyaki", "demo", "--scale", "0.1"]).is_ok());
    }

    #[test]
    fn devices() {
        let device = "cloud(1ms, 64k iops)";
        let arguments = Arguments::try_parse_from(["keyaki", "shop", "--device", device]).expect("valid arguments");
        let options = arguments.shell.open.options().expect("a device");
        assert_eq!(options.device.expect("a device").name(), "paced");
        assert!(options.calibration.is_some() && options.executor.is_some());
        assert!(Arguments::try_parse_from(["keyaki", "demo", "--device", device]).is_ok());
        assert!(Arguments::try_parse_from(["keyaki", "demo", "--device", device, "--simulated", device]).is_err());
        let error = Arguments::try_parse_from(["keyaki", "calibrate", "--device", "arry(3 ssd)", "."]).unwrap_err();
        assert!(error.to_string().contains("unknown device \"arry\": expected array(N ssd)"), "{error}");
    }
}
