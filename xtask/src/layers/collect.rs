//! Collects names and paths from a parsed file: `use` trees, paths in expressions, types, patterns and attributes, and paths
//! in the token streams of macros.

use proc_macro2::{Ident, Span, TokenStream, TokenTree};
use syn::visit::{self, Visit};
use syn::{Attribute, Item, ItemMod, ItemUse, Lit, Meta, UseTree};

use super::source::{Declared, ModuleId, Sources, UsedPath};

/// Fills the module `id` and its inline modules from `file`. Returns the modules declared in other files.
pub fn collect(sources: &mut Sources, id: ModuleId, file: &syn::File) -> Vec<Declared> {
    let mut collector = Collector { sources, module: id, inline: Vec::new(), declared: Vec::new() };
    collector.visit_file(file);
    collector.declared
}

struct Collector<'a> {
    sources: &'a mut Sources,
    /// The module whose items are being visited.
    module: ModuleId,
    /// Names of the inline modules from the file's own module to `module`.
    inline: Vec<String>,
    declared: Vec<Declared>,
}

impl Collector<'_> {
    fn add_path(&mut self, segments: &[String], span: Span, may_be_module: bool) -> UsedPath {
        let path = UsedPath { segments: segments.to_vec(), line: span.start().line, may_be_module };
        self.sources.modules[self.module].paths.push(path.clone());
        path
    }

    fn add_item(&mut self, ident: &Ident) {
        self.sources.modules[self.module].items.insert(name(ident));
    }

    fn use_tree(&mut self, prefix: &mut Vec<String>, tree: &UseTree) {
        match tree {
            UseTree::Path(path) => {
                prefix.push(name(&path.ident));
                self.use_tree(prefix, &path.tree);
                prefix.pop();
            }
            UseTree::Name(leaf) => self.import(prefix, &leaf.ident, None),
            UseTree::Rename(leaf) => self.import(prefix, &leaf.ident, Some(&leaf.rename)),
            UseTree::Glob(glob) => {
                let path = self.add_path(prefix, glob.star_token.spans[0], true);
                self.sources.modules[self.module].globs.push(path);
            }
            UseTree::Group(group) => group.items.iter().for_each(|tree| self.use_tree(prefix, tree)),
        }
    }

    /// One name of a `use` declaration. `path::{self}` stands for `path`.
    fn import(&mut self, prefix: &[String], ident: &Ident, rename: Option<&Ident>) {
        let mut segments = prefix.to_vec();
        if ident != "self" || prefix.is_empty() {
            segments.push(name(ident));
        }
        let path = self.add_path(&segments, ident.span(), true);
        let bound = rename.map(name).or_else(|| segments.last().cloned());
        self.sources.modules[self.module].imports.extend(bound.map(|bound| (bound, path)));
    }

    /// Finds `a::b::c` and `a::{b, c::d}` among tokens that belong to a macro.
    fn tokens(&mut self, prefix: &[String], stream: &TokenStream) {
        let tokens: Vec<TokenTree> = stream.clone().into_iter().collect();
        let is = |index: usize, character: char| matches!(tokens.get(index), Some(TokenTree::Punct(punct)) if punct.as_char() == character);
        let colons = |index: usize| is(index, ':') && is(index + 1, ':');
        let mut index = 0;
        while index < tokens.len() {
            match &tokens[index] {
                TokenTree::Group(group) => self.tokens(&[], &group.stream()),
                TokenTree::Ident(first) if !follows_operator(&tokens[..index]) => {
                    let mut segments = prefix.to_vec();
                    segments.push(name(first));
                    while colons(index + 1) {
                        let Some(TokenTree::Ident(next)) = tokens.get(index + 3) else { break };
                        segments.push(name(next));
                        index += 3;
                    }
                    match tokens.get(index + 3) {
                        Some(TokenTree::Group(group)) if colons(index + 1) => {
                            self.tokens(&segments, &group.stream());
                            index += 3;
                        }
                        _ => {
                            self.add_path(&segments, first.span(), segments.len() > 1);
                        }
                    }
                }
                _ => {}
            }
            index += 1;
        }
    }

    /// Strings that are paths, as in `#[serde(with = "crate::codec::text")]`.
    fn strings(&mut self, stream: TokenStream) {
        for token in stream {
            match token {
                TokenTree::Group(group) => self.strings(group.stream()),
                TokenTree::Literal(literal) => {
                    if let Lit::Str(text) = Lit::new(literal)
                        && let Ok(path) = text.parse::<syn::Path>()
                    {
                        self.visit_path(&path);
                    }
                }
                _ => {}
            }
        }
    }
}

