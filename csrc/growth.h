// The largest gradients at pruned positions, without the dense gradient ever being there as a whole.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace fedmef {

// Positions in a layer's flattened weight, ascending, and the gradients there.
struct GrowthScores {
  std::vector<int32_t> positions;
  std::vector<float> gradients;
};

// A bounded heap: the smallest magnitude of those that are kept stands first. Positions must come in ascending order:
// of equal magnitudes the lower position wins. Zeros are never taken.
class LargestGradients {
 public:
  explicit LargestGradients(size_t count) : count_(count) { heap_.reserve(count); }

  void offer(int32_t position, float gradient);
  // Ends it: the heap is empty afterwards.
  GrowthScores sorted();

 private:
  struct Candidate {
    float gradient;
    int32_t position;
    float magnitude() const { return std::fabs(gradient); }
  };
  static bool is_better(const Candidate& one, const Candidate& other);

  size_t count_;
  std::vector<Candidate> heap_;
};

}  // namespace fedmef
