/* polyrail's core for C: the half that decides, for runtimes with a loop, memory and devices of their own.
 *
 * Made of ffi/core/src by cbindgen; do not edit. docs/embedding.md explains the calls and their order.
 *
 * It allocates nothing, blocks nowhere, has no clock and no threads, and needs no C library but memcpy, memmove, memset
 * and memcmp. Times are nanoseconds since whenever the caller likes, and never go back. A function that can fail returns a
 * negative code; a poll returns POLYRAIL_CORE_OK if it has filled its answer and POLYRAIL_CORE_NONE if there is nothing.
 * One thread at a time calls a polyrail_core_worker; several may share a polyrail_core_fabric. Header and library belong
 * together: compare polyrail_core_abi() with POLYRAIL_CORE_ABI.
 */


#ifndef POLYRAIL_CORE_H
#define POLYRAIL_CORE_H

#include <stddef.h>
#include <stdint.h>

/**
 * What the functions of this header promise. Any change to it is another number.
 */
#define POLYRAIL_CORE_ABI 3

/**
 * All is well; of a poll: there was something.
 */
#define POLYRAIL_CORE_OK 0

/**
 * A poll had nothing.
 */
#define POLYRAIL_CORE_NONE 1

/**
 * A pointer is null, or a number is out of range.
 */
#define POLYRAIL_CORE_ERROR_ARGUMENT -1

/**
 * The memory is too small, or not aligned.
 */
#define POLYRAIL_CORE_ERROR_MEMORY -2

/**
 * There is no free row now.
 */
#define POLYRAIL_CORE_ERROR_FULL -3

/**
 * The tables have no such row: the limits are too low for it.
 */
#define POLYRAIL_CORE_ERROR_LIMIT -4

/**
 * The plan, batch, request or post is not there, or not any more.
 */
#define POLYRAIL_CORE_ERROR_STALE -5

/**
 * The request or batch has not ended.
 */
#define POLYRAIL_CORE_ERROR_PENDING -6

/**
 * The request names no bytes, or ends past the largest offset.
 */
#define POLYRAIL_CORE_ERROR_RANGE -7

/**
 * What memory for core begins at a multiple of.
 */
#define POLYRAIL_CORE_ALIGNMENT 128

/**
 * The least predicted completion, and only if waiting would not end sooner.
 */
#define POLYRAIL_CORE_POLICY_SPRAY 0

/**
 * Strictly in turn within the nearest tier.
 */
#define POLYRAIL_CORE_POLICY_ROUND_ROBIN 1

/**
 * From the local segment to the remote one.
 */
#define POLYRAIL_CORE_WRITE 0

/**
 * From the remote segment to the local one.
 */
#define POLYRAIL_CORE_READ 1

/**
 * It never ends by itself.
 */
#define POLYRAIL_CORE_NO_DEADLINE UINT64_MAX

/**
 * All works of a post were taken.
 */
#define POLYRAIL_CORE_STOP_ALL 0

/**
 * The lane has no room for more.
 */
#define POLYRAIL_CORE_STOP_FULL 1

/**
 * The first work not taken was refused, for the cause beside it.
 */
#define POLYRAIL_CORE_STOP_REJECTED 2

/**
 * Nobody can say what became of the works from there on.
 */
#define POLYRAIL_CORE_STOP_UNKNOWN 3

/**
 * The lane can take works: `works_max` and `work_bytes_max` count.
 */
#define POLYRAIL_CORE_LANE_OPENED 0

/**
 * It could not be opened, for `cause`.
 */
#define POLYRAIL_CORE_LANE_OPEN_FAILED 1

/**
 * It has room again.
 */
#define POLYRAIL_CORE_LANE_WRITABLE 2

/**
 * It is of no use any more, for `cause`.
 */
#define POLYRAIL_CORE_LANE_BROKEN 3

/**
 * The fence of `scope` holds.
 */
#define POLYRAIL_CORE_LANE_FENCED 4

/**
 * The fence of `scope` cannot be given now.
 */
#define POLYRAIL_CORE_LANE_UNFENCEABLE 5

/**
 * Nobody reads the source or writes the initiator's memory any more.
 */
#define POLYRAIL_CORE_SCOPE_LOCAL 0

/**
 * No further write can reach the destination.
 */
#define POLYRAIL_CORE_SCOPE_REMOTE 1

/**
 * Works of one post.
 */
