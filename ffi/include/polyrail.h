/* polyrail for C: moves bytes between the memories and disks of machines that are joined by many unequal links.
 *
 * Made of ffi/src by cbindgen; do not edit. docs/c.md is the guide.
 *
 * Every function that can fail returns 0 or a negative POLYRAIL_ERROR_…, and takes as its last argument, which may be
 * NULL, where to say more. Every structure begins with its size: make it with POLYRAIL_NEW. Handles are numbers: one
 * that is zero, freed, of another kind or made up is POLYRAIL_ERROR_HANDLE and nothing worse. All functions can be called
 * from any thread. Nothing is thrown.
 */


#ifndef POLYRAIL_H
#define POLYRAIL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A structure with its size set and everything else zero: `polyrail_request r = POLYRAIL_NEW(polyrail_request);` */
#ifdef __cplusplus
template <typename T> inline T polyrail_new() { T made = T(); made.size = (uint32_t)sizeof(T); return made; }
#define POLYRAIL_NEW(type) (polyrail_new<type>())
#else
#define POLYRAIL_NEW(type) ((type){ .size = (uint32_t)sizeof(type) })
#endif

/**
 * What the functions of this header promise. It grows when something is added; nothing changes its meaning.
 */
#define POLYRAIL_ABI 1

/**
 * Wait as long as it takes.
 */
#define POLYRAIL_FOREVER UINT64_MAX

/**
 * All is well.
 */
#define POLYRAIL_OK 0

/**
 * A pointer is null that may not be, a text is no UTF-8, a size was not set, a number stands for nothing.
 */
#define POLYRAIL_ERROR_ARGUMENT -1

/**
 * A handle is null, freed, of another kind, or of another engine.
 */
#define POLYRAIL_ERROR_HANDLE -2

/**
 * The configuration is at fault. The message lists everything that is wrong with it.
 */
#define POLYRAIL_ERROR_CONFIG -3

/**
 * The system refused something.
 */
#define POLYRAIL_ERROR_SYSTEM -4

/**
 * There is no room now. Try again when something has ended.
 */
#define POLYRAIL_ERROR_FULL -5

/**
 * It did not happen in time. It goes on, and can be waited for again.
 */
#define POLYRAIL_ERROR_TIMED_OUT -6

/**
 * There is no such segment, file or host.
 */
#define POLYRAIL_ERROR_NOT_FOUND -7

/**
 * A range leaves its segment or is empty, or a size is not possible.
 */
#define POLYRAIL_ERROR_RANGE -8

/**
 * The owner of a segment does not allow it.
 */
#define POLYRAIL_ERROR_FORBIDDEN -9

/**
 * Requests that use it have not ended.
 */
#define POLYRAIL_ERROR_IN_USE -10

/**
 * A name is taken, or cannot be one.
 */
#define POLYRAIL_ERROR_NAME -11

/**
 * A peer cannot be reached, or does not let this engine in.
 */
#define POLYRAIL_ERROR_CONNECT -12

/**
 * A peer did not answer, or answered that it could not.
 */
#define POLYRAIL_ERROR_PEER -13

/**
 * The peer is lost, and its segments with it. Open them anew.
 */
#define POLYRAIL_ERROR_PEER_LOST -14

/**
 * The two engines cannot work together: transports, rails, paths or builds do not fit.
 */
#define POLYRAIL_ERROR_INCOMPATIBLE -15

/**
 * The engine has been stopped.
 */
#define POLYRAIL_ERROR_SHUT_DOWN -16

/**
 * It belongs to the process that this one was forked from.
 */
#define POLYRAIL_ERROR_FORKED -17

/**
 * A buffer is too short. How many bytes it takes has been said.
 */
#define POLYRAIL_ERROR_BUFFER -18

/**
 * No proof will come that everything has let go.
 */
#define POLYRAIL_ERROR_UNPROVABLE -19

/**
 * Nothing is waiting to be taken.
 */
#define POLYRAIL_ERROR_EMPTY -20

/**
 * A defect of the library. It was caught; the call did nothing, or a part of its work.
 */
#define POLYRAIL_ERROR_PANIC -21

/**
 * From the local segment to the remote one.
 */
#define POLYRAIL_WRITE 0

/**
 * From the remote segment to the local one.
 */
#define POLYRAIL_READ 1

/**
 * Peers may do nothing: only this process uses it, as source or destination.
 */
#define POLYRAIL_ACCESS_LOCAL 0

/**
 * Peers may read it.
 */
#define POLYRAIL_ACCESS_REMOTE_READ 1

/**
 * Peers may read and write it.
 */
#define POLYRAIL_ACCESS_REMOTE_READ_WRITE 2

/**
 * The usual. Requests of up to one slice go before longer ones.
 */
#define POLYRAIL_PRIORITY_NORMAL 0

/**
 * Before all others to the same peer.
 */
#define POLYRAIL_PRIORITY_HIGH 1

/**
 * After all others.
 */
#define POLYRAIL_PRIORITY_LOW 2

/**
 * It has not ended.
 */
#define POLYRAIL_STATUS_PENDING 0

/**
 * Every byte is where it should be.
 */
#define POLYRAIL_STATUS_COMPLETED 1

/**
 * It failed, and nothing of it can move any more.
 */
#define POLYRAIL_STATUS_FAILED 2

/**
 * Cancelled by the program, and nothing of it can move any more.
 */
#define POLYRAIL_STATUS_CANCELLED 3

/**
 * Its deadline passed, and nothing of it can move any more.
 */
#define POLYRAIL_STATUS_DEADLINE_EXCEEDED 4

/**
 * The peer's process is gone, with proof.
 */
#define POLYRAIL_STATUS_PEER_LOST 5

/**
 * It ended without proof that nothing of it can move any more.
 */
#define POLYRAIL_STATUS_INDETERMINATE 6

/**
 * The engine was stopped first, and nothing of it can move any more.
 */
#define POLYRAIL_STATUS_SHUT_DOWN 7

/**
 * Nobody reads the source or writes the destination on this side any more.
 */
#define POLYRAIL_LOCAL_RELEASED 0

/**
 * Somebody might: the memory must not be used.
 */
#define POLYRAIL_LOCAL_HELD 1

/**
 * No further write of the request can reach the peer's memory.
 */
#define POLYRAIL_REMOTE_SETTLED 0

