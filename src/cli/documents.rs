//! Pool documents: files, folders and standard input to values, with every fault of every document at once.
//!
//! Unknown fields are refused with the nearest known name: `rangeStart` would otherwise be a pool without a start.

use std::{
    fs,
    io::{self, Read as _},
    path::{Path, PathBuf},
};

use serde_json::{Map, Value};

use crate::{
    admin::{DocumentFault, Error, pools::Wanted},
    domain::{nearest::nearest, pool::Fault},
    store::record::PoolDocument,
};

/// What a field holds.
#[derive(Clone, Copy)]
enum Shape {
    Text,
    Number,
    Texts,
    One(&'static [(&'static str, Self)]),
    Many(&'static [(&'static str, Self)]),
}

const POOL: &[(&str, Shape)] = &[
    ("v", Shape::Number),
    ("name", Shape::Text),
    ("networks", Shape::Texts),
    ("serves", Shape::Texts),
    ("clusters", Shape::Texts),
    ("nodes", Shape::Texts),
    ("priority", Shape::Number),
    ("domain", Shape::Text),
    ("ranges", Shape::Many(RANGE)),
    ("routes", Shape::Many(ROUTE)),
    ("dns", Shape::One(DNS)),
    ("sticky", Shape::Text),
    ("retention", Shape::One(RETENTION)),
    ("nodeLost", Shape::Text),
    ("coolDown", Shape::Text),
    ("probe", Shape::Text),
];
const RANGE: &[(&str, Shape)] = &[
    ("subnet", Shape::Text),
    ("start", Shape::Text),
    ("end", Shape::Text),
    ("gateway", Shape::Text),
    ("exclude", Shape::Texts),
];
const ROUTE: &[(&str, Shape)] = &[
    ("dst", Shape::Text),
    ("gw", Shape::Text),
    ("mtu", Shape::Number),
    ("advmss", Shape::Number),
    ("priority", Shape::Number),
    ("table", Shape::Number),
    ("scope", Shape::Number),
];
const DNS: &[(&str, Shape)] = &[
    ("nameservers", Shape::Texts),
    ("domain", Shape::Text),
    ("search", Shape::Texts),
    ("options", Shape::Texts),
];
const RETENTION: &[(&str, Shape)] =
    &[("whenDeleted", Shape::Text), ("whenScaled", Shape::Text), ("holdFor", Shape::Text)];

/// Reads all pools of these files and folders; `-` is standard input.
///
/// # Errors
/// [`Error::Faults`] with all faults of all documents; [`Error::Wrong`] for a file that cannot be read.
pub(crate) fn read(paths: &[PathBuf]) -> Result<Vec<Wanted>, Error> {
    let (mut wanted, mut faults) = (Vec::new(), Vec::new());
    for (origin, text) in texts(paths)? {
        let (pools, found) = of_text(&origin, &text);
        wanted.extend(pools);
        faults.extend(found);
    }
    if !faults.is_empty() {
        return Err(Error::Faults { faults });
    }
    if wanted.is_empty() {
        return Err(Error::wrong(
            "no pool in these files",
            "a document begins with `name:`; `leasehold pool show NAME -o yaml` prints one",
        ));
    }
    Ok(wanted)
}

/// The pools of a text, and the faults of the others.
pub(crate) fn of_text(origin: &str, text: &str) -> (Vec<Wanted>, Vec<DocumentFault>) {
    let (mut wanted, mut faults) = (Vec::new(), Vec::new());
    match parse(text) {
        Ok(documents) => {
            let documents: Vec<Value> = documents.into_iter().filter(|d| !d.is_null()).collect();
            let several = documents.len() > 1;
            for (index, document) in documents.into_iter().enumerate() {
                let origin =
                    if several { format!("{origin}, document {}", index + 1) } else { origin.to_owned() };
                for (part, item) in pools_of(document).into_iter().enumerate() {
                    let origin =
                        if part == 0 { origin.clone() } else { format!("{origin}, item {}", part + 1) };
                    match one(&origin, item) {
                        Ok(pool) => wanted.push(pool),
                        Err(found) => faults.extend(found),
                    }
                }
            }
        }
        Err(error) => faults.push(DocumentFault {
            origin: origin.to_owned(),
            fault: fault("", "", &format!("is neither YAML nor JSON: {}", first_line(&error.to_string()))),
        }),
    }
    (wanted, faults)
}

/// YAML 1.2: a network called `n` or `no` is a text, and `010` is no octal number.
fn parse(text: &str) -> Result<Vec<Value>, serde_saphyr::Error> {
    let options = serde_saphyr::options! {
        strict_booleans: true,
        leading_zero_numbers_as_strings: true,
        underscored_numbers_as_strings: true,
    };
    serde_saphyr::from_multiple_with_options(text, options)
}

