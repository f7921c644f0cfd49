/* Opening anything in a folder named `silent` never returns, as on a file server that is gone. For LD_PRELOAD. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <string.h>
#include <unistd.h>

#define WRAP(name, before, names)                                                                    \
    int name(before const char *path, int flags, ...) {                                              \
        int (*real)(before const char *, int, ...) = dlsym(RTLD_NEXT, #name);                        \
        va_list more;                                                                                \
        va_start(more, flags);                                                                       \
        mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(more, mode_t) : 0;                      \
        va_end(more);                                                                                \
        while (path && strstr(path, "/silent/")) pause();                                            \
        return real(names path, flags, mode);                                                        \
    }
#define NOTHING
#define FOLDER int folder,
#define AS_GIVEN folder,

WRAP(open, NOTHING, NOTHING)
WRAP(open64, NOTHING, NOTHING)
WRAP(openat, FOLDER, AS_GIVEN)
WRAP(openat64, FOLDER, AS_GIVEN)
