/* ptx_run.c - whose turn it is: blocks, warps and lanes go on in turns, in an order by chance, all
 * of them, since they wait for each other and for other launches. */
#define _GNU_SOURCE
#include "ptx_run.h"

#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "imbrex_device.h"

enum {
    TURN = 1500,     /* a warp's instructions at once */
    STRETCH = 200,   /* of lanes that are not alone */
    STRAY = 16,      /* one of so many times lanes are left behind */
    IDLE_ROUNDS = 64 /* until who waits naps */
};
#define PATIENCE_NS 200000000000 /* longer than a wait within a kernel may last */

uint32_t ptx_random(ptx_runner *run)
{
    uint64_t x = run->random;
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    run->random = x;
    return (uint32_t)(x >> 16);
}

void ptx_fault(ptx_warp *w, int lane, uint32_t pc, const char *format, ...)
{
    ptx_runner *run = w->block->run;
    const ptx_insn *insn = &run->module->insns[pc];
    char what[300], line[160];
    va_list args;
    if (run->failed)
        return;
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    snprintf(run->why, 512, "kernel %s, PTX line %u, `%.80s`, block %d of %d, thread %d: %s",
             run->launch->function->name, insn->line,
             ptx_module_line(run->module, insn->line, line), w->block->index, run->launch->blocks,
             w->index * PTX_LANES + lane, what);
    run->failed = true;
}

/* ---- lanes ----------------------------------------------------------------------------------- */

/* Lanes that stand together: mostly those that are furthest behind, so that the others are met. */
static uint32_t choose(ptx_runner *run, const ptx_warp *w, uint32_t ready, uint32_t *pc,
                       uint32_t *stop)
{
    uint32_t behind = UINT32_MAX, together = 0, next = UINT32_MAX;
    for (uint32_t m = ready; m; m &= m - 1) {
        uint32_t at = w->pc[__builtin_ctz(m)];
        behind = at < behind ? at : behind;
    }
    if (ptx_random(run) % 8 == 0) {
        int skip = (int)(ptx_random(run) % (uint32_t)__builtin_popcount(ready));
        uint32_t m = ready;
        for (; skip; skip--)
            m &= m - 1;
        behind = w->pc[__builtin_ctz(m)];
    }
    for (uint32_t m = ready; m; m &= m - 1) {
        uint32_t at = w->pc[__builtin_ctz(m)];
        together |= (uint32_t)(at == behind) << __builtin_ctz(m);
        next = at > behind && at < next ? at : next;
    }
    *pc = behind;
    *stop = next;
    return together;
}

/* On a GPU eight lanes that load a line of 128 bytes do so at once. */
static uint32_t some_of(ptx_runner *run, uint32_t lanes)
{
    uint32_t which = ptx_random(run);
    for (uint32_t i = 0; run->module->lines && i < 32; i += 8)
        which = (which & ~(255u << i)) | (which >> i & 1 ? 255u << i : 0);
    return lanes & which ? lanes & which : lanes;
}

static int turn_of_warp(ptx_runner *run, ptx_warp *w)
{
    int steps = 0;
    w->yielded = 0;
    while (steps < TURN && !run->failed) {
        uint32_t ready = w->live & ~(w->parked | w->barred | w->yielded);
        if (!ready)
            break;
        uint32_t pc, stop, lanes;
        int most = TURN - steps;
        bool stray = ptx_random(run) % STRAY == 0;
        if (ready == PTX_EVERY && w->pc[0] == w->pc[31] && !stray &&
            memcmp(w->pc, w->pc + 1, sizeof w->pc - sizeof w->pc[0]) == 0) {
            lanes = ready;
            pc = w->pc[0];
            stop = UINT32_MAX;
            most = most < 4 * STRETCH ? most : 4 * STRETCH;
        } else {
            lanes = choose(run, w, ready, &pc, &stop);
            if (stray)
                lanes = some_of(run, lanes);
            most = 1 + (int)(ptx_random(run) % STRETCH);
        }
        bool others = lanes != ready;
        steps += 1 + ptx_step(w, lanes, pc, stop, others, most);
    }
    return steps;
}

/* ---- blocks ---------------------------------------------------------------------------------- */

static int turn_of_block(ptx_runner *run, ptx_block *block)
{
    int steps = 0, first = (int)(ptx_random(run) % (uint32_t)run->warps);
    for (int i = 0; i < run->warps && !run->failed; i++) {
        ptx_warp *w = &block->warps[(first + i) % run->warps];
        if (w->live & ~(w->parked | w->barred))
            steps += turn_of_warp(run, w);
    }
    return steps;
}

/* Nothing can be done and nothing is under way: a barrier that some have passed by.  Or nobody does
 * anything that others could see, for very long. */
static void stuck(ptx_runner *run, const char *what)
{
    for (int b = 0; b < run->launch->blocks; b++) {
        for (int i = 0; i < run->warps; i++) {
            ptx_warp *w = &run->blocks[b].warps[i];
            if (!w->live)
                continue;
            int lane = __builtin_ctz(w->live);
            ptx_fault(w, lane, w->pc[lane], "%s", what);
            return;
        }
    }
}

