# The unit test library: imbrex::cmocka.
include(${CMAKE_CURRENT_LIST_DIR}/imbrex_find.cmake)
imbrex_find(imbrex::cmocka HEADER cmocka.h SYMBOL _cmocka_run_group_tests MODULES cmocka
            LIBRARIES cmocka BEFORE stdarg.h stddef.h stdint.h setjmp.h)
