/* ptx_run.h - blocks, warps and lanes while they run.  ptx_run.c says whose turn it is, ptx_step.c
 * what instructions do, ptx_memory.c where addresses lead, ptx_async.c what comes late. */
#ifndef PTX_RUN_H
#define PTX_RUN_H

#include "ptx.h"
#include "ptx_tensor.h"
#include "sanitized.h"

/* gcc's thread sanitizer has no fences: nothing that it watches runs PTX. */
#if SANITIZED_THREADS
#define PTX_FENCE_OF(order) ((void)(order))
#else
#define PTX_FENCE_OF(order) __atomic_thread_fence(order)
#endif

enum { PTX_ALL = -1 };
#define PTX_EVERY 0xffffffffu

enum { PTX_ROUND_RN, PTX_ROUND_RZ, PTX_ROUND_RM, PTX_ROUND_RP };
enum { PTX_BARRIERS = 16 };

typedef struct ptx_copy {
    int lane;
    uint32_t group, number, to, size, filled;
    uint64_t from;
} ptx_copy;

typedef struct ptx_block ptx_block;
typedef struct ptx_runner ptx_runner;
typedef struct ptx_product ptx_product;

typedef struct ptx_warp {
    ptx_block *block;
    int index;
    unsigned char *registers, *local;
    uint32_t pc[PTX_LANES];
    uint32_t live;    /* lanes that have not ended */
    uint32_t parked;  /* they wait for others of the warp, at their instruction */
    uint32_t barred;  /* for other warps */
    uint32_t yielded; /* they wait for something that has not come, and shall not ask at once */
    uint32_t cluster_phase;
    ptx_copy *copies; /* cp.async under way */
    int copy_count, copy_room;
    uint32_t copy_number;                               /* of the next one */
    uint32_t groups[PTX_LANES], bulk_groups[PTX_LANES]; /* committed so far */
    bool grouped;                                       /* it has come to a wgmma */
    ptx_product **products;                             /* of the first one of four warps */
    int product_count;
    uint32_t product_groups; /* committed so far */
} ptx_warp;

typedef struct ptx_meeting { /* of bar.sync's */
    uint32_t arrived;        /* threads */
    uint32_t wanted;         /* 0: all that have not ended */
    uint32_t sum;            /* of bar.red */
    bool all, any;
    uint32_t *waiting; /* lanes, by warp */
} ptx_meeting;

struct ptx_block {
    ptx_runner *run;
    int index, rank;  /* in its cluster */
    ptx_block *first; /* of the cluster */
    unsigned char *shared;
    ptx_warp *warps;
    int live_warps;
    ptx_meeting meetings[PTX_BARRIERS];
    uint32_t cluster_arrived, cluster_phase; /* of the first one */
};

typedef enum ptx_late_kind {
    PTX_LATE_LOAD,
    PTX_LATE_STORE,
    PTX_LATE_PASS,
    PTX_LATE_ARRIVE, /* of copies before the number that bytes are */
    PTX_LATE_TENSOR_LOAD,
    PTX_LATE_TENSOR_STORE
} ptx_late_kind;

/* A copy that has been asked for and not been done. */
typedef struct ptx_late {
    ptx_late_kind kind;
    ptx_warp *warp; /* which asked */
    int lane;
    uint32_t insn, group;
    uint64_t due; /* round */
    uint64_t map, global;
    uint32_t shared, barrier, bytes, to_ranks, rank; /* to: a block of each rank */
    uint32_t rank_count;
    int32_t x[5];
} ptx_late;

struct ptx_runner {
    const ptx_launch *launch;
    const ptx_module *module;
    ptx_block *blocks;
    int live_blocks, warps;
    uint32_t shared_size;
    uint64_t random, round;
    uint64_t moved; /* counts what others can see */
    bool failed;
    char *why;
    ptx_late *lates;
    int late_count, late_room;
};

