// A libcuda.so.1 without a device. Who initialises CUDA is written to the file $CUINIT_LOG.
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { NO_DEVICE = 100 };

int cuInit(unsigned flags) {
  FILE* log = fopen(getenv("CUINIT_LOG"), "a");
  fprintf(log, "%d\n", getpid());
  fclose(log);
  return NO_DEVICE;
}
int cuDriverGetVersion(int* version) { *version = 13000; return 0; }
int cuDeviceGetCount(int* count) { return NO_DEVICE; }