fn first_line(text: &str) -> &str {
    text.lines().find(|line| !line.trim().is_empty()).unwrap_or("")
}

/// What `pool list -o yaml` prints is no document of a pool, but a list of documents is one for each.
fn pools_of(document: Value) -> Vec<Value> {
    match document {
        Value::Array(items) => items,
        other @ (Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Object(_)) => {
            vec![other]
        }
    }
}

fn one(origin: &str, document: Value) -> Result<Wanted, Vec<DocumentFault>> {
    let mut faults = Vec::new();
    let document = match document {
        Value::Object(map) => shaped("", map, POOL, &mut faults),
        other @ (Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_)) => {
            faults.push(fault("", &shown(&other), "is no pool: a document begins with `name:`"));
            Map::new()
        }
    };
    let of = |fault: Fault| DocumentFault { origin: origin.into(), fault };
    let document: PoolDocument = match serde_json::from_value(Value::Object(document)) {
        Ok(document) => document,
        Err(error) => {
            if faults.is_empty() {
                faults.push(fault("", "", &error.to_string()));
            }
            return Err(faults.into_iter().map(of).collect());
        }
    };
    let version = document.v.filter(|v| *v > crate::store::record::VERSION);
    if let Some(version) = version {
        faults.push(fault("v", &version.to_string(), "is newer than this leasehold: upgrade it"));
    }
    match Wanted::read(origin, document) {
        Ok(wanted) if faults.is_empty() => Ok(wanted),
        Ok(_) => Err(faults.into_iter().map(of).collect()),
        Err(more) => Err(faults.into_iter().map(of).chain(more).collect()),
    }
}

/// Keeps what has its shape, and says what has not.
fn shaped(
    path: &str,
    map: Map<String, Value>,
    known: &[(&str, Shape)],
    faults: &mut Vec<Fault>,
) -> Map<String, Value> {
    let mut out = Map::new();
    for (key, value) in map {
        let field = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
        let Some((_, shape)) = known.iter().find(|(name, _)| *name == key) else {
            let names = known.iter().map(|(name, _)| *name).filter(|name| *name != "v");
            let problem = match nearest(&key, names.clone()) {
                Some(near) => format!("is unknown; did you mean {near}?"),
                None => format!("is unknown; known are {}", names.collect::<Vec<_>>().join(", ")),
            };
            faults.push(fault(&field, "", &problem));
            continue;
        };
        if value.is_null() {
            continue;
        }
        if let Some(value) = fits(&field, value, *shape, faults) {
            out.insert(key, value);
        }
    }
    out
}

fn fits(field: &str, value: Value, shape: Shape, faults: &mut Vec<Fault>) -> Option<Value> {
    match (shape, value) {
        (Shape::Text, Value::String(text)) => Some(Value::String(text)),
        // `holdFor: 0` and a pool called 100 are plain to a reader.
        (Shape::Text, Value::Number(number)) if number.is_u64() => Some(Value::String(number.to_string())),
        (Shape::Number, Value::Number(number))
            if number.as_u64().is_some_and(|n| n <= u64::from(u32::MAX)) =>
        {
            Some(Value::Number(number))
        }
        // One where a list may stand: `networks: lan100`.
        (Shape::Texts, Value::String(text)) => Some(Value::Array(vec![Value::String(text)])),
        (Shape::Texts, Value::Array(items)) => {
            let mut out = Vec::new();
            for (index, item) in items.into_iter().enumerate() {
                out.extend(fits(&format!("{field}[{index}]"), item, Shape::Text, faults));
            }
            Some(Value::Array(out))
        }
        (Shape::One(known), Value::Object(map)) => Some(Value::Object(shaped(field, map, known, faults))),
        (Shape::Many(known), Value::Array(items)) => {
            let mut out = Vec::new();
            for (index, item) in items.into_iter().enumerate() {
                out.extend(fits(&format!("{field}[{index}]"), item, Shape::One(known), faults));
            }
            Some(Value::Array(out))
        }
        (shape, other) => {
            let wanted = match shape {
                Shape::Text => "must be a text",
                Shape::Number => "must be a number from 0 to 4294967295",
                Shape::Texts => "must be a list of texts",
                Shape::One(_) => "must be an object",
                Shape::Many(_) => "must be a list of objects",
            };
            faults.push(fault(field, &shown(&other), wanted));
            None
        }
    }
}

