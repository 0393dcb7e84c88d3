/* merge.h - how states of attention of all ranks come to the owners of their heads and become one:
 * what merge_states is, and the second half of flash_decode.
 *
 * A plan's desc is an imbrex_decode_desc.  In a variant's shared data, per buffer:
 *
 *     slots     [R][slot]   slot r: rank r's states of this rank's heads; signal r says that they
 *                           are here, or, of a kernel that stores, signals r * units + u
 *     words     as kernels/merge/args.h has them
 *     nodes     [R][slot]   slot t * ranks + l: what rank l of this node has for the rank of this
 *                           one's number on node t
 */
#ifndef IMX_MERGE_H
#define IMX_MERGE_H

#include "kernels/merge/args.h"
#include "plan/plan.h"

enum { IMX_MERGE_KERNELS = 3 }; /* that a variant has for it, at most */
enum { IMX_MERGE_HEADS = 65536, IMX_MERGE_VALUES = 1024, IMX_MERGE_QUERIES = 8 }; /* at most */

/* This rank's states, [rows, heads] of the run. */
typedef struct imx_merge_states {
    const void *o;
    const float *lse;
} imx_merge_states;

/* The rows of a row of imbrex_decode_desc: elements of o that a sequence has. */
int64_t imx_merge_width(const void *desc);

/* Queries of a sequence; heads of o that this rank gets. */
int64_t imx_merge_queries(const void *desc);
int64_t imx_merge_own_heads(const imx_asked *asked);

/* Whether heads, value_dim and queries are in range. */
imbrex_status imx_merge_check(const imbrex_group *group, const imx_request *request) IMX_MUST_CHECK;

/* By copies, for ranks of one node, and for one rank alone; begin and end of the run are the
 * caller's. */
void imx_merge_copies_needs(const imx_variant *variant, imx_needs *needs);
imbrex_status imx_merge_copies_prepare(imx_variant *variant, int first) IMX_MUST_CHECK;
imbrex_status imx_merge_copies(const imx_run *run, int first,
                               const imx_merge_states *own) IMX_MUST_CHECK;

/* By one kernel, IMX_MERGE_STORES or IMX_MERGE_LL, which begins and ends the run. */
void imx_merge_kernel_needs(const imx_variant *variant, int how, imx_needs *needs);
imbrex_status imx_merge_kernel_prepare(imx_variant *variant, int first, int how) IMX_MUST_CHECK;
imbrex_status imx_merge_kernel(const imx_run *run, int first, int how,
                               const imx_merge_states *own) IMX_MUST_CHECK;

/* Over nodes: each node's ranks first.  overlapped: on the plan's streams, else all on the
 * caller's. */
void imx_merge_nodes_needs(const imx_variant *variant, imx_needs *needs);
imbrex_status imx_merge_nodes_prepare(imx_variant *variant, int first) IMX_MUST_CHECK;
imbrex_status imx_merge_nodes(const imx_run *run, int first, bool overlapped,
                              const imx_merge_states *own) IMX_MUST_CHECK;

/* What they are expected to take. */
double imx_merge_copies_cost(const imx_problem *p, const imx_rates *rates);
double imx_merge_store_cost(const imx_problem *p, const imx_rates *rates);
double imx_merge_ll_cost(const imx_problem *p, const imx_rates *rates);

/* The algorithms of an operator that has lay_out_store and lay_out_ll, and prepare_<name> and
 * run_<name> of each, of "sequential" over nodes too; copies, nodes: layouts of the others. */
#define IMX_MERGE_ALGORITHMS(copies, nodes)  \
    {                                        \
        { .name = "sequential",              \
          .cost = imx_merge_copies_cost,     \
          .layout = copies,                  \
          .prepare = prepare_sequential,     \
          .run = run_sequential },           \
            { .name = "sequential",          \
              .over_nodes = true,            \
              .layout = nodes,               \
              .prepare = prepare_nodes,      \
              .run = run_sequential_nodes }, \
            { .name = "store",               \
              .by_kernel = true,             \
              .stores = true,                \
              .cost = imx_merge_store_cost,  \
              .layout = lay_out_store,       \
              .prepare = prepare_store,      \
              .run = run_store },            \
            { .name = "ll",                  \
              .by_kernel = true,             \
              .cost = imx_merge_ll_cost,     \
              .layout = lay_out_ll,          \
              .prepare = prepare_ll,         \
              .run = run_ll },               \
            { .name = "hierarchical",        \
              .over_nodes = true,            \
              .layout = nodes,               \
              .prepare = prepare_nodes,      \
              .run = run_hierarchical },     \
    }

/* ---- parts of them --------------------------------------------------------------------------- */

/* The kernel's args for a run of m sequences, but for addresses; the addresses of this rank's
 * states, and of what the caller gets. */
imx_merge_args imx_merge_args_of(const imx_variant *variant, int64_t m, int how);
void imx_merge_set_states(const imx_run *run, const imx_merge_states *own, imx_merge_args *args);
void imx_merge_set_results(const imx_run *run, imx_merge_args *args);

/* A slot's bytes, of elements of dtype, for the largest run. */
size_t imx_merge_slot_bytes(const imx_variant *variant, imbrex_dtype dtype);

/* States of a run that an owner gets of a rank, and their bytes in a slot. */
int64_t imx_merge_owner_states(const imx_run *run, int owner);
size_t imx_merge_owner_bytes(const imx_run *run, int owner, imbrex_dtype dtype);

/* This rank's states by their owners, at the start of local data: on the caller's stream. */
size_t imx_merge_packed_bytes(const imx_variant *variant);
imbrex_status imx_merge_pack_prepare(imx_variant *variant, int kernel) IMX_MUST_CHECK;
imbrex_status imx_merge_pack(const imx_run *run, int kernel,
                             const imx_merge_states *own) IMX_MUST_CHECK;
const char *imx_merge_packed(const imx_run *run, int owner);

#endif /* IMX_MERGE_H */
