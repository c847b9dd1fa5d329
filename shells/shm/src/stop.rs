//! Where a thread that writes to a target's private memory can be stopped: for tests of what the target is told meanwhile.
//! Other builds have none.

/// A point between two steps of such a write.
#[cfg_attr(not(test), allow(dead_code, reason = "tests stop there"))]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Point {
    /// All is known that it takes.
    Outside,
    /// The target has been told that it is inside the grant.
    Inside,
    /// The kernel has written.
    Written,
    /// The target has been told that it has left.
    Left,
}

#[cfg(not(test))]
#[inline(always)]
pub(crate) fn at(_point: Point) {}

#[cfg(test)]
pub(crate) use tests::{at, on};

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::Point;

    type Hook = Box<dyn FnMut(Point)>;

    thread_local! {
        static HOOK: RefCell<Option<Hook>> = const { RefCell::new(None) };
    }

    /// From here on this thread calls that wherever it can be stopped.
    pub(crate) fn on(hook: impl FnMut(Point) + 'static) {
        HOOK.set(Some(Box::new(hook)));
    }

    /// The calling thread is at this point.
    pub(crate) fn at(point: Point) {
        HOOK.with_borrow_mut(|hook| hook.as_mut().map(|hook| hook(point)));
    }
}
