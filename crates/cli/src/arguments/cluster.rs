//! The arguments of clusters: of the coordinator, and of `keyaki worker`.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;

use super::{ByteSize, disk_cache};

/// The workers of a published database.
#[derive(Debug, Clone, Args)]
pub struct ClusterArguments {
    /// Execute queries of a published database on these workers (keyaki worker), host:port, separated by commas
    #[arg(long, value_name = "ADDRESSES", value_delimiter = ',')]
    pub workers: Vec<String>,
    /// Divide scans into shares of at least this size
    #[arg(long, value_name = "SIZE", default_value = "1M", requires = "workers")]
    pub workers_share: ByteSize,
    #[command(flatten)]
    pub security: SecurityArguments,
}

/// How coordinators and workers recognise each other.
#[derive(Debug, Clone, Default, Args)]
pub struct SecurityArguments {
    /// File with the token of the cluster [default: the variable KEYAKI_CLUSTER_TOKEN]
    #[arg(long, value_name = "FILE")]
    pub cluster_token: Option<PathBuf>,
    /// Certificate of this machine for mutual TLS with the machines of the cluster (PEM)
    #[arg(long, value_name = "FILE", requires_all = ["cluster_key", "cluster_ca"])]
    pub cluster_certificate: Option<PathBuf>,
    /// Private key of the certificate (PEM)
    #[arg(long, value_name = "FILE", requires = "cluster_certificate")]
    pub cluster_key: Option<PathBuf>,
    /// Authority that has signed the certificates of the cluster (PEM)
    #[arg(long, value_name = "FILE", requires = "cluster_certificate")]
    pub cluster_ca: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub struct WorkerArguments {
    /// Address to listen on
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:7433")]
    pub listen: SocketAddr,
    /// Listen on an address that other machines can reach, although coordinators need neither token nor certificate
    #[arg(long)]
    pub allow_unprotected: bool,
    /// Open databases whose URLs begin with this text only; can be repeated
    #[arg(long, value_name = "URL")]
    pub allow_url: Vec<String>,
    #[command(flatten)]
    pub security: SecurityArguments,
    /// Memory of each database that the worker has open, e.g. 512M or 4G [default: a quarter of the machine's]
    #[arg(long, value_name = "SIZE")]
    pub memory: Option<ByteSize>,
    /// Threads that execute tasks [default: one per core]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: Option<u16>,
    /// Keep pages of databases in this directory, which several processes can share
    #[arg(long, value_name = "DIRECTORY")]
    pub object_cache: Option<PathBuf>,
    /// Limit of the files in that directory [default: 10G]
    #[arg(long, value_name = "SIZE", requires = "object_cache")]
    pub object_cache_size: Option<ByteSize>,
}

impl WorkerArguments {
    pub fn options(&self) -> keyaki::Options {
        keyaki::Options {
            must_exist: true,
            read_only: true,
            memory_bytes: self.memory.map(|size| size.0),
            threads: self.threads.map(usize::from),
            object_cache: disk_cache(self.object_cache.as_ref(), self.object_cache_size),
            ..Default::default()
        }
    }
}
