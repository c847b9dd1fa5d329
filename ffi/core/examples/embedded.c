/* Core without an operating system, in C: a device that is made up, and the loop around core. All memory is static. The
 * device has two links to a peer whose memory is next to ours; the second one is cut under way. Afterwards the runtime is
 * held to its contract with core.
 *
 * It is a template: put your own device in the place of what is between the two lines of `=====`, and say in `set_up` which
 * rails there are. docs/embedding.md walks through the same loop in Rust. Built with POLYRAIL_BARE it needs no C library
 * either. */
#include <polyrail_core.h>

enum {
    LINKS = 2,
    QUEUE = 4,
    SLICE = 1024,
    REQUESTS = 3,
    REQUEST = 16 * 1024,
    MEMORY = REQUESTS * REQUEST,
    ROOM = 8, /* Requests and batches that may be open at a time. */
    TURNS_MAX = 10000,
    RESET = 1,   /* The cause "connection reset". */
    REFUSED = 17 /* The cause "lane refused or not answered". */
};

#define CUT_AT 100000
#define PLAN ((UINT64_C(1) << 32) | 0)

/* ===== The device: what every one owes, docs/embedding.md says. ===== */

struct link {
    uint64_t nanos_per_slice;
    int is_cut, is_open;
    uint32_t lane, epoch;
    polyrail_core_work queue[QUEUE];
    unsigned first, count;
    uint64_t done_at;
    uint32_t delivered;
};

static struct link links[LINKS] = { { .nanos_per_slice = 10000 }, { .nanos_per_slice = 20000 } };
static unsigned char ours[MEMORY], theirs[MEMORY];

/* Facts and answers of the peer that wait to be handed in: fewer than these at a time. */
static polyrail_core_lane_fact facts[8];
static unsigned fact_count;
static polyrail_core_fence fenced[8];
static unsigned fenced_count;

static void tell(struct link *link, uint32_t fact, uint32_t cause)
{
    polyrail_core_lane_fact said = { 0 };
    said.lane = link->lane;
    said.epoch = link->epoch;
    said.fact = fact;
    said.cause = cause;
    said.scope = POLYRAIL_CORE_SCOPE_LOCAL;
    said.works_max = QUEUE;
    said.counts = 1; /* `delivered` below */
    said.work_bytes_max = SLICE;
    facts[fact_count++ % 8] = said;
}

/* A cable is pulled. What the link had queued is lost, and nobody knows how far it came. */
static void device_cut(unsigned number)
{
    links[number].is_cut = 1;
    tell(&links[number], POLYRAIL_CORE_LANE_BROKEN, RESET);
}

/* It is put in again. */
static void device_mend(unsigned number) { links[number].is_cut = 0; }

/* Takes as many works as there is room for. */
static size_t device_post(uint64_t now, const polyrail_core_post *post, uint32_t *stop)
{
    struct link *link = &links[(post->lane & 0xffff) % LINKS];
    size_t accepted = 0;
    if (!link->is_open || link->is_cut || link->epoch != post->epoch) {
        *stop = POLYRAIL_CORE_STOP_REJECTED;
        return 0;
    }
    if (link->count == 0)
        link->done_at = now + link->nanos_per_slice;
    for (; accepted < post->count && link->count < QUEUE; accepted++)
        link->queue[(link->first + link->count++) % QUEUE] = post->works[accepted];
    *stop = accepted == post->count ? POLYRAIL_CORE_STOP_ALL : POLYRAIL_CORE_STOP_FULL;
    return accepted;
}

/* A work that has ended by now: its bytes are there. */
static int device_completion(uint64_t now, polyrail_core_completion *done)
{
    for (struct link *link = links; link < links + LINKS; link++) {
        if (link->is_cut || link->count == 0 || link->done_at > now)
            continue;
        polyrail_core_work work = link->queue[link->first];
        /* The segment 0 is the memory that programs use; the other one is scratch, whose content means nothing. */
        unsigned char *here = ours + work.local.offset, *there = theirs + work.remote.offset;
        for (uint32_t i = 0; work.local.segment == 0 && i < work.length; i++)
            if (work.op == POLYRAIL_CORE_WRITE)
                there[i] = here[i];
            else
                here[i] = there[i];
        done->lane = link->lane;
        done->epoch = link->epoch;
        done->cookie = work.cookie;
        done->at = link->done_at;
        done->cause = 0;
        link->first = (link->first + 1) % QUEUE;
        link->count--;
        link->delivered++;
        link->done_at += link->nanos_per_slice;
        return 1;
    }
    return 0;
}

