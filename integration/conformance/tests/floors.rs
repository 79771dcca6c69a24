//! Which file of a crate may import from which: circles stay small, and no module of the core imports from a floor
//! above its own. No crate depends on a higher one.

use std::{
    collections::{BTreeSet, HashMap},
    fs,
    path::{Path, PathBuf},
};

use petgraph::{algo::tarjan_scc, graphmap::DiGraphMap};
use proc_macro2::{TokenStream, TokenTree};
use syn::{
    Attribute, File, Item, ItemMod, ItemUse, UseTree, Visibility,
    visit::{self, Visit},
};

/// The most files that may import each other in a circle.
const LARGEST_CIRCLE: usize = 3;

/// The top-level modules of the core, from the ground up: each imports only from those before it.
const CORE: &[&str] = &[
    "ids",
    "topology",
    "time",
    "shape",
    "amount",
    "batch",
    "text",
    "forms",
    "reason",
    "decision",
    "fit",
    "resources",
    "job",
    "budget",
    "policy",
    "server",
    "settings",
    "event",
    "tables",
    "state",
    "place",
    "engine",
    "solver",
    "guard",
    "engines",
    "journal",
    "scheduler",
    "replay",
    "explain",
    "paa",
    "testing",
];

/// The crates, from the ground up: each depends only on those before it.
const CRATES: &[&str] = &[
    "trainmaster-core",
    "trainmaster-sim",
    "trainmaster-net",
    "trainmaster-proto",
    "trainmaster-feed",
    "trainmaster-manager",
    "trainmaster-host",
    "trainmaster-policy",
    "trainmaster-terminal",
    "trainmaster-daemon",
    "trainmaster-analysis",
    "trainmaster-demo",
    "trainmaster-adapters",
    "trainmaster",
    "trainmaster-ffi",
    "trainmaster-slurm-submit",
    "trainmaster-slurm-agent",
    "trainmaster-trainer",
    "trainmaster-conformance",
    "trainmaster-fuzz",
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// `State::priority` and its like limit what a job file may claim; an engine that reads the claim itself would not.
#[test]
fn engines_read_claims_within_the_sites_caps() {
    for file in sources(&root().join("core/src/engines")) {
        let text = fs::read_to_string(&file).unwrap();
        for claim in ["priority", "urgency", "utility"] {
            let past = format!("job.spec.{claim}");
            assert!(!text.contains(&past), "{}: {past}: use state.{claim}(job)", file.display());
        }
    }
}

#[test]
fn circles_of_imports_are_small_in_every_crate() {
    let mut wrong = Vec::new();
    for member in members() {
        let mut unread = sources(&member);
        for start in ["src/lib.rs", "src/main.rs"].map(|start| member.join(start)).iter().filter(|it| it.exists()) {
            let crate_ = Crate::read(start);
            unread.retain(|file| !crate_.has(file));
            wrong.extend(crate_.circles().into_iter().filter(|circle| circle.len() > LARGEST_CIRCLE));
        }
        assert!(unread.is_empty(), "no module declares these files: {unread:#?}");
    }
    assert!(wrong.is_empty(), "these files import each other, at most {LARGEST_CIRCLE} may: {wrong:#?}");
}

fn table(path: &Path) -> toml::Table {
    fs::read_to_string(path).unwrap().parse().unwrap()
}

/// The folders of all crates.
fn members() -> Vec<PathBuf> {
    let manifest = table(&root().join("Cargo.toml"));
    let members = manifest["workspace"]["members"].as_array().unwrap();
    members.iter().map(|member| root().join(member.as_str().unwrap())).collect()
}

/// The sources below a folder, but for other crates, tests, and programs beside the main one.
fn sources(folder: &Path) -> BTreeSet<PathBuf> {
    let mut sources = BTreeSet::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        if path.is_dir() {
            let is_other = ["bin", "tests", "benches", "examples"].contains(&name);
            if !is_other && !path.join("Cargo.toml").exists() {
                sources.extend(self::sources(&path));
            }
        } else if name != "build.rs" && path.extension().is_some_and(|extension| extension == "rs") {
            sources.insert(path);
        }
    }
    sources
}

