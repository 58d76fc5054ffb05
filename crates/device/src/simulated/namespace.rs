//! The directories of a simulated device: the current tree, the durable tree, and the operations between them.
//!
//! Creations, removals and renames change the current tree at once and are recorded. [`Namespace::sync_dir`] applies
//! the recorded operations of one directory to the durable tree. A rename between directories is one operation of both,
//! so syncing one of the two syncs the other. A crash restarts from the durable tree and replays each recorded
//! operation, in order, or drops it at random. An operation whose directory does not exist any more has no effect.

use std::collections::BTreeMap;
use std::io;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use keyaki_primitives::Random;
use parking_lot::Mutex;

use super::inode::{CrashPolicy, Inode};
use crate::interface::ErrorKind;

pub(super) type InodeRef = Arc<Mutex<Inode>>;

/// An entry of a directory.
#[derive(Debug, Clone)]
pub(super) enum Node {
    Dir,
    File(InodeRef),
}

/// Entries by normalised path. The root (`/` and the empty path) always exists and is not an entry.
#[derive(Debug, Clone, Default)]
struct Tree(BTreeMap<PathBuf, Node>);

/// A change of directories.
#[derive(Debug, Clone)]
enum Change {
    Create(PathBuf, Node),
    Remove(PathBuf),
    Rename(PathBuf, PathBuf),
}

/// All directories and files.
#[derive(Debug, Default)]
pub(super) struct Namespace {
    current: Tree,
    durable: Tree,
    /// Changes of `current` that are not in `durable`, in order.
    unsynced: Vec<Change>,
}

impl Namespace {
    pub(super) fn get(&self, path: &Path) -> Option<Node> {
        self.current.get(&normal(path))
    }

    /// The file at `path`.
    pub(super) fn file(&self, path: &Path) -> Result<InodeRef, ErrorKind> {
        match self.get(path) {
            Some(Node::File(inode)) => Ok(inode),
            Some(Node::Dir) => Err(io::ErrorKind::IsADirectory.into()),
            None => Err(ErrorKind::NotFound),
        }
    }

    pub(super) fn create(&mut self, path: &Path, node: Node) -> Result<(), ErrorKind> {
        self.perform(Change::Create(normal(path), node))
    }

    pub(super) fn remove(&mut self, path: &Path) -> Result<(), ErrorKind> {
        self.perform(Change::Remove(normal(path)))
    }

    pub(super) fn rename(&mut self, from: &Path, to: &Path) -> Result<(), ErrorKind> {
        self.perform(Change::Rename(normal(from), normal(to)))
    }

    fn perform(&mut self, change: Change) -> Result<(), ErrorKind> {
        self.current.apply(&change)?;
        self.unsynced.push(change);
        Ok(())
    }

    /// Puts an entry at `path`, with the directories above it, into both trees.
    pub(super) fn insert_durable(&mut self, path: &Path, node: Node) {
        let path = normal(path);
        for tree in [&mut self.current, &mut self.durable] {
            for dir in path.ancestors().skip(1).filter(|dir| !is_root(dir)) {
                tree.0.entry(dir.to_path_buf()).or_insert(Node::Dir);
            }
            tree.0.insert(path.clone(), node.clone());
        }
    }

    pub(super) fn list(&self, dir: &Path) -> Result<Vec<String>, ErrorKind> {
        let dir = normal(dir);
        self.current.require_dir(&dir)?;
        let mut names: Vec<_> = self.current.children(&dir).map(|path| name(path)).collect();
        names.sort_unstable();
        Ok(names)
    }

    pub(super) fn sync_dir(&mut self, dir: &Path) -> Result<(), ErrorKind> {
        let dir = normal(dir);
        self.current.require_dir(&dir)?;
        let mut dirs = vec![dir];
        // A rename connects two directories. Repeat until no directory is added.
        let mut known = 0;
        while known < dirs.len() {
            known = dirs.len();
            for change in &self.unsynced {
                let touched = change.dirs();
                if touched.iter().any(|dir| dirs.contains(dir)) {
                    dirs.extend(touched.into_iter().filter(|dir| !dirs.contains(dir)).collect::<Vec<_>>());
                }
            }
        }
        let durable = &mut self.durable;
        self.unsynced.retain(|change| {
            let synced = change.dirs().iter().any(|dir| dirs.contains(dir));
            if synced {
                // Fails if an enclosing directory is not durable; then the entry is not durable either.
                let _ = durable.apply(change);
            }
            !synced
        });
        Ok(())
    }

