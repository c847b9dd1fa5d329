/* The runtime of the example, with a flaw between it and core: the argument says which. Prints the names of the clauses that it
 * is told to have broken. */
#include <polyrail_core.h>

#include <stdio.h>
#include <string.h>

static const char *flaw = "";
static uint64_t count;
/* The last work that was posted on each lane. */
static polyrail_core_work last[2];
static uint32_t last_epoch[2];
/* The post that is out is not taken. */
static int is_refused;
/* What an engine still does although it was fenced, and when. */
static uint64_t rogue_at = UINT64_MAX;
static polyrail_core_work rogue;

static void scribble(uint64_t now);

static int is(const char *name) { return strcmp(flaw, name) == 0; }

static int every(unsigned times) { return ++count % times == 0; }

static int32_t flawed_completions(polyrail_core_worker *core, uint64_t now, const polyrail_core_completion *first, size_t n)
{
    polyrail_core_completion done = *first;
    int third = every(3);
    if (is("wrong-cookies") && third)
        done.cookie ^= UINT64_C(1) << 40;
    if (is("old-epochs") && third)
        done.epoch--;
    if (is("future") && third)
        done.at = now + 1000;
    if (is("twice") && third)
        polyrail_core_handle_completions(core, now, &done, n);
    if (is("never-posted") && third) {
        polyrail_core_completion other = done;
        other.cookie = 77;
        polyrail_core_handle_completions(core, now, &other, n);
    }
    return polyrail_core_handle_completions(core, now, &done, n);
}

static int32_t flawed_lane(polyrail_core_worker *core, uint64_t now, const polyrail_core_lane_fact *said)
{
    if (is("opened-twice") && said->fact == POLYRAIL_CORE_LANE_OPENED)
        polyrail_core_handle_lane(core, now, said);
    int32_t code = polyrail_core_handle_lane(core, now, said);
    unsigned rail = said->lane & 0xffff;
    if (is("broken-first") && said->fact == POLYRAIL_CORE_LANE_BROKEN && last_epoch[rail] == said->epoch) {
        polyrail_core_completion done = { .lane = said->lane, .epoch = said->epoch, .cookie = last[rail].cookie, .at = now - 1 };
        polyrail_core_handle_completions(core, now, &done, 1);
    }
    return code;
}

static int32_t flawed_timeout(polyrail_core_worker *core, uint64_t now)
{
    int fiftieth = every(50);
    scribble(now);
    if (is("seldom") && count % 500)
        return 0;
    return polyrail_core_handle_timeout(core, is("time-back") && fiftieth && now > 50000 ? now - 50000 : now);
}

static int32_t flawed_post(polyrail_core_worker *core, uint64_t now, polyrail_core_post *to)
{
    int32_t code = polyrail_core_poll_post(core, now, to);
    if (code == POLYRAIL_CORE_OK) {
        last[(to->lane & 0xffff) % 2] = to->works[to->count - 1];
        last_epoch[(to->lane & 0xffff) % 2] = to->epoch;
        is_refused = is("full") && (to->lane & 0xffff) == 1;
        if (is_refused)
            to->count = 0;
    }
    return code;
}

static int32_t flawed_posted(polyrail_core_worker *core, uint64_t now, uint32_t number, size_t accepted, uint32_t stop, uint32_t cause)
{
    static unsigned posts;
    if (is("dropped") && ++posts == 5)
        return 0;
    if (is("more") && every(5))
        polyrail_core_handle_posted(core, now, number, accepted + 40, stop, cause);
    if (is_refused)
        stop = POLYRAIL_CORE_STOP_FULL;
    return polyrail_core_handle_posted(core, now, number, accepted, stop, cause);
}

static int32_t flawed_action(polyrail_core_worker *core, polyrail_core_action *to)
{
    for (;;) {
        int32_t code = polyrail_core_poll_lane(core, to);
        if (code != POLYRAIL_CORE_OK)
            return code;
        if (is("rogue") && to->action == POLYRAIL_CORE_LANE_FENCE && rogue_at == UINT64_MAX) {
            rogue = last[(to->lane & 0xffff) % 2];
            rogue_at = 0;
        }
        int is_left = (is("no-fence") && to->action == POLYRAIL_CORE_LANE_FENCE)
            || (is("no-open") && to->action == POLYRAIL_CORE_LANE_OPEN);
        if (!is_left)
            return code;
    }
}

static int32_t flawed_message(polyrail_core_worker *core, uint64_t now, polyrail_core_fence *to)
{
    int32_t code = polyrail_core_poll_message(core, now, to);
    while (is("silent-peer") && code == POLYRAIL_CORE_OK)
        code = polyrail_core_poll_message(core, now, to);
    return code;
}

static int32_t flawed_event(polyrail_core_worker *core, polyrail_core_event *to)
{
    return is("no-events") ? POLYRAIL_CORE_NONE : polyrail_core_poll_event(core, to);
}

#define polyrail_core_handle_completions flawed_completions
#define polyrail_core_handle_lane flawed_lane
#define polyrail_core_handle_timeout flawed_timeout
#define polyrail_core_handle_posted flawed_posted
#define polyrail_core_poll_post flawed_post
#define polyrail_core_poll_lane flawed_action
#define polyrail_core_poll_message flawed_message
#define polyrail_core_poll_event flawed_event
#define main main_of_the_example
#include "../examples/embedded.c"
#undef main

/* What an engine does that says of itself that it has stopped. */
static void scribble(uint64_t now)
{
    if (rogue_at == 0)
        rogue_at = now + 30000000;
    if (now < rogue_at || rogue.local.segment != 0)
        return;
    unsigned char *here = ours + rogue.local.offset, *there = theirs + rogue.remote.offset;
    memcpy(rogue.op == POLYRAIL_CORE_WRITE ? there : here, rogue.op == POLYRAIL_CORE_WRITE ? here : there, rogue.length);
    rogue.local.segment = 1;
}

int main(int argc, char **argv)
{
    polyrail_core_worker *core;
    polyrail_core_breach breach;
    (void)main_of_the_example;
    if (argc > 1)
        flaw = argv[1];
    if (set_up(&core) != 0)
        return 1;
    check(core, say);
    for (size_t i = 0; polyrail_core_look_breach(core, i, &breach) == POLYRAIL_CORE_OK; i++)
        printf("told %s\n", polyrail_core_breach_name(breach.rule));
    return 0;
}
