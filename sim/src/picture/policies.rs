//! The same scenario under each policy, as a table with bars.

use super::Run;
use super::axis::number;
use super::svg::{escaped, line_class, line_key};

/// The table, `chosen` the row in front.
pub(super) fn table(runs: &[Run], chosen: usize) -> String {
    let mut text = String::from(
        "<table><thead><tr><th>policy</th><th class=\"wide\">part of the fluid limit</th><th>GB/s</th>\
         <th>p50, µs</th><th>p99, µs</th><th>p99.9, µs</th><th>longest dip, ms</th><th>requests</th>\
         <th>failed</th><th>violations</th></tr></thead><tbody>\n",
    );
    for (index, run) in runs.iter().enumerate() {
        let report = &run.outcome.report;
        let percent = report.efficiency * 100.0;
        let dip = report
            .dips
            .iter()
            .map(|dip| dip.length_ms)
            .max()
            .unwrap_or(0);
        let class = if index == chosen {
            " class=\"front\""
        } else {
            ""
        };
        text += &format!(
            "<tr{class}><th>{}{}</th>\
             <td><div class=\"bar\"><b class=\"{}\" style=\"width:calc((100% - 58px) * {:.4})\"></b><span>{percent:.1} %</span></div></td>",
            line_key(index),
            escaped(&report.policy),
            line_class(index),
            report.efficiency.clamp(0.0, 1.0)
        );
        let cells = [
            number(report.gbytes_per_sec),
            number(report.p50_us),
            number(report.p99_us),
            number(report.p999_us),
            dip.to_string(),
            report.requests.to_string(),
            report.failed_requests.to_string(),
            report.violations.to_string(),
        ];
        for cell in cells {
            text += &format!("<td>{cell}</td>");
        }
        text += "</tr>\n";
    }
    text + "</tbody></table>\n"
}
