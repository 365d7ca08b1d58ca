/* Loaded before the C library: calls of one kind take longer, once slow_down was called. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static volatile int microseconds, calls;
static char slow[16];

void slow_down(const char *name, int delay) {
    strncpy(slow, name, sizeof slow - 1);
    microseconds = delay;
    calls = 0;
}

int slow_calls(void) { return calls; }

static void wait_in(const char *name) {
    if (!microseconds || strcmp(name, slow)) return;
    __sync_fetch_and_add(&calls, 1);
    usleep(microseconds);
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
