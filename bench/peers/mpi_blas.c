/* mpi_blas.c - imbrex on CPU ranks against MPI and BLAS in sequence, in one run:
 *
 *     mpirun -n 2 --bind-to none mpi_blas -m 2048 -n 2048 -k 2048 [--json] [--strict]
 */
#include <getopt.h>
#include <math.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/candidates.h"
#include "cli.h"
#include "measure.h"

enum { BLAS, MPI, SEQUENTIAL, OVERLAPPED, CANDIDATES };

typedef struct options {
    int64_t m, n, k;
    int rounds, warm, chunk_rows;
    bool json, strict;
} options;

/* One operator as MPI and BLAS do it. */
typedef struct mpi_call {
    bench_blas blas;
    float *whole;                /* all of a (ag_gemm), or all of the rank's product (gemm_rs) */
    int *counts, *displacements; /* elements of each rank */
} mpi_call;

typedef struct peer {
    const options *options;
    int rank, ranks;
    imbrex_group *group;
    share share;
    bench_shape shape;
    bench_data data;
    mpi_call mpi;
    bench_call sequential, overlapped;
    candidate candidates[CANDIDATES];
    double difference, allowed; /* between the two results */
} peer;

/* ---- The group's bootstrap ------------------------------------------------------------------- */

static int swap_blobs(void *ctx, const void *send, void *recv, size_t bytes)
{
    (void)ctx;
    return MPI_Allgather(send, (int)bytes, MPI_BYTE, recv, (int)bytes, MPI_BYTE, MPI_COMM_WORLD);
}

/* ---- MPI and BLAS ---------------------------------------------------------------------------- */

/* Elements of each rank's rows of a matrix so many columns wide. */
static void cut(mpi_call *mpi, const bench_shape *s, int ranks, int64_t width)
{
    for (int r = 0; r < ranks; r++) {
        int64_t row = r * s->m / ranks;
        mpi->displacements[r] = (int)(row * width);
        mpi->counts[r] = (int)(((r + 1) * s->m / ranks - row) * width);
    }
}

