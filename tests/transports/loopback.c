/* A transport in C between engines of one process: bytes are copied while the initiator's endpoint is polled. It is small,
 * not fast, and keeps every promise; docs/transports.md walks through it.
 *
 *     cc -shared -fPIC -I shells/load/include tests/transports/loopback.c -o libloopback.so -lpthread
 *     polyrail check-transport ./libloopback.so
 *
 * Everything is under one lock. So a copy is either over when a fence is answered, or has not begun and finds the fence.
 *
 * Built with one of the BREAK_… names, it breaks one promise: `check-transport` has to say which. With UNKNOWN_POSTS it
 * does not know what becomes of some posts, which is allowed; with DIES its device fails for good under way; with LIES it
 * says what cannot be. */
#include <polyrail_transport.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum { ADDRESS = 8, WORKS_MAX = 64, WORK_BYTES_MAX = 1 << 20, WORKS_PER_POLL = 16 };

static pthread_mutex_t world = PTHREAD_MUTEX_INITIALIZER;

/* What a target remembers of a lane. */
struct record {
    struct record *next;
    uint32_t lane, epoch, fenced, delivered;
};

struct session {
    struct session *next;
    uint8_t id[POLYRAIL_TRANSPORT_KEY_BYTES];
    struct record *records;
};

struct transport {
    struct transport *next;
    const polyrail_transport_host *host;
    uint8_t address[ADDRESS];
    struct session *sessions;
};

/* All of this process. */
static struct transport *transports;

static struct transport *transport_at(const uint8_t *address)
{
    struct transport *at = transports;
    while (at != NULL && memcmp(at->address, address, ADDRESS) != 0)
        at = at->next;
    return at;
}

static struct session *session_of(struct transport *transport, const uint8_t *id)
{
    struct session *session = transport->sessions;
    while (session != NULL && memcmp(session->id, id, sizeof session->id) != 0)
        session = session->next;
    return session;
}

/* Null: there is no memory for it. */
static struct record *record_of(struct session *session, uint32_t lane)
{
    struct record *record = session->records;
    while (record != NULL && record->lane != lane)
        record = record->next;
    if (record == NULL && (record = calloc(1, sizeof *record)) != NULL) {
        record->lane = lane;
        record->next = session->records;
        session->records = record;
    }
    return record;
}

/* --- The target's half. --- */

static int32_t create(const polyrail_transport_host *host, void **transport, char *why, size_t why_bytes)
{
    static uint32_t last;
    struct transport *made = calloc(1, sizeof *made);
    if (made == NULL) {
        snprintf(why, why_bytes, "no memory");
        return -1;
    }
    uint32_t process = (uint32_t)getpid();
    made->host = host;
    pthread_mutex_lock(&world);
    uint32_t number = ++last;
    memcpy(made->address, &process, sizeof process);
    memcpy(made->address + sizeof process, &number, sizeof number);
    made->next = transports;
    transports = made;
    pthread_mutex_unlock(&world);
    *transport = made;
    return 0;
}

static void forget_session(struct session *session)
{
    while (session->records != NULL) {
        struct record *record = session->records;
        session->records = record->next;
        free(record);
    }
    free(session);
}

static void destroy(void *at)
{
    struct transport *transport = at;
    pthread_mutex_lock(&world);
    struct transport **link = &transports;
    while (*link != transport)
        link = &(*link)->next;
    *link = transport->next;
    while (transport->sessions != NULL) {
        struct session *session = transport->sessions;
        transport->sessions = session->next;
        forget_session(session);
    }
    pthread_mutex_unlock(&world);
    free(transport);
}

static size_t address(void *at, uint8_t *to)
{
    memcpy(to, ((struct transport *)at)->address, ADDRESS);
    return ADDRESS;
}

/* Whether both ends prove to each other that they are of the session. Between processes there would be four messages: the
 * initiator asks, and is told the nonce; it says its ticket, and is told the proof. Epoch 0: there is no lane, only a
 * question. */
