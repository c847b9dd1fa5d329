//! Every order of events on a small fabric, explored to closure: two rails to one peer, two requests of three
//! slices.
//!
//! What can happen is chosen in every state, not drawn: how a post is answered, which work completes or fails
//! and whether it has landed, when lanes open, when fences are answered, when the earliest timer goes off, who
//! cancels, what the peer does. What goes wrong and how often time passes is bounded, or there would be no end;
//! all orders within these bounds are tried. And from each state the peer may never be heard again: then everything is
//! reported within core's bound. A state is what core and the fabric are, down to the last field,
//! as a hash; one that was seen before is not gone into again.
//!
//! Core borrows its tables and cannot be copied, so a state is its path: it is reached by making the calls
//! again from the start, which takes microseconds. So the shortest ways are gone first.

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

/// States that are gone on from before what was found is put together.
const ROUND: usize = 1 << 12;

/// A state that has not been gone on from, and what can happen in it.
struct Open {
    node: u32,
    acts: Vec<Act>,
}

/// What one event has led to.
struct Found {
    act: Act,
    state: u64,
    violation: Option<String>,
    /// What can happen next, unless the state was known.
    acts: Option<Vec<Act>>,
}

/// What has been explored so far.
struct Map {
    policy: Policy,
    bounds: Bounds,
    nodes: Vec<Node>,
    seen: HashSet<u64>,
}

impl Map {
    /// Tries all that can happen in a state.
    fn go_on(&self, open: &Open) -> Vec<Found> {
        let mut path = Vec::new();
        self.path_to(open.node, &mut path);
        let mut found = Vec::with_capacity(open.acts.len());
        for act in &open.acts {
            path.push(*act);
            found.push(self.look(&path, *act));
            path.pop();
        }
        found
    }

    fn look(&self, path: &[Act], act: Act) -> Found {
        with_bench(self.policy, self.bounds, path, |bench| {
            let state = bench.hash();
            let known = self.seen.contains(&state);
            let acts = (!known).then(|| bench.acts());
            Found {
                act,
                state,
                // Last: it lets time run.
                violation: bench.check(known),
                acts,
            }
        })
    }

    /// The events that lead to a state.
    fn path_to(&self, index: u32, path: &mut Vec<Act>) {
        let mut at = index;
        while let Some(node) = self.nodes.get(at as usize) {
            path.push(node.act);
            at = node.before;
        }
        path.reverse();
    }
}

/// Explores everything within `bounds`, on all cores, the shortest ways first. `progress` is told now and then how many
/// states there are.
pub fn explore(policy: Policy, bounds: Bounds, mut progress: impl FnMut(u64)) -> Explored {
    let mut map = Map {
        policy,
        bounds,
        nodes: Vec::new(),
        seen: HashSet::new(),
    };
    let mut explored = Explored::default();
    let first = with_bench(policy, bounds, &[], |bench| bench.acts());
    let mut level = vec![Open {
        node: ROOT,
        acts: first,
    }];
    while !level.is_empty() {
        explored.depth += 1;
        let mut next = Vec::new();
        for round in level.chunks(ROUND) {
            for (open, found) in round.iter().zip(in_parallel(&map, round)) {
                for found in found {
                    explored.steps += 1;
                    *explored.used.entry(found.act.name()).or_default() += 1;
                    if let Some(violation) = found.violation {
                        let mut path = Vec::new();
                        map.path_to(open.node, &mut path);
                        path.push(found.act);
                        let events = path.iter().map(|act| format!("{act:?}")).collect();
                        explored.violation = Some((violation, events));
                        return explored;
                    }
                    let Some(acts) = found.acts.filter(|_| map.seen.insert(found.state)) else {
                        continue;
                    };
                    let node = map.nodes.len() as u32;
                    next.push(Open { node, acts });
                    map.nodes.push(Node {
                        before: open.node,
                        act: found.act,
                    });
                    explored.states += 1;
                }
            }
            progress(explored.states);
        }
        level = next;
    }
    explored
}

/// What each of some states leads to, in their order, whatever thread has looked.
fn in_parallel(map: &Map, round: &[Open]) -> Vec<Vec<Found>> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let part = round.len().div_ceil(threads).max(1);
    std::thread::scope(|scope| {
        let parts: Vec<_> = round
            .chunks(part)
            .map(|part| scope.spawn(|| part.iter().map(|open| map.go_on(open)).collect::<Vec<_>>()))
            .collect();
        let results = parts.into_iter().map(|part| match part.join() {
            Ok(found) => found,
            Err(panic) => std::panic::resume_unwind(panic),
        });
        results.flatten().collect()
    })
}

/// All kinds of events there are, whether or not they were tried.
pub fn kinds() -> Vec<&'static str> {
    Act::KINDS.iter().map(|act| act.name()).collect()
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