static imbrex_status run_mpi(void *ctx)
{
    mpi_call *mpi = ctx;
    const bench_shape *s = mpi->blas.shape;
    imbrex_args args = bench_data_args(mpi->blas.data, s, mpi->blas.calls++, false);
    int rank, error;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (s->op->a_is_shard) {
        error = MPI_Allgatherv(args.a, mpi->counts[rank], MPI_FLOAT, mpi->whole, mpi->counts,
                               mpi->displacements, MPI_FLOAT, MPI_COMM_WORLD);
        bench_blas_product(s, mpi->blas.threads, mpi->whole, args.b, args.c);
    } else {
        bench_blas_product(s, mpi->blas.threads, args.a, args.b, mpi->whole);
        error =
            MPI_Reduce_scatter(mpi->whole, args.c, mpi->counts, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    }
    return error == MPI_SUCCESS ? IMBREX_OK : IMBREX_PEER;
}

/* ---- Both results ---------------------------------------------------------------------------- */

/* What the call leaves in the first set's c, to be freed. */
static imbrex_status result_of(peer *p, imbrex_status (*run)(void *), void *call, int64_t count,
                               float **out)
{
    imbrex_args args = bench_data_args(&p->data, &p->shape, 0, false);
    float *c = malloc((size_t)count * sizeof *c + 1);
    if (!c)
        return IMBREX_NO_MEMORY;
    memset(args.c, 0xff, (size_t)count * sizeof *c); /* NaN: what is not written is seen */
    imbrex_status status = run(call);
    if (status == IMBREX_OK)
        status = imbrex_copy(p->group, c, args.c, (size_t)count * sizeof *c, NULL);
    if (status == IMBREX_OK)
        status = imbrex_stream_sync(p->group, NULL);
    if (status == IMBREX_OK)
        *out = c;
    else
        free(c);
    return status;
}

/* Both calls are at their first set. */
static imbrex_status compare(peer *p)
{
    const bench_shape *s = &p->shape;
    int64_t rows = (p->rank + 1) * s->m / p->ranks - p->rank * s->m / p->ranks;
    int64_t count = (s->op->a_is_shard ? s->m : rows) * s->n;
    float *ours = NULL, *theirs = NULL;
    double most = 0;
    imbrex_status status = result_of(p, run_mpi, &p->mpi, count, &theirs);
    if (status == IMBREX_OK)
        status = result_of(p, bench_call_run, &p->overlapped, count, &ours);
    for (int64_t i = 0; i < count && status == IMBREX_OK; i++) {
        double difference = fabs((double)ours[i] - (double)theirs[i]);
        most = difference <= most ? most : difference; /* a NaN stays */
    }
    free(ours);
    free(theirs);
    /* An element is the sum of so many products of N(0, 1) values, in another order each time. */
    double terms = (double)s->k * (s->op->a_is_shard ? 1 : p->ranks);
    p->allowed = 0x1p-24 * 8 * terms;
    TRY(status);
    double bad = isnan(most) ? HUGE_VAL : most;
    return share_max(&p->share, bad, &p->difference);
}

/* ---- One operator ---------------------------------------------------------------------------- */

static imbrex_status make(peer *p)
{
    const bench_shape *s = &p->shape;
    int64_t elements = s->op->a_is_shard ? s->m * s->k : s->m * s->n;
    mpi_call *mpi = &p->mpi;
    mpi->blas = (bench_blas){ &p->data, s, bench_blas_threads(s), 0 };
    mpi->whole = calloc((size_t)elements, sizeof *mpi->whole);
    mpi->counts = calloc((size_t)p->ranks, sizeof *mpi->counts);
    mpi->displacements = calloc((size_t)p->ranks, sizeof *mpi->displacements);
    if (!mpi->whole || !mpi->counts || !mpi->displacements)
        return IMBREX_NO_MEMORY;
    cut(mpi, s, p->ranks, s->op->a_is_shard ? s->k : s->n);
    TRY(bench_data_open(p->group, NULL, s, &p->data));
    p->sequential = (bench_call){ .data = &p->data, .shape = s };
    p->overlapped = p->sequential;
    TRY(bench_op_plan(p->group, s, "sequential", &p->sequential.plan));
    return bench_op_plan(p->group, s, NULL, &p->overlapped.plan);
}

static imbrex_status time_all(peer *p)
{
    const options *o = p->options;
    bench_blas blas = { &p->data, &p->shape, p->mpi.blas.threads, 0 };
    const candidate candidates[CANDIDATES] = {
        [BLAS] = { "blas alone", bench_blas_run, &blas, p->group, 1, 0 },
        [MPI] = { "mpi + blas", run_mpi, &p->mpi, p->group, 1, 0 },
        [SEQUENTIAL] = { "imbrex sequential", bench_call_run, &p->sequential, p->group, 1, 0 },
        [OVERLAPPED] = { "imbrex overlapped", bench_call_run, &p->overlapped, p->group, 1, 0 },
    };
    memcpy(p->candidates, candidates, sizeof candidates);
    return measure(&p->share, p->candidates, CANDIDATES, o->warm, o->rounds, NULL);
}

static void destroy(peer *p)
{
    bench_call_close(&p->sequential);
    bench_call_close(&p->overlapped);
    bench_data_close(&p->data);
    free(p->mpi.whole);
    free(p->mpi.counts);
    free(p->mpi.displacements);
}

static void print_table(const peer *p)
{
    char plan[400];
    imbrex_plan_describe(p->overlapped.plan, plan, sizeof plan);
    printf("%s\n  %-20s %12s %12s\n", plan, "", "us", "/ blas");
    for (int i = 0; i < CANDIDATES; i++)
        printf("  %-20s %12.1f %12.3f\n", p->candidates[i].name, p->candidates[i].us,
               p->candidates[i].us / p->candidates[BLAS].us);
    printf("  results differ by at most %.2g, allowed %.2g\n\n", p->difference, p->allowed);
}

static void print_json(const peer *p)
{
    static const char *const keys[] = { "blas_us", "mpi_blas_us", "sequential_us",
                                        "overlapped_us" };
    printf("  \"%s\": { ", p->shape.op->name);
    for (int i = 0; i < CANDIDATES; i++)
        printf("\"%s\": %.9g, ", keys[i], p->candidates[i].us);
    printf("\"difference\": %.9g, \"difference_allowed\": %.9g },\n",
           isfinite(p->difference) ? p->difference : -1, p->allowed);
}

/* *bad: the results differ, or imbrex is too slow for --strict. */
static imbrex_status run_op(peer *p, const char *name, bool *bad)
{
    const options *o = p->options;
    p->shape = (bench_shape){ .op = bench_op_find(name), .dtype = IMBREX_F32 };
    p->shape.m = o->m;
    p->shape.n = o->n;
    p->shape.k = o->k;
    p->shape.chunk_rows = o->chunk_rows;
    TRY(make(p));
    TRY(share_barrier(p->group));
    TRY(compare(p));
    TRY(time_all(p));
    if (p->rank == 0)
        (o->json ? print_json : print_table)(p);
    bool slow = p->candidates[OVERLAPPED].us > 1.05 * p->candidates[MPI].us;
    *bad = *bad || p->difference > p->allowed || (o->strict && slow);
    return share_barrier(p->group); /* before the memory goes */
}

static imbrex_status run_all(peer *p, bool *bad)
{
    static const char *const names[] = { "ag_gemm", "gemm_rs" };
    const options *o = p->options;
    const imbrex_bootstrap bootstrap = {
        .rank = p->rank, .size = p->ranks, .allgather = swap_blobs, .ctx = NULL
    };
    imbrex_group_desc desc = { .bootstrap = &bootstrap, .device = "cpu" };
    TRY(imbrex_group_create(&desc, &p->group));
    imbrex_status status = share_open(p->group, sizeof(double), &p->share);
    if (p->rank == 0 && o->json)
        puts("{");
    for (int i = 0; i < 2 && status == IMBREX_OK; i++) {
        status = run_op(p, names[i], bad);
        destroy(p);
        *p = (peer){ o, p->rank, p->ranks, .group = p->group, .share = p->share };
    }
    if (p->rank == 0 && o->json)
        printf("  \"ranks\": %d, \"m\": %lld, \"n\": %lld, \"k\": %lld, \"rounds\": %d\n}\n",
               p->ranks, (long long)o->m, (long long)o->n, (long long)o->k, o->rounds);
    return status;
}

/* ---- The command line ------------------------------------------------------------------------ */

static bool parse(int argc, char **argv, options *o)
{
    static const struct option names[] = {
        { "json", no_argument, NULL, 'j' },
        { "strict", no_argument, NULL, 's' },
        { "rounds", required_argument, NULL, 'r' },
        { "warm", required_argument, NULL, 'w' },
        { "chunk-rows", required_argument, NULL, 'c' },
        { 0 },
    };
    for (int letter; (letter = getopt_long(argc, argv, "m:n:k:", names, NULL)) != -1;) {
        int value = optarg ? atoi(optarg) : 0;
        o->m = letter == 'm' ? value : o->m;
        o->n = letter == 'n' ? value : o->n;
        o->k = letter == 'k' ? value : o->k;
        o->rounds = letter == 'r' ? value : o->rounds;
        o->warm = letter == 'w' ? value : o->warm;
        o->chunk_rows = letter == 'c' ? value : o->chunk_rows;
        o->json = o->json || letter == 'j';
        o->strict = o->strict || letter == 's';
        if (letter == '?')
            return false;
    }
    return optind == argc && o->m > 0 && o->n > 0 && o->k > 0 && o->rounds > 0 && o->warm >= 0 &&
           o->chunk_rows >= 0;
}

int main(int argc, char **argv)
{
    options o = { .m = 2048, .n = 2048, .k = 2048, .rounds = 15, .warm = 3 };
    peer p = { .options = &o };
    int provided;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &provided);
    MPI_Comm_rank(MPI_COMM_WORLD, &p.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &p.ranks);
    if (!parse(argc, argv, &o)) {
        if (p.rank == 0)
            fputs("usage: mpirun -n R mpi_blas [-m M] [-n N] [-k K] [--rounds N] [--warm N] "
                  "[--chunk-rows N] [--json] [--strict]\n",
                  stderr);
        MPI_Finalize();
        return 2;
    }
    bool bad = false;
    imbrex_status status = run_all(&p, &bad);
    if (status != IMBREX_OK) {
        fprintf(stderr, "mpi_blas: rank %d: %s: %s\n", p.rank, imbrex_status_name(status),
                failure_text(status));
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    share_close(&p.share);
    imbrex_group_destroy(p.group);
    MPI_Finalize();
    return bad ? 1 : 0;
}
