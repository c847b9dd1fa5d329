/* A libcuda.so.1 for machines without GPUs: so much of CUDA's driver as polyrail calls, over host memory. It is there so
 * that the binding itself runs: the library is loaded, every function found, and called with the arguments that CUDA's header
 * gives it. Copies are done when they are asked for. What it is asked wrongly ends the process, with a word. */
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
    SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, INVALID_DEVICE = 101, INVALID_CONTEXT = 201,
    ALREADY_ENABLED = 704, ALREADY_REGISTERED = 712, NOT_SUPPORTED = 801,
    DEVICES = 2, ROOM = 1024, TOTAL = 1 << 30, STACK = 16,
};

struct context { device of; int retained; };
struct stream { context of; };
struct event { context of; int recorded; };

static struct context contexts[DEVICES] = { { 0, 0 }, { 1, 0 } };
static __thread context stack[STACK];
static __thread int depth;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

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

static struct allocation *find(pointer address, size_t bytes) {
    for (int i = 0; i < ROOM; i++) {
        struct allocation *known = &allocations[i];
        if (known->base && address >= known->base && address + bytes <= known->base + known->bytes) return known;
    }
    return NULL;
}

result cuInit(unsigned flags) { return flags == 0 ? SUCCESS : INVALID_VALUE; }
result cuDriverGetVersion(int *version) { *version = 12040; return SUCCESS; }
result cuDeviceGetCount(int *count) { *count = DEVICES; return SUCCESS; }

result cuDeviceGet(device *of, int ordinal) {
    if (ordinal < 0 || ordinal >= DEVICES) return INVALID_DEVICE;
    *of = ordinal;
    return SUCCESS;
}

result cuDeviceGetName(char *name, int length, device of) {
    snprintf(name, length, "Stand-in %d", of);
    return SUCCESS;
}

result cuDeviceTotalMem_v2(size_t *bytes, device of) { (void)of; *bytes = TOTAL; return SUCCESS; }

result cuDeviceGetPCIBusId(char *id, int length, device of) {
    must(length >= 13, "a PCI address has 12 characters");
    snprintf(id, length, "FFFF:%02X:00.0", of);
    return SUCCESS;
}

result cuDeviceGetAttribute(int *value, int attribute, device of) {
    (void)of;
    must(attribute == 128, "only the attribute of fabric handles is asked for");
    *value = 0;
    return SUCCESS;
}

result cuDevicePrimaryCtxRetain(context *of, device on) {
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
    *of = current();
    depth--;
    return SUCCESS;
}