static void device_act(const polyrail_core_action *action)
{
    struct link *link = &links[(action->lane & 0xffff) % LINKS];
    switch (action->action) {
    case POLYRAIL_CORE_LANE_OPEN:
        link->lane = action->lane;
        link->epoch = action->epoch;
        link->is_open = !link->is_cut;
        link->count = link->first = link->delivered = 0;
        tell(link, link->is_cut ? POLYRAIL_CORE_LANE_OPEN_FAILED : POLYRAIL_CORE_LANE_OPENED, REFUSED);
        break;
    case POLYRAIL_CORE_LANE_FENCE:
        /* The queue is gone, and nobody reads our memory for it any more. */
        link->is_open = 0;
        link->count = 0;
        tell(link, POLYRAIL_CORE_LANE_FENCED, 0);
        break;
    default:
        link->is_open = 0;
    }
}

/* When a work will have ended: the next interrupt. */
static uint64_t device_next(void)
{
    uint64_t next = UINT64_MAX;
    for (unsigned i = 0; i < LINKS; i++)
        if (!links[i].is_cut && links[i].count > 0 && links[i].done_at < next)
            next = links[i].done_at;
    return next;
}

/* ===== The runtime. ===== */

/* What has happened so far. */
static struct {
    uint64_t now;
    unsigned completed;    /* Requests. */
    uint32_t batch_status; /* Of the last batch that has ended. */
    int is_paused;         /* The second rail was, for the cause RESET. */
    int peer_ended, is_told;
} seen;

static void take(polyrail_core_worker *core, const polyrail_core_event *event)
{
    polyrail_core_report report;
    polyrail_core_batch_report all;
    switch (event->event) {
    case POLYRAIL_CORE_EVENT_REQUEST_DONE:
        if (polyrail_core_take(core, event->number, &report) == POLYRAIL_CORE_OK && report.status == 1)
            seen.completed++;
        break;
    case POLYRAIL_CORE_EVENT_BATCH_DONE:
        if (polyrail_core_take_batch(core, event->number, &all) == POLYRAIL_CORE_OK)
            seen.batch_status = all.status;
        break;
    case POLYRAIL_CORE_EVENT_RAIL_CHANGED:
        seen.is_paused |= event->number == 1 && event->state == 1 && event->cause == RESET;
        break;
    default:
        break;
    }
}

/* One turn of the loop. */
static uint64_t turn(void *context, uint64_t until)
{
    polyrail_core_worker *core = context;
    uint64_t now = seen.now;
    /* Hand in what has happened: completions first, then lanes, then what the peer said, then the time. */
    polyrail_core_completion done;
    while (device_completion(now, &done))
        polyrail_core_handle_completions(core, now, &done, 1);
    for (unsigned i = 0; i < fact_count; i++)
        polyrail_core_handle_lane(core, now, &facts[i]);
    fact_count = 0;
    for (unsigned i = 0; i < fenced_count && !seen.peer_ended; i++)
        polyrail_core_handle_fenced(core, now, fenced[i].peer, fenced[i].lane, fenced[i].epoch,
                                    links[(fenced[i].lane & 0xffff) % LINKS].delivered);
    fenced_count = 0;
    if (seen.peer_ended && !seen.is_told) {
        seen.is_told = 1;
        polyrail_core_handle_peer_gone(core, now, 0);
    }
    polyrail_core_handle_timeout(core, now);

    /* Drain what is to be done. Every post is answered before the next one is asked for. */
    polyrail_core_post post;
    while (polyrail_core_poll_post(core, now, &post) == POLYRAIL_CORE_OK) {
        uint32_t stop;
        size_t accepted = device_post(now, &post, &stop);
        polyrail_core_handle_posted(core, now, post.number, accepted, stop, RESET);
    }
    polyrail_core_action action;
    while (polyrail_core_poll_lane(core, &action) == POLYRAIL_CORE_OK)
        device_act(&action);
    polyrail_core_fence fence;
    while (polyrail_core_poll_message(core, now, &fence) == POLYRAIL_CORE_OK)
        fenced[fenced_count++ % 8] = fence;
    polyrail_core_event event;
    while (polyrail_core_poll_event(core, &event) == POLYRAIL_CORE_OK)
        take(core, &event);

    /* Sleep until the next interrupt or the next of core's timers, unless there is something to hand in. */
    if (fact_count == 0 && fenced_count == 0) {
        uint64_t next = device_next(), at;
        if (polyrail_core_poll_timeout(core, &at) == POLYRAIL_CORE_OK && at < next)
            next = at;
        if (until < next)
            next = until;
        if (now < next)
            seen.now = next;
    }
    return seen.now;
}

