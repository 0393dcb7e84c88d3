/* parts.c - checks of what imbrex loads: the driver and its GPUs, compilers, libraries. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli.h"
#include "cuda.h"
#include "doctor.h"

/* How many GPUs the driver has, and how many of them can be used; false: there is no driver. */
static bool read_gpus(const doctor_view *view, int *usable, int *count)
{
    char value[256];
    *usable = *count = 0;
    return doctor_line(view, "device cuda", value, sizeof value) &&
           sscanf(value, "%d of %d", usable, count) == 2;
}

static bool has_gpu(const doctor_view *view)
{
    int usable, count;
    return read_gpus(view, &usable, &count) && usable > 0;
}

/* ---- GPUs ------------------------------------------------------------------------------------ */

void doctor_gpus(const doctor_view *view, doctor_finding *found)
{
    static const char cost[] = "ranks compute on the CPU; kernels for GPUs can be compiled ahead";
    char value[sizeof found->what - 100] = "", gpu[200] = "";
    int usable, count;
    bool driver = read_gpus(view, &usable, &count);
    doctor_line(view, "device cuda", value, sizeof value);
    doctor_line(view, "gpu 0", gpu, sizeof gpu);
    if (!driver && (strstr(value, "no NVIDIA driver") || !*value))
        doctor_say(found, DOCTOR_ABSENT, cost, "%s", value + (strncmp(value, "none: ", 6) ? 0 : 6));
    else if (!driver)
        doctor_say(found, DOCTOR_BROKEN,
                   "see whether nvidia-smi works, and whether this container is given the GPUs",
                   "%s", value);
    else if (usable)
        doctor_ok(found, "%s; the first: %s", value, gpu);
    else if (count)
        doctor_say(found, DOCTOR_ABSENT, cost, "%s; the first: %s", value, gpu);
    else
        doctor_say(found, DOCTOR_ABSENT, cost, "%s: is CUDA_VISIBLE_DEVICES empty?", value);
}

/* Lines "gpu 0 to: 1 NVLink, 2 PCIe, slow". */
void doctor_peers(const doctor_view *view, doctor_finding *found)
{
    char value[400], key[32];
    int usable, count, links = 0;
    if (!read_gpus(view, &usable, &count) || usable < 2)
        return;
    for (int i = 0; i < count; i++) {
        snprintf(key, sizeof key, "gpu %d to", i);
        if (!doctor_line(view, key, value, sizeof value))
            continue;
        if (strstr(value, "NOT REACHED")) {
            doctor_say(found, DOCTOR_BROKEN,
                       "ranks of one node must reach each other's memory: look at the IOMMU and at "
                       "ACS (nvidia-smi topo -p2p r), or name GPUs that do in CUDA_VISIBLE_DEVICES",
                       "GPU %d to: %s", i, value);
            return;
        }
        for (const char *at = value; (at = strstr(at, "NVLink")); at++)
            links++;
    }
    if (links < count * (count - 1))
        doctor_say(found, DOCTOR_ABSENT,
                   "copies take several times as long as over NVLink, and algorithms are chosen "
                   "for that",
                   "all GPUs reach each other, but not all over NVLink");
    else
        doctor_ok(found, "all GPUs reach each other over NVLink");
}

void doctor_symmetric(const doctor_view *view, doctor_finding *found)
{
    doctor_shown(view, "symmetric memory", DOCTOR_BROKEN,
                 "another process may have all of the GPU's memory: see nvidia-smi", found);
}

/* ---- Compilers ------------------------------------------------------------------------------- */

static int echo(void *ctx, const void *send, void *recv, size_t bytes)
{
    (void)ctx;
    memcpy(recv, send, bytes);
    return 0;
}

static const char line_of_code[] = "#include \"imbrex_device.h\"\n"
                                   "typedef struct doctor_args { int *at; } doctor_args;\n"
                                   "IMBREXD_KERNEL(doctor, doctor_args) { "
                                   "args->at[0] = team->rank; }\n";

static imbrex_status compile(const char *device)
{
    const imbrex_bootstrap one = { .rank = 0, .size = 1, .allgather = echo };
    const imbrex_kernel_desc desc = { .name = "doctor", .source = line_of_code };
    imbrex_group *group;
    imbrex_kernel *kernel;
    TRY(imbrex_group_create(&(imbrex_group_desc){ .bootstrap = &one, .device = device }, &group));
    imbrex_status status = imbrex_kernel_create(group, &desc, &kernel);
    if (status == IMBREX_OK)
        imbrex_kernel_destroy(kernel);
    else
        status = failure_note(status, "%s", imbrex_error());
    imbrex_group_destroy(group);
    return status;
}

