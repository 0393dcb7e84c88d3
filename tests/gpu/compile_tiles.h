/* compile_tiles.h - cases of test_cuda_compile: Hopper's tiles that two blocks make, and those of
 * numbers of rows other than 128, where registers are few. */
#ifndef COMPILE_TILES_H
#define COMPILE_TILES_H

void compile_tiles_split(void **state);
void compile_tiles_turned(void **state);
void compile_tiles_tall(void **state);

#endif /* COMPILE_TILES_H */
