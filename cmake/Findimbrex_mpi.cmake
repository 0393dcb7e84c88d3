# MPI for C: imbrex::mpi.  FindMPI makes a target of its own also where it finds nothing.
find_package(MPI QUIET COMPONENTS C)
if(MPI_C_FOUND AND NOT TARGET imbrex::mpi)
    add_library(imbrex::mpi INTERFACE IMPORTED)
    target_link_libraries(imbrex::mpi INTERFACE MPI::MPI_C)
endif()
