//! Functions: those of the library, and those that a device has for each work.

use ibverbs_sys as sys;

use crate::raw::{Calls, ContextOps};
use crate::same::is;

/// The functions that are compared, for [`crate::complete`].
pub(crate) const COMPARED: &[&str] = &compare();

macro_rules! compare {
    ($($name:ident = $theirs:ident($($any:tt)*),)*; optional $($optional:ident = $optionals:ident($($anys:tt)*),)*) => {
        const fn compare() -> [&'static str; [$(stringify!($name),)* $(stringify!($optional),)*].len()] {
            [$(stringify!($name),)* $(stringify!($optional),)*]
        }

        #[test]
        fn each_function_takes_and_gives_what_the_headers_does() {
            $(is(
                |calls: &Calls| calls.$name,
                sys::$theirs as unsafe extern "C" fn($($any)*) -> _,
            );)*
            $(is(
                |calls: &Calls| calls.$optional.expect("only its type counts"),
                sys::$optionals as unsafe extern "C" fn($($anys)*) -> _,
            );)*
        }
    };
}

compare! {
    get_device_list = ibv_get_device_list(_),
    free_device_list = ibv_free_device_list(_),
    get_device_name = ibv_get_device_name(_),
    open_device = ibv_open_device(_),
    close_device = ibv_close_device(_),
    query_device = ibv_query_device(_, _),
    query_port = ibv_query_port(_, _, _),
    get_async_event = ibv_get_async_event(_, _),
    ack_async_event = ibv_ack_async_event(_),
    alloc_pd = ibv_alloc_pd(_),
    dealloc_pd = ibv_dealloc_pd(_),
    reg_mr_iova2 = ibv_reg_mr_iova2(_, _, _, _, _),
    dereg_mr = ibv_dereg_mr(_),
    create_comp_channel = ibv_create_comp_channel(_),
    destroy_comp_channel = ibv_destroy_comp_channel(_),
    create_cq = ibv_create_cq(_, _, _, _, _),
    destroy_cq = ibv_destroy_cq(_),
    get_cq_event = ibv_get_cq_event(_, _, _),
    ack_cq_events = ibv_ack_cq_events(_, _),
    create_qp = ibv_create_qp(_, _),
    modify_qp = ibv_modify_qp(_, _, _),
    query_qp = ibv_query_qp(_, _, _, _),
    destroy_qp = ibv_destroy_qp(_),
    fork_init = ibv_fork_init(),
    ; optional
    reg_dmabuf_mr = ibv_reg_dmabuf_mr(_, _, _, _, _, _),
    is_fork_initialized = ibv_is_fork_initialized(),
}

#[test]
fn each_function_of_a_device_takes_and_gives_what_the_headers_does() {
    let theirs = sys::ibv_context_ops::default();
    is(|ops: &ContextOps| ops.poll_cq, theirs.poll_cq);
    is(|ops: &ContextOps| ops.req_notify_cq, theirs.req_notify_cq);
    is(|ops: &ContextOps| ops.post_send, theirs.post_send);
    is(|ops: &ContextOps| ops.post_recv, theirs.post_recv);
}