static int is_proved(struct transport *ours, struct transport *theirs, const uint8_t *session, uint32_t lane,
                     uint32_t epoch)
{
    const polyrail_transport_host *here = ours->host, *there = theirs->host;
    uint8_t nonce[POLYRAIL_TRANSPORT_NONCE_BYTES], ticket[POLYRAIL_TRANSPORT_TICKET_BYTES];
    uint8_t proof[POLYRAIL_TRANSPORT_PROOF_BYTES];
    if (there->draw_nonce(there->context, nonce) != 0)
        return 0;
    int32_t made = here->make_ticket(here->context, session, lane, epoch, nonce, ticket);
    if (made != 0 && made != 1)
        return 0;
    int32_t may = there->check_ticket(there->context, session, lane, epoch, made == 0 ? nonce : NULL,
                                      made == 0 ? ticket : NULL, proof);
#ifndef BREAK_TICKETS
    if (may != 0 && may != 1)
        return 0;
#endif
    return here->check_proof(here->context, session, lane, epoch, nonce, made == 0 ? ticket : NULL,
                             may == 0 ? proof : NULL) >= 0;
}

static int32_t reach(void *at, const uint8_t *to, size_t length, const uint8_t *session, uint32_t *capabilities, char *why,
                     size_t why_bytes)
{
    pthread_mutex_lock(&world);
    struct transport *peer = length == ADDRESS ? transport_at(to) : NULL;
    int known = peer != NULL && session_of(peer, session) != NULL && is_proved(at, peer, session, 0, 0);
    pthread_mutex_unlock(&world);
    if (!known) {
        snprintf(why, why_bytes, "the peer is in another process");
        return -1;
    }
    *capabilities = POLYRAIL_TRANSPORT_LOCAL_HOST | POLYRAIL_TRANSPORT_LOCAL_SHARED | POLYRAIL_TRANSPORT_REMOTE_HOST
        | POLYRAIL_TRANSPORT_REMOTE_SHARED;
    return 0;
}

static void begin_session(void *at, const uint8_t *id)
{
    struct transport *transport = at;
    pthread_mutex_lock(&world);
    struct session *session = session_of(transport, id);
    if (session == NULL && (session = calloc(1, sizeof *session)) != NULL) {
        memcpy(session->id, id, sizeof session->id);
        session->next = transport->sessions;
        transport->sessions = session;
    }
    pthread_mutex_unlock(&world);
}

static void fence_inbound(void *at, const uint8_t *id, uint32_t lane, uint32_t epoch, uint64_t question)
{
    struct transport *transport = at;
    uint32_t delivered = 0;
    pthread_mutex_lock(&world);
    struct session *session = session_of(transport, id);
    struct record *record = session == NULL ? NULL : record_of(session, lane);
    if (record != NULL) {
        if (record->fenced < epoch)
            record->fenced = epoch;
        if (record->epoch == epoch)
            delivered = record->delivered;
    }
    pthread_mutex_unlock(&world);
#ifndef BREAK_ANSWER
    transport->host->answer(transport->host->context, question, delivered);
#else
    (void)delivered, (void)question;
#endif
}

static void retire_session(void *at, const uint8_t *id, uint64_t question)
{
    struct transport *transport = at;
    pthread_mutex_lock(&world);
    struct session **link = &transport->sessions;
    while (*link != NULL && memcmp((*link)->id, id, sizeof (*link)->id) != 0)
        link = &(*link)->next;
    if (*link != NULL) {
        struct session *session = *link;
        *link = session->next;
        forget_session(session);
    }
    pthread_mutex_unlock(&world);
    transport->host->answer(transport->host->context, question, 0);
}

/* --- The initiator's half. --- */

struct local {
    struct local *next;
    uint32_t segment;
    const polyrail_transport_region *region;
};

struct remote {
    struct remote *next;
    uint32_t segment;
    uint8_t key[POLYRAIL_TRANSPORT_KEY_BYTES];
};

struct rail {
    struct rail *next;
    uint16_t number;
    uint8_t session[POLYRAIL_TRANSPORT_KEY_BYTES], address[ADDRESS];
};