/**
 * One might.
 */
#define POLYRAIL_REMOTE_UNKNOWN 1

/**
 * Its batch has not ended, or the peer has not confirmed it.
 */
#define POLYRAIL_DELIVERY_PENDING 0

/**
 * The peer's engine has it for its program.
 */
#define POLYRAIL_DELIVERY_DELIVERED 1

/**
 * It was not sent, because its batch did not complete.
 */
#define POLYRAIL_DELIVERY_WITHHELD 2

/**
 * It never reached the peer and will not.
 */
#define POLYRAIL_DELIVERY_UNDELIVERED 3

/**
 * The peer has it once or not at all.
 */
#define POLYRAIL_DELIVERY_UNKNOWN 4

/**
 * The rail takes slices.
 */
#define POLYRAIL_RAIL_HEALTHY 0

/**
 * It takes none; a probe is due at some time.
 */
#define POLYRAIL_RAIL_PAUSED 1

/**
 * It is being probed.
 */
#define POLYRAIL_RAIL_PROBING 2

/**
 * The lane has been asked for, and is not open yet.
 */
#define POLYRAIL_LANE_OPENING 0

/**
 * It takes works.
 */
#define POLYRAIL_LANE_OPEN 1

/**
 * It has failed; what was posted may still be under way.
 */
#define POLYRAIL_LANE_FENCING 2

/**
 * There is none, and nothing is on it.
 */
#define POLYRAIL_LANE_CLOSED 3

/**
 * Nothing went wrong.
 */
#define POLYRAIL_CAUSE_NONE 0

/**
 * Bytes of an error's words, the zero at their end included.
 */
#define POLYRAIL_MESSAGE_BYTES 488

/**
 * Bytes that an answer can have.
 */
#define POLYRAIL_ANSWER_BYTES (60 * 1024)

/**
 * Memory of this process: the local one of requests.
 */
#define POLYRAIL_SEGMENT_MEMORY 0

/**
 * A file or block device of this host: the remote one of requests.
 */
#define POLYRAIL_SEGMENT_FILE 1

/**
 * Something of a peer: the remote one of requests.
 */
#define POLYRAIL_SEGMENT_REMOTE 2

/**
 * Bytes of a notification that its structure has; `polyrail_notification_bytes` gives all.
 */
#define POLYRAIL_NOTIFICATION_BYTES 1024

/**
 * Bytes that a notification can have.
 */
#define POLYRAIL_NOTIFICATION_BYTES_MAX 1048576

/**
 * Bytes of an engine's name, the zero at the end included.
 */
#define POLYRAIL_NAME_BYTES 256

/**
 * Bytes of the name of a rail, device or transport, the zero at the end included.
 */
#define POLYRAIL_LABEL_BYTES 128

/**
 * Bytes of a reason, the zero at the end included.
 */
#define POLYRAIL_REASON_BYTES 256

/**
 * In place of a time: it never was, or is not so.
 */
#define POLYRAIL_NEVER UINT64_MAX

/**
 * There is a session with it. It may be silent all the same.
 */
#define POLYRAIL_PEER_PRESENT 0

/**
 * It is about to end: nothing more begins with it.
 */
#define POLYRAIL_PEER_LEAVING 1

/**
 * It was lost, and nobody has answered at its address since.
 */
#define POLYRAIL_PEER_LOST 2

/**
 * It is lost, and its segments with it. One that is only silent is not lost.
 */
#define POLYRAIL_EVENT_LOST 0

/**
 * It was lost, and the same process is there again.
 */
#define POLYRAIL_EVENT_BACK 1

/**
 * Another process is there in its place.
 */
#define POLYRAIL_EVENT_CHANGED 2

/**
 * Events were dropped here, because the program had not taken those before.
 */
#define POLYRAIL_EVENT_MISSED 3

/**
 * Nothing.
 */
#define POLYRAIL_LOG_OFF 0

/**
 * What went wrong.
 */
#define POLYRAIL_LOG_ERROR 1

/**
 * What may be wrong.
 */
#define POLYRAIL_LOG_WARN 2

/**
 * What happened.
 */
#define POLYRAIL_LOG_INFO 3

/**
 * Why it did.
 */
#define POLYRAIL_LOG_DEBUG 4

/**
 * A segment of an engine: memory or a file, here or at a peer.
 */
typedef struct {
  /**
   * Its name; 0: none. Means nothing to programs.
   */
  uint64_t bits;
} polyrail_segment;

/**
 * What came of one call. It belongs to the caller, and to no thread.
 */
typedef struct {
  /**
   * `sizeof(polyrail_error)`, set by the caller.
   */
  uint32_t size;
  /**
   * What the function returned.
   */
  int32_t code;
  /**
   * Which element of an array is at fault; -1: none, or it is not about one.
   */
  int64_t index;
  /**
   * What happened, with the values that are at fault and what would be right. Ends with a zero; empty if all is well.
   */
  char message[POLYRAIL_MESSAGE_BYTES];
} polyrail_error;

/**
 * The peer whose program calls. What it leads to lasts until `answer` returns.
 */
typedef struct {
  /**
   * As far as this library knows it.
   */
  uint32_t size;
  /**
   * 0.
   */
  uint32_t reserved;
  /**
   * What its engine calls itself: its own word, not proof of who it is.
   */
  const char *peer;
  /**
   * Whom its certificate names; null: it has shown none.
   */
  const char *member;
  /**
   * Where its session came from first, with the port.
   */
  const char *address;
  /**
   * The name of its trust domain; null: the common one, which has all segments of programs in C.
   */
  const char *domain;
} polyrail_caller;

/**
 * Carries out a peer's call, which may be of any trust domain: reads `length` bytes of `body`, writes up to
 * `POLYRAIL_ANSWER_BYTES` of `answer` and how many to `answer_length`. Good is 0; anything else is told to the caller,
 * with as many bytes as words. One at a time; may block. It must not return by an exception or a jump.
 */
typedef int32_t (*polyrail_answer)(void *context,
                                   const polyrail_caller *caller,
                                   uint16_t method,
                                   const uint8_t *body,
                                   size_t length,
                                   uint8_t *answer,
                                   size_t *answer_length);

/**
 * A key of the configuration and its value, as texts.
 */
