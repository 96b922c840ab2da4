//! What must hold of any input that others write: of each kind one function, which takes bytes and panics if something
//! does not hold. The targets of cargo-fuzz call them with what libFuzzer makes up, the integration tests with the
//! inputs of `corpus`.

mod invocation;
mod objects;
mod pools;
mod records;
mod settings;

/// Panics if something does not hold of the input.
pub type Property = fn(&[u8]);

/// The kinds, and the folders of their inputs in `corpus`.
pub const TARGETS: [(&str, Property); 8] = [
    ("cni_args", invocation::cni_args),
    ("environment", invocation::environment),
    ("host_file", settings::host_file),
    ("journal", records::journal),
    ("kubernetes", objects::kubernetes),
    ("network", invocation::network),
    ("pools", pools::pools),
    ("records", records::records),
];

/// The same by name.
pub fn holds(target: &str, input: &[u8]) {
    let (_, property) = TARGETS.iter().find(|(name, _)| *name == target).expect("a target of this name");
    property(input);
}

/// Puts a word that occurs nowhere else in the place of each password, in whatever object it stands.
fn with_marked_passwords(value: &mut serde_json::Value) -> bool {
    use serde_json::Value;
    match value {
        Value::Object(map) => {
            let mut any = false;
            for (key, value) in map {
                let is_secret = key.to_lowercase() == "password";
                if let (true, Value::String(text)) = (is_secret, &mut *value) {
                    MARK.clone_into(text);
                    any = true;
                } else {
                    any |= with_marked_passwords(value);
                }
            }
            any
        }
        Value::Array(items) => items.iter_mut().fold(false, |any, item| with_marked_passwords(item) | any),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
    }
}

const MARK: &str = "not-to-be-shown-7d1f";

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use super::*;

    #[test]
    fn what_fuzzing_found_interesting_still_holds() {
        let corpora = Path::new(env!("CARGO_MANIFEST_DIR")).join("integration/fuzz/corpus");
        let mut known: Vec<_> =
            fs::read_dir(&corpora).unwrap().map(|folder| folder.unwrap().file_name()).collect();
        known.sort();
        assert_eq!(known, TARGETS.map(|(target, _)| target));
        for (target, _) in TARGETS {
            let mut files = 0;
            for file in fs::read_dir(corpora.join(target)).unwrap() {
                let file = file.unwrap().path();
                let input = fs::read(&file).unwrap();
                std::panic::catch_unwind(|| holds(target, &input))
                    .unwrap_or_else(|_| panic!("{}", file.display()));
                files += 1;
            }
            assert!(files > 10, "{target}: {files}");
        }
    }
}
