/* A disk that refuses, is slow or stalls, for one folder of one process: preloaded, it stands between a program and
 * the C library. The script is read anew for every call, so a test may change it at any time. Its lines:
 *
 *     write error 122        every write fails with this errno
 *     fsync sleep 2.5        every fsync takes this many seconds, and is then done
 *     write hold 0           no write returns before the script says something else
 *
 * The calls are open, write, fsync, rename and read. Each that was delayed or refused is a line in the trace.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

static int is_inside(const char *path) {
    const char *folder = getenv("FAULTY_DISK_FOLDER");
    return folder && path && strncmp(path, folder, strlen(folder)) == 0;
}

static int is_file_inside(int fd) {
    char link[64], path[PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t size = readlink(link, path, sizeof path - 1);
    if (size < 0) return 0;
    path[size] = 0;
    return is_inside(path);
}

static int is_path_inside(int folder, const char *path) {
    char whole[PATH_MAX], link[64];
    if (path[0] != '/') {
        snprintf(link, sizeof link, folder == AT_FDCWD ? "/proc/self/cwd" : "/proc/self/fd/%d", folder);
        ssize_t size = readlink(link, whole, sizeof whole - 1);
        if (size < 0) return 0;
        snprintf(whole + size, sizeof whole - size, "/%s", path);
        return is_inside(whole);
    }
    if (strncmp(path, "/proc/self/fd/", 14) == 0) return is_file_inside(atoi(path + 14));
    return is_inside(path);
}

static void trace(const char *call) {
    const char *name = getenv("FAULTY_DISK_TRACE");
    long file = name ? syscall(SYS_openat, AT_FDCWD, name, O_WRONLY | O_APPEND | O_CREAT, 0600) : -1;
    if (file < 0) return;
    char line[32];
    int size = snprintf(line, sizeof line, "%s\n", call);
    syscall(SYS_write, file, line, size);
    syscall(SYS_close, file);
}

/* What the script says of a call now: 0 if nothing. */
static int look_up(const char *call, char *what, double *value) {
    char script[4096], name[16];
    const char *path = getenv("FAULTY_DISK_SCRIPT");
    long file = path ? syscall(SYS_openat, AT_FDCWD, path, O_RDONLY) : -1;
    if (file < 0) return 0;
    long size = syscall(SYS_read, file, script, sizeof script - 1);
    syscall(SYS_close, file);
    script[size < 0 ? 0 : size] = 0;
    for (char *line = script; line; line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL)
        if (sscanf(line, "%15s %15s %lf", name, what, value) == 3 && strcmp(name, call) == 0) return 1;
    return 0;
}

static void pause_for(double seconds) {
    struct timespec pause = {(time_t)seconds, (long)((seconds - (time_t)seconds) * 1e9)};
    while (nanosleep(&pause, &pause) < 0 && errno == EINTR) {
    }
}

/* The errno of the call, 0 if it is to be made. */
static int consult(const char *call) {
    char what[16];
    double value;
    if (!look_up(call, what, &value)) return 0;
    trace(call);
    while (strcmp(what, "hold") == 0) {
        pause_for(0.02);
        if (!look_up(call, what, &value)) return 0;
    }
    if (strcmp(what, "error") == 0) return (int)value;
    pause_for(value);
    return 0;
}

#define REFUSE_IF(inside, call)                                                                                        \
    if (inside) {                                                                                                      \
        int error = consult(call);                                                                                     \
        if (error) {                                                                                                   \
            errno = error;                                                                                             \
            return -1;                                                                                                 \
        }                                                                                                              \
    }

ssize_t write(int fd, const void *data, size_t size) {
    REFUSE_IF(is_file_inside(fd), "write");
    return REAL(write)(fd, data, size);
}

ssize_t pwrite64(int fd, const void *data, size_t size, off64_t place) {
    REFUSE_IF(is_file_inside(fd), "write");
    return REAL(pwrite64)(fd, data, size, place);
}

ssize_t pwrite(int fd, const void *data, size_t size, off_t place) {
    REFUSE_IF(is_file_inside(fd), "write");
    return REAL(pwrite)(fd, data, size, place);
}

ssize_t read(int fd, void *data, size_t size) {
    REFUSE_IF(is_file_inside(fd), "read");
    return REAL(read)(fd, data, size);
}

int fsync(int fd) {
    REFUSE_IF(is_file_inside(fd), "fsync");
    return REAL(fsync)(fd);
}

int rename(const char *from, const char *to) {
    REFUSE_IF(is_path_inside(AT_FDCWD, to), "rename");
    return REAL(rename)(from, to);
}

#define OPEN(name)                                                                                                     \
    int name(const char *path, int flags, ...) {                                                                       \
        va_list more;                                                                                                  \
        va_start(more, flags);                                                                                         \
        mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(more, mode_t) : 0;                                        \
        va_end(more);                                                                                                  \
        REFUSE_IF(is_path_inside(AT_FDCWD, path), "open");                                                             \
        return REAL(name)(path, flags, mode);                                                                          \
    }

OPEN(open)
OPEN(open64)
