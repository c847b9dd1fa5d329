//! SVG as text. What things look like is said by their classes, in the page's style sheet.

use std::fmt::Write;

/// One drawing.
pub(super) struct Svg {
    text: String,
}

/// Where a text stands with regard to its place.
#[derive(Clone, Copy)]
pub(super) enum Anchor {
    Start,
    Middle,
    End,
}

impl Svg {
    /// An empty one of this size, with what it shows in words.
    pub(super) fn new(width: f64, height: f64, label: &str) -> Self {
        let label = escaped(label);
        Self {
            text: format!(
                "<svg viewBox=\"0 0 {width:.0} {height:.0}\" role=\"img\" aria-label=\"{label}\">\n"
            ),
        }
    }

    /// A rectangle; `more` is further attributes, `title` is shown by a pointer that rests on it.
    pub(super) fn rect(
        &mut self,
        class: &str,
        (x, y): (f64, f64),
        (w, h): (f64, f64),
        more: &str,
        title: &str,
    ) {
        let (w, h) = (w.max(0.0), h.max(0.0));
        let head = format!(
            "<rect class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"{w:.1}\" height=\"{h:.1}\""
        );
        self.element(&head, more, "rect", title);
    }

    /// A path with these commands.
    pub(super) fn path(&mut self, class: &str, commands: &str, more: &str, title: &str) {
        self.element(
            &format!("<path class=\"{class}\" d=\"{commands}\""),
            more,
            "path",
            title,
        );
    }

    /// A straight line.
    pub(super) fn line(&mut self, class: &str, (x1, y1): (f64, f64), (x2, y2): (f64, f64)) {
        let commands = format!("M{x1:.1} {y1:.1}L{x2:.1} {y2:.1}");
        self.path(class, &commands, "", "");
    }

    /// A circle.
    pub(super) fn dot(&mut self, class: &str, (x, y): (f64, f64), radius: f64) {
        self.element(
            &format!("<circle class=\"{class}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"{radius:.1}\""),
            "",
            "circle",
            "",
        );
    }

    /// A line of text.
    pub(super) fn text(&mut self, class: &str, (x, y): (f64, f64), anchor: Anchor, words: &str) {
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        let words = escaped(words);
        // Writing to a string does not fail.
        let _ = writeln!(
            self.text,
            "<text class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{words}</text>"
        );
    }

    /// The drawing.
    pub(super) fn close(self) -> String {
        self.text + "</svg>\n"
    }

    fn element(&mut self, head: &str, more: &str, name: &str, title: &str) {
        let space = if more.is_empty() { "" } else { " " };
        let _ = match title {
            "" => writeln!(self.text, "{head}{space}{more}/>"),
            title => writeln!(
                self.text,
                "{head}{space}{more}><title>{}</title></{name}>",
                escaped(title)
            ),
        };
    }
}

/// Colours that there are for lines; each has dashes of its own.
const LINES: usize = 8;

/// The class of the line with this number. They repeat after some.
pub(super) fn line_class(number: usize) -> String {
    format!("p{}", number % LINES)
}

/// A piece of the line with this number, for a key.
pub(super) fn line_key(number: usize) -> String {
    let class = line_class(number);
    format!(
        "<svg class=\"key\" viewBox=\"0 0 34 8\"><path class=\"curve front {class}\" d=\"M0 4H34\"/></svg>"
    )
}

/// A staircase: each value from one x to the next, in pixels. Starts and ends on `base`.
pub(super) fn stairs(xs: &[f64], ys: &[f64], base: f64) -> String {
    let Some(first) = xs.first() else {
        return String::new();
    };
    let mut commands = format!("M{first:.1} {base:.1}");
    for (y, x) in ys.iter().zip(xs.iter().skip(1)) {
        let _ = write!(commands, "V{y:.1}H{x:.1}");
    }
    let _ = write!(commands, "V{base:.1}Z");
    commands
}

/// Text that may stand between tags and in attributes.
pub(super) fn escaped(words: &str) -> String {
    words
        .replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}
