//! JSON objects of ours, read strictly: what is unknown, of the wrong kind or out of bounds becomes a fault with path,
//! value and what is accepted, and reading goes on.

use std::{
    fmt,
    path::{Component, PathBuf},
};

use serde_json::{Map, Value};

use crate::domain::{
    nearest::{nearest, slips},
    pool::Fault,
};

/// Longer values are cut in error texts.
const SHOWN: usize = 120;

/// A slip in one of these must not print what stands behind it.
const SECRET_WORDS: &[&str] = &["password", "passwordfile", "username", "endpoints", "secret", "token"];

/// Collects faults.
#[derive(Default)]
pub(crate) struct Faults(pub(crate) Vec<Fault>);

impl Faults {
    pub(crate) fn push(
        &mut self,
        field: impl Into<String>,
        value: impl ToString,
        problem: impl Into<String>,
    ) {
        self.0.push(Fault { field: field.into(), value: cut(value.to_string()), problem: problem.into() });
    }

    pub(crate) fn take<T, E: fmt::Display>(
        &mut self,
        field: &str,
        value: &str,
        result: Result<T, E>,
    ) -> Option<T> {
        result.map_err(|error| self.push(field, value, error.to_string())).ok()
    }
}

fn cut(text: String) -> String {
    if text.len() <= SHOWN {
        return text;
    }
    let end = (0..=SHOWN).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
    format!("{}…", &text[..end])
}

/// How keys are compared: exactly, or as Go's encoding/json does.
#[derive(Clone, Copy, Eq, PartialEq)]
pub(crate) enum Case {
    Exact,
    Folded,
}

/// The value of a key of a JSON object as Go's encoding/json would take it: letters' case does not count, the last
/// one wins, `null` is absent.
#[must_use]
pub fn lookup<'a>(map: &'a Map<String, Value>, key: &str) -> Option<&'a Value> {
    let mut same = map.iter().filter(|(name, value)| name.eq_ignore_ascii_case(key) && !value.is_null());
    same.next_back().map(|(_, value)| value)
}

/// A JSON object and its path, for faults.
pub(crate) struct Table<'a> {
    path: String,
    pub(crate) map: &'a Map<String, Value>,
    case: Case,
}

impl<'a> Table<'a> {
    pub(crate) fn of(path: &str, value: &'a Value, case: Case) -> Option<Self> {
        value.as_object().map(|map| Self { path: path.into(), map, case })
    }

    pub(crate) fn at(&self, key: &str) -> String {
        if self.path.is_empty() { key.to_owned() } else { format!("{}.{key}", self.path) }
    }

