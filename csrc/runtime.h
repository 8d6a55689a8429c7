// What all programs of one network share: layers, threads, kernels, and the arena in which results lie.
#pragma once

#include <atomic>
#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "batch_norm.h"
#include "layer.h"
#include "threads.h"

namespace fedmef {

// How the pixels of an image become a network's input: x * scale - shift, by channel.
struct Images {
  Shape shape;
  std::vector<float> scale, shift;
};

// Bytes by purpose.
struct Memory {
  size_t arena, weights, indices, scratch;
};

class Runtime {
 public:
  // Throws when there is no such instruction set here; "" is the fastest.
  Runtime(const std::string& instructions, int threads, Images images);

  void add_layer(const std::string& name, const LayerSettings& settings);
  void add_batch_norm(const std::string& name, int channels, BatchNormConstants constants, bool affine, bool train_gain,
                      bool train_bias);
  Layer& layer(const std::string& name);
  BatchNormLayer& batch_norm(const std::string& name);
  // Throws while a program runs in another thread.
  void check_idle() const;
  // Throws unless every layer has its arrays.
  void check_loaded() const;

  // At least this many bytes; contents are undefined. What was there before is gone when it has to grow.
  uint8_t* arena(size_t bytes);
  void* prune_scratch(size_t bytes);
  // Give back the arena and all scratch memory. Programs take them again.
  void shrink();
  Memory memory() const;

  // Held while a program runs, which frees Python's lock: another Python thread that comes in meanwhile is refused.
  // It is taken while Python's lock is held, so that nobody can have passed a check just before.
  class InUse {
   public:
    explicit InUse(Runtime& runtime);
    ~InUse() { runtime_.in_use_ = false; }
    InUse(const InUse&) = delete;

   private:
    Runtime& runtime_;
  };

  const Kernels& kernels;
  const Images images;
  Threads threads;
  Scratch scratch;

 private:
  struct Free {
    void operator()(void* memory) const { std::free(memory); }
  };

  std::map<std::string, std::unique_ptr<Layer>> layers_;
  std::map<std::string, std::unique_ptr<BatchNormLayer>> batch_norms_;
  std::unique_ptr<uint8_t, Free> arena_;
  size_t arena_bytes_ = 0;
  std::vector<uint64_t> prune_scratch_;
  std::atomic<bool> in_use_{false};
};

}  // namespace fedmef
