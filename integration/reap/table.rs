//! The table of verdicts stands in the code's documentation and in the README: both say the same, of the same rows.

use std::{collections::BTreeSet, fs, path::Path};

use leasehold::domain::reap::{Line, Row};

const ROWS: [Row; 20] = [
    Row::Lives,
    Row::Leaving,
    Row::Overdue,
    Row::Silent,
    Row::Lost,
    Row::Ended,
    Row::EndedSilent,
    Row::Missed,
    Row::MissedSilent,
    Row::MissedNoNode,
    Row::Static,
    Row::Held(Line::Wanted),
    Row::Held(Line::Scaled),
    Row::Held(Line::OwnerAbsent),
    Row::Held(Line::NoOwner),
    Row::Held(Line::HoldFor),
    Row::Reserved,
    Row::Container,
    Row::Unreadable,
    Row::Doubt,
];

/// The lines of tables, without the references that only the code's documentation has.
fn tables(text: &str) -> Vec<String> {
    let plain = |line: &str| {
        let line = line.replace("the table of [retention](self#retention)", "the second table");
        line.replace(" ([`unreadable`])", "")
    };
    text.lines().filter(|line| line.starts_with("| ") || line.starts_with("|-")).map(plain).collect()
}

fn read(path: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap()
}

#[test]
fn the_readme_and_the_code_have_one_table_of_verdicts() {
    let code: String = read("src/domain/reap/mod.rs")
        .lines()
        .filter_map(|line| line.strip_prefix("//! "))
        .map(|line| format!("{line}\n"))
        .collect();
    let code = tables(&code);
    let readme = read("README.md");
    let section = readme.split("\n## Which lease is given back\n").nth(1).unwrap();
    let section = tables(section.split("\n## ").next().unwrap().split("\n### ").next().unwrap());
    assert_eq!(section, code);

    let cells = |line: &String| line.trim_matches('|').split(" | ").next().unwrap().trim().to_owned();
    let numbers: BTreeSet<String> = code
        .iter()
        .map(cells)
        .filter(|cell| cell.starts_with(|first: char| first.is_ascii_digit()))
        .collect();
    let known = ROWS.iter().map(|row| row.as_str().split(' ').next().unwrap().to_owned()).collect();
    assert_eq!(numbers, known);
    // Row 12's lines are those of the second table.
    let lines = ROWS.iter().filter(|row| matches!(row, Row::Held(_))).count();
    let start = code.iter().position(|line| line.starts_with("| held, and")).unwrap();
    assert_eq!(code.len() - start - 2, lines);
}
