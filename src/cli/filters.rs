//! Which of `-n`, `--cluster` and `--domain` a command takes. One that a command does not take is refused: a person who
//! narrows a command must not have it work on all. The help of every command says so, by the same table.

use std::{collections::BTreeMap, ffi::OsString};

use clap::{
    ArgMatches, CommandFactory as _, FromArgMatches as _,
    error::{ContextKind, ContextValue, ErrorKind},
};

use super::{
    Failure,
    args::{Cli, Global},
};
use crate::domain::{names::Namespace, words};

const N: &str = "-n";
const CLUSTER: &str = "--cluster";
const DOMAIN: &str = "--domain";
const FLAGS: [&str; 3] = [N, CLUSTER, DOMAIN];

/// What a command takes, and why not the rest.
pub(crate) struct Row {
    /// The command, with the flag that makes another of it.
    command: &'static str,
    takes: &'static [&'static str],
    /// What they do, where they do not narrow it.
    does: &'static str,
    why: &'static str,
}

const fn row(command: &'static str, takes: &'static [&'static str], why: &'static str) -> Row {
    Row { command, takes, does: "", why }
}

const NAMED: &str = "it is about what it names";
const DOCUMENTS: &str = "the documents say what it is about";
const NO_STORE: &str = "it is about no store";

const TABLE: &[Row] = &[
    row("pool list", &[CLUSTER, DOMAIN], "a pool has no namespace"),
    row("pool show", &[], NAMED),
    Row {
        does: "is that of the pool",
        ..row("pool create", &[DOMAIN], "whom a pool serves, --serves and --only-cluster say")
    },
    row("pool apply", &[], DOCUMENTS),
    row("pool diff", &[], DOCUMENTS),
    row("pool delete", &[], NAMED),
    row("lease list", &FLAGS, ""),
    row("lease show", &FLAGS, ""),
    Row { does: "say where; a device is in no namespace and no cluster", ..row("lease reserve", &FLAGS, "") },
    row("lease move", &FLAGS, ""),
    row("lease release", &FLAGS, ""),
    row("lease confirm", &[CLUSTER, DOMAIN], "an address has no namespace"),
    row("explain", &[N, CLUSTER], "a pod's pools are looked for in all domains"),
    row("check", &[], "the whole store is audited; only --against-pods can be narrowed"),
    row("check --repair", &[], "--repair mends the whole store; look at pods without it"),
    Row {
        does: "narrow the look at pods; the whole store is audited all the same",
        ..row("check --against-pods", &FLAGS, "")
    },
    row("cluster list", &[], "it lists the clusters of the store"),
    row("cluster add", &[], NAMED),
    row("cluster delete", &[], NAMED),
    row("freeze", &[], "it freezes the whole store"),
    Row {
        does: "say whose pods are asked for their addresses first; whatever they say, the whole store is thawed",
        ..row("thaw", &[N, CLUSTER], "it thaws the whole store")
    },
    Row {
        does: "names the cluster whose leases are looked at, instead of the host file's",
        ..row("reap", &[CLUSTER], "a pass looks at the whole cluster; pick from -o json")
    },
    row("adopt", &FLAGS, ""),
    row("flush", &[], "it is about this node"),
    Row {
        does: "names the cluster that is looked for, instead of the host file's",
        ..row("doctor", &[CLUSTER], "it is about this node")
    },
    Row {
        does: "is what is written into the host file",
        ..row("install", &[CLUSTER], "it is about this node")
    },
    row("version", &[], NO_STORE),
    row("completion", &[], NO_STORE),
];

impl Row {
    /// For the help of a command.
    fn sentences(&self) -> String {
        let refused: Vec<&str> = FLAGS.into_iter().filter(|flag| !self.takes.contains(flag)).collect();
        let mut out = Vec::new();
        if !self.takes.is_empty() {
            let narrows = if self.takes.len() == 1 { "narrows it" } else { "narrow it" };
            let does = if self.does.is_empty() { narrows } else { self.does };
            out.push(format!("{} {does}.", words::and(self.takes)));
        }
        if !refused.is_empty() {
            let are = if refused.len() == 1 { "is" } else { "are" };
            out.push(format!("{} {are} refused: {}.", words::and(&refused), self.why));
        }
        out.join(" ")
    }
}

/// Reads a command line. Gives also what the command takes.
pub(crate) fn parse(
    arguments: impl IntoIterator<Item = impl Into<OsString> + Clone>,
) -> Result<(Cli, &'static Row), clap::Error> {
    let mut command = told(Cli::command(), "");
    let matches = command.try_get_matches_from_mut(arguments).map_err(|error| elsewhere(error, &command))?;
    Ok((Cli::from_arg_matches(&matches)?, of(&matches)))
}

/// A flag that another command takes is no slip of the pen: it is said which does.
fn elsewhere(mut error: clap::Error, command: &clap::Command) -> clap::Error {
    let unknown = error.kind() == ErrorKind::UnknownArgument;
    let Some(ContextValue::String(flag)) = error.get(ContextKind::InvalidArg).filter(|_| unknown) else {
        return error;
    };
    let takes = |command: &clap::Command| {
        command.get_arguments().any(|arg| arg.get_long().is_some_and(|long| *flag == format!("--{long}")))
    };
    let takers: Vec<String> =
        leaves(command).into_iter().filter(|(_, leaf)| takes(leaf)).map(|leaf| leaf.0).collect();
    if !takers.is_empty() {
        let takers: Vec<&str> = takers.iter().map(String::as_str).collect();
        let tip = format!("{flag} is for {}", words::and(&takers)).into();
        error.remove(ContextKind::SuggestedArg);
        error.remove(ContextKind::Usage); // of what is spelt like it
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip]));
    }
    error
}

