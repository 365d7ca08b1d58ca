/* Notes every call by which a process changes files below a directory, in the order of their ends.
 *
 * Preloaded (LD_PRELOAD) into a program: TASKQ_RECORD names the file of notes, TASKQ_RECORD_UNDER
 * what paths begin with. One lock is held from before each call until it is noted, so that no
 * write is noted before a sync that did not see it. A note is a line of text,
 *     OPERATION OFFSET SIZE LENGTH LENGTH\n
 * and then two paths (or a path and the bytes written) of those lengths.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int notes = -1;
static const char *under = NULL;
static pid_t recorded = 0;

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("TASKQ_RECORD");
    under = getenv("TASKQ_RECORD_UNDER");
    if (path && under) {
        notes = (int)syscall(SYS_openat, AT_FDCWD, path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
        recorded = getpid();
    }
}

static int watched(const char *path) {
    return notes >= 0 && getpid() == recorded && strncmp(path, under, strlen(under)) == 0;
}

static void note(const char *operation, long long offset, long long size, const char *path,
                 const void *data, size_t length) {
    char head[128];
    int count = snprintf(head, sizeof head, "%s %lld %lld %zu %zu\n", operation, offset, size,
                         strlen(path), length);
    struct iovec parts[3] = {
        {head, (size_t)count}, {(void *)path, strlen(path)}, {(void *)data, length}};
    if (syscall(SYS_writev, notes, parts, 3) < 0) abort();
}

/* The path of a descriptor; empty for those that are none of ours. */
static int path_of(int descriptor, char *path) {
    char link[64];
    if (notes < 0) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    ssize_t length = syscall(SYS_readlinkat, AT_FDCWD, link, path, PATH_MAX - 1);
    if (length < 0) return 0;
    path[length] = 0;
    return watched(path);
}

/* The whole path of a name in a directory. */
static int path_at(int directory, const char *name, char *path) {
    if (name[0] == '/' || directory == AT_FDCWD) {
        snprintf(path, PATH_MAX, "%s", name);
        return watched(path);
    }
    char folder[PATH_MAX];
    if (!path_of(directory, folder)) return 0;
    return snprintf(path, PATH_MAX, "%s/%s", folder, name) < PATH_MAX;
}

#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define WITH_LOCK(type, call, done)      \
    pthread_mutex_lock(&lock);           \
    type result = call;                  \
    int error = errno;                   \
    if (result >= 0) done;               \
    pthread_mutex_unlock(&lock);         \
    errno = error;                       \
    return result

static ssize_t written(int descriptor, const void *data, size_t size, off64_t offset, int at_end) {
    char path[PATH_MAX];
    if (!path_of(descriptor, path)) {
        return at_end ? syscall(SYS_write, descriptor, data, size)
                      : syscall(SYS_pwrite64, descriptor, data, size, offset);
    }
    pthread_mutex_lock(&lock);
    ssize_t result;
    if (at_end) {
        struct stat facts;
        int append = fcntl(descriptor, F_GETFL) & O_APPEND;
        fstat(descriptor, &facts);
        offset = append ? facts.st_size : lseek64(descriptor, 0, SEEK_CUR);
        result = syscall(SYS_write, descriptor, data, size);
    } else {
        result = syscall(SYS_pwrite64, descriptor, data, size, offset);
    }
    int error = errno;
    if (result > 0) note("write", offset, result, path, data, (size_t)result);
    pthread_mutex_unlock(&lock);
    errno = error;
    return result;
}

ssize_t write(int descriptor, const void *data, size_t size) {
    return written(descriptor, data, size, 0, 1);
}
ssize_t pwrite(int descriptor, const void *data, size_t size, off_t offset) {
    return written(descriptor, data, size, offset, 0);
}
ssize_t pwrite64(int descriptor, const void *data, size_t size, off64_t offset) {
    return written(descriptor, data, size, offset, 0);
}

static int opened(int directory, const char *name, int flags, mode_t mode) {
    char path[PATH_MAX];
    if (!(flags & (O_CREAT | O_TRUNC)) || !path_at(directory, name, path)) {
        return (int)syscall(SYS_openat, directory, name, flags, mode);
    }
    struct stat facts;
    WITH_LOCK(int, (int)syscall(SYS_openat, directory, name, flags, mode), {
        fstat(result, &facts);
        note(flags & O_TRUNC ? "empty" : "create", 0, S_ISREG(facts.st_mode), path, "", 0);
    });
}