#define POLYRAIL_CORE_POST_MAX 32

/**
 * Open the lane; answer with opened or open failed, at `by` at the latest.
 */
#define POLYRAIL_CORE_LANE_OPEN 0

/**
 * Fence it; answer with fenced or unfenceable of that scope.
 */
#define POLYRAIL_CORE_LANE_FENCE 1

/**
 * Close it: nothing is posted on it. Needs no answer.
 */
#define POLYRAIL_CORE_LANE_CLOSE 2

/**
 * A request has ended: take it. `number` is the request's.
 */
#define POLYRAIL_CORE_EVENT_REQUEST_DONE 0

/**
 * All requests of a sealed batch have ended: take it. `number` is the batch's.
 */
#define POLYRAIL_CORE_EVENT_BATCH_DONE 1

/**
 * More is known of a request that was reported indeterminate: it has ended after all (`state` 0), or `state` has 1 as long as
 * somebody may still touch the memory on this side, and 2 as long as a write may still reach the peer's.
 */
#define POLYRAIL_CORE_EVENT_SETTLED 2

/**
 * A request goes on with another transport: from `number` to `state`.
 */
#define POLYRAIL_CORE_EVENT_FAILOVER 3

/**
 * A rail changed its state. `number` is the rail's.
 */
#define POLYRAIL_CORE_EVENT_RAIL_CHANGED 4

/**
 * A peer went silent (`state` 1) or was heard again (0). `number` is the peer's.
 */
#define POLYRAIL_CORE_EVENT_PEER_CHANGED 5

/**
 * Worker `number` waits for room that there is now: call its `polyrail_core_handle_wake`.
 */
#define POLYRAIL_CORE_EVENT_WAKE_WORKER 6

/**
 * In place of a lane: the breach is not on one.
 */
#define POLYRAIL_CORE_NO_LANE UINT32_MAX

/**
 * What workers share. Its memory is the caller's.
 */
typedef struct polyrail_core_fabric polyrail_core_fabric;

/**
 * One worker's core. Its memory is the caller's.
 */
typedef struct polyrail_core_worker polyrail_core_worker;

/**
 * How much of everything there can be.
 */
typedef struct {
  /**
   * Workers that share a fabric, at least 1.
   */
  uint32_t workers;
  /**
   * Rails, numbered from 0 on: at most 65,536.
   */
  uint32_t rails;
  /**
   * Devices: local ones, and the peers' that several of their rails end at.
   */
  uint32_t devices;
  /**
   * Peers.
   */
  uint32_t peers;
  /**
   * Plans: pairs of segments.
   */
  uint32_t plans;
  /**
   * Requests that are not taken, for each worker.
   */
  uint32_t requests;
  /**
   * Slices in flight or waiting to be sent again, for each worker: at least 2.
   */
  uint32_t attempts;
  /**
   * Batches that are not taken, for each worker.
   */
  uint32_t batches;
  /**
   * Bytes of a usual slice.
   */
  uint32_t slice_bytes;
} polyrail_core_limits;

/**
 * A rail or a device, before anything is known of it.
 */
typedef struct {
  /**
   * How fast it is said to be. While another transport is slow, one that has carried nothing yet counts as so fast.
   */
  uint64_t bytes_per_sec;
  /**
   * From posting to completion of an empty slice.
   */
  uint64_t delay_ns;
  /**
   * How far it is from the memory: 0, 1 or 2.
   */
  uint8_t tier;
} polyrail_core_estimate;

/**
 * How a rail stands.
 */
typedef struct {
  /**
   * 0: healthy; 1: paused; 2: being probed.
   */
  uint32_t state;
  /**
   * Bytes acknowledged, both directions.
   */
  uint64_t done_bytes;
  /**
   * Bytes in flight.
   */
  uint64_t inflight_bytes;
  /**
   * As learned.
   */
  uint64_t bytes_per_sec;
} polyrail_core_rail_view;

/**
 * How a core behaves. A span of 0 is the usual one.
 */
