/* Many batches in the program's own event loop: a queue has a descriptor that polls readable while the end of a batch
 * waits in it. Nothing blocks but poll(). */
#include <errno.h>
#include <poll.h>
#include <polyrail.h>
#include <stdio.h>
#include <stdlib.h>

#define BLOCK (64u << 10)
#define BATCHES 100u
#define AT_A_TIME 8u

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
    check(polyrail_segment_allocate(target, "mem", AT_A_TIME * BLOCK, POLYRAIL_ACCESS_REMOTE_READ_WRITE, &offered,
                                    &error), &error, "allocate");
    check(polyrail_segment_allocate(engine, "here", AT_A_TIME * BLOCK, POLYRAIL_ACCESS_LOCAL, &local, &error), &error,
          "allocate");
    char where[128], address[160];
    check(polyrail_engine_listening(target, where, sizeof where, NULL, &error), &error, "listening");
    snprintf(address, sizeof address, "%s/mem", where);
    check(polyrail_segment_open(engine, address, &remote, &error), &error, "open");

    polyrail_queue queue;
    check(polyrail_queue_create(&queue, &error), &error, "create a queue");
    struct pollfd ready = { .events = POLLIN };
    check(polyrail_queue_descriptor(queue, &ready.fd, &error), &error, "descriptor");

    unsigned submitted = 0, ended = 0;
    while (ended < BATCHES) {
        while (submitted < BATCHES && submitted - ended < AT_A_TIME) {
            polyrail_request request = POLYRAIL_NEW(polyrail_request);
            request.op = POLYRAIL_WRITE;
            request.local = local;
            request.remote = remote;
            request.local_offset = request.remote_offset = (uint64_t)(submitted % AT_A_TIME) * BLOCK;
            request.length = BLOCK;
            polyrail_batch batch;
            check(polyrail_submit(engine, &request, 1, NULL, &batch, &error), &error, "submit");
            /* The queue knows it from now on; the handle is not needed any more. */
            check(polyrail_queue_add(queue, batch, submitted, &error), &error, "add");
            check(polyrail_batch_free(batch, &error), &error, "free");
            submitted++;
        }
        if (poll(&ready, 1, -1) < 0 && errno != EINTR)
            return 1;
        polyrail_completion completion = POLYRAIL_NEW(polyrail_completion);
        int32_t code;
        while ((code = polyrail_queue_take(queue, 0, &completion, &error)) == POLYRAIL_OK) {
            if (completion.status != POLYRAIL_STATUS_COMPLETED) {
                fprintf(stderr, "batch %llu: %s\n", (unsigned long long)completion.tag,
                        polyrail_status_name(completion.status));
                return 1;
            }
            ended++;
        }
        if (code != POLYRAIL_ERROR_EMPTY)
            check(code, &error, "take");
    }
    check(polyrail_queue_free(queue, &error), &error, "free the queue");
    check(polyrail_engine_free(engine, &error), &error, "free the initiator");
    check(polyrail_engine_free(target, &error), &error, "free the target");
    printf("ok: %u batches\n", ended);
    return 0;
}
