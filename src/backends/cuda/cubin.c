/* cubin.c - what stands in a cubin, an ELF file, for who has no driver to load it. */
#define _GNU_SOURCE
#include <elf.h>
#include <string.h>

#include "cuda.h"

typedef struct image {
    const char *bytes;
    size_t size;
    Elf64_Ehdr head;
} image;

/* Copies what lies at `at`; false: it does not lie within. */
static bool take(const image *cubin, uint64_t at, void *to, size_t bytes)
{
    if (at > cubin->size || bytes > cubin->size - at)
        return false;
    memcpy(to, cubin->bytes + at, bytes);
    return true;
}

static bool take_section(const image *cubin, uint32_t index, Elf64_Shdr *section)
{
    uint64_t at = cubin->head.e_shoff + (uint64_t)index * sizeof *section;
    return index < cubin->head.e_shnum && at >= cubin->head.e_shoff &&
           take(cubin, at, section, sizeof *section);
}

static bool is_called(const image *cubin, const Elf64_Shdr *names, uint32_t at, const char *name)
{
    size_t length = strlen(name) + 1;
    return at < names->sh_size && length <= names->sh_size - at &&
           names->sh_offset <= cubin->size && at <= cubin->size - names->sh_offset &&
           length <= cubin->size - names->sh_offset - at &&
           memcmp(cubin->bytes + names->sh_offset + at, name, length) == 0;
}

static bool find(const image *cubin, const Elf64_Shdr *symbols, const char *name, bool kernel,
                 size_t *bytes)
{
    Elf64_Shdr names;
    Elf64_Sym symbol;
    if (!take_section(cubin, symbols->sh_link, &names))
        return false;
    for (uint64_t i = 0; i < symbols->sh_size / sizeof symbol; i++) {
        if (!take(cubin, symbols->sh_offset + i * sizeof symbol, &symbol, sizeof symbol))
            return false;
        if (symbol.st_shndx != SHN_UNDEF && kernel == (ELF64_ST_TYPE(symbol.st_info) == STT_FUNC) &&
            is_called(cubin, &names, symbol.st_name, name)) {
            *bytes = symbol.st_size;
            return true;
        }
    }
    return false;
}

static bool take_head(image *file)
{
    return take(file, 0, &file->head, sizeof file->head) &&
           memcmp(file->head.e_ident, ELFMAG, SELFMAG) == 0 &&
           file->head.e_ident[EI_CLASS] == ELFCLASS64;
}

imx_cuda_file imx_cuda_cubin_kind(const void *file, size_t bytes)
{
    static const unsigned char fatbin[4] = { 0x50, 0xed, 0x55, 0xba };
    image all = { .bytes = file, .size = bytes };
    if (!take_head(&all)) {
        bool other = memmem(file, bytes, ".version", 8) ||
                     (bytes >= sizeof fatbin && memcmp(file, fatbin, sizeof fatbin) == 0);
        return other ? IMX_CUDA_FILE_OTHER : IMX_CUDA_FILE_UNKNOWN;
    }
    return all.head.e_machine == EM_CUDA ? IMX_CUDA_FILE_CUBIN : IMX_CUDA_FILE_OF_HOST;
}

/* Where NVRTC 12.4 and 13.0 have it, for sm_80 to sm_120. */
int imx_cuda_cubin_arch(const void *cubin, size_t bytes)
{
    image all = { .bytes = cubin, .size = bytes };
    if (!take_head(&all))
        return 0;
    switch (all.head.e_ident[EI_ABIVERSION]) {
    case 7:
        return (int)(all.head.e_flags & 0xff);
    case 8:
        return (int)(all.head.e_flags >> 8 & 0xff);
    default:
        return 0;
    }
}

bool imx_cuda_cubin_find(const void *cubin, size_t bytes, const char *name, bool kernel,
                         size_t *symbol_bytes)
{
    image all = { .bytes = cubin, .size = bytes };
    Elf64_Shdr section;
    if (!take_head(&all) || all.head.e_shentsize != sizeof section)
        return false;
    for (uint32_t i = 0; take_section(&all, i, &section); i++) {
        if (section.sh_type == SHT_SYMTAB && find(&all, &section, name, kernel, symbol_bytes))
            return true;
    }
    return false;
}
