/* A transport for polyrail: a shared library with one function, `polyrail_transport_entry`, that gives a table.
 *
 * Made of shells/load/src/abi.rs by cbindgen; do not edit. docs/transports.md takes you from nothing to a library that
 * `polyrail check-transport` passes.
 *
 *     const polyrail_transport_table *polyrail_transport_entry(void);
 */


#ifndef POLYRAIL_TRANSPORT_H
#define POLYRAIL_TRANSPORT_H

#include <stddef.h>
#include <stdint.h>

/**
 * What this header promises. A library of another number is not loaded.
 */
#define POLYRAIL_TRANSPORT_ABI 1

/**
 * Bytes of a region's key, and of a session.
 */
#define POLYRAIL_TRANSPORT_KEY_BYTES 16

/**
 * Bytes of what a target draws for a lane to prove itself with.
 */
#define POLYRAIL_TRANSPORT_NONCE_BYTES 16

/**
 * Bytes of an initiator's ticket.
 */
#define POLYRAIL_TRANSPORT_TICKET_BYTES 49

/**
 * Bytes of a target's answer to a ticket.
 */
#define POLYRAIL_TRANSPORT_PROOF_BYTES 32

/**
 * Bytes that an address of a transport's own can have.
 */
#define POLYRAIL_TRANSPORT_ADDRESS_BYTES 255

/**
 * Never: a time that does not come.
 */
#define POLYRAIL_TRANSPORT_NEVER UINT64_MAX

/**
 * What a library calls a count that it does not know.
 */
#define POLYRAIL_TRANSPORT_UNKNOWN UINT32_MAX

/**
 * It moves bytes to and from host memory of the initiator.
 */
#define POLYRAIL_TRANSPORT_LOCAL_HOST 1

/**
 * The same for memory of a device.
 */
#define POLYRAIL_TRANSPORT_LOCAL_DEVICE 2

/**
 * The same for host memory that other processes can map.
 */
#define POLYRAIL_TRANSPORT_LOCAL_SHARED 8

/**
 * It serves host memory of the target.
 */
#define POLYRAIL_TRANSPORT_REMOTE_HOST 256

/**
 * The same for memory of a device.
 */
#define POLYRAIL_TRANSPORT_REMOTE_DEVICE 512

/**
 * The same for host memory that other processes can map.
 */
#define POLYRAIL_TRANSPORT_REMOTE_SHARED 2048

/**
 * From the local segment to the remote one.
 */
#define POLYRAIL_TRANSPORT_WRITE 0

/**
 * From the remote segment to the local one.
 */
#define POLYRAIL_TRANSPORT_READ 1

/**
 * All works were taken.
 */
#define POLYRAIL_TRANSPORT_STOP_ALL 0

/**
 * The lane has no room for more; a completion or `POLYRAIL_TRANSPORT_WRITABLE` says when it has.
 */
#define POLYRAIL_TRANSPORT_STOP_FULL 1

/**
 * The first work that was not taken was refused, for the cause.
 */
#define POLYRAIL_TRANSPORT_STOP_REJECTED 2

/**
 * Nobody can say what became of the works from there on. They count as posted until a fence.
 */
#define POLYRAIL_TRANSPORT_STOP_UNKNOWN 3

/**
 * A work has ended: well if the cause is 0.
 */
#define POLYRAIL_TRANSPORT_COMPLETION 0

/**
 * A lane can take works, within its limits.
 */
#define POLYRAIL_TRANSPORT_OPENED 1

/**
 * A lane could not be opened, for the cause.
 */
#define POLYRAIL_TRANSPORT_OPEN_FAILED 2

/**
 * A lane has room again.
 */
#define POLYRAIL_TRANSPORT_WRITABLE 3

/**
 * A lane is of no use any more, for the cause. What is posted on it has an unknown outcome.
 */
#define POLYRAIL_TRANSPORT_BROKEN 4

/**
 * The fence of the scope holds.
 */
#define POLYRAIL_TRANSPORT_FENCED 5

/**
 * The fence of the scope cannot be given now. A later `POLYRAIL_TRANSPORT_FENCED` is welcome.
 */
#define POLYRAIL_TRANSPORT_UNFENCEABLE 6

/**
 * Nobody anywhere reads the source or writes the initiator's memory for that epoch any more.
 */
#define POLYRAIL_TRANSPORT_SCOPE_LOCAL 0

