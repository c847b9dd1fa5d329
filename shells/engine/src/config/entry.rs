//! A text in JSON, member by member, with places. `serde_json` parses; the parts that it hands out are pieces
//! of the text itself, so where a piece begins tells where it is.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

use super::problem::Place;

/// A text with a name.
pub(super) struct Text<'a> {
    pub(super) name: &'a str,
    pub(super) text: &'a str,
}

/// One member of an object.
pub(super) struct Member<'a> {
    pub(super) key: Cow<'a, str>,
    /// As it is written.
    pub(super) value: &'a str,
    /// The key as it is written, or the value if the key has escapes.
    start: &'a str,
}

impl<'a> Text<'a> {
    /// The whole as one value. The error says what is no JSON, and where.
    pub(super) fn root(&self) -> Result<&'a str, (Place, String)> {
        serde_json::from_str::<&RawValue>(self.text)
            .map(RawValue::get)
            .map_err(|error| {
                let text = error.to_string();
                // It repeats the place, which ours says in its own way.
                let what = text.split(" at line ").next().unwrap_or(&text).to_owned();
                (self.at(error.line(), error.column()), what)
            })
    }

    /// The members of an object; `None`: it is none.
    pub(super) fn members(&self, object: &'a str) -> Option<Vec<Member<'a>>> {
        let members: Members<'a> = serde_json::from_str(object).ok()?;
        Some(members.0)
    }

    /// Where a member begins.
    pub(super) fn place(&self, member: &Member<'_>) -> Place {
        self.place_of(member.start)
    }

    /// Where a piece of the text begins.
    pub(super) fn place_of(&self, piece: &str) -> Place {
        let offset = (piece.as_ptr() as usize).saturating_sub(self.text.as_ptr() as usize);
        let before = self.text.get(..offset).unwrap_or_default();
        let line = before.rsplit('\n').next().unwrap_or_default();
        self.at(before.matches('\n').count() + 1, line.chars().count() + 1)
    }

    fn at(&self, line: usize, column: usize) -> Place {
        Place::Text {
            name: self.name.to_owned(),
            at: Some((line, column.max(1))),
        }
    }
}

/// The members of an object in the order of the text, repeated ones too.
struct Members<'a>(Vec<Member<'a>>);

impl<'de> Deserialize<'de> for Members<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(MembersVisitor)
    }
}

struct MembersVisitor;

impl<'de> Visitor<'de> for MembersVisitor {
    type Value = Members<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut members = Vec::new();
        while let Some((MemberKey(key), value)) =
            map.next_entry::<MemberKey<'de>, &'de RawValue>()?
        {
            let value = value.get();
            let start = match key {
                Cow::Borrowed(key) => key,
                Cow::Owned(_) => value,
            };
            members.push(Member { key, value, start });
        }
        Ok(Members(members))
    }
}

/// A key, as a piece of the text if it has no escapes.
struct MemberKey<'a>(Cow<'a, str>);

impl<'de> Deserialize<'de> for MemberKey<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(MemberKeyVisitor)
    }
}

struct MemberKeyVisitor;

impl<'de> Visitor<'de> for MemberKeyVisitor {
    type Value = MemberKey<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key")
    }

    fn visit_borrowed_str<E>(self, key: &'de str) -> Result<Self::Value, E> {
        Ok(MemberKey(Cow::Borrowed(key)))
    }

    fn visit_str<E>(self, key: &str) -> Result<Self::Value, E> {
        Ok(MemberKey(Cow::Owned(key.to_owned())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(text: &str) -> Vec<(String, String)> {
        let text = Text { name: "f", text };
        let members = text.members(text.root().unwrap()).unwrap();
        members
            .iter()
            .map(|member| (member.key.to_string(), text.place(member).to_string()))
            .collect()
    }

    #[test]
    fn members_know_where_they_are() {
        let found = places("\n{ \"a\": 1,\n  \"ä\": {}, \"b\": [],\n\"\\u0063\": 2 }");
        let expected = [
            ("a", "f:2:4"),
            ("ä", "f:3:4"),
            ("b", "f:3:13"),
            ("c", "f:4:11"),
        ];
        let found: Vec<_> = found
            .iter()
            .map(|(k, p)| (k.as_str(), p.as_str()))
            .collect();
        assert_eq!(found, expected);
        assert_eq!(places("{\"a\":1,\"a\":2}").len(), 2, "repeated ones too");
    }

    #[test]
    fn what_is_no_json_has_a_place() {
        // (text, place)
        let cases = [
            ("", "f:1:1"),
            ("{", "f:1:1"),
            ("{ \"a\": 1,\n  }", "f:2:3"),
            ("{ \"a\": 1 }\nx", "f:2:1"),
            ("{ a: 1 }", "f:1:3"),
        ];
        for (json, place) in cases {
            let text = Text {
                name: "f",
                text: json,
            };
            let (at, what) = text.root().unwrap_err();
            assert_eq!(at.to_string(), place, "{json}");
            assert!(!what.is_empty() && !what.contains("line"), "{what}");
        }
    }

    #[test]
    fn only_objects_have_members() {
        for json in ["[]", "1", "null", "\"a\""] {
            let text = Text {
                name: "f",
                text: json,
            };
            assert!(text.members(text.root().unwrap()).is_none(), "{json}");
        }
    }
}
