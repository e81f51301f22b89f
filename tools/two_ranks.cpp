// SPDX-License-Identifier: MIT
// Ends with 0 if two ranks see each other. tools/mpi.sh tries each MPI with it before a build.
#include <mpi.h>

int main(int argc, char** argv) {
  int size = 0;
  MPI_Init(&argc, &argv);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  MPI_Finalize();
  return size == 2 ? 0 : 1;
}