typedef struct {
  /**
   * The key as a path, such as `transports/tcp/enable`.
   */
  const char *key;
  /**
   * Its value as a variable of the environment would have it: words as they are, lists with commas.
   */
  const char *value;
} polyrail_parameter;

/**
 * What an engine is started with. Later sources win over earlier ones, in the order of the fields.
 */
typedef struct {
  /**
   * `sizeof(polyrail_options)`.
   */
  uint32_t size;
  /**
   * 1: variables of the environment (`POLYRAIL_<KEY>`) count; 0: they do not.
   */
  uint32_t environment;
  /**
   * A file in JSON, or null.
   */
  const char *config_file;
  /**
   * A configuration in JSON, or null: what the program itself wants.
   */
  const char *config;
  /**
   * A folder for a flight recording, or null: see `polyrail sim replay`.
   */
  const char *recording;
  /**
   * Answers calls of peers' programs, or null: they are refused.
   */
  polyrail_answer answer;
  /**
   * What `answer` is called with.
   */
  void *context;
  /**
   * 1: peers wait until `polyrail_engine_let_in`, for who wants to offer segments first; 0: they are let in at once.
   */
  uint32_t lets_in_later;
  /**
   * 0.
   */
  uint32_t reserved;
  /**
   * The first of `parameter_count` keys with values, or null: of two with one key the later wins.
   */
  const polyrail_parameter *parameters;
  /**
   * How many parameters there are.
   */
  size_t parameter_count;
} polyrail_options;

/**
 * An engine.
 */
typedef struct {
  /**
   * Its name; 0: none. Means nothing to programs.
   */
  uint64_t bits;
} polyrail_engine;

/**
 * How a segment of a peer is opened, beyond its name.
 */
typedef struct {
  /**
   * `sizeof(polyrail_open_terms)`.
   */
  uint32_t size;
  /**
   * 1: it follows its name. When its peer is lost and a process serves it at its address again, it leads there, and so do
   * prepared transfers that name it. While the peer is away, submissions are `POLYRAIL_ERROR_PEER_LOST`. 0: it does not.
   */
  uint32_t standing;
  /**
   * How long to try again until the peer is there and has the segment; 0: one try.
   */
  uint64_t within_ns;
} polyrail_open_terms;

/**
 * Which bytes of a file are a segment, and how.
 */
typedef struct {
  /**
   * `sizeof(polyrail_file_terms)`.
   */
  uint32_t size;
  /**
   * 1: it is only read; 0: it is written too.
   */
  uint32_t read_only;
  /**
   * First byte in the file.
   */
  uint64_t offset;
  /**
   * Bytes; 0: from there to the end that the file has now. A range that ends behind it lets a regular file grow.
   */
  uint64_t bytes;
  /**
   * 1: all of it goes through the page cache; 0: it goes past it where it can.
   */
  uint32_t cached;
  /**
   * 0.
   */
  uint32_t reserved;
} polyrail_file_terms;

/**
 * What is known of a segment.
 */
typedef struct {
  /**
   * `sizeof(polyrail_segment_info)`.
   */
  uint32_t size;
  /**
   * `POLYRAIL_SEGMENT_MEMORY`, `_FILE` or `_REMOTE`.
   */
  uint32_t kind;
  /**
   * The first byte, if it is memory of this process or its GPUs; else null.
   */
  void *base;
  /**
   * Bytes.
   */
  uint64_t bytes;
} polyrail_segment_info;

/**
 * What becomes of a notification.
 */
typedef struct {
  /**
   * Its name; 0: none. Means nothing to programs.
   */
  uint64_t bits;
} polyrail_delivery;

/**
 * What a peer's program told this one.
 */
typedef struct {
  /**
   * `sizeof(polyrail_notification)`.
   */
  uint32_t size;
  /**
   * How many bytes it said: those of `bytes` that count, unless they are more.
   */
  uint32_t length;
  /**
   * Tells engines of one name apart.
   */
  uint64_t incarnation;
  /**
   * What the sender's engine calls itself. Its own word, not proof of who it is.
   */
  char from[POLYRAIL_NAME_BYTES];
  /**
   * What it said, or the beginning of it.
   */
  uint8_t bytes[POLYRAIL_NOTIFICATION_BYTES];
} polyrail_notification;

/**
 * Requests that were submitted together.
 */
typedef struct {
  /**
   * Its name; 0: none. Means nothing to programs.
   */
  uint64_t bits;
} polyrail_batch;

/**
 * A batch at a glance.
 */
typedef struct {
  /**
   * `sizeof(polyrail_status)`.
   */
  uint32_t size;
  /**
   * One of `POLYRAIL_STATUS_…`: pending while it lasts; then completed if every request did, else how the first one
   * ended that did not, but indeterminate if any did.
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
   * 0.
   */
  uint32_t reserved;
  /**
   * Bytes proven to have arrived, of the requests that have ended.
   */
  uint64_t delivered_bytes;
} polyrail_status;

/**
 * Is told once how a batch ended. The status is good during the call. It must not block, nor return by an exception or
 * a jump.
 */
typedef void (*polyrail_done)(void *context, const polyrail_status *status);

/**
 * How one request ended, and what is known of the memory on both sides. `POLYRAIL_STATUS_INDETERMINATE` if and only if
 * `local` is held or `remote` is unknown.
 */
typedef struct {
  /**
   * `sizeof(polyrail_report)`.
   */
  uint32_t size;
  /**
   * One of `POLYRAIL_STATUS_…`.
   */
  uint32_t status;
  /**
   * Why, if not well: see `polyrail_cause_text`.
   */
  uint32_t cause;
  /**
   * `POLYRAIL_LOCAL_RELEASED` or `_HELD`.
   */
  uint32_t local;
  /**
   * `POLYRAIL_REMOTE_SETTLED` or `_UNKNOWN`.
   */
  uint32_t remote;
  /**
   * 0.
   */
  uint32_t reserved;
  /**
   * Bytes that are proven to have arrived: a lower bound.
   */
  uint64_t delivered_bytes;
} polyrail_report;

/**
 * One read or write between two segments.
 */
typedef struct {
  /**
   * `sizeof(polyrail_request)`, the same in each element of an array.
   */
  uint32_t size;
  /**
   * `POLYRAIL_WRITE` or `POLYRAIL_READ`.
   */
  uint32_t op;
  /**
   * Memory of this engine, or a file of it if the other one is a peer's.
   */
  polyrail_segment local;
  /**
   * First byte in it.
   */
  uint64_t local_offset;
  /**
   * A segment of a peer, or a file of this host.
   */
  polyrail_segment remote;
  /**
   * First byte in it.
   */
  uint64_t remote_offset;
  /**
   * Bytes, at least 1.
   */
  uint64_t length;
} polyrail_request;

