/* bench_rank.c - one rank: joins the others once, then times one shape after another. */
#include "bench_rank.h"

#include <stdio.h>

#include "bench_case.h"
#include "bench_trace.h"
#include "bench_tune.h"
#include "cli.h"
#include "text.h"

typedef struct rank_state {
    const bench_request *request;
    const bench_shape *shapes; /* the device's */
    bench_setting setting;
    progress bar;
    int left_out; /* algorithms, and shapes */
    int shapes_out;
    imbrex_status last; /* why a shape was */
} rank_state;

static bool multiplies(const bench_request *q)
{
    for (int i = 0; i < q->count; i++)
        if (q->shapes[true][i].op->product)
            return true;
    return false;
}

/* On a GPU: a stream that both groups use, and cuBLASLt. */
static imbrex_status equip_gpu(bench_setting *s)
{
    const bench_request *q = s->request;
    s->stream = cuda_timer_stream(s->timer);
    if (q->peer == BENCH_PEER_NONE || !multiplies(q))
        return IMBREX_OK;
    imbrex_status status = cuda_blas_open(&s->cublas);
    if (status == IMBREX_OK)
        status = imbrex_mem_alloc(s->alone, CUDA_BLAS_WORKSPACE_BYTES, &s->workspace);
    if (status == IMBREX_OK || q->peer == BENCH_PEER_CUBLAS)
        return status;
    const char *why = failure_text(status);
    if (s->bar)
        text_say(stderr, "imbrex bench: products are compared with our own: %s\n", why);
    return IMBREX_OK;
}

static imbrex_status equip(rank_state *s)
{
    static const imbrex_bootstrap one = { .rank = 0, .size = 1 };
    bench_setting *setting = &s->setting;
    imbrex_group_desc desc = { .device = s->request->device };
    TRY(imbrex_group_create(&desc, &setting->group));
    setting->bar = imbrex_group_rank(setting->group) == 0 ? &s->bar : NULL;
    desc = (imbrex_group_desc){ .bootstrap = &one, .device = imbrex_group_device(setting->group) };
    TRY(imbrex_group_create(&desc, &setting->alone));
    TRY(share_open(setting->group, sizeof(double), &setting->share));
    TRY(measure_clock(setting->group, s->request->graph, &setting->timer));
    s->shapes = s->request->shapes[setting->timer != NULL];
    if (setting->timer)
        return equip_gpu(setting);
    if (s->request->peer == BENCH_PEER_CUBLAS)
        return failure_note(IMBREX_UNSUPPORTED, "--peer cublas needs device cuda, not %s",
                            imbrex_group_device(setting->group));
    return IMBREX_OK;
}

static imbrex_status time_shape(rank_state *s, const bench_shape *shape, bench_result *result)
{
    const bench_request *q = s->request;
    bench_setting *setting = &s->setting;
    if (q->tune)
        TRY(bench_tune(setting->group, shape, setting->bar, !q->json));
    progress_begin(setting->bar, "bench", q->warm + q->rounds);
    imbrex_status status = bench_case(setting, shape, result, &s->left_out);
    progress_end(setting->bar);
    return status;
}

/* Collective.  What stands stays, if a later shape ends the run.  lost: rank 0 could not print it,
 * and will say so as it ends. */
static imbrex_status report(rank_state *s, const bench_result *result, bool *lost)
{
    double losses = 0;
    if (s->setting.bar) {
        (s->request->json ? bench_report_json : bench_report_table)(result);
        losses = !cli_flush();
    }
    TRY(share_max(&s->setting.share, losses, &losses));
    *lost = losses > 0;
    return IMBREX_OK;
}

/* One shape that cannot be timed does not keep the others from it, as long as the group works. */
static imbrex_status work(rank_state *s)
{
    const bench_request *q = s->request;
    TRY(equip(s));
    bool lost = false;
    for (int i = 0; i < q->count && !lost; i++) {
        const bench_shape *shape = &s->shapes[i];
        bench_result result;
        imbrex_status status = time_shape(s, shape, &result);
        bool harmless = status == IMBREX_INVALID || status == IMBREX_UNSUPPORTED;
        if (status != IMBREX_OK && (!harmless || q->count == 1))
            return status;
        if (status != IMBREX_OK) {
            const char *why = failure_text(status);
            s->left_out++;
            s->shapes_out++;
            s->last = status;
            if (s->setting.bar)
                text_say(stderr, "imbrex bench: %s m=%lld n=%lld k=%lld is left out: %s\n",
                         shape->op->name, (long long)shape->m, (long long)shape->n,
                         (long long)shape->k, why);
        } else {
            TRY(report(s, &result, &lost));
            if (!lost && q->timeline)
                TRY(bench_trace(&s->setting, shape));
        }
    }
    return IMBREX_OK;
}

int bench_rank(const bench_request *request)
{
    rank_state s = { .request = request, .setting.request = request };
    bench_setting *setting = &s.setting;
    imbrex_status status = work(&s);
    if (status != IMBREX_OK)
        failure_say("bench", setting->group, status);
    cuda_blas_close(setting->cublas);
    if (setting->workspace)
        imbrex_mem_free(setting->alone, setting->workspace);
    share_close(&setting->share);
    imbrex_group_destroy(setting->alone);
    imbrex_group_destroy(setting->group);
    cuda_timer_close(setting->timer);
    bool speaks = setting->bar != NULL; /* one rank says that something was left out */
    if (status != IMBREX_OK || !speaks || !s.left_out)
        return cli_exit_code(status);
    return s.shapes_out < request->count ? CLI_FAILED : cli_exit_code(s.last);
}