struct lane {
    struct lane *next;
    uint32_t number, epoch;
    int is_open, has_failed;
    uint8_t session[POLYRAIL_TRANSPORT_KEY_BYTES], address[ADDRESS];
    polyrail_transport_work works[WORKS_MAX];
    unsigned first, count;
};

struct event {
    struct event *next;
    polyrail_transport_event said;
};

struct endpoint {
    struct transport *transport;
    int descriptor, is_armed;
    struct local *locals;
    struct remote *remotes;
    struct rail *rails;
    struct lane *lanes;
    struct event *events, **last_event;
};

/* The descriptor polls readable exactly while there is something to do. */
static void arm(struct endpoint *endpoint)
{
    int has_work = endpoint->events != NULL;
    for (struct lane *lane = endpoint->lanes; lane != NULL; lane = lane->next)
        has_work |= lane->is_open && !lane->has_failed && lane->count > 0;
    uint64_t value = 1;
#ifdef BREAK_DESCRIPTOR
    has_work = 0;
#endif
    if (has_work == endpoint->is_armed)
        return;
    endpoint->is_armed = has_work;
    ssize_t done = has_work ? write(endpoint->descriptor, &value, sizeof value)
                            : read(endpoint->descriptor, &value, sizeof value);
    (void)done;
}

static void say(struct endpoint *endpoint, polyrail_transport_event said)
{
    struct event *event = calloc(1, sizeof *event);
    if (event == NULL)
        abort();
    event->said = said;
    *endpoint->last_event = event;
    endpoint->last_event = &event->next;
}

static struct lane *lane_of(struct endpoint *endpoint, uint32_t number)
{
    struct lane *lane = endpoint->lanes;
    while (lane != NULL && lane->number != number)
        lane = lane->next;
    return lane;
}

static int32_t endpoint_create(void *transport, uint16_t worker, void **to, char *why, size_t why_bytes)
{
    (void)worker;
    struct endpoint *endpoint = calloc(1, sizeof *endpoint);
    int descriptor = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (endpoint == NULL || descriptor < 0) {
        snprintf(why, why_bytes, "no memory, or no descriptor");
        free(endpoint);
        return -1;
    }
    endpoint->transport = transport;
    endpoint->descriptor = descriptor;
    endpoint->last_event = &endpoint->events;
    *to = endpoint;
    return 0;
}

#define FREE_ALL(type, list)            \
    while ((list) != NULL) {            \
        struct type *item_ = (list);    \
        (list) = item_->next;           \
        free(item_);                    \
    }

static void endpoint_destroy(void *at)
{
    struct endpoint *endpoint = at;
    FREE_ALL(local, endpoint->locals)
    FREE_ALL(remote, endpoint->remotes)
    FREE_ALL(rail, endpoint->rails)
    FREE_ALL(lane, endpoint->lanes)
    FREE_ALL(event, endpoint->events)
    close(endpoint->descriptor);
    free(endpoint);
}

static int descriptor(void *at) { return ((struct endpoint *)at)->descriptor; }

static void detach_local(void *at, uint32_t segment)
{
    struct local **link = &((struct endpoint *)at)->locals;
    while (*link != NULL && (*link)->segment != segment)
        link = &(*link)->next;
    if (*link != NULL) {
        struct local *gone = *link;
        *link = gone->next;
        free(gone);
    }
}

static void attach_local(void *at, uint32_t segment, const polyrail_transport_region *region)
{
    struct endpoint *endpoint = at;
    struct local *local = calloc(1, sizeof *local);
    if (local == NULL)
        abort();
    detach_local(at, segment);
    local->segment = segment;
    local->region = region;
    local->next = endpoint->locals;
    endpoint->locals = local;
}

static void detach_remote(void *at, uint32_t segment)
{
    struct remote **link = &((struct endpoint *)at)->remotes;
    while (*link != NULL && (*link)->segment != segment)
        link = &(*link)->next;
    if (*link != NULL) {
        struct remote *gone = *link;
        *link = gone->next;
        free(gone);
    }
}