/**
 * No further write of that epoch can reach the destination.
 */
#define POLYRAIL_TRANSPORT_SCOPE_REMOTE 1

/**
 * Nothing went wrong.
 */
#define POLYRAIL_TRANSPORT_CAUSE_NONE 0

/**
 * The link or the connection was reset. Speaks against the rail, like the next four.
 */
#define POLYRAIL_TRANSPORT_CAUSE_RESET 1

/**
 * Transport retries were used up.
 */
#define POLYRAIL_TRANSPORT_CAUSE_RETRY_EXCEEDED 5

/**
 * The device failed.
 */
#define POLYRAIL_TRANSPORT_CAUSE_FATAL 7

/**
 * The port or the device went down.
 */
#define POLYRAIL_TRANSPORT_CAUSE_DEVICE_DOWN 8

/**
 * Nobody answered in time when the lane was opened, or the peer refused it.
 */
#define POLYRAIL_TRANSPORT_CAUSE_REFUSED 17

/**
 * The local range is not what was attached. Speaks against the request, like the next four.
 */
#define POLYRAIL_TRANSPORT_CAUSE_LOCAL_PROTECTION 9

/**
 * The local queue refused the work.
 */
#define POLYRAIL_TRANSPORT_CAUSE_LOCAL_OPERATION 11

/**
 * The peer's segment does not allow it: key, range or permission.
 */
#define POLYRAIL_TRANSPORT_CAUSE_REMOTE_ACCESS 12

/**
 * The peer could not make sense of the work.
 */
#define POLYRAIL_TRANSPORT_CAUSE_REMOTE_INVALID_REQUEST 13

/**
 * The peer failed while it carried the work out.
 */
#define POLYRAIL_TRANSPORT_CAUSE_REMOTE_OPERATION 14

/**
 * Ended because a neighbour on the lane had failed.
 */
#define POLYRAIL_TRANSPORT_CAUSE_FLUSHED 16

/**
 * Peers may do nothing with a region.
 */
#define POLYRAIL_TRANSPORT_ACCESS_LOCAL 0

/**
 * They may read it.
 */
#define POLYRAIL_TRANSPORT_ACCESS_READ 1

/**
 * They may read and write it.
 */
#define POLYRAIL_TRANSPORT_ACCESS_READ_WRITE 2

/**
 * Bytes of a region that may be touched until they are unpinned, from any thread.
 */
typedef struct polyrail_transport_pinned polyrail_transport_pinned;

/**
 * Registered memory of this process.
 */
typedef struct polyrail_transport_region polyrail_transport_region;

/**
 * What is known of a region.
 */
typedef struct {
  /**
   * Its first byte. Only to be touched between `enter` and `leave`, or while it is pinned.
   */
  void *base;
  /**
   * Bytes.
   */
  uint64_t bytes;
  /**
   * What peers may do: `POLYRAIL_TRANSPORT_ACCESS_…`.
   */
  uint32_t access;
  /**
   * What other processes can map to share it, from its first byte on; -1: nothing.
   */
  int descriptor;
  /**
   * Its name to peers.
   */
  uint8_t key[POLYRAIL_TRANSPORT_KEY_BYTES];
} polyrail_transport_region_info;

/**
 * Permission to touch bytes of a region: on the stack of the thread that asked, which gives it back.
 */
typedef struct {
  /**
   * The first of the bytes.
   */
  void *address;
  /**
   * The host's.
   */
  uint64_t opaque[4];
} polyrail_transport_entered;

/**
 * What the engine does for a transport. It lives as long as the transport.
 */
