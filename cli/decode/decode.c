/* decode.c - `imbrex decode`: one decode step of a layer's attention on real weights, its cache
 * shared out over ranks, measured, checked and pictured. */
#include <stdio.h>
#include <string.h>

#include "decode.h"
#include "launch.h"
#include "options.h"
#include "output.h"
#include "text.h"

enum { RANKS = 4, NO_LAYER = -1 };

static int complain(const char *what)
{
    text_say(stderr, "imbrex decode: %s\n", what);
    return CLI_FAILED;
}

static int rank_main(int rank, void *ctx)
{
    (void)rank;
    return decode_rank(ctx);
}

/* What is read stays as it is. */
static int check_overwrites(const options_page *page, const decode_source *source,
                            const decode_request *request)
{
    const struct {
        const char *option, *path;
    } written[] = { { "output", request->output }, { "timeline", request->timeline } };
    if (!launch_is_first())
        return 0;
    for (int i = 0; i < 2; i++) {
        const char *path = written[i].path;
        if (path && checkpoint_has_file(request->model->weights_file, path))
            return options_wrong(
                page, "--%s '%s' would take the place of a file of --weights: name another",
                written[i].option, path);
        if (path && source->input && output_same(source->input, path))
            return options_wrong(page, "--%s '%s' would take the place of --input: name another",
                                 written[i].option, path);
    }
    return 0;
}

static int check_request(const options_page *page, const decode_source *source,
                         const decode_request *request)
{
    int64_t sizes[4];
    if (!source->shape == !source->weights)
        return options_wrong(page, source->shape ? "--shape excludes --weights"
                                                 : "of which layer? Give --weights or --shape");
    if (source->shape && (source->layer != NO_LAYER || source->prefix))
        return options_wrong(page, "--shape excludes --layer and --prefix");
    if (!source->sequences == !source->input)
        return options_wrong(page, source->sequences
                                       ? "--sequences excludes --input"
                                       : "on which cache? Give --input or --sequences");
    if (source->sequences && !decode_model_parse_sequences(source->sequences, sizes))
        return options_wrong(page, "--sequences is '%s': want BATCH,CONTEXT, such as 8,4096",
                             source->sequences);
    if (source->shape && !decode_model_parse_shape(source->shape, sizes))
        return options_wrong(page,
                             "--shape is '%s': want HIDDEN,HEADS,KV_HEADS,HEAD_DIM, such as "
                             "4096,32,8,128",
                             source->shape);
    return output_check_both(page, request->output, request->timeline);
}

static int run(const options_page *page, const decode_source *source, int64_t ranks,
               decode_request *request)
{
    decode_model model;
    decode_reference reference = { 0 };
    st_error error;
    int code;
    bool good = decode_model_open(source, &model, &error);
    request->model = &model;
    request->reference = &reference;
    if (good && request->check)
        good = decode_reference_open(source, &model, &reference, &error);
    if (good) {
        int wrong = check_overwrites(page, source, request);
        code = wrong < 0 ? options_exit(wrong) : launch_start(ranks, rank_main, request);
    } else {
        code = complain(error.text);
    }
    decode_reference_close(&reference);
    decode_model_close(&model);
    return code;
}