/// The commands that somebody can run.
fn leaves(command: &clap::Command) -> BTreeMap<String, &clap::Command> {
    let mut out = BTreeMap::new();
    for sub in command.get_subcommands() {
        let name = sub.get_name();
        if sub.has_subcommands() {
            out.extend(leaves(sub).into_iter().map(|(path, leaf)| (format!("{name} {path}"), leaf)));
        } else {
            out.insert(name.to_owned(), sub);
        }
    }
    out
}

/// The help of every command says what narrows it.
fn told(command: clap::Command, path: &str) -> clap::Command {
    let begins = |row: &&Row| {
        let rest = row.command.strip_prefix(path);
        rest.is_some_and(|rest| !path.is_empty() && (rest.is_empty() || rest.starts_with(" --")))
    };
    let mut lines = Vec::new();
    for row in TABLE.iter().filter(begins) {
        let with = row.command[path.len()..].trim_start();
        let with = if with.is_empty() { String::new() } else { format!("With {with}: ") };
        lines.push(format!("{with}{}", row.sentences()));
    }
    let before = command.get_after_help().map_or_else(String::new, |text| format!("{text}\n\n"));
    let command = if lines.is_empty() { command } else { command.after_help(before + &lines.join("\n")) };
    let path = path.to_owned();
    command.mut_subcommands(|sub| {
        let path = format!("{path} {}", sub.get_name());
        told(sub, path.trim_start())
    })
}

fn of(matches: &ArgMatches) -> &'static Row {
    let mut path = Vec::new();
    let mut at = matches;
    while let Some((name, sub)) = at.subcommand() {
        path.push(name);
        at = sub;
    }
    let is_set = |flag: &str| matches!(at.try_get_one::<bool>(flag), Ok(Some(true)));
    if path == ["check"] {
        let modes = [("repair", "--repair"), ("against_pods", "--against-pods")];
        path.extend(modes.iter().find(|(flag, _)| is_set(flag)).map(|(_, said)| *said));
    }
    let path = path.join(" ");
    TABLE.iter().find(|row| row.command == path).unwrap_or_else(|| unreachable!("{path} is not in the table"))
}

