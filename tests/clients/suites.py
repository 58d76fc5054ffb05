"""Runs the suites of clients that need tools beside Python: `cargo xtask clients [NAME ...]`.

Each suite is a program in `suites/NAME` that reads PostgreSQL's environment variables (PGHOST, PGPORT, PGUSER, PGPASSWORD,
PGDATABASE, PGSSLMODE, PGSSLROOTCERT), prints `ok CHECK` for each check, and exits with 0 if all of them succeed. The server
has roles and TLS: every suite authenticates by SCRAM-SHA-256 and verifies the certificate. A suite is skipped if its tools are
missing. Programs and their dependencies are built in `target/clients`; lock files and checksums in `suites` pin the versions.
"""

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import served
import tpch

SOURCES = Path(__file__).resolve().parent / "suites"
WORK = tpch.TARGET / "clients"
PASSWORD = "a password with spaces"
JDBC = ("org.postgresql:postgresql:42.7.7", "157963d60ae66d607e09466e8c0cdf8087e9cb20d0159899ffca96bca2528460")
TIMEOUT_SECONDS = 1800


class Skipped(Exception):
    """A suite cannot run on this machine."""


def require(*programs):
    missing = [name for name in programs if tool(name) is None]
    if missing:
        raise Skipped(f"{' and '.join(missing)} not installed")


def tool(name):
    for folder in [*os.environ["PATH"].split(os.pathsep), "/usr/local/go/bin"]:
        if os.access(Path(folder) / name, os.X_OK):
            return str(Path(folder) / name)
    return None


def copied(name):
    """A copy of a suite's sources, in which its tools may write."""
    folder = WORK / name
    shutil.copytree(SOURCES / name, folder, dirs_exist_ok=True)
    return folder


def run(*command, **options):
    """Runs a program with its output shown."""
    subprocess.run([str(word) for word in command], check=True, timeout=TIMEOUT_SECONDS, **options)


def django(environment):
    folder = copied("django")
    python = folder / "venv/bin/python"
    if not python.exists():
        run(sys.executable, "-m", "venv", folder / "venv")
    run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r", "requirements.txt", cwd=folder)
    run(python, "check.py", cwd=folder, env=environment)


def pgjdbc(environment):
    require("java", "javac", "mvn")
    folder = copied("pgjdbc")
    coordinates, checksum = JDBC
    jar = folder / f"postgresql-{coordinates.rsplit(':', 1)[1]}.jar"
    if not jar.exists():
        run("mvn", "--quiet", "--batch-mode", "org.apache.maven.plugins:maven-dependency-plugin:3.6.0:copy",
            f"-Dartifact={coordinates}", f"-DoutputDirectory={folder}", cwd=folder)
    if (found := hashlib.sha256(jar.read_bytes()).hexdigest()) != checksum:
        raise RuntimeError(f"{jar}: the checksum is {found}, not {checksum}")
    run("javac", "-cp", jar, "-d", folder, "Check.java", cwd=folder)
    run("java", "-cp", f"{folder}{os.pathsep}{jar}", "Check", cwd=folder, env=environment)


def pgx(environment):
    require("go")
    folder = copied("pgx")
    run(tool("go"), "build", "-mod=readonly", "-o", "check", ".", cwd=folder, env={**os.environ, "GOTOOLCHAIN": "local"})
    run(folder / "check", cwd=folder, env=environment)


def node(environment):
    require("node", "npm")
    folder = copied("node")
    run("npm", "ci", "--silent", "--no-audit", "--no-fund", "--ignore-scripts", cwd=folder)
    run("node", "--no-deprecation", "check.mjs", cwd=folder, env=environment)


def sqlx(environment):
    require("cargo")
    folder = copied("sqlx")
    run("cargo", "build", "--quiet", "--locked", cwd=folder, env={**os.environ, "CARGO_TARGET_DIR": str(folder / "target")})
    run(folder / "target/debug/check", cwd=folder, env=environment)


def pgbench(environment):
    """TPC-B and select-only in each mode of the protocol. The balances of TPC-B add up."""
    require("pgbench", "psql")
    run("pgbench", "-i", "-q", "-s", "1", env=environment)
    for mode in ["simple", "extended", "prepared"]:
        for name, options in [("select-only", ["-S"]), ("TPC-B", ["--max-tries=1000"])]:
            command = ["pgbench", "-n", "-M", mode, "-c", "4", "-j", "2", "-t", "50", *options]
            done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=TIMEOUT_SECONDS)
            if done.returncode or not re.search(r"processed: 200/200", done.stdout):
                raise RuntimeError(f"{' '.join(command)}: {done.stdout}{done.stderr}")
            print(f"ok {name}, {mode}")
    sums = "SELECT (SELECT sum(abalance) FROM pgbench_accounts), (SELECT sum(tbalance) FROM pgbench_tellers), " \
           "(SELECT sum(bbalance) FROM pgbench_branches), (SELECT sum(delta) FROM pgbench_history), " \
           "(SELECT count(*) FROM pgbench_history)"
    found = subprocess.run(["psql", "-XAtc", sums], env=environment, check=True, capture_output=True, text=True).stdout
    balances = found.strip().split("|")
    if len(set(balances[:4])) != 1 or balances[4] != "600":
        raise RuntimeError(f"the balances differ: {found}")
    print("ok balances")


SUITES = {"django": django, "node": node, "pgbench": pgbench, "pgjdbc": pgjdbc, "pgx": pgx, "sqlx": sqlx}


def certificate(directory):
    """A self-signed certificate of localhost."""
    files = directory / "server.crt", directory / "server.key"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
               "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1",
               "-addext", "basicConstraints=critical,CA:FALSE", "-out", files[0], "-keyout", files[1]]
    subprocess.run([str(word) for word in command], check=True, capture_output=True)
    files[1].chmod(0o600)
    return files


def checked(suite, directory):
    """Runs a suite on a server of its own."""
    cert, key = certificate(directory)
    roles = f"CREATE ROLE app LOGIN PASSWORD '{PASSWORD}'; GRANT CREATE ON SCHEMA public TO app;"
    server = served.Server("--tls-certificate", str(cert), "--tls-key", str(key), setup=roles)
    environment = {**os.environ, "PGHOST": "localhost", "PGPORT": str(server.port), "PGUSER": "app", "PGPASSWORD": PASSWORD,
                   "PGDATABASE": "app", "PGSSLMODE": "verify-full", "PGSSLROOTCERT": str(cert), "TZ": "UTC"}
    try:
        suite(environment)
    finally:
        code = server.stop()
    if code:
        raise RuntimeError(f"the server ended with {code}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"suites to run (all: {', '.join(SUITES)})")
    names = parser.parse_args().names or list(SUITES)
    if unknown := [name for name in names if name not in SUITES]:
        parser.error(f"unknown suite: {', '.join(unknown)} (there are {', '.join(SUITES)})")
    WORK.mkdir(parents=True, exist_ok=True)
    outcomes = {}
    for name in names:
        print(f"\n== {name}", flush=True)
        try:
            require("openssl")
            with tempfile.TemporaryDirectory(prefix="keyaki-suite-") as directory:
                checked(SUITES[name], Path(directory))
            outcomes[name] = "passed"
        except Skipped as reason:
            outcomes[name] = f"skipped: {reason}"
        except (RuntimeError, OSError, subprocess.SubprocessError) as error:
            outcomes[name] = f"FAILED: {error}"
    print()
    for name, outcome in outcomes.items():
        print(f"{name:10} {outcome}")
    sys.exit(any(outcome.startswith("FAILED") for outcome in outcomes.values()))


if __name__ == "__main__":
    main()