int cli_decode(int argc, char **argv)
{
    decode_source source = { .layer = NO_LAYER };
    decode_request request = { .rounds = 9 };
    const char *shard = "tokens";
    int64_t ranks = 0;
    const option options[] = {
        { "weights", 'w', .text = &source.weights, .metavar = "PATH",
          .help = "a safetensors file, its index, or the directory of a model,\n"
                  "with config.json beside it" },
        { "layer", 'l', .integer = &source.layer, .metavar = "L", .min = 0, .max = 1 << 20,
          .help = "layer whose self_attn.{q,k,v,o}_proj are used (0)" },
        { "prefix", 0, .text = &source.prefix, .metavar = "NAME",
          .help = "what stands before \"layers.L.\" in the names of tensors (model.,\n"
                  "nothing, language_model.model. or model.language_model.)" },
        { "shape", 0, .text = &source.shape, .metavar = "E,H,K,D",
          .help = "instead of weights: made-up ones of hidden size E, H heads, K\n"
                  "of the cache, of D numbers" },
        { "input", 'i', .text = &source.input, .metavar = "FILE",
          .help = "safetensors with x[batch, hidden] and the cache, k and\n"
                  "v[batch, kv_heads, context, head_dim]; maybe lengths[batch]" },
        { "sequences", 0, .text = &source.sequences, .metavar = "B,C",
          .help = "instead of an input: a made-up one, B sequences of C tokens" },
        { "output", 'o', .text = &request.output, .metavar = "FILE",
          .help = "write y[batch, hidden] there, as safetensors, unless --check\n"
                  "finds it wrong" },
        { "dtype", 0, .text = &source.dtype, .metavar = "TYPE", .choices = "bf16|f16|f32",
          .help = "compute in bf16, f16 or f32 (the weights' own; made-up: f32)" },
        { "shard", 0, .text = &shard, .metavar = "WHAT", .choices = "tokens|heads",
          .help = "what of the cache is shared out: the tokens of a sequence, or\n"
                  "heads with all their tokens (tokens)" },
        { "ranks", 'n', .integer = &ranks, .metavar = "R", .min = 1, .max = 64,
          .help = "ranks to start, outside every launcher (4)" },
        { "device", 0, .text = &request.device, .metavar = "NAME",
          .help = "what to compute on (the best here)" },
        { "algorithm", 0, .text = &request.algorithm, .metavar = "NAME",
          .choices = "sequential|store|ll|hierarchical",
          .help = "force one that all its operators have; hierarchical: over\nseveral nodes" },
        { "check", 'c', .flag = &request.check,
          .help = "compare y with a float64 reference, see below" },
        { "timeline", 0, .text = &request.timeline, .metavar = "FILE",
          .help = "picture of what every stream did: .html, .svg, or .json\nfor Perfetto" },
        { "rounds", 0, .integer = &request.rounds, .metavar = "N", .min = 1, .max = 10000,
          .help = "how often each version is timed (9)" },
        { "graph", 0, .flag = &request.graph,
          .help = "on GPUs: capture each version as one CUDA graph, time and\ncheck its replays" },
        { "json", 0, .flag = &request.json, .help = "print JSON instead of the table" },
        { 0 },
    };
    const options_page page = {
        .command = "decode",
        .synopsis = "{--weights PATH --layer L | --shape E,H,K,D}\n"
                    "                     {--input FILE | --sequences B,C} [options]",
        .about =
            "Runs one decode step of a layer's attention on R ranks: each sequence has a cache\n"
            "of k and v and gets one token more,\n\n"
            "  q, k, v = x Wq^T, x Wk^T, x Wv^T, with biases, norms of heads and RoPE,\n"
            "  y = softmax(q [cache, k]^T / sqrt(head_dim)) [cache, v] Wo^T,\n\n"
            "and times it against the same without overlap and without communication, and its\n"
            "attention against that to the rank's own tokens. x, the layer's normed hidden\n"
            "state, and y are whole on all ranks. Computed is the attention of Llama, Mistral,\n"
            "Qwen2 and Qwen3, whose config.json says the heads and how positions turn them\n"
            "(default, linear, llama3). What else it asks for is refused by its name.",
        .options = options,
        .notes =
            "--check bounds two errors, e = y - reference: ||e|| by 1e-5 (f32), 2e-3 (f16) or "
            "1.5e-2\n(bf16) of the spread of all of y, and every single element of e by six times "
            "that of its\nspread: what its sum comes to if signs fall at random. The reference "
            "reads the files by\nitself.\n\n"
            "exit code: 0; 1 if something failed or y is wrong (--check); 2 for wrong "
            "usage\nor a device, an algorithm or a number of ranks that is not there.",
        .gone = (const option_gone[]){ { "random", "say --sequences B,C" },
                                       { "parallel", "say --shard tokens or heads" },
                                       { "t", "say --timeline" },
                                       { 0 } },
    };
    int given = options_parse(&page, argc, argv);
    if (given < 0)
        return options_exit(given);
    request.by_heads = strcmp(shard, "heads") == 0;
    ranks = launch_count(&page, ranks, RANKS);
    int wrong = ranks < 0 ? OPTIONS_WRONG : check_request(&page, &source, &request);
    if (wrong < 0)
        return options_exit(wrong);
    source.layer = source.layer == NO_LAYER ? 0 : source.layer;
    return run(&page, &source, ranks, &request);
}
