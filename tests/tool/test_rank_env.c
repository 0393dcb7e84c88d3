/* test_rank_env.c - the tool knows by the environment that it is a rank, as the library does. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "bootstrap/launch_env.h"
#include "launched.h"

static const char *get_variable(void *ctx, const char *variable)
{
    (void)ctx;
    return getenv(variable);
}

static const char *const names[] = {
    "RANK",         "WORLD_SIZE",           "PMI_RANK",       "PMI_SIZE",
    "SLURM_PROCID", "SLURM_NTASKS",         "SLURM_STEP_ID",  "OMPI_COMM_WORLD_RANK",
    "MASTER_ADDR",  "OMPI_COMM_WORLD_SIZE", "IMBREX_LAUNCHER"
};

/* The library, too, sees a launcher or none, and refuses what has half of it. */
static void is_rank_by(const char *environment, bool rank, bool first, imbrex_status expected)
{
    char words[256], *rest = NULL;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        unsetenv(names[i]);
    snprintf(words, sizeof words, "%s", environment);
    for (char *at = strtok_r(words, " ", &rest); at; at = strtok_r(NULL, " ", &rest)) {
        char *value = strchr(at, '=');
        *value++ = '\0';
        setenv(at, value, 1);
    }
    imx_launch_env env = { .launcher = "half of one" };
    assert_int_equal(imx_launch_env_parse(get_variable, NULL, &env), expected);
    if (expected == IMBREX_OK && launch_size() != (rank ? env.size : 0))
        fail_msg("'%s': %d ranks, %d to the library", environment, launch_size(), env.size);
    if (launch_is_rank() != rank || launch_is_first() != first ||
        (strcmp(env.launcher, "none") != 0) != rank)
        fail_msg("'%s': a rank %d, the first %d; to the library: %s", environment, launch_is_rank(),
                 launch_is_first(), env.launcher);
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        unsetenv(names[i]);
}

static void is_rank_in(const char *environment, bool rank, bool first)
{
    is_rank_by(environment, rank, first, IMBREX_OK);
}

static void a_rank_is_known_by_its_environment(void **state)
{
    (void)state;
    is_rank_in("", false, true);
    is_rank_in("RANK=0 WORLD_SIZE=1", true, true);
    is_rank_in("RANK= WORLD_SIZE=", false, true);
    is_rank_in("RANK= WORLD_SIZE= PMI_RANK=1 PMI_SIZE=2", true, false);
    is_rank_in("OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2", true, false);
    is_rank_in("SLURM_PROCID=1 SLURM_NTASKS=2", false, true);
    is_rank_in("SLURM_PROCID=1 SLURM_NTASKS=2 SLURM_STEP_ID=", false, true);
    is_rank_in("SLURM_PROCID=1 SLURM_NTASKS=2 SLURM_STEP_ID=x", false, true);
    is_rank_in("SLURM_PROCID=1 SLURM_NTASKS=2 SLURM_STEP_ID=0", true, false);
    is_rank_in("SLURM_PROCID=1 SLURM_NTASKS=2 SLURM_STEP_ID=4294967279", true, false);
    is_rank_in("SLURM_PROCID=0 SLURM_NTASKS=2 SLURM_STEP_ID=4294967290", false, true);
}

static void one_is_named(void **state)
{
    (void)state;
    is_rank_in("IMBREX_LAUNCHER=torchrun RANK=1 WORLD_SIZE=3 PMI_RANK=0 PMI_SIZE=2", true, false);
    is_rank_in("IMBREX_LAUNCHER=mpiexec RANK=1 WORLD_SIZE=3 PMI_RANK=0 PMI_SIZE=2", true, true);
    is_rank_in("IMBREX_LAUNCHER=srun RANK=0 WORLD_SIZE=3 SLURM_PROCID=1 SLURM_NTASKS=2", true,
               false);
    is_rank_in("IMBREX_LAUNCHER=none RANK=1 WORLD_SIZE=3", false, true);
    is_rank_by("RANK=1 WORLD_SIZE=3 PMI_RANK=0 PMI_SIZE=2", true, false, IMBREX_INVALID);
}

static void half_a_launcher_is_one(void **state)
{
    (void)state;
    is_rank_by("RANK=1", true, false, IMBREX_INVALID);
    is_rank_by("RANK=0", true, true, IMBREX_INVALID);
    is_rank_by("WORLD_SIZE=2", true, true, IMBREX_INVALID);
    is_rank_by("OMPI_COMM_WORLD_SIZE=2", true, true, IMBREX_INVALID);
    is_rank_by("PMI_RANK=1", true, false, IMBREX_INVALID);
    is_rank_by("WORLD_SIZE=2 PMI_RANK=1 PMI_SIZE=2", true, true, IMBREX_INVALID);
    is_rank_by("SLURM_PROCID=1 SLURM_STEP_ID=0", true, false, IMBREX_INVALID);
    is_rank_in("SLURM_NTASKS=2 SLURM_STEP_ID=0", false, true);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_rank_is_known_by_its_environment),
        cmocka_unit_test(one_is_named),
        cmocka_unit_test(half_a_launcher_is_one),
    };
    return cmocka_run_group_tests_name("rank_env", tests, NULL, NULL);
}