impl<'ast> Visit<'ast> for Collector<'_> {
    fn visit_item(&mut self, item: &'ast Item) {
        match item {
            Item::Const(item) => self.add_item(&item.ident),
            Item::Enum(item) => self.add_item(&item.ident),
            Item::Fn(item) => self.add_item(&item.sig.ident),
            Item::Static(item) => self.add_item(&item.ident),
            Item::Struct(item) => self.add_item(&item.ident),
            Item::Trait(item) => self.add_item(&item.ident),
            Item::TraitAlias(item) => self.add_item(&item.ident),
            Item::Type(item) => self.add_item(&item.ident),
            Item::Union(item) => self.add_item(&item.ident),
            Item::Macro(item) => item.ident.iter().for_each(|ident| self.add_item(ident)),
            _ => {}
        }
        visit::visit_item(self, item);
    }

    fn visit_item_mod(&mut self, item: &'ast ItemMod) {
        item.attrs.iter().for_each(|attribute| self.visit_attribute(attribute));
        let name = name(&item.ident);
        let Some((_, items)) = &item.content else {
            let path = item.attrs.iter().find_map(path_attribute);
            let inline = self.inline.clone();
            self.declared.push(Declared { parent: self.module, name, inline, path });
            return;
        };
        let outer = self.module;
        let file = self.sources.modules[outer].file.clone();
        self.module = self.sources.add(Some(outer), &name, file);
        self.inline.push(name);
        items.iter().for_each(|item| self.visit_item(item));
        self.inline.pop();
        self.module = outer;
    }

    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        // `use ::name` is a path to another crate.
        if item.leading_colon.is_none() {
            self.use_tree(&mut Vec::new(), &item.tree);
        }
    }

    fn visit_item_extern_crate(&mut self, item: &'ast syn::ItemExternCrate) {
        // `extern crate self as name` is another name of the crate root.
        if let ("self", Some((_, rename))) = (item.ident.to_string().as_str(), &item.rename) {
            let root =
                UsedPath { segments: vec!["crate".into()], line: item.ident.span().start().line, may_be_module: true };
            self.sources.modules[self.module].imports.push((name(rename), root));
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        if path.leading_colon.is_none()
            && let Some(first) = path.segments.first()
        {
            let segments: Vec<String> = path.segments.iter().map(|segment| name(&segment.ident)).collect();
            self.add_path(&segments, first.ident.span(), false);
        }
        visit::visit_path(self, path);
    }

    fn visit_vis_restricted(&mut self, _: &'ast syn::VisRestricted) {
        // `pub(in path)` names a module around this one.
    }

    fn visit_attribute(&mut self, attribute: &'ast Attribute) {
        if attribute.path().is_ident("doc") {
            return;
        }
        match &attribute.meta {
            Meta::List(list) => self.strings(list.tokens.clone()),
            Meta::NameValue(pair) => {
                if let syn::Expr::Lit(syn::ExprLit { lit: Lit::Str(text), .. }) = &pair.value
                    && let Ok(path) = text.parse::<syn::Path>()
                {
                    self.visit_path(&path);
                }
            }
            Meta::Path(_) => {}
        }
        visit::visit_attribute(self, attribute);
    }

    fn visit_token_stream(&mut self, stream: &'ast TokenStream) {
        self.tokens(&[], stream);
    }
}

/// The name without `r#`.
fn name(ident: &Ident) -> String {
    let text = ident.to_string();
    text.strip_prefix("r#").map_or(text.clone(), str::to_string)
}

/// True if the next identifier does not begin a path: a field or method (`x.name`), a lifetime (`'name`), the rest of a path
/// (`<T as A>::name`) or a path to another crate (`::name`).
fn follows_operator(before: &[TokenTree]) -> bool {
    let punct = |back: usize| match before.len().checked_sub(back).and_then(|index| before.get(index)) {
        Some(TokenTree::Punct(punct)) => Some(punct.as_char()),
        _ => None,
    };
    match punct(1) {
        Some('.') => punct(2) != Some('.'),
        Some(':') => punct(2) == Some(':'),
        Some('\'') => true,
        _ => false,
    }
}

/// The value of `#[path = "..."]`.
fn path_attribute(attribute: &Attribute) -> Option<String> {
    match &attribute.meta {
        Meta::NameValue(pair) if pair.path.is_ident("path") => match &pair.value {
            syn::Expr::Lit(syn::ExprLit { lit: Lit::Str(text), .. }) => Some(text.value()),
            _ => None,
        },
        _ => None,
    }
}
