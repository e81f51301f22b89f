// SPDX-License-Identifier: MIT
// Do two ranks see each other? `./tutorial` asks each MPI before it builds with one.
#include <mpi.h>

int main(int argc, char** argv) {
  int size = 0;
  MPI_Init(&argc, &argv);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  MPI_Finalize();
  return size == 2 ? 0 : 1;
}
