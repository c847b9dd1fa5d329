/* A libcuda.so.1 for machines without GPUs: so much of CUDA's driver as polyrail calls, over host memory. It is there so
 * that the binding itself runs: the library is loaded, every function found, and called with the arguments that CUDA's header
 * gives it. What it is asked wrongly ends the process, with a word.
 *
 * One thread carries out what is in the streams, in the order of each. A host function holds its stream until it returns, as
 * a kernel would. A copy to or from host memory that is not pinned returns when it is over, as CUDA's does; one that is
 * pinned in part only is refused. A call that a capture of a graph forbids to other threads spoils the graph unless it comes
 * from a thread in relaxed mode, and a thread has its own mode back before it pops its context. With STAND_IN_STRICT in the
 * environment all calls are ours, so any that could spoil a graph ends the process, whether one is being captured or not. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

typedef int result;
typedef int device;
typedef uint64_t pointer;
typedef struct context *context;
typedef struct stream *stream;
typedef struct event *event;
typedef uint64_t handle;
typedef struct { char reserved[64]; } ipc_handle;

enum {
    SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_INITIALIZED = 3, INVALID_DEVICE = 101, INVALID_CONTEXT = 201,
    NOT_READY = 600, ALREADY_ENABLED = 704, ALREADY_REGISTERED = 712, NOT_PERMITTED = 800, NOT_SUPPORTED = 801,
    CAPTURE_UNSUPPORTED = 900, CAPTURE_INVALIDATED = 901,
    DEVICES = 2, ROOM = 1024, TOTAL = 1 << 30, STACK = 16, GLOBAL = 0, RELAXED = 2,
};

/* What is in a stream. */
struct step {
    enum { COPY, MARK, WAIT, HOST } kind;
    pointer to, from;
    size_t bytes;
    event event;
    uint64_t number;
    void (*function)(void *);
    void *data;
    int begun, over;
    struct step *next;
};

struct context { device of; int retained; };
struct stream { context of; struct step *first, *last; int is_captured, is_spoilt; };
/* How often it was recorded, and which of these are over. */
struct event { context of; uint64_t recorded, passed; };

static struct context contexts[DEVICES] = { { 0, 0 }, { 1, 0 } };
static __thread context stack[STACK];
static __thread int depth;
static __thread unsigned mode = GLOBAL;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static stream streams[ROOM];
/* The process that has called cuInit: CUDA does not work in its children. */
static pid_t begun_by;

static struct allocation { pointer base; size_t bytes; device on; int fd, imported; } allocations[ROOM];
static struct { uint64_t base; size_t bytes; } registered[ROOM];
static int reached[DEVICES][DEVICES];

static void must(int holds, const char *what) {
    if (!holds) {
        fprintf(stderr, "stand-in for libcuda: %s\n", what);
        abort();
    }
}

static context current(void) {
    must(depth > 0, "no context is current");
    return stack[depth - 1];
}

/* A call that a capture forbids to others. Whether it is refused. */
static int is_forbidden(const char *call) {
    if (mode == RELAXED) return 0;
    if (getenv("STAND_IN_STRICT")) {
        fprintf(stderr, "stand-in for libcuda: %s would spoil a capture of the program's\n", call);
        abort();
    }
    pthread_mutex_lock(&lock);
    int captured = 0;
    for (int i = 0; i < ROOM; i++) {
        if (streams[i] && streams[i]->is_captured) captured = streams[i]->is_spoilt = 1;
    }
    pthread_mutex_unlock(&lock);
    return captured;
}

static struct allocation *find(pointer address, size_t bytes) {
    for (int i = 0; i < ROOM; i++) {
        struct allocation *known = &allocations[i];
        if (known->base && address >= known->base && address + bytes <= known->base + known->bytes) return known;
    }
    return NULL;
}

/* What is pinned there; -1: nothing. */
static int pinned_at(pointer address) {
    for (int i = 0; i < ROOM; i++) {
        if (address >= registered[i].base && address < registered[i].base + registered[i].bytes) return i;
    }
    return -1;
}

/* Carries out the first step of a stream, if it can be; with the lock held. */
static int carry_out(stream in);

