//! JSON whose texts stay in the bytes that they were read from: a list reads 65 000 records and drops each of them at
//! once, and a `serde_json::Value` would allocate every key and hash it.
//!
//! It accepts what a [`Value`] accepts, with the same errors, and shows itself as one.

use std::{borrow::Cow, fmt};

use serde::{
    Deserialize, Deserializer,
    de::{MapAccess, SeqAccess, Visitor},
};
use serde_json::{Map, Number, Value};

/// Most records have fewer fields.
const FIELDS: usize = 16;

/// A value.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Json<'a> {
    Null,
    Bool(bool),
    Number(Number),
    Text(Cow<'a, str>),
    List(Vec<Self>),
    Object(Object<'a>),
}

/// An object. A field that is there twice has its last value.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Object<'a>(Vec<(Cow<'a, str>, Json<'a>)>);

impl<'a> Object<'a> {
    pub(crate) fn get(&self, field: &str) -> Option<&Json<'a>> {
        self.0.iter().rev().find(|(name, _)| name == field).map(|(_, value)| value)
    }
}

impl Json<'_> {
    pub(crate) fn as_u64(&self) -> Option<u64> {
        if let Self::Number(number) = self { number.as_u64() } else { None }
    }

    pub(crate) fn as_str(&self) -> Option<&str> {
        if let Self::Text(text) = self { Some(text) } else { None }
    }
}

impl From<&Json<'_>> for Value {
    fn from(json: &Json<'_>) -> Self {
        match json {
            Json::Null => Self::Null,
            Json::Bool(flag) => Self::Bool(*flag),
            Json::Number(number) => Self::Number(number.clone()),
            Json::Text(text) => Self::String(text.to_string()),
            Json::List(items) => items.iter().map(Self::from).collect(),
            Json::Object(Object(fields)) => {
                let fields = fields.iter().map(|(name, value)| (name.to_string(), Self::from(value)));
                Self::Object(fields.collect::<Map<_, _>>())
            }
        }
    }
}

impl fmt::Display for Json<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Value::from(self).fmt(f)
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Json<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Reader)
    }
}

/// The name of a field.
#[derive(Deserialize)]
struct Name<'a>(#[serde(borrow)] Cow<'a, str>);

struct Reader;

impl<'de> Visitor<'de> for Reader {
    type Value = Json<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any valid JSON value")
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(Json::Null)
    }

    fn visit_bool<E>(self, flag: bool) -> Result<Self::Value, E> {
        Ok(Json::Bool(flag))
    }

    fn visit_u64<E>(self, number: u64) -> Result<Self::Value, E> {
        Ok(Json::Number(number.into()))
    }

    fn visit_i64<E>(self, number: i64) -> Result<Self::Value, E> {
        Ok(Json::Number(number.into()))
    }

    fn visit_f64<E>(self, number: f64) -> Result<Self::Value, E> {
        Ok(Number::from_f64(number).map_or(Json::Null, Json::Number))
    }

    fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Self::Value, E> {
        Ok(Json::Text(Cow::Borrowed(text)))
    }

    fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
        Ok(Json::Text(Cow::Owned(text.to_owned())))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Self::Value, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element()? {
            list.push(item);
        }
        Ok(Json::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Self::Value, A::Error> {
        let mut object = Vec::with_capacity(FIELDS);
        while let Some((Name(name), value)) = fields.next_entry()? {
            object.push((name, value));
        }
        Ok(Json::Object(Object(object)))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// As a `Value` has it: the value, or the error.
    fn agrees(bytes: &[u8]) {
        let borrowed = serde_json::from_slice::<Json<'_>>(bytes);
        let owned = serde_json::from_slice::<Value>(bytes);
        match (&borrowed, &owned) {
            (Ok(borrowed), Ok(owned)) => {
                assert_eq!(Value::from(borrowed), *owned);
                assert_eq!(borrowed.to_string(), owned.to_string());
                assert_eq!(borrowed.as_u64(), owned.as_u64());
                assert_eq!(borrowed.as_str(), owned.as_str());
                if let (Json::Object(borrowed), Value::Object(owned)) = (borrowed, owned) {
                    for (name, value) in owned {
                        assert_eq!(borrowed.get(name).map(Value::from).as_ref(), Some(value));
                    }
                    assert_eq!(borrowed.get("no such field"), None);
                }
            }
            (Err(borrowed), Err(owned)) => assert_eq!(borrowed.to_string(), owned.to_string()),
            (Ok(_), Err(_)) | (Err(_), Ok(_)) => panic!("{borrowed:?}, {owned:?}"),
        }
    }

    #[test]
    fn odd_ones_are_read_as_a_value_reads_them() {
        let deep = "[".repeat(200);
        for text in [
            "",
            "null",
            " [1, -1, 1.5, 1e999]",
            "[18446744073709551615, 18446744073709551616, -9223372036854775809, -0, 1e400]",
            r#"{"a":1,"b":2,"a":{"a":null,"a":true}}"#,
            r#"{"\u0061":"\n\ud83d\ude00","b":"\ud83d"}"#,
            r#"{"a\"":"plain","b":"\u0000"}"#,
            r#"{1:2}"#,
            r#"{"a":}"#,
            r#"{"a":1}x"#,
            &deep,
        ] {
            agrees(text.as_bytes());
        }
        agrees(b"{\"a\":\"\xff\"}");
        agrees(b"{\"\xc3\x28\":1}");
    }

    #[test]
    fn a_lease_damaged_anywhere_is_read_as_a_value_reads_it() {
        let lease = br#"{"v":1,"state":"bound","addresses":[{"address":"10.0.0.1","domain":"default","pool":"db"}],
            "container":"c\u0031","node":"n1","bootClock":12345,"sticky":true,"missedAt":null,"colour":[1.5,-2]}"#;
        for place in 0..lease.len() {
            agrees(&lease[..place]);
            for byte in *b"\"\\{}[],:0e-u \n\0\xff" {
                let mut damaged = lease.to_vec();
                damaged[place] = byte;
                agrees(&damaged);
            }
        }
    }

    /// Any document with names and texts that repeat.
    fn document() -> impl Strategy<Value = Value> {
        let text = prop_oneof!["[a-c]?", r#"[ -~\n"\\é]{0,8}"#];
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<u64>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<f64>().prop_map(Value::from),
            text.clone().prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 32, 6, move |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
                prop::collection::vec((text.clone(), inner), 0..20)
                    .prop_map(|fields| Value::Object(fields.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn documents_whole_and_damaged_are_read_as_a_value_reads_them(
            document in document(),
            damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..3),
            cut in prop::option::weighted(0.2, any::<prop::sample::Index>()),
        ) {
            let mut bytes = document.to_string().into_bytes();
            for (place, byte) in damage {
                let place = place.index(bytes.len());
                bytes[place] = byte;
            }
            if let Some(cut) = cut {
                bytes.truncate(cut.index(bytes.len()));
            }
            agrees(&bytes);
        }
    }
}