typedef struct {
  /**
   * `sizeof(polyrail_transport_host)` as the engine knows it.
   */
  size_t size;
  /**
   * The first argument of functions that take it.
   */
  void *context;
  /**
   * The region that a key of `POLYRAIL_TRANSPORT_KEY_BYTES` opens; null: it is not registered (any more). Asked for
   * every work of a peer: what an answer says is not kept. Given back by `release_region`.
   */
  const polyrail_transport_region *(*find_region)(void *context, const uint8_t *key);
  /**
   * Gives back what `find_region` gave.
   */
  void (*release_region)(const polyrail_transport_region *region);
  /**
   * What is known of a region.
   */
  void (*look_region)(const polyrail_transport_region *region, polyrail_transport_region_info *info);
  /**
   * Asks to touch `length` bytes from `offset` on; good is 0. It is not when they leave the region, or when it is being
   * taken back: then the work has failed. Never waits. Keep it short: whoever takes the region back waits for `leave`,
   * which the same thread calls.
   */
  int32_t (*enter)(const polyrail_transport_region *region,
                   uint64_t offset,
                   uint64_t length,
                   polyrail_transport_entered *entered);
  /**
   * Gives the permission back.
   */
  void (*leave)(polyrail_transport_entered *entered);
  /**
   * The same for what goes on by itself, as a device does: whoever takes the region back waits for `unpin`. Null: no
   * permission. `address` takes where the bytes are.
   */
  polyrail_transport_pinned *(*pin)(const polyrail_transport_region *region,
                                    uint64_t offset,
                                    uint64_t length,
                                    void **address);
  /**
   * Gives it back.
   */
  void (*unpin)(polyrail_transport_pinned *pinned);
  /**
   * Answers `fence_inbound` or `retire_session`, once: `delivered` is how many works of that epoch had been delivered
   * whole, in the order of posting, or 0 if that is not known. From any thread, also before the question has returned.
   */
  void (*answer)(void *context, uint64_t question, uint32_t delivered);
  /**
   * Says something to the engine's log: 1 is an error, 2 a warning, 3 what happened, 4 why.
   */
  void (*log)(void *context, uint32_t level, const char *text);
  /**
   * Target: draws `nonce`, of `POLYRAIL_TRANSPORT_NONCE_BYTES`, for one lane to prove itself with. It is said to
   * whoever asks for that lane, and is good once. Good is 0.
   */
  int32_t (*draw_nonce)(void *context, uint8_t *nonce);
  /**
   * Initiator: makes the ticket, of `POLYRAIL_TRANSPORT_TICKET_BYTES`, of a lane for the target that has said
   * `nonce`; epoch 0: of no lane, for `reach`. Good is 0; 1: the session has no secret, and lanes of it need none;
   * else there is none.
   */
  int32_t (*make_ticket)(void *context,
                         const uint8_t *session,
                         uint32_t lane,
                         uint32_t epoch,
                         const uint8_t *nonce,
                         uint8_t *ticket);
  /**
   * Target: whether a lane may come in that says `ticket` to `nonce`; both null: it says none. Asked before anything
   * is kept of the lane, whether it says one or not. Good is 0, and `proof`, of `POLYRAIL_TRANSPORT_PROOF_BYTES`,
   * takes what it is answered with; 1: it may, and there is nothing to prove; else it may not.
   */
  int32_t (*check_ticket)(void *context,
                          const uint8_t *session,
                          uint32_t lane,
                          uint32_t epoch,
                          const uint8_t *nonce,
                          const uint8_t *ticket,
                          uint8_t *proof);
  /**
   * Initiator: whether `proof` is the target's answer to that ticket; null: it says none. Asked before anything else
   * is said to the target. Good is 0 or, where there is nothing to prove, 1; else the lane is not to be opened.
   */
  int32_t (*check_proof)(void *context,
                         const uint8_t *session,
                         uint32_t lane,
                         uint32_t epoch,
                         const uint8_t *nonce,
                         const uint8_t *ticket,
                         const uint8_t *proof);
} polyrail_transport_host;

/**
 * Where a rail runs.
 */
typedef struct {
  /**
   * The session that lanes on it join.
   */
  uint8_t session[POLYRAIL_TRANSPORT_KEY_BYTES];
  /**
   * Where the peer's transport is, as its `address` says.
   */
  const uint8_t *address;
  /**
   * Bytes of that; 0: it has none of its own.
   */
  size_t address_length;
  /**
   * The local address to bind to, such as `10.0.0.1`, or null: whichever.
   */
  const char *local;
  /**
   * The peer's address, such as `10.0.0.2:7000`.
   */
  const char *remote;
} polyrail_transport_rail;

/**
 * One thing to move.
 */