typedef struct {
  /**
   * This worker's number, below `workers` of the limits.
   */
  uint16_t worker;
  /**
   * `POLYRAIL_CORE_POLICY_SPRAY` or `_ROUND_ROBIN`.
   */
  uint32_t policy;
  /**
   * Least time without a completion before a lane is suspected: 5 ms.
   */
  uint64_t progress_floor_ns;
  /**
   * How long a lane may take to open: 1 s.
   */
  uint64_t open_timeout_ns;
  /**
   * A peer that nothing is heard from for so long is silent: 1.2 s. Later while nothing goes to it.
   */
  uint64_t peer_silence_ns;
  /**
   * How long proof is waited for before a report says indeterminate: 2 s.
   */
  uint64_t fence_timeout_ns;
  /**
   * How long posted slices of a cancelled request may go on: 100 ms.
   */
  uint64_t cancel_grace_ns;
  /**
   * Of this worker's random numbers. The same seed and calls give the same answers.
   */
  uint64_t seed;
} polyrail_core_config;

/**
 * A byte of a segment, as the caller numbers segments.
 */
typedef struct {
  /**
   * Which segment.
   */
  uint32_t segment;
  /**
   * Bytes from its start.
   */
  uint64_t offset;
} polyrail_core_place;

/**
 * A rail of a plan.
 */
typedef struct {
  /**
   * Its number in the fabric.
   */
  uint16_t rail;
  /**
   * The transport that it belongs to. Transports come in the order in which they occur first, the best one first.
   */
  uint8_t transport;
  /**
   * How far it is from this memory: 0, 1 or 2.
   */
  uint8_t tier;
} polyrail_core_plan_rail;

/**
 * How one segment's bytes reach another. At most 4 transports of 16 rails each.
 */
typedef struct {
  /**
   * Who owns the remote segment.
   */
  uint16_t peer;
  /**
   * The segment on this side.
   */
  uint32_t local;
  /**
   * The segment on the peer's side.
   */
  uint32_t remote;
  /**
   * Where probes read from.
   */
  polyrail_core_place scratch_local;
  /**
   * Where probes write to.
   */
  polyrail_core_place scratch_remote;
  /**
   * How much scratch there is on either side.
   */
  uint32_t scratch_bytes;
  /**
   * The rails that reach it.
   */
  const polyrail_core_plan_rail *rails;
  /**
   * How many.
   */
  size_t rail_count;
} polyrail_core_plan;

/**
 * What a program asks for.
 */
typedef struct {
  /**
   * The caller's word for it.
   */
  uint64_t tag;
  /**
   * Which segments, which peer, which rails.
   */
  uint64_t plan;
  /**
   * The batch it belongs to, open.
   */
  uint64_t batch;
  /**
   * First byte in the local segment.
   */
  uint64_t local_offset;
  /**
   * First byte in the remote segment.
   */
  uint64_t remote_offset;
  /**
   * Bytes, at least 1.
   */
  uint64_t length;
  /**
   * It ends then at the latest; or `POLYRAIL_CORE_NO_DEADLINE`.
   */
  uint64_t deadline;
  /**
   * `POLYRAIL_CORE_WRITE` or `_READ`.
   */
  uint8_t op;
  /**
   * 0: the usual; 1: before all others to the same peer; 2: after them.
   */
  uint8_t priority;
} polyrail_core_request;

/**
 * How a request ended.
 */
typedef struct {
  /**
   * As `POLYRAIL_STATUS_…` of polyrail.h numbers them: 1 is completed, 6 indeterminate.
   */
  uint32_t status;
  /**
   * Why, if not well, as `polyrail_cause_text` of polyrail.h numbers them; 0: nothing.
   */
  uint32_t cause;
  /**
   * 1: somebody may still touch the memory on this side; 0: nobody does.
   */
  uint8_t held;
  /**
   * 1: a write may still reach the peer's memory; 0: none can.
   */
  uint8_t unsettled;
  /**
   * Bytes that are proven to have arrived.
   */
  uint64_t delivered_bytes;
} polyrail_core_report;

/**
 * How a batch ended, or stands.
 */
typedef struct {
  /**
   * As in a request's report; 0: it has not ended.
   */
  uint32_t status;
  /**
   * Requests in it.
   */
  uint32_t requests;
  /**
   * Requests that have ended.
   */
  uint32_t ended;
  /**
   * Requests that ended other than completed.
   */
  uint32_t failed;
  /**
   * Bytes proven to have arrived.
   */
  uint64_t delivered_bytes;
} polyrail_core_batch_report;

/**
 * The answer about one work. It also covers those posted before it on the lane that asked for none of their own.
 */