static void attach_remote(void *at, uint32_t segment, const uint8_t *key, uint64_t bytes)
{
    struct endpoint *endpoint = at;
    struct remote *remote = calloc(1, sizeof *remote);
    (void)bytes; /* The owner of the region looks, for every work. */
    if (remote == NULL)
        abort();
    detach_remote(at, segment);
    remote->segment = segment;
    memcpy(remote->key, key, sizeof remote->key);
    remote->next = endpoint->remotes;
    endpoint->remotes = remote;
}

static void forget_rail(void *at, uint16_t number)
{
    struct rail **link = &((struct endpoint *)at)->rails;
    while (*link != NULL && (*link)->number != number)
        link = &(*link)->next;
    if (*link != NULL) {
        struct rail *gone = *link;
        *link = gone->next;
        free(gone);
    }
}

static void attach_rail(void *at, uint16_t number, const polyrail_transport_rail *said)
{
    struct endpoint *endpoint = at;
    struct rail *rail = calloc(1, sizeof *rail);
    if (rail == NULL)
        abort();
    forget_rail(at, number);
    rail->number = number;
    memcpy(rail->session, said->session, sizeof rail->session);
    if (said->address_length == ADDRESS)
        memcpy(rail->address, said->address, ADDRESS);
    rail->next = endpoint->rails;
    endpoint->rails = rail;
}

#ifdef DIES
/* Works that it carries out before its device fails. */
static int life = 10;
#endif

static void open_lane(void *at, uint32_t number, uint32_t epoch, uint64_t now, uint64_t by)
{
    (void)now, (void)by; /* It is known at once. */
    struct endpoint *endpoint = at;
    struct rail *rail = endpoint->rails;
    while (rail != NULL && rail->number != (uint16_t)number)
        rail = rail->next;
    struct lane *lane = lane_of(endpoint, number);
    if (lane == NULL && (lane = calloc(1, sizeof *lane)) != NULL) {
        lane->number = number;
        lane->next = endpoint->lanes;
        endpoint->lanes = lane;
    }
    polyrail_transport_event said = { .kind = POLYRAIL_TRANSPORT_OPEN_FAILED, .lane = number, .epoch = epoch,
                                      .cause = POLYRAIL_TRANSPORT_CAUSE_REFUSED };
    if (rail != NULL && lane != NULL) {
        pthread_mutex_lock(&world);
        struct transport *target = transport_at(rail->address);
        struct session *session = target == NULL ? NULL : session_of(target, rail->session);
        if (session != NULL && !is_proved(endpoint->transport, target, rail->session, number, epoch))
            session = NULL;
        struct record *record = session == NULL ? NULL : record_of(session, number);
        int is_free = record != NULL && record->fenced < epoch && record->epoch < epoch;
#ifdef DIES
        is_free &= life > 0;
#endif
        if (is_free) {
            record->epoch = epoch;
            record->delivered = 0;
            lane->epoch = epoch;
            lane->is_open = 1;
            lane->has_failed = 0;
            lane->first = lane->count = 0;
            memcpy(lane->session, rail->session, sizeof lane->session);
            memcpy(lane->address, rail->address, sizeof lane->address);
            said.kind = POLYRAIL_TRANSPORT_OPENED;
            said.works_max = WORKS_MAX;
            said.work_bytes_max = WORK_BYTES_MAX;
        }
        pthread_mutex_unlock(&world);
    }
    say(endpoint, said);
    arm(endpoint);
}

