# imbrex_options.cmake - what the build may use, found and reported: imbrex_blas, imbrex_json,
# imbrex_tests, and the warnings that all of our own files are compiled with.

add_library(imbrex_warnings INTERFACE)
target_compile_options(imbrex_warnings INTERFACE -Wall -Wextra -Wshadow -Wstrict-prototypes
                                                 -Wmissing-prototypes -Wvla)
if(IMBREX_WERROR)
    target_compile_options(imbrex_warnings INTERFACE -Werror)
endif()
if(IMBREX_SANITIZE)
    target_compile_options(imbrex_warnings INTERFACE -fsanitize=${IMBREX_SANITIZE}
                                                     -fno-sanitize-recover=all
                                                     -fno-omit-frame-pointer)
    if(CMAKE_C_COMPILER_ID MATCHES "Clang") # to it NULL + 0, no rows at NULL, is an error, too
        target_compile_options(imbrex_warnings INTERFACE -fno-sanitize=pointer-overflow
                                                         -Wno-pass-failed) # watched loops stay
    endif()
    target_link_options(imbrex_warnings INTERFACE -fsanitize=${IMBREX_SANITIZE})
endif()

# imbrex_optional(<result> <AUTO|ON|OFF> <target> <what it is for> <find_package arguments>...)
# ON: missing is an error.  AUTO: missing is a line of text.
macro(imbrex_optional result choice target purpose)
    set(${result} OFF)
    if(NOT "${choice}" STREQUAL "OFF")
        find_package(${ARGN} MODULE)
        if(TARGET ${target})
            set(${result} ON)
            message(STATUS "imbrex: ${purpose}: yes")
        elseif("${choice}" STREQUAL "AUTO")
            message(STATUS "imbrex: ${purpose}: no, not found")
        else()
            message(FATAL_ERROR "imbrex: ${purpose}: asked for, but not found")
        endif()
    else()
        message(STATUS "imbrex: ${purpose}: no, switched off")
    endif()
endmacro()

imbrex_optional(imbrex_blas "${IMBREX_BLAS}" imbrex::blas "products through CBLAS" imbrex_blas)
imbrex_optional(imbrex_json "${IMBREX_JSON}" imbrex::jansson "JSON with jansson" imbrex_jansson)
if(IMBREX_SANITIZE)
    set(imbrex_mpi OFF) # a sanitizer sees nothing of MPI
else()
    imbrex_optional(imbrex_mpi "${IMBREX_MPI}" imbrex::mpi "nodes of CPU ranks, over MPI"
                    imbrex_mpi)
endif()
imbrex_optional(imbrex_tests "${IMBREX_BUILD_TESTS}" imbrex::cmocka "tests, with cmocka"
                imbrex_cmocka)

# A faster linker: each test has the library in it, and a sanitizer's.
if(NOT IMBREX_BUILD_TESTS STREQUAL "OFF")
    include(CheckCSourceCompiles)
    set(CMAKE_REQUIRED_LINK_OPTIONS -fuse-ld=lld)
    if(IMBREX_SANITIZE)
        list(APPEND CMAKE_REQUIRED_LINK_OPTIONS -fsanitize=${IMBREX_SANITIZE})
    endif()
    check_c_source_compiles("int main(void) { return 0; }" IMBREX_LLD)
    unset(CMAKE_REQUIRED_LINK_OPTIONS)
endif()