/// Refuses what would not narrow the command.
pub(crate) fn check(global: &Global, row: &Row) -> Result<(), Failure> {
    let given = [global.namespace.is_some(), global.cluster.is_some(), global.domain.is_some()]
        .into_iter()
        .zip(FLAGS);
    match given.into_iter().find(|(given, flag)| *given && !row.takes.contains(flag)) {
        None => Ok(()),
        Some((_, flag)) => {
            Err(Failure::usage(&format!("{flag} would not narrow this command: {}; leave it out", row.why)))
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

    use super::*;

    /// A line of each command. What it takes the README says.
    const LINES: &[&str] = &[
        "pool list",
        "pool show a",
        "pool create a --network n --subnet 10.0.0.0/24",
        "pool apply -f -",
        "pool diff -f -",
        "pool delete a",
        "lease list",
        "lease show 10.0.0.1",
        "lease reserve a/b --address 10.0.0.1",
        "lease move a/b a/c",
        "lease release 10.0.0.1",
        "lease confirm 10.0.0.1",
        "explain a/b",
        "check",
        "check --repair",
        "check --repair --against-pods",
        "check --against-pods",
        "cluster list",
        "cluster add a --uid 11111111-2222-4333-8444-555555555555",
        "cluster delete a",
        "freeze",
        "thaw",
        "reap",
        "reap --watch",
        "adopt",
        "flush",
        "doctor",
        "install",
        "version",
        "completion bash",
    ];

    /// The README's table: of each command the flags that it takes, and its own.
    fn readme() -> BTreeMap<&'static str, (Vec<&'static str>, Vec<&'static str>)> {
        let table = include_str!("../../README.md").split_once("| command | `-n` |").unwrap().1;
        let rows = table.lines().skip(2).take_while(|line| line.starts_with('|'));
        let mut out = BTreeMap::new();
        for line in rows {
            let cells: Vec<&str> = line.split('|').map(str::trim).collect();
            let [_, commands, n, cluster, domain, own, _] = cells[..] else { panic!("{line}") };
            let takes = FLAGS.into_iter().zip([n, cluster, domain]).filter(|(_, cell)| *cell != "no");
            let takes: Vec<&str> = takes.map(|(flag, _)| flag).collect();
            for command in quoted(commands) {
                assert_eq!(out.insert(command, (takes.clone(), quoted(own))), None, "{command}");
            }
        }
        out
    }

    fn quoted(cell: &str) -> Vec<&str> {
        cell.split('`').skip(1).step_by(2).collect()
    }

    fn parsed(line: &str) -> (&'static str, Result<(), Failure>) {
        let (cli, row) = parse(line.split(' ')).unwrap_or_else(|error| panic!("{line}: {error}"));
        (row.command, check(&cli.global, row))
    }

    #[test]
    fn no_command_ignores_what_narrows_others() {
        let readme = readme();
        for line in LINES {
            for flag in FLAGS {
                let whole = format!("leasehold {line} {flag} a");
                let (command, outcome) = parsed(&whole);
                match (outcome, readme[command].0.contains(&flag)) {
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
                assert!(parsed(&whole).1.is_ok(), "{whole}");
            }
        }
    }

    fn plain(command: &str) -> &str {
        command.split(" --").next().unwrap()
    }

    #[test]
    fn the_tables_have_every_command_and_no_other() {
        let whole = told(Cli::command(), "");
        let (commands, readme) = (leaves(&whole), readme());
        let of_table: BTreeSet<&str> = TABLE.iter().map(|row| plain(row.command)).collect();
        assert_eq!(of_table, commands.keys().map(String::as_str).collect());
        let tried: BTreeSet<&str> = LINES.iter().map(|line| parsed(&format!("leasehold {line}")).0).collect();
        let all: BTreeSet<&str> = TABLE.iter().map(|row| row.command).collect();
        assert_eq!((tried, readme.keys().copied().collect()), (all.clone(), all));
        for (command, (_, own)) in readme {
            let known = commands[plain(command)].get_arguments().filter_map(clap::Arg::get_long);
            let known: Vec<String> = known.map(|long| format!("--{long}")).collect();
            assert!(own.iter().all(|flag| known.iter().any(|known| known == flag)), "{command}: {own:?}");
        }
    }

    #[test]
    fn every_help_says_what_narrows_the_command() {
        let whole = told(Cli::command(), "");
        let commands = leaves(&whole);
        let help = |path: &str| commands[path].get_after_help().unwrap().to_string();
        for row in TABLE {
            assert!(help(plain(row.command)).contains(&row.sentences()), "{}", row.command);
        }
        for (path, end) in [
            ("adopt", "\n\n-n, --cluster and --domain narrow it."),
            ("pool list", "\n\n--cluster and --domain narrow it. -n is refused: a pool has no namespace."),
            ("freeze", "\n\n-n, --cluster and --domain are refused: it freezes the whole store."),
            (
                "check",
                "\nWith --against-pods: -n, --cluster and --domain narrow the look at pods; the whole store is audited all the same.",
            ),
        ] {
            assert!(help(path).ends_with(end), "{}", help(path));
        }
    }

    #[test]
    fn a_flag_of_another_command_is_told_whose_it_is() {
        for (line, tip) in [
            ("pool list --node n1", Some("--node is for explain, install and lease list")),
            ("reap --pool a", Some("--pool is for lease list")),
            ("lease show 10.0.0.1 --repair", Some("--repair is for check")),
            ("pool list --nonsense", None),
        ] {
            let error = parse(format!("leasehold {line}").split(' ')).map(|_| ()).unwrap_err().to_string();
            let tips: Vec<&str> =
                error.lines().filter_map(|line| line.trim().strip_prefix("tip: ")).collect();
            assert_eq!(tips, tip.into_iter().collect::<Vec<_>>(), "{error}");
            assert!(!error.contains("--endpoints"), "{error}");
        }
    }
}
