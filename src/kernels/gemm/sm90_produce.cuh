/* sm90_produce.cuh - the producer of sm90.cu: which tiles come next, whether their rows have
 * arrived, and their loads into the ring of stages.
 *
 * To work a tile out takes longer than the loads that are under way, and the ring would run dry
 * once a tile: so a warp lists the next ones together, a lane each.  Few blocks have more tiles
 * than one list holds, and those that have not are without the code that lists more: it would hold
 * up the first loads.
 */
#ifndef IMX_SM90_PRODUCE_CUH
#define IMX_SM90_PRODUCE_CUH

#include "sm90_policies.cuh"

enum {
    /* Steps of b that are asked for before the kernel ahead has ended; where a is waited for, so
     * much of it, a block. */
    PREFETCH_BYTES = 160 << 10,
    PREFETCH_STEPS = prologue::B_FIRST  ? IMX_STAGES + PREFETCH_BYTES / (B_BYTES / IMX_CLUSTER_M)
                     : IMX_TILE_M == 64 ? IMX_STAGES
                                        : 0,
    /* If there is one row of tiles; much of it is in the cache early, and should stay there. */
    READS_B_ONCE = prologue::B_FIRST && IMX_CLUSTER_M == 1,
};

/* With SPANS a block's own rows of a tile: it need not wait for those of the other block of its
 * cluster. */
IMX_FN void list_spanning(const imx_gemm_args &args, tile_info *info, int *a_row)
{
    const imx_schedule &s = args.schedule;
    imx_sm90_rows share = imx_sm90_rows_of((unsigned)s.m, (unsigned)s.ranks);
    unsigned rows = info->rows < IMX_TILE_M ? info->rows : IMX_TILE_M, rank, last_rank;
    if (info->rows <= 0)
        return;
    info->chunk = (int)imx_sm90_chunk_of(&s, share, info->row, &rank);
    info->last = (int)imx_sm90_chunk_of(&s, share, info->row + rows - 1, &last_rank);
    bool own = (int)rank == args.own && (int)last_rank == args.own;
    *a_row = own ? ~(info->row - (int)imx_sm90_row(share, rank)) : info->row;
}

/* What of it may have been waited for already, for the tile before. */
IMX_FN int arrival_of(const tile_info *info)
{
    return SPANS ? info->row : info->chunk;
}

/* owner: of the tile before. */
IMX_FN void list_tile(const imx_gemm_args &args, unsigned tile, imx_sm90_tile t, int owner)
{
    tile_info *info = listed(tile % LISTED);
    int below = block_m() * IMX_TILE_M;
    int steps = steps_of(args);
    if (!EIGHT)
        info->steps = steps;
    info->row = t.row + below;
    info->col = t.col;
    info->rows = t.rows - below;
    info->chunk = t.chunk;
    int a_row = ~(t.row + below);
    if (prologue::GATHERS)
        a_row = t.rank == args.own ? ~(t.rank_row + below) : t.row + below;
    if (SPANS)
        list_spanning(args, info, &a_row);
    listed_row(tile % LISTED) = a_row;
    if (EIGHT)
        info->a_row = a_row;
    prologue::note(args, t, info);
    epilogue::note(args, tile, t, below, steps, owner, info);
}

/* One warp: the block's tiles from number `first` on, which a whole list ends before. */
IMX_FN void list_tiles(const imx_gemm_args &args, unsigned first)
{
    int lane = lane_here(), owner = 0;
    unsigned tile = first + lane, index = index_of(tile);
    bool any = lane < LISTED && index < tiles_of();
    imx_sm90_tile t = {};
    if (any)
        t = imx_sm90_tile_at(&args.schedule, TILE_ROWS, TILE_COLS, prologue::order(args, index));
    if (epilogue::HAS_OWNERS) {
        owner = __shfl_up_sync(0xffffffffu, t.rank, 1);
        if (lane == 0 && first > 0)
            owner = listed(LISTED - 1)->owner;
        __syncwarp();
    }
    if (any)
        list_tile(args, tile, t, owner);
    __syncwarp();
}

/* One warp: how many tiles there are, how many rows end a rank's, and the block's first tiles. */
IMX_FN void list_first(const imx_gemm_args &args)
{
    if (lane_here() == 0) {
        tiles_of() = imx_sm90_tiles(&args.schedule, TILE_ROWS, TILE_COLS);
        words().edge = imx_sm90_edge_rows(&args.schedule, IMX_TILE_M);
    }
    __syncwarp();
    list_tiles(args, 0);
}

/* To this block, and where it shares b with the one below or above, to the same place there. */
IMX_FN void load_share(const imx_gemm_args &args, uint32_t to, const imx_tma_map *map, int x, int y,
                       uint32_t bar)
{
    if (IMX_CLUSTER_M > 1)
        tma_load_multicast(to, map, x, y, bar, (1 << IMX_CLUSTER_M) - 1);
    else if (READS_B_ONCE && args.schedule.m <= TILE_ROWS)
        tma_load_once(to, map, x, y, bar);
    else
        tma_load(to, map, x, y, bar);
}

/* Columns of b that a tile at col has here, as they are loaded. */
IMX_FN int cols_here(const imx_gemm_args &args, int col)
{
    int left = (int)args.schedule.n - col;
    if (B_KN)
        left = (left + 63) / 64 * 64; /* whole atoms */
    return left < B_COLS ? left : B_COLS;
}

