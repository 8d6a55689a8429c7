// A list of instructions over buffers in one arena. Every instruction is checked when it is added: no buffer may end
// beyond the arena, nor be smaller than what the kernel reads or writes there. Running it checks images and labels.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "runtime.h"

namespace fedmef {

constexpr int NONE = -1;  // instead of a buffer that is not there

class Program {
 public:
  // `arena` is the bytes of all buffers. The runtime must outlive the program.
  Program(Runtime& runtime, int images, int lanes, size_t arena);

  // The number by which instructions name it.
  int buffer(size_t offset, size_t bytes);

  void read_images(int to);
  void convolve(const std::string& layer, int x, int y, bool accumulate);
  void convolve_relu(const std::string& layer, int x, int y, int bits, bool accumulate, float upper, bool at_zero);
  // Weights as they are now, for the next input gradient of this layer.
  void transpose(const std::string& layer);
  void input_gradient(const std::string& layer, int dy, int dx, bool accumulate);
  // Of a layer behind a ReLU: what passes through that, too.
  void input_gradient_relu(const std::string& layer, int dy, int dx, int bits, bool accumulate);
  void weight_gradient(const std::string& layer, int dy, int dense, int cache);
  void score(const std::string& layer, int dy, int dense, int cache);
  void update(const std::string& layer);
  void prune(int x, int cache, Shape shape, size_t keep, const std::string& dtype);
  void relu(int x, int bits, size_t count, float upper, bool at_zero);
  void relu_backward(int gradient, int bits, size_t count);
  void add(int to, int source);
  void scale(int x, float factor);
  void copy(int to, size_t to_offset, size_t to_stride, int source, size_t source_offset, size_t source_stride,
            size_t size, bool accumulate);
  void pool(int x, int y, int places, const Pooling& pooling);
  void pool_backward(int dy, int dx, int places, const Pooling& pooling, bool accumulate);
  void batch_norm(const std::string& layer, int x, int y, int statistics, Shape shape, bool track);
  void batch_norm_fixed(const std::string& layer, int x, int y, int statistics, Shape shape);
  void batch_norm_backward(const std::string& layer, int x, int dy, int dx, int statistics, Shape shape, bool fixed,
                           bool update);
  void layer_norm(int x, int factors, size_t size, float epsilon);
  void layer_norm_backward(int y, int factors, int gradient, size_t size);
  void cross_entropy(int logits, int classes);
  void logits(int logits, int classes);

  // The loss, if the program has one. `labels` may be null if it has none. The caller holds Runtime::InUse.
  double run(const uint8_t* images, size_t image_count, const int64_t* labels, size_t label_count,
             const Descent& descent);
  Runtime& runtime() const { return runtime_; }
  const std::vector<float>& last_logits() const { return logits_; }
  // Of every instruction of the last run, if it was timed: CPU time of a thread that works alone, otherwise wall time.
  const std::vector<double>& seconds() const { return seconds_; }
  bool timed = false;
  // What the last run left in a buffer, for tests.
  std::vector<uint8_t> content(int buffer) const;

 private:
  static constexpr size_t ABSENT = ~size_t(0);
  struct Buffer {
    size_t offset, bytes;
  };
  // A pruned result in one buffer: bits, values, where each plane's values begin.
  struct Cache {
    Shape shape;
    CacheType type;
    size_t bits, values, starts;  // offsets in the arena
  };
  struct Kept {
    size_t dense = ABSENT;
    std::optional<Cache> cache;
  };
  struct Run {
    uint8_t* arena;
    const uint8_t* images;
    const int64_t* labels;
    const Descent& descent;
    Pass pass;
    double loss;

    float* floats(size_t offset) const { return reinterpret_cast<float*>(arena + offset); }
    uint8_t* bytes(size_t offset) const { return arena + offset; }
    // Null if there is no such buffer.
    uint8_t* optional(size_t offset) const { return offset == ABSENT ? nullptr : arena + offset; }
    // `pruned` must live as long as what is returned.
    Source source(const Kept& kept, PrunedActivation& pruned) const;
  };

  template <class Work>
  void add_step(Work work) {
    steps_.emplace_back(std::move(work));
  }
  // Where a buffer begins; throws unless it has this many bytes.
  size_t place(int buffer, size_t bytes) const;
  size_t optional_place(int buffer, size_t bytes) const { return buffer == NONE ? ABSENT : place(buffer, bytes); }
  // Tell that an instruction writes to a buffer: what was pruned into memory that it shares can no longer be read.
  void writes(int buffer);
  bool overlap(int one, int other) const;
  size_t elements(const Shape& shape) const;
  size_t dense(int buffer, const Shape& shape) const { return place(buffer, times(elements(shape), sizeof(float))); }
  size_t bit_bytes(size_t count) const { return rounded_up(rounded_up(count, 8) / 8, 8); }
  Layer& used_layer(const std::string& name);
  // A layer and, where its result is stored, a ReLU with its bits at the place `bits`.
  void add_forward(const std::string& name, int x, int y, bool accumulate, Rectification then, size_t bits);
  void add_input_gradient(const std::string& name, int dy, int dx, bool accumulate, Rectification then, size_t bits);
  // What a weight gradient reads: one of the two, or neither if no weight is trained.
  Kept kept(const Layer& layer, int dense, int cache) const;
  void check_pooling(const Pooling& pooling) const;

  Runtime& runtime_;
  Layout layout_;
  size_t arena_;
  std::vector<Buffer> buffers_;
  std::map<int, Cache> caches_;
  std::map<int, Pooling> places_;  // of max pooling, whose backward step goes where they say
  std::vector<std::function<void(Run&)>> steps_;
  std::vector<Layer*> layers_;
  bool has_backward_ = false;
  size_t prune_scratch_ = 0;
  int classes_ = 0;  // of the loss, or 0 if there is none
  std::vector<float> logits_;
  std::vector<double> seconds_;
};

}  // namespace fedmef