typedef struct {
  /**
   * The lane.
   */
  uint32_t lane;
  /**
   * The lane's epoch when the work was posted.
   */
  uint32_t epoch;
  /**
   * The work's.
   */
  uint64_t cookie;
  /**
   * When it was seen; not later than the `now` of the call.
   */
  uint64_t at;
  /**
   * 0: the bytes are where they should be, and nothing touches either side for it any more. Else why not, one of the
   * causes that `polyrail_cause_text` of polyrail.h knows.
   */
  uint32_t cause;
} polyrail_core_completion;

/**
 * Something about a lane.
 */
typedef struct {
  /**
   * Which.
   */
  uint32_t lane;
  /**
   * Its epoch.
   */
  uint32_t epoch;
  /**
   * One of `POLYRAIL_CORE_LANE_…`.
   */
  uint32_t fact;
  /**
   * Of one that says why.
   */
  uint32_t cause;
  /**
   * Of a fence.
   */
  uint32_t scope;
  /**
   * Of an opened one: works that may be posted and not completed, at least 1.
   */
  uint16_t works_max;
  /**
   * Of an opened one: 1 if a completion covers the works before it on the lane; else each completes by itself.
   */
  uint8_t covers;
  /**
   * Of an opened one: 1 if the peer counts the works that arrived whole, in order, and says how many with its fence
   * (`delivered` of `polyrail_core_handle_fenced`). Then writes are not sent again before that is known, or only after a
   * moment. Else such a count is not believed.
   */
  uint8_t counts;
  /**
   * Of an opened one: bytes of the largest work, at least 1.
   */
  uint32_t work_bytes_max;
} polyrail_core_lane_fact;

/**
 * One thing for a device to move.
 */
typedef struct {
  /**
   * Comes back in its completion.
   */
  uint64_t cookie;
  /**
   * Where the bytes are, or will be, on this side.
   */
  polyrail_core_place local;
  /**
   * Where they will be, or are, on the peer.
   */
  polyrail_core_place remote;
  /**
   * Bytes; never 0.
   */
  uint32_t length;
  /**
   * `POLYRAIL_CORE_WRITE` or `_READ`.
   */
  uint8_t op;
  /**
   * 1: it must produce a completion of its own.
   */
  uint8_t signal;
} polyrail_core_work;

/**
 * Works of one lane, to be posted in this order.
 */
typedef struct {
  /**
   * The lane. Its lower 16 bits are the rail.
   */
  uint32_t lane;
  /**
   * The epoch that it has. A device refuses any other.
   */
  uint32_t epoch;
  /**
   * Which post this is: what `polyrail_core_handle_posted` is to be told.
   */
  uint32_t number;
  /**
   * How many works.
   */
  size_t count;
  /**
   * The works.
   */
  polyrail_core_work works[POLYRAIL_CORE_POST_MAX];
} polyrail_core_post;

/**
 * What is to be done with a lane.
 */
typedef struct {
  /**
   * `POLYRAIL_CORE_LANE_OPEN`, `_FENCE` or `_CLOSE`.
   */
  uint32_t action;
  /**
   * Which. The lower 16 bits are the rail.
   */
  uint32_t lane;
  /**
   * Its epoch.
   */
  uint32_t epoch;
  /**
   * Of a fence: `POLYRAIL_CORE_SCOPE_LOCAL` or `_REMOTE`.
   */
  uint32_t scope;
  /**
   * Of an opening: by when.
   */
  uint64_t by;
} polyrail_core_action;

/**
 * What a peer is to be asked: to let no further write of this lane up to this epoch reach memory, and to say so.
 */
typedef struct {
  /**
   * Whom.
   */
  uint16_t peer;
  /**
   * Which lane.
   */
  uint32_t lane;
  /**
   * Up to which epoch.
   */
  uint32_t epoch;
} polyrail_core_fence;

/**
 * What happened.
 */
typedef struct {
  /**
   * One of `POLYRAIL_CORE_EVENT_…`.
   */
  uint32_t event;
  /**
   * What else there is to say of it: of a rail its state, as `polyrail_core_rail_view` has it.
   */
  uint32_t state;
  /**
   * Why a rail was paused, if that is known; 0: nothing.
   */
  uint32_t cause;
  /**
   * What it is about.
   */
  uint64_t number;
  /**
   * The caller's word for the request or batch.
   */
  uint64_t tag;
} polyrail_core_event;

/**
 * How much of what was handed in was ignored, by reason.
 */
