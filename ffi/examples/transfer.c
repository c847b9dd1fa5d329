/* A target and an initiator: bytes go there and back, and both programs tell each other so.
 *
 *     cc -I ffi/include ffi/examples/transfer.c -L target/release -lpolyrail -o transfer
 *     LD_LIBRARY_PATH=target/release ./transfer
 *
 * Both engines are in this one process to keep it short; usually each has its own. */
#include <polyrail.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MEMORY (1u << 20)
#define SECOND UINT64_C(1000000000)

/* Ends the program with what a call said if it failed. */
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

    /* Who serves memory listens. */
    polyrail_options options = POLYRAIL_NEW(polyrail_options);
    options.config = "{ \"name\": \"target\", \"listen\": \"127.0.0.1:0\", \"workers\": 1 }";
    polyrail_engine target;
    check(polyrail_engine_start(&options, &target, &error), &error, "start the target");
    polyrail_segment offered;
    check(polyrail_segment_allocate(target, "mem", MEMORY, POLYRAIL_ACCESS_REMOTE_READ_WRITE, &offered, &error),
          &error, "allocate");
    char where[128];
    check(polyrail_engine_listening(target, where, sizeof where, NULL, &error), &error, "listening");

    /* Who moves bytes has memory of its own, and opens the other's by its address. */
    options.config = "{ \"name\": \"initiator\", \"workers\": 1 }";
    polyrail_engine engine;
    check(polyrail_engine_start(&options, &engine, &error), &error, "start the initiator");
    unsigned char *mine = malloc(MEMORY);
    if (mine == NULL)
        return 1;
    for (size_t i = 0; i < MEMORY; i++)
        mine[i] = (unsigned char)(i % 251);
    polyrail_segment local, remote;
    check(polyrail_segment_register(engine, "here", mine, MEMORY, POLYRAIL_ACCESS_LOCAL, &local, &error), &error,
          "register");
    char address[160];
    snprintf(address, sizeof address, "%s/mem", where);
    check(polyrail_segment_open(engine, address, &remote, &error), &error, "open");

    /* Two halves in one batch; the target's program is told when both are there. */
    polyrail_request requests[2];
    for (int i = 0; i < 2; i++) {
        requests[i] = POLYRAIL_NEW(polyrail_request);
        requests[i].op = POLYRAIL_WRITE;
        requests[i].local = local;
        requests[i].remote = remote;
        requests[i].local_offset = requests[i].remote_offset = (uint64_t)i * (MEMORY / 2);
        requests[i].length = MEMORY / 2;
    }
    polyrail_terms terms = POLYRAIL_NEW(polyrail_terms);
    terms.notification = (const uint8_t *)"both halves";
    terms.notification_length = strlen("both halves");
    polyrail_batch batch;
    check(polyrail_submit(engine, requests, 2, &terms, &batch, &error), &error, "submit");
    polyrail_status status = POLYRAIL_NEW(polyrail_status);
    check(polyrail_batch_wait(batch, 10 * SECOND, &status, &error), &error, "wait");
    printf("%s: %u of %u requests, %llu bytes\n", polyrail_status_name(status.status), status.ended, status.requests,
           (unsigned long long)status.delivered_bytes);

    /* Each request has its own report, with what is known of the memory on both sides. */
    for (size_t i = 0; i < 2; i++) {
        polyrail_report report = POLYRAIL_NEW(polyrail_report);
        check(polyrail_batch_report(batch, i, &report, &error), &error, "report");
        printf("request %zu: %s, here %s, there %s\n", i, polyrail_status_name(report.status),
               report.local == POLYRAIL_LOCAL_RELEASED ? "released" : "held",
               report.remote == POLYRAIL_REMOTE_SETTLED ? "settled" : "unknown");
        if (report.status != POLYRAIL_STATUS_COMPLETED)
            return 1;
    }

    /* What the target's program sees. */
    polyrail_notification told = POLYRAIL_NEW(polyrail_notification);
    check(polyrail_notification_take(target, 10 * SECOND, &told, &error), &error, "notification");
    printf("the target was told \"%.*s\" by \"%s\"\n", (int)told.length, (const char *)told.bytes, told.from);
    polyrail_segment_info info = POLYRAIL_NEW(polyrail_segment_info);
    check(polyrail_segment_look(offered, &info, &error), &error, "look");
    if (memcmp(info.base, mine, MEMORY) != 0) {
        fprintf(stderr, "wrong bytes\n");
        return 1;
    }
    polyrail_delivery delivery;
    uint32_t delivered;
    check(polyrail_batch_delivery(batch, &delivery, &error), &error, "delivery");
    check(polyrail_delivery_wait(delivery, 10 * SECOND, &delivered, &error), &error, "wait for the delivery");
    if (delivered != POLYRAIL_DELIVERY_DELIVERED)
        return 1;
    check(polyrail_delivery_free(delivery, &error), &error, "free the delivery");
    check(polyrail_batch_free(batch, &error), &error, "free the batch");

    /* And back. */
    memset(mine, 0, MEMORY);
    requests[0].op = requests[1].op = POLYRAIL_READ;
    check(polyrail_submit(engine, requests, 2, NULL, &batch, &error), &error, "submit");
    check(polyrail_batch_wait(batch, POLYRAIL_FOREVER, &status, &error), &error, "wait");
    if (status.status != POLYRAIL_STATUS_COMPLETED || memcmp(info.base, mine, MEMORY) != 0) {
        fprintf(stderr, "wrong bytes came back\n");
        return 1;
    }
    check(polyrail_batch_free(batch, &error), &error, "free the batch");

    polyrail_rail rails[8];
    rails[0] = POLYRAIL_NEW(polyrail_rail);
    size_t count;
    check(polyrail_engine_rails(engine, rails, 8, &count, &error), &error, "rails");
    for (size_t i = 0; i < count && i < 8; i++)
        printf("%s carried %llu bytes\n", rails[i].name, (unsigned long long)rails[i].bytes);

    check(polyrail_engine_free(engine, &error), &error, "free the initiator");
    check(polyrail_engine_free(target, &error), &error, "free the target");
    free(mine);
    printf("ok\n");
    return 0;
}
