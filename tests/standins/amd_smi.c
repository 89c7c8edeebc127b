// AMD's GPUs: two of them, and what each of them tells. A test adds the functions that are missing.
#include <stdint.h>
#include <string.h>
#include <unistd.h>
enum { OK = 0, NOT_SUPPORTED = 2 };
static const char *serials[] = {"0x3d79a5b1c3f5e1b7", "0x0079a5b1c3f5e1b8"};
static int energy_calls;
typedef struct { char market_name[256]; uint32_t vendor_id; char vendor_name[256];
  uint32_t subvendor_id; uint64_t device_id; uint32_t rev_id; char asic_serial[256];
  uint32_t oam_id, compute_units; char padding[4]; uint64_t version;
  uint32_t subsystem_id, reserved[21];
} __attribute__((packed)) asic_t;
typedef struct { uint64_t socket; uint32_t current, average; uint64_t gfx, soc, mem; uint32_t limit;
  char padding[4]; uint64_t reserved[18]; } __attribute__((packed)) power_t;
typedef struct { uint32_t clk, min, max; uint8_t locked, sleep, padding[2];
  uint32_t reserved[4]; } clk_t;
typedef struct { char name[256]; uint32_t pid; char padding[4]; uint64_t mem, gfx, enc;
  uint32_t reserved_engine[12]; uint64_t gtt, cpu, vram; uint32_t reserved_memory[10];
  char container[256]; uint32_t occupancy, reserved[11]; } __attribute__((packed)) proc_t;

int amdsmi_init(uint64_t flags) { return OK; }
int amdsmi_shut_down(void) { return OK; }
int amdsmi_get_socket_handles(uint32_t *count, void **handles) {
  if (handles) for (long i = 0; i < *count; i++) handles[i] = (void *)(i + 1);
  *count = 2;
  return OK;
}
int amdsmi_get_processor_handles(void *socket, uint32_t *count, void **handles) {
  if (handles) handles[0] = socket;
  *count = 1;
  return OK;
}
int amdsmi_get_gpu_asic_info(void *device, asic_t *info) {
  memset(info, 0, sizeof *info);
  strcpy(info->market_name, "AMD Instinct MI300X");
  strcpy(info->asic_serial, serials[(long)device - 1]);
  return OK;
}
int amdsmi_get_energy_count(void *device, uint64_t *count, float *resolution, uint64_t *time) {
  if (device == (void *)2) return NOT_SUPPORTED;
  *count = 1000000 + 100000 * energy_calls++;
  *resolution = 15.25f;
  return OK;
}
int amdsmi_get_power_info(void *device, power_t *info) {
  memset(info, 0, sizeof *info);
  info->current = device == (void *)1 ? 730 : 0xFFFF;  // an older device has the mean only
  info->average = device == (void *)1 ? 0xFFFF : 250;
  return OK;
}
int amdsmi_get_clock_info(void *device, int kind, clk_t *info) {
  memset(info, 0, sizeof *info);
  info->clk = kind == 0 ? 2100 : device == (void *)1 ? 1300 : 0xFFFFFFFF;
  return OK;
}
int amdsmi_get_temp_metric(void *device, int sensor, int metric, int64_t *value) {
  *value = sensor == 1 ? 61 : 40;
  return OK;
}
int amdsmi_get_gpu_vram_usage(void *device, uint32_t *info) {
  info[0] = 196592;
  info[1] = 283;
  return OK;
}
int amdsmi_get_gpu_process_list(void *device, uint32_t *count, proc_t *list) {
  memset(list, 0, sizeof *list);
  list->pid = getpid();
  list->vram = 123 << 20;
  *count = 1;
  return OK;
}
