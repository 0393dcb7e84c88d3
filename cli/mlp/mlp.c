/* mlp.c - `imbrex mlp`: a tensor-parallel transformer MLP on real weights, overlapped, measured,
 * checked and pictured. */
#include <stdio.h>
#include <string.h>

#include "cli.h"
#include "launch.h"
#include "mlp.h"
#include "options.h"
#include "output.h"
#include "text.h"

enum { RANKS = 4, TOP_K = 2, NO_LAYER = -1 };

static int complain(const char *what)
{
    text_say(stderr, "imbrex mlp: %s\n", what);
    return CLI_FAILED;
}

static int rank_main(int rank, void *ctx)
{
    (void)rank;
    return mlp_rank(ctx);
}

/* What is read stays as it is, and neither file takes the other's place. */
static int check_overwrites(const options_page *page, const mlp_request *request)
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
        if (path && checkpoint_has_file(request->model->input_file, path))
            return options_wrong(
                page, "--%s '%s' would take the place of a file of --input: name another",
                written[i].option, path);
    }
    return 0;
}

static int check_request(const options_page *page, const mlp_source *source,
                         const mlp_request *request)
{
    int64_t sizes[2];
    if (!source->shape == !source->weights)
        return options_wrong(page, source->shape ? "--shape excludes --weights"
                                                 : "of which layer? Give --weights or --shape");
    if (source->shape && (source->layer != NO_LAYER || source->prefix))
        return options_wrong(page, "--shape excludes --layer and --prefix");
    if (!source->tokens == !source->input)
        return options_wrong(page, source->tokens ? "--tokens excludes --input"
                                                  : "on which tokens? Give --input, a file that "
                                                    "holds x[tokens, hidden], or --tokens N");
    if ((source->experts || source->top_k) && !source->shape)
        return options_wrong(page,
                             "--experts and --top-k are for --shape: weights say it by themselves");
    if (source->top_k && !source->experts)
        return options_wrong(page, "--top-k is of experts: say how many, by --experts");
    if (source->experts && source->top_k > source->experts)
        return options_wrong(page, "--top-k is %lld, of --experts %lld", (long long)source->top_k,
                             (long long)source->experts);
    if (source->shape && !mlp_model_parse_shape(source->shape, sizes))
        return options_wrong(page, "--shape is '%s': want HIDDEN,FFN, such as 1024,2816",
                             source->shape);
    return output_check_both(page, request->output, request->timeline);
}

