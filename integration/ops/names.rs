//! The workload of a pod, for the names that Kubernetes makes: `k8s.io/apimachinery` draws a suffix of five, cuts what
//! stands before it to 58, and encodes a template hash of 32 bits in letters of its own.

use leasehold::{
    domain::{
        names::{ClusterName, NetworkName, NodeName, PodName},
        pool::{Draft, Pool},
        select::{Caller, is_sticky},
        workload::candidates,
    },
    store::record::PoolDocument,
};

use super::world::{Dice, holder, pool};

const SUFFIX: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
/// Characters that Kubernetes leaves of the name before a suffix.
const CUT: usize = 58;
/// `pool apply` warns of workload names that are longer.
const LONGEST: usize = 46;

fn text(dice: &mut Dice, alphabet: &[u8], length: usize) -> String {
    (0..length).map(|_| char::from(alphabet[dice.below(alphabet.len())])).collect()
}

/// A name as people write it: letters, digits, dashes and dots; often something that looks generated.
fn name(dice: &mut Dice, longest: usize) -> String {
    const ENDS: &[u8] = b"abcdefghijklmnopqrstuvwxyz0123456789";
    const MIDDLE: &[u8] = b"abcdefghijklmnopqrstuvwxyz0123456789---.";
    let length = 1 + dice.below(longest);
    let mut out = text(dice, MIDDLE, length);
    let tail = match dice.below(6) {
        0 => format!("-{}", dice.below(1_000)),
        1 => format!("-{}", text(dice, SUFFIX, 5)),
        2 => format!("-{}", text(dice, b"456789bcdf", 9)),
        _ => String::new(),
    };
    out.truncate(longest.saturating_sub(tail.len()).max(1));
    out += &tail;
    out.truncate(longest);
    let mut bytes = out.into_bytes();
    let last = bytes.len() - 1;
    for end in [0, last] {
        if !bytes[end].is_ascii_alphanumeric() {
            bytes[end] = ENDS[dice.below(ENDS.len())];
        }
    }
    String::from_utf8(bytes).unwrap()
}

fn generated(dice: &mut Dice, base: &str) -> String {
    let mut out = format!("{base}-");
    out.truncate(CUT);
    // All digits in 1 of 854; here more often.
    let alphabet = if dice.below(20) == 0 { &b"2456789"[..] } else { SUFFIX };
    out + &text(dice, alphabet, 5)
}

/// `SafeEncodeString` of the decimal of a hash of 32 bits.
fn template_hash(dice: &mut Dice) -> String {
    let number = u32::try_from(dice.next() >> 32).unwrap() >> dice.below(20);
    // Every character of the decimal is mapped by its byte: `alphanums[b % 27]`.
    number.to_string().bytes().map(|b| char::from(SUFFIX[usize::from(b) % SUFFIX.len()])).collect()
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    StatefulSet,
    Deployment,
    DaemonSet,
    Job,
    IndexedJob,
    CronJob,
    IndexedCronJob,
    Bare,
    Static,
}

const KINDS: [Kind; 9] = [
    Kind::StatefulSet,
    Kind::Deployment,
    Kind::DaemonSet,
    Kind::Job,
    Kind::IndexedJob,
    Kind::CronJob,
    Kind::IndexedCronJob,
    Kind::Bare,
    Kind::Static,
];

impl Kind {
    const fn longest(self) -> usize {
        // Eight digits and the index stand between.
        if matches!(self, Self::IndexedCronJob) { LONGEST - 3 } else { LONGEST }
    }

    /// The pod of a workload, and the workload's name.
    fn pod(self, dice: &mut Dice, base: &str) -> (String, String) {
        let minutes = 28_000_000 + dice.below(9_000_000);
        let most = if dice.below(4) == 0 { 1_000 } else { 10 };
        let index = dice.below(most);
        let pod = match self {
            Self::StatefulSet => format!("{base}-{index}"),
            Self::Deployment => {
                let set = format!("{base}-{}", template_hash(dice));
                generated(dice, &set)
            }
            Self::DaemonSet | Self::Job => generated(dice, base),
            Self::IndexedJob => generated(dice, &format!("{base}-{index}")),
            Self::CronJob => generated(dice, &format!("{base}-{minutes}")),
            Self::IndexedCronJob => generated(dice, &format!("{base}-{minutes}-{index}")),
            Self::Bare => base.to_owned(),
            Self::Static => {
                let pod = format!("{base}-node{index}.example.org");
                return (pod.clone(), pod);
            }
        };
        (pod, base.to_owned())
    }
}

#[test]
fn the_workload_is_among_the_candidates_of_every_kind_of_pod() {
    for kind in KINDS {
        let mut dice = Dice(0x5EED + kind as u64);
        for _ in 0..100_000 {
            let base = name(&mut dice, kind.longest());
            let (pod, workload) = kind.pod(&mut dice, &base);
            let found = candidates(&PodName::new(pod.as_str()).unwrap());
            assert!(found.iter().any(|w| w.as_str() == workload), "{kind:?} {pod} of {workload}: {found:?}");
            assert!(found.len() <= 4, "{pod}: {found:?}");
        }
    }
}

fn always_sticky() -> Pool {
    let document = PoolDocument { sticky: Some("always".into()), ..pool("p", &["10.0.0.0/24"]) };
    Pool::from_draft(&Draft::from(&document)).unwrap()
}

fn caller(pod: &str) -> Caller {
    Caller {
        cluster: ClusterName::new("prod").unwrap(),
        node: NodeName::new("n1").unwrap(),
        labels: Vec::new(),
        network: NetworkName::new("lan").unwrap(),
        holder: holder(&format!("shop/{pod}")),
    }
}

#[test]
fn a_pod_with_a_random_suffix_is_never_sticky_whatever_its_length() {
    let rule = always_sticky();
    let mut dice = Dice(0xD1CE);
    for kind in [Kind::Deployment, Kind::DaemonSet, Kind::Job, Kind::IndexedJob, Kind::CronJob] {
        for longest in [LONGEST, 63, 230] {
            for _ in 0..20_000 {
                let base = name(&mut dice, longest);
                let (pod, _) = kind.pod(&mut dice, &base);
                assert!(
                    !is_sticky(Some(&rule), &caller(&pod).holder, Some(true), None, &[]),
                    "{kind:?} {pod}"
                );
            }
        }
    }
}

#[test]
fn a_pod_of_a_statefulset_is_sticky_where_the_pool_says_so() {
    let rule = always_sticky();
    let mut dice = Dice(0xACE);
    for _ in 0..20_000 {
        let base = name(&mut dice, LONGEST);
        let (pod, _) = Kind::StatefulSet.pod(&mut dice, &base);
        assert!(is_sticky(Some(&rule), &caller(&pod).holder, None, None, &[]), "{pod}");
    }
}
