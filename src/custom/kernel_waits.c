/* kernel_waits.c - what callers' kernels wait for, and what they do wrong, in words. */
#include "kernel_waits.h"

void imx_kernel_waits_name(const imbrex_group *group, int number, imx_text *text)
{
    imx_text_add(text, "kernel %s", imx_kernel_name(group, number));
}

void imx_kernel_waits_describe(const imbrexd_wait_point *point, imx_text *text)
{
    if (point->what == IMBREXD_POINT_BARRIER) {
        imx_text_add(text, "rank %d to come to a barrier", point->rank);
    } else if (point->what == IMBREXD_POINT_LOOP) {
        imx_text_add(text, point->rank >= 0 ? "rank %d" : "another rank", point->rank);
        imx_text_add(text, ", in a loop of its own (imbrexd_go_on)");
    } else {
        imx_text_add(text, point->what == IMBREXD_POINT_SIGNAL ? "a signal" : "data");
        if (point->what == IMBREXD_POINT_SIGNAL && point->index >= 0)
            imx_text_add(text, ", number %d,", point->index);
        if (point->rank >= 0)
            imx_text_add(text, " of rank %d", point->rank);
    }
}

/* What imx_agree_launch found. */
void imx_kernel_waits_mismatch(const imbrex_group *group, const imbrexd_fault *fault,
                               imx_text *text)
{
    imx_text_add(text, "operands.m differs between ranks in a launch of kernel %s",
                 imx_kernel_name(group, fault->point.plan));
    imx_agree_describe_rows(fault, text);
}

/* What a kernel asked for that is not there. */
static void describe_outside(const imbrex_group *group, const imbrexd_fault *fault, imx_text *text)
{
    bool signal = fault->point.what == IMBREXD_POINT_SIGNAL;
    imx_text_add(text, "kernel %s calls %s ", imx_kernel_name(group, fault->point.plan),
                 signal                                       ? "imbrexd_signal"
                 : fault->point.what == IMBREXD_POINT_BARRIER ? "imbrexd_broadcast"
                                                              : "imbrexd_peer");
    if (fault->point.rank < 0 || fault->point.rank >= group->size)
        imx_text_add(text, "for rank %d of %d", fault->point.rank, group->size);
    else if (signal)
        imx_text_add(text, "for signal %d, and desc.signals is %llu", fault->point.index,
                     (unsigned long long)fault->want);
    else if (!fault->want)
        imx_text_add(text, "and was made without desc.memory");
    else
        imx_text_add(text,
                     "for an address %lld bytes from where desc.memory's piece begins, which has "
                     "%llu: one kernel reaches one piece of imbrex_mem_alloc",
                     (long long)fault->have, (unsigned long long)fault->want);
}

/* What a kernel wanted of a rank on another node. */
static void describe_unreachable(const imbrex_group *group, const imbrexd_wait_point *point,
                                 imx_text *text)
{
    static const char reach[] = "kernels reach their own node, and imbrex_exchange the others";
    imx_text_add(text, "kernel %s ", imx_kernel_name(group, point->plan));
    if (point->what == IMBREXD_POINT_BARRIER)
        imx_text_add(text,
                     "meets all ranks, but rank %d is on another node: use "
                     "imbrexd_barrier_node and the like",
                     point->rank);
    else if (point->what == IMBREXD_POINT_SIGNAL)
        imx_text_add(text, "calls imbrexd_signal, but rank %d is on another node: %s", point->rank,
                     reach);
    else
        imx_text_add(text,
                     "uses NULL, either one of its own or what imbrexd_peer returned for "
                     "rank %d, which is on another node: %s",
                     point->rank, reach);
}

static const char *hook_name(int32_t hook)
{
    switch (hook) {
    case IMBREXD_HOOK_ORDER:
        return "ORDER";
    case IMBREXD_HOOK_BEGIN:
        return "BEGIN";
    case IMBREXD_HOOK_WAIT:
        return "WAIT";
    case IMBREXD_HOOK_DONE:
        return "DONE";
    case IMBREXD_HOOK_BESIDE:
        return "BESIDE";
    case IMBREXD_HOOK_END:
        return "END";
    case IMBREXD_HOOK_SUM:
        return "SUM";
    default:
        return "a hook";
    }
}

/* What it did, other than to name a tile; callers: of what it called. */
static const char *hook_mistake(uint64_t callers)
{
    switch (callers) {
    case IMBREXD_CALLED_BY_BLOCK:
        return "called what is for whole blocks (a function that ends in _block, a barrier, sync "
               "or broadcast, or imbrexd_shared), and no hook is called by one";
    case IMBREXD_CALLED_BY_WARP:
        return "called what is for whole warps (a function that ends in _warp), and single threads "
               "of GPUs call this hook: want its _thread form";
    default:
        return "returned 0, but no wait gave up: want 1";
    }
}

static void describe_hook(const imbrexd_fault *fault, const char *kernel, imx_text *text)
{
    imx_text_add(text, "%s of kernel %s ", hook_name(fault->point.index), kernel);
    if (fault->want)
        imx_text_add(text, "returned %llu, and there are %llu tiles",
                     (unsigned long long)fault->have, (unsigned long long)fault->want);
    else
        imx_text_add(text, "%s", hook_mistake(fault->have));
}

void imx_kernel_waits_mistake(const imbrex_group *group, const imbrexd_fault *fault, imx_text *text)
{
    const char *kernel = imx_kernel_name(group, fault->point.plan);
    switch (fault->kind) {
    case IMBREXD_FAULT_OUTSIDE:
        describe_outside(group, fault, text);
        return;
    case IMBREXD_FAULT_UNREACHABLE:
        describe_unreachable(group, &fault->point, text);
        return;
    case IMBREXD_FAULT_SHARED:
        imx_text_add(text,
                     "kernel %s wrote beyond its %llu bytes of shared memory (desc.shared_bytes) "
                     "in block %d: ask for more",
                     kernel, (unsigned long long)fault->want, fault->point.index);
        return;
    default:
        describe_hook(fault, kernel, text);
    }
}