    /// `null` is absent.
    pub(crate) fn get(&self, key: &str) -> Option<&'a Value> {
        match self.case {
            Case::Exact => self.map.get(key).filter(|value| !value.is_null()),
            Case::Folded => lookup(self.map, key),
        }
    }

    pub(crate) fn only(&self, faults: &mut Faults, known: &[&str]) {
        for (key, value) in self.map {
            let same = |name: &&str| match self.case {
                Case::Exact => *name == key,
                Case::Folded => name.eq_ignore_ascii_case(key),
            };
            if value.is_null() || known.iter().any(same) {
                continue;
            }
            let problem = match nearest(key, known.iter().copied()) {
                Some(name) => format!("unknown key; did you mean {name:?}?"),
                None => format!("unknown key; known are {}", known.join(", ")),
            };
            faults.push(self.at(&cut(key.clone())), self.show(key, value), problem);
        }
    }

    fn wrong(&self, faults: &mut Faults, key: &str, value: &Value, accepted: &str) {
        faults.push(self.at(key), self.show(key, value), format!("must be {accepted}"));
    }

    /// Of our own file, only plain values are shown: a list in the wrong place may hold a password.
    fn show(&self, key: &str, value: &Value) -> String {
        match (self.case, value) {
            (Case::Exact, Value::Array(_)) => "[…]".into(),
            (Case::Exact, Value::Object(_)) => "{…}".into(),
            (Case::Exact | Case::Folded, _) => show(key, value),
        }
    }

    pub(crate) fn text(&self, faults: &mut Faults, key: &str) -> Option<&'a str> {
        let value = self.get(key)?;
        if value.as_str().is_none() {
            self.wrong(faults, key, value, "a text in quotes");
        }
        value.as_str()
    }

    pub(crate) fn flag(&self, faults: &mut Faults, key: &str) -> Option<bool> {
        let value = self.get(key)?;
        if value.as_bool().is_none() {
            self.wrong(faults, key, value, "true or false");
        }
        value.as_bool()
    }

    pub(crate) fn number(&self, faults: &mut Faults, key: &str) -> Option<u32> {
        let value = self.get(key)?;
        let number = value.as_u64().and_then(|number| u32::try_from(number).ok());
        if number.is_none() {
            self.wrong(faults, key, value, "a whole number from 0 to 4294967295");
        }
        number
    }

    /// An absolute path: the working directory is the runtime's.
    pub(crate) fn path(&self, faults: &mut Faults, key: &str) -> Option<PathBuf> {
        let text = self.text(faults, key)?;
        let path = PathBuf::from(text);
        let climbs = path.components().any(|part| part == Component::ParentDir);
        if !path.is_absolute() || climbs || text.contains('\0') {
            faults.push(self.at(key), text, "must be an absolute path without ..");
            return None;
        }
        Some(path)
    }

    pub(crate) fn list(&self, faults: &mut Faults, key: &str) -> Vec<&'a str> {
        let Some(value) = self.get(key) else { return Vec::new() };
        let texts = value.as_array().and_then(|items| items.iter().map(Value::as_str).collect());
        if texts.is_none() {
            self.wrong(faults, key, value, "a list of texts");
        }
        texts.unwrap_or_default()
    }

    pub(crate) fn table(&self, faults: &mut Faults, key: &str) -> Option<Self> {
        let value = self.get(key)?;
        let table = Self::of(&self.at(key), value, self.case);
        if table.is_none() {
            self.wrong(faults, key, value, "an object");
        }
        table
    }

    pub(crate) fn tables(&self, faults: &mut Faults, key: &str) -> Vec<Self> {
        let Some(value) = self.get(key) else { return Vec::new() };
        let tables = value.as_array().and_then(|items| {
            let each = items.iter().enumerate();
            each.map(|(index, item)| Self::of(&format!("{}[{index}]", self.at(key)), item, self.case))
                .collect()
        });
        if tables.is_none() {
            self.wrong(faults, key, value, "a list of objects");
        }
        tables.unwrap_or_default()
    }
}

/// Letters only, lower case: `range_start` and `RangeStart` are the same slip.
pub(crate) fn fold(key: &str) -> String {
    key.chars().filter(|c| !matches!(c, '_' | '-' | '.')).map(|c| c.to_ascii_lowercase()).collect()
}

pub(crate) fn is_secret(folded: &str) -> bool {
    SECRET_WORDS.iter().any(|word| folded.contains(word) || slips(folded, word) <= word.len() / 4)
}

/// A value for an error text: cut, and without what may be a secret.
pub(crate) fn show(key: &str, value: &Value) -> String {
    fn plain(key: &str, value: &Value) -> Value {
        let folded = fold(key);
        if is_secret(&folded) || folded.ends_with("key") {
            return Value::String("…".into());
        }
        match value {
            Value::Object(map) => map.iter().map(|(key, value)| (key.clone(), plain(key, value))).collect(),
            Value::Array(items) => items.iter().map(|item| plain(key, item)).collect(),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => value.clone(),
        }
    }
    let value = plain(key, value);
    cut(value.as_str().map_or_else(|| value.to_string(), str::to_owned))
}

/// A list of words as people write it: an array of strings, a comma list, or an array inside a string (annotations
/// are strings). Empty entries are skipped.
///
/// # Errors
/// What is accepted.
pub fn words(value: &Value) -> Result<Vec<String>, String> {
    let form = || "must be a text, a comma list or an array of texts".to_owned();
    let each = |items: &[Value]| -> Result<Vec<String>, String> {
        let texts = items.iter().map(|item| item.as_str().ok_or_else(form));
        let texts = texts.map(|text| text.map(|text| text.trim().to_owned()));
        texts.filter(|text| text.as_ref().map_or(true, |text| !text.is_empty())).collect()
    };
    match value {
        Value::Array(items) => each(items),
        Value::String(text) if text.trim_start().starts_with('[') => {
            each(&serde_json::from_str::<Vec<Value>>(text).map_err(|_| form())?)
        }
        Value::String(text) => {
            Ok(text.split(',').map(str::trim).filter(|word| !word.is_empty()).map(str::to_owned).collect())
        }
        Value::Null => Ok(Vec::new()),
        Value::Bool(_) | Value::Number(_) | Value::Object(_) => Err(form()),
    }
}