/* This block's share of them. */
IMX_FN void load_b(const imx_gemm_args &args, const imx_gemm_maps &maps, int col, int k,
                   uint32_t to, uint32_t bar)
{
    int b_part = block_m() * B_SHARE;
    uint32_t b_to = to + A_BYTES + b_part * 128;
    if constexpr (B_KN) {
        for (int end = col + cols_here(args, col); col < end; col += 64, b_to += 8192)
            load_share(args, b_to, &maps.b, col, k + b_part, bar);
    } else {
        int here = (int)args.schedule.n - col - b_part;
        if (here > 0)
            load_share(args, b_to, here < B_SHARE ? &maps.b_edge : &maps.b, k, col + b_part, bar);
    }
}

/* One thread, before the kernel ahead of this one has ended: where few rows are multiplied all
 * depends on how soon b is read, and b need wait for nobody.  Should that kernel still write to it,
 * the cache has what it wrote. */
IMX_FN void prefetch_b(const imx_gemm_args &args, const imx_gemm_maps &maps)
{
    const tile_info *first = listed(0);
    int b_part = block_m() * B_SHARE, col = first->col, end = col + cols_here(args, col);
    if (PREFETCH_STEPS == 0 || blockIdx.x / CLUSTER >= tiles_of())
        return;
    for (int i = 0; i < PREFETCH_STEPS && i < steps_of(args, first); i++) {
        for (int j = col; B_KN && j < end; j += 64)
            tma_prefetch(&maps.b, j, k_of(i) + b_part);
        if (!B_KN && col + b_part < end)
            tma_prefetch(&maps.b, k_of(i), col + b_part);
    }
}

/* What a tile's stages take. */
typedef struct loads {
    const imx_tma_map *a; /* NULL: none of a's rows */
    int row, col, bytes;
} loads;

IMX_FN loads loads_of(const imx_gemm_args &args, const imx_gemm_maps &maps, unsigned tile)
{
    const tile_info *info = listed(tile % LISTED);
    int row = listed_row(tile % LISTED), here = info->rows;
    loads l = { row < 0 ? &maps.a : &maps.gathered, row < 0 ? ~row : row, info->col,
                cols_here(args, info->col) * 128 };
    if (here >= IMX_TILE_M) {
        l.bytes += A_BYTES;
    } else if (here > 0) {
        l.a += &maps.a_edge - &maps.a;
        l.bytes += words().edge * 128;
    } else {
        l.a = NULL;
    }
    return l;
}

/* The first threads, of which one waits and loads. */
IMX_FN void produce(const imx_gemm_args &args, const imbrexd_watch *watch,
                    const imx_gemm_maps &maps)
{
    uint32_t base = shared_base();
    int steps = steps_of(args);
    place at = { 0, 1 }; /* an empty ring is free at once */
    unsigned tile = 0;   /* of this block's */
    int early = 0;       /* stages whose b is on its way already */
    int waited = -1;     /* what has been waited for last */
    int kept = prologue::begin(args);
    int parts = 0; /* what has been seen of those of the last tile */

    for (; index_of(tile) < tiles_of(); tile++) {
        if (PRODUCERS > 1 && tile > 0 && tile % LISTED == 0) {
            __syncwarp();
            list_tiles(args, tile);
        }
        if (threadIdx.x != 0)
            continue;
        tile_info *info = listed(tile % LISTED);
        loads l = loads_of(args, maps, tile);
        if (prologue::B_FIRST && args.ready && tile == 0) {
            for (; early < IMX_STAGES && early < steps; early++)
                load_b(args, maps, l.col, k_of(early), base + early * STAGE_BYTES,
                       full_of(base, early));
        }
        kept = prologue::begin_tile(info, listed_row(tile % LISTED), kept);
        if (prologue::WAITS) {
            if (prologue::waits(args) && listed_row(tile % LISTED) >= 0 &&
                arrival_of(info) != waited && !gave_up_here()) {
                waited = arrival_of(info);
                if (!prologue::wait(args, watch, info))
                    gave_up_here() = 1;
                imbrexd_fence_tma();
            }
            /* Other blocks of the cluster count on what this one brings: go on, but post nothing.
             */
            if (gave_up_here())
                info->chunk = GAVE_UP;
        }

        for (int i = 0; i < steps; i++) {
            int k = k_of(i);
            kept = prologue::begin_step(args, watch, k, kept);
            mbar_wait(empty_of(base, at.stage), at.phase);
            if (i == 0)
                *info_of(at.stage) = *info;
            uint32_t to = base + at.stage * STAGE_BYTES, full = full_of(base, at.stage);
            mbar_expect(full, l.bytes);
            if (l.a)
                tma_load(to, l.a, k, l.row, full);
            if (early > 0) /* b is on its way: bytes may well come before they are expected */
                early--;
            else
                load_b(args, maps, l.col, k, to, full);
            step(&at);
            if (epilogue::REDUCES_LAST && i == steps - IMX_STAGES &&
                index_of(tile + 1) >= tiles_of())
                epilogue::look(args, info, &parts);
        }
    }
    if (threadIdx.x != 0)
        return;
    epilogue::load_parts(args, watch, maps.more, tile, parts, &at);
    if (ENDS_EARLY) {
        for (int i = 0; i < IMX_STAGES; i++, step(&at)) /* the last load of each */
            mbar_wait(full_of(base, at.stage), at.phase);
    }
}

#endif /* IMX_SM90_PRODUCE_CUH */