static void *work(void *ignored) {
    (void)ignored;
    pthread_mutex_lock(&lock);
    for (;;) {
        int moved = 0;
        for (int i = 0; i < ROOM; i++) {
            if (streams[i] && streams[i]->first) moved |= carry_out(streams[i]);
        }
        if (moved) pthread_cond_broadcast(&changed);
        else pthread_cond_wait(&changed, &lock);
    }
    return NULL;
}

static void *call(void *of) {
    struct step *step = of;
    step->function(step->data);
    pthread_mutex_lock(&lock);
    step->over = 1;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    return NULL;
}

static int carry_out(stream in) {
    struct step *step = in->first;
    pthread_t thread;
    if (step->kind == WAIT && step->event->passed < step->number) return 0;
    if (step->kind == HOST && !step->begun) {
        step->begun = 1;
        must(pthread_create(&thread, NULL, call, step) == 0 && pthread_detach(thread) == 0, "a thread");
    }
    if (step->kind == HOST && !step->over) return 0;
    if (step->kind == COPY) memmove((void *)step->to, (void *)step->from, step->bytes);
    if (step->kind == MARK) step->event->passed = step->number;
    in->first = step->next;
    if (!in->first) in->last = NULL;
    free(step);
    return 1;
}

static void begin(void) {
    pthread_t thread;
    must(pthread_create(&thread, NULL, work, NULL) == 0 && pthread_detach(thread) == 0, "a thread");
}

/* With the lock held. */
static void put(stream in, struct step of) {
    struct step *step = malloc(sizeof *step);
    must(step != NULL, "memory");
    must(!in->is_captured, "a stream that is captured is left alone");
    *step = of;
    if (in->last) in->last->next = step;
    else in->first = step;
    in->last = step;
    pthread_cond_broadcast(&changed);
}

static void drain(stream in) {
    while (in->first) pthread_cond_wait(&changed, &lock);
}

static int is_begun(void) { return begun_by == getpid(); }

result cuInit(unsigned flags) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    if (flags != 0) return INVALID_VALUE;
    if (begun_by && !is_begun()) return NOT_INITIALIZED;
    begun_by = getpid();
    pthread_once(&once, begin);
    return SUCCESS;
}

result cuDriverGetVersion(int *version) { *version = 12040; return SUCCESS; }

/* With STAND_IN_MIG the process has this instance of a GPU, which it sees as the only device. */
static int instance(void) { return getenv("STAND_IN_MIG") ? atoi(getenv("STAND_IN_MIG")) : 0; }

result cuDeviceGetCount(int *count) {
    if (!is_begun()) return NOT_INITIALIZED;
    *count = instance() ? 1 : DEVICES;
    return SUCCESS;
}

result cuThreadExchangeStreamCaptureMode(unsigned *wanted) {
    unsigned before = mode;
    must(*wanted == (before == GLOBAL ? RELAXED : GLOBAL), "relaxed mode is taken, and the thread's own given back");
    mode = *wanted;
    *wanted = before;
    return SUCCESS;
}

result cuDeviceGet(device *of, int ordinal) {
    if (!is_begun()) return NOT_INITIALIZED;
    if (ordinal < 0 || ordinal >= DEVICES) return INVALID_DEVICE;
    *of = ordinal;
    return SUCCESS;
}

result cuDeviceGetName(char *name, int length, device of) {
    snprintf(name, length, instance() ? "Stand-in %d MIG 1g.10gb" : "Stand-in %d", of);
    return SUCCESS;
}

result cuDeviceTotalMem_v2(size_t *bytes, device of) { (void)of; *bytes = TOTAL; return SUCCESS; }

result cuDeviceGetPCIBusId(char *id, int length, device of) {
    must(length >= 13, "a PCI address has 12 characters");
    snprintf(id, length, "FFFF:%02X:00.0", of);
    return SUCCESS;
}

typedef struct { char bytes[16]; } uuid;

result cuDeviceGetUuid_v2(uuid *to, device of) {
    memset(to, 0x50 + (instance() ? instance() : of), sizeof *to);
    return SUCCESS;
}

