//! The arrows between modules, as a test: Rust has no firewall inside a crate.
//!
//! [`ROWS`] says of each module what it may name, lowest first. The test reads `src/**/*.rs` and refuses a path into a
//! module that is not in the row of the file, a word that its layer must not know, a file without a row, and a row
//! that points upward. Paths through `crate`, `self` and `super` are followed alike, in nested lists and in tests, too. A
//! test (a module named `tests`) keeps to the row, but may use the machine: files, time, processes.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

/// What a module may name. A module may always name what lies inside of it.
#[derive(Clone, Copy, Debug)]
struct Row {
    module: &'static str,
    /// `a::b` is that module alone, `a::*` also all inside of it. Only modules of earlier rows.
    may: &'static [&'static str],
    /// Words, and paths of the standard library, that must not occur: `kube` also stands for `kube_runtime::…`.
    not: &'static [&'static str],
    /// The files inside of it have no rows of their own, and may name each other.
    whole: bool,
}

impl Row {
    const fn not(self, not: &'static [&'static str]) -> Self {
        Self { not, ..self }
    }

    const fn whole(self) -> Self {
        Self { whole: true, ..self }
    }
}

const fn row(module: &'static str, may: &'static [&'static str]) -> Row {
    Row { module, may, not: &[], whole: false }
}

/// The core reads, writes, waits, logs and dates nothing; time and chance are arguments.
const PURE: &[&str] = &[
    "async",
    "await",
    "tokio",
    "serde",
    "tracing",
    "rand",
    "etcd",
    "etcd_client",
    "kube",
    "clap",
    "std::time::SystemTime",
    "std::time::Instant",
    "std::env",
    "std::fs",
    "std::io",
    "std::process",
    "std::thread",
];

/// The store neither decides nor knows who calls; etcd's client stops at one file.
const STORE: &[&str] = &["etcd_client", "tonic", "kube", "k8s_openapi", "clap", "std::env"];

/// A use case talks to the trait: no format, no argument, no environment, no client of anything.
const USE_CASE: &[&str] =
    &["etcd_client", "tonic", "kube", "k8s_openapi", "clap", "serde", "serde_json", "std::env", "println"];

/// Lowest first. A new module gets a line here, above everything that names it.
const ROWS: &[Row] = &[
    row("domain", &[]).not(PURE),
    row("domain::addr", &[]).not(PURE),
    row("domain::nearest", &[]).not(PURE),
    row("domain::words", &[]).not(PURE),
    row("domain::names", &[]).not(PURE),
    row("domain::pool", &["domain::addr", "domain::names"]).not(PURE),
    row("domain::lease", &["domain::addr", "domain::names"]).not(PURE),
    row("domain::workload", &["domain::names"]).not(PURE),
    row(
        "domain::select",
        &["domain::addr", "domain::names", "domain::pool", "domain::lease", "domain::workload"],
    )
    .not(PURE),
    row("domain::choose", &["domain::addr", "domain::names", "domain::pool", "domain::lease"]).not(PURE),
    row("domain::kubernetes", &["domain::lease", "domain::names"]).not(PURE),
    row(
        "domain::reap",
        &["domain::names", "domain::pool", "domain::lease", "domain::workload", "domain::kubernetes"],
    )
    .whole()
    .not(PURE),
    row("domain::audit", &["domain::addr", "domain::names", "domain::pool", "domain::lease"]).not(PURE),
    row("pem", &["domain::lease"]).not(&["etcd_client", "tonic", "kube", "clap", "std::env"]),
    // the Kubernetes API; its types and its client end there
    row("pods", &["domain::*", "pem"]).whole().not(&["etcd_client", "tonic", "clap"]),
    row("probe", &[]).whole().not(&["etcd_client", "kube", "clap", "serde"]),
    row("store", &["domain::*"]).not(STORE),
    row("store::keys", &["domain::*", "store"]).not(STORE),
    row("store::json", &[]).not(STORE),
    row("store::record", &["domain::*", "store", "store::keys", "store::json"]).not(STORE),
    row("store::changes", &["domain::*", "store", "store::keys", "store::record"]).not(STORE),
    row("store::repairs", &["domain::*", "store", "store::keys", "store::record", "store::changes"])
        .not(STORE),
    row("store::testing", &["domain::*", "store", "store::keys", "store::record", "store::changes"])
        .whole()
        .not(STORE),
    row("store::etcd", &["domain::*", "pem", "store", "store::keys"]).whole().not(&[
        "kube",
        "k8s_openapi",
        "clap",
        "std::env",
    ]),
    row("store::local", &["domain::*", "store", "store::keys"]).whole().not(STORE),
    row("store::any", &["domain::*", "store", "store::keys", "store::etcd", "store::local"]).not(STORE),
    // it gets text, and reads neither files nor the environment
    row("config", &["domain::*", "store", "store::etcd", "store::local"]).whole().not(&[
        "etcd_client",
        "tonic",
        "kube",
        "clap",
        "std::fs",
        "std::env",
    ]),
    row("journal", &["domain::*", "store"]).whole().not(&[
        "etcd_client",
        "tonic",
        "kube",
        "clap",
        "std::env",
    ]),
    row(
        "ops",
        &["domain::*", "probe::*", "store", "store::keys", "store::record", "store::changes", "journal::*"],
    )
    .whole()
    .not(USE_CASE),
    // the one place that reads settings from the disk
    row("host", &["domain::*", "store::*", "config::*", "ops"]).whole().not(&["kube", "clap", "println"]),
    // what an installer writes to a node's disk
    row("install", &["domain::*", "store", "store::etcd", "config::*", "host"]).not(&[
        "etcd_client",
        "tonic",
        "kube",
        "clap",
        "std::env",
        "println",
    ]),
    // what a person does to the store; the plugin has no use for it
    row(
        "admin",
        &[
            "domain::*",
            "store",
            "store::keys",
            "store::record",
            "store::changes",
            "store::repairs",
            "journal::*",
            "ops::*",
        ],
    )
    .whole()
    .not(&["etcd_client", "tonic", "kube", "k8s_openapi", "clap", "std::env", "println"]),
    row(
        "reaper",
        &[
            "domain::*",
            "store",
            "store::keys",
            "store::record",
            "store::changes",
            "ops::*",
            "admin::*",
            "pods",
        ],
    )
    .whole()
    .not(USE_CASE),
    // where lines go is a setting; what is in them is the caller's
    row("telemetry", &["domain::lease", "config"]).not(&["etcd_client", "kube", "clap"]),
    // the use cases' log, on this host's file
    row("trail", &["domain::*", "config", "host", "ops", "telemetry"]).not(&["etcd_client", "kube", "clap"]),
    // the plugin on the node never talks to the Kubernetes API
    row(
        "cni",
        &[
            "domain::*",
            "probe::*",
            "store::*",
            "config::*",
            "journal::*",
            "ops::*",
            "host",
            "telemetry",
            "trail",
        ],
    )
    .whole()
    .not(&["kube", "k8s_openapi", "pods", "reaper", "clap", "etcd_client", "tonic"]),
    row(
        "cli",
        &[
            "domain::*",
            "probe::*",
            "store::*",
            "config::*",
            "journal::*",
            "ops::*",
            "host",
            "install",
            "admin::*",
            "pods",
            "reaper::*",
            "telemetry",
            "trail",
        ],
    )
    .whole()
    .not(&["kube", "k8s_openapi", "etcd_client", "tonic"]),
    row("", &[]), // lib.rs lists the modules
    row("main", &["cni", "cli"]),
];

/// Tests of any module may also name this: the suite that every store passes, and stores that fail on purpose.
const FOR_TESTS: &str = "store::testing";

#[test]
fn every_arrow_points_down() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut sources = Vec::new();
    collect(&root, &root, &mut sources);
    let faults = faults(ROWS, &sources);
    assert!(faults.is_empty(), "\n{}\n", faults.join("\n"));
    assert!(sources.iter().any(|source| source.module == "domain::addr"), "it reads something else");
}

