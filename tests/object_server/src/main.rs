//! `keyaki-object-server ROOT`: serves the directories below ROOT as buckets until standard input ends. Prints the
//! variables of the environment with which clients find it, one for each line, then an empty line.

use std::io::Read;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use keyaki_object_server::{Faults, Server};

#[derive(Debug, Parser)]
struct Arguments {
    /// Directory with a directory for each bucket
    root: PathBuf,
    /// Address to listen at
    #[arg(long, default_value = "127.0.0.1:0")]
    listen: String,
    #[command(flatten)]
    faults: Faults,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let server = match Server::start(&arguments.root, &arguments.listen, arguments.faults) {
        Ok(server) => server,
        Err(error) => {
            eprintln!("{}: {error}", arguments.root.display());
            return ExitCode::FAILURE;
        }
    };
    for (name, value) in server.variables() {
        println!("{name}={value}");
    }
    println!();
    // The program that has started the server ends it by closing the pipe, or by its own end.
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
    println!("{}", server.stats());
    ExitCode::SUCCESS
}