/* Fabric handles, and MPS, which STAND_IN_MPS has: "old": as a driver that does not know the question. */
result cuDeviceGetAttribute(int *value, int attribute, device of) {
    (void)of;
    must(attribute == 128 || attribute == 133, "only fabric handles and MPS are asked for");
    const char *mps = getenv("STAND_IN_MPS");
    if (attribute == 133 && mps && strcmp(mps, "old") == 0) return INVALID_VALUE;
    *value = attribute == 128 || mps != NULL;
    return SUCCESS;
}

/* As on a GPU that could share memory over NVLink, in a process that has no IMEX channel. */
result cuMemGetAllocationGranularity(size_t *unit, const void *of, int which) {
    (void)of, (void)which;
    *unit = 2 << 20;
    return SUCCESS;
}

result cuMemCreate(uint64_t *handle, size_t bytes, const void *of, uint64_t flags) {
    (void)handle, (void)of;
    must(bytes % (2 << 20) == 0 && flags == 0, "whole units, and no flags");
    if (is_forbidden("cuMemCreate")) return CAPTURE_UNSUPPORTED;
    return NOT_PERMITTED;
}

result cuDevicePrimaryCtxRetain(context *of, device on) {
    if (is_forbidden("cuDevicePrimaryCtxRetain")) return CAPTURE_UNSUPPORTED;
    contexts[on].retained = 1;
    *of = &contexts[on];
    return SUCCESS;
}

result cuDevicePrimaryCtxGetState(device on, unsigned *flags, int *active) {
    *flags = 0;
    *active = contexts[on].retained;
    return SUCCESS;
}

result cuCtxPushCurrent_v2(context of) {
    must((of == &contexts[0] || of == &contexts[1]) && of->retained, "no such context");
    must(depth < STACK, "contexts are pushed and not popped");
    stack[depth++] = of;
    return SUCCESS;
}

result cuCtxPopCurrent_v2(context *of) {
    must(mode == GLOBAL, "the thread has its own mode back");
    *of = current();
    depth--;
    return SUCCESS;
}

result cuPointerGetAttributes(unsigned count, int *asked, void **to, pointer address) {
    static const int expected[] = { 2, 9, 8, 11, 12 };
    must(count == 5 && memcmp(asked, expected, sizeof expected) == 0, "other attributes than expected");
    if (is_forbidden("cuPointerGetAttributes")) return CAPTURE_UNSUPPORTED;
    if (!is_begun()) return NOT_INITIALIZED;
    if (depth == 0) return INVALID_CONTEXT;
    pthread_mutex_lock(&lock);
    struct allocation *known = find(address, 1);
    int pinned = pinned_at(address);
    *(unsigned *)to[0] = known ? 2 : pinned >= 0 ? 1 : 0;
    *(int *)to[1] = known ? known->on : pinned >= 0 ? 0 : -2;
    *(unsigned *)to[2] = 0;
    *(pointer *)to[3] = known ? known->base : pinned >= 0 ? registered[pinned].base : 0;
    *(size_t *)to[4] = known ? known->bytes : pinned >= 0 ? registered[pinned].bytes : 0;
    pthread_mutex_unlock(&lock);
    return SUCCESS;
}

static result add(pointer *address, size_t bytes, int fd, int imported) {
    if (fd < 0 || bytes == 0 || bytes > TOTAL) return bytes > TOTAL ? OUT_OF_MEMORY : INVALID_VALUE;
    void *base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    must(base != MAP_FAILED, "mmap");
    pthread_mutex_lock(&lock);
    int i = 0;
    while (i < ROOM && allocations[i].base) i++;
    must(i < ROOM, "too many allocations");
    allocations[i] = (struct allocation){ (pointer)base, bytes, current()->of, fd, imported };
    pthread_mutex_unlock(&lock);
    *address = (pointer)base;
    return SUCCESS;
}

static result let_go(pointer address, int imported) {
    if (is_forbidden("cuMemFree or cuIpcCloseMemHandle")) return CAPTURE_UNSUPPORTED;
    pthread_mutex_lock(&lock);
    struct allocation *known = find(address, 1);
    must(known && known->base == address && known->imported == imported, "what is freed was not allocated so");
    must(current()->of == known->on, "it is freed in another context");
    munmap((void *)known->base, known->bytes);
    close(known->fd);
    known->base = 0;
    pthread_mutex_unlock(&lock);
    return SUCCESS;
}