/* All memory that core uses; and what is used to look at its calls. */
static _Alignas(POLYRAIL_CORE_ALIGNMENT) uint8_t memory[128 * 1024];
static _Alignas(POLYRAIL_CORE_ALIGNMENT) uint8_t checks[64 * 1024];

/* Makes a core, and says which rails there are. Good is 0. */
static int set_up(polyrail_core_worker **core)
{
    polyrail_core_limits limits = { .workers = 1, .rails = LINKS, .devices = LINKS, .peers = 1, .plans = 1,
                                    .requests = ROOM, .attempts = 32, .batches = ROOM, .slice_bytes = SLICE };
    polyrail_core_config config = { .worker = 0, .policy = POLYRAIL_CORE_POLICY_SPRAY, .seed = 1 };
    polyrail_core_fabric *fabric;
    size_t shared = polyrail_core_fabric_size(&limits);
    shared = (shared + POLYRAIL_CORE_ALIGNMENT - 1) / POLYRAIL_CORE_ALIGNMENT * POLYRAIL_CORE_ALIGNMENT;
    if (polyrail_core_abi() != POLYRAIL_CORE_ABI || shared > sizeof memory)
        return 1;
    if (polyrail_core_fabric_create(memory, shared, &limits, &fabric) != POLYRAIL_CORE_OK)
        return 2;
    /* Memory that is too small is an error, and nothing is written. */
    if (polyrail_core_create(memory + shared, polyrail_core_size(&limits) - 1, &config, fabric, core)
        != POLYRAIL_CORE_ERROR_MEMORY)
        return 3;
    if (polyrail_core_create(memory + shared, sizeof memory - shared, &config, fabric, core) != POLYRAIL_CORE_OK)
        return 4;

    polyrail_core_plan_rail rails[LINKS];
    for (uint16_t i = 0; i < LINKS; i++) {
        polyrail_core_estimate estimate = { .bytes_per_sec = SLICE * UINT64_C(1000000000) / links[i].nanos_per_slice,
                                            .delay_ns = 1000 };
        if (polyrail_core_fabric_install_device(fabric, i, &estimate) != POLYRAIL_CORE_OK
            || polyrail_core_fabric_install_rail(fabric, i, 0, i, &estimate) != POLYRAIL_CORE_OK)
            return 5;
        rails[i] = (polyrail_core_plan_rail){ .rail = i };
    }
    polyrail_core_plan plan = { .scratch_local = { .segment = 1 }, .scratch_remote = { .segment = 1 },
                                .scratch_bytes = SLICE, .rails = rails, .rail_count = LINKS };
    return polyrail_core_install_plan(*core, 0, PLAN, &plan) == POLYRAIL_CORE_OK ? 0 : 6;
}

