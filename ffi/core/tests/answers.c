/* Answers to posts: for the wrong one, twice, too late. Each is refused with a code, and nothing stops. Good is 0. */
#include <polyrail_core.h>
#include <stdio.h>

enum { SLICE = 1024, MEMORY = 1 << 20 };

#define PLAN ((UINT64_C(1) << 32) | 0)
#define CHECK(what) do { if (!(what)) { printf("line %d: %s\n", __LINE__, #what); return 1; } } while (0)

static _Alignas(POLYRAIL_CORE_ALIGNMENT) uint8_t memory[MEMORY];

static int submit(polyrail_core_worker *core, uint64_t now, uint64_t tag)
{
    uint64_t batch, number;
    CHECK(polyrail_core_open_batch(core, tag, &batch) == POLYRAIL_CORE_OK);
    polyrail_core_request request = { .tag = tag, .plan = PLAN, .batch = batch, .length = SLICE,
                                      .deadline = POLYRAIL_CORE_NO_DEADLINE, .op = POLYRAIL_CORE_WRITE };
    CHECK(polyrail_core_submit(core, now, &request, &number) == POLYRAIL_CORE_OK);
    CHECK(polyrail_core_seal_batch(core, batch) == POLYRAIL_CORE_OK);
    return 0;
}

int main(void)
{
    polyrail_core_limits limits = { .workers = 1, .rails = 1, .devices = 2, .peers = 1, .plans = 1,
                                    .requests = 4, .attempts = 32, .batches = 4, .slice_bytes = SLICE };
    polyrail_core_config config = { .worker = 0, .policy = POLYRAIL_CORE_POLICY_SPRAY, .seed = 1 };
    polyrail_core_estimate estimate = { .bytes_per_sec = 1000000000, .delay_ns = 1000 };
    polyrail_core_fabric *fabric;
    polyrail_core_worker *core;
    size_t shared = polyrail_core_fabric_size(&limits);
    shared = (shared + POLYRAIL_CORE_ALIGNMENT - 1) / POLYRAIL_CORE_ALIGNMENT * POLYRAIL_CORE_ALIGNMENT;
    CHECK(polyrail_core_fabric_create(memory, shared, &limits, &fabric) == POLYRAIL_CORE_OK);
    CHECK(polyrail_core_create(memory + shared, MEMORY - shared, &config, fabric, &core) == POLYRAIL_CORE_OK);
    CHECK(polyrail_core_fabric_install_device(fabric, 0, &estimate) == POLYRAIL_CORE_OK);
    /* Without a row for the peer's device, or with one for both ends, there is no rail. */
    CHECK(polyrail_core_fabric_install_rail_between(fabric, 0, 0, 0, 2, &estimate) == POLYRAIL_CORE_ERROR_LIMIT);
    CHECK(polyrail_core_fabric_install_rail_between(fabric, 0, 0, 0, 0, &estimate) == POLYRAIL_CORE_ERROR_LIMIT);
    CHECK(polyrail_core_fabric_install_device(fabric, 1, &estimate) == POLYRAIL_CORE_OK);
    CHECK(polyrail_core_fabric_install_rail_between(fabric, 0, 0, 0, 1, &estimate) == POLYRAIL_CORE_OK);
    CHECK(polyrail_core_fabric_install_rail(fabric, 0, 0, 0, &estimate) == POLYRAIL_CORE_OK);
    polyrail_core_plan_rail rail = { .rail = 0 };
    polyrail_core_plan plan = { .scratch_local = { .segment = 1 }, .scratch_remote = { .segment = 1 },
                                .scratch_bytes = SLICE, .rails = &rail, .rail_count = 1 };
    CHECK(polyrail_core_install_plan(core, 0, PLAN, &plan) == POLYRAIL_CORE_OK);

    /* A lane opens, and there is something to post on it. */
    uint64_t now = 1000;
    polyrail_core_post post, other;
    polyrail_core_action action;
    CHECK(submit(core, now, 1) == 0);
    CHECK(polyrail_core_poll_post(core, now, &post) == POLYRAIL_CORE_NONE);
    CHECK(polyrail_core_poll_lane(core, &action) == POLYRAIL_CORE_OK && action.action == POLYRAIL_CORE_LANE_OPEN);
    polyrail_core_lane_fact opened = { .lane = action.lane, .epoch = action.epoch, .fact = POLYRAIL_CORE_LANE_OPENED,
                                       .works_max = 4, .work_bytes_max = SLICE };
    CHECK(polyrail_core_handle_lane(core, now, &opened) == POLYRAIL_CORE_OK);
    CHECK(polyrail_core_poll_post(core, now, &post) == POLYRAIL_CORE_OK && post.count == 1);

    /* An answer for another post changes nothing; the right one is taken once. */
    CHECK(polyrail_core_handle_posted(core, now, post.number + 1, 1, POLYRAIL_CORE_STOP_ALL, 0) == POLYRAIL_CORE_ERROR_STALE);
    CHECK(polyrail_core_handle_posted(core, now, post.number, 7, POLYRAIL_CORE_STOP_ALL, 0) == POLYRAIL_CORE_ERROR_ARGUMENT);
    CHECK(polyrail_core_poll_post(core, now, &other) == POLYRAIL_CORE_NONE);
    CHECK(polyrail_core_handle_posted(core, now, post.number, 1, POLYRAIL_CORE_STOP_ALL, 0) == POLYRAIL_CORE_OK);
    CHECK(polyrail_core_handle_posted(core, now, post.number, 1, POLYRAIL_CORE_STOP_ALL, 0) == POLYRAIL_CORE_ERROR_STALE);
    polyrail_core_completion done = { .lane = post.lane, .epoch = post.epoch, .cookie = post.works[0].cookie, .at = now };
    CHECK(polyrail_core_handle_completions(core, now, &done, 1) == POLYRAIL_CORE_OK);

    /* One that is never answered is given up, and its lane with it. */
    CHECK(submit(core, now, 2) == 0);
    CHECK(polyrail_core_poll_post(core, now, &post) == POLYRAIL_CORE_OK);
    uint64_t at;
    while (polyrail_core_poll_lane(core, &action) == POLYRAIL_CORE_OK) { }
    for (unsigned turn = 0; turn < 100000 && action.action != POLYRAIL_CORE_LANE_FENCE; turn++) {
        CHECK(polyrail_core_poll_timeout(core, &at) == POLYRAIL_CORE_OK && at < 3000000000);
        now = at > now ? at : now + 1000000;
        CHECK(polyrail_core_handle_alive(core, now, 0) == POLYRAIL_CORE_OK);
        polyrail_core_handle_timeout(core, now);
        polyrail_core_poll_lane(core, &action);
    }
    CHECK(action.action == POLYRAIL_CORE_LANE_FENCE && action.lane == post.lane);

    /* What completes a work that is out nowhere is counted. */
    done.cookie = 7;
    CHECK(polyrail_core_handle_completions(core, now, &done, 1) == POLYRAIL_CORE_OK);
    polyrail_core_ignored_counts ignored;
    CHECK(polyrail_core_ignored(core, &ignored) == POLYRAIL_CORE_OK);
    CHECK(ignored.works == 1 && ignored.posts == 0);
    now = 2100000000;
    polyrail_core_handle_timeout(core, now);
    CHECK(polyrail_core_handle_posted(core, now, post.number, 1, POLYRAIL_CORE_STOP_ALL, 0) == POLYRAIL_CORE_ERROR_STALE);
    CHECK(polyrail_core_ignored(core, &ignored) == POLYRAIL_CORE_OK && ignored.posts == 1);
    puts("ok");
    return 0;
}
