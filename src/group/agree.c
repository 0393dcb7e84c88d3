/* agree.c - every collective call begins by agreeing on what it is, so that a mismatch becomes a
 * sentence and never a deadlock. */
#include "agree.h"

#include <stdio.h>
#include <string.h>

#include "fault.h"

/* What one rank brings.  One size for all calls: ranks in different calls can still compare. */
typedef struct proposal {
    char call[40];
    int32_t status;
    int32_t count;
    int64_t value[IMX_AGREE_FIELDS];
    char detail[IMX_AGREE_NOTE]; /* why status is not OK; if it is, rank 0's note */
} proposal;

/* ---- who has come how far -------------------------------------------------------------------- */

/* A meeting as one word, which is written and read at once: | how many meetings and runs, which all
 * ranks have alike, there were up to this one | calls that the rank has refused since the last |.
 */
enum { REFUSALS_BITS = 16, REFUSALS_MOST = (1 << REFUSALS_BITS) - 1 };

static uint64_t meeting_of(const imbrex_group *group, int rank)
{
    return __atomic_load_n(&imx_control_of(group, rank)->meeting, __ATOMIC_SEQ_CST);
}

static uint64_t refusals_here(const imbrex_group *group)
{
    return group->refused_at == group->meetings + group->runs ? group->refusals : 0;
}

void imx_agree_count_refusal(imbrex_group *group)
{
    group->refusals = (uint64_t)imx_min((int64_t)refusals_here(group) + 1, REFUSALS_MOST);
    group->refused_at = group->meetings + group->runs;
}

/* seq_cst: of a rank that begins to meet, and one that refuses, one sees what the other does. */
static void note_meeting(imbrex_group *group)
{
    uint64_t refusals = refusals_here(group), number = ++group->meetings + group->runs;
    __atomic_store_n(&imx_control_of(group, group->rank)->meeting,
                     number << REFUSALS_BITS | refusals, __ATOMIC_SEQ_CST);
}

bool imx_agree_is_awaited(const imbrex_group *group)
{
    uint64_t next = group->meetings + group->runs + 1, refusals = refusals_here(group);
    for (int r = group->nodes.first[group->nodes.own], i = 0; i < group->nodes.ranks; r++, i++) {
        uint64_t theirs = meeting_of(group, r);
        if (theirs >> REFUSALS_BITS == next && (theirs & REFUSALS_MOST) <= refusals)
            return true;
    }
    return false;
}

/* The sentence that was noted, and what is known of why ranks of this node have not come. */
static imbrex_status fail_missing(const imbrex_group *group, imbrex_status status)
{
    char said[IMX_STATUS_BYTES], why[2 * IMX_NOTE_BYTES];
    imx_text text = { .at = said, .size = sizeof said };
    imx_text_add(&text, "%s", imx_status_detail());
    uint64_t own = meeting_of(group, group->rank) >> REFUSALS_BITS;
    for (int r = group->nodes.first[group->nodes.own], i = 0; i < group->nodes.ranks; r++, i++) {
        imx_text more = { .at = why, .size = sizeof why };
        if (meeting_of(group, r) >> REFUSALS_BITS < own && imx_fault_add_refusal(group, r, &more))
            imx_text_add(&text, "; rank %d%s", r, why);
    }
    return imx_fail(status, "%s", said);
}

imbrex_status imx_agree_allgather(imbrex_group *group, const void *send, void *recv, size_t bytes)
{
    if (group->size == 1) {
        memcpy(recv, send, bytes);
        return IMBREX_OK;
    }
    if (group->control)
        note_meeting(group);
    int failed = group->bootstrap->allgather(group->bootstrap->ctx, send, recv, bytes);
    if (!failed)
        return IMBREX_OK;
    if (group->abort) /* what ended the group ended this, or says more */
        IMX_TRY(imx_fault_check(group));
    imx_bootstrap *own = group->own_bootstrap;
    imbrex_status status =
        own && group->bootstrap == imx_bootstrap_public(own)
            ? imx_bootstrap_status(own) /* it has noted the sentence */
            : imx_fail(IMBREX_PEER, "the bootstrap's allgather returned %d on rank %d", failed,
                       group->rank);
    return group->control ? fail_missing(group, status) : status;
}