static void post(void *at, uint32_t number, uint32_t epoch, const polyrail_transport_work *works, size_t count,
                 uint64_t now, polyrail_transport_posted *posted)
{
    (void)now;
    struct endpoint *endpoint = at;
    struct lane *lane = lane_of(endpoint, number);
    posted->accepted = 0;
    posted->stop = POLYRAIL_TRANSPORT_STOP_REJECTED;
    posted->cause = POLYRAIL_TRANSPORT_CAUSE_RESET;
    if (lane == NULL || !lane->is_open || lane->has_failed)
        return;
#ifndef BREAK_EPOCH
    if (lane->epoch != epoch)
        return;
#else
    (void)epoch;
#endif
    while (posted->accepted < count && lane->count < WORKS_MAX)
        lane->works[(lane->first + lane->count++) % WORKS_MAX] = works[posted->accepted++];
    posted->stop = posted->accepted == count ? POLYRAIL_TRANSPORT_STOP_ALL : POLYRAIL_TRANSPORT_STOP_FULL;
#ifdef LIES
    posted->accepted = count + 5;
#endif
#ifdef UNKNOWN_POSTS
    /* A device that has taken works, or not: the engine believes nothing of them until the lane is fenced. */
    static unsigned posts;
    if (++posts % 5 == 3) {
        posted->accepted = 0;
        posted->stop = POLYRAIL_TRANSPORT_STOP_UNKNOWN;
    }
#endif
    arm(endpoint);
}

/* Copies the bytes of a work. The cause if that could not be. */
static uint32_t copy(struct endpoint *endpoint, struct transport *target, const polyrail_transport_work *work)
{
    struct local *local = endpoint->locals;
    while (local != NULL && local->segment != work->local)
        local = local->next;
    if (local == NULL)
        return POLYRAIL_TRANSPORT_CAUSE_LOCAL_PROTECTION;
    struct remote *remote = endpoint->remotes;
    while (remote != NULL && remote->segment != work->remote)
        remote = remote->next;
    const polyrail_transport_host *here = endpoint->transport->host, *there = target->host;
    const polyrail_transport_region *region = remote == NULL ? NULL : there->find_region(there->context, remote->key);
    if (region == NULL)
        return POLYRAIL_TRANSPORT_CAUSE_REMOTE_ACCESS;
    uint32_t cause = POLYRAIL_TRANSPORT_CAUSE_NONE;
    polyrail_transport_region_info info;
    there->look_region(region, &info);
    int is_write = work->op == POLYRAIL_TRANSPORT_WRITE;
#ifndef BREAK_ACCESS
    if (info.access < (is_write ? POLYRAIL_TRANSPORT_ACCESS_READ_WRITE : POLYRAIL_TRANSPORT_ACCESS_READ))
        cause = POLYRAIL_TRANSPORT_CAUSE_REMOTE_ACCESS;
#endif
    polyrail_transport_entered ours, theirs;
    if (cause == POLYRAIL_TRANSPORT_CAUSE_NONE) {
        if (there->enter(region, work->remote_offset, work->length, &theirs) != 0)
            cause = POLYRAIL_TRANSPORT_CAUSE_REMOTE_ACCESS;
        else {
            if (here->enter(local->region, work->local_offset, work->length, &ours) != 0)
                cause = POLYRAIL_TRANSPORT_CAUSE_LOCAL_PROTECTION;
            else {
                size_t length = work->length;
#ifdef BREAK_SHORT
                length -= 1;
#endif
                if (is_write)
                    memcpy(theirs.address, ours.address, length);
                else
                    memcpy(ours.address, theirs.address, length);
                here->leave(&ours);
            }
            there->leave(&theirs);
        }
    }
    there->release_region(region);
    return cause;
}

