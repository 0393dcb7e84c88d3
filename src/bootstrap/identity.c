/* identity.c - where this rank runs: which host, which process. */
#include "identity.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "base/process.h"

imbrex_status imx_identity_process(uint64_t process[2])
{
    static struct {
        pid_t pid;
        uint64_t name[2];
    } known;
    imx_process_lock(IMX_LOCK_IDENTITY);
    bool good = known.pid == getpid();
    if (!good) {
        good = getrandom(known.name, sizeof known.name, 0) == (ssize_t)sizeof known.name;
        known.pid = good ? getpid() : 0;
    }
    memcpy(process, known.name, sizeof known.name);
    imx_process_unlock(IMX_LOCK_IDENTITY);
    return good ? IMBREX_OK : imx_fail_errno("getrandom failed");
}

imbrex_status imx_identity_read(const char *node, imx_identity *identity)
{
    *identity = (imx_identity){ 0 };
    if (strlen(node) >= sizeof identity->node)
        return imx_fail(IMBREX_INVALID, "IMBREX_NODE has %zu characters: at most %zu fit",
                        strlen(node), sizeof identity->node - 1);
    strcpy(identity->node, node);
    if (gethostname(identity->name, sizeof identity->name - 1) != 0)
        strcpy(identity->name, "a host");
    char boot[48] = "";
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    if (fd >= 0) {
        ssize_t got = read(fd, boot, sizeof boot - 1);
        boot[got > 0 ? got : 0] = '\0';
        boot[strcspn(boot, "\n")] = '\0';
        close(fd);
    }
    if (!boot[0] && gethostname(boot, sizeof boot - 1) != 0)
        return imx_fail_errno("neither /proc/sys/kernel/random/boot_id nor a host name is there");
    char network[32] = ""; /* abstract sockets do not leave a network namespace */
    if (readlink("/proc/self/ns/net", network, sizeof network - 1) < 0)
        network[0] = '\0';
    snprintf(identity->host, sizeof identity->host, "%s %s", boot, network);
    return imx_identity_process(identity->process);
}