typedef struct {
  /**
   * Comes back in its completion. Means nothing else.
   */
  uint64_t cookie;
  /**
   * First byte in the local segment.
   */
  uint64_t local_offset;
  /**
   * First byte in the remote segment.
   */
  uint64_t remote_offset;
  /**
   * The segment on this side, attached before.
   */
  uint32_t local;
  /**
   * The segment on the peer's side, attached before.
   */
  uint32_t remote;
  /**
   * Bytes; never 0.
   */
  uint32_t length;
  /**
   * `POLYRAIL_TRANSPORT_WRITE` or `_READ`.
   */
  uint8_t op;
  /**
   * 1: it must produce a completion of its own; 0: that of a later one on the lane may cover it, if the lane said
   * that they do.
   */
  uint8_t signal;
} polyrail_transport_work;

/**
 * The answer to a post.
 */
typedef struct {
  /**
   * Works that were taken, counted from the front. Those after them are untouched, unless `stop` is unknown.
   */
  size_t accepted;
  /**
   * Why no more: `POLYRAIL_TRANSPORT_STOP_…`.
   */
  uint32_t stop;
  /**
   * Of a refusal.
   */
  uint32_t cause;
} polyrail_transport_posted;

/**
 * Something that happened to a work or a lane.
 */
typedef struct {
  /**
   * `POLYRAIL_TRANSPORT_COMPLETION`, `_OPENED`, and so on.
   */
  uint32_t kind;
  /**
   * The lane.
   */
  uint32_t lane;
  /**
   * Its epoch when the work was posted, or the lane opened.
   */
  uint32_t epoch;
  /**
   * `POLYRAIL_TRANSPORT_CAUSE_…`; all numbers of `polyrail_cause_text` are possible.
   */
  uint32_t cause;
  /**
   * Of a completion: the work's.
   */
  uint64_t cookie;
  /**
   * Of a completion: when it was seen, in nanoseconds since the engine started, not later than the `now` of the
   * call; 0: now.
   */
  uint64_t at;
  /**
   * Of a fence: `POLYRAIL_TRANSPORT_SCOPE_…`.
   */
  uint32_t scope;
  /**
   * Of a fence: works of that epoch that arrived whole, in order; or `POLYRAIL_TRANSPORT_UNKNOWN`.
   */
  uint32_t delivered;
  /**
   * Of an opened lane: bytes of the largest work, at least 1.
   */
  uint32_t work_bytes_max;
  /**
   * Of an opened lane: works that may be posted and not completed, at least 1.
   */
  uint16_t works_max;
  /**
   * Of an opened lane: reads among them, at least 1; 0: as many as works.
   */
  uint16_t reads_max;
  /**
   * Of an opened lane: 1 if works complete in order and a completion covers those before it; else each completes by
   * itself.
   */
  uint8_t covers;
} polyrail_transport_event;

/**
 * A transport. All functions have to be there but those that say that they may be null. Functions of one endpoint are
 * called by one thread at a time, those of the transport by any, and none of them blocks but `create`, `reach` and
 * `destroy`. Nothing may be thrown out of them.
 */
