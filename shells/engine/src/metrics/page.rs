//! The numbers as OpenMetrics text.

use std::fmt;
use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};

use super::families::{FAMILIES, Family, Kind, PREFIX, Rows, Value};
use crate::stats::Stats;

/// All families, with what `stats` says of them.
pub(super) fn text(stats: Stats) -> String {
    let mut registry = Registry::with_prefix(PREFIX);
    registry.register_collector(Box::new(Page(Arc::new(stats))));
    let mut text = String::new();
    // Writing to a string does not fail.
    let _ = encode(&mut text, &registry);
    text
}

#[derive(Debug)]
struct Page(Arc<Stats>);

impl Collector for Page {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        FAMILIES
            .iter()
            .try_for_each(|family| put(&mut encoder, family, &self.0))
    }
}

fn put(encoder: &mut DescriptorEncoder, family: &Family, stats: &Stats) -> fmt::Result {
    let unit = match family.unit {
        "bytes" => Some(Unit::Bytes),
        "seconds" => Some(Unit::Seconds),
        _ => None,
    };
    let kind = match family.kind {
        Kind::Counter => MetricType::Counter,
        Kind::Gauge => MetricType::Gauge,
        Kind::Histogram => MetricType::Histogram,
    };
    let mut rows = Rows::default();
    (family.rows)(stats, &mut rows);
    let name = family.stem();
    let mut metric = encoder.encode_descriptor(name, family.help, unit.as_ref(), kind)?;
    for (labels, value) in rows.0 {
        let labels: Vec<_> = labels.iter().map(|(key, value)| (*key, &**value)).collect();
        match labels.is_empty() {
            true => put_value(&mut metric, value)?,
            false => put_value(&mut metric.encode_family(&labels)?, value)?,
        }
    }
    Ok(())
}

fn put_value(metric: &mut MetricEncoder, value: Value) -> fmt::Result {
    match value {
        Value::Count(count) => metric.encode_counter::<NoLabelSet, _, u64>(&count, None),
        Value::Seconds(seconds) => metric.encode_counter::<NoLabelSet, _, u64>(&seconds, None),
        Value::Now(now) => metric.encode_gauge(&now),
        Value::Spread { sum, buckets } => {
            let count = buckets.iter().map(|(_, count)| count).sum();
            metric.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)
        }
    }
}