imbrex_status imx_agree_allgather_of(void *group, const void *send, void *recv, size_t bytes)
{
    return imx_agree_allgather(group, send, recv, bytes);
}

/* A cause, where PEER and TIMEOUT are only its echo on other ranks. */
static bool is_own(int32_t status)
{
    return status != IMBREX_OK && status != IMBREX_PEER && status != IMBREX_TIMEOUT;
}

static void write_value(const imx_field *field, int64_t value, imx_text *to)
{
    float real;
    int32_t bits = (int32_t)value;
    memcpy(&real, &bits, sizeof real);
    if (field->real)
        imx_text_add(to, "%.9g", (double)real);
    else
        imx_text_add(to, "%lld", (long long)value);
}

static imbrex_status differs(const imx_field *field, int64_t first, int64_t other, int rank)
{
    const char *of = field->of ? field->of : "", *dot = field->of ? "." : "";
    if (field->hash)
        return imx_fail(IMBREX_PEER,
                        "%s%s%s differs between rank 0 and rank %d; all ranks must pass the same",
                        of, dot, field->name, rank);
    char numbers[2][24];
    const char *values[2] = { numbers[0], numbers[1] };
    const int64_t given[2] = { first, other };
    for (int i = 0; i < 2; i++) {
        if (field->words && (uint64_t)given[i] < (uint64_t)field->words_count)
            values[i] = field->words[given[i]];
        else
            write_value(field, given[i],
                        &(imx_text){ .at = numbers[i], .size = sizeof numbers[i] });
    }
    return imx_fail(IMBREX_PEER,
                    "%s%s%s differs between ranks: %s on rank 0, %s on rank %d; all ranks must "
                    "pass the same",
                    of, dot, field->name, values[0], values[1], rank);
}

/* said: the whole of what this rank's detail begins with. */
static imbrex_status compare(const imbrex_group *group, const proposal *all,
                             const imx_field *fields, const char *said)
{
    const proposal *mine = &all[group->rank];
    if (is_own(mine->status))
        return imx_fail(mine->status, "%s", said);
    for (int r = 0; r < group->size; r++) {
        if (strcmp(all[r].call, all[0].call) != 0 && is_own(all[r].status))
            return imx_fail(IMBREX_PEER, "rank %d failed: %s", r, all[r].detail);
        if (strcmp(all[r].call, all[0].call) != 0 && is_own(all[0].status))
            return imx_fail(IMBREX_PEER, "rank 0 failed: %s", all[0].detail);
        if (strcmp(all[r].call, all[0].call) != 0)
            return imx_fail(IMBREX_PEER,
                            "ranks are in different collective calls: %s on rank 0, %s on rank %d",
                            all[0].call, all[r].call, r);
    }
    for (int r = 0; r < group->size; r++) {
        if (is_own(all[r].status))
            return imx_fail(IMBREX_PEER, "rank %d failed: %s", r, all[r].detail);
    }
    if (mine->status != IMBREX_OK)
        return imx_fail(mine->status, "%s", said);
    for (int r = 0; r < group->size; r++) {
        if (all[r].status != IMBREX_OK)
            return imx_fail(IMBREX_PEER, "rank %d failed: %s", r, all[r].detail);
    }
    for (int i = 0; i < mine->count; i++) {
        for (int r = 0; r < group->size; r++) {
            if (all[r].value[i] != all[0].value[i])
                return differs(&fields[i], all[0].value[i], all[r].value[i], r);
        }
    }
    return IMBREX_OK;
}

imbrex_status imx_agree_prepare(imbrex_group *group)
{
    return imx_sys_alloc((size_t)group->size, sizeof(proposal), &group->proposals);
}

imbrex_status imx_agree(imbrex_group *group, const char *call, imbrex_status mine,
                        const imx_field *fields, int count)
{
    char note[IMX_AGREE_NOTE] = "";
    return imx_agree_noted(group, call, mine, fields, count, note);
}

