//! A crate's sources as a tree of modules, each with its names and the paths it uses.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};

use super::collect;
use crate::run::Result;

/// Index of a module in [`Sources::modules`].
pub type ModuleId = usize;

/// The crate root's index.
pub const ROOT: ModuleId = 0;

/// All modules of a crate, the root first.
pub struct Sources {
    pub modules: Vec<Module>,
    /// One error line for each source file that no `mod` declaration reaches.
    pub unreached: Vec<String>,
}

/// One module, in a file of its own or inline.
pub struct Module {
    pub parent: Option<ModuleId>,
    /// Path of the file, relative to the repository.
    pub file: String,
    pub children: BTreeMap<String, ModuleId>,
    /// Names that `use` declarations bring into scope, with the paths they stand for. Function bodies count as part of
    /// their module: a path that is legal in the body is legal in the module.
    pub imports: Vec<(String, UsedPath)>,
    /// Paths of `use path::*`.
    pub globs: Vec<UsedPath>,
    /// Names of items that are defined here.
    pub items: BTreeSet<String>,
    /// Every path that occurs in the module.
    pub paths: Vec<UsedPath>,
}

/// A path as it is written in the source.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct UsedPath {
    pub segments: Vec<String>,
    pub line: usize,
    /// A path of a `use` declaration may end in a module; one in an expression or a type ends in an item.
    pub may_be_module: bool,
}

impl fmt::Display for UsedPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.segments.join("::"))
    }
}

impl Sources {
    /// Parses the crate with the given root file (`lib.rs` or `main.rs`). File names in messages are relative to
    /// `repository`.
    pub fn read(repository: &Path, root_file: &Path) -> Result<Self> {
        let mut sources = Self { modules: Vec::new(), unreached: Vec::new() };
        let mut reached = BTreeSet::new();
        let mut pending = vec![Pending { parent: None, name: String::new(), file: root_file.to_path_buf() }];
        while let Some(Pending { parent, name, file }) = pending.pop() {
            let text = std::fs::read_to_string(&file).map_err(|error| format!("{}: {error}", file.display()))?;
            let shown = file.strip_prefix(repository).unwrap_or(&file).display().to_string();
            let id = sources.add(parent, &name, shown);
            for declared in sources.parse_into(id, &text)? {
                pending.push(declared.pending(&file, parent.is_none())?);
            }
            reached.insert(file);
        }
        let folder = root_file.parent().unwrap_or(repository);
        for file in rust_files(folder)?.into_iter().filter(|file| !reached.contains(file)) {
            let shown = file.strip_prefix(repository).unwrap_or(&file).display();
            sources.unreached.push(format!("{shown}: no mod declaration reaches this file"));
        }
        Ok(sources)
    }

    /// Parses one file into the module `id`. Returns the modules it declares in other files.
    pub fn parse_into(&mut self, id: ModuleId, text: &str) -> Result<Vec<Declared>> {
        let file = syn::parse_file(text)
            .map_err(|error| format!("{}:{}: {error}", self.modules[id].file, error.span().start().line))?;
        Ok(collect::collect(self, id, &file))
    }

    /// Adds an empty module.
    pub fn add(&mut self, parent: Option<ModuleId>, name: &str, file: String) -> ModuleId {
        let id = self.modules.len();
        if let Some(parent) = parent {
            self.modules[parent].children.insert(name.to_string(), id);
        }
        self.modules.push(Module {
            parent,
            file,
            children: BTreeMap::new(),
            imports: Vec::new(),
            globs: Vec::new(),
            items: BTreeSet::new(),
            paths: Vec::new(),
        });
        id
    }

    pub fn root_file(&self) -> &str {
        &self.modules[ROOT].file
    }

    /// Names of the modules that the crate root declares.
    pub fn top_level(&self) -> impl Iterator<Item = &str> {
        self.modules[ROOT].children.keys().map(String::as_str)
    }

    /// The top-level module that contains `id`; none for the crate root.
    pub fn layer(&self, mut id: ModuleId) -> Option<&str> {
        loop {
            match self.modules[id].parent? {
                ROOT => {
                    return self.modules[ROOT]
                        .children
                        .iter()
                        .find(|entry| *entry.1 == id)
                        .map(|(name, _)| name.as_str());
                }
                parent => id = parent,
            }
        }
    }
}

/// A `mod name;` declaration.
pub struct Declared {
    pub parent: ModuleId,
    pub name: String,
    /// Names of the inline modules around the declaration.
    pub inline: Vec<String>,
    /// The value of `#[path = "..."]`.
    pub path: Option<String>,
}

impl Declared {
    /// Finds the file by the rules of the language. `is_root`: the declaring file is the crate root.
    fn pending(self, declaring: &Path, is_root: bool) -> Result<Pending> {
        let folder = declaring.parent().unwrap_or(Path::new(""));
        let owns_folder = is_root || declaring.file_name().is_some_and(|name| name == "mod.rs");
        let mut base = if owns_folder { folder.to_path_buf() } else { declaring.with_extension("") };
        base.extend(&self.inline);
        let file = match &self.path {
            Some(path) if self.inline.is_empty() => folder.join(path),
            Some(path) => base.join(path),
            None => {
                let candidates = [base.join(format!("{}.rs", self.name)), base.join(&self.name).join("mod.rs")];
                let missing = || format!("{}: no file for module {}", declaring.display(), self.name);
                candidates.into_iter().find(|file| file.exists()).ok_or_else(missing)?
            }
        };
        Ok(Pending { parent: Some(self.parent), name: self.name, file })
    }
}

struct Pending {
    parent: Option<ModuleId>,
    name: String,
    file: PathBuf,
}

/// All `.rs` files below a folder, in order.
fn rust_files(folder: &Path) -> Result<Vec<PathBuf>> {
    let failed = |error: std::io::Error| format!("{}: {error}", folder.display());
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        if path.is_dir() {
            files.extend(rust_files(&path)?);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}