    /// Replaces the trees by those after a power failure.
    pub(super) fn crash(&mut self, policy: CrashPolicy, random: &mut Random) {
        for change in std::mem::take(&mut self.unsynced) {
            let survives = match policy {
                CrashPolicy::KeepAll => true,
                CrashPolicy::LoseAll => false,
                CrashPolicy::PerChange => random.below(2) == 0,
            };
            if survives {
                let _ = self.durable.apply(&change);
            }
        }
        self.current = self.durable.clone();
    }
}

impl Change {
    /// The directories whose entries change.
    fn dirs(&self) -> Vec<PathBuf> {
        match self {
            Change::Create(path, _) | Change::Remove(path) => vec![parent(path)],
            Change::Rename(from, to) => vec![parent(from), parent(to)],
        }
    }
}

impl Tree {
    fn get(&self, path: &Path) -> Option<Node> {
        if is_root(path) { Some(Node::Dir) } else { self.0.get(path).cloned() }
    }

    fn require_dir(&self, path: &Path) -> Result<(), ErrorKind> {
        match self.get(path) {
            Some(Node::Dir) => Ok(()),
            Some(Node::File(_)) => Err(io::ErrorKind::NotADirectory.into()),
            None => Err(ErrorKind::NotFound),
        }
    }

    fn children(&self, dir: &Path) -> impl Iterator<Item = &PathBuf> {
        // Paths are ordered by components, so the entries below a directory follow it.
        self.0
            .range(dir.to_path_buf()..)
            .map(|(path, _)| path)
            .take_while(move |path| path.starts_with(dir))
            .filter(move |path| path.parent() == Some(dir))
    }

    fn apply(&mut self, change: &Change) -> Result<(), ErrorKind> {
        match change {
            Change::Create(path, node) => {
                self.require_dir(&parent(path))?;
                if self.get(path).is_some() {
                    return Err(ErrorKind::Exists);
                }
                self.0.insert(path.clone(), node.clone());
            }
            Change::Remove(path) => {
                let node = self.0.get(path).ok_or(ErrorKind::NotFound)?;
                if matches!(node, Node::Dir) && self.children(path).next().is_some() {
                    return Err(io::ErrorKind::DirectoryNotEmpty.into());
                }
                self.0.remove(path);
            }
            Change::Rename(from, to) => self.rename(from, to)?,
        }
        Ok(())
    }

    fn rename(&mut self, from: &Path, to: &Path) -> Result<(), ErrorKind> {
        let node = self.0.get(from).cloned().ok_or(ErrorKind::NotFound)?;
        self.require_dir(&parent(to))?;
        if from == to {
            return Ok(());
        }
        match (&node, self.get(to)) {
            (Node::Dir, _) if to.starts_with(from) => return Err(io::ErrorKind::InvalidInput.into()),
            (_, None) | (Node::File(_), Some(Node::File(_))) => {}
            (Node::Dir, Some(Node::Dir)) if !is_root(to) && self.children(to).next().is_none() => {}
            (Node::File(_), Some(Node::Dir)) => return Err(io::ErrorKind::IsADirectory.into()),
            (Node::Dir, Some(Node::File(_))) => return Err(io::ErrorKind::NotADirectory.into()),
            (Node::Dir, Some(Node::Dir)) => return Err(io::ErrorKind::DirectoryNotEmpty.into()),
        }
        let below: Vec<_> = self.0.keys().filter(|path| path.starts_with(from)).cloned().collect();
        for old in below {
            if let Some(node) = self.0.remove(&old)
                && let Ok(rest) = old.strip_prefix(from)
            {
                let new = if rest.as_os_str().is_empty() { to.to_path_buf() } else { to.join(rest) };
                self.0.insert(new, node);
            }
        }
        Ok(())
    }
}

/// The path without `.`, `..` and a leading `/`; relative to the root.
pub(super) fn normal(path: &Path) -> PathBuf {
    let mut normal = PathBuf::new();
    for component in path.components() {
        match component {
            Component::Normal(name) => normal.push(name),
            Component::ParentDir => {
                normal.pop();
            }
            Component::CurDir | Component::RootDir | Component::Prefix(_) => {}
        }
    }
    normal
}

