#include "growth.h"

#include <algorithm>

namespace fedmef {

bool LargestGradients::is_better(const Candidate& one, const Candidate& other) {
  return one.magnitude() != other.magnitude() ? one.magnitude() > other.magnitude() : one.position < other.position;
}

void LargestGradients::offer(int32_t position, float gradient) {
  const float magnitude = std::fabs(gradient);
  if (!(magnitude > 0) || count_ == 0) return;
  if (heap_.size() == count_) {
    if (!(magnitude > heap_.front().magnitude())) return;
    std::pop_heap(heap_.begin(), heap_.end(), is_better);
    heap_.back() = {gradient, position};
  } else {
    heap_.push_back({gradient, position});
  }
  std::push_heap(heap_.begin(), heap_.end(), is_better);
}

GrowthScores LargestGradients::sorted() {
  std::sort(heap_.begin(), heap_.end(),
            [](const Candidate& one, const Candidate& other) { return one.position < other.position; });
  GrowthScores scores;
  scores.positions.reserve(heap_.size());
  scores.gradients.reserve(heap_.size());
  for (const Candidate& candidate : heap_) {
    scores.positions.push_back(candidate.position);
    scores.gradients.push_back(candidate.gradient);
  }
  heap_ = {};
  return scores;
}

}  // namespace fedmef
