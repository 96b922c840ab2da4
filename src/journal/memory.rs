//! What a node remembers of the store: how far it has seen it and when, the names of the pools that it used last, and what
//! was free in those that are crowded.

use std::{
    cell::RefCell,
    fs::{self, File},
    io,
    net::IpAddr,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::{
    VERSION,
    files::{create, hex, is_same, replace, try_lock},
};
use crate::{
    domain::{
        names::{BootId, DomainName, NetworkName, PoolName, StoreId},
        pool::{Serve, parse_serve},
    },
    store::Revision,
};

/// What a node remembers of the store. A store of the same ID that is behind it was restored from a snapshot.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Memory {
    /// The ID that was seen last.
    pub store: Option<StoreId>,
    /// The highest revision that was seen of it.
    pub revision: Revision,
    /// The pools that its ADDs looked at last, the latest first. Their documents are asked for in the first read of an ADD
    /// that they may serve, and one that it turns out not to need is not looked at: a wrong name costs a question, a
    /// missing one a read.
    pub pools: Vec<LookedAt>,
    /// When it was seen, the latest first, a second apart: a lease whose revision was seen long ago was not written
    /// just now, whatever the clocks of others say.
    pub sightings: Vec<Sighting>,
    /// What was free in pools that are crowded, the pool used last first. It is asked for in an ADD's first read, and only
    /// what is free by that answer is taken, under the same compares as any address: a wrong one costs two questions.
    pub spares: Vec<Spares>,
}

/// A pool that an ADD looked at.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct LookedAt {
    /// Whom it serves, by the index, of those that the ADD was for.
    pub serve: Serve,
    /// The pool.
    pub pool: PoolName,
}

/// Addresses of a crowded pool that this node saw free.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Spares {
    /// The network on which they were looked for: who is on another does not ask for them.
    pub network: NetworkName,
    /// The pool.
    pub pool: PoolName,
    /// The domain in which they were free.
    pub domain: DomainName,
    /// They; perhaps none.
    pub addresses: Vec<IpAddr>,
    /// So many ADDs more may rest on this; then one has to look again whether the pool is crowded.
    pub uses: u64,
}

/// The store had come this far when this node looked.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Sighting {
    /// So far.
    pub revision: Revision,
    /// The boot of the node.
    pub boot: BootId,
    /// The boot-time clock after the answer came, microseconds.
    pub at: u64,
}

impl Memory {
    /// Reads the file, as far as it goes: what it says of the rest is nothing.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        let value: Value = serde_json::from_str(text).unwrap_or_default();
        let list = |field: &str| value.get(field).and_then(Value::as_array).into_iter().flatten();
        let looked_at = |value: &Value| {
            Some(LookedAt {
                serve: parse_serve(value.get("serve")?.as_str()?).ok()?,
                pool: PoolName::new(value.get("pool")?.as_str()?).ok()?,
            })
        };
        let sighting = |value: &Value| {
            Some(Sighting {
                revision: Revision(value.get("revision")?.as_i64()?),
                boot: BootId::new(value.get("boot")?.as_str()?).ok()?,
                at: value.get("at")?.as_u64()?,
            })
        };
        let spares = |value: &Value| {
            let addresses = value.get("addresses")?.as_array()?;
            Some(Spares {
                network: NetworkName::new(value.get("network")?.as_str()?).ok()?,
                pool: PoolName::new(value.get("pool")?.as_str()?).ok()?,
                domain: DomainName::new(value.get("domain")?.as_str()?).ok()?,
                addresses: addresses.iter().filter_map(|address| address.as_str()?.parse().ok()).collect(),
                uses: value.get("uses")?.as_u64()?,
            })
        };
        Self {
            store: value.get("store").and_then(Value::as_str).and_then(|id| StoreId::new(id).ok()),
            revision: Revision(value.get("revision").and_then(Value::as_i64).unwrap_or(0)),
            pools: list("pools").filter_map(looked_at).collect(),
            sightings: list("sightings").filter_map(sighting).collect(),
            spares: list("spares").filter_map(spares).collect(),
        }
    }

    /// The file; `None`: no store was seen.
    #[must_use]
    pub fn text(&self) -> Option<String> {
        let looked_at =
            |LookedAt { serve, pool }: &LookedAt| json!({"serve": serve.to_string(), "pool": pool.as_str()});
        let sighting = |sighting: &Sighting| json!({"revision": sighting.revision.0, "boot": sighting.boot.as_str(), "at": sighting.at});
        let spares = |spares: &Spares| json!({"network": spares.network.as_str(), "pool": spares.pool.as_str(), "domain": spares.domain.as_str(), "addresses": spares.addresses, "uses": spares.uses});
        let text = json!({
            "v": VERSION,
            "store": self.store.as_ref()?.as_str(),
            "revision": self.revision.0,
            "pools": self.pools.iter().map(looked_at).collect::<Vec<_>>(),
            "sightings": self.sightings.iter().map(sighting).collect::<Vec<_>>(),
            "spares": self.spares.iter().map(spares).collect::<Vec<_>>(),
        });
        Some(format!("{text}\n"))
    }
}