/**
 * How a batch is treated, beyond what it moves.
 */
typedef struct {
  /**
   * `sizeof(polyrail_terms)`.
   */
  uint32_t size;
  /**
   * `POLYRAIL_PRIORITY_NORMAL`, `_HIGH` or `_LOW`.
   */
  uint32_t priority;
  /**
   * From now on, in nanoseconds; 0: the requests may take for ever.
   */
  uint64_t deadline_ns;
  /**
   * How long to wait for room if there is none, in nanoseconds, before `POLYRAIL_ERROR_FULL`.
   */
  uint64_t room_within_ns;
  /**
   * 0: `room_within_ns` is not looked at, and the wait is as configured. 1: it counts, also if it is 0.
   */
  uint32_t has_room_within;
  /**
   * 1: `arrival` counts. 0: it is not looked at.
   */
  uint32_t has_arrival;
  /**
   * What the peer's program is told once the batch has completed; null: nothing.
   */
  const uint8_t *notification;
  /**
   * Its bytes.
   */
  size_t notification_length;
  /**
   * Counted by the peer's engine under this number once the batch has completed: see `polyrail_arrivals_wait`.
   */
  uint64_t arrival;
  /**
   * 1: the batch has not ended before all that it has written can be seen by whatever looks there. 0: `POLYRAIL_COMPLETED` says that the
   * peer has it, and its device may put it into memory microseconds later.
   */
  uint32_t visible;
} polyrail_terms;

/**
 * Requests that are ready to be posted, as often as one likes.
 */
typedef struct {
  /**
   * Its name; 0: none. Means nothing to programs.
   */
  uint64_t bits;
} polyrail_prepared;

/**
 * One read or write of many blocks of equal length between two segments: the n-th block of one end goes to the n-th of the
 * other. At either end the blocks are pages by a table, as those of a KV cache, or rows at equal distances.
 */
typedef struct {
  /**
   * `sizeof(polyrail_paged_request)`, the same in each element of an array.
   */
  uint32_t size;
  /**
   * `POLYRAIL_WRITE` or `POLYRAIL_READ`.
   */
  uint32_t op;
  /**
   * Memory of this engine, or a file of it if the other one is a peer's.
   */
  polyrail_segment local;
  /**
   * The first byte of page or row 0 in it.
   */
  uint64_t local_base;
  /**
   * Bytes from the beginning of a page or row to that of the next.
   */
  uint64_t local_stride;
  /**
   * The numbers of the pages, `count` of them, in this order; null: the rows from 0 on. The program's during the call.
   */
  const uint32_t *local_pages;
  /**
   * A segment of a peer, or a file of this host.
   */
  polyrail_segment remote;
  /**
   * As `local_base`.
   */
  uint64_t remote_base;
  /**
   * As `local_stride`.
   */
  uint64_t remote_stride;
  /**
   * As `local_pages`.
   */
  const uint32_t *remote_pages;
  /**
   * Bytes of each block, at least 1.
   */
  uint64_t length;
  /**
   * Blocks at either end, at least 1; 1,000,000 in all requests of a batch.
   */
  size_t count;
} polyrail_paged_request;

/**
 * A queue of batches that have ended, in the order in which they did. It can serve several engines.
 */
typedef struct {
  /**
   * Its name; 0: none. Means nothing to programs.
   */
  uint64_t bits;
} polyrail_queue;

/**
 * A batch has ended.
 */
typedef struct {
  /**
   * `sizeof(polyrail_completion)`.
   */
  uint32_t size;
  /**
   * How, one of `POLYRAIL_STATUS_…`.
   */
  uint32_t status;
  /**
   * What the program called it when it added it.
   */
  uint64_t tag;
  /**
   * Requests in it.
   */
  uint32_t requests;
  /**
   * Requests that ended other than completed.
   */
  uint32_t failed;
  /**
   * Bytes proven to have arrived.
   */
  uint64_t delivered_bytes;
} polyrail_completion;

/**
 * A rail as the program sees it.
 */
typedef struct {
  /**
   * `sizeof(polyrail_rail)`.
   */
  uint32_t size;
  /**
   * `POLYRAIL_RAIL_HEALTHY`, `_PAUSED` or `_PROBING`.
   */
  uint32_t state;
  /**
   * Bytes acknowledged since the engine started, both directions.
   */
  uint64_t bytes;
  /**
   * `tcp:LOCAL>REMOTE`.
   */
  char name[POLYRAIL_LABEL_BYTES];
} polyrail_rail;

/**
 * Traffic of one local device over all its rails.
 */
typedef struct {
  /**
   * `sizeof(polyrail_device)`.
   */
  uint32_t size;
  /**
   * 0.
   */
  uint32_t reserved;
  /**
   * Bytes acknowledged, both directions.
   */
  uint64_t bytes;
  /**
   * Bytes in flight now.
   */
  uint64_t inflight_bytes;
  /**
   * How fast its rails are together, as learned.
   */
  uint64_t bytes_per_sec;
  /**
   * Its part of the bytes of all devices, 0 to 1.
   */
  double share;
  /**
   * Its address; `*`: whichever the kernel chooses.
   */
  char name[POLYRAIL_LABEL_BYTES];
} polyrail_device;

/**
 * Requests that went on with another transport: `tent_transport_failover_total{from,to}`.
 */
typedef struct {
  /**
   * `sizeof(polyrail_failover)`.
   */
  uint32_t size;
  /**
   * 0.
   */
  uint32_t reserved;
  /**
   * How often.
   */
  uint64_t count;
  /**
   * The transport that was left.
   */
  char from[POLYRAIL_LABEL_BYTES];
  /**
   * The one that was taken.
   */
  char to[POLYRAIL_LABEL_BYTES];
} polyrail_failover;

/**
 * A worker's room for requests, and its work. Times are in nanoseconds.
 */