fn shown(value: &Value) -> String {
    let text = value.as_str().map_or_else(|| value.to_string(), ToOwned::to_owned);
    if text.chars().count() <= 60 { text } else { text.chars().take(60).chain(['…']).collect() }
}

fn fault(field: &str, value: &str, problem: &str) -> Fault {
    let field = if field.is_empty() { "document" } else { field };
    Fault { field: field.into(), value: value.into(), problem: problem.into() }
}

fn texts(paths: &[PathBuf]) -> Result<Vec<(String, String)>, Error> {
    let mut out = Vec::new();
    for path in paths {
        if path == Path::new("-") {
            let mut text = String::new();
            io::stdin()
                .read_to_string(&mut text)
                .map_err(|error| unreadable(Path::new("standard input"), &error))?;
            out.push(("standard input".into(), text));
        } else if path.is_dir() {
            let listed = fs::read_dir(path).map_err(|error| unreadable(path, &error))?;
            let mut files: Vec<PathBuf> =
                listed.flatten().map(|entry| entry.path()).filter(|p| is_document(p)).collect();
            files.sort();
            for file in files {
                out.push((file.display().to_string(), text(&file)?));
            }
        } else {
            out.push((path.display().to_string(), text(path)?));
        }
    }
    Ok(out)
}

fn is_document(path: &Path) -> bool {
    let known = |extension: &std::ffi::OsStr| ["yaml", "yml", "json"].iter().any(|known| extension == *known);
    path.is_file() && path.extension().is_some_and(known)
}

fn text(path: &Path) -> Result<String, Error> {
    fs::read_to_string(path).map_err(|error| unreadable(path, &error))
}

fn unreadable(path: &Path, error: &io::Error) -> Error {
    Error::wrong(
        format!("cannot read {}: {error}", path.display()),
        "-f takes a file, a folder, or - for standard input",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn faults(yaml: &str, wanted: &[&str]) {
        let value = parse(yaml).unwrap().remove(0);
        let found: Vec<String> = match one("f", value) {
            Ok(_) => Vec::new(),
            Err(faults) => faults.iter().map(ToString::to_string).collect(),
        };
        assert_eq!(found, wanted);
    }

    #[test]
    fn the_document_of_the_design_is_read() {
        faults(
            r#"
name: shop-db
networks: [lan100]
serves: [shop/db]
clusters: [prod-a]
nodes: ["n*", rack=a]
priority: 100
domain: default
ranges:
- {subnet: 10.0.0.0/22, start: 10.0.0.1, end: 10.0.0.10, gateway: 10.0.0.254, exclude: [10.0.0.5]}
- {subnet: "fd00:9::/64", start: "fd00:9::1", end: "fd00:9::ffff", gateway: "fe80::1"}
routes: [{dst: 0.0.0.0/0}, {dst: "::/0"}]
dns: {nameservers: [10.0.0.53]}
sticky: auto
retention: {whenDeleted: Delete, whenScaled: Retain, holdFor: 0s}
nodeLost: free
coolDown: 5s
probe: unconfirmed
"#,
            &[],
        );
    }

    #[test]
    fn b094_unknown_fields_are_named_with_the_nearest_known_one() {
        faults(
            "{name: a, networks: [n], rangeStart: 10.0.0.1, ranges: [{subnet: 10.0.0.0/24, range-start: 10.0.0.9, excludes: []}], colour: 1}",
            &[
                "f: rangeStart: is unknown; did you mean ranges?",
                "f: ranges[0].range-start: is unknown; did you mean start?",
                "f: ranges[0].excludes: is unknown; did you mean exclude?",
                "f: colour: is unknown; known are name, networks, serves, clusters, nodes, priority, domain, ranges, routes, dns, sticky, retention, nodeLost, coolDown, probe",
            ],
        );
    }

    #[test]
    fn all_faults_of_a_document_are_said_at_once() {
        faults(
            "{name: [a], networks: lan, priority: high, ranges: {subnet: 10.0.0.0/24}, sticky: maybe}",
            &[
                "f: name: [\"a\"]: must be a text",
                "f: priority: high: must be a number from 0 to 4294967295",
                "f: ranges: {\"subnet\":\"10.0.0.0/24\"}: must be a list of objects",
                "f: name: pool name is empty",
                "f: ranges: is missing: a pool needs at least one range with a subnet",
                "f: sticky: maybe: must be one of: auto, always, never",
            ],
        );
        faults(
            "just text",
            &[
                "f: document: just text: is no pool: a document begins with `name:`",
                "f: name: pool name is empty",
                "f: networks: is missing: name the CNI networks this pool is for, or [\"*\"] for every one",
                "f: ranges: is missing: a pool needs at least one range with a subnet",
            ],
        );
    }
}
