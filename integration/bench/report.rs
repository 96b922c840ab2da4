//! The table: what was measured, beside what was to be true.

use std::{fmt::Write as _, path::Path, time::Duration};

use serde_json::{Value, json};

use super::measure::Times;

/// What a figure counts.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Unit {
    /// One time by another.
    Ratio,
    Seconds,
    Millis,
    Kib,
    Mib,
    Count,
}

/// One line of the table.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    pub(crate) name: &'static str,
    pub(crate) work: String,
    pub(crate) unit: Unit,
    /// At most this.
    pub(crate) goal: f64,
    /// Nothing if a part is missing.
    pub(crate) measured: Option<f64>,
    /// What the figure is made of.
    pub(crate) figures: String,
}

impl Row {
    pub(crate) fn new(
        name: &'static str,
        work: &str,
        unit: Unit,
        goal: f64,
        measured: f64,
        figures: String,
    ) -> Self {
        Self { name, work: work.into(), unit, goal, measured: Some(measured), figures }
    }

    /// One median by another.
    pub(crate) fn ratio(name: &'static str, work: &str, goal: f64, ours: &Times, theirs: &Times) -> Self {
        let (one, other) = (ours.median(), theirs.median());
        let figures = format!("{} ÷ {} (medians of {})", shown(one), shown(other), ours.count());
        Self::new(name, work, Unit::Ratio, goal, one.as_secs_f64() / other.as_secs_f64(), figures)
    }

    pub(crate) fn skipped(name: &'static str, work: &str, unit: Unit, goal: f64, why: &str) -> Self {
        Self { name, work: work.into(), unit, goal, measured: None, figures: format!("NOT MEASURED: {why}") }
    }

    pub(crate) fn is_met(&self) -> Option<bool> {
        self.measured.map(|measured| measured <= self.goal)
    }

    fn cells(&self) -> [String; 6] {
        let verdict = match self.is_met() {
            Some(true) => "yes",
            Some(false) => "NO",
            None => "-",
        };
        [
            self.name.into(),
            self.work.clone(),
            self.unit.text(self.goal),
            self.measured.map_or_else(|| "-".into(), |measured| self.unit.text(measured)),
            verdict.into(),
            self.figures.clone(),
        ]
    }
}

const HEAD: [&str; 6] = ["row", "work", "at most", "measured", "met", "figures"];

impl Unit {
    const fn name(self) -> &'static str {
        match self {
            Self::Ratio => "",
            Self::Seconds => "s",
            Self::Millis => "ms",
            Self::Kib => "KiB",
            Self::Mib => "MiB",
            Self::Count => "of them",
        }
    }

    fn text(self, value: f64) -> String {
        match self {
            Self::Ratio => format!("{value:.2}"),
            Self::Count => format!("{value:.0}"),
            Self::Seconds | Self::Millis | Self::Kib | Self::Mib => format!("{value:.1} {}", self.name()),
        }
    }
}

/// A time as a person reads it.
pub(crate) fn shown(time: Duration) -> String {
    let seconds = time.as_secs_f64();
    if seconds < 1.0 { format!("{:.2} ms", seconds * 1000.0) } else { format!("{seconds:.2} s") }
}

/// In columns, for a terminal.
pub(crate) fn table(rows: &[Row]) -> String {
    let lines: Vec<[String; 6]> =
        [HEAD.map(String::from)].into_iter().chain(rows.iter().map(Row::cells)).collect();
    let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or(0);
    let mut text = String::new();
    for line in &lines {
        let cells: Vec<_> =
            line.iter().enumerate().map(|(column, cell)| format!("{cell:<0$}", width(column))).collect();
        writeln!(text, "{}", cells.join("  ").trim_end()).unwrap();
    }
    text
}

/// The same as a page, with what it was measured on.
fn markdown(facts: &[(String, String)], rows: &[Row]) -> String {
    let mut text =
        String::from("# How fast it is\n\nWritten by `scripts/bench`, which says what each row is.\n\n");
    for (name, value) in facts {
        writeln!(text, "- {name}: {value}").unwrap();
    }
    writeln!(text, "\n| {} |\n|{}", HEAD.join(" | "), "---|".repeat(HEAD.len())).unwrap();
    for row in rows {
        writeln!(text, "| {} |", row.cells().join(" | ")).unwrap();
    }
    text
}

fn document(facts: &[(String, String)], rows: &[Row]) -> Value {
    let facts: serde_json::Map<_, _> =
        facts.iter().map(|(name, value)| (name.clone(), json!(value))).collect();
    let rows: Vec<Value> = rows
        .iter()
        .map(|row| {
            json!({
                "name": row.name, "work": row.work, "unit": row.unit.name(), "goal": row.goal,
                "measured": row.measured, "met": row.is_met(), "figures": row.figures,
            })
        })
        .collect();
    json!({ "machine": facts, "rows": rows })
}

/// Leaves `bench.json` and `bench.md` in this folder, where the pictures are.
pub(crate) fn write(folder: &Path, facts: &[(String, String)], rows: &[Row]) {
    std::fs::create_dir_all(folder).unwrap();
    let json = serde_json::to_string_pretty(&document(facts, rows)).unwrap();
    std::fs::write(folder.join("bench.json"), json + "\n").unwrap();
    let mut page = markdown(facts, rows);
    for picture in ["growth-held.svg", "growth-callers.svg"] {
        if folder.join(picture).exists() {
            write!(page, "\n![How the time of an ADD grows]({picture})\n").unwrap();
        }
    }
    std::fs::write(folder.join("bench.md"), page).unwrap();
}
