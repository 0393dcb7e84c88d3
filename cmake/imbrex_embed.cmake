# imbrex_embed.cmake - puts the sources that are compiled at run time into the library: one C file
# with the text of each, under the name that an #include gives it.
#
# Included by CMakeLists.txt it sets embedded_source, the generated file, and how to make it.  Run
# as a script it makes it: cmake -DOUT=<file> -DROOT=<source folder> -P imbrex_embed.cmake
# With -DTEXT=<name> -DFILES=<a,b> that is one string of those files: a kernel of the tool's, or
# tables of rates.

# Names are counted from the folders that the compiler searches: include/ and src/.
set(embed_patterns
    include/*.h
    src/kernels/*.h src/kernels/*.cuh src/kernels/*/*.h src/kernels/*/*.cuh src/kernels/*/*.cu
    src/backends/cuda/*.cu src/backends/cuda/clock.h
    src/backends/cuda/signals.h src/backends/cuda/rtc/*.h)

function(embed_glob result root)
    list(TRANSFORM embed_patterns PREPEND ${root}/)
    file(GLOB files ${ARGN} ${embed_patterns})
    list(SORT files)
    set(${result} ${files} PARENT_SCOPE)
endfunction()

if(NOT CMAKE_SCRIPT_MODE_FILE)
    embed_glob(embedded_files ${PROJECT_SOURCE_DIR} CONFIGURE_DEPENDS)
    set(embedded_source ${PROJECT_BINARY_DIR}/imbrex_embedded.c)
    add_custom_command(
        OUTPUT ${embedded_source}
        COMMAND ${CMAKE_COMMAND} -DOUT=${embedded_source} -DROOT=${PROJECT_SOURCE_DIR} -P
                ${CMAKE_CURRENT_LIST_DIR}/imbrex_embed.cmake
        DEPENDS ${embedded_files} ${CMAKE_CURRENT_LIST_DIR}/imbrex_embed.cmake
        COMMENT "Embedding kernel sources" VERBATIM)

    # Sets result to a generated C file that defines `const char name[]`, these files' text.
    function(imbrex_embed_text result name)
        set(out ${PROJECT_BINARY_DIR}/${name}.c)
        list(TRANSFORM ARGN PREPEND ${PROJECT_SOURCE_DIR}/ OUTPUT_VARIABLE files)
        string(REPLACE ";" "," joined "${files}")
        add_custom_command(
            OUTPUT ${out}
            COMMAND ${CMAKE_COMMAND} -DOUT=${out} -DTEXT=${name} "-DFILES=${joined}" -P
                    ${PROJECT_SOURCE_DIR}/cmake/imbrex_embed.cmake
            DEPENDS ${files} ${PROJECT_SOURCE_DIR}/cmake/imbrex_embed.cmake
            COMMENT "Embedding ${name}" VERBATIM)
        set(${result} ${out} PARENT_SCOPE)
    endfunction()
    return()
endif()

# The text of a file as C writes it, a line each.
function(read_text file result)
    file(READ ${file} text)
    string(REPLACE "\\" "\\\\" text "${text}")
    string(REPLACE "\"" "\\\"" text "${text}")
    string(REPLACE "\n" "\\n\"\n\"" text "${text}")
    set(${result} "\"${text}\"" PARENT_SCOPE)
endfunction()

if(TEXT)
    string(REPLACE "," ";" files "${FILES}")
    set(all "")
    foreach(file ${files})
        read_text(${file} text)
        string(APPEND all "\n${text}")
    endforeach()
    file(WRITE ${OUT}.new "/* Generated: a text. */\n"
                          "extern const char ${TEXT}[];\n\n"
                          "const char ${TEXT}[] =${all};\n")
    file(RENAME ${OUT}.new ${OUT})
    return()
endif()

embed_glob(files ${ROOT})
set(arrays "")
set(rows "")
set(number 0)
foreach(file ${files})
    file(RELATIVE_PATH name ${ROOT} ${file})
    string(REGEX REPLACE "^(include|src)/" "" name ${name})
    read_text(${file} text)
    string(APPEND arrays "static const char file_${number}[] =\n${text};\n\n")
    string(APPEND rows "    { \"${name}\", file_${number}, sizeof file_${number} - 1 },\n")
    math(EXPR number "${number} + 1")
endforeach()
file(WRITE ${OUT}.new
     "/* Generated: the sources that are compiled at run time. */\n"
     "#include \"base/source.h\"\n\n"
     "${arrays}"
     "const imx_source_file imx_source_files[] = {\n${rows}};\n"
     "const size_t imx_source_file_count = ${number};\n")
file(RENAME ${OUT}.new ${OUT})