typedef struct {
  /**
   * `sizeof(polyrail_worker)`.
   */
  uint32_t size;
  /**
   * Requests of the program that it holds, from submission to report.
   */
  uint32_t held;
  /**
   * The most that it takes.
   */
  uint32_t limit;
  /**
   * The most that it has held when somebody submitted.
   */
  uint32_t held_high;
  /**
   * Submissions that wait for room now.
   */
  uint32_t waiting;
  /**
   * 1: it sleeps until there is something to do.
   */
  uint32_t sleeps;
  /**
   * How long there has not been room for somebody; `POLYRAIL_NEVER`: whoever asked last found some.
   */
  uint64_t full_for;
  /**
   * How long ago it last looked for completions; `POLYRAIL_NEVER`: never.
   */
  uint64_t looked;
  /**
   * How long ago works of it last completed; `POLYRAIL_NEVER`: never.
   */
  uint64_t completed;
  /**
   * Completions so far.
   */
  uint64_t completions;
  /**
   * How often a submission has waited for room.
   */
  uint64_t admission_waits;
  /**
   * How long, all of them together.
   */
  uint64_t admission_waited;
  /**
   * How often in vain.
   */
  uint64_t admission_timeouts;
} polyrail_worker;

/**
 * One worker's lane on one rail. Times are in nanoseconds.
 */
typedef struct {
  /**
   * `sizeof(polyrail_lane)`.
   */
  uint32_t size;
  /**
   * Whose it is.
   */
  uint32_t worker;
  /**
   * `POLYRAIL_LANE_OPENING`, `_OPEN`, `_FENCING` or `_CLOSED`.
   */
  uint32_t state;
  /**
   * Works that it holds.
   */
  uint32_t held;
  /**
   * The most that it takes.
   */
  uint32_t limit;
  /**
   * The most works that it has held.
   */
  uint32_t held_high;
  /**
   * Bytes of the works that it holds.
   */
  uint64_t held_bytes;
  /**
   * How long ago works on it last completed; `POLYRAIL_NEVER`: never.
   */
  uint64_t completed;
  /**
   * How often works have ended there, several at a time counting once.
   */
  uint64_t releases;
  /**
   * How many works that was.
   */
  uint64_t released;
  /**
   * How long it has taken no more works; `POLYRAIL_NEVER`: it takes some.
   */
  uint64_t full_for;
  /**
   * Its rail, as `polyrail_rail` names it.
   */
  char rail[POLYRAIL_LABEL_BYTES];
} polyrail_lane;

/**
 * What waits for proof. Times are in nanoseconds.
 */
typedef struct {
  /**
   * `sizeof(polyrail_proof)`.
   */
  uint32_t size;
  /**
   * 0.
   */
  uint32_t reserved;
  /**
   * Requests that were reported as `POLYRAIL_STATUS_INDETERMINATE`, and are so still.
   */
  uint64_t unsettled_requests;
  /**
   * Bytes of those whose memory here may still be touched.
   */
  uint64_t held_bytes;
  /**
   * Bytes of those that may still reach the peer's memory.
   */
  uint64_t unknown_bytes;
  /**
   * How long ago the first of them was reported; `POLYRAIL_NEVER`: there is none.
   */
  uint64_t unsettled_oldest;
  /**
   * Fences that peers were asked for and have not answered.
   */
  uint64_t fences_waiting;
  /**
   * How long the first of them has been waited for; `POLYRAIL_NEVER`: there is none.
   */
  uint64_t fences_oldest;
  /**
   * Fences that were given up without an answer.
   */
  uint64_t fences_unanswered;
  /**
   * Fences that were answered.
   */
  uint64_t fences_answered;
  /**
   * How long those took, all together.
   */
  uint64_t fences_waited;
} polyrail_proof;

/**
 * A transport that the engine knows.
 */
typedef struct {
  /**
   * `sizeof(polyrail_transport_info)`.
   */
  uint32_t size;
  /**
   * 1: it is there; 0: the engine runs without it.
   */
  uint32_t available;
  /**
   * What it is called.
   */
  char name[POLYRAIL_LABEL_BYTES];
  /**
   * Why the engine runs without it; empty if it is there.
   */
  char missing[POLYRAIL_REASON_BYTES];
} polyrail_transport_info;

/**
 * A peer.
 */
typedef struct {
  /**
   * `sizeof(polyrail_peer)`.
   */
  uint32_t size;
  /**
   * `POLYRAIL_PEER_PRESENT`, `_LEAVING` or `_LOST`.
   */
  uint32_t state;
  /**
   * Tells processes at one address apart.
   */
  uint64_t incarnation;
  /**
   * `HOST:PORT` where this engine first reached it.
   */
  char address[POLYRAIL_LABEL_BYTES];
  /**
   * What its engine calls itself. Its own word, not proof of who it is.
   */
  char name[POLYRAIL_NAME_BYTES];
} polyrail_peer;

/**
 * Something has happened to a peer.
 */
typedef struct {
  /**
   * `sizeof(polyrail_peer_event)`.
   */
  uint32_t size;
  /**
   * One of `POLYRAIL_EVENT_…`.
   */
  uint32_t kind;
  /**
   * How many events were dropped; 0 unless `kind` says so. Nothing else is said then.
   */
  uint64_t missed;
  /**
   * Tells processes at one address apart.
   */
  uint64_t incarnation;
  /**
   * `HOST:PORT` where this engine first reached it.
   */
  char address[POLYRAIL_LABEL_BYTES];
  /**
   * What its engine calls itself.
   */
  char name[POLYRAIL_NAME_BYTES];
} polyrail_peer_event;

/**
 * Takes a line of the log: its level, the module that says it, and the words. They are good during the call. From any
 * thread, and from several at once. It must not call the library, nor return by an exception or a jump.
 */
typedef void (*polyrail_log)(void *context, uint32_t level, const char *module, const char *text);

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * What this library promises: compare it with `POLYRAIL_ABI`, which the program was compiled with. Less is too old.
 */
uint32_t polyrail_abi(void);

/**
 * The library's version, such as `0.1.0`. For ever.
 */
const char *polyrail_version(void);

/**
 * A status in one word, as JSON says it too. For ever.
 */
const char *polyrail_status_name(uint32_t status);

/**
 * The cause in a report, in words; empty for `POLYRAIL_CAUSE_NONE`. For ever.
 */
const char *polyrail_cause_text(uint32_t cause);

/**
 * What a code stands for, in a word or two. For ever.
 */
const char *polyrail_code_name(int32_t code);

