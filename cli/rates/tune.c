/* tune.c - `imbrex tune`: what this machine's GPUs do in a microsecond. */
#include "rates.h"

#include "launch.h"
#include "options.h"
#include "output.h"

enum { RANKS = 2 };

static int rank_main(int rank, void *ctx)
{
    (void)rank;
    return rates_rank(ctx);
}

int cli_tune(int argc, char **argv)
{
    bool device = false;
    int64_t ranks = 0;
    rates_request request = {
        .rounds = 15, .product = 8192, .product_f32 = 4096, .read = 16384, .bytes = 64 << 20
    };
    const option options[] = {
        { "device", 0, .flag = &device,
          .help = "measure the rates of this machine's GPUs, and keep them for later groups" },
        { "output", 'o', .text = &request.output, .metavar = "FILE",
          .help = "write them to FILE instead, which IMBREX_RATES may name" },
        { "ranks", 'n', .integer = &ranks, .metavar = "R", .min = 1, .max = 64,
          .help = "ranks to start, outside every launcher, a GPU each (2); 1: products\n"
                  "and memory alone" },
        { "rounds", 0, .integer = &request.rounds, .metavar = "N", .min = 1, .max = 10000,
          .help = "how often each is timed (15)" },
        { 0 },
    };
    const options_page page = {
        .command = "tune",
        .synopsis = "--device [--output FILE] [options]",
        .about = "Measures what GPUs do in a microsecond, by plans: products, reading of memory, "
                 "stores and\ncopies to peers, a signal.  Expected times are made of these rates, "
                 "and by them plans\nchoose.  Nothing else is to run on the GPUs meanwhile.",
        .options = options,
        .notes =
            "A figure is the median over rounds of the slowest rank.  `imbrex info` says "
            "which rates\ncount; docs/tuning.md has the form of the file.  One operator at one "
            "shape:\nimbrex bench OPERATOR --tune.\n\n"
            "exit code: 0; 1 if something failed; 2 for wrong usage, or where there is no GPU.",
    };
    int given = options_parse(&page, argc, argv);
    if (given < 0)
        return options_exit(given);
    if (!device)
        return options_exit(options_wrong(&page, "what is to be tuned? --device: this machine's "
                                                 "GPUs; one operator: imbrex bench --tune"));
    int wrong = output_check_both(&page, request.output, NULL);
    int count = wrong < 0 ? wrong : launch_count(&page, ranks, RANKS);
    return count < 0 ? options_exit(count) : launch_start(count, rank_main, &request);
}
