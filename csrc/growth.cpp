#include "growth.h"

#include <algorithm>
#include <cmath>

namespace fedmef {

bool LargestGradients::is_better(const Candidate& one, const Candidate& other) {
  return one.magnitude != other.magnitude ? one.magnitude > other.magnitude : one.position < other.position;
}

void LargestGradients::offer(int64_t position, float gradient) {
  const float magnitude = std::fabs(gradient);
  if (!(magnitude > 0) || count_ == 0) return;
  if (heap_.size() == count_) {
    if (!(magnitude > heap_.front().magnitude)) return;
    std::pop_heap(heap_.begin(), heap_.end(), is_better);
    heap_.back() = {magnitude, gradient, position};
  } else {
    heap_.push_back({magnitude, gradient, position});
  }
  std::push_heap(heap_.begin(), heap_.end(), is_better);
}

GrowthScores LargestGradients::sorted() const {
  std::vector<Candidate> order(heap_);
  std::sort(order.begin(), order.end(),
            [](const Candidate& one, const Candidate& other) { return one.position < other.position; });
  GrowthScores scores;
  for (const Candidate& candidate : order) {
    scores.positions.push_back(candidate.position);
    scores.gradients.push_back(candidate.gradient);
  }
  return scores;
}

}  // namespace fedmef