/**
 * The words of the last failure of a call on this thread; never null. They stay until the next one fails here. A
 * program with several threads, or with callbacks, had better give each call an error of its own.
 */
const char *polyrail_last_message(void);

/**
 * Asks the program of the peer that owns `remote` to do something, and waits for its answer. `length` takes the bytes
 * of the answer, whether or not the buffer has room for them.
 */
int32_t polyrail_call(polyrail_segment remote,
                      uint16_t method,
                      const uint8_t *body,
                      size_t body_length,
                      uint64_t timeout_ns,
                      uint8_t *buffer,
                      size_t capacity,
                      size_t *length,
                      polyrail_error *error);

/**
 * Starts an engine. `options` may be null: every key has its default then.
 */
int32_t polyrail_engine_start(const polyrail_options *options,
                              polyrail_engine *engine,
                              polyrail_error *error);

/**
 * Lets peers in, where `lets_in_later` of the options has kept them out. Again, or without that: does nothing.
 */
int32_t polyrail_engine_let_in(polyrail_engine engine,
                               polyrail_error *error);

/**
 * Ends everything within a bound: what has not ended is reported `POLYRAIL_STATUS_SHUT_DOWN`, or
 * `POLYRAIL_STATUS_INDETERMINATE` where it cannot be ended for sure. What is known of batches stays known. Again: does
 * nothing.
 */
int32_t polyrail_engine_stop(polyrail_engine engine,
                             polyrail_error *error);

/**
 * Stops an engine, frees it and all segments of it: their handles are errors from now on. When it has returned, nothing
 * of the engine touches registered memory any more. Handles of batches, queues and deliveries stay good.
 */
int32_t polyrail_engine_free(polyrail_engine engine,
                             polyrail_error *error);

/**
 * Where it listens, as `HOST:PORT` with a zero at the end. `length`, unless null, takes the bytes without that zero.
 */
int32_t polyrail_engine_listening(polyrail_engine engine,
                                  char *buffer,
                                  size_t capacity,
                                  size_t *length,
                                  polyrail_error *error);

/**
 * Takes the operator's word that the engine at `HOST:PORT` is gone and will write no more: requests to it end as
 * `POLYRAIL_STATUS_PEER_LOST`. Only right if it is true. `was_known`, unless null, takes whether there was a session.
 */
int32_t polyrail_engine_declare_lost(polyrail_engine engine,
                                     const char *address,
                                     bool *was_known,
                                     polyrail_error *error);

/**
 * Allocates memory, zeroed, and registers it under a name.
 */
int32_t polyrail_segment_allocate(polyrail_engine engine,
                                  const char *name,
                                  uint64_t bytes,
                                  uint32_t access_of_peers,
                                  polyrail_segment *segment,
                                  polyrail_error *error);

/**
 * Allocates memory of a GPU, number 0 being `cuda:0`, and registers it under a name. `POLYRAIL_ERROR_SYSTEM`: this
 * library has no CUDA, or the machine no driver; the words say which.
 */
int32_t polyrail_segment_allocate_on_gpu(polyrail_engine engine,
                                         const char *name,
                                         uint32_t gpu,
                                         uint64_t bytes,
                                         uint32_t access_of_peers,
                                         polyrail_segment *segment,
                                         polyrail_error *error);

/**
 * Lets what is submitted from now on to or from memory of this segment's GPU begin only when what is in a stream of the
 * program's now is over. `stream` is a `CUstream` or `cudaStream_t` of that GPU; null is the default one. Returns at once.
 */
int32_t polyrail_segment_order_after(polyrail_segment segment,
                                     void *stream,
                                     polyrail_error *error);

/**
 * Registers memory of the program under a name: of this process, or of a GPU, which CUDA's driver tells apart by the
 * address. It stays mapped (or allocated), readable and writable until the segment or its engine has been freed.
 */
int32_t polyrail_segment_register(polyrail_engine engine,
                                  const char *name,
                                  void *base,
                                  uint64_t bytes,
                                  uint32_t access_of_peers,
                                  polyrail_segment *segment,
                                  polyrail_error *error);

/**
 * Opens a segment of a peer, named `HOST:PORT/SEGMENT`.
 */
int32_t polyrail_segment_open(polyrail_engine engine,
                              const char *address,
                              polyrail_segment *segment,
                              polyrail_error *error);

/**
 * The same on other terms, which may be null: until the peer is there, or to be followed when its process is started anew.
 */
int32_t polyrail_segment_open_with(polyrail_engine engine,
                                   const char *address,
                                   const polyrail_open_terms *terms,
                                   polyrail_segment *segment,
                                   polyrail_error *error);

/**
 * Makes a file or block device that exists a segment. `terms` may be null: all of it, to be read and written.
 */
int32_t polyrail_segment_open_file(polyrail_engine engine,
                                   const char *path,
                                   const polyrail_file_terms *terms,
                                   polyrail_segment *segment,
                                   polyrail_error *error);

/**
 * Lets peers open a file's segment under a name, as far as both this access and its own terms allow.
 */
int32_t polyrail_segment_offer(polyrail_segment file,
                               const char *name,
                               uint32_t access_of_peers,
                               polyrail_error *error);

/**
 * Waits until what completed requests wrote to a file is on the disk. Blocks.
 */
int32_t polyrail_segment_sync(polyrail_segment file, polyrail_error *error);

/**
 * What is known of a segment.
 */
int32_t polyrail_segment_look(polyrail_segment segment, polyrail_segment_info *info, polyrail_error *error);

/**
 * Closes a segment of a peer, and frees its handle: what the engine maps of it is unmapped, and its owner keeps its
 * memory. One that was opened several times is closed with the last handle. `POLYRAIL_ERROR_IN_USE`: requests that use it
 * have not ended, and nothing has changed; wait for them, or cancel them. `POLYRAIL_ERROR_ARGUMENT`: it is memory or a
 * file of this engine, which `polyrail_segment_free` takes back.
 */
int32_t polyrail_segment_close(polyrail_segment segment,
                               polyrail_error *error);

/**
 * Frees a segment's handle, and takes memory and files back: when it has returned, nothing of the engine touches them
 * any more. `POLYRAIL_ERROR_IN_USE`: requests that use it have not ended, and nothing has changed. `POLYRAIL_ERROR_UNPROVABLE`:
 * peers can use it no more, but one on this host may be in the midst of a write to it, as when it is stopped there: keep the
 * memory and the handle, and call this again later. A segment of a peer is closed as by `polyrail_segment_close`, but later if requests use it now.
 */