#define MODE                                \
    mode_t mode = 0;                        \
    if (flags & (O_CREAT | O_TMPFILE)) {    \
        va_list rest;                       \
        va_start(rest, flags);              \
        mode = va_arg(rest, mode_t);        \
        va_end(rest);                       \
    }
int open(const char *path, int flags, ...) { MODE return opened(AT_FDCWD, path, flags, mode); }
int open64(const char *path, int flags, ...) { MODE return opened(AT_FDCWD, path, flags, mode); }
int openat(int at, const char *path, int flags, ...) { MODE return opened(at, path, flags, mode); }
int openat64(int at, const char *path, int flags, ...) { MODE return opened(at, path, flags, mode); }

static int synced(int descriptor, long number) {
    char path[PATH_MAX];
    if (!path_of(descriptor, path)) return (int)syscall(number, descriptor);
    WITH_LOCK(int, (int)syscall(number, descriptor), note("sync", 0, 0, path, "", 0));
}
int fsync(int descriptor) { return synced(descriptor, SYS_fsync); }
int fdatasync(int descriptor) { return synced(descriptor, SYS_fdatasync); }

static int cut(int descriptor, off64_t size) {
    char path[PATH_MAX];
    if (!path_of(descriptor, path)) return (int)syscall(SYS_ftruncate, descriptor, size);
    WITH_LOCK(int, (int)syscall(SYS_ftruncate, descriptor, size),
              note("truncate", 0, size, path, "", 0));
}
int ftruncate(int descriptor, off_t size) { return cut(descriptor, size); }
int ftruncate64(int descriptor, off64_t size) { return cut(descriptor, size); }

static int allocated(int descriptor, off64_t offset, off64_t size) {
    char path[PATH_MAX];
    if (!path_of(descriptor, path)) return NEXT(posix_fallocate64)(descriptor, offset, size);
    pthread_mutex_lock(&lock);
    int result = NEXT(posix_fallocate64)(descriptor, offset, size);
    if (!result) note("allocate", 0, offset + size, path, "", 0);
    pthread_mutex_unlock(&lock);
    return result;
}
int posix_fallocate(int descriptor, off_t offset, off_t size) {
    return allocated(descriptor, offset, size);
}
int posix_fallocate64(int descriptor, off64_t offset, off64_t size) {
    return allocated(descriptor, offset, size);
}

/* What names two paths: the second stands where others have their data. */
#define TWO(operation, call)                                                              \
    char source[PATH_MAX], target[PATH_MAX];                                              \
    if (!path_at(from, a, source) || !path_at(to, b, target)) return (int)(call);         \
    WITH_LOCK(int, (int)(call), note(operation, 0, 0, source, target, strlen(target)))
#define BETWEEN(from, to) syscall(SYS_renameat2, from, a, to, b, 0)
int renameat(int from, const char *a, int to, const char *b) { TWO("rename", BETWEEN(from, to)); }
int rename(const char *a, const char *b) { return renameat(AT_FDCWD, a, AT_FDCWD, b); }
int linkat(int from, const char *a, int to, const char *b, int flags) {
    TWO("link", syscall(SYS_linkat, from, a, to, b, flags));
}
int link(const char *a, const char *b) { return linkat(AT_FDCWD, a, AT_FDCWD, b, 0); }

#define ONE(operation, call)                        \
    char path[PATH_MAX];                            \
    if (!path_at(at, name, path)) return (int)(call); \
    WITH_LOCK(int, (int)(call), note(operation, 0, 0, path, "", 0))
int unlinkat(int at, const char *name, int flags) {
    ONE("remove", syscall(SYS_unlinkat, at, name, flags));
}
int unlink(const char *name) { return unlinkat(AT_FDCWD, name, 0); }
int rmdir(const char *name) { return unlinkat(AT_FDCWD, name, AT_REMOVEDIR); }
int mkdirat(int at, const char *name, mode_t mode) {
    ONE("make_directory", syscall(SYS_mkdirat, at, name, mode));
}
int mkdir(const char *name, mode_t mode) { return mkdirat(AT_FDCWD, name, mode); }