static int remove_entry(const char *path, const struct stat *info, int kind, struct FTW *where)
{
    (void)info, (void)kind, (void)where;
    return remove(path);
}

void doctor_nvrtc(const doctor_view *view, doctor_finding *found)
{
    char folder[256];
    snprintf(folder, sizeof folder, "%s/imbrex-doctor-XXXXXX",
             getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp");
    bool fresh = mkdtemp(folder) != NULL; /* what was compiled before would say nothing */
    if (fresh)
        setenv("IMBREX_CACHE_DIR", folder, 1);
    double begin = now_us();
    imbrex_status status = compile("compile:90");
    if (fresh)
        nftw(folder, remove_entry, 8, FTW_DEPTH | FTW_PHYS);
    if (status == IMBREX_OK)
        doctor_ok(found, "a kernel of one line compiles for sm_90, in %.1f s",
                  (now_us() - begin) / 1e6);
    else if (has_gpu(view))
        doctor_say(found, DOCTOR_BROKEN,
                   "plans on GPUs compile their kernels: a CUDA toolkit, PyTorch's wheels or pip's "
                   "nvidia-cuda-nvrtc have NVRTC; IMBREX_NVRTC names its file",
                   "%s", failure_text(status));
    else
        doctor_say(found, DOCTOR_ABSENT, "no kernels for GPUs can be compiled ahead here", "%s",
                   failure_text(status));
}

void doctor_compiler(const doctor_view *view, doctor_finding *found)
{
    (void)view;
    double begin = now_us();
    imbrex_status status = compile("cpu");
    if (status == IMBREX_OK)
        doctor_ok(found, "a kernel of one line compiles and loads, in %.1f s",
                  (now_us() - begin) / 1e6);
    else
        doctor_say(found, DOCTOR_ABSENT,
                   "kernels of your own do not run on CPU ranks; plans need no compiler there",
                   "%s", failure_text(status));
}

/* ---- Libraries ------------------------------------------------------------------------------- */

void doctor_cublas(const doctor_view *view, doctor_finding *found)
{
    if (!has_gpu(view))
        return;
    imbrex_status status = cuda_blas_check("cuda:0");
    if (status == IMBREX_OK)
        doctor_ok(found, "opens on GPU 0: imbrex bench compares with it");
    else
        doctor_say(
            found, DOCTOR_ABSENT,
            "imbrex bench compares products with imbrex's own; IMBREX_CUBLASLT names its file",
            "%s", failure_text(status));
}

void doctor_nccl(const doctor_view *view, doctor_finding *found)
{
    doctor_shown(view, "between nodes of gpus", DOCTOR_ABSENT,
                 "groups of GPUs stay on one node; IMBREX_NCCL names its file", found);
}

static bool find_program(const char *name, char *path, size_t size)
{
    const char *folders = getenv("PATH");
    for (const char *at = folders ? folders : ""; *at;) {
        size_t length = strcspn(at, ":");
        snprintf(path, size, "%.*s/%s", (int)length, at, name);
        if (length && access(path, X_OK) == 0)
            return true;
        at += length + (at[length] == ':');
    }
    return false;
}

/* A program of the user's brings MPI along: imbrex itself links none. */
void doctor_mpi(const doctor_view *view, doctor_finding *found)
{
    static const char *const libraries[] = { "libmpi.so.40", "libmpi.so.12", "libmpi.so" };
    static const char cost[] = "CPU ranks stay on one host; imbrex run, torchrun and srun start "
                               "ranks without MPI";
    char path[300] = "";
    const char *library = NULL;
    (void)view;
    for (size_t i = 0; i < sizeof libraries / sizeof libraries[0] && !library; i++)
        if (dlopen(libraries[i], RTLD_LAZY | RTLD_LOCAL))
            library = libraries[i];
    bool starts = find_program("mpirun", path, sizeof path) ||
                  find_program("mpiexec", path, sizeof path) ||
                  find_program("srun", path, sizeof path);
    if (library && starts)
        doctor_ok(found, "%s, and %s to start ranks", library, path);
    else if (library)
        doctor_say(found, DOCTOR_ABSENT, cost, "%s, but no mpirun, mpiexec or srun in PATH",
                   library);
    else
        doctor_say(found, DOCTOR_ABSENT, cost, "no libmpi.so where the loader looks");
}
