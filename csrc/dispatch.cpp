// The instruction sets that were compiled and that this processor has.
#include <cstring>

#include "kernels/kernels.h"

namespace fedmef {

#if FEDMEF_HAS_AVX512
namespace avx512 {
const Kernels& table();
}
#endif
#if FEDMEF_HAS_AVX2
namespace avx2 {
const Kernels& table();
}
#endif
#if FEDMEF_HAS_NEON
namespace neon {
const Kernels& table();
}
#endif
#if FEDMEF_HAS_BASELINE
namespace baseline {
const Kernels& table();
}
#endif

namespace {

#if FEDMEF_HAS_AVX512 || FEDMEF_HAS_AVX2
// Everything that CMakeLists.txt lets the compiler use.
bool has_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c") &&
         __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("popcnt");
}
#endif

// Fastest first.
std::vector<const Kernels*> usable() {
  std::vector<const Kernels*> tables;
#if FEDMEF_HAS_AVX512
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl") && has_avx2())
    tables.push_back(&avx512::table());
#endif
#if FEDMEF_HAS_AVX2
  if (has_avx2()) tables.push_back(&avx2::table());
#endif
#if FEDMEF_HAS_NEON
  tables.push_back(&neon::table());
#endif
#if FEDMEF_HAS_BASELINE
  tables.push_back(&baseline::table());
#endif
  return tables;
}

}  // namespace

const Kernels* find_kernels(const char* name) {
  for (const Kernels* kernels : usable())
    if (std::strcmp(kernels->name, name) == 0) return kernels;
  return nullptr;
}

std::vector<const char*> available_kernels() {
  std::vector<const char*> names;
  for (const Kernels* kernels : usable()) names.push_back(kernels->name);
  return names;
}

}  // namespace fedmef
