/* Loaded before the C library: calls of one kind take longer, once slow_down was called.
 *
 * A call that the event loop waits for is counted: its own, one that keeps the GIL, and one within
 * which the loop does not beat.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define STEP 1000
#define STEPS_MAX 20000

extern int PyGILState_Check(void);

volatile int beats;
static volatile int microseconds, calls, waits;
static char slow[16];

void slow_down(const char *name, int delay) {
    strncpy(slow, name, sizeof slow - 1);
    microseconds = delay;
    calls = waits = 0;
}

int slow_calls(void) { return calls; }

int loop_waits(void) { return waits; }

static void wait_in(const char *name) {
    if (!microseconds || strcmp(name, slow)) return;
    __sync_fetch_and_add(&calls, 1);
    int before = beats, stands = gettid() == getpid() || PyGILState_Check();
    usleep(microseconds);
    /* Two beats: one may be under way as the call begins. */
    for (int step = 0; !stands && beats - before < 2; step++) {
        stands = step > STEPS_MAX;
        usleep(STEP);
    }
    if (stands) __sync_fetch_and_add(&waits, 1);
}

ssize_t pwrite(int file, const void *data, size_t size, off_t offset) {
    wait_in("pwrite");
    return syscall(SYS_pwrite64, file, data, size, offset);
}

ssize_t pwrite64(int file, const void *data, size_t size, off_t offset) {
    return pwrite(file, data, size, offset);
}

ssize_t pread(int file, void *data, size_t size, off_t offset) {
    wait_in("pread");
    return syscall(SYS_pread64, file, data, size, offset);
}

ssize_t pread64(int file, void *data, size_t size, off_t offset) {
    return pread(file, data, size, offset);
}

int flock(int file, int operation) {
    wait_in("flock");
    return syscall(SYS_flock, file, operation);
}

int statx(int directory, const char *path, int flags, unsigned int mask, struct statx *status) {
    wait_in("statx");
    return syscall(SYS_statx, directory, path, flags, mask, status);
}

int stat(const char *path, struct stat *status) {
    wait_in("statx");
    return fstatat(AT_FDCWD, path, status, 0);
}

int stat64(const char *path, struct stat64 *status) {
    return stat(path, (struct stat *)status);
}
