# imbrex_find.cmake - finds a plain C library by header and name, with pkg-config's hint where there
# is pkg-config, and wraps it as one imported target.
#
#   imbrex_find(<target> HEADER <file> MODULES <pkg-config names>... LIBRARIES <names>...
#               SYMBOL <function> [SUFFIXES <folders of the header>...]
#               [BEFORE <headers that HEADER needs>...])
#
# The first library that links SYMBOL wins.  Without one, <target> does not come into being.
include(CheckSymbolExists)

function(imbrex_find target)
    cmake_parse_arguments(find "" "HEADER;SYMBOL" "MODULES;LIBRARIES;SUFFIXES;BEFORE" ${ARGN})
    if(TARGET ${target})
        return()
    endif()

    string(MAKE_C_IDENTIFIER ${target} id)
    set(include_hints "")
    set(library_hints "")
    find_program(IMBREX_PKG_CONFIG NAMES pkg-config pkgconf)
    mark_as_advanced(IMBREX_PKG_CONFIG)
    if(IMBREX_PKG_CONFIG)
        foreach(module ${find_MODULES})
            foreach(variable includedir libdir)
                execute_process(COMMAND ${IMBREX_PKG_CONFIG} --variable=${variable} ${module}
                                OUTPUT_VARIABLE hint OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
                if(hint AND variable STREQUAL "includedir")
                    list(APPEND include_hints ${hint})
                elseif(hint)
                    list(APPEND library_hints ${hint})
                endif()
            endforeach()
        endforeach()
    endif()

    find_path(${id}_include ${find_HEADER} HINTS ${include_hints}
              PATH_SUFFIXES ${find_SUFFIXES})
    mark_as_advanced(${id}_include)
    if(NOT ${id}_include)
        return()
    endif()
    foreach(name ${find_LIBRARIES})
        find_library(${id}_${name} ${name} HINTS ${library_hints})
        mark_as_advanced(${id}_${name})
        if(NOT ${id}_${name})
            continue()
        endif()
        set(CMAKE_REQUIRED_INCLUDES ${${id}_include})
        set(CMAKE_REQUIRED_LIBRARIES ${${id}_${name}} m Threads::Threads)
        set(CMAKE_REQUIRED_QUIET ON)
        set(headers ${find_BEFORE} ${find_HEADER})
        check_symbol_exists(${find_SYMBOL} "${headers}" ${id}_${name}_links)
        if(${id}_${name}_links)
            add_library(${target} UNKNOWN IMPORTED)
            set_target_properties(${target} PROPERTIES
                                  IMPORTED_LOCATION ${${id}_${name}}
                                  INTERFACE_INCLUDE_DIRECTORIES ${${id}_include})
            return()
        endif()
    endforeach()
endfunction()