uint32_t ptx_random(ptx_runner *run);

/* Says what is wrong, and ends the launch. */
void ptx_fault(ptx_warp *warp, int lane, uint32_t pc, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* ---- steps ----------------------------------------------------------------------------------- */

/* Runs lanes that stand at pc, up to so many instructions, to one that other lanes stand at (stop),
 * or until they part or wait.  others: there are lanes elsewhere.  Returns the instructions. */
int ptx_step(ptx_warp *warp, uint32_t lanes, uint32_t pc, uint32_t stop, bool others, int most);

void ptx_set_pc(ptx_warp *warp, uint32_t lanes, uint32_t pc);

/* Lanes of `members` that have come to pc, these among them: all of them, or 0, and these wait. */
uint32_t ptx_gather(ptx_warp *warp, uint32_t lanes, uint32_t pc, uint32_t members);

/* ---- memory ---------------------------------------------------------------------------------- */

/* Where each active lane's so many bytes are; false: one has no business there. */
bool ptx_find(ptx_warp *warp, const ptx_insn *insn, uint32_t pc, uint32_t active, uint32_t bytes,
              unsigned char *at[PTX_LANES]);

/* A lane's address as it is written. */
uint64_t ptx_address(const ptx_warp *warp, const ptx_insn *insn, int lane);
uint64_t ptx_listed_address(const ptx_warp *warp, const ptx_insn *insn, int which, int lane);

/* The block whose shared memory that is, with the address in its window; NULL: none. */
ptx_block *ptx_shared_block(ptx_block *block, uint64_t address, uint32_t *at);
ptx_shared ptx_block_shared(ptx_block *block);
uint32_t ptx_own_base(const ptx_block *block);

void ptx_load(ptx_warp *warp, const ptx_insn *insn, uint32_t pc, uint32_t active);
void ptx_store(ptx_warp *warp, const ptx_insn *insn, uint32_t pc, uint32_t active);
void ptx_atomically(ptx_warp *warp, const ptx_insn *insn, uint32_t pc, uint32_t active);

static inline unsigned char *ptx_place(const ptx_warp *warp, ptx_operand operand)
{
    unsigned char *base = operand & 1 ? warp->block->run->module->constants : warp->registers;
    return base + (operand & ~1);
}

static inline uint32_t ptx_32(const ptx_warp *warp, ptx_operand operand, int lane)
{
    return ((const uint32_t *)(const void *)ptx_place(warp, operand))[lane];
}

static inline uint64_t ptx_64(const ptx_warp *warp, ptx_operand operand, int lane)
{
    return ((const uint64_t *)(const void *)ptx_place(warp, operand))[lane];
}

/* ---- what comes late ------------------------------------------------------------------------- */

/* Each handles the instructions of its kind; false: the lanes have to ask again. */
bool ptx_copies(ptx_warp *warp, const ptx_insn *insn, uint32_t pc, uint32_t active);
bool ptx_barriers(ptx_warp *warp, const ptx_insn *insn, uint32_t pc, uint32_t active);
bool ptx_matrices(ptx_warp *warp, const ptx_insn *insn, uint32_t pc);
bool ptx_group_products(ptx_warp *warp, const ptx_insn *insn, uint32_t pc);
void ptx_group_end(ptx_warp *warp);

/* What is due; all: everything. */
void ptx_late_settle(ptx_runner *run, bool all);

/* ---- barriers of threads (ptx_meet.c) -------------------------------------------------------- */

/* The lanes have come to a barrier of the block, and wait. */
void ptx_meet(ptx_warp *warp, const ptx_insn *insn, uint32_t pc, uint32_t lanes);
void ptx_ended(ptx_warp *warp); /* lanes of it have: that may be what others wait for */
void ptx_cluster_arrive(ptx_warp *warp, uint32_t lanes);
bool ptx_cluster_over(const ptx_warp *warp);

#endif /* PTX_RUN_H */