#[derive(Debug)]
struct Source {
    /// `src/store/keys.rs`, for the message.
    path: String,
    module: String,
    text: String,
}

impl Source {
    /// From a path below `src`.
    fn new(path: &str, text: &str) -> Self {
        let module = path.strip_suffix(".rs").unwrap().replace('/', "::");
        let module = module.strip_suffix("::mod").unwrap_or(&module);
        let module = if module == "lib" { "" } else { module };
        Self { path: format!("src/{path}"), module: module.into(), text: text.into() }
    }
}

fn collect(root: &Path, folder: &Path, sources: &mut Vec<Source>) {
    let mut paths: Vec<PathBuf> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    for path in paths {
        if path.is_dir() {
            collect(root, &path, sources);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let below = path.strip_prefix(root).unwrap().to_str().unwrap();
            sources.push(Source::new(below, &fs::read_to_string(&path).unwrap()));
        }
    }
}

/// Everything that is wrong, a line each.
fn faults(rows: &[Row], sources: &[Source]) -> Vec<String> {
    let mut faults = Vec::new();
    for (index, row) in rows.iter().enumerate() {
        for entry in row.may {
            let named = entry.strip_suffix("::*").unwrap_or(entry);
            let is_lower = rows[..index].iter().any(|lower| lower.module == named);
            if !is_lower {
                faults.push(format!("the table: {} may name {entry}, which is no row above it", row.module));
            }
        }
    }
    let files: BTreeSet<&str> = sources.iter().map(|source| source.module.as_str()).collect();
    let macros = sources.iter().flat_map(exported_macros).collect();
    for source in sources {
        match row_of(rows, &source.module) {
            Some(row) => faults.extend(faults_of(rows, &files, &macros, row, source)),
            None => faults.push(format!("{}: no row for it in integration/layering.rs", source.path)),
        }
    }
    faults
}