/* Moves all of our memory to the peer's while a link fails. Good is 0. */
static int run(polyrail_core_worker *core, void (*say)(const char *))
{
    uint64_t batch, number;
    for (unsigned i = 0; i < MEMORY; i++)
        ours[i] = (unsigned char)(i % 251);
    if (polyrail_core_open_batch(core, 0, &batch) != POLYRAIL_CORE_OK)
        return 7;
    for (uint64_t i = 0; i < REQUESTS; i++) {
        polyrail_core_request request = { .tag = i, .plan = PLAN, .batch = batch, .local_offset = i * REQUEST,
                                          .remote_offset = i * REQUEST, .length = REQUEST,
                                          .deadline = POLYRAIL_CORE_NO_DEADLINE, .op = POLYRAIL_CORE_WRITE };
        if (polyrail_core_submit(core, seen.now, &request, &number) != POLYRAIL_CORE_OK)
            return 8;
    }
    polyrail_core_seal_batch(core, batch);
    int is_cut = 0;
    for (unsigned i = 0; i < TURNS_MAX && seen.batch_status == 0; i++) {
        unsigned before = seen.completed;
        int was_paused = seen.is_paused;
        turn(core, UINT64_MAX);
        if (seen.is_paused > was_paused)
            say("a rail is paused: connection reset\n");
        for (; before < seen.completed; before++)
            say("a request is done\n");
        if (!is_cut && seen.now >= CUT_AT) {
            is_cut = 1;
            device_cut(1);
        }
    }
    if (seen.completed != REQUESTS || seen.batch_status != 1 || !seen.is_paused)
        return 9;
    for (unsigned i = 0; i < MEMORY; i++)
        if (theirs[i] != i % 251)
            return 10;
    return 0;
}

/* What the script breaks. */
static int32_t cut(void *context, uint16_t rail)
{
    (void)context;
    device_cut(rail);
    return 1;
}

static void mend(void *context, uint16_t rail)
{
    (void)context;
    device_mend(rail);
}

static int32_t end_peer(void *context)
{
    (void)context;
    return seen.peer_ended = 1;
}

/* Holds the runtime to its contract with core. Good is 0. */
static int check(polyrail_core_worker *core, void (*say)(const char *))
{
    static const uint16_t rails[LINKS] = { 0, 1 };
    polyrail_core_runtime runtime = { .context = core, .turn = turn, .cut = cut, .mend = mend, .end_peer = end_peer,
                                      .ours = ours, .theirs = theirs, .bytes = MEMORY, .plan = PLAN,
                                      .rails = rails, .rail_count = LINKS };
    polyrail_core_ran ran;
    polyrail_core_breach breach;
    char text[256];
    device_mend(1);
    if (polyrail_core_check(core, checks, sizeof checks) != POLYRAIL_CORE_OK)
        return 11;
    int came_to_its_end = polyrail_core_run_script(core, seen.now, &runtime, &ran) == POLYRAIL_CORE_OK;
    int broken = polyrail_core_check_end(core);
    for (size_t i = 0; polyrail_core_look_breach(core, i, &breach) == POLYRAIL_CORE_OK; i++) {
        polyrail_core_breach_text(&breach, text, sizeof text);
        say(text);
        say("\n");
    }
    if (!came_to_its_end || broken != 0 || ran.cuts == 0 || !ran.peer_ended)
        return 12;
    say("the contract is kept\n");
    return 0;
}

static int start(void (*say)(const char *))
{
    polyrail_core_worker *core;
    int failed = set_up(&core);
    if (!failed)
        failed = run(core, say);
    if (!failed)
        failed = check(core, say);
    say(failed ? "FAILED\n" : "ok\n");
    return failed;
}

#ifdef POLYRAIL_BARE
/* A program without a C library: the kernel is only asked to write and to end it. */
static long ask(long number, long a, long b, long c)
{
    long answer;
    __asm__ volatile("syscall" : "=a"(answer) : "a"(number), "D"(a), "S"(b), "d"(c) : "rcx", "r11", "memory");
    return answer;
}

static void say(const char *text)
{
    long length = 0;
    while (text[length])
        length++;
    ask(1, 1, (long)text, length);
}

void polyrail_core_panic(void)
{
    say("core panicked\n");
    ask(60, 99, 0, 0);
    for (;;) {
    }
}

/* The stack is aligned as a function expects it only once it has been called. */
__asm__(".globl _start\n_start: xor %ebp, %ebp\n and $-16, %rsp\n call begin\n");

void begin(void) { ask(60, start(say), 0, 0); }
#else
#include <stdio.h>

static void say(const char *text) { fputs(text, stdout); }

int main(void) { return start(say); }
#endif