typedef struct {
  /**
   * Completions and facts about lanes of another worker, or of rails that this one has no row for.
   */
  uint64_t lanes;
  /**
   * Completions and facts of an epoch that their lane does not have now.
   */
  uint64_t epochs;
  /**
   * Completions of works that are not out on their lane: completed before, never posted, or another lane's.
   */
  uint64_t works;
  /**
   * Facts that do not fit where their lane stands.
   */
  uint64_t facts;
  /**
   * Counts of delivered works that are no part of what was posted.
   */
  uint64_t counts;
  /**
   * Answers to posts that had been given up.
   */
  uint64_t posts;
} polyrail_core_ignored_counts;

/**
 * A clause of the contract that was broken, the first time that it was.
 */
typedef struct {
  /**
   * Which: `polyrail_core_breach_name` has its name. docs/embedding.md tells what it means, and `number` and `span_ns`.
   */
  uint32_t rule;
  /**
   * How often it has been broken by now.
   */
  uint32_t times;
  /**
   * On which lane, or `POLYRAIL_CORE_NO_LANE`.
   */
  uint32_t lane;
  /**
   * That lane's epoch.
   */
  uint32_t epoch;
  /**
   * Which one: a work's cookie, a post's number, ...
   */
  uint64_t number;
  /**
   * When that was noticed.
   */
  uint64_t at;
  /**
   * How late, how far back, ...
   */
  uint64_t span_ns;
} polyrail_core_breach;

/**
 * A runtime, as the script needs it. It has the first `bytes` of both segments of a plan for itself, with nothing else under way.
 */
typedef struct {
  /**
   * Handed to the functions below.
   */
  void *context;
  /**
   * One turn of the loop: hands in what has happened, drains core, and sleeps until there is something to hand in, core has a
   * timer, or it is `until`. Takes every request and batch that has ended. Gives the time after that.
   */
  uint64_t (*turn)(void *context, uint64_t until);
  /**
   * Makes the link of a rail fail, as if its cable were pulled; 0: it cannot. Null: no link can.
   */
  int32_t (*cut)(void *context, uint16_t rail);
  /**
   * Lets a link that was cut work again. Null: none can.
   */
  void (*mend)(void *context, uint16_t rail);
  /**
   * Ends the peer for good: the runtime finds that out; 0: it cannot. Null: the same.
   */
  int32_t (*end_peer)(void *context);
  /**
   * The local segment of the plan, and its remote one.
   */
  uint8_t *ours;
  /**
   * See there.
   */
  uint8_t *theirs;
  /**
   * Bytes of either.
   */
  uint64_t bytes;
  /**
   * The plan.
   */
  uint64_t plan;
  /**
   * Its rails.
   */
  const uint16_t *rails;
  /**
   * How many: 16 at most.
   */
  size_t rail_count;
} polyrail_core_runtime;

/**
 * How far a script came.
 */
typedef struct {
  /**
   * The time at its end.
   */
  uint64_t now;
  /**
   * Links were cut while something was on them.
   */
  uint32_t cuts;
  /**
   * 1: the peer was ended.
   */
  uint8_t peer_ended;
} polyrail_core_ran;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * What this library promises: see `POLYRAIL_CORE_ABI`.
 */
uint32_t polyrail_core_abi(void);

/**
 * How many bytes of memory a fabric takes; 0: the limits are out of range.
 */
size_t polyrail_core_fabric_size(const polyrail_core_limits *limits);

/**
 * Makes a fabric in memory that begins at a multiple of `POLYRAIL_CORE_ALIGNMENT`. There is nothing to free: the memory
 * is the caller's again when nobody uses the fabric and its cores any more.
 */
int32_t polyrail_core_fabric_create(uint8_t *memory,
                                    size_t bytes,
                                    const polyrail_core_limits *limits,
                                    polyrail_core_fabric **fabric);

/**
 * Puts a device into its row.
 */
int32_t polyrail_core_fabric_install_device(const polyrail_core_fabric *fabric,
                                            uint16_t device,
                                            const polyrail_core_estimate *estimate);

/**
 * Puts a rail into its row: one that reaches `peer` over `device`, which has been installed.
 */
int32_t polyrail_core_fabric_install_rail(const polyrail_core_fabric *fabric,
                                          uint16_t rail,
                                          uint16_t peer,
                                          uint16_t device,
                                          const polyrail_core_estimate *estimate);

