"""Checks the contents of wheels and source distributions: `python distribution.py FILE…`. Run by `cargo xtask wheel`."""

import email
import pathlib
import sys
import tarfile
import zipfile

PACKAGE = pathlib.Path(__file__).resolve().parents[2] / "crates" / "python" / "python" / "keyaki"
LICENSES = ["LICENSE-APACHE", "LICENSE-MIT"]
# Needed by the build of a source distribution.
SOURCES = ["pyproject.toml", "Cargo.toml", "Cargo.lock", "crates/python/Cargo.toml", "crates/python/build.rs", "crates/python/src/lib.rs"]


def sources_of_package():
    return {path.name for path in PACKAGE.iterdir() if path.suffix in (".py", ".pyi", ".typed")}


def missing_metadata(text):
    """The names of the fields that are missing or wrong."""
    metadata = email.message_from_string(text)
    wanted = {
        "Name": "keyaki",
        "Requires-Python": ">=3.10",
        "License-Expression": "MIT OR Apache-2.0",
    }
    yield from (name for name, value in wanted.items() if metadata[name] != value)
    if sorted(metadata.get_all("License-File", [])) != LICENSES:
        yield "License-File"
    if "Typing :: Typed" not in metadata.get_all("Classifier", []):
        yield "Classifier"
    if "import keyaki" not in metadata.get_payload():
        yield "Description"


def problems_of_wheel(path):
    with zipfile.ZipFile(path) as wheel:
        names = set(wheel.namelist())
        (metadata,) = (name for name in names if name.endswith(".dist-info/METADATA"))
        information = metadata.rpartition("/")[0]
        entries = wheel.read(f"{information}/entry_points.txt").decode()
        yield from missing_metadata(wheel.read(metadata).decode())
    wanted = {f"keyaki/{name}" for name in sources_of_package()} | {"keyaki/_keyaki.abi3.so"}
    wanted |= {f"{information}/licenses/{name}" for name in LICENSES}
    yield from sorted(wanted - names)
    # Nothing but the package and its metadata, and no bytecode.
    foreign = {name for name in names - wanted if not name.startswith((f"{information}/", "keyaki.libs/"))}
    yield from sorted(f"unexpected: {name}" for name in foreign)
    if "keyaki.sqlalchemy:KeyakiDialect" not in entries:
        yield "entry point of SQLAlchemy"
    if "keyaki=keyaki.ibis" not in entries.replace(" ", ""):
        yield "entry point of Ibis"


def problems_of_sources(path):
    with tarfile.open(path) as archive:
        (root,) = {name.split("/")[0] for name in archive.getnames()}
        names = {member.name.removeprefix(f"{root}/") for member in archive.getmembers() if member.isfile()}
        yield from missing_metadata(archive.extractfile(f"{root}/PKG-INFO").read().decode())
    wanted = {f"python/keyaki/{name}" for name in sources_of_package()} | {*LICENSES, *SOURCES}
    yield from sorted(wanted - names)
    yield from sorted(f"unexpected: {name}" for name in names if name.endswith((".pyc", ".so")) or "/target/" in name)


def main(paths):
    problems = []
    for path in paths:
        found = problems_of_wheel(path) if path.endswith(".whl") else problems_of_sources(path)
        problems += [f"{path}: {problem}" for problem in found]
    print("\n".join(problems) or f"{len(paths)} distributions are complete")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
