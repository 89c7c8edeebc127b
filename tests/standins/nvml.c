// A libnvidia-ml.so.1 whose answers are read from a text file at every call: $NVML_ANSWERS.
//
//   device UUID NAME       a device, in NVML's order; one called MIG-... is found by its UUID only
//   UUID CALL ANSWER...    what a call answers; * for every device; the last line counts
//   UUID CALL error CODE   its return code instead
//
// -DOLD leaves out what NVML has had since 2022, -DNEW what it may drop, -DSPARSE two functions more.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OK = 0, INVALID = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, TOO_SMALL = 7, LINE = 512, WORD = 96 };
typedef struct { unsigned version, sensor; int temperature; } temperature_t;
typedef struct { uint32_t field, scope; int64_t time, latency; int32_t type, code; uint64_t value; } field_t;
typedef struct { unsigned pid; unsigned long long used; unsigned gpu, compute; } process_t;
typedef char* device_t;  // its UUID
static char known[16][WORD];

// Reads the n-th device (call NULL), or what the file says of a call; the rest of the line in text.
static int look(const char* who, const char* call, int n, char* text) {
  FILE* file = fopen(getenv("NVML_ANSWERS") ? getenv("NVML_ANSWERS") : "", "r");
  char line[LINE], first[WORD], second[WORD];
  int found = call ? NOT_SUPPORTED : NOT_FOUND, code, rest;
  while (file && fgets(line, LINE, file)) {
    if (sscanf(line, "%95s %95s %n", first, second, &rest) < 2) continue;
    if (!call && strcmp(first, "device") == 0 && n-- == 0) { strcpy(text, second); found = OK; break; }
    if (!call || strcmp(second, call) || (strcmp(first, "*") && strcmp(first, who))) continue;
    strcpy(text, line + rest);
    found = sscanf(text, "error %d", &code) == 1 ? code : OK;
  }
  if (file) fclose(file);
  return found;
}

static int number(const char* device, const char* call, unsigned long long* to) {
  char text[LINE];
  int code = look(device, call, 0, text);
  if (code == OK) *to = strtoull(text, 0, 0);
  return code;
}

static int small(const char* device, const char* call, unsigned* to) {
  unsigned long long wide = 0;
  int code = number(device, call, &wide);
  if (code == OK) *to = (unsigned)wide;
  return code;
}

int nvmlInitWithFlags(unsigned flags) {
  unsigned long long ignored;
  int code = number("", "nvmlInit", &ignored);
  return code == NOT_SUPPORTED ? OK : code;
}
int nvmlShutdown(void) { return OK; }
const char* nvmlErrorString(int code) { return "Unknown Error"; }

int nvmlDeviceGetHandleByUUID(const char* uuid, device_t* to) {
  for (int i = 0; i < 16 && look("", NULL, i, known[i]) == OK; i++)
    if (strcmp(known[i], uuid) == 0) { *to = known[i]; return OK; }
  return NOT_FOUND;
}
int nvmlDeviceGetCount_v2(unsigned* to) {
  char uuid[LINE];
  *to = 0;
  for (int i = 0; look("", NULL, i, uuid) == OK; i++) *to += strncmp(uuid, "MIG-", 4) != 0;
  return OK;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, device_t* to) {
  char uuid[LINE];
  return look("", NULL, index, uuid) == OK ? nvmlDeviceGetHandleByUUID(uuid, to) : INVALID;
}
int nvmlDeviceGetUUID(device_t d, char* to, unsigned size) { strncpy(to, d, size); return OK; }
int nvmlDeviceGetName(device_t d, char* to, unsigned size) { strncpy(to, "Stand-in", size); return OK; }
int nvmlDeviceGetIndex(device_t d, unsigned* to) {
  *to = (d - known[0]) / WORD;
  return OK;
}

int nvmlDeviceGetPowerUsage(device_t d, unsigned* to) { return small(d, "power", to); }
int nvmlDeviceGetClockInfo(device_t d, int type, unsigned* to) {
  return small(d, type == 1 ? "sm_clock" : "memory_clock", to);
}
int nvmlDeviceGetPcieThroughput(device_t d, int kind, unsigned* to) {
  return small(d, kind == 1 ? "pcie_rx" : "pcie_tx", to);
}
int nvmlDeviceGetMemoryInfo(device_t d, unsigned long long* to) { return number(d, "memory", to + 2); }

#ifndef NEW
int nvmlDeviceGetTemperature(device_t d, int sensor, unsigned* to) { return small(d, "temperature", to); }
int nvmlDeviceGetCurrentClocksThrottleReasons(device_t d, unsigned long long* to) {
  return number(d, "throttle_reasons", to);
}
#endif
#ifndef OLD
int nvmlDeviceGetTemperatureV(device_t d, temperature_t* to) {
  return small(d, "temperature_v", (unsigned*)&to->temperature);
}
int nvmlDeviceGetCurrentClocksEventReasons(device_t d, unsigned long long* to) {
  return number(d, "event_reasons", to);
}
#endif
#ifndef SPARSE
int nvmlDeviceGetTotalEnergyConsumption(device_t d, unsigned long long* to) { return number(d, "energy", to); }
int nvmlDeviceGetFieldValues(device_t d, int count, field_t* fields) {
  for (int i = 0; i < count; i++) {  // one link, or with UINT_MAX the sum over four
    fields[i].code = number(d, i ? "nvlink_tx" : "nvlink_rx", (unsigned long long*)&fields[i].value);
    if (fields[i].scope != UINT32_MAX) fields[i].value /= 4;
  }
  return OK;
}
#endif

// The answer: PID BYTES PID BYTES ...; of bytes -1 is NVML's "not available".
static int processes(device_t d, unsigned* count, process_t* to) {
  char text[LINE], *at = text, *end;
  unsigned room = *count;
  int code = look(d, "processes", 0, text);
  if (code != OK) return code;
  for (*count = 0;; (*count)++) {
    unsigned pid = strtoul(at, &end, 0);
    if (end == at) break;
    unsigned long long used = strtoull(end, &at, 0);
    if (*count < room) to[*count] = (process_t){pid, used, 0, 0};
  }
  return *count > room ? TOO_SMALL : OK;
}
#ifdef OLD
int nvmlDeviceGetComputeRunningProcesses_v2(device_t d, unsigned* n, process_t* to) { return processes(d, n, to); }
#else
int nvmlDeviceGetComputeRunningProcesses_v3(device_t d, unsigned* n, process_t* to) { return processes(d, n, to); }
#endif