/// An exported macro is named from the root of the crate; its name stands for the module that it is in.
fn exported_macros(source: &Source) -> Vec<(String, String)> {
    let tokens = tokens(&source.text);
    let names = tokens.windows(3).filter(|window| window[0].text == "macro_rules" && window[1].text == "!");
    names.map(|window| (window[2].text.clone(), source.module.clone())).collect()
}

/// The row of a module: its own, or that of the module around it which has one for all.
fn row_of<'a>(rows: &'a [Row], module: &str) -> Option<&'a Row> {
    let own = rows.iter().find(|row| row.module == module);
    own.or_else(|| rows.iter().find(|row| row.whole && is_inside(module, row.module)))
}

fn is_inside(module: &str, outer: &str) -> bool {
    outer.is_empty()
        || module == outer
        || module.strip_prefix(outer).is_some_and(|rest| rest.starts_with("::"))
}

fn faults_of(
    rows: &[Row],
    files: &BTreeSet<&str>,
    macros: &BTreeMap<String, String>,
    row: &Row,
    source: &Source,
) -> BTreeSet<String> {
    let mut faults = BTreeSet::new();
    let mut add = |line: usize, text: String| faults.insert(format!("{}:{line}: {text}", source.path));
    let tokens = tokens(&source.text);
    for path in paths(&source.module, &tokens) {
        let joined = path.segments.join("::");
        match path.root {
            Root::Outside => {
                let mut words = row.not.iter().filter(|word| word.contains("::") && !path.in_tests);
                // `use std::time;` would be a way round `std::time::Instant`
                if let Some(word) = words.find(|word| is_inside(&joined, word) || is_inside(word, &joined)) {
                    add(path.line, format!("{} must not name {word} ({joined})", row.module));
                }
                let first = &path.segments[0];
                if let Some(word) = row
                    .not
                    .iter()
                    .find(|word| first.strip_prefix(**word).is_some_and(|rest| rest.starts_with('_')))
                {
                    add(path.line, format!("{} must not name {word} ({joined})", row.module));
                }
            }
            Root::Crate => {
                let known =
                    |module: &str| files.contains(module) || rows.iter().any(|row| row.module == module);
                let lengths = (1..=path.segments.len()).rev();
                let target =
                    lengths.map(|length| path.segments[..length].join("::")).find(|module| known(module));
                let target = target.or_else(|| macros.get(&joined).cloned());
                match target {
                    None => {
                        add(path.line, format!("{} names crate::{joined}, which is no module", row.module))
                    }
                    Some(target) if is_allowed(row, &target) => false,
                    Some(target) if path.in_tests && is_inside(&target, FOR_TESTS) => false,
                    Some(target) => {
                        add(path.line, format!("{} must not name {target} (crate::{joined})", row.module))
                    }
                };
            }
        }
    }
    for (index, token) in tokens.iter().enumerate() {
        if row.not.contains(&token.text.as_str()) {
            add(token.line, format!("{} must not say {}", row.module, token.text));
        }
        let next = tokens.get(index + 1).map(|next| next.text.as_str());
        if token.text == "crate" && next == Some("as") {
            add(token.line, format!("{} gives the crate another name", row.module));
        }
    }
    faults
}