#[test]
fn no_crate_depends_on_a_higher_one() {
    let floor = |name: &str| CRATES.iter().position(|known| *known == name);
    let mut seen = BTreeSet::new();
    let mut wrong = Vec::new();
    for member in members() {
        let manifest = table(&member.join("Cargo.toml"));
        let name = manifest["package"]["name"].as_str().unwrap();
        let own = floor(name).unwrap_or_else(|| panic!("{name} is not in the list of crates"));
        seen.insert(own);
        let tables = ["dependencies", "build-dependencies"].into_iter().filter_map(|table| manifest.get(table));
        let uses = tables.filter_map(toml::Value::as_table).flat_map(|all| all.keys());
        wrong.extend(uses.filter(|used| floor(used) >= Some(own)).map(|used| format!("{name} depends on {used}")));
    }
    assert_eq!(seen.len(), CRATES.len(), "the list of crates is that of the workspace");
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn no_module_of_the_core_imports_from_a_higher_floor() {
    let crate_ = Crate::read(&root().join("core/src/lib.rs"));
    let floor = |module: &str| CORE.iter().position(|name| *name == module);
    let top = |module: &Module| module.path.first().cloned();
    let modules: BTreeSet<String> = crate_.modules.iter().filter_map(top).collect();
    assert_eq!(modules, CORE.iter().map(ToString::to_string).collect(), "the list of floors is the list of modules");
    let mut wrong = Vec::new();
    for (from, to) in crate_.imports() {
        // The crate's root only exports.
        if let (Some(lower), Some(upper)) = (top(&crate_.modules[from]), top(&crate_.modules[to]))
            && floor(&lower) < floor(&upper)
        {
            wrong.push(format!("{} imports {}", crate_.modules[from], crate_.modules[to]));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// The daemon and the commands know adapters by their interface alone.
#[test]
fn only_the_program_names_the_adapters() {
    let program = root().join("sidecar/src/main.rs");
    let is_code = |file: &PathBuf| file.components().any(|part| part.as_os_str() == "src") && *file != program;
    for file in sources(&root().join("sidecar")).iter().filter(|file| is_code(file)) {
        let text = fs::read_to_string(file).unwrap();
        assert!(!text.contains("trainmaster_adapters"), "{} names the adapters", file.display());
    }
}

#[test]
fn circles_are_found_through_reexports_macros_and_globs() {
    let folder = tempfile::tempdir().unwrap();
    let files = [
        ("lib.rs", "mod a; mod b; modules! { c: C, d: D } mod e; mod f; #[cfg(test)] mod tests;"),
        ("tests.rs", "use crate::f::F;"),
        ("a.rs", "pub struct A; fn f() { crate::b::hidden(); }"),
        ("b/mod.rs", "mod inner; pub use inner::*;"),
        ("b/inner.rs", "pub fn hidden() { println!(\"{:?}\", crate::c::Kind::One); }"),
        ("c.rs", "use super::d::*; pub enum Kind { One } fn g() -> D { D }"),
        ("d.rs", "use crate::a::A; pub struct D; impl D { fn h(_: A) {} }"),
        ("e.rs", "#[cfg(test)] mod tests { use crate::a::A; } pub struct E; pub use crate::f::F;"),
        ("f.rs", "use super::*; fn f() { println!(); e::E; } pub struct F;"),
    ];
    fs::create_dir(folder.path().join("b")).unwrap();
    for (name, text) in files {
        fs::write(folder.path().join(name), text).unwrap();
    }
    let crate_ = Crate::read(&folder.path().join("lib.rs"));
    assert!(sources(folder.path()).iter().all(|file| crate_.has(file)));
    let circles = crate_.circles();
    let mut names: Vec<Vec<_>> = circles
        .iter()
        .map(|circle| circle.iter().map(|file| file.strip_prefix(folder.path()).unwrap().to_str().unwrap()).collect())
        .collect();
    names.sort();
    assert_eq!(names, [vec!["a.rs", "b/inner.rs", "c.rs", "d.rs"], vec!["e.rs", "f.rs"]]);
}

/// A module, in a file of its own or inside one.
struct Module {
    path: Vec<String>,
    parent: Option<usize>,
    file: usize,
    children: HashMap<String, usize>,
    defined: BTreeSet<String>,
    /// Names that `use` brings in, with the paths they stand for.
    imported: HashMap<String, Vec<String>>,
    /// Paths that it only exports again.
    exported: Vec<Vec<String>>,
    globs: Vec<Vec<String>>,
    /// Paths that its own code mentions.
    mentioned: BTreeSet<Vec<String>>,
}

impl std::fmt::Display for Module {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.path.join("::"))
    }
}

/// The files of a crate, and what they import from each other. Tests are left out.
struct Crate {
    files: Vec<PathBuf>,
    modules: Vec<Module>,
    /// Files and folders of modules that are tests.
    tests: Vec<PathBuf>,
}

impl Crate {
    fn read(start: &Path) -> Self {
        let mut crate_ = Self { files: Vec::new(), modules: Vec::new(), tests: Vec::new() };
        let folder = start.parent().unwrap().to_path_buf();
        crate_.file(start.to_path_buf(), &folder, Vec::new(), None);
        crate_
    }

    /// Whether a file belongs to it.
    fn has(&self, file: &PathBuf) -> bool {
        self.files.contains(file) || self.tests.iter().any(|test| file.starts_with(test))
    }

    /// Reads a file. `folder` is where the files of its modules are.
    fn file(&mut self, path: PathBuf, folder: &Path, module: Vec<String>, parent: Option<usize>) -> usize {
        let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let File { items, .. } = syn::parse_file(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        self.files.push(path);
        self.module(self.files.len() - 1, &items, folder, module, parent)
    }

    fn module(
        &mut self,
        file: usize,
        items: &[Item],
        folder: &Path,
        path: Vec<String>,
        parent: Option<usize>,
    ) -> usize {
        let mut mentions = Mentions::default();
        items.iter().for_each(|item| mentions.visit_item(item));
        let Mentions { imported, exported, globs, mentioned } = mentions;
        let defined = items.iter().filter_map(name).collect();
        let me = self.modules.len();
        let children = HashMap::new();
        self.modules.push(Module { path, parent, file, children, defined, imported, exported, globs, mentioned });
        for inner in &modules(items, folder) {
            if is_test(&inner.attrs) {
                self.tests.extend([folder.join(format!("{}.rs", inner.ident)), folder.join(inner.ident.to_string())]);
                continue;
            }
            let name = inner.ident.to_string();
            let path = [self.modules[me].path.clone(), vec![name.clone()]].concat();
            let child = match (&inner.content, attribute(inner, "path")) {
                (Some((_, items)), _) => self.module(file, items, &folder.join(&name), path, Some(me)),
                (None, Some(at)) => {
                    let at = self.files[file].parent().unwrap().join(at).canonicalize().unwrap();
                    let inside = at.parent().unwrap().to_path_buf();
                    self.file(at, &inside, path, Some(me))
                }
                (None, None) => {
                    let inside = folder.join(&name);
                    let [flat, nested] = [folder.join(format!("{name}.rs")), inside.join("mod.rs")];
                    self.file(if flat.exists() { flat } else { nested }, &inside, path, Some(me))
                }
            };
            self.modules[me].children.insert(name, child);
        }
        me
    }

    /// The module that defines what a path in a module stands for. None: another crate's, or a local name.
    fn definition(&self, module: usize, path: &[String], depth: usize) -> Option<usize> {
        let (first, rest) = path.split_first()?;
        let (start, rest) = match first.as_str() {
            "crate" => (0, rest),
            "self" => (module, rest),
            "super" => (self.modules[module].parent?, rest),
            _ => return self.inside(module, path, depth),
        };
        match rest.first().map(String::as_str) {
            None => Some(start),
            Some("super") => self.definition(start, rest, depth),
            Some(_) => self.inside(start, rest, depth).or(Some(start)),
        }
    }

    fn inside(&self, module: usize, path: &[String], depth: usize) -> Option<usize> {
        let it = &self.modules[module];
        let Some((first, rest)) = path.split_first() else { return Some(module) };
        if let Some(child) = it.children.get(first) {
            return self.inside(*child, rest, depth).or(Some(*child));
        }
        if it.defined.contains(first) {
            return Some(module);
        }
        if depth == 0 {
            return None;
        }
        if let Some(target) = it.imported.get(first).filter(|target| target.as_slice() != path) {
            return self.definition(module, &[target, rest].concat(), depth - 1);
        }
        let globbed = it.globs.iter().filter_map(|glob| self.definition(module, glob, depth - 1));
        globbed.filter(|from| *from != module).find_map(|from| self.inside(from, path, depth - 1))
    }

    /// Modules that import from modules in other files.
    fn imports(&self) -> Vec<(usize, usize)> {
        let mut imports = Vec::new();
        for (from, module) in self.modules.iter().enumerate() {
            for path in module.mentioned.iter().chain(module.exported.iter().filter(|path| self.leaves(from, path))) {
                let found = self.definition(from, path, 16);
                // A name on its own that is also a module's is a variable.
                let variable =
                    |to: usize| path.len() == 1 && !self.defines(to, path) && module.children.contains_key(&path[0]);
                if let Some(to) = found.filter(|to| self.modules[*to].file != module.file && !variable(*to)) {
                    imports.push((from, to));
                }
            }
        }
        imports
    }

    /// Whether an exported path is another part's, rather than of a module inside this one.
    fn leaves(&self, from: usize, path: &[String]) -> bool {
        let to = self.definition(from, path, 16);
        to.is_some_and(|to| !self.modules[to].path.starts_with(&self.modules[from].path))
    }

    fn defines(&self, module: usize, path: &[String]) -> bool {
        self.modules[module].defined.contains(&path[0])
    }

    /// Sets of files of which each imports, directly or not, from all others of the set.
    fn circles(&self) -> Vec<Vec<PathBuf>> {
        let mut graph = DiGraphMap::<usize, ()>::new();
        for (from, to) in self.imports() {
            graph.add_edge(self.modules[from].file, self.modules[to].file, ());
        }
        let sets = tarjan_scc(&graph).into_iter().filter(|files| files.len() > 1);
        let mut sets: Vec<Vec<PathBuf>> =
            sets.map(|files| files.into_iter().map(|file| self.files[file].clone()).collect()).collect();
        sets.iter_mut().for_each(|set| set.sort());
        sets
    }
}

/// What the items of a module mention, without its inner modules.
#[derive(Default)]
struct Mentions {
    imported: HashMap<String, Vec<String>>,
    exported: Vec<Vec<String>>,
    globs: Vec<Vec<String>>,
    mentioned: BTreeSet<Vec<String>>,
}

impl Mentions {
    fn import(&mut self, tree: &UseTree, before: &[String], exported: bool) {
        let with = |name: &dyn ToString| [before, &[name.to_string()]].concat();
        match tree {
            UseTree::Path(path) => self.import(&path.tree, &with(&path.ident), exported),
            UseTree::Group(group) => group.items.iter().for_each(|tree| self.import(tree, before, exported)),
            UseTree::Glob(_) => {
                self.globs.push(before.to_vec());
                self.uses(before.to_vec(), exported);
            }
            UseTree::Name(_) | UseTree::Rename(_) => {
                let (name, alias) = match tree {
                    UseTree::Rename(it) => (&it.ident, &it.rename),
                    UseTree::Name(it) => (&it.ident, &it.ident),
                    _ => unreachable!(),
                };
                let path = if name == "self" { before.to_vec() } else { with(name) };
                let alias = if alias == "self" { path.last().cloned() } else { Some(alias.to_string()) };
                self.uses(path.clone(), exported);
                self.imported.extend(alias.map(|alias| (alias, path)));
            }
        }
    }

    fn uses(&mut self, path: Vec<String>, exported: bool) {
        match exported {
            true => self.exported.push(path),
            false => _ = self.mentioned.insert(path),
        }
    }

    /// Paths in what a macro gets, which is not parsed.
    fn tokens(&mut self, tokens: TokenStream) {
        let mut path: Vec<String> = Vec::new();
        let mut colons = 0;
        for token in tokens {
            match token {
                TokenTree::Ident(ident) => {
                    if colons != 2 {
                        self.mentioned.extend(Some(std::mem::take(&mut path)).filter(|path| !path.is_empty()));
                    }
                    path.push(ident.to_string());
                    colons = 0;
                }
                TokenTree::Punct(punct) if punct.as_char() == ':' => colons += 1,
                other => {
                    self.mentioned.extend(Some(std::mem::take(&mut path)).filter(|path| !path.is_empty()));
                    colons = 0;
                    if let TokenTree::Group(group) = other {
                        self.tokens(group.stream());
                    }
                }
            }
        }
        self.mentioned.extend(Some(path).filter(|path| !path.is_empty()));
    }
}

impl<'ast> Visit<'ast> for Mentions {
    fn visit_item(&mut self, item: &'ast Item) {
        if !is_test(attributes(item)) {
            visit::visit_item(self, item);
        }
    }

    /// An inner module is one of its own.
    fn visit_item_mod(&mut self, _: &'ast ItemMod) {}

    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        self.import(&item.tree, &[], !matches!(item.vis, Visibility::Inherited));
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        self.mentioned.insert(path.segments.iter().map(|segment| segment.ident.to_string()).collect());
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, it: &'ast syn::Macro) {
        self.tokens(it.tokens.clone());
        visit::visit_macro(self, it);
    }

    /// Where an item can be seen is no import.
    fn visit_visibility(&mut self, _: &'ast Visibility) {}

    fn visit_attribute(&mut self, _: &'ast Attribute) {}
}

fn is_test(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("cfg")
            && attribute.parse_args::<syn::Path>().is_ok_and(|condition| condition.is_ident("test"))
    })
}

/// The text of an attribute `#[name = "text"]`.
fn attribute(module: &ItemMod, name: &str) -> Option<String> {
    let it = module.attrs.iter().find(|attribute| attribute.path().is_ident(name))?;
    let syn::Expr::Lit(syn::ExprLit { lit: syn::Lit::Str(text), .. }) = &it.meta.require_name_value().ok()?.value
    else {
        return None;
    };
    Some(text.value())
}

/// The modules that items declare, those that a macro lists among them.
fn modules(items: &[Item], folder: &Path) -> Vec<ItemMod> {
    let mut modules = Vec::new();
    for item in items {
        match item {
            Item::Mod(module) => modules.push(module.clone()),
            Item::Macro(list) if list.ident.is_none() => {
                for token in list.mac.tokens.clone() {
                    let TokenTree::Ident(name) = token else { continue };
                    let file = folder.join(name.to_string());
                    if file.with_extension("rs").exists() || file.join("mod.rs").exists() {
                        modules.push(syn::parse_quote!(mod #name;));
                    }
                }
            }
            _ => {}
        }
    }
    modules
}

fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(it) => &it.attrs,
        Item::Enum(it) => &it.attrs,
        Item::Fn(it) => &it.attrs,
        Item::Impl(it) => &it.attrs,
        Item::Macro(it) => &it.attrs,
        Item::Mod(it) => &it.attrs,
        Item::Static(it) => &it.attrs,
        Item::Struct(it) => &it.attrs,
        Item::Trait(it) => &it.attrs,
        Item::Type(it) => &it.attrs,
        Item::Use(it) => &it.attrs,
        _ => &[],
    }
}

fn name(item: &Item) -> Option<String> {
    Some(match item {
        Item::Const(it) => it.ident.to_string(),
        Item::Enum(it) => it.ident.to_string(),
        Item::Fn(it) => it.sig.ident.to_string(),
        Item::Macro(it) => it.ident.as_ref()?.to_string(),
        Item::Static(it) => it.ident.to_string(),
        Item::Struct(it) => it.ident.to_string(),
        Item::Trait(it) => it.ident.to_string(),
        Item::Type(it) => it.ident.to_string(),
        Item::Union(it) => it.ident.to_string(),
        _ => return None,
    })
}