result cuPointerGetAttributes(unsigned count, int *asked, void **to, pointer address) {
    static const int expected[] = { 2, 9, 8, 11, 12 };
    must(count == 5 && memcmp(asked, expected, sizeof expected) == 0, "other attributes than expected");
    if (depth == 0) return INVALID_CONTEXT;
    pthread_mutex_lock(&lock);
    struct allocation *known = find(address, 1);
    *(unsigned *)to[0] = known ? 2 : 0;
    *(int *)to[1] = known ? known->on : -2;
    *(unsigned *)to[2] = 0;
    *(pointer *)to[3] = known ? known->base : 0;
    *(size_t *)to[4] = known ? known->bytes : 0;
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

static result drop(pointer address, int imported) {
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
    if (bytes > TOTAL) return OUT_OF_MEMORY;
    int fd = memfd_create("stand-in", MFD_CLOEXEC);
    must(fd >= 0 && ftruncate(fd, bytes) == 0, "memfd");
    return add(address, bytes, fd, 0);
}

result cuMemFree_v2(pointer address) { return drop(address, 0); }

result cuMemHostRegister_v2(void *base, size_t bytes, unsigned flags) {
    current();
    must(flags == 1, "pinned for all contexts");
    pthread_mutex_lock(&lock);
    int free = -1;
    for (int i = 0; i < ROOM; i++) {
        if (registered[i].bytes == 0) free = i;
        else if (registered[i].base == (uint64_t)base) {
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
    must(flags == 1, "streams wait for no other one");
    *made = calloc(1, sizeof **made);
    (*made)->of = current();
    return SUCCESS;
}

result cuStreamDestroy_v2(stream of) { must(of->of == current(), "another context's stream"); free(of); return SUCCESS; }
result cuStreamSynchronize(stream of) { must(!of || of->of == current(), "another context's stream"); return SUCCESS; }

result cuStreamWaitEvent(stream of, event until, unsigned flags) {
    must(of->of == current() && until->recorded && flags == 0, "a stream waits for an event that was recorded");
    return SUCCESS;
}

result cuEventCreate(event *made, unsigned flags) {
    must(flags == 2, "events do not measure time");
    *made = calloc(1, sizeof **made);
    (*made)->of = current();
    return SUCCESS;
}

result cuEventDestroy_v2(event of) { must(of->of == current(), "another context's event"); free(of); return SUCCESS; }

result cuEventRecord(event of, stream in) {
    must(of->of == current() && (!in || in->of == current()), "event and stream are of one context");
    of->recorded = 1;
    return SUCCESS;
}

result cuEventQuery(event of) { must(of->recorded, "an event that was recorded"); return SUCCESS; }

result cuMemcpyAsync(pointer to, pointer from, size_t bytes, stream in) {
    must(in->of == current(), "another context's stream");
    pthread_mutex_lock(&lock);
    struct allocation *ends[] = { find(to, bytes), find(from, bytes) };
    must(ends[0] || ends[1], "one end is on a device");
    must(!(ends[0] && ends[1]) || ends[0]->on == ends[1]->on, "between devices it is another call");
    pthread_mutex_unlock(&lock);
    memmove((void *)to, (void *)from, bytes);
    return SUCCESS;
}

result cuMemcpyPeerAsync(pointer to, context into, pointer from, context out_of, size_t bytes, stream in) {
    must(in->of == current() && into != out_of, "between two contexts");
    pthread_mutex_lock(&lock);
    struct allocation *ends[] = { find(to, bytes), find(from, bytes) };
    must(ends[0] && ends[0]->on == into->of, "it goes to that device");
    must(ends[1] && ends[1]->on == out_of->of, "it comes from that device");
    pthread_mutex_unlock(&lock);
    memmove((void *)to, (void *)from, bytes);
    return SUCCESS;
}

result cuDeviceCanAccessPeer(int *can, device near, device far) { *can = near != far; return SUCCESS; }

result cuCtxEnablePeerAccess(context far, unsigned flags) {
    device near = current()->of;
    must(far->of != near && flags == 0, "another device");
    if (reached[near][far->of]) return ALREADY_ENABLED;
    reached[near][far->of] = 1;
    return SUCCESS;
}

result cuIpcGetMemHandle(ipc_handle *made, pointer address) {
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
    must(flags == 1, "peers are reached when they are needed");
    int words[2];
    uint64_t bytes;
    char path[64];
    memcpy(words, of.reserved + 56, sizeof words);
    memcpy(&bytes, of.reserved, sizeof bytes);
    snprintf(path, sizeof path, "/proc/%d/fd/%d", words[0], words[1]);
    return add(address, bytes, open(path, O_RDWR | O_CLOEXEC), 1);
}

result cuIpcCloseMemHandle(pointer address) { return drop(address, 1); }

result cuMemGetHandleForAddressRange(void *made, pointer address, size_t bytes, int kind, unsigned long long flags) {
    (void)made;
    must(kind == 1 && flags == 0 && (address | bytes) % 4096 == 0, "a DMA-BUF of whole pages");
    return NOT_SUPPORTED;
}

/* No device here shares memory over NVLink, so these are never called. */
#define NEVER(name) result name(void) { must(0, #name); return SUCCESS; }
NEVER(cuMemGetAllocationGranularity)
NEVER(cuMemCreate)
NEVER(cuMemRelease)
NEVER(cuMemRetainAllocationHandle)
NEVER(cuMemExportToShareableHandle)
NEVER(cuMemImportFromShareableHandle)
NEVER(cuMemAddressReserve)
NEVER(cuMemAddressFree)
NEVER(cuMemMap)
NEVER(cuMemUnmap)
NEVER(cuMemSetAccess)
