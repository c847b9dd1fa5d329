//! Every order of events on a small fabric, explored to closure: two rails to one peer, two requests of three
//! slices.
//!
//! What can happen is chosen in every state, not drawn: how a post is answered, which work completes or fails
//! and whether it has landed, when lanes open, when fences are answered, when the earliest timer goes off, who
//! cancels, what the peer does. What goes wrong and how often time passes is bounded, or there would be no end;
//! all orders within these bounds are tried. A state is what core and the fabric are, down to the last field,
//! as a hash; one that was seen before is not gone into again.
//!
//! Core borrows its tables and cannot be copied, so a state is its path: it is reached by making the calls
//! again from the start, which takes microseconds.

mod act;
mod bench;
mod choice;
mod watch;

use std::collections::{BTreeMap, HashSet};

use polyrail_core::rail::select::Policy;

use act::Act;
pub use act::Bounds;
use bench::with_bench;

/// What there was to see.
#[derive(Clone, Debug, Default)]
pub struct Explored {
    /// Different states.
    pub states: u64,
    /// Events that were tried in them.
    pub steps: u64,
    /// Events on the longest way to a state.
    pub depth: usize,
    /// How often each kind of event was tried.
    pub used: BTreeMap<&'static str, u64>,
    /// The first violation: what, and the events that led to it.
    pub violation: Option<(String, Vec<String>)>,
}

/// A state's path: the one before, and the event.
#[derive(Clone, Copy)]
struct Node {
    before: u32,
    act: Act,
}

const ROOT: u32 = u32::MAX;

/// Explores everything within `bounds`. `progress` is told now and then how many states there are.
pub fn explore(policy: Policy, bounds: Bounds, mut progress: impl FnMut(u64)) -> Explored {
    let mut nodes: Vec<Node> = Vec::new();
    let mut seen: HashSet<u64> = HashSet::new();
    let mut open = vec![ROOT];
    let mut explored = Explored::default();
    let mut path = Vec::new();
    while let Some(index) = open.pop() {
        path_to(&nodes, index, &mut path);
        let acts = with_bench(policy, bounds, &path, |bench| bench.acts());
        for act in acts {
            path.push(act);
            let (state, violation) =
                with_bench(policy, bounds, &path, |bench| (bench.hash(), bench.check()));
            explored.steps += 1;
            *explored.used.entry(act.name()).or_default() += 1;
            if let Some(violation) = violation {
                let events = path.iter().map(|act| format!("{act:?}")).collect();
                explored.violation = Some((violation, events));
                return explored;
            }
            path.pop();
            if seen.insert(state) {
                open.push(nodes.len() as u32);
                nodes.push(Node { before: index, act });
                explored.depth = explored.depth.max(path.len() + 1);
                explored.states += 1;
                if explored.states.is_multiple_of(1 << 12) {
                    progress(explored.states);
                }
            }
        }
    }
    explored
}

/// All kinds of events there are, whether or not they were tried.
pub fn kinds() -> Vec<&'static str> {
    Act::KINDS.iter().map(|act| act.name()).collect()
}

fn path_to(nodes: &[Node], index: u32, path: &mut Vec<Act>) {
    path.clear();
    let mut at = index;
    while let Some(node) = nodes.get(at as usize) {
        path.push(node.act);
        at = node.before;
    }
    path.reverse();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_faults_all_orders_are_few_and_good() {
        let bounds = Bounds {
            faults: 0,
            timers: 1,
        };
        for policy in crate::POLICIES {
            let explored = explore(*policy, bounds, |_| {});
            assert_eq!(explored.violation, None, "{policy:?}");
            assert!(explored.states > 100, "{policy:?}: {explored:?}");
            let again = explore(*policy, bounds, |_| {});
            assert_eq!(
                (again.states, again.steps),
                (explored.states, explored.steps)
            );
        }
    }
}