int cli_mlp(int argc, char **argv)
{
    mlp_source source = { .layer = NO_LAYER };
    mlp_request request = { .rounds = 9 };
    const char *experts = NULL;
    int64_t ranks = 0;
    const option options[] = {
        { "weights", 'w', .text = &source.weights, .metavar = "PATH",
          .help = "a safetensors file, its index, or the directory of a model" },
        { "layer", 'l', .integer = &source.layer, .metavar = "L", .min = 0, .max = 1 << 20,
          .help = "layer whose mlp or experts are used (0)" },
        { "prefix", 0, .text = &source.prefix, .metavar = "NAME",
          .help = "what stands before \"layers.L.\" in the names of tensors (model.,\n"
                  "nothing, language_model.model. or model.language_model.)" },
        { "shape", 0, .text = &source.shape, .metavar = "H,F",
          .help = "instead of weights: made-up ones, hidden size H and\n"
                  "feed-forward size F" },
        { "experts", 0, .integer = &source.experts, .metavar = "E", .min = 1, .max = 1024,
          .help = "with --shape: so many experts of that size" },
        { "top-k", 0, .integer = &source.top_k, .metavar = "K", .min = 1, .max = 64,
          .help = "with --experts: experts of a token (2)" },
        { "input", 'i', .text = &source.input, .metavar = "FILE",
          .help = "safetensors with x[tokens, hidden]" },
        { "tokens", 0, .integer = &source.tokens, .metavar = "N", .min = 1, .max = 1 << 24,
          .help = "instead of an input: a made-up one of so many tokens" },
        { "output", 'o', .text = &request.output, .metavar = "FILE",
          .help = "write y[tokens, hidden] there, as safetensors, unless --check\nfinds it wrong" },
        { "activation", 0, .text = &source.activation, .metavar = "NAME",
          .choices = "silu|gelu|gelu_tanh|relu|relu2",
          .help = "what config.json leaves open, and without one (silu)" },
        { "dtype", 0, .text = &source.dtype, .metavar = "TYPE", .choices = "bf16|f16|f32",
          .help = "compute in bf16, f16 or f32 (the weights' own; made-up: f32)" },
        { "replicate", 0, .flag = &request.replicated,
          .help = "every rank has all rows of x and y, not its own alone, as servers do\n"
                  "where tokens are few" },
        { "expert-parallel", 0, .text = &experts, .metavar = "HOW", .choices = "tensor|whole",
          .help = "tensor: every rank has a part of every expert; whole: each rank has\n"
                  "experts of its own (tensor)" },
        { "residual", 0, .flag = &source.residual,
          .help = "add the input's residual[tokens, hidden] to y" },
        { "norm", 0, .text = &source.norm, .metavar = "NAME",
          .choices = "input_layernorm|post_attention_layernorm",
          .help = "norm y, behind the residual, by this weight of the layer" },
        { "ranks", 'n', .integer = &ranks, .metavar = "R", .min = 1, .max = 64,
          .help = "ranks to start, outside every launcher (4)" },
        { "device", 0, .text = &request.device, .metavar = "NAME",
          .help = "what to compute on (the best here)" },
        { "algorithm", 0, .text = &request.algorithm, .metavar = "NAME",
          .choices = "copy|sequential|ll|hierarchical",
          .help = "force one that both operators have: copy, sequential, ll (of experts'\n"
                  "sums: store); or hierarchical, over several nodes" },
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
        .command = "mlp",
        .synopsis = "{--weights PATH --layer L | --shape H,F} {--input FILE | --tokens N}\n"
                    "                  [options]",
        .about =
            "Runs a transformer's MLP tensor-parallel on R ranks,\n\n"
            "  y = reduce_scatter((f(all_gather(x) gate^T) * (all_gather(x) up^T)) down^T),\n\n"
            "or, with --replicate, where every rank has all of x and y,\n\n"
            "  y = all_reduce((f(x gate^T) * (x up^T)) down^T),\n\n"
            "with communication under the products, and times it against the same without\n"
            "overlap and against the products alone. f, an activation, is what the config.json\n"
            "beside the weights says; biases are added where there are any, and MLPs without\n"
            "a gate are computed where f is relu or relu2. Whatever else the layer has is\n"
            "refused by its name. --residual and --norm are what follows the sum in a model:\n"
            "y = RMSNorm(y + residual) by a weight of the layer, in the same operator.\n\n"
            "Layers of experts are computed as Mixtral, Qwen2-MoE, Qwen3-MoE and DeepSeek have\n"
            "them: the router's product and choice, ag_moe, f, moe_rs, and the shared expert.\n"
            "Weights of F8_E4M3 are multiplied in 8 bits.",
        .options = options,
        .notes =
            "--check bounds two errors, e = y - reference: ||e|| by 1e-5 (f32), 2e-3 (f16),\n"
            "1.5e-2 (bf16) or, with weights of 8 bits, 8e-2 of ||reference||, and every single\n"
            "element of e by six times that of its spread, sqrt(sum over the features of\n"
            "(activation * weight of down)^2). The reference reads the files by itself. Experts\n"
            "that a token chose must be float64's, but where scores are as near to each other as\n"
            "float32 may be off.\n\n"
            "exit code: 0; 1 if something failed or y is wrong (--check); 2 for wrong "
            "usage\nor a device or algorithm that is not there.",
        .gone = (const option_gone[]){ { "random", "say --shape H,F --tokens T" },
                                       { "parallel", "say --replicate in place of ar" },
                                       { "experts-of", "say --experts E --top-k K" },
                                       { "experts tensor", "say --expert-parallel tensor" },
                                       { "experts whole", "say --expert-parallel whole" },
                                       { "t", "say --timeline" },
                                       { 0 } },
    };
    int given = options_parse(&page, argc, argv);
    if (given < 0)
        return options_exit(given);
    if (source.experts && !source.top_k)
        source.top_k = source.experts < TOP_K ? source.experts : TOP_K;
    request.norm = source.norm;
    request.whole = experts && strcmp(experts, "whole") == 0;
    ranks = launch_count(&page, ranks, RANKS);
    int wrong = ranks < 0 ? OPTIONS_WRONG : check_request(&page, &source, &request);
    if (wrong < 0)
        return options_exit(wrong);

    mlp_model model;
    mlp_reference reference = { 0 };
    st_error error;
    source.layer = source.layer == NO_LAYER ? 0 : source.layer;
    if (!mlp_model_open(&source, &model, &error)) {
        mlp_model_close(&model);
        return complain(error.text);
    }
    request.model = &model;
    request.reference = &reference;
    if (request.check && !mlp_reference_open(&source, &model, &reference, &error)) {
        mlp_reference_close(&reference);
        mlp_model_close(&model);
        return complain(error.text);
    }
    wrong = experts && !model.experts.count
                ? options_wrong(&page,
                                "--expert-parallel is for layers of experts, and %s has "
                                "none: leave it out",
                                model.name)
                : check_overwrites(&page, &request);
    int code = wrong < 0 ? options_exit(wrong) : launch_start(ranks, rank_main, &request);
    mlp_reference_close(&reference);
    mlp_model_close(&model);
    return code;
}