typedef struct {
  /**
   * `POLYRAIL_TRANSPORT_ABI`.
   */
  uint32_t abi;
  /**
   * `POLYRAIL_TRANSPORT_LOCAL_…` and `_REMOTE_…`.
   */
  uint32_t capabilities;
  /**
   * `sizeof(polyrail_transport_table)` as the library knows it. At least what this header has.
   */
  size_t size;
  /**
   * What it is called in rail names, configuration and output: 1 to 32 of a-z, 0-9, - and _. Transports of one name
   * understand each other.
   */
  const char *name;
  /**
   * Makes it, over what the engine does for it. Good is 0; else `why` takes the reason, with a zero at its end.
   */
  int32_t (*create)(const polyrail_transport_host *host, void **transport, char *why, size_t why_bytes);
  /**
   * Ends it: its threads have ended and it calls the host no more when this returns. Its endpoints have been destroyed.
   */
  void (*destroy)(void *transport);
  /**
   * Writes where it is reached to `address`, of `POLYRAIL_TRANSPORT_ADDRESS_BYTES`, and answers how many bytes that
   * are. At least 1: lanes of the engine's own port are not handed to libraries.
   */
  size_t (*address)(void *transport, uint8_t *address);
  /**
   * Asks a peer that has let this engine into `session` whether it is reached at its address, and for what memory.
   * Good is 0; else `why` takes the reason. May block for a moment. Null: it always is.
   */
  int32_t (*reach)(void *transport,
                   const uint8_t *address,
                   size_t address_length,
                   const uint8_t *session,
                   uint32_t *capabilities,
                   char *why,
                   size_t why_bytes);
  /**
   * Lets lanes of a session in. Those of others are refused.
   */
  void (*begin_session)(void *transport, const uint8_t *session);
  /**
   * Ends every inbound lane of this number up to this epoch, refuses such lanes from now on, and then answers: no more
   * bytes of theirs reach memory. Also for a lane that never came, and again for one that was fenced before.
   */
  void (*fence_inbound)(void *transport,
                        const uint8_t *session,
                        uint32_t lane,
                        uint32_t epoch,
                        uint64_t question);
  /**
   * Ends everything of a session, forgets it, and then answers.
   */
  void (*retire_session)(void *transport, const uint8_t *session, uint64_t question);
  /**
   * Makes the initiator's half for one worker. Good is 0; else `why` takes the reason.
   */
  int32_t (*endpoint_create)(void *transport, uint16_t worker, void **endpoint, char *why, size_t why_bytes);
  /**
   * Ends it: it touches no memory any more when this returns.
   */
  void (*endpoint_destroy)(void *endpoint);
  /**
   * A descriptor that polls readable when `poll` has something to do. Always the same one.
   */
  int (*descriptor)(void *endpoint);
  /**
   * When `poll` has something to do although the descriptor says nothing, in nanoseconds since the engine started;
   * or `POLYRAIL_TRANSPORT_NEVER`. Null: never.
   */
  uint64_t (*poll_timeout)(void *endpoint);
  /**
   * Names a local segment, before any work refers to it. The region is there until `detach_local` has returned.
   */
  void (*attach_local)(void *endpoint, uint32_t segment, const polyrail_transport_region *region);
  /**
   * Forgets it. Works that still name it fail.
   */
  void (*detach_local)(void *endpoint, uint32_t segment);
  /**
   * Names a segment of a peer, by the key of its region and its size. Naming it again replaces it.
   */
  void (*attach_remote)(void *endpoint, uint32_t segment, const uint8_t *key, uint64_t bytes);
  /**
   * Forgets it: no work names it any more. May be null.
   */
  void (*detach_remote)(void *endpoint, uint32_t segment);
  /**
   * Says where a rail runs, before a lane is opened on it. What it points to is good during the call. Saying it again
   * replaces it for lanes that are opened later.
   */
  void (*attach_rail)(void *endpoint, uint16_t rail, const polyrail_transport_rail *address);
  /**
   * Forgets it. May be null.
   */
  void (*forget_rail)(void *endpoint, uint16_t rail);
  /**
   * Starts to open a lane; its rail is the lower 16 bits of its number. Ends in `_OPENED` or `_OPEN_FAILED`, at `by`
   * at the latest. `now` and `by` are in nanoseconds since the engine started.
   */
  void (*open)(void *endpoint, uint32_t lane, uint32_t epoch, uint64_t now, uint64_t by);
  /**
   * Takes works, 32 at most. They are carried out in order, and each ends in one completion, unless the lane breaks.
   * Those of another epoch than the lane has are refused. A work that makes no sense may be refused here, or
   * complete with a cause. `now` is in nanoseconds since the engine started.
   */
  void (*post)(void *endpoint,
               uint32_t lane,
               uint32_t epoch,
               const polyrail_transport_work *works,
               size_t count,
               uint64_t now,
               polyrail_transport_posted *posted);
  /**
   * Moves what can be moved, and says what happened, in order: up to `capacity` events, and how many. Bounded work.
   * `now` is in nanoseconds since the engine started.
   */
  size_t (*poll)(void *endpoint, uint64_t now, polyrail_transport_event *events, size_t capacity);
  /**
   * Ends a lane's epoch on this side and answers with `_FENCED` in a later `poll`; then nothing of this endpoint touches
   * memory for it any more. One that is over already is answered again.
   */
  void (*fence)(void *endpoint, uint32_t lane, uint32_t epoch, uint32_t scope);
  /**
   * Closes a lane that has nothing posted, or gives up opening it. Answers nothing.
   */
  void (*close)(void *endpoint, uint32_t lane, uint32_t epoch);
  /**
   * 1: all of its lanes, and `reach`, prove themselves as the host's `make_ticket`, `check_ticket` and `check_proof`
   * have it. 0: they do not, and where engines have a cluster key it moves nothing.
   */
  uint32_t tickets;
} polyrail_transport_table;

#endif  /* POLYRAIL_TRANSPORT_H */
