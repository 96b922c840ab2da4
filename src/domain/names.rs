//! Names: text that has passed its grammar. A value that exists is right; nobody checks it again.
//!
//! Every grammar here excludes `/`, white space and control characters, so that a name can stand in a key of
//! the store, in a table and in an error text as it is.

use std::fmt;

use thiserror::Error;

/// Why a text is not a name of its kind.
#[derive(Clone, Debug, Eq, Error, PartialEq)]
pub enum NameError {
    /// The empty text names nothing.
    #[error("{kind} is empty")]
    Empty { kind: &'static str },
    /// Longer than its kind allows.
    #[error("{kind} {text:?} is longer than {limit} bytes")]
    TooLong { kind: &'static str, text: String, limit: usize },
    /// A character that its grammar does not know.
    #[error(
        "{kind} {text:?} has an invalid character {found:?}: letters, digits, '.', '_' and '-' are accepted"
    )]
    Character { kind: &'static str, text: String, found: char },
    /// `.` and `..` are no interface names.
    #[error("{kind} {text:?} is . or ..")]
    Dots { kind: &'static str, text: String },
}

/// CNI's grammar (`^[a-zA-Z0-9][a-zA-Z0-9_.\-]*$`), with a bound on the length.
fn word(kind: &'static str, text: &str, limit: usize) -> Result<(), NameError> {
    let first = text.chars().next().ok_or(NameError::Empty { kind })?;
    if text.len() > limit {
        return Err(NameError::TooLong { kind, text: text.into(), limit });
    }
    if !first.is_ascii_alphanumeric() {
        return Err(NameError::Character { kind, text: text.into(), found: first });
    }
    match text.chars().find(|c| !c.is_ascii_alphanumeric() && !matches!(c, '_' | '.' | '-')) {
        Some(found) => Err(NameError::Character { kind, text: text.into(), found }),
        None => Ok(()),
    }
}

/// The kernel's grammar of an interface name: up to 15 bytes, no `/`, no `:`, no white space.
fn interface(kind: &'static str, text: &str, limit: usize) -> Result<(), NameError> {
    if text.is_empty() {
        return Err(NameError::Empty { kind });
    }
    if text.len() > limit {
        return Err(NameError::TooLong { kind, text: text.into(), limit });
    }
    if text == "." || text == ".." {
        return Err(NameError::Dots { kind, text: text.into() });
    }
    match text.chars().find(|c| matches!(c, '/' | ':') || c.is_whitespace() || c.is_control()) {
        Some(found) => Err(NameError::Character { kind, text: text.into(), found }),
        None => Ok(()),
    }
}

/// An opaque token: printable ASCII without white space and `/`.
fn token(kind: &'static str, text: &str, limit: usize) -> Result<(), NameError> {
    if text.is_empty() {
        return Err(NameError::Empty { kind });
    }
    if text.len() > limit {
        return Err(NameError::TooLong { kind, text: text.into(), limit });
    }
    match text.chars().find(|c| !c.is_ascii_graphic() || *c == '/') {
        Some(found) => Err(NameError::Character { kind, text: text.into(), found }),
        None => Ok(()),
    }
}

macro_rules! names {
    ($($(#[$doc:meta])* $name:ident: $grammar:ident, $kind:literal, $limit:literal;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
        pub struct $name(String);

        impl $name {
            /// Checks the grammar.
            ///
            /// # Errors
            /// [`NameError`] says which rule the text breaks.
            pub fn new(text: impl Into<String>) -> Result<Self, NameError> {
                let text = text.into();
                $grammar($kind, &text, $limit)?;
                Ok(Self(text))
            }

            /// The text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(&self.0)
            }
        }
    )*};
}

names! {
    /// A CNI network's name (SPEC, "Network configuration format": `name`). CNI sets no limit; ours is 253 bytes.
    NetworkName: word, "network name", 253;
    /// `CNI_CONTAINERID`. CNI sets no limit; ours is 512 bytes.
    ContainerId: word, "container ID", 512;
    /// `CNI_IFNAME`: at most 15 bytes, the kernel's IFNAMSIZ less its zero.
    IfName: interface, "interface name", 15;
    /// A Kubernetes namespace. Looser than Kubernetes' own grammar, which is the API server's to enforce.
    Namespace: word, "namespace", 253;
    /// A Kubernetes pod's name, at most 253 bytes.
    PodName: word, "pod name", 253;
    /// A workload's name as a pool's `serves` lists it: a StatefulSet, a Deployment, a Job, or a bare pod.
    WorkloadName: word, "workload name", 253;
    /// The Node object's name.
    NodeName: word, "node name", 253;
    /// A cluster's name, as `leasehold cluster add` registered it.
    ClusterName: word, "cluster name", 63;
    /// A pool's name.
    PoolName: word, "pool name", 63;
    /// The space in which an address is unique: one VLAN, one routed fabric.
    DomainName: word, "domain name", 63;
    /// A Kubernetes UID, of a pod or a namespace.
    Uid: token, "UID", 128;
    /// The kernel's random boot ID (`/proc/sys/kernel/random/boot_id`).
    BootId: token, "boot ID", 128;
    /// The store's identity, drawn when it is made and anew by `thaw`.
    StoreId: token, "store ID", 128;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn container(text: &str, good: bool) {
        assert_eq!(ContainerId::new(text).is_ok(), good, "{text:?}");
    }

    #[test]
    fn container_ids_are_cnis() {
        for text in ["A.b_c-d", "9", &"a".repeat(300)] {
            container(text, true);
        }
        for text in ["", "-a", "_a", ".a", "a b", "a/b", "a%b", "aé", "a\n"] {
            container(text, false);
        }
    }

    #[track_caller]
    fn interface_name(text: &str, good: bool) {
        assert_eq!(IfName::new(text).is_ok(), good, "{text:?}");
    }

    #[test]
    fn interface_names_are_the_kernels() {
        for text in ["eth0", "eth0.100", "...", "123456789012345", "vlan100@x", "hello"] {
            interface_name(text, true);
        }
        for text in [
            "",
            ".",
            "..",
            "1234567890123456",
            &"é".repeat(8),
            "a/b",
            "a:b",
            "a b",
            "a\tb",
            "a\u{a0}b",
            "a\u{85}b",
        ] {
            interface_name(text, false);
        }
    }

    #[test]
    fn an_error_names_the_kind_the_text_and_the_character() {
        assert_eq!(
            PodName::new("web 0").unwrap_err().to_string(),
            "pod name \"web 0\" has an invalid character ' ': letters, digits, '.', '_' and '-' are accepted"
        );
    }

    #[test]
    fn the_namespace_of_containers_cannot_be_claimed() {
        assert!(Namespace::new("_").is_err());
    }
}
