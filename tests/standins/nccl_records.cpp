// Tells torch's profiler of an operation what ProcessGroupNCCL tells it, with torch's own macros.
#include <ATen/ATen.h>
#include <ATen/record_function.h>
#include <torch/csrc/distributed/c10d/ParamCommsUtils.hpp>

// Names are those of c10d's operator, of the collective and of the annotation; data is float32.
extern "C" void record(const char* operation, const char* collective, const char* annotation,
                       int64_t elements_in, int64_t elements_out, int64_t sequence, int rank,
                       int world_size) {
  auto in = at::empty({elements_in}), out = at::empty({elements_out});
  RECORD_FUNCTION(operation, std::vector<c10::IValue>{in});
  {
    RECORD_PARAM_COMMS_DATA(
        std::make_tuple(sequence, false),
        std::make_tuple(std::string("0"), std::string("default_pg")), std::vector<at::Tensor>{in},
        std::vector<at::Tensor>{out}, rank, std::string(collective), elements_in, elements_out,
        at::kFloat, std::vector<int64_t>(), std::vector<int64_t>(), 0, 1, world_size);
    {
      RECORD_FUNCTION_WITH_SCOPE(at::RecordScope::USER_SCOPE, annotation, std::vector<c10::IValue>{in});
    }
  }
}
