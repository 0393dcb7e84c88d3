/* agree.h - how the ranks of a group agree on anything. */
#ifndef IMX_AGREE_H
#define IMX_AGREE_H

#include "state.h"

/* One number that all ranks must give alike, with the name that the caller knows it by. */
typedef struct imx_field {
    const char *of; /* the struct it is in; NULL: none */
    const char *name;
    int64_t value;
    const char *const *words; /* [words_count], what a value means; NULL: the number says it */
    int words_count;
    bool hash; /* the number says nothing */
    bool real; /* it is a float's bits */
} imx_field;

enum { IMX_AGREE_FIELDS = 40, IMX_AGREE_NOTE = 256 };

/* Collective: swaps bytes through the bootstrap.  If that fails: why the group has, or PEER or
 * TIMEOUT. */
imbrex_status imx_agree_allgather(imbrex_group *group, const void *send, void *recv,
                                  size_t bytes) IMX_MUST_CHECK;

/* The same for transports and engines, which know no group. */
imbrex_status imx_agree_allgather_of(void *group, const void *send, void *recv,
                                     size_t bytes) IMX_MUST_CHECK;

/* Whether a rank of this node has begun to meet the others in the call that this rank comes to
 * next: one that has refused more calls since all did the same is beyond that. */
bool imx_agree_is_awaited(const imbrex_group *group);

/* This rank refuses a call that enqueues. */
void imx_agree_count_refusal(imbrex_group *group);

/* Takes the memory that imx_agree needs. */
imbrex_status imx_agree_prepare(imbrex_group *group) IMX_MUST_CHECK;

/* Collective: the one meeting of every collective call.  All ranks bring the name of the call, how
 * it has gone for them so far, and fields that must be equal.  All leave with OK, or none: a rank
 * that brought a failure gets it back, the others PEER with that rank's sentence. */
imbrex_status imx_agree(imbrex_group *group, const char *call, imbrex_status mine,
                        const imx_field *fields, int count) IMX_MUST_CHECK;

/* The same; on OK, note[IMX_AGREE_NOTE] is what rank 0 brought in it. */
imbrex_status imx_agree_noted(imbrex_group *group, const char *call, imbrex_status mine,
                              const imx_field *fields, int count, void *note) IMX_MUST_CHECK;

/* Not a meeting: notes that this rank enqueues its next run, and compares it with those ranks of
 * its node that have enqueued theirs.  If one of them runs another plan or other rows, the group
 * fails: INVALID, on all ranks.  A rank that is more than IMX_CONTROL_RUNS runs ahead goes
 * unnoticed. */
imbrex_status imx_agree_run(imbrex_group *group, int plan, int64_t m) IMX_MUST_CHECK;

/* The same for the number-th launch, from 1, of a kernel with a product, but only of its rows: in
 * which order kernels are launched, and how often, is the caller's. */
imbrex_status imx_agree_launch(imbrex_group *group, int kernel, uint64_t number,
                               int64_t m) IMX_MUST_CHECK;

/* Adds which rows the two ranks have of a fault of either: have is the other rank's run or launch,
 * want that of the rank that noticed. */
void imx_agree_describe_rows(const imbrexd_fault *fault, imx_text *text);

/* This rank's words of launches so far, before all ranks meet to make a kernel: a kernel's number
 * is cut off in a word, and a later one's would be taken for it. */
void imx_agree_forget_launches(imbrex_group *group);

/* A run as one word, which is written and read at once: | its number | its plan | m |.  The upper
 * two are cut off: that would matter to ranks a million runs, or 8192 plans, apart. */
enum { IMX_AGREE_RUN_SHIFT = 44, IMX_AGREE_PLAN_SHIFT = 31, IMX_AGREE_PLAN_MASK = 8191 };

static inline uint64_t imx_agree_run_word(uint64_t number, int plan, int64_t m)
{
    return number << IMX_AGREE_RUN_SHIFT |
           (uint64_t)(plan & IMX_AGREE_PLAN_MASK) << IMX_AGREE_PLAN_SHIFT | (uint64_t)m;
}

/* The plan of word: of those with its lower bits the nearest to the plan `like`. */
static inline int imx_agree_run_plan(uint64_t word, int like)
{
    enum { PLANS = IMX_AGREE_PLAN_MASK + 1 };
    int ahead = (int)(((word >> IMX_AGREE_PLAN_SHIFT) - (uint64_t)like) & IMX_AGREE_PLAN_MASK);
    return ahead <= PLANS / 2 || like + ahead <= PLANS ? like + ahead : like + ahead - PLANS;
}

static inline int64_t imx_agree_run_m(uint64_t word)
{
    return (int64_t)(word & (((uint64_t)1 << IMX_AGREE_PLAN_SHIFT) - 1));
}

#endif /* IMX_AGREE_H */
