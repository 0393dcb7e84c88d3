/* test_cuda_kept.c - what the CUDA backend makes once and uses again: tensor maps, streams.  On a
 * fake driver.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "backends/backend.h"
#include "fake_driver.h"
#include "fake_ranks.h"
#include "kernels/reduce/args.h"

static imx_device *open_alone(void)
{
    imx_env env;
    imx_device *device;
    fake_driver_install(1);
    assert_int_equal(imx_env_read(&env), IMBREX_OK);
    imx_device_desc desc = { .index = 0, .size = 1, .local_size = 1, .env = &env };
    assert_int_equal(imx_backend_cuda.open(&desc, &device), IMBREX_OK);
    return device;
}

/* ---- tensor maps ----------------------------------------------------------------------------- */

static void maps_config(const void *largest, const imx_cuda_target *target, int blocks,
                        imx_cuda_config *config)
{
    (void)largest;
    (void)target;
    *config = (imx_cuda_config){ .source = "kernels/reduce/sm80.cu",
                                 .entry = "imx_reduce",
                                 .blocks = blocks,
                                 .cluster = 2,
                                 .threads = 384,
                                 .shared_bytes = 231424 };
}

static int64_t planes;

static void maps_launch(const void *untyped, const imx_cuda_config *config, imx_cuda_launch *launch)
{
    const imx_reduce_args *args = untyped;
    launch->blocks = config->blocks;
    launch->map_count = 2;
    launch->maps[0] = (imx_tensor_map){ .address = args->slots,
                                        .rows = 100,
                                        .cols = 64,
                                        .stride_bytes = 128,
                                        .planes = planes,
                                        .plane_bytes = 16 * planes,
                                        .box_rows = 128,
                                        .box_cols = 64,
                                        .swizzle_bytes = 64 };
    launch->maps[1].address = NULL;
}

static void tensor_maps_are_kept(void **state)
{
    (void)state;
    enum { LAYERS = 256, MANY = 16 * LAYERS };
    static const size_t sizes[] = { 20, 16, 112, 56 }; /* MiB, of a layer's weights */
    char *buffers[MANY];
    imx_kernel kernel = { .name = "maps", .cuda_config = maps_config, .cuda_launch = maps_launch };
    const imx_backend *b = &imx_backend_cuda;
    imx_device *device = open_alone();
    imx_prepared *prepared;
    imbrex_stream stream;
    assert_int_equal(b->stream_create(device, &stream), IMBREX_OK);
    assert_int_equal(b->prepare(device, &kernel, NULL, 4, &prepared), IMBREX_OK);
    imx_reduce_args args = { .chunk_rows = 1 };
    for (size_t i = 0, at = 1 << 30; i < MANY; at += sizes[i++ % 4] << 20)
        buffers[i] = (char *)at;              /* nobody reads there */
    for (int round = 0; round < 3; round++) { /* as by layers that share a plan */
        for (int i = 0; i < LAYERS; i++) {
            args.slots = buffers[i];
            assert_int_equal(b->launch(device, prepared, &args, sizeof args, stream), IMBREX_OK);
        }
    }
    assert_int_equal(fake_driver_encoded(), LAYERS);
    for (int i = LAYERS; i < MANY; i++) { /* which take the places of those */
        args.slots = buffers[i];
        assert_int_equal(b->launch(device, prepared, &args, sizeof args, stream), IMBREX_OK);
    }
    args.slots = buffers[0];
    for (int i = 0; i < 2; i++)
        assert_int_equal(b->launch(device, prepared, &args, sizeof args, stream), IMBREX_OK);
    assert_int_equal(fake_driver_encoded(), MANY + 1);
    planes = 3; /* several matrices are not the one that begins there */
    for (int i = 0; i < 2; i++)
        assert_int_equal(b->launch(device, prepared, &args, sizeof args, stream), IMBREX_OK);
    assert_int_equal(fake_driver_encoded(), MANY + 2);
    planes = 0;
    args.slots = buffers[0] + 2; /* as the driver has it: 16-byte aligned */
    assert_int_equal(b->launch(device, prepared, &args, sizeof args, stream), IMBREX_DEVICE);
    assert_int_equal(b->stream_sync(device, stream), IMBREX_OK);
    b->prepared_destroy(device, prepared);
    b->close(device);
    assert_int_equal(fake_driver_live(), 0);
}

/* ---- streams --------------------------------------------------------------------------------- */

static void streams_are_used_again(void **state)
{
    (void)state;
    const imx_backend *b = &imx_backend_cuda;
    imx_device *device = open_alone();
    imbrex_stream one, two, again;
    fake_graph *graph;
    assert_int_equal(b->stream_create(device, &one), IMBREX_OK);
    assert_int_equal(b->stream_create(device, &two), IMBREX_OK);
    assert_ptr_not_equal(one, two);
    int live = fake_driver_live();
    for (int i = 0; i < 100; i++) {
        b->stream_destroy(device, two);
        assert_int_equal(b->stream_create(device, &again), IMBREX_OK);
        assert_ptr_equal(again, two);
    }
    assert_int_equal(fake_driver_live(), live);
    assert_int_equal(fake_graph_begin(two), 0);
    b->stream_destroy(device, two); /* but not by what a capture holds */
    assert_int_equal(b->stream_create(device, &again), IMBREX_OK);
    assert_ptr_not_equal(again, two);
    assert_ptr_not_equal(again, one);
    assert_int_equal(fake_graph_end(two, &graph), 0);
    fake_graph_destroy(graph);
    b->close(device);
    assert_int_equal(fake_driver_live(), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tensor_maps_are_kept),
        cmocka_unit_test(streams_are_used_again),
    };
    fake_ranks_begin();
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    fake_ranks_end();
    return failed;
}