/* Carries out the first works of a lane. */
static void serve(struct endpoint *endpoint, struct lane *lane)
{
    pthread_mutex_lock(&world);
    for (unsigned done = 0; done < WORKS_PER_POLL && lane->is_open && !lane->has_failed && lane->count > 0; done++) {
        polyrail_transport_work work = lane->works[lane->first];
        polyrail_transport_event said = { .kind = POLYRAIL_TRANSPORT_COMPLETION, .lane = lane->number,
                                          .epoch = lane->epoch, .cookie = work.cookie };
        struct transport *target = transport_at(lane->address);
        struct session *session = target == NULL ? NULL : session_of(target, lane->session);
        struct record *record = session == NULL ? NULL : record_of(session, lane->number);
        int is_over = record == NULL || record->epoch != lane->epoch;
#ifdef DIES
        is_over |= life-- <= 0;
#endif
#ifndef BREAK_FENCE
        is_over |= record != NULL && record->fenced >= lane->epoch;
#endif
        if (is_over) {
            said.kind = POLYRAIL_TRANSPORT_BROKEN;
            said.cause = POLYRAIL_TRANSPORT_CAUSE_RESET;
            lane->has_failed = 1;
        } else {
            lane->first = (lane->first + 1) % WORKS_MAX;
            lane->count--;
            said.cause = copy(endpoint, target, &work);
            if (said.cause == POLYRAIL_TRANSPORT_CAUSE_NONE)
                record->delivered++;
            else
                lane->has_failed = 1;
        }
#ifdef LIES
        said.cause = 999;
        say(endpoint, (polyrail_transport_event){ .kind = 99, .lane = 77, .epoch = 5 });
#endif
        say(endpoint, said);
#ifdef BREAK_TWICE
        say(endpoint, said);
#endif
    }
    pthread_mutex_unlock(&world);
}

static size_t poll_events(void *at, uint64_t now, polyrail_transport_event *events, size_t capacity)
{
    (void)now;
    struct endpoint *endpoint = at;
    if (endpoint->events == NULL)
        for (struct lane *lane = endpoint->lanes; lane != NULL; lane = lane->next)
            serve(endpoint, lane);
    size_t count = 0;
    while (count < capacity && endpoint->events != NULL) {
        struct event *event = endpoint->events;
        events[count++] = event->said;
        endpoint->events = event->next;
        free(event);
    }
    if (endpoint->events == NULL)
        endpoint->last_event = &endpoint->events;
    arm(endpoint);
    return count;
}

static void close_lane(void *at, uint32_t number, uint32_t epoch)
{
    struct endpoint *endpoint = at;
    struct lane *lane = lane_of(endpoint, number);
#ifdef BREAK_LOCAL_FENCE
    return;
#endif
    if (lane != NULL && lane->epoch <= epoch) {
        lane->is_open = 0;
        lane->count = 0;
    }
    arm(endpoint);
}

static void fence(void *at, uint32_t number, uint32_t epoch, uint32_t scope)
{
    struct endpoint *endpoint = at;
    /* Nothing is copied but by this thread, so nothing is under way. */
    close_lane(at, number, epoch);
    polyrail_transport_event said = { .kind = POLYRAIL_TRANSPORT_FENCED, .lane = number, .epoch = epoch, .scope = scope,
                                      .delivered = POLYRAIL_TRANSPORT_UNKNOWN };
    say(endpoint, said);
    arm(endpoint);
}

const polyrail_transport_table *polyrail_transport_entry(void);

const polyrail_transport_table *polyrail_transport_entry(void)
{
    static const polyrail_transport_table table = {
        .abi = POLYRAIL_TRANSPORT_ABI,
        .size = sizeof(polyrail_transport_table),
        .name = "loopback",
        .capabilities = POLYRAIL_TRANSPORT_LOCAL_HOST | POLYRAIL_TRANSPORT_LOCAL_SHARED | POLYRAIL_TRANSPORT_REMOTE_HOST
            | POLYRAIL_TRANSPORT_REMOTE_SHARED,
        .create = create,
        .destroy = destroy,
        .address = address,
        .reach = reach,
        .begin_session = begin_session,
        .fence_inbound = fence_inbound,
        .retire_session = retire_session,
        .endpoint_create = endpoint_create,
        .endpoint_destroy = endpoint_destroy,
        .descriptor = descriptor,
        .attach_local = attach_local,
        .detach_local = detach_local,
        .attach_remote = attach_remote,
        .detach_remote = detach_remote,
        .attach_rail = attach_rail,
        .forget_rail = forget_rail,
        .open = open_lane,
        .post = post,
        .poll = poll_events,
        .fence = fence,
        .close = close_lane,
        .tickets = 1,
    };
    return &table;
}