/// The file of a node's [`Memory`]. It is written in place: a new one that takes the place of the last is six more calls of
/// the file system, in every ADD. So what is read says by its sum whether it is whole.
#[derive(Clone, Debug)]
pub struct Sight {
    path: PathBuf,
    /// What was read last: mostly it stands there still when it is to be written.
    read: RefCell<Option<(String, Content)>>,
}

/// What the file begins with; the sum of all that follows its quote and comma is next.
const SEAL: &str = "{\"sum\":\"";
/// The file's length is a multiple of this, so that mostly a write covers all of what was there.
const BLOCK: usize = 512;
/// How often a file is read that somebody writes at this moment, how often its lock is tried, and how long between: it is
/// held for a read and a write.
const READS: u32 = 3;
const SAVES: u32 = 20;
const WRITE_PAUSE: Duration = Duration::from_millis(1);

/// What is in a file of a [`Sight`].
#[derive(Clone, Debug, Eq, PartialEq)]
enum Content {
    /// Whole.
    Whole(Memory),
    /// Of a version that wrote no sum, and whole files only.
    Unsealed(Memory),
    /// Half written, or by somebody else.
    Torn,
}

fn sum(text: &str) -> String {
    hex(&Sha256::digest(text.as_bytes()), 8)
}

/// A file of this text, which is a JSON object.
fn seal(text: &str) -> Vec<u8> {
    let rest = text.trim_end().trim_start_matches('{');
    let mut bytes = format!("{SEAL}{}\",{rest}", sum(rest)).into_bytes();
    bytes.resize((bytes.len() + 1).next_multiple_of(BLOCK), b' ');
    bytes.pop();
    bytes.push(b'\n');
    bytes
}

fn unseal(text: &str) -> Content {
    let Some(sealed) = text.strip_prefix(SEAL) else { return Content::Unsealed(Memory::parse(text)) };
    let padding = sealed.bytes().rev().take_while(u8::is_ascii_whitespace).count();
    match sealed[..sealed.len() - padding].split_once("\",") {
        Some((expected, rest)) if sum(rest) == expected => {
            Content::Whole(Memory::parse(&text[..text.len() - padding]))
        }
        Some(_) | None => Content::Torn,
    }
}

impl Sight {
    /// The sight in a node's state folder.
    #[must_use]
    pub fn new(state: &Path) -> Self {
        Self { path: state.join("store.json"), read: RefCell::default() }
    }

    /// What was seen last; nothing, if nothing was, or the file cannot be read.
    #[must_use]
    pub fn load(&self) -> Memory {
        match self.content() {
            Some(Content::Whole(memory) | Content::Unsealed(memory)) => memory,
            Some(Content::Torn) | None => Memory::default(),
        }
    }

    /// `None`: there is no file, or it is no text.
    fn content(&self) -> Option<Content> {
        for _ in 0..READS {
            let text = fs::read_to_string(&self.path).ok()?;
            let mut read = self.read.borrow_mut();
            let (_, content) = match read.take().filter(|(known, _)| *known == text) {
                Some(same) => read.insert(same),
                None => {
                    let content = unseal(&text);
                    read.insert((text, content))
                }
            };
            if *content != Content::Torn {
                return Some(content.clone());
            }
            drop(read);
            thread::sleep(WRITE_PAUSE);
        }
        Some(Content::Torn)
    }

    /// Remembers. Not made durable: after a crash the node knows a little less, which is safe. Of two runs at once one may
    /// forget the other's pools or spares, which costs the next one a read, or its sightings, a wait; not how far it saw.
    /// Nothing is written for a mere change of the pools' order, nor while others have the lock all the time.
    ///
    /// # Errors
    /// The file system's.
    pub fn save(&self, memory: &Memory) -> io::Result<()> {
        if memory.store.is_none() {
            return Ok(());
        }
        for _ in 0..SAVES {
            let file = create(&self.path)?;
            // A file that was replaced since is none any more.
            if try_lock(&file)? && is_same(&file, &self.path)? {
                return self.save_locked(&file, memory.clone());
            }
            thread::sleep(WRITE_PAUSE);
        }
        Ok(())
    }

