/* ptx_families_wide.c - likewise: asynchronous copies, barriers in memory, matrices. */
#include "ptx_decode.h"

static void bulk(decoder *d)
{
    ptx_insn *insn = d->insn;
    bool tensor = has(d, "tensor"), load = has(d, "mbarrier::complete_tx::bytes");
    bool multicast = has(d, "multicast::cluster"), from_shared = !has(d, "global");
    if (has(d, "wait_group")) {
        insn->code = PTX_BULK_WAIT;
        insn->sub = has(d, "read");
        insn->imm = word(d, 0)->number;
        return;
    }
    d->failed |= d->tokens[0][2] == '.' || has(d, "im2col") || has(d, "cp_mask");
    if (tensor) {
        int token = 0;
        while (token < d->count && strcmp(d->tokens[token], "tensor") != 0)
            token++;
        insn->to_bytes = (uint8_t)atoi(d->tokens[token + 1]);
        insn->code = has(d, "prefetch") ? PTX_TENSOR_PREFETCH
                     : load             ? PTX_TENSOR_LOAD
                                        : PTX_TENSOR_STORE;
        int map = load ? 1 : 0;
        push_address(d, map);
        const ptx_word *w = word(d, map);
        if (load)
            push_address(d, 0), push_address(d, 2);
        else if (insn->code == PTX_TENSOR_STORE)
            push_address(d, 1);
        for (int i = 0; i < w->part_count; i++)
            push(d, source_word(d, part(d, w, i), 4));
        d->failed |= w->part_count != insn->to_bytes;
        if (multicast)
            insn->c = source(d, 3, 2);
        return;
    }
    insn->code = !load ? PTX_BULK_STORE : from_shared ? PTX_BULK_PASS : PTX_BULK_LOAD;
    push_address(d, 0);
    push_address(d, 1);
    if (load)
        push_address(d, 3);
    insn->b = source(d, 2, 4);
    if (multicast)
        insn->c = source(d, 4, 2);
}

static void copy_async(decoder *d)
{
    ptx_insn *insn = d->insn;
    if (has(d, "wait_group") || has(d, "wait_all")) {
        insn->code = PTX_COPY_WAIT;
        insn->sub = has(d, "wait_all");
        insn->imm = insn->sub ? 0 : word(d, 0)->number;
        return;
    }
    if (has(d, "arrive")) {
        d->failed |= !has(d, "noinc");
        insn->code = PTX_COPY_ARRIVE;
        read_order(d);
        take_address(d, 0);
        return;
    }
    d->failed |= !has(d, "ca") && !has(d, "cg");
    insn->code = PTX_COPY_ASYNC;
    push_address(d, 0);
    push_address(d, 1);
    insn->b = source(d, 2, 4);
    insn->c = d->s->count > 3 + has(d, "L2::cache_hint") ? source(d, 3, 4) : insn->b;
}

static void memory_barrier(decoder *d)
{
    ptx_insn *insn = d->insn;
    read_order(d);
    if (family(d, "mbarrier", "init")) {
        insn->code = PTX_MBARRIER_INIT;
        take_address(d, 0);
        insn->b = source(d, 1, 4);
    } else if (family(d, "mbarrier", "inval")) {
        insn->code = PTX_MBARRIER_END;
        take_address(d, 0);
    } else if (family(d, "mbarrier", "arrive")) {
        insn->code = PTX_MBARRIER_ARRIVE;
        insn->sub = has(d, "expect_tx");
        d->failed |= has(d, "noComplete");
        insn->d = result(d, 0, 8);
        take_address(d, 1);
        insn->b = d->s->count > 2 ? source(d, 2, 4) : constant(d, 1, 4);
    } else if (family(d, "mbarrier", "expect_tx")) {
        insn->code = PTX_MBARRIER_EXPECT;
        take_address(d, 0);
        insn->b = source(d, 1, 4);
    } else if (family(d, "mbarrier", "try_wait") || family(d, "mbarrier", "test_wait")) {
        bool parity = has(d, "parity");
        insn->code = parity ? PTX_MBARRIER_TRY_PARITY : PTX_MBARRIER_TRY;
        insn->d = result(d, 0, 0);
        take_address(d, 1);
        insn->b = source(d, 2, parity ? 4 : 8);
    } else {
        d->failed = true;
    }
}