fn is_allowed(row: &Row, target: &str) -> bool {
    let own = !row.module.is_empty() && is_inside(target, row.module);
    own || row.may.iter().any(|entry| match entry.strip_suffix("::*") {
        Some(outer) => is_inside(target, outer),
        None => target == *entry,
    })
}

#[derive(Debug)]
struct Token {
    text: String,
    line: usize,
}

/// Identifiers, `::`, and single other characters; no comments, no literals.
fn tokens(text: &str) -> Vec<Token> {
    let chars: Vec<char> = text.chars().collect();
    let at = |index: usize| chars.get(index).copied().unwrap_or('\0');
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let mut tokens = Vec::new();
    let (mut index, mut line) = (0, 1);
    while index < chars.len() {
        let start = index;
        match at(index) {
            '/' if at(index + 1) == '/' => {
                while index < chars.len() && at(index) != '\n' {
                    index += 1;
                }
            }
            '/' if at(index + 1) == '*' => {
                let mut depth = 0;
                loop {
                    match (at(index), at(index + 1)) {
                        ('/', '*') => (depth, index) = (depth + 1, index + 2),
                        ('*', '/') => (depth, index) = (depth - 1, index + 2),
                        _ => index += 1,
                    }
                    if depth == 0 || index >= chars.len() {
                        break;
                    }
                }
            }
            '"' => index = after_string(&chars, index),
            '\'' if at(index + 1) == '\\' => {
                index += 3; // the quote, the backslash, and what it escapes, which may be a quote
                while index < chars.len() && at(index) != '\'' {
                    index += 1;
                }
                index += 1;
            }
            '\'' if at(index + 2) == '\'' => index += 3,
            '\'' => index += 1, // a lifetime
            c if is_word(c) => {
                while is_word(at(index)) {
                    index += 1;
                }
                let word: String = chars[start..index].iter().collect();
                let hashes = chars[index..].iter().take_while(|c| **c == '#').count();
                if matches!(word.as_str(), "r" | "br" | "cr") && at(index + hashes) == '"' {
                    index = after_raw_string(&chars, index + hashes + 1, hashes);
                } else if word == "r" && hashes == 1 {
                    index += 1; // a raw identifier: the word follows
                } else {
                    tokens.push(Token { text: word, line });
                }
            }
            ':' if at(index + 1) == ':' => {
                tokens.push(Token { text: "::".into(), line });
                index += 2;
            }
            c => {
                if !c.is_whitespace() {
                    tokens.push(Token { text: c.into(), line });
                }
                index += 1;
            }
        }
        line += chars[start..index.min(chars.len())].iter().filter(|c| **c == '\n').count();
    }
    tokens
}

fn after_string(chars: &[char], opening: usize) -> usize {
    let mut index = opening + 1;
    while index < chars.len() && chars[index] != '"' {
        index += if chars[index] == '\\' { 2 } else { 1 };
    }
    index + 1
}