result cuMemAlloc_v2(pointer *address, size_t bytes) {
    if (is_forbidden("cuMemAlloc")) return CAPTURE_UNSUPPORTED;
    if (bytes > TOTAL) return OUT_OF_MEMORY;
    int fd = memfd_create("stand-in", MFD_CLOEXEC);
    must(fd >= 0 && ftruncate(fd, bytes) == 0, "memfd");
    return add(address, bytes, fd, 0);
}

result cuMemFree_v2(pointer address) { return let_go(address, 0); }

/* Whether an address is mapped for reading only, as /proc/self/maps has it. */
static int is_read_only(pointer address) {
    FILE *maps = fopen("/proc/self/maps", "r");
    must(maps != NULL, "/proc/self/maps");
    unsigned long long begin, end;
    char access[5];
    int found = 0;
    while (!found && fscanf(maps, "%llx-%llx %4s%*[^\n]", &begin, &end, access) == 3) found = begin <= address && address < end;
    fclose(maps);
    return found && access[1] != 'w';
}

result cuMemHostRegister_v2(void *base, size_t bytes, unsigned flags) {
    current();
    if (is_forbidden("cuMemHostRegister")) return CAPTURE_UNSUPPORTED;
    must((flags & ~8u) == 1, "pinned for all contexts");
    if (is_read_only((pointer)base) != (flags == 9)) return INVALID_VALUE;
    pthread_mutex_lock(&lock);
    int free = -1;
    /* Pages are pinned, so who shares one with others comes too late. */
    pointer first = (pointer)base / 4096, last = ((pointer)base + bytes - 1) / 4096;
    for (int i = 0; i < ROOM; i++) {
        if (registered[i].bytes == 0) free = i;
        else if (registered[i].base / 4096 <= last && (registered[i].base + registered[i].bytes - 1) / 4096 >= first) {
            pthread_mutex_unlock(&lock);
            return ALREADY_REGISTERED;
        }
    }
    must(free >= 0, "too much is pinned");
    registered[free].base = (uint64_t)base;
    registered[free].bytes = bytes;
    pthread_mutex_unlock(&lock);
    return SUCCESS;
}

result cuMemHostUnregister(void *base) {
    current();
    if (is_forbidden("cuMemHostUnregister")) return CAPTURE_UNSUPPORTED;
    pthread_mutex_lock(&lock);
    int found = 0;
    for (int i = 0; i < ROOM; i++) {
        if (registered[i].bytes && registered[i].base == (uint64_t)base) registered[i].bytes = 0, found = 1;
    }
    pthread_mutex_unlock(&lock);
    must(found, "what is not pinned is let go");
    return SUCCESS;
}

result cuStreamCreate(stream *made, unsigned flags) {
    if (is_forbidden("cuStreamCreate")) return CAPTURE_UNSUPPORTED;
    must(flags == 1, "streams wait for no other one");
    *made = calloc(1, sizeof **made);
    (*made)->of = current();
    pthread_mutex_lock(&lock);
    int i = 0;
    while (i < ROOM && streams[i]) i++;
    must(i < ROOM, "too many streams");
    streams[i] = *made;
    pthread_mutex_unlock(&lock);
    return SUCCESS;
}

/* What is in it goes on; only its row comes free. */
result cuStreamDestroy_v2(stream of) {
    if (is_forbidden("cuStreamDestroy")) return CAPTURE_UNSUPPORTED;
    must(of->of == current(), "another context's stream");
    pthread_mutex_lock(&lock);
    for (int i = 0; i < ROOM; i++) {
        if (streams[i] == of && !of->first) streams[i] = NULL, free(of);
    }
    pthread_mutex_unlock(&lock);
    return SUCCESS;
}

result cuStreamSynchronize(stream of) {
    if (is_forbidden("cuStreamSynchronize")) return CAPTURE_UNSUPPORTED;
    must(of->of == current(), "another context's stream");
    pthread_mutex_lock(&lock);
    drain(of);
    pthread_mutex_unlock(&lock);
    return SUCCESS;
}

