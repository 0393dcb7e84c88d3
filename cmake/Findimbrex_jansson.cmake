# The JSON library: imbrex::jansson.
include(${CMAKE_CURRENT_LIST_DIR}/imbrex_find.cmake)
imbrex_find(imbrex::jansson HEADER jansson.h SYMBOL json_loadb MODULES jansson LIBRARIES jansson)
