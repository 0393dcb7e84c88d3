/* room.c - how much memory can still be had: what the machine has free, or less where a control
 * group of this process allows less. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "cpu.h"

enum { PATH_MOST = 1024 };

/* A file that holds one number, or lines "key number".  False: no such file, line or number. */
static bool read_number(const char *folder, const char *name, const char *key, uint64_t *value)
{
    char path[PATH_MOST], line[256];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "re");
    bool found = false;
    while (file && !found && fgets(line, sizeof line, file)) {
        size_t skip = key ? strlen(key) : 0;
        if (key && (strncmp(line, key, skip) != 0 || !strchr(": ", line[skip])))
            continue;
        char *end, *digits = line + skip + (key != NULL);
        *value = strtoull(digits, &end, 10);
        found = end != digits;
    }
    if (file)
        fclose(file);
    return found;
}

static void at_most(imx_cpu_room *room, uint64_t bytes, const char *what, const char *name)
{
    if (bytes >= room->bytes)
        return;
    room->bytes = (size_t)bytes;
    snprintf(room->owner, sizeof room->owner, "%s%.80s", what, name);
}

/* The two generations of control groups. */
typedef struct generation {
    const char *controller; /* in /proc/self/cgroup */
    const char *mount, *most, *used, *inactive, *active;
} generation;

static const generation generations[] = {
    { "", "/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file", "active_file" },
    { "memory", "/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes",
      "total_inactive_file", "total_active_file" },
};

/* The group at path and all above it.  Inside a container the upper ones are not to be seen, or the
 * mount shows the own one as its root: what is not there does not count. */
static void look_at_groups(const char *root, const generation *g, char *path, imx_cpu_room *room)
{
    for (char *end = path + strlen(path); end; end = strrchr(path, '/')) {
        *end = '\0';
        char folder[PATH_MOST];
        uint64_t most, used, inactive = 0, active = 0;
        snprintf(folder, sizeof folder, "%s%s%s", root, g->mount, path);
        if (!read_number(folder, g->most, NULL, &most) ||
            !read_number(folder, g->used, NULL, &used))
            continue;
        /* Cached files count as used, but go when memory is wanted.  The kernel takes long to say
         * how much they are: it is asked where that decides. */
        if ((most < used || most - used < room->bytes) &&
            read_number(folder, "memory.stat", g->inactive, &inactive) &&
            read_number(folder, "memory.stat", g->active, &active))
            used -= (uint64_t)imx_min((int64_t)used, (int64_t)(inactive + active));
        at_most(room, most > used ? most - used : 0, "control group /", path[0] ? path + 1 : "");
    }
}

void imx_cpu_room_look(const char *root, imx_cpu_room *room)
{
    *room = (imx_cpu_room){ .bytes = SIZE_MAX };
    char path[PATH_MOST], line[PATH_MOST];
    uint64_t kilobytes;
    snprintf(path, sizeof path, "%s/proc", root);
    if (read_number(path, "meminfo", "MemAvailable", &kilobytes))
        at_most(room, kilobytes * 1024, "the machine", "");

    snprintf(path, sizeof path, "%s/proc/self/cgroup", root);
    FILE *file = fopen(path, "re");
    while (file && fgets(line, sizeof line, file)) { /* 4:memory:/a/b */
        line[strcspn(line, "\n")] = '\0';
        char *controller = strchr(line, ':'), *at = controller ? strchr(controller + 1, ':') : NULL;
        if (!at)
            continue;
        *at = '\0';
        for (size_t i = 0; i < sizeof generations / sizeof generations[0]; i++) {
            if (strcmp(controller + 1, generations[i].controller) == 0)
                look_at_groups(root, &generations[i], at + 1, room);
        }
    }
    if (file)
        fclose(file);
}

imbrex_status imx_cpu_room_check(imx_device *device, size_t bytes, size_t done)
{
    device->taken += bytes < IMX_CPU_ROOM_STEP ? bytes : IMX_CPU_ROOM_STEP;
    if (device->taken < IMX_CPU_ROOM_STEP)
        return IMBREX_OK;
    imx_cpu_room room;
    imx_cpu_room_look("", &room);
    /* All ranks here may be taking as much at this moment: each leaves every other one its step. */
    size_t rest = bytes - done;
    if (rest > IMX_CPU_ROOM_STEP)
        rest += (size_t)device->local_size * IMX_CPU_ROOM_STEP;
    if (rest > room.bytes && !done)
        return imx_fail(IMBREX_NO_MEMORY,
                        "cannot take %zu bytes of memory on each of %d ranks: %s has %zu free",
                        bytes, device->local_size, room.owner, room.bytes);
    if (rest > room.bytes)
        return imx_fail(IMBREX_NO_MEMORY,
                        "cannot take %zu bytes of memory on each of %d ranks: %s has %zu left once "
                        "rank %d has taken %zu of its own",
                        bytes, device->local_size, room.owner, room.bytes, device->rank, done);
    device->taken = 0;
    return IMBREX_OK;
}

imbrex_status imx_cpu_room_refused(const char *what, int error)
{
    struct rlimit limit;
    bool limited = getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
    if (limited && (error == EAGAIN || error == ENOMEM))
        return imx_fail(IMBREX_NO_MEMORY, "cannot %s: %s; RLIMIT_AS (ulimit -v) is %llu kB", what,
                        strerror(error), (unsigned long long)limit.rlim_cur / 1024);
    return imx_fail(error == ENOMEM ? IMBREX_NO_MEMORY : IMBREX_SYSTEM, "cannot %s: %s", what,
                    strerror(error));
}