static void store_async(decoder *d)
{
    type t = last_type(d);
    d->insn->code = PTX_STORE_ASYNC;
    d->failed |= t.bytes != 4;
    push_address(d, 0);
    push_address(d, 2);
    push_sources(d, 1, 4);
}

/* ---- matrices -------------------------------------------------------------------------------- */

static uint8_t matrix_type(decoder *d, int token)
{
    static const char *const names[] = { "f16", "bf16", "tf32", "e4m3", "e5m2" };
    for (int i = 0; i < 5; i++) {
        if (token < d->count && strcmp(d->tokens[token], names[i]) == 0)
            return (uint8_t)i;
    }
    d->failed = true;
    return 0;
}

/* mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 */
static void product(decoder *d)
{
    ptx_insn *insn = d->insn;
    d->failed |= d->count != 10 || !begins(d->tokens[3], "m16n8k") || !has(d, "f32");
    if (d->failed)
        return;
    insn->code = PTX_MMA;
    insn->imm = number_after(d, 3, 'k');
    insn->kind = matrix_type(d, 7);
    insn->to_kind = matrix_type(d, 8);
    push_results(d, 0, 4);
    push_sources(d, 1, 4);
    insn->bytes = (uint8_t)(insn->list_count - 4); /* of a */
    push_sources(d, 2, 4);
    insn->to_bytes = (uint8_t)(insn->list_count - 4 - insn->bytes); /* of b */
    push_sources(d, 3, 4);
}

static void matrices(decoder *d, bool store)
{
    ptx_insn *insn = d->insn;
    insn->code = store ? PTX_STORE_MATRIX : PTX_LOAD_MATRIX;
    insn->sub = has(d, "trans");
    insn->space = PTX_SHARED;
    d->failed |= !has(d, "m8n8") || !has(d, "b16");
    if (store)
        push_sources(d, 1, 4);
    else
        push_results(d, 0, 4);
    take_address(d, store ? 0 : 1);
}

/* wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 d, a, b, p, 1, 1[, 0, 0] */
static void group_product(decoder *d)
{
    ptx_insn *insn = d->insn;
    if (!has(d, "mma_async")) {
        insn->code = has(d, "fence")          ? PTX_WGMMA_FENCE
                     : has(d, "commit_group") ? PTX_WGMMA_COMMIT
                                              : PTX_WGMMA_WAIT;
        if (insn->code == PTX_WGMMA_WAIT)
            insn->imm = word(d, 0)->number;
        return;
    }
    insn->code = PTX_WGMMA;
    d->failed |= d->count < 8 || strcmp(d->tokens[5], "f32") != 0;
    if (d->failed)
        return;
    insn->imm = number_after(d, 4, 'n');
    insn->kind = matrix_type(d, 6);
    insn->to_kind = matrix_type(d, 7);
    push_results(d, 0, 4);
    insn->both = true;
    d->failed |= insn->results != insn->imm / 2;
    if (word(d, 1)->kind == PTX_WORD_VECTOR)
        push_sources(d, 1, 4);
    else
        insn->a = source(d, 1, 8);
    insn->b = source(d, 2, 8);
    insn->c = source(d, 3, 0);
    insn->sub = (uint8_t)((word(d, 4)->number < 0) | (word(d, 5)->number < 0) << 1);
    if (d->s->count > 6)
        insn->sub |= (uint8_t)(word(d, 6)->number << 2);
    if (d->s->count > 7)
        insn->sub |= (uint8_t)(word(d, 7)->number << 3);
    if (d->s->count == 7) /* a in registers has no transposition */
        insn->sub = (uint8_t)((insn->sub & 3) | word(d, 6)->number << 3);
}
bool ptx_family_of_copies(decoder *d)
{
    if (family(d, "st", "async"))
        store_async(d);
    else if (family(d, "mbarrier", NULL))
        memory_barrier(d);
    else if (begins(d->name, "cp.async.bulk"))
        bulk(d);
    else if (family(d, "cp", "async"))
        copy_async(d);
    else if (family(d, "mma", "sync"))
        product(d);
    else if (family(d, "ldmatrix", NULL) || family(d, "stmatrix", NULL))
        matrices(d, d->name[0] == 's');
    else if (family(d, "wgmma", NULL))
        group_product(d);
    else
        return false;
    return true;
}