    fn save_locked(&self, file: &File, mut memory: Memory) -> io::Result<()> {
        let content = self.content();
        if let Some(Content::Whole(known) | Content::Unsealed(known)) = &content
            && known.store == memory.store
        {
            memory.revision = memory.revision.max(known.revision);
            if memory.revision == known.revision
                && memory.sightings == known.sightings
                && memory.spares == known.spares
                && memory.pools.iter().all(|pool| known.pools.contains(pool))
            {
                return Ok(());
            }
        }
        let Some(text) = memory.text() else { return Ok(()) };
        let mut bytes = seal(&text);
        let length = usize::try_from(file.metadata()?.len()).unwrap_or(0);
        if let (Some(Content::Unsealed(_)), 1..) = (content, length) {
            // Whoever reads a part of it would not know.
            return replace(&self.path, &bytes, false);
        }
        // Over all that was there, at once: whoever is killed leaves the one or the other, if it is not longer than a page. Room
        // is made before: where there is none, what was there stays.
        if bytes.len() < length {
            bytes.resize(length, b' ');
        } else {
            file.write_all_at(&vec![b' '; bytes.len() - length], length.try_into().unwrap_or(u64::MAX))?;
        }
        file.write_all_at(&bytes, 0)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::{super::tests::folder, *};

    fn looked_at(pool: &str) -> LookedAt {
        LookedAt { serve: Serve::Everything, pool: PoolName::new(pool).unwrap() }
    }

    fn memory(store: &str, revision: i64, pools: &[&str]) -> Memory {
        Memory {
            store: Some(StoreId::new(store).unwrap()),
            revision: Revision(revision),
            pools: pools.iter().map(|name| looked_at(name)).collect(),
            sightings: Vec::new(),
            spares: Vec::new(),
        }
    }

    #[test]
    fn the_sight_never_goes_back_for_one_store() {
        let state = folder("sight");
        let sight = Sight::new(&state);
        assert_eq!(sight.load(), Memory::default());
        sight.save(&Memory::default()).unwrap();
        assert!(!sight.path.exists(), "a store that was not seen");
        sight.save(&memory("s1", 5, &[])).unwrap();
        sight.save(&memory("s1", 3, &["lan"])).unwrap();
        assert_eq!(sight.load(), memory("s1", 5, &["lan"]));
        sight.save(&memory("s2", 1, &["lan"])).unwrap();
        assert_eq!(sight.load(), memory("s2", 1, &["lan"]));
        fs::remove_dir_all(&state).unwrap();
    }

    #[test]
    fn the_sight_is_written_for_a_new_pool_or_sighting_and_not_for_another_order() {
        let state = folder("order");
        let sight = Sight::new(&state);
        sight.save(&memory("s1", 5, &["lan", "db"])).unwrap();
        sight.save(&memory("s1", 5, &["db", "lan"])).unwrap();
        assert_eq!(sight.load(), memory("s1", 5, &["lan", "db"]));
        sight.save(&memory("s1", 5, &["web", "db", "lan"])).unwrap();
        assert_eq!(sight.load(), memory("s1", 5, &["web", "db", "lan"]));
        sight.save(&memory("s1", 6, &["lan", "db"])).unwrap();
        assert_eq!(sight.load(), memory("s1", 6, &["lan", "db"]));
        let mut seen = memory("s1", 6, &["lan", "db"]);
        seen.sightings.push(sighting(5, 7_000_000));
        sight.save(&seen).unwrap();
        assert_eq!(sight.load(), seen);
        seen.spares.push(spares("lan", &["10.0.0.1", "fd00::1"]));
        sight.save(&seen).unwrap();
        assert_eq!(sight.load(), seen);
        fs::remove_dir_all(&state).unwrap();
    }

    fn spares(pool: &str, addresses: &[&str]) -> Spares {
        Spares {
            network: NetworkName::new("lan100").unwrap(),
            pool: PoolName::new(pool).unwrap(),
            domain: DomainName::new("default").unwrap(),
            addresses: addresses.iter().map(|address| address.parse().unwrap()).collect(),
            uses: 3,
        }
    }

    /// Its reader sees a half of it at worst, and knows.
    #[test]
    fn a_sight_that_is_half_written_says_nothing_and_is_written_whole_again() {
        let state = folder("torn");
        let sight = Sight::new(&state);
        let names: Vec<String> = (0..20).map(|number| format!("pool-{number}")).collect();
        let long = memory("s1", 7, &names.iter().map(String::as_str).collect::<Vec<_>>());
        let short = memory("s1", 8, &["lan"]);
        sight.save(&long).unwrap();
        assert_eq!(sight.load(), long);
        let longer = fs::read(&sight.path).unwrap();
        assert_eq!(longer.len(), 2 * BLOCK);
        fs::remove_file(&sight.path).unwrap();
        sight.save(&short).unwrap();
        let shorter = fs::read(&sight.path).unwrap();
        assert_eq!(shorter.len(), BLOCK);
        for cut in 0..BLOCK {
            let torn = [&shorter[..cut], &longer[cut..]].concat();
            fs::write(&sight.path, &torn).unwrap();
            let seen = sight.load();
            // As long as nothing that differs was written, it is the one before.
            assert!(seen == Memory::default() || seen == long && cut <= SEAL.len() + 16, "{cut}");
            fs::write(&sight.path, &shorter[..cut]).unwrap();
            let seen = sight.load();
            assert!(seen == Memory::default() || seen == short && cut > 60, "{cut}");
        }
        fs::write(&sight.path, [&shorter[..], &longer[BLOCK..]].concat()).unwrap();
        assert_eq!(sight.load(), Memory::default());
        sight.save(&short).unwrap();
        assert_eq!(fs::read(&sight.path).unwrap().len(), longer.len());
        assert_eq!(sight.load(), short);
        // Of an older version: replaced whole.
        fs::write(&sight.path, long.text().unwrap()).unwrap();
        let before = fs::metadata(&sight.path).unwrap().ino();
        sight.save(&memory("s1", 9, &["lan"])).unwrap();
        assert_ne!(fs::metadata(&sight.path).unwrap().ino(), before);
        assert_eq!(sight.load(), memory("s1", 9, &["lan"]));
        let before = fs::metadata(&sight.path).unwrap().ino();
        sight.save(&memory("s1", 10, &["lan"])).unwrap();
        assert_eq!(fs::metadata(&sight.path).unwrap().ino(), before);
        fs::remove_dir_all(&state).unwrap();
    }

    fn sighting(revision: i64, at: u64) -> Sighting {
        Sighting { revision: Revision(revision), boot: BootId::new("b1").unwrap(), at }
    }

    #[test]
    fn the_sight_of_another_version_and_rubbish_in_it_are_read_as_far_as_they_go() {
        let state = folder("versions");
        let sight = Sight::new(&state);
        let mut seen = memory("s1", 5, &["lan"]);
        seen.sightings = vec![sighting(4, 9), sighting(3, 2)];
        seen.spares = vec![spares("lan", &["10.0.0.1"]), spares("db", &[])];
        sight.save(&seen).unwrap();
        // An older version knows no more than `store`, `revision` and `sightings`, and `pools` as names.
        let mut written: Value = serde_json::from_slice(&fs::read(&sight.path).unwrap()).unwrap();
        assert!(written.as_object_mut().unwrap().shift_remove("sum").is_some());
        let sightings =
            json!([{"revision": 4, "boot": "b1", "at": 9}, {"revision": 3, "boot": "b1", "at": 2}]);
        let spares = json!([
            {"network": "lan100", "pool": "lan", "domain": "default", "addresses": ["10.0.0.1"], "uses": 3},
            {"network": "lan100", "pool": "db", "domain": "default", "addresses": [], "uses": 3},
        ]);
        let pools = json!([{"serve": "*/*", "pool": "lan"}]);
        let expected = json!({"v": 1, "store": "s1", "revision": 5, "pools": pools, "sightings": sightings, "spares": spares});
        assert_eq!(written, expected);
        let case = |text: &str, expected: &[&str]| {
            fs::write(&sight.path, text).unwrap();
            assert_eq!(sight.load(), memory("s1", 5, expected), "{text}");
        };
        case(r#"{"v":1,"store":"s1","revision":5}"#, &[]);
        case(r#"{"v":1,"store":"s1","revision":5,"pools":"lan"}"#, &[]);
        case(
            r#"{"v":1,"store":"s1","revision":5,"pools":[7,"lan",null,["lan"],{"pool":"lan"},{"serve":"*/*","pool":"../x"},{"serve":"x","pool":"x"},{"serve":"*/*","pool":"db"}]}"#,
            &["db"],
        );
        case(
            r#"{"v":1,"store":"s1","revision":5,"sightings":[7,{},{"revision":4,"at":9},{"revision":"4","boot":"b1","at":9}]}"#,
            &[],
        );
        case(
            r#"{"v":1,"store":"s1","revision":5,"spares":[7,{},{"network":"n","pool":"lan","domain":"d"},{"network":"n","pool":"../x","domain":"d","addresses":[],"uses":1}]}"#,
            &[],
        );
        case(
            r#"{"v":2,"store":"s1","revision":5,"pools":[{"serve":"*/*","pool":"lan","more":1}],"more":{}}"#,
            &["lan"],
        );
        for text in ["", "{", "[]", "7"] {
            fs::write(&sight.path, text).unwrap();
            assert_eq!(sight.load(), Memory::default(), "{text}");
        }
        fs::remove_dir_all(&state).unwrap();
    }
}