/**
 * The same for one of several rails from different local devices that end at one device of the peer: `far`, which has been
 * installed, too, under a number that no local device has. A slice then waits for what all of them have in flight there.
 */
int32_t polyrail_core_fabric_install_rail_between(const polyrail_core_fabric *fabric,
                                                  uint16_t rail,
                                                  uint16_t peer,
                                                  uint16_t device,
                                                  uint16_t far,
                                                  const polyrail_core_estimate *estimate);

/**
 * How a rail stands.
 */
int32_t polyrail_core_fabric_look(const polyrail_core_fabric *fabric,
                                  uint16_t rail,
                                  polyrail_core_rail_view *view);

/**
 * How many bytes of memory a core takes; 0: the limits are out of range.
 */
size_t polyrail_core_size(const polyrail_core_limits *limits);

/**
 * Makes a worker's core in memory that begins at a multiple of `POLYRAIL_CORE_ALIGNMENT`, with the limits of its fabric.
 * There is nothing to free.
 */
int32_t polyrail_core_create(uint8_t *memory,
                             size_t bytes,
                             const polyrail_core_config *said,
                             const polyrail_core_fabric *fabric,
                             polyrail_core_worker **answer);

/**
 * Makes a plan known under a number that the caller draws: the row in the lower half, and in the upper half a generation
 * that tells it from the one before in that row.
 */
int32_t polyrail_core_install_plan(polyrail_core_worker *core,
                                   uint64_t now,
                                   uint64_t number,
                                   const polyrail_core_plan *said);

/**
 * Refuses new requests for a plan. Those that have it end as they would have.
 */
int32_t polyrail_core_retire_plan(polyrail_core_worker *core, uint64_t number);

/**
 * Opens a batch. `tag` is the caller's word for it.
 */
int32_t polyrail_core_open_batch(polyrail_core_worker *core, uint64_t tag, uint64_t *batch);

/**
 * Submits a request. O(1) in its length. Its number is what `polyrail_core_take` and `_cancel` ask for.
 */
int32_t polyrail_core_submit(polyrail_core_worker *core,
                             uint64_t now,
                             const polyrail_core_request *said,
                             uint64_t *number);

/**
 * Says that no more requests will come for a batch. It may end by that.
 */
int32_t polyrail_core_seal_batch(polyrail_core_worker *core, uint64_t batch);

/**
 * Stops binding a request; what is posted may end. Good also if it has ended.
 */
int32_t polyrail_core_cancel(polyrail_core_worker *core, uint64_t now, uint64_t number);

/**
 * Takes the report of a request that has ended, and frees its row. `POLYRAIL_CORE_ERROR_STALE`: not ended, or taken.
 */
int32_t polyrail_core_take(polyrail_core_worker *core,
                           uint64_t number,
                           polyrail_core_report *report);

/**
 * Takes the report of a batch that has ended, and frees its row. `POLYRAIL_CORE_ERROR_PENDING`: it has not; the report
 * says how it stands.
 */
int32_t polyrail_core_take_batch(polyrail_core_worker *core,
                                 uint64_t batch,
                                 polyrail_core_batch_report *report);

/**
 * Hands completions in. If one of them makes no sense, none is.
 */
int32_t polyrail_core_handle_completions(polyrail_core_worker *core,
                                         uint64_t now,
                                         const polyrail_core_completion *first,
                                         size_t count);

/**
 * Hands in something about a lane. Completions that were seen before come first.
 */
int32_t polyrail_core_handle_lane(polyrail_core_worker *core,
                                  uint64_t now,
                                  const polyrail_core_lane_fact *said);

/**
 * Answers the post of this `number`: how many works were taken, why no more, and the cause of a refusal.
 * `POLYRAIL_CORE_ERROR_STALE`: it is not the post that is out, because it was answered already, or was given up for want of an
 * answer; then nothing changes. After `POLYRAIL_CORE_ERROR_ARGUMENT` it is still out.
 */
int32_t polyrail_core_handle_posted(polyrail_core_worker *core,
                                    uint64_t now,
                                    uint32_t number,
                                    size_t accepted,
                                    uint32_t stop,
                                    uint32_t cause_of_refusal);

/**
 * A peer is alive: anything at all was heard of it.
 */
int32_t polyrail_core_handle_alive(polyrail_core_worker *core, uint64_t now, uint16_t number);

