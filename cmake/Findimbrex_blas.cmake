# The C interface of a BLAS: imbrex::blas.  OpenBLAS first, because its threads can be limited.
include(${CMAKE_CURRENT_LIST_DIR}/imbrex_find.cmake)
imbrex_find(imbrex::blas HEADER cblas.h SYMBOL cblas_sgemm SUFFIXES openblas
            MODULES openblas cblas blas LIBRARIES openblas cblas blas)