imbrex_status imx_agree_noted(imbrex_group *group, const char *call, imbrex_status mine,
                              const imx_field *fields, int count, void *note)
{
    proposal own = { .status = mine, .count = count };
    char said[IMX_STATUS_BYTES] = "";
    strncpy(own.call, call, sizeof own.call - 1);
    for (int i = 0; i < count; i++)
        own.value[i] = fields[i].value;
    if (mine != IMBREX_OK)
        snprintf(said, sizeof said, "%s", imx_status_detail());
    if (mine != IMBREX_OK)
        snprintf(own.detail, sizeof own.detail, "%.*s", IMX_AGREE_NOTE - 1, said);
    else
        memcpy(own.detail, note, sizeof own.detail);

    proposal *all = group->proposals;
    imbrex_status met = imx_agree_allgather(group, &own, all, sizeof own);
    if (met != IMBREX_OK)
        return is_own(mine) ? imx_fail(mine, "%s", said) : met;
    IMX_TRY(compare(group, all, fields, said));
    memcpy(note, all[0].detail, sizeof all[0].detail);
    return IMBREX_OK;
}

/* ---- runs ------------------------------------------------------------------------------------ */

static uint64_t *control_word(const imbrex_group *group, int rank, size_t at)
{
    return (uint64_t *)((char *)imx_control_of(group, rank) + at);
}

/* Notes this rank's word and compares it with those of the node's ranks that are alike from bit
 * `shift` on: others have not come to this run, or are far ahead.  point, but for its rank: what it
 * is.  at: where the word is in imx_control. */
static imbrex_status note(const imbrex_group *group, size_t at, uint64_t mine, int shift,
                          imbrexd_wait_point point)
{
    /* seq_cst: the store comes before the loads, so that of two ranks one sees the other. */
    __atomic_store_n(control_word(group, group->rank, at), mine, __ATOMIC_SEQ_CST);
    for (int r = group->nodes.first[group->nodes.own], i = 0; i < group->nodes.ranks; r++, i++) {
        uint64_t theirs = __atomic_load_n(control_word(group, r, at), __ATOMIC_SEQ_CST);
        if (theirs == mine || (theirs ^ mine) >> shift)
            continue;
        point.rank = r;
        imbrexd_fault_raise(&group->watch, IMBREXD_FAULT_MISMATCH, point, theirs, mine);
        return imx_fault_check(group);
    }
    return IMBREX_OK;
}

imbrex_status imx_agree_run(imbrex_group *group, int plan, int64_t m)
{
    uint64_t number = ++group->runs;
    size_t slot = number % IMX_CONTROL_RUNS;
    imbrexd_wait_point point = { .plan = plan, .index = -1 };
    return note(group, offsetof(imx_control, runs) + slot * sizeof(uint64_t),
                imx_agree_run_word(number, plan, m), IMX_AGREE_RUN_SHIFT, point);
}

/* Kernels share the slots: where two meet in one, the earlier goes unnoticed. */
imbrex_status imx_agree_launch(imbrex_group *group, int kernel, uint64_t number, int64_t m)
{
    size_t slot = (number + (uint64_t)kernel * 7) % IMX_CONTROL_RUNS;
    imbrexd_wait_point point = { .plan = kernel, .what = IMBREXD_POINT_DATA, .index = -1 };
    return note(group, offsetof(imx_control, launches) + slot * sizeof(uint64_t),
                imx_agree_run_word(number, kernel, m), IMX_AGREE_PLAN_SHIFT, point);
}

void imx_agree_describe_rows(const imbrexd_fault *fault, imx_text *text)
{
    imx_text_add(text, ": %lld on rank %d, %lld on rank %d; all ranks must pass the same",
                 (long long)imx_agree_run_m(fault->have), fault->point.rank,
                 (long long)imx_agree_run_m(fault->want), fault->rank);
}

void imx_agree_forget_launches(imbrex_group *group)
{
    imx_control *own = imx_control_of(group, group->rank);
    for (int i = 0; i < IMX_CONTROL_RUNS; i++) /* seq_cst, as in note */
        __atomic_store_n(&own->launches[i], 0, __ATOMIC_SEQ_CST);
}