result cuStreamWaitEvent(stream of, event until, unsigned flags) {
    if (is_forbidden("cuStreamWaitEvent")) return CAPTURE_UNSUPPORTED;
    must(of->of == current() && until->recorded && flags == 0, "a stream waits for an event that was recorded");
    pthread_mutex_lock(&lock);
    put(of, (struct step){ .kind = WAIT, .event = until, .number = until->recorded });
    pthread_mutex_unlock(&lock);
    return SUCCESS;
}

result cuEventCreate(event *made, unsigned flags) {
    if (is_forbidden("cuEventCreate")) return CAPTURE_UNSUPPORTED;
    must(flags == 2, "events do not measure time");
    *made = calloc(1, sizeof **made);
    (*made)->of = current();
    return SUCCESS;
}

/* Streams may still wait for it, so it stays. */
result cuEventDestroy_v2(event of) {
    if (is_forbidden("cuEventDestroy")) return CAPTURE_UNSUPPORTED;
    must(of->of == current(), "another context's event");
    return SUCCESS;
}

/* The default stream has nothing in it here. */
result cuEventRecord(event of, stream in) {
    if (is_forbidden("cuEventRecord")) return CAPTURE_UNSUPPORTED;
    must(of->of == current() && (!in || in->of == current()), "event and stream are of one context");
    pthread_mutex_lock(&lock);
    of->recorded++;
    if (in) put(in, (struct step){ .kind = MARK, .event = of, .number = of->recorded });
    else of->passed = of->recorded;
    pthread_mutex_unlock(&lock);
    return SUCCESS;
}

result cuEventQuery(event of) {
    if (is_forbidden("cuEventQuery")) return CAPTURE_UNSUPPORTED;
    pthread_mutex_lock(&lock);
    must(of->recorded, "an event that was recorded");
    int is_over = of->passed >= of->recorded;
    pthread_mutex_unlock(&lock);
    return is_over ? SUCCESS : NOT_READY;
}

/* A call of the program's only. */
result cuLaunchHostFunc(stream in, void (*function)(void *), void *data) {
    pthread_mutex_lock(&lock);
    put(in, (struct step){ .kind = HOST, .function = function, .data = data });
    pthread_mutex_unlock(&lock);
    return SUCCESS;
}

/* These two as well, and the next one. */
result cuStreamBeginCapture_v2(stream of, unsigned kind) {
    must(kind == GLOBAL && !of->is_captured, "the program captures for all threads");
    of->is_captured = 1;
    of->is_spoilt = 0;
    return SUCCESS;
}

result cuStreamEndCapture(stream of, void **graph) {
    must(of->is_captured, "it was begun");
    of->is_captured = 0;
    *graph = NULL;
    return of->is_spoilt ? CAPTURE_INVALIDATED : SUCCESS;
}

result cuGraphDestroy(void *graph) { must(graph == NULL, "a graph"); return SUCCESS; }

/* The default stream waits for none of ours. */
result cuStreamIsCapturing(stream of, unsigned *status) {
    *status = of ? (unsigned)of->is_captured : 0;
    return SUCCESS;
}

/* Whether a range of the host is pinned as a whole: 1; not at all: 0; in part: -1. */
static int is_pinned(pointer address, size_t bytes) {
    int first = pinned_at(address), last = pinned_at(address + bytes - 1);
    if (first < 0 && last < 0) return 0;
    return first == last ? 1 : -1;
}

/* One end on the host, or both on one device. */
result cuMemcpyAsync(pointer to, pointer from, size_t bytes, stream in) {
    if (is_forbidden("cuMemcpyAsync")) return CAPTURE_UNSUPPORTED;
    must(in->of == current(), "another context's stream");
    pthread_mutex_lock(&lock);
    struct allocation *ends[] = { find(to, bytes), find(from, bytes) };
    must(ends[0] || ends[1], "one end is on a device");
    must(!(ends[0] && ends[1]) || ends[0]->on == ends[1]->on, "between devices it is another call");
    int pinned = ends[0] && ends[1] ? 1 : is_pinned(ends[0] ? from : to, bytes);
    if (pinned >= 0) put(in, (struct step){ .kind = COPY, .to = to, .from = from, .bytes = bytes });
    if (pinned == 0) drain(in);
    pthread_mutex_unlock(&lock);
    return pinned < 0 ? INVALID_VALUE : SUCCESS;
}

