//! Follows a path through modules and re-exports.
//!
//! The result is every top-level module that the path touches: the ones it names on its way, and the one that defines what it
//! ends in, however many re-exports lie between. A name that stands for several things (a module and a function, imports
//! under different `cfg`) is followed to all of them. A first segment that the module does not define or import belongs to
//! another crate, the prelude or a local scope.

use std::collections::{BTreeSet, HashSet};

use super::source::{ModuleId, ROOT, Sources, UsedPath};

/// Part of the crate that a path leads to or through.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Touched<'a> {
    /// An item that the crate root itself defines, above all layers.
    Root,
    /// The top-level module of this name.
    Layer(&'a str),
}

impl Sources {
    /// The parts of the crate that `path`, written in `module`, touches.
    pub fn touched(&self, module: ModuleId, path: &UsedPath) -> BTreeSet<Touched<'_>> {
        let mut resolver = Resolver { sources: self, touched: BTreeSet::new(), visited: HashSet::new() };
        resolver.resolve(module, path);
        resolver.touched
    }

    /// The parts of the crate that the import behind the path's first segment touches. They are reported at the import.
    pub fn touched_by_import(&self, module: ModuleId, path: &UsedPath) -> BTreeSet<Touched<'_>> {
        let imports = self.modules[module].imports.iter();
        let behind = imports.filter(|(name, import)| path.segments.first() == Some(name) && import != path);
        behind.flat_map(|(_, import)| self.touched(module, import)).collect()
    }
}

struct Resolver<'a> {
    sources: &'a Sources,
    touched: BTreeSet<Touched<'a>>,
    /// Steps already taken; re-exports may form cycles.
    visited: HashSet<(ModuleId, Vec<String>, bool)>,
}

impl<'a> Resolver<'a> {
    /// Resolves a path relative to the module it is written in. Returns the modules it ends in.
    fn resolve(&mut self, module: ModuleId, path: &UsedPath) -> Vec<ModuleId> {
        let parent = |id: ModuleId| self.sources.modules[id].parent.unwrap_or(ROOT);
        let (start, rest) = match path.segments.split_first() {
            Some((first, rest)) if first == "crate" => (ROOT, rest),
            Some((first, rest)) if first == "self" => (module, rest),
            Some((first, rest)) if first == "super" => (parent(module), rest),
            _ => {
                return self.lookup(module, &path.segments, path.may_be_module).unwrap_or_default();
            }
        };
        let ups = rest.iter().take_while(|segment| *segment == "super").count();
        let start = (0..ups).fold(start, |id, _| parent(id));
        self.walk(start, &rest[ups..], path.may_be_module)
    }

    /// Resolves the rest of a path from a module that it has reached.
    fn walk(&mut self, module: ModuleId, rest: &[String], may_be_module: bool) -> Vec<ModuleId> {
        if let Some(layer) = self.sources.layer(module) {
            self.touched.insert(Touched::Layer(layer));
        }
        if rest.is_empty() {
            return vec![module];
        }
        self.lookup(module, rest, may_be_module).unwrap_or_else(|| {
            self.end(module);
            Vec::new()
        })
    }

    /// Looks the first segment up among a module's names and follows everything it stands for. None: no such name.
    fn lookup(&mut self, module: ModuleId, segments: &[String], may_be_module: bool) -> Option<Vec<ModuleId>> {
        let (first, rest) = segments.split_first()?;
        if !self.visited.insert((module, segments.to_vec(), may_be_module)) {
            return Some(Vec::new());
        }
        let sources = self.sources;
        let names = &sources.modules[module];
        let (mut found, mut ends) = (false, Vec::new());
        if let Some(&child) = names.children.get(first).filter(|_| may_be_module || !rest.is_empty()) {
            found = true;
            ends.extend(self.walk(child, rest, may_be_module));
        }
        if names.items.contains(first) {
            found = true;
            self.end(module);
        }
        for (_, import) in names.imports.iter().filter(|(name, _)| name == first) {
            found = true;
            for target in self.resolve(module, import) {
                ends.extend(self.walk(target, rest, may_be_module));
            }
        }
        if !found {
            for glob in &names.globs {
                for target in self.resolve_quietly(module, glob) {
                    if let Some(modules) = self.lookup(target, segments, may_be_module) {
                        found = true;
                        ends.extend(modules);
                    }
                }
            }
        }
        found.then_some(ends)
    }

    /// The modules of `use path::*`. The path itself is checked where it is written.
    fn resolve_quietly(&self, module: ModuleId, glob: &UsedPath) -> Vec<ModuleId> {
        let visited = self.visited.clone();
        Resolver { sources: self.sources, touched: BTreeSet::new(), visited }.resolve(module, glob)
    }

    /// The path ends in an item of `module`.
    fn end(&mut self, module: ModuleId) {
        self.touched.insert(self.sources.layer(module).map_or(Touched::Root, Touched::Layer));
    }
}
