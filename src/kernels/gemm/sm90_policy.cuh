/* sm90_policy.cuh - what a product does besides multiplying.  A prologue is about rows of a until
 * they are loaded, an epilogue about tiles of c from when they are multiplied.  launch.c names one
 * of each (policies.h), sm90_policies.cuh includes it.
 *
 * Each is a struct in a file of its own: constants, which say what it needs, and functions, which
 * the pipeline calls.  It takes from the structs here what it does not say itself.
 */
#ifndef IMX_SM90_POLICY_CUH
#define IMX_SM90_POLICY_CUH

#include "sm90_layout.cuh"
#include "team.cuh"

/* Registers of a thread beside the consumers, of which each policy says how many it needs. */
enum { REGISTERS_LEAST = 40, REGISTERS_FEW = 56, REGISTERS_MORE = 72, REGISTERS_MOST = 88 };

enum { ALL_COLUMNS = 0x7fffffff };

/* ---- prologues ------------------------------------------------------------------------------- */

/* All rows of a are there.  Where nothing else is said one thread calls, that which loads. */
struct prologue_none {
    enum {
        REGISTERS = REGISTERS_LEAST,
        MAPS = 0,      /* of its own, behind those of c */
        READERS = 0,   /* threads that read a stage, besides the consumers */
        GATHERS = 0,   /* rows of args.own lie in map a, others in map gathered */
        WAITS = 0,     /* what a tile loads may have to be waited for: waits() and so on */
        B_FIRST = 0,   /* so long is waited for a that the first stages' b is loaded before it */
        ALL_RANKS = 0, /* a tile has rows of all ranks */
        ENDS_RUN = 0,  /* the run ends with the last load, where c is nobody else's */
    };

    typedef imx_gemm_args params; /* of the kernel */

    /* Before the block's first barrier. */
    IMX_FN void init(void) {}

    /* Whether the order may depend on what the kernel ahead wrote: a constant. */
    IMX_FN bool lists_late(void) { return false; }

    /* Some lanes of a warp: which tile of the schedule comes as number `index`. */
    IMX_FN unsigned order(const imx_gemm_args &, unsigned index) { return index; }

    /* A lane of a warp: what else there is to know of a tile. */
    IMX_FN void note(const imx_gemm_args &, const imx_sm90_tile &, tile_info *) {}

    IMX_FN bool waits(const imx_gemm_args &) { return false; }

    /* Until a tile's rows are here; 0: give up. */
    IMX_FN int wait(const imx_gemm_args &, const imbrexd_watch *, const tile_info *) { return 1; }

    /* What it keeps in a register while there are loads; the next ones are given it and return it.
     */
    IMX_FN int begin(const imx_gemm_args &) { return 0; }

    /* row: as listed_row() is. */
    IMX_FN int begin_tile(const tile_info *, int, int kept) { return kept; }

    /* Before the load of a's columns from k on. */
    IMX_FN int begin_step(const imx_gemm_args &, const imbrexd_watch *, int, int kept)
    {
        return kept;
    }

    /* Each of the three warps beside; 0: it gave up.  maps: its own. */
    IMX_FN int beside(const imx_gemm_args &, const imbrexd_watch *, const imx_tma_map *)
    {
        return 1;
    }
};

/* ---- epilogues ------------------------------------------------------------------------------- */

/* Tiles go to c.  Where nothing else is said each warp of the consumers calls. */
struct epilogue_store {
    enum {
        REGISTERS = REGISTERS_LEAST,
        MAPS = 1,          /* of c, and what it reads */
        ADDS_BIAS = 1,     /* to sums, before they are rounded; else where parts are added up */
        HAS_OWNERS = 0,    /* a tile has one rank's rows, and goes there */
        PEERS_SEE = 0,     /* tiles go where peers read: not any more once a wait gave up */
        WANTS_CREDITS = 0, /* and the first one not before a warp beside has let them */
        BEGINS = 0,        /* or before begin() */
        SENDS = 0,         /* a tile leaves at once, out of registers, by send() */
        POSTS = 0,         /* a chunk's last tile tells somebody: posts() and so on */
        REDUCES_LAST = 0,  /* a block's last tile, if of own rows, becomes c by last_tile() */
        LAST_STORED = 1,   /* behind its way to where the others are */
        ENDS_RUN = 0,      /* the run ends with the block */
        ENDS_EARLY = 0,    /* or, where ends_with_loads(), with its last load */
    };

    /* Before the block's first barrier. */
    IMX_FN void init(void) {}

    /* The map that a block's first tile wants; maps: its own. */
    IMX_FN const imx_tma_map *first_map(const imx_gemm_args &, const imx_tma_map *maps)
    {
        return maps;
    }

    /* A lane of a warp: what else there is to know of tile number `tile` of the block.
     * below: rows of the cluster's tile above its own; owner: of the tile before. */
    IMX_FN void note(const imx_gemm_args &, unsigned tile, const imx_sm90_tile &, int below,
                     int steps, int owner, tile_info *)
    {
    }

    /* The matrix [rows, n] that the tile is part of, as this rank reaches it, and its map. */
    IMX_FN uint16_t *home(const imx_gemm_args &args, const tile_info *)
    {
        return (uint16_t *)args.c;
    }

    IMX_FN const imx_tma_map *map(const imx_tma_map *maps, const tile_info *) { return maps; }

    /* Behind the products of a consumer's first tile; it has no other in registers then. */
    IMX_FN void begin(const imx_gemm_args &) {}

    /* Before tile number `next` of the block, if there is one. */
    IMX_FN void due(const imx_gemm_args &, const imbrexd_watch *, uint32_t) {}

    /* Two elements of a tile, as they leave. */
    IMX_FN uint32_t word(float low, float high) { return pack(low, high); }

    IMX_FN int may_send(void) { return 1; }

    /* 16 of a warp's rows of a tile, from first_row on; last: there are no products to make beside.
     */
    IMX_FN void send(const uint32_t (&)[IMX_ACC / 2], const imx_gemm_args &, const tile_info *, int,
                     bool)
    {
    }

    /* One lane of a warp. */
    IMX_FN bool posts(const imx_gemm_args &) { return true; }

    /* The same, whose share of a tile is stored; false: it is not to be counted. */
    IMX_FN bool stored(const imx_gemm_args &, const tile_info *) { return true; }

    /* Who stored a chunk's last share. */
    IMX_FN void tell(const imx_gemm_args &, const tile_info *, int) {}

    /* The loading thread, while the last tile's loads are under way: what it sees of its parts; and
     * behind them. */
    IMX_FN void look(const imx_gemm_args &, const tile_info *, int *) {}

    IMX_FN void load_parts(const imx_gemm_args &, const imbrexd_watch *, const imx_tma_map *,
                           unsigned, int, place *)
    {
    }

    /* 0: gave up. */
    IMX_FN int last_tile(uint32_t (&)[HALVES][IMX_ACC / 2], const imx_gemm_args &,
                         const imbrexd_watch *, const imx_tma_map *, const tile_info *, int,
                         place *, int)
    {
        return 1;
    }

    /* Behind all tiles. */
    IMX_FN void finish(const imx_gemm_args &) {}

    /* Each of the three warps beside; 0: it gave up. */
    IMX_FN int beside(const imx_gemm_args &, const imbrexd_watch *) { return 1; }

    IMX_FN bool ends_with_loads(const imx_gemm_args &) { return false; }

    /* The block's first warp, when it has read all, or has ended. */
    IMX_FN void end(const imx_gemm_args &args) { team_end(args); }
};

#endif /* IMX_SM90_POLICY_CUH */
