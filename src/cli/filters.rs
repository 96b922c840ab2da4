//! Which of `-n`, `--cluster` and `--domain` a command takes. One that a command does not take is refused: a person who
//! narrows a command must not have it work on all.

use super::{
    Failure,
    args::{Check, Cli, ClusterCommand, Command, LeaseCommand, PoolCommand},
};
use crate::domain::names::Namespace;

/// What a command takes, and why not the rest.
struct Filters {
    namespace: bool,
    cluster: bool,
    domain: bool,
    why: &'static str,
}

impl Filters {
    const ALL: Self = Self { namespace: true, cluster: true, domain: true, why: "" };

    const fn none(why: &'static str) -> Self {
        Self { namespace: false, cluster: false, domain: false, why }
    }

    const fn cluster(why: &'static str) -> Self {
        Self { cluster: true, ..Self::none(why) }
    }
}

const NAMED: &str = "it is about what it names";
const THIS_NODE: &str = "it is about this node";

fn of(command: &Command) -> Filters {
    match command {
        Command::Lease(
            LeaseCommand::List(_)
            | LeaseCommand::Show { .. }
            | LeaseCommand::Reserve(_)
            | LeaseCommand::Move { .. }
            | LeaseCommand::Release(_),
        )
        | Command::Adopt(_) => Filters::ALL,
        Command::Pool(command) => match command {
            PoolCommand::List(_) => {
                Filters { namespace: false, why: "a pool has no namespace", ..Filters::ALL }
            }
            PoolCommand::Create(_) => Filters {
                domain: true,
                ..Filters::none("whom a pool serves, --serves and --only-cluster say")
            },
            PoolCommand::Apply(_) | PoolCommand::Diff(_) => {
                Filters::none("the documents say what it is about")
            }
            PoolCommand::Show { .. } | PoolCommand::Delete { .. } => Filters::none(NAMED),
        },
        Command::Explain(_) => {
            Filters { namespace: true, ..Filters::cluster("a pod's pools are looked for in all domains") }
        }
        Command::Check(Check { repair: true, .. }) => {
            Filters::none("--repair mends the whole store; look at pods without it")
        }
        Command::Check(Check { against_pods: true, .. }) => Filters::ALL,
        Command::Check(_) => Filters::none("the whole store is audited; only --against-pods can be narrowed"),
        Command::Cluster(ClusterCommand::List(_)) => Filters::none("it lists the clusters of the store"),
        Command::Cluster(ClusterCommand::Add { .. } | ClusterCommand::Delete { .. }) => Filters::none(NAMED),
        Command::Freeze(_) => Filters::none("it freezes the whole store"),
        // Whose pods are asked for their addresses, before the whole store is thawed.
        Command::Thaw(_) => Filters { namespace: true, ..Filters::cluster("it thaws the whole store") },
        Command::Reap(_) => Filters::cluster("a pass looks at the whole cluster; pick from -o json"),
        Command::Doctor | Command::Install(_) => Filters::cluster(THIS_NODE),
        Command::Flush(_) => Filters::none(THIS_NODE),
        Command::Version | Command::Completion { .. } => Filters::none("it is about no store"),
    }
}

/// Refuses what would not narrow the command.
pub(crate) fn check(cli: &Cli) -> Result<(), Failure> {
    let (global, takes) = (&cli.global, of(&cli.command));
    let refused = [
        ("-n", global.namespace.is_some() && !takes.namespace),
        ("--cluster", global.cluster.is_some() && !takes.cluster),
        ("--domain", global.domain.is_some() && !takes.domain),
    ];
    match refused.into_iter().find(|(_, refused)| *refused) {
        None => Ok(()),
        Some((flag, _)) => {
            Err(Failure::usage(&format!("{flag} would not narrow this command: {}; leave it out", takes.why)))
        }
    }
}

/// What an argument names is in the namespace of `-n`.
pub(crate) fn within(only: Option<&Namespace>, named: Option<&Namespace>, text: &str) -> Result<(), Failure> {
    match only.filter(|only| named != Some(only)) {
        None => Ok(()),
        Some(only) => Err(Failure::usage(&format!("{text} is not in namespace {only}, which -n names"))),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use clap::{CommandFactory as _, Parser as _};

    use super::*;

    /// A line of each command, and what narrows it: the namespace, the cluster, the domain.
    const TABLE: &[(&str, &str)] = &[
        ("pool list", "cd"),
        ("pool show a", ""),
        ("pool create a --network n --subnet 10.0.0.0/24", "d"),
        ("pool apply -f -", ""),
        ("pool diff -f -", ""),
        ("pool delete a", ""),
        ("lease list", "ncd"),
        ("lease show 10.0.0.1", "ncd"),
        ("lease reserve a/b --address 10.0.0.1", "ncd"),
        ("lease move a/b a/c", "ncd"),
        ("lease release 10.0.0.1", "ncd"),
        ("explain a/b", "nc"),
        ("check", ""),
        ("check --repair", ""),
        ("check --repair --against-pods", ""),
        ("check --against-pods", "ncd"),
        ("cluster list", ""),
        ("cluster add a --uid 11111111-2222-4333-8444-555555555555", ""),
        ("cluster delete a", ""),
        ("freeze", ""),
        ("thaw", "nc"),
        ("reap", "c"),
        ("reap --watch", "c"),
        ("adopt", "ncd"),
        ("flush", ""),
        ("doctor", "c"),
        ("install", "c"),
        ("version", ""),
        ("completion bash", ""),
    ];

    #[test]
    fn no_command_ignores_what_narrows_others() {
        for (line, takes) in TABLE {
            for (letter, flag, said) in
                [('n', "-n", "-n a"), ('c', "--cluster", "--cluster a"), ('d', "--domain", "--domain a")]
            {
                let whole = format!("leasehold {line} {said}");
                let cli = Cli::try_parse_from(whole.split(' ')).unwrap_or_else(|e| panic!("{whole}: {e}"));
                match (check(&cli), takes.contains(letter)) {
                    (Ok(()), true) => {}
                    (Err(failure), false) => {
                        assert_eq!(failure.code, super::super::USAGE, "{whole}");
                        assert!(failure.text.starts_with(flag), "{whole}: {}", failure.text);
                    }
                    (outcome, _) => panic!("{whole}: {outcome:?}"),
                }
            }
            for harmless in ["", " -A"] {
                let whole = format!("leasehold {line}{harmless}");
                assert!(check(&Cli::try_parse_from(whole.split(' ')).unwrap()).is_ok(), "{whole}");
            }
        }
    }

    #[test]
    fn the_table_has_every_command() {
        fn walk(command: &clap::Command, path: &str, out: &mut BTreeSet<String>) {
            for sub in command.get_subcommands() {
                let path = format!("{path} {}", sub.get_name());
                if sub.has_subcommands() {
                    walk(sub, &path, out);
                } else {
                    out.insert(path.trim().to_owned());
                }
            }
        }
        let mut all = BTreeSet::new();
        walk(&Cli::command(), "", &mut all);
        all.retain(|path| !TABLE.iter().any(|(line, _)| format!("{line} ").starts_with(&format!("{path} "))));
        assert_eq!(all, BTreeSet::new());
    }
}
