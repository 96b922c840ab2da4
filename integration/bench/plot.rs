//! A picture of a few lines, both scales logarithmic, as SVG.

use std::fmt::Write as _;

pub(crate) struct Line {
    pub(crate) name: &'static str,
    pub(crate) points: Vec<(f64, f64)>,
}

const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 380.0;
/// Left, right, above and below of the field.
const MARGINS: [f64; 4] = [60.0, 20.0, 40.0, 50.0];
const COLOURS: [&str; 4] = ["#0b6e99", "#b3501b", "#4d7c2a", "#6a4c93"];

/// One direction: what lies where.
struct Scale {
    low: f64,
    high: f64,
    from: f64,
    to: f64,
}

impl Scale {
    fn of(values: impl Iterator<Item = f64>, from: f64, to: f64) -> Self {
        let (low, high) =
            values.fold((f64::MAX, f64::MIN), |(low, high), value| (low.min(value), high.max(value)));
        Self { low: low / 1.2, high: high * 1.2, from, to }
    }

    fn place(&self, value: f64) -> f64 {
        self.from + (self.to - self.from) * (value / self.low).ln() / (self.high / self.low).ln()
    }

    /// 1, 2 and 5 of each decade inside; of many decades the first alone.
    fn marks(&self) -> Vec<f64> {
        let factors: &[f64] = if self.high / self.low > 1_000.0 { &[1.0] } else { &[1.0, 2.0, 5.0] };
        (-3..7)
            .flat_map(|decade| factors.iter().map(move |factor| factor * 10_f64.powi(decade)))
            .filter(|mark| (self.low..=self.high).contains(mark))
            .collect()
    }
}

pub(crate) fn plot(title: &str, across: &str, up: &str, lines: &[Line]) -> String {
    let [left, right, above, below] = MARGINS;
    let all = || lines.iter().flat_map(|line| &line.points);
    let x = Scale::of(all().map(|point| point.0), left, WIDTH - right);
    let y = Scale::of(all().map(|point| point.1), HEIGHT - below, above);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <text x=\"{left}\" y=\"18\" font-size=\"14\">{title}</text>\n"
    );
    let mut text = |x: f64, y: f64, anchor: &str, words: &str| {
        writeln!(svg, "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{words}</text>").unwrap();
    };
    text((left + WIDTH - right) / 2.0, HEIGHT - 12.0, "middle", across);
    text(left, above - 6.0, "middle", up);
    x.marks().iter().for_each(|mark| text(x.place(*mark), y.from + 18.0, "middle", &mark.to_string()));
    y.marks().iter().for_each(|mark| text(left - 6.0, y.place(*mark) + 4.0, "end", &mark.to_string()));
    for (index, line) in (0..).zip(lines) {
        text(x.to - 6.0, above + 14.0 + 16.0 * f64::from(index), "end", line.name);
    }
    let mut stroke = |colour: &str, width: f64, points: &[(f64, f64)]| {
        let points: Vec<_> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        let points = points.join(" ");
        writeln!(
            svg,
            "<polyline fill=\"none\" stroke=\"{colour}\" stroke-width=\"{width}\" points=\"{points}\"/>"
        )
        .unwrap();
    };
    for mark in x.marks() {
        stroke("#dddddd", 1.0, &[(x.place(mark), y.from), (x.place(mark), y.to)]);
    }
    for mark in y.marks() {
        stroke("#dddddd", 1.0, &[(x.from, y.place(mark)), (x.to, y.place(mark))]);
    }
    for ((index, line), colour) in (0..).zip(lines).zip(COLOURS) {
        let places: Vec<_> = line.points.iter().map(|point| (x.place(point.0), y.place(point.1))).collect();
        stroke(colour, 2.0, &places);
        let height = above + 10.0 + 16.0 * f64::from(index);
        stroke(colour, 2.0, &[(x.to - 200.0, height), (x.to - 180.0, height)]);
    }
    svg + "</svg>\n"
}