int32_t polyrail_segment_free(polyrail_segment segment,
                              polyrail_error *error);

/**
 * Tells the program of the peer that owns `remote` something, by itself. It gets it once and after what was told it
 * before. `delivery` may be null.
 */
int32_t polyrail_notify(polyrail_segment remote,
                        const uint8_t *bytes,
                        size_t length,
                        polyrail_delivery *delivery,
                        polyrail_error *error);

/**
 * Waits so long until it is known what became of a notification; 0: it only looks. `status` takes one of
 * `POLYRAIL_DELIVERY_…`, also if the answer is `POLYRAIL_ERROR_TIMED_OUT`.
 */
int32_t polyrail_delivery_wait(polyrail_delivery delivery,
                               uint64_t timeout_ns,
                               uint32_t *status,
                               polyrail_error *error);

/**
 * Frees a delivery's handle. The notification goes its way.
 */
int32_t polyrail_delivery_free(polyrail_delivery delivery, polyrail_error *error);

/**
 * Takes what a peer's program told this one, and waits so long for it; 0: it only looks. `POLYRAIL_ERROR_EMPTY`: nothing
 * came. The structure has to have its whole size: what did not fit would be lost.
 */
int32_t polyrail_notification_take(polyrail_engine engine,
                                   uint64_t timeout_ns,
                                   polyrail_notification *notification,
                                   polyrail_error *error);

/**
 * All bytes of the notification that this thread took last, until it takes another. `length` takes how many they are, also
 * if the answer is `POLYRAIL_ERROR_BUFFER`, because `capacity` is less; it may be null.
 */
int32_t polyrail_notification_bytes(uint8_t *buffer,
                                    size_t capacity,
                                    size_t *length,
                                    polyrail_error *error);

/**
 * Waits so long until so many batches of peers have arrived with this tag (`arrival` of their terms), since it was last
 * forgotten; 0: it only looks. All that they wrote can be seen then. `seen` takes how many have, also if the answer is
 * `POLYRAIL_ERROR_TIMED_OUT`; it may be null.
 */
int32_t polyrail_arrivals_wait(polyrail_engine engine,
                               uint64_t tag,
                               uint64_t count,
                               uint64_t timeout_ns,
                               uint64_t *seen,
                               polyrail_error *error);

/**
 * Forgets a tag, so that it is counted from 0 on. `seen` takes how many batches had arrived with it; it may be null.
 */
int32_t polyrail_arrivals_forget(polyrail_engine engine,
                                 uint64_t tag,
                                 uint64_t *seen,
                                 polyrail_error *error);

/**
 * A descriptor that polls readable exactly while a notification waits to be taken. Only to be looked at, and only until
 * the engine is freed.
 */
int32_t polyrail_notification_descriptor(polyrail_engine engine,
                                         int *descriptor,
                                         polyrail_error *error);

/**
 * How a batch stands. O(1), whatever its size.
 */
int32_t polyrail_batch_status(polyrail_batch batch, polyrail_status *status, polyrail_error *error);

/**
 * Waits until all requests have ended, however they did. Meanwhile this thread does the engine's work, if nobody else
 * does. `status` may be null.
 */
int32_t polyrail_batch_wait(polyrail_batch batch,
                            uint64_t timeout_ns,
                            polyrail_status *status,
                            polyrail_error *error);

/**
 * Waits until all requests have ended, all memory on this side is released and everything is settled on the peer's. For
 * a batch without an indeterminate request that is when it ends. `status` may be null.
 */
int32_t polyrail_batch_wait_released(polyrail_batch batch,
                                     uint64_t timeout_ns,
                                     polyrail_status *status,
                                     polyrail_error *error);

/**
 * Calls `done` once: at once, on this thread, if the batch has ended; else when it does, on a thread of the library.
 */
int32_t polyrail_batch_on_done(polyrail_batch batch,
                               polyrail_done done,
                               void *context,
                               polyrail_error *error);

/**
 * How the `index`-th request stands. An indeterminate one is brought up to date when proof comes later.
 */
int32_t polyrail_batch_report(polyrail_batch batch,
                              size_t index,
                              polyrail_report *report,
                              polyrail_error *error);

/**
 * Stops sending what has not been sent. Requests that have not ended end soon, as cancelled, or as completed if all
 * their bytes were on the way.
 * A small request that goes as one with its neighbours, of other batches perhaps, is sent with them all the same, and ends
 * when they do.
 */
int32_t polyrail_batch_cancel(polyrail_batch batch,
                              polyrail_error *error);

/**
 * What becomes of the notification that a batch carries. `POLYRAIL_ERROR_NOT_FOUND`: it carries none.
 */
int32_t polyrail_batch_delivery(polyrail_batch batch, polyrail_delivery *delivery, polyrail_error *error);

/**
 * Frees a batch's handle. Its requests go on.
 */
int32_t polyrail_batch_free(polyrail_batch batch, polyrail_error *error);

/**
 * Submits requests as one batch, all or nothing. O(1) in their lengths, but for what this thread can copy by itself: up to
 * `at_once_bytes` of the configuration are moved before it returns. `terms` may be null. `error->index` says which request
 * is at fault.
 */
int32_t polyrail_submit(polyrail_engine engine,
                        const polyrail_request *first,
                        size_t count,
                        const polyrail_terms *terms_of_batch,
                        polyrail_batch *batch,
                        polyrail_error *error);

/**
 * Checks requests like `polyrail_submit` and keeps them: what that does for each request is done once. The array may go
 * then.
 */
int32_t polyrail_prepare(polyrail_engine engine,
                         const polyrail_request *first,
                         size_t count,
                         polyrail_prepared *prepared,
                         polyrail_error *error);

/**
 * Submits the requests as one batch, all or nothing. `terms` may be null. Allocates nothing, as long as the batches of
 * earlier posts have been freed and the terms carry no notification. Posts may overlap; wait for one before the next if
 * they move the same bytes.
 */
int32_t polyrail_prepared_post(polyrail_prepared prepared,
                               const polyrail_terms *terms_of_batch,
                               polyrail_batch *batch,
                               polyrail_error *error);

