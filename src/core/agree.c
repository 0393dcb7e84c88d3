/* agree.c - every collective call begins by agreeing on what it is, so that a mismatch becomes a
 * sentence and never a deadlock. */
#include <stdio.h>
#include <string.h>

#include "group.h"

/* What one rank brings.  One size for all calls: ranks in different calls can still compare. */
typedef struct proposal {
    char call[40];
    int32_t status;
    int32_t count;
    int64_t value[IMX_AGREE_FIELDS];
    char detail[IMX_AGREE_NOTE]; /* why status is not OK; if it is, rank 0's note */
} proposal;

imbrex_status imx_agree_allgather(imbrex_group *group, const void *send, void *recv, size_t bytes)
{
    if (group->size == 1) {
        memcpy(recv, send, bytes);
        return IMBREX_OK;
    }
    int failed = group->bootstrap->allgather(group->bootstrap->ctx, send, recv, bytes);
    if (!failed)
        return IMBREX_OK;
    if (group->own_bootstrap)
        return imx_bootstrap_status(group->own_bootstrap); /* it has noted the sentence */
    return imx_fail(IMBREX_PEER, "the bootstrap's allgather returned %d on rank %d", failed,
                    group->rank);
}

/* A cause, where PEER and TIMEOUT are only its echo on other ranks. */
static bool is_own(int32_t status)
{
    return status != IMBREX_OK && status != IMBREX_PEER && status != IMBREX_TIMEOUT;
}

static imbrex_status differs(const imx_field *field, int64_t first, int64_t other, int rank)
{
    char numbers[2][24];
    const char *values[2] = { numbers[0], numbers[1] };
    const int64_t given[2] = { first, other };
    for (int i = 0; i < 2; i++) {
        if (field->words && (uint64_t)given[i] < (uint64_t)field->words_count)
            values[i] = field->words[given[i]];
        else
            snprintf(numbers[i], sizeof numbers[i], "%lld", (long long)given[i]);
    }
    return imx_fail(IMBREX_PEER,
                    "%s differs between ranks: %s on rank 0, %s on rank %d; all ranks must pass "
                    "the same",
                    field->name, values[0], values[1], rank);
}

/* said: the whole of what this rank's detail begins with. */
static imbrex_status compare(const imbrex_group *group, const proposal *all,
                             const imx_field *fields, const char *said)
{
    const proposal *mine = &all[group->rank];
    for (int r = 0; r < group->size; r++) {
        if (strcmp(all[r].call, all[0].call) != 0)
            return imx_fail(IMBREX_PEER,
                            "ranks are in different collective calls: %s on rank 0, %s on rank %d",
                            all[0].call, all[r].call, r);
    }
    if (is_own(mine->status))
        return imx_fail(mine->status, "%s", said);
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

imbrex_status imx_agree_run(imbrex_group *group, int plan, int64_t m)
{
    uint64_t number = ++group->runs;
    uint64_t mine = imx_agree_run_word(number, plan, m);
    int slot = (int)(number % IMX_CONTROL_RUNS);
    /* seq_cst: the store comes before the loads, so that of two ranks one sees the other. */
    __atomic_store_n(&imx_control_of(group, group->rank)->runs[slot], mine, __ATOMIC_SEQ_CST);
    for (int r = group->nodes.first[group->nodes.own], i = 0; i < group->nodes.ranks; r++, i++) {
        uint64_t theirs = __atomic_load_n(&imx_control_of(group, r)->runs[slot], __ATOMIC_SEQ_CST);
        if (theirs == mine || (theirs ^ mine) >> IMX_AGREE_RUN_SHIFT)
            continue; /* alike, or the rank has not come to this run, or is far ahead */
        imbrexd_site site = { .plan = plan, .rank = r, .index = -1 };
        imbrexd_fault_raise(&group->watch, IMBREXD_FAULT_MISMATCH, site, theirs, mine);
        return imx_fault_check(group);
    }
    return IMBREX_OK;
}
