/* compile_tiles.h - cases of test_cuda_compile: Hopper's tiles that several blocks make, and those
 * of numbers of rows other than 128, where registers are few.  Each lists them, and returns how
 * many shapes took others. */
#ifndef COMPILE_TILES_H
#define COMPILE_TILES_H

int compile_tiles_split(void);
int compile_tiles_deep(void);
int compile_tiles_turned(void);
int compile_tiles_tall(void);

#endif /* COMPILE_TILES_H */