/**
 * The same, but makes no batch of what this thread has carried out by itself before this returns: up to `at_once_bytes` between
 * memories of processes on this host, if nothing else is under way. `batch` is null then (its bits are 0) and needs not be freed.
 * `status` says how it stands, as `polyrail_batch_status` would.
 */
int32_t polyrail_prepared_post_or_finish(polyrail_prepared prepared,
                                         const polyrail_terms *terms_of_batch,
                                         polyrail_batch *batch,
                                         polyrail_status *status,
                                         polyrail_error *error);

/**
 * Frees a prepared transfer. What was posted goes on.
 */
int32_t polyrail_prepared_free(polyrail_prepared prepared, polyrail_error *error);

/**
 * Submits requests for blocks as one batch, all or nothing, like `polyrail_submit`. They cost less than the same blocks as
 * requests of their own, and blocks that lie one behind the other at both ends go as one. Each request is reported once, as
 * all of its blocks. `terms` may be null. `error->index` says which request is at fault, `error->message` which block and
 * page.
 */
int32_t polyrail_submit_paged(polyrail_engine engine,
                              const polyrail_paged_request *first,
                              size_t count,
                              const polyrail_terms *terms_of_batch,
                              polyrail_batch *batch,
                              polyrail_error *error);

/**
 * Checks requests for blocks like `polyrail_submit_paged` and keeps them, to be posted with `polyrail_prepared_post`. The
 * array and the tables may go then.
 */
int32_t polyrail_prepare_paged(polyrail_engine engine,
                               const polyrail_paged_request *first,
                               size_t count,
                               polyrail_prepared *prepared,
                               polyrail_error *error);

/**
 * Makes an empty queue. Takes one descriptor.
 */
int32_t polyrail_queue_create(polyrail_queue *queue, polyrail_error *error);

/**
 * From when the batch has ended, which may be now, a completion with this tag waits in the queue. The batch's handle
 * can be freed.
 */
int32_t polyrail_queue_add(polyrail_queue queue,
                           polyrail_batch batch,
                           uint64_t tag,
                           polyrail_error *error);

/**
 * Takes a completion, and waits so long for one; 0: it only looks. `POLYRAIL_ERROR_EMPTY`: none came.
 */
int32_t polyrail_queue_take(polyrail_queue queue,
                            uint64_t timeout_ns,
                            polyrail_completion *completion,
                            polyrail_error *error);

/**
 * A descriptor that polls readable exactly while a completion waits. Only to be looked at, and only until the queue is
 * freed.
 */
int32_t polyrail_queue_descriptor(polyrail_queue queue,
                                  int *descriptor,
                                  polyrail_error *error);

/**
 * Frees a queue. Batches that were added go on.
 */
int32_t polyrail_queue_free(polyrail_queue queue, polyrail_error *error);

/**
 * All rails, in the order in which they were made. Fills up to `capacity` rows, the first of which says how long each
 * is; `count` takes how many there are.
 */
int32_t polyrail_engine_rails(polyrail_engine engine,
                              polyrail_rail *rows,
                              size_t capacity,
                              size_t *count,
                              polyrail_error *error);

/**
 * Traffic of each local device, in the order in which they were first used. Fills rows like `polyrail_engine_rails`.
 */
int32_t polyrail_engine_devices(polyrail_engine engine,
                                polyrail_device *rows,
                                size_t capacity,
                                size_t *count,
                                polyrail_error *error);

/**
 * Switches of transports, for each pair that occurred. Fills rows like `polyrail_engine_rails`.
 */
int32_t polyrail_engine_failovers(polyrail_engine engine,
                                  polyrail_failover *rows,
                                  size_t capacity,
                                  size_t *count,
                                  polyrail_error *error);

/**
 * Each worker's room and work, in their order. Fills rows like `polyrail_engine_rails`.
 */
int32_t polyrail_engine_workers(polyrail_engine engine,
                                polyrail_worker *rows,
                                size_t capacity,
                                size_t *count,
                                polyrail_error *error);

/**
 * Each worker's lanes that are there or have carried something. Those of a worker that does not answer within 50 ms are
 * missing. Fills rows like `polyrail_engine_rails`.
 */
int32_t polyrail_engine_lanes(polyrail_engine engine,
                              polyrail_lane *rows,
                              size_t capacity,
                              size_t *count,
                              polyrail_error *error);

/**
 * What waits for proof, in one row. Fills it like `polyrail_engine_rails`.
 */
int32_t polyrail_engine_proof(polyrail_engine engine,
                              polyrail_proof *rows,
                              size_t capacity,
                              size_t *count,
                              polyrail_error *error);

/**
 * Its transports in order of preference, those too that it runs without. Fills rows like `polyrail_engine_rails`.
 */
int32_t polyrail_engine_transports(polyrail_engine engine,
                                   polyrail_transport_info *rows,
                                   size_t capacity,
                                   size_t *count,
                                   polyrail_error *error);

/**
 * The peers whose segments this engine has opened, and up to 256 that were lost and have not come back. Fills rows like
 * `polyrail_engine_rails`.
 */
int32_t polyrail_engine_peers(polyrail_engine engine,
                              polyrail_peer *rows,
                              size_t capacity,
                              size_t *count,
                              polyrail_error *error);

/**
 * Takes what has happened to a peer, and waits so long for it; 0: it only looks. `POLYRAIL_ERROR_EMPTY`: nothing has. 1,024
 * events wait; what comes while they do is counted, and told as `POLYRAIL_EVENT_MISSED`.
 */
int32_t polyrail_peer_event_take(polyrail_engine engine,
                                 uint64_t timeout_ns,
                                 polyrail_peer_event *event,
                                 polyrail_error *error);

/**
 * A descriptor that polls readable exactly while an event of a peer waits to be taken. Only to be looked at, and only until
 * the engine is freed.
 */
int32_t polyrail_peer_event_descriptor(polyrail_engine engine,
                                       int *descriptor,
                                       polyrail_error *error);

/**
 * Hands lines up to a level to `write`, in the place of whatever took them before; null: to nobody. When it has
 * returned, the function before is not called any more. `POLYRAIL_ERROR_IN_USE`: a program in Rust around this library
 * has a logger of its own.
 */
int32_t polyrail_log_to(polyrail_log write,
                        void *context,
                        uint32_t level,
                        polyrail_error *error);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* POLYRAIL_H */