result cuMemcpyPeerAsync(pointer to, context into, pointer from, context out_of, size_t bytes, stream in) {
    if (is_forbidden("cuMemcpyPeerAsync")) return CAPTURE_UNSUPPORTED;
    must(in->of == current() && into != out_of, "between two contexts");
    pthread_mutex_lock(&lock);
    struct allocation *ends[] = { find(to, bytes), find(from, bytes) };
    must(ends[0] && ends[0]->on == into->of, "it goes to that device");
    must(ends[1] && ends[1]->on == out_of->of, "it comes from that device");
    put(in, (struct step){ .kind = COPY, .to = to, .from = from, .bytes = bytes });
    pthread_mutex_unlock(&lock);
    return SUCCESS;
}

result cuDeviceCanAccessPeer(int *can, device near, device far) { *can = near != far; return SUCCESS; }

result cuCtxEnablePeerAccess(context far, unsigned flags) {
    device near = current()->of;
    if (is_forbidden("cuCtxEnablePeerAccess")) return CAPTURE_UNSUPPORTED;
    must(far->of != near && flags == 0, "another device");
    if (reached[near][far->of]) return ALREADY_ENABLED;
    reached[near][far->of] = 1;
    return SUCCESS;
}

result cuIpcGetMemHandle(ipc_handle *made, pointer address) {
    if (is_forbidden("cuIpcGetMemHandle")) return CAPTURE_UNSUPPORTED;
    pthread_mutex_lock(&lock);
    struct allocation *known = find(address, 1);
    must(known && known->base == address, "only what an allocation begins with is exported");
    memset(made, 0, sizeof *made);
    int words[] = { getpid(), known->fd };
    memcpy(made->reserved + 56, words, sizeof words);
    uint64_t bytes = known->bytes;
    memcpy(made->reserved, &bytes, sizeof bytes);
    pthread_mutex_unlock(&lock);
    return SUCCESS;
}

result cuIpcOpenMemHandle_v2(pointer *address, ipc_handle of, unsigned flags) {
    if (is_forbidden("cuIpcOpenMemHandle")) return CAPTURE_UNSUPPORTED;
    must(flags == 1, "peers are reached when they are needed");
    int words[2];
    uint64_t bytes;
    char path[64];
    memcpy(words, of.reserved + 56, sizeof words);
    memcpy(&bytes, of.reserved, sizeof bytes);
    snprintf(path, sizeof path, "/proc/%d/fd/%d", words[0], words[1]);
    return add(address, bytes, open(path, O_RDWR | O_CLOEXEC), 1);
}

result cuIpcCloseMemHandle(pointer address) { return let_go(address, 1); }

result cuMemGetHandleForAddressRange(void *made, pointer address, size_t bytes, int kind, unsigned long long flags) {
    must(kind == 1 && flags == 0 && (address | bytes) % sysconf(_SC_PAGESIZE) == 0, "a DMA-BUF of the host's whole pages");
    if (is_forbidden("cuMemGetHandleForAddressRange")) return CAPTURE_UNSUPPORTED;
    pthread_mutex_lock(&lock);
    struct allocation *known = find(address, bytes);
    int fd = known ? fcntl(known->fd, F_DUPFD_CLOEXEC, 0) : -1;
    pthread_mutex_unlock(&lock);
    if (fd < 0) return INVALID_VALUE;
    memcpy(made, &fd, sizeof fd);
    return SUCCESS;
}

/* No memory here is shared over NVLink, so these are never called. */
#define NEVER(name) result name(void) { must(0, #name); return SUCCESS; }
NEVER(cuMemRelease)
NEVER(cuMemRetainAllocationHandle)
NEVER(cuMemExportToShareableHandle)
NEVER(cuMemImportFromShareableHandle)
NEVER(cuMemAddressReserve)
NEVER(cuMemAddressFree)
NEVER(cuMemMap)
NEVER(cuMemUnmap)
NEVER(cuMemSetAccess)