static void nap(uint64_t idle)
{
    if (idle < IDLE_ROUNDS)
        sched_yield();
    else
        nanosleep(&(struct timespec){ .tv_nsec = 50000 }, NULL);
}

static void go_on(ptx_runner *run)
{
    uint64_t idle = 0;
    int64_t since = imbrexd_now_ns();
    while (run->live_blocks && !run->failed) {
        uint64_t moved = run->moved;
        int steps = 0, blocks = run->launch->blocks;
        int first = (int)(ptx_random(run) % (uint32_t)blocks);
        for (int i = 0; i < blocks && !run->failed; i++) {
            ptx_block *block = &run->blocks[(first + i) % blocks];
            if (block->live_warps)
                steps += turn_of_block(run, block);
        }
        run->round++;
        ptx_late_settle(run, false);
        if (!steps && !run->late_count && run->live_blocks)
            stuck(run, "waits here for threads that never come");
        idle = moved == run->moved ? idle + 1 : 0;
        if (!idle)
            since = imbrexd_now_ns();
        else if (imbrexd_now_ns() - since > PATIENCE_NS)
            stuck(run, "is here while nobody has done anything for long");
        if (idle)
            nap(idle);
    }
    if (!run->failed)
        ptx_late_settle(run, true);
}

/* ---- launches -------------------------------------------------------------------------------- */

/* Not a number in any width, and no barrier. */
static void fill(unsigned char *at, size_t bytes)
{
    memset(at, 0xff, bytes);
}

static size_t rounded(size_t bytes)
{
    return (bytes + 1023) / 1024 * 1024;
}

typedef struct room {
    unsigned char *at;
    size_t bytes, used;
} room;

static unsigned char *take(room *r, size_t bytes)
{
    unsigned char *at = r->at + r->used;
    r->used += rounded(bytes);
    return at;
}

static void make_block(ptx_runner *run, int index, room *all)
{
    const ptx_launch *launch = run->launch;
    ptx_block *block = &run->blocks[index];
    block->run = run;
    block->index = index;
    block->rank = index % launch->cluster;
    block->first = block - block->rank;
    block->shared = take(all, run->shared_size);
    block->live_warps = run->warps;
    fill(block->shared, run->shared_size);
    block->warps = (ptx_warp *)(void *)take(all, sizeof(ptx_warp) * (size_t)run->warps);
    uint32_t *waiting =
        (uint32_t *)(void *)take(all, sizeof(uint32_t) * PTX_BARRIERS * (size_t)run->warps);
    for (int i = 0; i < PTX_BARRIERS; i++)
        block->meetings[i].waiting = waiting + i * run->warps;
    for (int i = 0; i < run->warps; i++) {
        ptx_warp *w = &block->warps[i];
        int threads = launch->threads - i * PTX_LANES;
        w->block = block;
        w->index = i;
        w->registers = take(all, run->module->register_bytes);
        w->local = take(all, (size_t)run->module->local_bytes * PTX_LANES);
        fill(w->registers, run->module->register_bytes);
        fill(w->local, (size_t)run->module->local_bytes * PTX_LANES);
        w->live = threads >= PTX_LANES ? PTX_EVERY : (1u << threads) - 1;
        ptx_set_pc(w, w->live, launch->function->first);
    }
}

static size_t block_bytes(const ptx_runner *run)
{
    const ptx_module *m = run->module;
    size_t warps = (size_t)run->warps;
    return rounded(run->shared_size) + rounded(sizeof(ptx_warp) * warps) +
           rounded(sizeof(uint32_t) * PTX_BARRIERS * warps) +
           warps * (rounded(m->register_bytes) + rounded((size_t)m->local_bytes * PTX_LANES));
}

static uint64_t seed(void)
{
    static uint64_t launches;
    const char *set = getenv("IMBREX_FAKE_SEED");
    uint64_t number = __atomic_add_fetch(&launches, 1, __ATOMIC_RELAXED);
    return (number + (set ? strtoull(set, NULL, 0) : 0) * 1000003) * 0x9e3779b97f4a7c15ull | 1;
}

bool ptx_run(const ptx_launch *launch, char why[512])
{
    ptx_runner run = { .launch = launch,
                       .module = launch->module,
                       .warps = (launch->threads + PTX_LANES - 1) / PTX_LANES,
                       .live_blocks = launch->blocks,
                       .random = seed(),
                       .why = why };
    run.shared_size = launch->module->dynamic_shared + (uint32_t)launch->shared_bytes;
    room all = { .bytes = block_bytes(&run) * (size_t)launch->blocks };
    all.at = mmap(NULL, all.bytes, PROT_READ | PROT_WRITE,
                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    run.blocks = calloc((size_t)launch->blocks, sizeof *run.blocks);
    if (all.at == MAP_FAILED || !run.blocks)
        abort();
    for (int i = 0; i < launch->blocks; i++)
        make_block(&run, i, &all);
    go_on(&run);
    for (int i = 0; i < launch->blocks; i++) {
        for (int k = 0; k < run.warps; k++) {
            free(run.blocks[i].warps[k].copies);
            ptx_group_end(&run.blocks[i].warps[k]);
        }
    }
    munmap(all.at, all.bytes);
    free(run.blocks);
    free(run.lates);
    return !run.failed;
}