/**
 * A peer has answered a fence: no write of that epoch can land any more, and so many works of it were delivered whole.
 */
int32_t polyrail_core_handle_fenced(polyrail_core_worker *core,
                                    uint64_t now,
                                    uint16_t number,
                                    uint32_t lane,
                                    uint32_t epoch,
                                    uint32_t delivered);

/**
 * A peer's process has ended, with proof: nothing moves there any more.
 */
int32_t polyrail_core_handle_peer_gone(polyrail_core_worker *core, uint64_t now, uint16_t number);

/**
 * Gives a peer up for good, so that its number can mean another. `POLYRAIL_CORE_NONE`: something is still open; do what
 * the polls say and call again.
 */
int32_t polyrail_core_forget_peer(polyrail_core_worker *core,
                                  uint64_t now,
                                  uint16_t number);

/**
 * Does what is due. Calling early or twice changes nothing.
 */
int32_t polyrail_core_handle_timeout(polyrail_core_worker *core, uint64_t now);

/**
 * Another worker has made room: `POLYRAIL_CORE_EVENT_WAKE_WORKER` said so.
 */
int32_t polyrail_core_handle_wake(polyrail_core_worker *core);

/**
 * Works to be posted. Answer with `polyrail_core_handle_posted` before the next one: there is none until then. A post that is
 * not answered within the fence timeout is given up: its lane has failed, and what became of its works is unknown.
 */
int32_t polyrail_core_poll_post(polyrail_core_worker *core,
                                uint64_t now,
                                polyrail_core_post *post);

/**
 * What is to be done with a lane.
 */
int32_t polyrail_core_poll_lane(polyrail_core_worker *core, polyrail_core_action *to);

/**
 * What to ask a peer. It is repeated by itself until answered, so it may be lost.
 */
int32_t polyrail_core_poll_message(polyrail_core_worker *core, uint64_t now, polyrail_core_fence *to);

/**
 * What happened. Read last: what is taken then frees rows.
 */
int32_t polyrail_core_poll_event(polyrail_core_worker *core, polyrail_core_event *to);

/**
 * How much of what was handed in changed nothing, by reason, since the core was made.
 */
int32_t polyrail_core_ignored(const polyrail_core_worker *core, polyrail_core_ignored_counts *to);

/**
 * When `polyrail_core_handle_timeout` should next be called.
 */
int32_t polyrail_core_poll_timeout(polyrail_core_worker *core, uint64_t *at);

/**
 * Looks at every call on a core from now on, while nothing is under way: for tests. `memory` begins at a multiple of
 * `POLYRAIL_CORE_ALIGNMENT`, and is the core's from then on. 64 KiB are enough for most tests; a breach says if they are not.
 */
int32_t polyrail_core_check(polyrail_core_worker *core,
                            uint8_t *memory,
                            size_t bytes);

/**
 * Ends the look at a core's calls: what the runtime still owes by now counts as not done. How many clauses were broken; below 0:
 * an error.
 */
int32_t polyrail_core_check_end(polyrail_core_worker *core);

/**
 * The clause that was broken as number `index`, counted from 0. `POLYRAIL_CORE_NONE`: not so many were.
 */
int32_t polyrail_core_look_breach(const polyrail_core_worker *core, size_t index, polyrail_core_breach *to);

/**
 * The name of a rule, for ever; "?": there is no such rule.
 */
const char *polyrail_core_breach_name(uint32_t number);

/**
 * Says in one line what was broken, as far as `bytes` of text go, with the 0 at its end. The length of the whole text, without
 * that 0; 0: there is no such breach.
 */
size_t polyrail_core_breach_text(const polyrail_core_breach *said,
                                 char *to,
                                 size_t bytes);

/**
 * Drives a runtime through transfers either way, many at a time, over links that fail, cancelled, too late, and to a peer that
 * ends. Its core is checked by then; `polyrail_core_check_end` says afterwards what was wrong. The runtime's functions call the
 * core as they always do. `POLYRAIL_CORE_ERROR_PENDING`: a request could not be made or has not ended, so the script did
 * not go on.
 */
int32_t polyrail_core_run_script(polyrail_core_worker *core,
                                 uint64_t now,
                                 const polyrail_core_runtime *runtime,
                                 polyrail_core_ran *ran);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* POLYRAIL_CORE_H */