fn after_raw_string(chars: &[char], start: usize, hashes: usize) -> usize {
    let closes = |index: usize| {
        chars[index] == '"' && chars[index + 1..].iter().take(hashes).filter(|c| **c == '#').count() == hashes
    };
    (start..chars.len()).find(|index| closes(*index)).map_or(chars.len(), |index| index + 1 + hashes)
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Root {
    Crate,
    Outside,
}

#[derive(Debug)]
struct Named {
    root: Root,
    segments: Vec<String>,
    line: usize,
    in_tests: bool,
}

/// Every path of more than one part, lists taken apart; those into the crate from its root.
fn paths(module: &str, tokens: &[Token]) -> Vec<Named> {
    let text = |index: usize| tokens.get(index).map_or("", |token| token.text.as_str());
    let mut found = Vec::new();
    let mut here: Vec<String> = module.split("::").filter(|part| !part.is_empty()).map(Into::into).collect();
    if module == "main" {
        here.clear(); // main.rs is a root of its own, and names the library by its name
    }
    let mut depth = 0;
    let mut inline = Vec::new(); // the depths at which modules inside the file began
    for index in 0..tokens.len() {
        match text(index) {
            "{" => {
                depth += 1;
                if index >= 2 && text(index - 2) == "mod" {
                    here.push(text(index - 1).into());
                    inline.push(depth);
                }
            }
            "}" => {
                if inline.last() == Some(&depth) {
                    inline.pop();
                    here.pop();
                }
                depth -= 1;
            }
            word => {
                let is_start = word.starts_with(|c: char| c.is_alphabetic() || c == '_')
                    && text(index + 1) == "::"
                    && (index == 0 || text(index - 1) != "::" || is_global(tokens, index - 1));
                if is_start {
                    follow(&here, tokens, index, &mut Vec::new(), &mut found);
                }
            }
        }
    }
    found
}

/// True of a `::` that begins a path.
fn is_global(tokens: &[Token], separator: usize) -> bool {
    let before = separator.checked_sub(1).map_or("", |index| tokens[index].text.as_str());
    before != ">" && !before.ends_with(|c: char| c.is_alphanumeric() || c == '_')
}

/// Follows a path from one of its parts, and says where it ends.
fn follow(
    here: &[String],
    tokens: &[Token],
    start: usize,
    before: &mut Vec<String>,
    found: &mut Vec<Named>,
) -> usize {
    let text = |index: usize| tokens.get(index).map_or("", |token| token.text.as_str());
    let length = before.len();
    let mut index = start;
    loop {
        if text(index) == "{" {
            index += 1;
            while !matches!(text(index), "}" | "") {
                if text(index) == "," {
                    index += 1;
                } else {
                    index = follow(here, tokens, index, before, found);
                }
            }
            index += 1;
            break;
        }
        if !matches!(text(index), "*" | "<") {
            before.push(text(index).into());
        }
        let ends = text(index) == "<" || text(index + 1) != "::";
        index += 1;
        if ends {
            found.extend(named(here, before, tokens[start].line));
            break;
        }
        index += 1;
    }
    before.truncate(length);
    while text(index) == "as" {
        index += 2; // another name for the same thing
    }
    index.max(start + 1)
}

fn named(here: &[String], segments: &[String], line: usize) -> Option<Named> {
    let segments: Vec<String> = match segments.split_last() {
        Some((last, rest)) if last == "self" && !rest.is_empty() => rest.into(),
        _ => segments.into(),
    };
    let (first, rest) = segments.split_first()?;
    let in_tests = here.iter().any(|module| module == "tests");
    let inside = match first.as_str() {
        "crate" | "leasehold" => rest.to_vec(),
        "self" => [here, rest].concat(),
        "super" => {
            let ups = segments.iter().take_while(|segment| *segment == "super").count();
            [&here[..here.len().saturating_sub(ups)], &segments[ups..]].concat()
        }
        _ => return Some(Named { root: Root::Outside, segments, line, in_tests }),
    };
    (!inside.is_empty()).then_some(Named { root: Root::Crate, segments: inside, line, in_tests })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &[Row] = &[
        row("low", &[]).not(&["kube", "async", "std::fs", "std::time::Instant"]),
        row("low::leaf", &[]),
        row("low::other", &["low::leaf"]),
        row("high", &["low"]).whole(),
        row("top", &["low::*", "high"]),
        row("main", &["top"]),
    ];

    #[track_caller]
    fn case(path: &str, text: &str, expected: &[&str]) {
        assert_eq!(faults(TABLE, &[Source::new(path, text)]), expected, "{text}");
    }

    #[test]
    fn an_arrow_in_the_row_is_allowed() {
        case("high.rs", "use crate::low::Thing;", &[]);
        case("high/part.rs", "use crate::{high::{self, Thing}, low};", &[]);
        case("top.rs", "fn f() { crate::low::leaf::f::<u8>(); crate::high::g() }", &[]);
        case("low/mod.rs", "pub use self::leaf::Leaf; mod leaf; use crate::low::other;", &[]);
        case("low/other.rs", "use super::leaf::{Leaf, *};", &[]);
        case("main.rs", "fn main() { leasehold::top::run() }", &[]);
    }

    #[test]
    fn an_arrow_that_is_not_in_the_row_is_refused() {
        case(
            "low.rs",
            "\nuse crate::high::Thing;",
            &["src/low.rs:2: low must not name high (crate::high::Thing)"],
        );
        case(
            "high.rs",
            "use crate::low::leaf::X;",
            &["src/high.rs:1: high must not name low::leaf (crate::low::leaf::X)"],
        );
        case(
            "low.rs",
            "fn f() { crate::top::f() }",
            &["src/low.rs:1: low must not name top (crate::top::f)"],
        );
        case("main.rs", "use leasehold::high;", &["src/main.rs:1: main must not name high (crate::high)"]);
        case(
            "low.rs",
            "macro_rules! m { () => { $crate::top::f() } }",
            &["src/low.rs:1: low must not name top (crate::top::f)"],
        );
    }

    #[test]
    fn nested_lists_are_taken_apart() {
        case(
            "low/other.rs",
            "use crate::{\n  low::{leaf::{A, B as C}, Thing},\n  top,\n};",
            &[
                "src/low/other.rs:2: low::other must not name low (crate::low::Thing)",
                "src/low/other.rs:3: low::other must not name top (crate::top)",
            ],
        );
    }

    #[test]
    fn super_hides_nothing() {
        case(
            "low/leaf.rs",
            "use super::other::X;",
            &["src/low/leaf.rs:1: low::leaf must not name low::other (crate::low::other::X)"],
        );
        case(
            "low/leaf.rs",
            "use super::super::top;",
            &["src/low/leaf.rs:1: low::leaf must not name top (crate::top)"],
        );
        case(
            "low/leaf.rs",
            "mod tests { use super::*; fn f() { { super::super::other::f() } } }\nuse super::other::X;",
            &[
                "src/low/leaf.rs:1: low::leaf must not name low::other (crate::low::other::f)",
                "src/low/leaf.rs:2: low::leaf must not name low::other (crate::low::other::X)",
            ],
        );
    }

    #[test]
    fn forbidden_words_are_found() {
        case("low.rs", "async fn f() {}", &["src/low.rs:1: low must not say async"]);
        case("low.rs", "use kube_runtime::X;", &["src/low.rs:1: low must not name kube (kube_runtime::X)"]);
        case(
            "low.rs",
            "use std::{fmt, fs::File};",
            &["src/low.rs:1: low must not name std::fs (std::fs::File)"],
        );
        case(
            "low.rs",
            "fn f() { ::std::fs::read(p) }",
            &["src/low.rs:1: low must not name std::fs (std::fs::read)"],
        );
        case("low.rs", "use std::time;", &["src/low.rs:1: low must not name std::time::Instant (std::time)"]);
        case("low.rs", "use std::time::Duration;", &[]);
        case("low.rs", "let kube_uid = 1;", &[]);
        case("top.rs", "async fn f() {}", &[]);
    }

    #[test]
    fn comments_and_literals_are_not_code() {
        case("low.rs", "//! crate::top\n/* crate::top /* kube */ kube */ fn f<'a>() {}", &[]);
        case(
            "low.rs",
            r##"const A: &str = "crate::top \" kube"; const B: &str = r#"kube " crate::top"#;"##,
            &[],
        );
        case("low.rs", r#"const A: [char; 3] = ['"', '\'', '{']; const B: &[u8] = b"kube";"#, &[]);
        case(
            "low.rs",
            "fn f<'a>(x: &'a str) { crate::top::f('\"') }",
            &["src/low.rs:1: low must not name top (crate::top::f)"],
        );
    }

    #[test]
    fn a_file_needs_a_row_and_a_row_points_down() {
        case("new.rs", "", &["src/new.rs: no row for it in integration/layering.rs"]);
        case("low/new.rs", "", &["src/low/new.rs: no row for it in integration/layering.rs"]);
        case("low.rs", "use crate::Thing;", &["src/low.rs:1: low names crate::Thing, which is no module"]);
        case("low.rs", "use crate as c;", &["src/low.rs:1: low gives the crate another name"]);
        let exported = Source::new("high.rs", "#[macro_export] macro_rules! suite { () => {} }");
        let users = ["top.rs", "low.rs"].map(|path| Source::new(path, "crate::suite!();"));
        let [top, low] = users;
        let expected = ["src/low.rs:1: low must not name high (crate::suite)"];
        assert_eq!(faults(TABLE, &[exported, top, low]), expected);
        let testing = [row("store::testing", &[]), row("store::local", &[]).not(&["std::env"])];
        let with = |text: &str| faults(&testing, &[Source::new("store/local.rs", text)]);
        let names = "fn f() { crate::store::testing::f(std::env::args()) }";
        assert_eq!(with(names).len(), 2);
        assert_eq!(with(&format!("mod tests {{ {names} }}")), [""; 0]);
        let upward = [row("a", &["b::*"]), row("b", &["b"])];
        let expected = [
            "the table: a may name b::*, which is no row above it",
            "the table: b may name b, which is no row above it",
        ];
        assert_eq!(faults(&upward, &[]), expected);
    }
}
