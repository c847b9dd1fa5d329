/* Everything that a program can do wrong, and what it is told. */
#include <polyrail.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define SECOND UINT64_C(1000000000)

static polyrail_error error;
static int failures;

/* Whether a call answered this code, and said these words. */
static void expect(int line, int32_t code, int32_t expected, const char *words)
{
    int wrong = code != expected || error.code != expected;
    wrong = wrong || (words == NULL ? error.message[0] != 0 : strstr(error.message, words) == NULL);
    if (wrong) {
        fprintf(stderr, "line %d: code %d (%s), \"%s\"; expected %d and \"%s\"\n", line, code,
                polyrail_code_name(code), error.message, expected, words == NULL ? "" : words);
        failures++;
    }
    error = POLYRAIL_NEW(polyrail_error);
}

#define GOOD(call) expect(__LINE__, (call), POLYRAIL_OK, NULL)
#define BAD(call, code, words) expect(__LINE__, (call), (code), (words))
#define TRUE(what) \
    do { if (!(what)) { fprintf(stderr, "line %d: not so: %s\n", __LINE__, #what); failures++; } } while (0)

static int32_t answer(void *context, const polyrail_caller *caller, uint16_t method, const uint8_t *body, size_t length,
                      uint8_t *reply, size_t *reply_length)
{
    ++*(int *)context;
    TRUE(caller->size == sizeof *caller && strcmp(caller->peer, "initiator") == 0);
    TRUE(strncmp(caller->address, "127.0.0.1:", 10) == 0 && caller->member == NULL && caller->domain == NULL);
    if (method == 9) {
        memcpy(reply, "not today", 9);
        *reply_length = 9;
        return 1;
    }
    for (size_t i = 0; i < length; i++)
        reply[i] = body[length - 1 - i];
    *reply_length = length;
    return 0;
}

struct ended {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int count;
    uint32_t status;
};

static void done(void *context, const polyrail_status *status)
{
    struct ended *ended = context;
    pthread_mutex_lock(&ended->lock);
    ended->count++;
    ended->status = status->status;
    pthread_cond_signal(&ended->changed);
    pthread_mutex_unlock(&ended->lock);
}

static int lines;

static void line(void *context, uint32_t level, const char *module, const char *text)
{
    (void)context;
    TRUE(level >= POLYRAIL_LOG_ERROR && level <= POLYRAIL_LOG_DEBUG);
    TRUE(strlen(module) > 0 && strlen(text) > 0);
    __atomic_add_fetch(&lines, 1, __ATOMIC_RELAXED);
}

static polyrail_request request(polyrail_segment local, polyrail_segment remote, uint64_t length)
{
    polyrail_request made = POLYRAIL_NEW(polyrail_request);
    made.local = local;
    made.remote = remote;
    made.length = length;
    return made;
}

static void starting(void)
{
    polyrail_engine engine = { 0 };
    polyrail_options options = POLYRAIL_NEW(polyrail_options);
    BAD(polyrail_engine_start(NULL, NULL, &error), POLYRAIL_ERROR_ARGUMENT, "null pointer to engine");
    options.config = "{ \"polcy\": \"spray\" }";
    BAD(polyrail_engine_start(&options, &engine, &error), POLYRAIL_ERROR_CONFIG, "the nearest known one is policy");
    options.config = "{ \"listen\": ";
    BAD(polyrail_engine_start(&options, &engine, &error), POLYRAIL_ERROR_CONFIG, "no JSON");
    options.config = "{ \"listen\": \"0.0.0.0:0\" }";
    BAD(polyrail_engine_start(&options, &engine, &error), POLYRAIL_ERROR_CONFIG, "beyond loopback");
    options.config = "\xff";
    BAD(polyrail_engine_start(&options, &engine, &error), POLYRAIL_ERROR_ARGUMENT, "config is not UTF-8 from byte 0");
    options.config = NULL;
    options.config_file = "/no/such/file.json";
    BAD(polyrail_engine_start(&options, &engine, &error), POLYRAIL_ERROR_CONFIG, "/no/such/file.json");
    options.config_file = NULL;
    polyrail_parameter parameters[] = {{ "workers", "many" }, { "transports/tcp/enabel", "true" }};
    options.parameters = parameters;
    options.parameter_count = 2;
    BAD(polyrail_engine_start(&options, &engine, &error), POLYRAIL_ERROR_CONFIG, "parameters: workers: \"many\" is a string");
    BAD(polyrail_engine_start(&options, &engine, &error), POLYRAIL_ERROR_CONFIG, "the nearest known one is transports/tcp/enable");
    parameters[0].value = NULL;
    BAD(polyrail_engine_start(&options, &engine, &error), POLYRAIL_ERROR_ARGUMENT, "a null pointer to workers");
    parameters[0].value = "\xff";
    BAD(polyrail_engine_start(&options, &engine, &error), POLYRAIL_ERROR_ARGUMENT, "workers is not UTF-8 from byte 0");
    parameters[0].key = NULL;
    BAD(polyrail_engine_start(&options, &engine, &error), POLYRAIL_ERROR_ARGUMENT, "a null pointer to the key of a parameter");
    options.parameters = NULL;
    BAD(polyrail_engine_start(&options, &engine, &error), POLYRAIL_ERROR_ARGUMENT, "a null pointer to parameters");
    options.parameter_count = 0;
    options.environment = 2;
    BAD(polyrail_engine_start(&options, &engine, &error), POLYRAIL_ERROR_ARGUMENT, "environment 2");
    options.environment = 0;
    options.size = 0;
    BAD(polyrail_engine_start(&options, &engine, &error), POLYRAIL_ERROR_ARGUMENT, "sizeof(polyrail_options)");
    options.size = 3000;
    BAD(polyrail_engine_stop(engine, &error), POLYRAIL_ERROR_HANDLE, "a null handle");
    TRUE(engine.bits == 0);
    /* Without anywhere to say it, the code is still there, and the thread knows the words. */
    TRUE(polyrail_engine_stop(engine, NULL) == POLYRAIL_ERROR_HANDLE);
    TRUE(strstr(polyrail_last_message(), "a null handle") != NULL);
}

static void handles(polyrail_engine target, polyrail_engine engine, polyrail_segment local, polyrail_segment remote)
{
    polyrail_batch batch = { 0 };
    polyrail_status status = POLYRAIL_NEW(polyrail_status);
    polyrail_request one = request(local, remote, 4096);
    GOOD(polyrail_submit(engine, &one, 1, NULL, &batch, &error));
    GOOD(polyrail_batch_wait(batch, POLYRAIL_FOREVER, &status, &error));
    TRUE(status.status == POLYRAIL_STATUS_COMPLETED && status.delivered_bytes == 4096);
    /* Foreign: another kind of thing, another engine's, made up. */
    BAD(polyrail_batch_status((polyrail_batch){ engine.bits }, &status, &error), POLYRAIL_ERROR_HANDLE,
        "names an engine: a batch is needed");
    BAD(polyrail_batch_status((polyrail_batch){ 12345 }, &status, &error), POLYRAIL_ERROR_HANDLE, "is no handle");
    polyrail_batch other = { 0 };
    BAD(polyrail_submit(target, &one, 1, NULL, &other, &error), POLYRAIL_ERROR_HANDLE, "of another engine");
    TRUE(other.bits == 0);
    BAD(polyrail_batch_report(batch, 1, NULL, &error), POLYRAIL_ERROR_RANGE, "request 1 of a batch of 1");
    BAD(polyrail_batch_report(batch, 0, NULL, &error), POLYRAIL_ERROR_ARGUMENT, "null pointer to polyrail_report");
    polyrail_delivery delivery;
    BAD(polyrail_batch_delivery(batch, &delivery, &error), POLYRAIL_ERROR_NOT_FOUND, "no notification");
    /* Freed once, and once too often. */
    GOOD(polyrail_batch_free(batch, &error));
    BAD(polyrail_batch_free(batch, &error), POLYRAIL_ERROR_HANDLE, "has been freed");
    BAD(polyrail_batch_wait(batch, SECOND, NULL, &error), POLYRAIL_ERROR_HANDLE, "has been freed");
    BAD(polyrail_batch_cancel(batch, &error), POLYRAIL_ERROR_HANDLE, "has been freed");
    /* Its place is used again, its name is not. */
    GOOD(polyrail_submit(engine, &one, 1, NULL, &other, &error));
    TRUE(other.bits != batch.bits);
    BAD(polyrail_batch_status(batch, &status, &error), POLYRAIL_ERROR_HANDLE, "has been freed");
    GOOD(polyrail_batch_cancel(other, &error));
    GOOD(polyrail_batch_wait_released(other, POLYRAIL_FOREVER, &status, &error));
    TRUE(status.status == POLYRAIL_STATUS_COMPLETED || status.status == POLYRAIL_STATUS_CANCELLED);
    GOOD(polyrail_batch_free(other, &error));
}

static void requests(polyrail_engine engine, polyrail_segment local, polyrail_segment remote)
{
    polyrail_batch batch = { 0 };
    polyrail_request two[2] = { request(local, remote, 4096), request(local, remote, 4096) };
    BAD(polyrail_submit(engine, two, 0, NULL, &batch, &error), POLYRAIL_ERROR_ARGUMENT, "a batch of 0 requests");
    BAD(polyrail_submit(engine, NULL, 1, NULL, &batch, &error), POLYRAIL_ERROR_ARGUMENT, "null");
    BAD(polyrail_submit(engine, two, SIZE_MAX, NULL, &batch, &error), POLYRAIL_ERROR_ARGUMENT, "1 to 1000000");
    two[1].length = 0;
    int32_t code = polyrail_submit(engine, two, 2, NULL, &batch, &error);
    TRUE(error.index == 1);
    BAD(code, POLYRAIL_ERROR_RANGE, "request 1");
    two[1].length = 1u << 30;
    BAD(polyrail_submit(engine, two, 2, NULL, &batch, &error), POLYRAIL_ERROR_RANGE, "end past");
    two[1].length = 1;
    two[1].op = 7;
    code = polyrail_submit(engine, two, 2, NULL, &batch, &error);
    TRUE(error.index == 1);
    BAD(code, POLYRAIL_ERROR_ARGUMENT, "op 7: 0, 1 are possible");
    two[1].op = POLYRAIL_READ;
    two[1].size += 8;
    BAD(polyrail_submit(engine, two, 2, NULL, &batch, &error), POLYRAIL_ERROR_ARGUMENT, "the size in polyrail_request 1");
    uint32_t table[3] = { 0, 1, UINT32_MAX };
    polyrail_paged_request pages = POLYRAIL_NEW(polyrail_paged_request);
    polyrail_prepared prepared;
    pages.local = local;
    pages.remote = remote;
    pages.local_stride = pages.remote_stride = 64;
    pages.length = 64;
    pages.count = 3;
    pages.remote_pages = table;
    code = polyrail_submit_paged(engine, &pages, 1, NULL, &batch, &error);
    TRUE(error.index == 0);
    BAD(code, POLYRAIL_ERROR_RANGE, "block 2, page or row 4294967295");
    BAD(polyrail_prepare_paged(engine, &pages, 1, &prepared, &error), POLYRAIL_ERROR_RANGE, "block 2, page or row 4294967295");
    BAD(polyrail_submit_paged(engine, &pages, 0, NULL, &batch, &error), POLYRAIL_ERROR_ARGUMENT, "a batch of 0 requests");
    pages.remote_pages = (const uint32_t *)((const char *)table + 1);
    BAD(polyrail_submit_paged(engine, &pages, 1, NULL, &batch, &error), POLYRAIL_ERROR_ARGUMENT, "not aligned");
    pages.remote_pages = table;
    pages.count = SIZE_MAX;
    BAD(polyrail_submit_paged(engine, &pages, 1, NULL, &batch, &error), POLYRAIL_ERROR_ARGUMENT, "1 to 1000000");
    pages.count = 0;
    BAD(polyrail_submit_paged(engine, &pages, 1, NULL, &batch, &error), POLYRAIL_ERROR_RANGE, "request 0");
    /* The local one has to be local, and the remote one remote. */
    two[0] = request(remote, local, 1);
    BAD(polyrail_submit(engine, two, 1, NULL, &batch, &error), POLYRAIL_ERROR_HANDLE, "the remote one was opened");
    polyrail_terms terms = POLYRAIL_NEW(polyrail_terms);
    two[0] = request(local, remote, 1);
    /* What could not be told how it stands is not begun. */
    polyrail_status told = POLYRAIL_NEW(polyrail_status);
    GOOD(polyrail_prepare(engine, two, 1, &prepared, &error));
    BAD(polyrail_prepared_post_or_finish(prepared, NULL, &batch, NULL, &error), POLYRAIL_ERROR_ARGUMENT, "null");
    told.size = 2;
    BAD(polyrail_prepared_post_or_finish(prepared, NULL, &batch, &told, &error), POLYRAIL_ERROR_ARGUMENT, "size");
    TRUE(batch.bits == 0);
    GOOD(polyrail_prepared_free(prepared, &error));
    BAD(polyrail_prepared_post_or_finish(prepared, NULL, &batch, &told, &error), POLYRAIL_ERROR_HANDLE, "has been freed");
    terms.priority = 3;
    BAD(polyrail_submit(engine, two, 1, &terms, &batch, &error), POLYRAIL_ERROR_ARGUMENT, "priority 3");
    terms.priority = POLYRAIL_PRIORITY_HIGH;
    static uint8_t long_words[POLYRAIL_NOTIFICATION_BYTES_MAX + 1];
    terms.notification = long_words;
    terms.notification_length = sizeof long_words;
    BAD(polyrail_submit(engine, two, 1, &terms, &batch, &error), POLYRAIL_ERROR_ARGUMENT, "1048577 bytes");
    TRUE(batch.bits == 0);
    /* Longer structures, as a program of a newer header has them: good as long as what is new is not used. */
    struct { polyrail_request known; uint64_t new_field; } newer[2];
    memset(newer, 0, sizeof newer);
    for (int i = 0; i < 2; i++) {
        newer[i].known = request(local, remote, 4096);
        newer[i].known.size = sizeof newer[i];
    }
    polyrail_status status = POLYRAIL_NEW(polyrail_status);
    GOOD(polyrail_submit(engine, &newer[0].known, 2, NULL, &batch, &error));
    GOOD(polyrail_batch_wait(batch, 10 * SECOND, &status, &error));
    TRUE(status.status == POLYRAIL_STATUS_COMPLETED && status.requests == 2);
    GOOD(polyrail_batch_free(batch, &error));
    newer[1].new_field = 1;
    code = polyrail_submit(engine, &newer[0].known, 2, NULL, &batch, &error);
    TRUE(error.index == 1);
    BAD(code, POLYRAIL_ERROR_ARGUMENT, "the program needs a newer one");
}

static void segments(polyrail_engine engine, polyrail_segment local, const char *where)
{
    polyrail_segment segment = { 0 };
    char address[160];
    BAD(polyrail_segment_allocate(engine, "here", 1, 0, &segment, &error), POLYRAIL_ERROR_NAME, "exists already");
    BAD(polyrail_segment_allocate(engine, "/a", 1, 0, &segment, &error), POLYRAIL_ERROR_NAME, "cannot name");
    BAD(polyrail_segment_allocate(engine, NULL, 1, 0, &segment, &error), POLYRAIL_ERROR_ARGUMENT, "null pointer to name");
    BAD(polyrail_segment_allocate(engine, "big", UINT64_MAX, 0, &segment, &error), POLYRAIL_ERROR_RANGE, "not possible");
    BAD(polyrail_segment_allocate(engine, "odd", 1, 9, &segment, &error), POLYRAIL_ERROR_ARGUMENT, "access 9");
    BAD(polyrail_segment_register(engine, "null", NULL, 1, 0, &segment, &error), POLYRAIL_ERROR_ARGUMENT, "null");
    BAD(polyrail_segment_open(engine, "nonsense", &segment, &error), POLYRAIL_ERROR_ARGUMENT, "HOST:PORT/SEGMENT");
    snprintf(address, sizeof address, "%s/none", where);
    BAD(polyrail_segment_open(engine, address, &segment, &error), POLYRAIL_ERROR_NOT_FOUND, "no segment named \"none\"");
    BAD(polyrail_segment_open(engine, "127.0.0.1:1/mem", &segment, &error), POLYRAIL_ERROR_CONNECT, "127.0.0.1:1");
    BAD(polyrail_segment_open_file(engine, "/no/such/file", NULL, &segment, &error), POLYRAIL_ERROR_NOT_FOUND,
        "/no/such/file");
    BAD(polyrail_segment_sync(local, &error), POLYRAIL_ERROR_HANDLE, "no file");
    BAD(polyrail_segment_offer(local, "x", 1, &error), POLYRAIL_ERROR_HANDLE, "no file");
    TRUE(segment.bits == 0);
    GOOD(polyrail_segment_allocate(engine, "short", 4096, 0, &segment, &error));
    polyrail_segment_info info = POLYRAIL_NEW(polyrail_segment_info);
    GOOD(polyrail_segment_look(segment, &info, &error));
    TRUE(info.bytes == 4096 && info.base != NULL && info.kind == POLYRAIL_SEGMENT_MEMORY);
    BAD(polyrail_segment_order_after(segment, NULL, &error), POLYRAIL_ERROR_ARGUMENT, "memory of a GPU");
    polyrail_segment gpu = {0};
    BAD(polyrail_segment_allocate_on_gpu(engine, "gpu", 0, 4096, 0, &gpu, &error), POLYRAIL_ERROR_SYSTEM, "CUDA");
    TRUE(gpu.bits == 0);
    GOOD(polyrail_segment_free(segment, &error));
    BAD(polyrail_segment_free(segment, &error), POLYRAIL_ERROR_HANDLE, "has been freed");
}

/* A segment of a peer that is opened twice is closed with the second handle. */
static void closing(polyrail_engine engine, polyrail_segment local, const char *where)
{
    char address[160];
    snprintf(address, sizeof address, "%s/mem", where);
    polyrail_segment first, second, third;
    BAD(polyrail_segment_close(local, &error), POLYRAIL_ERROR_ARGUMENT, "unregister it");
    GOOD(polyrail_segment_open(engine, address, &first, &error));
    GOOD(polyrail_segment_open(engine, address, &second, &error));
    GOOD(polyrail_segment_open(engine, address, &third, &error));
    GOOD(polyrail_segment_close(first, &error));
    BAD(polyrail_segment_close(first, &error), POLYRAIL_ERROR_HANDLE, "has been freed");
    GOOD(polyrail_segment_free(second, &error));
    polyrail_segment_info info = POLYRAIL_NEW(polyrail_segment_info);
    GOOD(polyrail_segment_look(third, &info, &error));
    TRUE(info.kind == POLYRAIL_SEGMENT_REMOTE && info.bytes > 0);
    polyrail_request read = request(local, third, 4096);
    read.op = POLYRAIL_READ;
    polyrail_batch batch;
    GOOD(polyrail_submit(engine, &read, 1, NULL, &batch, &error));
    polyrail_status status = POLYRAIL_NEW(polyrail_status);
    GOOD(polyrail_batch_wait(batch, POLYRAIL_FOREVER, &status, &error));
    TRUE(status.status == POLYRAIL_STATUS_COMPLETED);
    GOOD(polyrail_batch_free(batch, &error));
    GOOD(polyrail_segment_close(third, &error));
    BAD(polyrail_submit(engine, &read, 1, NULL, &batch, &error), POLYRAIL_ERROR_HANDLE, "has been freed");
}

static void files(polyrail_engine engine, polyrail_engine target, polyrail_segment local, const char *where)
{
    char path[] = "/tmp/polyrail-misuse-XXXXXX", address[160];
    int descriptor = mkstemp(path);
    TRUE(descriptor >= 0 && ftruncate(descriptor, 65536) == 0);
    polyrail_file_terms terms = POLYRAIL_NEW(polyrail_file_terms);
    terms.bytes = 65536;
    polyrail_segment file, there;
    GOOD(polyrail_segment_open_file(target, path, &terms, &file, &error));
    GOOD(polyrail_segment_offer(file, "file", POLYRAIL_ACCESS_REMOTE_READ_WRITE, &error));
    snprintf(address, sizeof address, "%s/file", where);
    GOOD(polyrail_segment_open(engine, address, &there, &error));
    polyrail_segment_info info = POLYRAIL_NEW(polyrail_segment_info);
    GOOD(polyrail_segment_look(local, &info, &error));
    memset(info.base, 0x5a, 4096);
    polyrail_request write = request(local, there, 4096);
    write.remote_offset = 8192;
    polyrail_batch batch;
    polyrail_status status = POLYRAIL_NEW(polyrail_status);
    GOOD(polyrail_submit(engine, &write, 1, NULL, &batch, &error));
    GOOD(polyrail_batch_wait(batch, 10 * SECOND, &status, &error));
    TRUE(status.status == POLYRAIL_STATUS_COMPLETED);
    GOOD(polyrail_batch_free(batch, &error));
    GOOD(polyrail_segment_sync(file, &error));
    unsigned char bytes[4096];
    TRUE(pread(descriptor, bytes, sizeof bytes, 8192) == (ssize_t)sizeof bytes && bytes[0] == 0x5a && bytes[4095] == 0x5a);
    GOOD(polyrail_segment_free(file, &error));
    close(descriptor);
    unlink(path);
}

static void talking(polyrail_engine target, polyrail_segment remote, int *answers)
{
    uint8_t reply[16];
    size_t length = 0;
    GOOD(polyrail_call(remote, 3, (const uint8_t *)"abc", 3, 10 * SECOND, reply, sizeof reply, &length, &error));
    TRUE(length == 3 && memcmp(reply, "cba", 3) == 0 && *answers == 1);
    BAD(polyrail_call(remote, 3, (const uint8_t *)"abc", 3, 10 * SECOND, reply, 2, &length, &error),
        POLYRAIL_ERROR_BUFFER, "2 bytes is too short for 3");
    TRUE(length == 3);
    BAD(polyrail_call(remote, 9, NULL, 0, 10 * SECOND, reply, sizeof reply, &length, &error), POLYRAIL_ERROR_PEER,
        "not today");
    BAD(polyrail_call(remote, 9, NULL, 4, SECOND, reply, sizeof reply, &length, &error), POLYRAIL_ERROR_ARGUMENT,
        "null pointer to body");
    polyrail_notification told = POLYRAIL_NEW(polyrail_notification);
    BAD(polyrail_notification_take(target, 0, &told, &error), POLYRAIL_ERROR_EMPTY, "no notification");
    polyrail_delivery delivery;
    uint32_t status = 99;
    GOOD(polyrail_notify(remote, (const uint8_t *)"hello", 5, &delivery, &error));
    told.size = 16;
    BAD(polyrail_notification_take(target, 10 * SECOND, &told, &error), POLYRAIL_ERROR_BUFFER, "of 16 bytes");
    told.size = sizeof told;
    GOOD(polyrail_notification_take(target, 10 * SECOND, &told, &error));
    TRUE(told.length == 5 && memcmp(told.bytes, "hello", 5) == 0 && strcmp(told.from, "initiator") == 0);
    GOOD(polyrail_delivery_wait(delivery, 10 * SECOND, &status, &error));
    TRUE(status == POLYRAIL_DELIVERY_DELIVERED);
    GOOD(polyrail_delivery_free(delivery, &error));
    BAD(polyrail_delivery_wait(delivery, 0, &status, &error), POLYRAIL_ERROR_HANDLE, "has been freed");
    static uint8_t said[100000], heard[100000];
    for (size_t i = 0; i < sizeof said; i++)
        said[i] = (uint8_t)(i * 7);
    GOOD(polyrail_notify(remote, said, sizeof said, NULL, &error));
    GOOD(polyrail_notification_take(target, 10 * SECOND, &told, &error));
    TRUE(told.length == sizeof said && memcmp(told.bytes, said, sizeof told.bytes) == 0);
    BAD(polyrail_notification_bytes(heard, 2000, &length, &error), POLYRAIL_ERROR_BUFFER, "too short for 100000");
    TRUE(length == sizeof said);
    BAD(polyrail_notification_bytes(NULL, sizeof heard, &length, &error), POLYRAIL_ERROR_ARGUMENT, "null pointer to a buffer");
    GOOD(polyrail_notification_bytes(heard, sizeof heard, NULL, &error));
    TRUE(memcmp(heard, said, sizeof said) == 0);
}

static void arriving(polyrail_engine target, polyrail_engine engine, polyrail_segment local, polyrail_segment remote)
{
    polyrail_terms terms = POLYRAIL_NEW(polyrail_terms);
    polyrail_request one = request(local, remote, 4096);
    polyrail_batch batch = { 0 };
    uint64_t seen = 9;
    terms.arrival = 7;
    terms.has_arrival = 2;
    BAD(polyrail_submit(engine, &one, 1, &terms, &batch, &error), POLYRAIL_ERROR_ARGUMENT, "has_arrival 2");
    terms.has_arrival = 1;
    BAD(polyrail_arrivals_wait(target, 7, 1, 1000, &seen, &error), POLYRAIL_ERROR_TIMED_OUT, "");
    TRUE(seen == 0);
    for (int i = 0; i < 3; i++) {
        GOOD(polyrail_submit(engine, &one, 1, &terms, &batch, &error));
        GOOD(polyrail_batch_free(batch, &error));
    }
    GOOD(polyrail_arrivals_wait(target, 7, 3, 10 * SECOND, NULL, &error));
    GOOD(polyrail_arrivals_forget(target, 7, &seen, &error));
    TRUE(seen == 3);
    GOOD(polyrail_arrivals_wait(target, 7, 0, 0, &seen, &error));
    TRUE(seen == 0);
}

/* An engine of its own: it takes the target for lost in the end. */
static void peers(const char *where)
{
    char address[128];
    polyrail_options options = POLYRAIL_NEW(polyrail_options);
    options.config = "{ \"name\": \"waits\", \"workers\": 1 }";
    polyrail_engine engine;
    polyrail_segment local;
    GOOD(polyrail_engine_start(&options, &engine, &error));
    GOOD(polyrail_segment_allocate(engine, "here", 1 << 20, POLYRAIL_ACCESS_LOCAL, &local, &error));
    snprintf(address, sizeof address, "%s/mem", where);
    polyrail_open_terms terms = POLYRAIL_NEW(polyrail_open_terms);
    polyrail_segment standing;
    terms.standing = 2;
    BAD(polyrail_segment_open_with(engine, address, &terms, &standing, &error), POLYRAIL_ERROR_ARGUMENT, "standing 2");
    terms.standing = 1;
    terms.within_ns = SECOND / 20;
    BAD(polyrail_segment_open_with(engine, "127.0.0.1:1/mem", &terms, &standing, &error), POLYRAIL_ERROR_CONNECT,
        "not opened within 50ms");
    terms.within_ns = 10 * SECOND;
    GOOD(polyrail_segment_open_with(engine, address, &terms, &standing, &error));
    polyrail_request one = request(local, standing, 4096);
    polyrail_batch batch;
    GOOD(polyrail_submit(engine, &one, 1, NULL, &batch, &error));
    GOOD(polyrail_batch_wait(batch, 10 * SECOND, NULL, &error));
    GOOD(polyrail_batch_free(batch, &error));
    GOOD(polyrail_segment_close(standing, &error));
    polyrail_peer peer = POLYRAIL_NEW(polyrail_peer);
    size_t count = 0;
    GOOD(polyrail_engine_peers(engine, &peer, 1, &count, &error));
    TRUE(count == 1 && peer.state == POLYRAIL_PEER_PRESENT && strcmp(peer.name, "target") == 0);
    TRUE(strcmp(peer.address, where) == 0 && peer.incarnation != 0);
    polyrail_peer_event event = POLYRAIL_NEW(polyrail_peer_event);
    BAD(polyrail_peer_event_take(engine, 0, &event, &error), POLYRAIL_ERROR_EMPTY, "no event");
    int descriptor = -1;
    GOOD(polyrail_peer_event_descriptor(engine, &descriptor, &error));
    struct pollfd poll_for = { .fd = descriptor, .events = POLLIN };
    TRUE(poll(&poll_for, 1, 0) == 0);
    bool was_there = false;
    GOOD(polyrail_engine_declare_lost(engine, where, &was_there, &error));
    TRUE(poll(&poll_for, 1, 0) == 1);
    GOOD(polyrail_peer_event_take(engine, 10 * SECOND, &event, &error));
    TRUE(event.kind == POLYRAIL_EVENT_LOST && event.missed == 0 && strcmp(event.address, where) == 0);
    TRUE(event.incarnation == peer.incarnation && strcmp(event.name, "target") == 0);
    GOOD(polyrail_engine_free(engine, &error));
}

/* A target that lets nobody in before its segment is there: who comes early waits, and is not told that there is none. */
static void letting_in_later(polyrail_engine engine)
{
    char address[128];
    size_t length = 0;
    polyrail_options options = POLYRAIL_NEW(polyrail_options);
    options.config = "{ \"name\": \"later\", \"listen\": \"127.0.0.1:0\", \"workers\": 1 }";
    options.lets_in_later = 2;
    polyrail_engine later;
    BAD(polyrail_engine_start(&options, &later, &error), POLYRAIL_ERROR_ARGUMENT, "lets_in_later 2");
    options.lets_in_later = 1;
    GOOD(polyrail_engine_start(&options, &later, &error));
    GOOD(polyrail_engine_listening(later, address, sizeof address, &length, &error));
    snprintf(address + length, sizeof address - length, "/mem");
    polyrail_open_terms terms = POLYRAIL_NEW(polyrail_open_terms);
    terms.within_ns = SECOND / 20;
    polyrail_segment offered, remote;
    BAD(polyrail_segment_open_with(engine, address, &terms, &remote, &error), POLYRAIL_ERROR_CONNECT, "not opened within 50ms");
    GOOD(polyrail_segment_allocate(later, "mem", 4096, POLYRAIL_ACCESS_REMOTE_READ_WRITE, &offered, &error));
    GOOD(polyrail_engine_let_in(later, &error));
    GOOD(polyrail_engine_let_in(later, &error));
    terms.within_ns = 10 * SECOND;
    GOOD(polyrail_segment_open_with(engine, address, &terms, &remote, &error));
    GOOD(polyrail_segment_close(remote, &error));
    GOOD(polyrail_engine_free(later, &error));
    BAD(polyrail_engine_let_in(later, &error), POLYRAIL_ERROR_HANDLE, "has been freed");
}

static void callbacks(polyrail_engine engine, polyrail_segment local, polyrail_segment remote)
{
    struct ended ended = { .lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER };
    polyrail_request one = request(local, remote, 65536);
    polyrail_batch batch;
    GOOD(polyrail_submit(engine, &one, 1, NULL, &batch, &error));
    BAD(polyrail_batch_on_done(batch, NULL, NULL, &error), POLYRAIL_ERROR_ARGUMENT, "null pointer to done");
    GOOD(polyrail_batch_on_done(batch, done, &ended, &error));
    pthread_mutex_lock(&ended.lock);
    while (ended.count == 0)
        pthread_cond_wait(&ended.changed, &ended.lock);
    TRUE(ended.count == 1 && ended.status == POLYRAIL_STATUS_COMPLETED);
    pthread_mutex_unlock(&ended.lock);
    GOOD(polyrail_batch_free(batch, &error));
}

struct farewell {
    struct ended ended;
    polyrail_engine engine;
    void *memory;
};

/* Frees the engine, and memory that it had, wherever the library calls from. */
static void part(void *context, const polyrail_status *status)
{
    struct farewell *farewell = context;
    polyrail_error own = POLYRAIL_NEW(polyrail_error);
    if (polyrail_engine_free(farewell->engine, &own) != POLYRAIL_OK)
        fprintf(stderr, "%s\n", own.message);
    else
        free(farewell->memory);
    done(&farewell->ended, status);
}

static void freeing_in_a_callback(const char *where)
{
    for (int waits = 0; waits < 2; waits++) {
        struct farewell farewell = { .ended = { .lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER } };
        polyrail_options options = POLYRAIL_NEW(polyrail_options);
        options.config = "{ \"name\": \"parting\", \"workers\": 1, \"transports\": { \"shm\": { \"enable\": false } } }";
        GOOD(polyrail_engine_start(&options, &farewell.engine, &error));
        farewell.memory = calloc(1, 1 << 20);
        polyrail_segment local, remote;
        GOOD(polyrail_segment_register(farewell.engine, "here", farewell.memory, 1 << 20, POLYRAIL_ACCESS_LOCAL, &local, &error));
        char address[128];
        snprintf(address, sizeof address, "%s/mem", where);
        GOOD(polyrail_segment_open(farewell.engine, address, &remote, &error));
        polyrail_request one = request(local, remote, 1 << 20);
        polyrail_batch batch;
        GOOD(polyrail_submit(farewell.engine, &one, 1, NULL, &batch, &error));
        GOOD(polyrail_batch_on_done(batch, part, &farewell, &error));
        polyrail_status status = POLYRAIL_NEW(polyrail_status);
        if (waits)
            GOOD(polyrail_batch_wait(batch, 10 * SECOND, &status, &error));
        pthread_mutex_lock(&farewell.ended.lock);
        while (farewell.ended.count == 0)
            pthread_cond_wait(&farewell.ended.changed, &farewell.ended.lock);
        TRUE(farewell.ended.status == POLYRAIL_STATUS_COMPLETED);
        pthread_mutex_unlock(&farewell.ended.lock);
        BAD(polyrail_engine_stop(farewell.engine, &error), POLYRAIL_ERROR_HANDLE, "has been freed");
        GOOD(polyrail_batch_free(batch, &error));
    }
}

static void numbers(polyrail_engine engine)
{
    size_t count = 99;
    GOOD(polyrail_engine_rails(engine, NULL, 0, &count, &error));
    TRUE(count >= 1 && count != 99);
    BAD(polyrail_engine_rails(engine, NULL, 1, &count, &error), POLYRAIL_ERROR_ARGUMENT, "null");
    polyrail_device devices[4] = { POLYRAIL_NEW(polyrail_device) };
    GOOD(polyrail_engine_devices(engine, devices, 4, &count, &error));
    TRUE(count >= 1 && devices[0].bytes > 0 && devices[0].share > 0 && devices[0].name[0] != 0);
    polyrail_worker workers[64] = { POLYRAIL_NEW(polyrail_worker) };
    GOOD(polyrail_engine_workers(engine, workers, 64, &count, &error));
    TRUE(count >= 1 && workers[0].limit == 16384 && workers[0].full_for == POLYRAIL_NEVER);
    int has_worked = 0;
    for (size_t i = 0; i < count; i++)
        has_worked |= workers[i].completions > 0 && workers[i].completed != POLYRAIL_NEVER;
    TRUE(has_worked);
    polyrail_lane lanes[64] = { POLYRAIL_NEW(polyrail_lane) };
    GOOD(polyrail_engine_lanes(engine, lanes, 64, &count, &error));
    TRUE(count >= 1);
    int has_carried = 0;
    for (size_t i = 0; i < count && i < 64; i++)
        has_carried |= lanes[i].released > 0 && lanes[i].held_high > 0 && lanes[i].rail[0] != 0;
    TRUE(has_carried);
    polyrail_proof proof = POLYRAIL_NEW(polyrail_proof);
    GOOD(polyrail_engine_proof(engine, &proof, 1, &count, &error));
    TRUE(count == 1 && proof.unsettled_requests == 0 && proof.unsettled_oldest == POLYRAIL_NEVER);
    TRUE(proof.held_bytes == 0 && proof.fences_waiting == 0 && proof.fences_oldest == POLYRAIL_NEVER);
    polyrail_transport_info transports[8] = { POLYRAIL_NEW(polyrail_transport_info) };
    GOOD(polyrail_engine_transports(engine, transports, 8, &count, &error));
    int has_tcp = 0;
    for (size_t i = 0; i < count && i < 8; i++)
        has_tcp |= strcmp(transports[i].name, "tcp") == 0 && transports[i].available;
    TRUE(has_tcp);
    polyrail_failover failovers[4] = { POLYRAIL_NEW(polyrail_failover) };
    GOOD(polyrail_engine_failovers(engine, failovers, 4, &count, &error));
    /* Nothing has failed; but where copying is slow, as under valgrind, shared memory may have been left for what is faster. */
    for (size_t i = 0; i < count && i < 4; i++)
        TRUE(failovers[i].count > 0 && strcmp(failovers[i].from, failovers[i].to) != 0);
    TRUE(count <= 4);
}

/* A child has none of its parent's, and can make its own. */
static void forking(polyrail_engine engine, polyrail_segment local)
{
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        failures = 0;
        polyrail_segment_info info = POLYRAIL_NEW(polyrail_segment_info);
        BAD(polyrail_engine_stop(engine, &error), POLYRAIL_ERROR_FORKED, "forked from");
        BAD(polyrail_engine_free(engine, &error), POLYRAIL_ERROR_FORKED, "forked from");
        BAD(polyrail_segment_look(local, &info, &error), POLYRAIL_ERROR_FORKED, "forked from");
        polyrail_engine own;
        polyrail_segment memory;
        /* Valgrind 3.19 cannot map rings in a child. */
        polyrail_options options = POLYRAIL_NEW(polyrail_options);
        options.config = "{ \"transports\": { \"uring\": { \"enable\": false } } }";
        GOOD(polyrail_engine_start(&options, &own, &error));
        GOOD(polyrail_segment_allocate(own, "here", 4096, POLYRAIL_ACCESS_LOCAL, &memory, &error));
        GOOD(polyrail_engine_free(own, &error));
        /* What its parent had is lost in it, and nobody is to look for that when it ends: it becomes another program. */
        if (failures == 0)
            execlp("true", "true", (char *)NULL);
        _exit(1);
    }
    int status = -1;
    TRUE(child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void ending(polyrail_engine target, polyrail_engine engine, polyrail_segment local, polyrail_segment remote)
{
    polyrail_request one = request(local, remote, 1);
    polyrail_batch batch = { 0 };
    bool known = false;
    BAD(polyrail_engine_declare_lost(engine, "nowhere", &known, &error), POLYRAIL_ERROR_NOT_FOUND, "nowhere");
    GOOD(polyrail_engine_stop(engine, &error));
    GOOD(polyrail_engine_stop(engine, &error));
    BAD(polyrail_submit(engine, &one, 1, NULL, &batch, &error), POLYRAIL_ERROR_SHUT_DOWN, "shutting down");
    GOOD(polyrail_engine_free(engine, &error));
    BAD(polyrail_engine_free(engine, &error), POLYRAIL_ERROR_HANDLE, "has been freed");
    BAD(polyrail_segment_free(local, &error), POLYRAIL_ERROR_HANDLE, "has been freed");
    BAD(polyrail_segment_free(remote, &error), POLYRAIL_ERROR_HANDLE, "has been freed");
    GOOD(polyrail_engine_free(target, &error));
}

int main(void)
{
    error = POLYRAIL_NEW(polyrail_error);
    TRUE(polyrail_abi() == POLYRAIL_ABI && strlen(polyrail_version()) > 0);
    BAD(polyrail_log_to(line, NULL, 9, &error), POLYRAIL_ERROR_ARGUMENT, "level 9");
    GOOD(polyrail_log_to(line, NULL, POLYRAIL_LOG_DEBUG, &error));
    starting();
    int answers = 0;
    polyrail_options options = POLYRAIL_NEW(polyrail_options);
    options.config = "{ \"name\": \"target\", \"listen\": \"127.0.0.1:0\", \"workers\": 1 }";
    options.answer = answer;
    options.context = &answers;
    polyrail_engine target, engine;
    polyrail_segment offered, local, remote;
    GOOD(polyrail_engine_start(&options, &target, &error));
    options = POLYRAIL_NEW(polyrail_options);
    options.config = "{ \"name\": \"initiator\", \"workers\": 1 }";
    GOOD(polyrail_engine_start(&options, &engine, &error));
    char where[64] = "", address[128];
    size_t length = 0;
    BAD(polyrail_engine_listening(engine, where, sizeof where, &length, &error), POLYRAIL_ERROR_NOT_FOUND, "listen");
    BAD(polyrail_engine_listening(target, where, 3, &length, &error), POLYRAIL_ERROR_BUFFER, "too short");
    GOOD(polyrail_engine_listening(target, where, sizeof where, &length, &error));
    TRUE(strlen(where) == length && strncmp(where, "127.0.0.1:", 10) == 0);
    GOOD(polyrail_segment_allocate(target, "mem", 1 << 20, POLYRAIL_ACCESS_REMOTE_READ_WRITE, &offered, &error));
    GOOD(polyrail_segment_allocate(engine, "here", 1 << 20, POLYRAIL_ACCESS_LOCAL, &local, &error));
    snprintf(address, sizeof address, "%s/mem", where);
    GOOD(polyrail_segment_open(engine, address, &remote, &error));

    handles(target, engine, local, remote);
    requests(engine, local, remote);
    segments(engine, local, where);
    files(engine, target, local, where);
    closing(engine, local, where);
    talking(target, remote, &answers);
    arriving(target, engine, local, remote);
    peers(where);
    letting_in_later(engine);
    callbacks(engine, local, remote);
    freeing_in_a_callback(where);
    numbers(engine);
    forking(engine, local);
    ending(target, engine, local, remote);
    TRUE(lines > 0);
    GOOD(polyrail_log_to(NULL, NULL, POLYRAIL_LOG_OFF, &error));
    if (failures == 0)
        printf("ok\n");
    return failures == 0 ? 0 : 1;
}
