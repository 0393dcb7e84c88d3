/* fake_nvrtc.c - a compiler whose cubins say which source they are of. */
#include "fake_nvrtc.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct nvrtc_program {
    char cubin[160];
    bool wrong; /* its text says so */
};

static int version(int *major, int *minor)
{
    *major = 13;
    *minor = 0;
    return 0;
}

static int create(nvrtcProgram *program, const char *text, const char *name, int headers,
                  const char *const *header_texts, const char *const *header_names)
{
    (void)header_texts;
    (void)header_names;
    if (fake_driver_may_fail("nvrtcCreateProgram") || !*text || headers < 2)
        return 1;
    *program = calloc(1, sizeof **program);
    snprintf((*program)->cubin, sizeof(*program)->cubin, "%s%s", FAKE_CUBIN, name);
    (*program)->wrong = strstr(text, "#error\n"); /* those of our own say why */
    fake_driver_count(1);
    return 0;
}

static int compile(nvrtcProgram program, int options, const char *const *words)
{
    fake_driver_count_compiled();
    return fake_driver_may_fail("nvrtcCompileProgram") || program->wrong || options < 1 ||
           strncmp(words[0], "--gpu-architecture=sm_", 22) != 0;
}

static int cubin_size(nvrtcProgram program, size_t *bytes)
{
    *bytes = strlen(program->cubin) + 1;
    return fake_driver_may_fail("nvrtcGetCUBINSize");
}

static int cubin(nvrtcProgram program, char *to)
{
    strcpy(to, program->cubin);
    return fake_driver_may_fail("nvrtcGetCUBIN");
}

static const char said[] = "warning: something\nkernel.cu(3): error: something else\n"
                           "ptxas info    : Compiling entry function 'k' for 'sm_90a'\n"
                           "    144 bytes stack frame, 1024 bytes spill stores, 36 bytes spill "
                           "loads\nptxas info    : Used 128 registers, used 1 barriers\n";

static int log_size(nvrtcProgram program, size_t *bytes)
{
    (void)program;
    *bytes = sizeof said;
    return 0;
}

static int get_log(nvrtcProgram program, char *log)
{
    (void)program;
    strcpy(log, said);
    return 0;
}

static int destroy(nvrtcProgram *program)
{
    free(*program);
    *program = NULL;
    fake_driver_count(-1);
    return 0;
}

const imx_nvrtc_calls fake_nvrtc_calls = { version, create,   compile, cubin_size,
                                           cubin,   log_size, get_log, destroy };
