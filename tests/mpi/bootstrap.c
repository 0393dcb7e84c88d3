/* bootstrap.c - ranks of a program that has started MPI itself meet over it, and gather over nodes:
 *
 *     IMBREX_NODE_RANKS=2 mpirun -n 4 mpi_bootstrap
 */
#include <stdio.h>

#include "imbrex_mpi.h"

#define CHECK(call)                                                                   \
    do {                                                                              \
        imbrex_status status_ = (call);                                               \
        if (status_ != IMBREX_OK) {                                                   \
            fprintf(stderr, "%s: %s\n", imbrex_status_name(status_), imbrex_error()); \
            return 1;                                                                 \
        }                                                                             \
    } while (0)

enum { MOST = 64 };

/* Every rank brings its number; all get them in order. */
static int gather(const imbrex_bootstrap *bootstrap)
{
    imbrex_group *group;
    imbrex_plan *plan;
    imbrex_group_desc desc = { .bootstrap = bootstrap, .device = "cpu" };
    CHECK(imbrex_group_create(&desc, &group));
    float own = (float)bootstrap->rank, all[MOST] = { 0 };
    imbrex_coll_desc numbers = { .m = bootstrap->size, .n = 1, .dtype = IMBREX_F32 };
    CHECK(imbrex_plan_all_gather(group, &numbers, &plan));
    CHECK(imbrex_plan_run(plan, &(imbrex_args){ .a = &own, .c = all }, NULL));
    CHECK(imbrex_barrier(group, NULL));
    CHECK(imbrex_stream_sync(group, NULL));
    for (int r = 0; r < bootstrap->size; r++) {
        if (all[r] != (float)r) {
            fprintf(stderr, "rank %d has %g from rank %d\n", bootstrap->rank, (double)all[r], r);
            return 1;
        }
    }
    imbrex_plan_destroy(plan);
    imbrex_group_destroy(group);
    return 0;
}

int main(int argc, char **argv)
{
    int level, failed = 0;
    imbrex_bootstrap bootstrap;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level);
    CHECK(imbrex_bootstrap_mpi(MPI_COMM_WORLD, &bootstrap));
    for (int i = 0; i < 2 && !failed; i++) /* a second group meets over the same */
        failed = gather(&bootstrap);
    if (!failed) {
        printf("rank %d of %d gathered\n", bootstrap.rank, bootstrap.size);
        MPI_Finalize();
    }
    return failed;
}
