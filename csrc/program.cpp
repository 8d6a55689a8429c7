#include "program.h"

#include <time.h>

#include <algorithm>

namespace fedmef {

namespace {

double seconds_now(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return double(now.tv_sec) + double(now.tv_nsec) * 1e-9;
}

}  // namespace

Program::Program(Runtime& runtime, int images, int lanes, size_t arena)
    : runtime_(runtime), layout_{images, lanes}, arena_(arena) {
  require(images >= 1 && images <= 1 << 24, "a batch must have at least one image");
  require(lanes == 1 || lanes == runtime.kernels.lanes, "these kernels do not have this many lanes");
}

int Program::buffer(size_t offset, size_t bytes) {
  runtime_.check_idle();
  require(offset % 64 == 0, "a buffer must begin at a cache line");
  require(plus(offset, bytes) <= arena_, "a buffer ends beyond the arena");
  buffers_.push_back({offset, bytes});
  return int(buffers_.size()) - 1;
}

size_t Program::place(int buffer, size_t bytes) const {
  runtime_.check_idle();  // every instruction with buffers comes here first, those without to Runtime::layer()
  require(buffer >= 0 && size_t(buffer) < buffers_.size(), "there is no such buffer");
  require(buffers_[size_t(buffer)].bytes >= bytes, "a buffer is smaller than what goes there");
  return buffers_[size_t(buffer)].offset;
}

bool Program::overlap(int one, int other) const {
  const Buffer &a = buffers_[size_t(one)], &b = buffers_[size_t(other)];
  return a.offset < b.offset + b.bytes && b.offset < a.offset + a.bytes;
}

void Program::writes(int buffer) {
  if (buffer != NONE) std::erase_if(caches_, [&](const auto& cache) { return overlap(cache.first, buffer); });
}

size_t Program::elements(const Shape& shape) const {
  require(std::min({shape.channels, shape.height, shape.width}) >= 1, "a shape has positive numbers");
  const size_t plane = times(size_t(shape.height), size_t(shape.width));
  const size_t lanes = times(size_t(layout_.blocks()), size_t(layout_.lanes));
  const size_t count = times(lanes, times(size_t(shape.channels), plane));
  require(count < size_t(1) << 31, "a result is too large");  // kernels count planes and pixels with 32 bits
  return count;
}

Layer& Program::used_layer(const std::string& name) {
  Layer& layer = runtime_.layer(name);
  if (std::find(layers_.begin(), layers_.end(), &layer) == layers_.end()) layers_.push_back(&layer);
  return layer;
}

Program::Kept Program::kept(const Layer& layer, int dense_buffer, int cache_buffer) const {
  require((dense_buffer != NONE) + (cache_buffer != NONE) == (layer.trains_weights() ? 1 : 0),
          "a weight gradient reads one input, dense or pruned");
  Kept kept;
  if (dense_buffer != NONE) kept.dense = dense(dense_buffer, layer.settings().input);
  if (cache_buffer != NONE) {
    const auto found = caches_.find(cache_buffer);
    require(found != caches_.end(), "nothing was pruned into this buffer");
    const Shape &pruned = found->second.shape, &input = layer.settings().input;
    require(!layer.settings().linear && pruned.channels == input.channels && pruned.height == input.height &&
                pruned.width == input.width,
            "a pruned input is not of its layer's shape");
    kept.cache = found->second;
  }
  return kept;
}

Source Program::Run::source(const Kept& kept, PrunedActivation& pruned) const {
  if (kept.dense != ABSENT) return {floats(kept.dense), nullptr};
  if (!kept.cache) return {};
  pruned.bits = bytes(kept.cache->bits);
  pruned.values = bytes(kept.cache->values);
  pruned.starts = reinterpret_cast<uint32_t*>(bytes(kept.cache->starts));
  pruned.type = kept.cache->type;
  return {nullptr, &pruned};
}

double Program::run(const uint8_t* images, size_t image_count, const int64_t* labels, size_t label_count,
                    const Descent& descent) {
  runtime_.check_loaded();
  require(image_count == size_t(layout_.images) * runtime_.images.shape.size(), "images are not of the batch's size");
  if (classes_) {
    require(labels != nullptr && label_count == size_t(layout_.images), "a batch has one label for each image");
    for (size_t i = 0; i < label_count; ++i)
      require(labels[i] >= 0 && labels[i] < classes_, "a label is beyond the classes");
  }
  // Most memory first: when there is not enough, nothing has changed yet.
  for (const Layer* layer : layers_) layer->reserve(runtime_.scratch, has_backward_);
  runtime_.prune_scratch(prune_scratch_);
  Run run{runtime_.arena(arena_),
          images,
          labels,
          descent,
          {runtime_.kernels, runtime_.threads, layout_, runtime_.scratch},
          0.0};
  for (Layer* layer : layers_) layer->prepare(run.pass);
  runtime_.scratch.of = nullptr;  // of another run, perhaps with other weights
  seconds_.clear();
  if (!timed) {
    for (const auto& step : steps_) step(run);
    return run.loss;
  }
  const clockid_t clock = runtime_.threads.count() == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC;
  for (const auto& step : steps_) {
    const double begin = seconds_now(clock);
    step(run);
    seconds_.push_back(seconds_now(clock) - begin);
  }
  return run.loss;
}

std::vector<uint8_t> Program::content(int buffer) const {
  const size_t offset = place(buffer, 0);  // before the arena is touched: it is a running program's own
  const uint8_t* from = runtime_.arena(arena_) + offset;
  return {from, from + buffers_[size_t(buffer)].bytes};
}

}  // namespace fedmef
