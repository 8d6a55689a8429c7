#include "runtime.h"

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include <algorithm>
#include <cmath>
#include <new>

#include "release.h"

namespace fedmef {

namespace {

constexpr int MOST_THREADS = 1024;
constexpr size_t ALIGNMENT = 4096;
constexpr size_t HUGE_PAGE = 2 << 20;

const Kernels& chosen_kernels(const std::string& name) {
  const std::vector<const char*> available = available_kernels();
  require(!available.empty(), "no kernels were compiled that this processor can run");
  const Kernels* kernels = find_kernels(name.empty() ? available.front() : name.c_str());
  require(kernels != nullptr, "this processor or this build does not have the instruction set asked for");
  return *kernels;
}

int checked_threads(int count) {
  require(count >= 1 && count <= MOST_THREADS, "the number of threads must be from 1 to 1024");
  return count;
}

}  // namespace

Runtime::Runtime(const std::string& instructions, int threads, Images images)
    : kernels(chosen_kernels(instructions)), images(std::move(images)), threads(checked_threads(threads)) {
  const Shape& shape = this->images.shape;
  require(std::min({shape.channels, shape.height, shape.width}) >= 1, "images have a shape of three positive numbers");
  require(times(times(size_t(shape.channels), size_t(shape.height)), size_t(shape.width)) < (size_t(1) << 31),
          "images are too large");
  require(this->images.scale.size() == size_t(shape.channels) && this->images.shift.size() == size_t(shape.channels),
          "images have a scale and a shift for each channel");
}

void Runtime::add_layer(const std::string& name, const LayerSettings& settings) {
  check_idle();
  require(!layers_.count(name), "two layers have one name");
  layers_[name] = std::make_unique<Layer>(settings);
}

void Runtime::add_batch_norm(const std::string& name, int channels, BatchNormConstants constants, bool affine,
                             bool train_gain, bool train_bias) {
  check_idle();
  require(!batch_norms_.count(name), "two layers have one name");
  require(channels >= 1 && constants.epsilon >= 0, "a batch normalisation's constants make no sense");
  auto layer = std::make_unique<BatchNormLayer>();
  layer->channels = channels;
  layer->constants = constants;
  layer->affine = affine;
  layer->gain.trained = affine && train_gain;
  layer->bias.trained = affine && train_bias;
  batch_norms_[name] = std::move(layer);
}

Layer& Runtime::layer(const std::string& name) {
  check_idle();
  const auto found = layers_.find(name);
  require(found != layers_.end(), "there is no such layer");
  return *found->second;
}

BatchNormLayer& Runtime::batch_norm(const std::string& name) {
  check_idle();
  const auto found = batch_norms_.find(name);
  require(found != batch_norms_.end(), "there is no such batch normalisation");
  return *found->second;
}

void Runtime::check_idle() const { require(!in_use_, "another thread is using this backend"); }

Runtime::InUse::InUse(Runtime& runtime) : runtime_(runtime) {
  require(!runtime_.in_use_.exchange(true), "another thread is using this backend");
}

void Runtime::check_loaded() const {
  for (const auto& [name, layer] : layers_) {
    const size_t filters = size_t(layer->settings().output.channels);
    require(layer->is_loaded() && (!layer->settings().bias || layer->bias.values.size() == filters) &&
                (!layer->settings().gain || layer->gain.values.size() == filters),
            "a state must be loaded first");
  }
  for (const auto& [name, layer] : batch_norms_) {
    require(!layer->running_mean.empty() && !layer->running_variance.empty(), "a state must be loaded first");
  }
}

uint8_t* Runtime::arena(size_t bytes) {
  if (bytes > arena_bytes_) {
    arena_.reset();
    arena_bytes_ = 0;
    const size_t aligned = bytes >= HUGE_PAGE ? HUGE_PAGE : ALIGNMENT;
    const size_t whole = rounded_up(plus(bytes, ALIGNMENT), ALIGNMENT);  // vectors may be read a little beyond the end
    void* memory = nullptr;
    if (posix_memalign(&memory, aligned, whole) != 0) throw std::bad_alloc();
    arena_.reset(static_cast<uint8_t*>(memory));
#if defined(__linux__)
    // A tile has rows of many planes, each on a page of its own: large pages spare a twentieth of the time.
    madvise(memory, whole / HUGE_PAGE * HUGE_PAGE, MADV_HUGEPAGE);
#endif
    arena_bytes_ = whole - ALIGNMENT;
  }
  return arena_.get();
}

void* Runtime::prune_scratch(size_t bytes) {
  if (prune_scratch_.size() * 8 < bytes) prune_scratch_ = std::vector<uint64_t>((bytes + 7) / 8);
  return prune_scratch_.data();
}

void Runtime::shrink() {
  const InUse in_use(*this);
  arena_.reset();
  arena_bytes_ = 0;
  release(prune_scratch_);
  scratch = {};
  threads.free_scratch();
}

Memory Runtime::memory() const {
  Memory memory{arena_bytes_, 0, 0, scratch.bytes() + bytes_of(prune_scratch_) + threads.scratch_bytes()};
  for (const auto& [name, layer] : layers_) {
    memory.weights += layer->weight_bytes();
    memory.indices += layer->index_bytes();
  }
  for (const auto& [name, layer] : batch_norms_) memory.weights += layer->bytes();
  return memory;
}

}  // namespace fedmef
