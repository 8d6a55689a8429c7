// How much scratch memory pruning needs, whatever the instruction set.
#include <algorithm>

#include "kernels/kernels.h"
#include "kernels/prune_memory.h"

namespace fedmef {

size_t prune_scratch(size_t planes, size_t plane, size_t keep) {
  const size_t size = planes * plane;
  return PruneMemory::of(size, std::min(keep, size)).bytes();
}

}  // namespace fedmef