fn is_root(path: &Path) -> bool {
    path.as_os_str().is_empty()
}

fn parent(path: &Path) -> PathBuf {
    path.parent().map(Path::to_path_buf).unwrap_or_default()
}

fn name(path: &Path) -> String {
    path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::super::inode::Space;
    use super::*;

    fn node(number: u64) -> Node {
        Node::File(Arc::new(Mutex::new(Inode::new(number, Arc::new(Space::new(None))))))
    }

    fn number(namespace: &Namespace, path: &str) -> Option<u64> {
        namespace.file(Path::new(path)).ok().map(|inode| inode.lock().number)
    }

    fn lose_all(namespace: &mut Namespace) {
        namespace.crash(CrashPolicy::LoseAll, &mut Random::new(0));
    }

    #[test]
    fn only_synced_directories_survive() {
        let mut namespace = Namespace::default();
        namespace.create(Path::new("/d"), Node::Dir).unwrap();
        namespace.create(Path::new("/d/a"), node(1)).unwrap();
        namespace.sync_dir(Path::new("/d")).unwrap();
        lose_all(&mut namespace);
        assert!(namespace.get(Path::new("/d")).is_none(), "its parent was not synced");

        namespace.create(Path::new("d"), Node::Dir).unwrap();
        namespace.sync_dir(Path::new("/")).unwrap();
        namespace.create(Path::new("d/a"), node(1)).unwrap();
        namespace.sync_dir(Path::new("d")).unwrap();
        namespace.create(Path::new("d/b"), node(2)).unwrap();
        namespace.remove(Path::new("d/a")).unwrap();
        assert_eq!(namespace.list(Path::new("./d")).unwrap(), ["b"]);
        lose_all(&mut namespace);
        assert_eq!(namespace.list(Path::new("d/../d/")).unwrap(), ["a"]);
    }

    #[test]
    fn a_rename_is_all_or_nothing() {
        let (mut before, mut after) = (0, 0);
        for seed in 0..100 {
            let mut namespace = Namespace::default();
            namespace.create(Path::new("a"), node(1)).unwrap();
            namespace.create(Path::new("b"), node(2)).unwrap();
            namespace.sync_dir(Path::new("")).unwrap();
            namespace.rename(Path::new("b"), Path::new("a")).unwrap();
            namespace.crash(CrashPolicy::PerChange, &mut Random::new(seed));
            match (number(&namespace, "a"), number(&namespace, "b")) {
                (Some(1), Some(2)) => before += 1,
                (Some(2), None) => after += 1,
                other => panic!("half a rename: {other:?}"),
            }
        }
        assert!(before > 20 && after > 20);
    }

    #[test]
    fn a_rename_between_directories_is_never_a_loss() {
        for synced in ["x", "y"] {
            let mut namespace = Namespace::default();
            for dir in ["x", "y"] {
                namespace.create(Path::new(dir), Node::Dir).unwrap();
            }
            namespace.create(Path::new("x/a"), node(1)).unwrap();
            namespace.sync_dir(Path::new("/")).unwrap();
            namespace.sync_dir(Path::new("x")).unwrap();
            namespace.rename(Path::new("x/a"), Path::new("y/a")).unwrap();
            namespace.sync_dir(Path::new(synced)).unwrap();
            lose_all(&mut namespace);
            assert_eq!(number(&namespace, "y/a"), Some(1));
            assert_eq!(number(&namespace, "x/a"), None);
        }
    }

    #[test]
    fn directories_move_with_what_is_in_them() {
        let mut namespace = Namespace::default();
        for dir in ["d", "d/e", "de"] {
            namespace.create(Path::new(dir), Node::Dir).unwrap();
        }
        namespace.create(Path::new("d/e/f"), node(1)).unwrap();
        assert!(namespace.rename(Path::new("d"), Path::new("d/e/g")).is_err());
        namespace.rename(Path::new("d"), Path::new("z")).unwrap();
        assert_eq!(number(&namespace, "z/e/f"), Some(1));
        assert_eq!(namespace.list(Path::new("")).unwrap(), ["de", "z"]);
    }
}
