/* A list of requests that is built once and posted many times, as a KV cache is moved layer by layer, step after step. */
#include <polyrail.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BLOCKS 64u
#define BLOCK (16u << 10)
#define STEPS 50u

static void check(int32_t code, const polyrail_error *error, const char *what)
{
    if (code != POLYRAIL_OK) {
        fprintf(stderr, "%s: %s: %s\n", what, polyrail_code_name(code), error->message);
        exit(1);
    }
}

int main(void)
{
    polyrail_error error = POLYRAIL_NEW(polyrail_error);
    polyrail_options options = POLYRAIL_NEW(polyrail_options);
    options.config = "{ \"name\": \"target\", \"listen\": \"127.0.0.1:0\", \"workers\": 1 }";
    polyrail_engine target, engine;
    check(polyrail_engine_start(&options, &target, &error), &error, "start the target");
    options.config = "{ \"name\": \"initiator\", \"workers\": 1 }";
    check(polyrail_engine_start(&options, &engine, &error), &error, "start the initiator");
    polyrail_segment offered, local, remote;
    check(polyrail_segment_allocate(target, "mem", BLOCKS * BLOCK, POLYRAIL_ACCESS_REMOTE_READ_WRITE, &offered, &error),
          &error, "allocate");
    check(polyrail_segment_allocate(engine, "here", BLOCKS * BLOCK, POLYRAIL_ACCESS_LOCAL, &local, &error), &error,
          "allocate");
    char where[128], address[160];
    check(polyrail_engine_listening(target, where, sizeof where, NULL, &error), &error, "listening");
    snprintf(address, sizeof address, "%s/mem", where);
    check(polyrail_segment_open(engine, address, &remote, &error), &error, "open");
    polyrail_segment_info mine = POLYRAIL_NEW(polyrail_segment_info), theirs = POLYRAIL_NEW(polyrail_segment_info);
    check(polyrail_segment_look(local, &mine, &error), &error, "look");
    check(polyrail_segment_look(offered, &theirs, &error), &error, "look");

    /* Once: blocks go to where they belong, which is not where they are. */
    polyrail_request requests[BLOCKS];
    for (unsigned i = 0; i < BLOCKS; i++) {
        requests[i] = POLYRAIL_NEW(polyrail_request);
        requests[i].op = POLYRAIL_WRITE;
        requests[i].local = local;
        requests[i].local_offset = (uint64_t)i * BLOCK;
        requests[i].remote = remote;
        requests[i].remote_offset = (uint64_t)(BLOCKS - 1 - i) * BLOCK;
        requests[i].length = BLOCK;
    }
    polyrail_prepared prepared;
    check(polyrail_prepare(engine, requests, BLOCKS, &prepared, &error), &error, "prepare");

    /* Many times. */
    for (unsigned step = 0; step < STEPS; step++) {
        for (unsigned i = 0; i < BLOCKS; i++)
            memset((char *)mine.base + (size_t)i * BLOCK, (int)((step + i) & 0xff), BLOCK);
        polyrail_batch batch;
        check(polyrail_prepared_post(prepared, NULL, &batch, &error), &error, "post");
        polyrail_status status = POLYRAIL_NEW(polyrail_status);
        check(polyrail_batch_wait(batch, POLYRAIL_FOREVER, &status, &error), &error, "wait");
        if (status.status != POLYRAIL_STATUS_COMPLETED)
            return 1;
        check(polyrail_batch_free(batch, &error), &error, "free");
        for (unsigned i = 0; i < BLOCKS; i++)
            if (memcmp((char *)mine.base + (size_t)i * BLOCK, (char *)theirs.base + (size_t)(BLOCKS - 1 - i) * BLOCK,
                       BLOCK) != 0) {
                fprintf(stderr, "step %u, block %u: wrong bytes\n", step, i);
                return 1;
            }
    }
    check(polyrail_prepared_free(prepared, &error), &error, "free");

    /* The same as one request, by a block table, and back: a page is named by its number. */
    uint32_t table[BLOCKS];
    for (unsigned i = 0; i < BLOCKS; i++)
        table[i] = BLOCKS - 1 - i;
    polyrail_paged_request pages = POLYRAIL_NEW(polyrail_paged_request);
    pages.op = POLYRAIL_READ;
    pages.local = local;
    pages.local_stride = BLOCK;
    pages.local_pages = table;
    pages.remote = remote;
    pages.remote_stride = BLOCK;
    pages.length = BLOCK;
    pages.count = BLOCKS;
    check(polyrail_prepare_paged(engine, &pages, 1, &prepared, &error), &error, "prepare pages");
    for (unsigned step = 0; step < 3; step++) {
        memset(mine.base, 0, BLOCKS * BLOCK);
        polyrail_batch batch;
        polyrail_status status = POLYRAIL_NEW(polyrail_status);
        if (step == 0)
            check(polyrail_submit_paged(engine, &pages, 1, NULL, &batch, &error), &error, "submit pages");
        else if (step == 1)
            check(polyrail_prepared_post(prepared, NULL, &batch, &error), &error, "post pages");
        else /* What has been moved by the time that this returns has no batch. */
            check(polyrail_prepared_post_or_finish(prepared, NULL, &batch, &status, &error), &error, "post pages");
        if (batch.bits != 0) {
            check(polyrail_batch_wait(batch, POLYRAIL_FOREVER, &status, &error), &error, "wait");
            check(polyrail_batch_free(batch, &error), &error, "free");
        }
        if (status.status != POLYRAIL_STATUS_COMPLETED || status.requests != 1 || status.delivered_bytes != BLOCKS * BLOCK)
            return 1;
        for (unsigned i = 0; i < BLOCKS; i++)
            if (memcmp((char *)mine.base + (size_t)table[i] * BLOCK, (char *)theirs.base + (size_t)i * BLOCK, BLOCK) != 0) {
                fprintf(stderr, "page %u: wrong bytes\n", i);
                return 1;
            }
    }
    check(polyrail_prepared_free(prepared, &error), &error, "free");
    check(polyrail_engine_free(engine, &error), &error, "free the initiator");
    check(polyrail_engine_free(target, &error), &error, "free the target");
    printf("ok: %u blocks, %u times\n", BLOCKS, STEPS);
    return 0;
}
