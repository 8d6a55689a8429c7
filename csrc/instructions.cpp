// What each instruction checks when it is added, and what it does when the program runs.
#include <cmath>

#include "program.h"

namespace fedmef {

namespace {

constexpr int LARGEST_SIDE = 1 << 15;  // of images that are pooled: products of two such numbers are still numbers

CacheType cache_type(const std::string& name) {
  if (name == "fp32") return CacheType::fp32;
  if (name == "fp16") return CacheType::fp16;
  require(name == "bf16", "a cache is of fp32, fp16 or bf16");
  return CacheType::bf16;
}

bool is_same(const Shape& one, const Shape& other) {
  return one.channels == other.channels && one.height == other.height && one.width == other.width;
}

bool is_same(const Pooling& one, const Pooling& other) {
  bool same = one.kind == other.kind && is_same(one.input, other.input) && is_same(one.output, other.output);
  for (int axis = 0; axis < 2; ++axis)
    same = same && one.window.kernel[axis] == other.window.kernel[axis] &&
           one.window.stride[axis] == other.window.stride[axis] &&
           one.window.padding[axis] == other.window.padding[axis] &&
           one.window.dilation[axis] == other.window.dilation[axis];
  return same;
}

}  // namespace

void Program::read_images(int to) {
  const size_t y = dense(to, runtime_.images.shape);
  const Images& images = runtime_.images;
  writes(to);
  add_step([=, &images](Run& run) {
    run.pass.kernels.read_images(run.pass.threads, run.pass.layout, run.images, images.shape, images.scale.data(),
                                 images.shift.data(), run.floats(y));
  });
}

void Program::add_forward(const std::string& name, int x_buffer, int y_buffer, bool accumulate, Rectification then,
                          size_t bits) {
  Layer& layer = used_layer(name);
  require(!(accumulate && layer.settings().linear), "a dense linear layer cannot add to what is there");
  const size_t x = dense(x_buffer, layer.settings().input), y = dense(y_buffer, layer.settings().output);
  writes(y_buffer);
  add_step([=, &layer](Run& run) mutable {
    then.bits = run.optional(bits);
    layer.forward(run.pass, run.floats(x), run.floats(y), accumulate, then);
  });
}

void Program::convolve(const std::string& name, int x, int y, bool accumulate) {
  add_forward(name, x, y, accumulate, {}, ABSENT);
}

void Program::convolve_relu(const std::string& name, int x, int y, int bits_buffer, bool accumulate, float upper,
                            bool at_zero) {
  require(!std::isnan(upper), "the upper limit of a ReLU must be a number");
  const size_t bits = optional_place(bits_buffer, bit_bytes(elements(used_layer(name).settings().output)));
  writes(bits_buffer);
  add_forward(name, x, y, accumulate, {Rectification::Kind::relu, nullptr, upper, at_zero}, bits);
}

void Program::add_input_gradient(const std::string& name, int dy_buffer, int dx_buffer, bool accumulate,
                                 Rectification then, size_t bits) {
  Layer& layer = used_layer(name);
  const size_t dx = dense(dx_buffer, layer.settings().input), dy = dense(dy_buffer, layer.settings().output);
  has_backward_ = true;
  writes(dx_buffer);
  add_step([=, &layer](Run& run) mutable {
    then.bits = run.optional(bits);
    layer.input_gradient(run.pass, run.floats(dy), run.floats(dx), accumulate, then);
  });
}

void Program::transpose(const std::string& name) {
  Layer& layer = used_layer(name);
  has_backward_ = true;
  add_step([&layer](Run& run) { layer.transpose(run.pass); });
}

void Program::input_gradient(const std::string& name, int dy, int dx, bool accumulate) {
  add_input_gradient(name, dy, dx, accumulate, {}, ABSENT);
}

void Program::input_gradient_relu(const std::string& name, int dy, int dx, int bits_buffer, bool accumulate) {
  const size_t bits = place(bits_buffer, bit_bytes(elements(used_layer(name).settings().input)));
  add_input_gradient(name, dy, dx, accumulate, {Rectification::Kind::relu_backward, nullptr, 0, false}, bits);
}

void Program::weight_gradient(const std::string& name, int dy_buffer, int dense_buffer, int cache_buffer) {
  Layer& layer = used_layer(name);
  const size_t dy = dense(dy_buffer, layer.settings().output);
  const Kept source = kept(layer, dense_buffer, cache_buffer);
  has_backward_ = true;
  add_step([=, &layer](Run& run) {
    PrunedActivation pruned;
    layer.weight_gradient(run.pass, run.source(source, pruned), run.floats(dy));
  });
}

void Program::score(const std::string& name, int dy_buffer, int dense_buffer, int cache_buffer) {
  Layer& layer = used_layer(name);
  require(layer.settings().sparse && layer.trains_weights(), "only a sparse layer grows, unless it is frozen");
  const size_t dy = dense(dy_buffer, layer.settings().output);
  const Kept source = kept(layer, dense_buffer, cache_buffer);
  add_step([=, &layer](Run& run) {
    PrunedActivation pruned;
    layer.score(run.pass, run.source(source, pruned), run.floats(dy));
  });
}

void Program::update(const std::string& name) {
  Layer& layer = used_layer(name);
  has_backward_ = true;
  add_step([&layer](Run& run) { layer.update(run.pass, run.descent); });
}

void Program::prune(int x_buffer, int cache_buffer, Shape shape, size_t keep, const std::string& dtype) {
  const CacheType type = cache_type(dtype);
  const size_t count = elements(shape), x = dense(x_buffer, shape);
  require(keep <= count && count < size_t(1) << 32, "more is kept of a result than there is");
  const size_t planes = times(size_t(layout_.blocks()), size_t(shape.channels)), plane = count / planes;
  const size_t bits = rounded_up(bit_bytes(count), 64);
  const size_t values = rounded_up(times(keep, type == CacheType::fp32 ? 4 : 2), 64);
  const size_t starts = rounded_up(times(plus(planes, 1), 4), 64);
  const size_t begin = place(cache_buffer, plus(plus(bits, values), starts));
  require(!overlap(x_buffer, cache_buffer), "a result cannot be pruned where it is");
  writes(cache_buffer);
  caches_[cache_buffer] = {shape, type, begin, begin + bits, begin + bits + values};
  prune_scratch_ = std::max(prune_scratch_, prune_scratch(planes, plane, keep));
  const Kept kept{ABSENT, caches_[cache_buffer]};
  add_step([=, this](Run& run) {
    PrunedActivation pruned;
    run.source(kept, pruned);
    run.pass.kernels.prune(run.pass.threads, run.floats(x), planes, plane, keep, pruned,
                           runtime_.prune_scratch(prune_scratch_));
  });
}

void Program::relu(int x_buffer, int bits_buffer, size_t count, float upper, bool at_zero) {
  const size_t x = place(x_buffer, times(count, sizeof(float))), bits = optional_place(bits_buffer, bit_bytes(count));
  require(!std::isnan(upper), "the upper limit of a ReLU must be a number");
  writes(x_buffer);
  writes(bits_buffer);
  add_step([=](Run& run) {
    run.pass.kernels.relu(run.pass.threads, run.floats(x), run.optional(bits), count, upper, at_zero);
  });
}

void Program::relu_backward(int gradient_buffer, int bits_buffer, size_t count) {
  const size_t gradient = place(gradient_buffer, times(count, sizeof(float)));
  const size_t bits = place(bits_buffer, bit_bytes(count));
  writes(gradient_buffer);
  add_step([=](Run& run) {
    run.pass.kernels.relu_backward(run.pass.threads, run.floats(gradient), run.bytes(bits), count);
  });
}

void Program::add(int to_buffer, int source_buffer) {
  const size_t to = place(to_buffer, 0), bytes = buffers_[size_t(to_buffer)].bytes;
  const size_t source = place(source_buffer, bytes);
  writes(to_buffer);
  add_step([=](Run& run) {
    run.pass.kernels.add(run.pass.threads, run.floats(to), run.floats(source), bytes / sizeof(float));
  });
}

void Program::scale(int x_buffer, float factor) {
  const size_t x = place(x_buffer, 0), count = buffers_[size_t(x_buffer)].bytes / sizeof(float);
  writes(x_buffer);
  add_step([=](Run& run) { run.pass.kernels.scale(run.pass.threads, run.floats(x), factor, count); });
}

void Program::copy(int to_buffer, size_t to_offset, size_t to_stride, int source_buffer, size_t source_offset,
                   size_t source_stride, size_t size, bool accumulate) {
  const size_t later = size_t(layout_.blocks()) - 1;
  const auto end = [&](size_t offset, size_t stride) { return plus(plus(offset, times(later, stride)), size); };
  const size_t to = place(to_buffer, times(end(to_offset, to_stride), sizeof(float)));
  const size_t source = place(source_buffer, times(end(source_offset, source_stride), sizeof(float)));
  writes(to_buffer);
  require(!overlap(to_buffer, source_buffer), "a buffer cannot be copied to itself");
  add_step([=](Run& run) {
    run.pass.kernels.copy(run.pass.threads, run.floats(to) + to_offset, to_stride, run.floats(source) + source_offset,
                          source_stride, size, run.pass.layout.blocks(), accumulate);
  });
}

void Program::check_pooling(const Pooling& pooling) const {
  require(pooling.input.channels == pooling.output.channels, "pooling keeps the channels");
  const int input[2] = {pooling.input.height, pooling.input.width};
  const int output[2] = {pooling.output.height, pooling.output.width};
  for (int axis = 0; axis < 2; ++axis) {
    require(input[axis] >= 1 && output[axis] >= 1 && input[axis] <= LARGEST_SIDE && output[axis] <= LARGEST_SIDE,
            "an image is too large to be pooled");
    if (pooling.kind == PoolKind::adaptive) continue;
    const Window& window = pooling.window;
    require(std::min({window.kernel[axis], window.stride[axis], window.dilation[axis]}) >= 1 &&
                std::max({window.kernel[axis], window.stride[axis], window.dilation[axis]}) <= LARGEST_SIDE &&
                window.padding[axis] >= 0 && window.padding[axis] <= window.kernel[axis] / 2,
            "a pooling window is not one");
    const int64_t last = int64_t(output[axis] - 1) * window.stride[axis] - window.padding[axis];
    require(last < input[axis], "a pooling window begins beyond the image");
  }
  require(pooling.kind != PoolKind::maximum || pooling.window.kernel[0] * pooling.window.kernel[1] <= 256,
          "the maximum is taken of at most 256 elements");
}

void Program::pool(int x_buffer, int y_buffer, int places_buffer, const Pooling& pooling) {
  check_pooling(pooling);
  const size_t x = dense(x_buffer, pooling.input), y = dense(y_buffer, pooling.output);
  const size_t places = optional_place(places_buffer, elements(pooling.output));
  if (places_buffer != NONE) places_[places_buffer] = pooling;
  writes(y_buffer);
  writes(places_buffer);
  add_step([=](Run& run) {
    run.pass.kernels.pool(run.pass.threads, pooling, run.pass.layout, run.floats(x), run.floats(y),
                          run.optional(places));
  });
}

void Program::pool_backward(int dy_buffer, int dx_buffer, int places_buffer, const Pooling& pooling, bool accumulate) {
  check_pooling(pooling);
  const size_t dx = dense(dx_buffer, pooling.input), dy = dense(dy_buffer, pooling.output);
  const size_t places = optional_place(places_buffer, elements(pooling.output));
  if (pooling.kind == PoolKind::maximum) {
    const auto found = places_.find(places_buffer);
    require(found != places_.end() && is_same(found->second, pooling), "the places of another pooling");
  }
  writes(dx_buffer);
  add_step([=](Run& run) {
    run.pass.kernels.pool_backward(run.pass.threads, pooling, run.pass.layout, run.floats(dy), run.optional(places),
                                   run.floats(dx), accumulate);
  });
}

void Program::batch_norm(const std::string& name, int x_buffer, int y_buffer, int statistics_buffer, Shape shape,
                         bool track) {
  BatchNormLayer& layer = runtime_.batch_norm(name);
  require(shape.channels == layer.channels, "a batch normalisation has other channels");
  const size_t x = dense(x_buffer, shape), y = dense(y_buffer, shape);
  const size_t channels = size_t(layer.channels);
  const size_t statistics = place(statistics_buffer, times(channels, 2 * sizeof(float)));
  writes(y_buffer);
  writes(statistics_buffer);
  add_step([=, &layer](Run& run) {
    float* mean = run.floats(statistics);
    run.pass.kernels.batch_norm(run.pass.threads, run.pass.layout, shape, layer.constants, run.floats(x), layer.gains(),
                                layer.biases(), track ? layer.running_mean.data() : nullptr,
                                track ? layer.running_variance.data() : nullptr, mean, mean + channels, run.floats(y));
    if (track) layer.batches = int64_t(uint64_t(layer.batches) + 1);  // beyond the last comes the first
  });
}

void Program::batch_norm_fixed(const std::string& name, int x_buffer, int y_buffer, int statistics_buffer,
                               Shape shape) {
  BatchNormLayer& layer = runtime_.batch_norm(name);
  require(shape.channels == layer.channels, "a batch normalisation has other channels");
  const size_t x = dense(x_buffer, shape), y = dense(y_buffer, shape);
  const size_t channels = size_t(layer.channels);
  const size_t statistics = optional_place(statistics_buffer, times(channels, 2 * sizeof(float)));
  writes(y_buffer);
  writes(statistics_buffer);
  add_step([=, &layer](Run& run) {
    run.pass.kernels.batch_norm_fixed(run.pass.threads, run.pass.layout, shape, layer.constants.epsilon, run.floats(x),
                                      layer.gains(), layer.biases(), layer.running_mean.data(),
                                      layer.running_variance.data(), run.floats(y));
    if (statistics == ABSENT) return;
    float* mean = run.floats(statistics);
    for (size_t channel = 0; channel < channels; ++channel) {
      mean[channel] = layer.running_mean[channel];
      mean[channels + channel] = 1 / std::sqrt(layer.running_variance[channel] + layer.constants.epsilon);
    }
  });
}

void Program::batch_norm_backward(const std::string& name, int x_buffer, int dy_buffer, int dx_buffer,
                                  int statistics_buffer, Shape shape, bool fixed, bool update) {
  BatchNormLayer& layer = runtime_.batch_norm(name);
  require(shape.channels == layer.channels, "a batch normalisation has other channels");
  const size_t x = dense(x_buffer, shape), dy = dense(dy_buffer, shape), dx = dense(dx_buffer, shape);
  const size_t channels = size_t(layer.channels);
  const size_t statistics = place(statistics_buffer, times(channels, 2 * sizeof(float)));
  const bool descends = update && (layer.gain.trained || layer.bias.trained);
  writes(dx_buffer);
  add_step([=, &layer](Run& run) {
    Scratch& scratch = run.pass.scratch;
    const float* mean = run.floats(statistics);
    float* gain_gradient = descends ? Scratch::at_least(scratch.gain_gradient, channels) : nullptr;
    float* bias_gradient = descends ? Scratch::at_least(scratch.bias_gradient, channels) : nullptr;
    run.pass.kernels.batch_norm_backward(run.pass.threads, run.pass.layout, shape, run.floats(x), layer.gains(), mean,
                                         mean + channels, run.floats(dy), run.floats(dx), gain_gradient, bias_gradient,
                                         fixed);
    if (!descends) return;
    layer.gain.descend(gain_gradient, run.descent);
    layer.bias.descend(bias_gradient, run.descent);
  });
}

void Program::layer_norm(int x_buffer, int factors_buffer, size_t size, float epsilon) {
  const size_t lanes = size_t(layout_.blocks()) * size_t(layout_.lanes);
  const size_t x = place(x_buffer, times(times(lanes, size), sizeof(float)));
  const size_t factors = place(factors_buffer, times(lanes, sizeof(float)));
  require(size >= 1, "a normalisation of nothing");
  writes(x_buffer);
  writes(factors_buffer);
  add_step([=](Run& run) {
    run.pass.kernels.layer_norm(run.pass.threads, run.pass.layout, size, epsilon, run.floats(x), run.floats(factors));
  });
}

void Program::layer_norm_backward(int y_buffer, int factors_buffer, int gradient_buffer, size_t size) {
  const size_t lanes = size_t(layout_.blocks()) * size_t(layout_.lanes);
  const size_t bytes = times(times(lanes, size), sizeof(float));
  const size_t y = place(y_buffer, bytes), gradient = place(gradient_buffer, bytes);
  const size_t factors = place(factors_buffer, times(lanes, sizeof(float)));
  require(size >= 1, "a normalisation of nothing");
  writes(gradient_buffer);
  add_step([=](Run& run) {
    run.pass.kernels.layer_norm_backward(run.pass.threads, run.pass.layout, size, run.floats(y), run.floats(factors),
                                         run.floats(gradient));
  });
}

void Program::cross_entropy(int logits_buffer, int classes) {
  const size_t logits = dense(logits_buffer, {classes, 1, 1});
  require(classes_ == 0, "a program has one loss");
  classes_ = classes;
  writes(logits_buffer);
  add_step([=](Run& run) {
    run.loss = run.pass.kernels.cross_entropy(run.pass.layout, classes, run.labels, run.floats(logits));
  });
}

void Program::logits(int logits_buffer, int classes) {
  const size_t logits = dense(logits_buffer, {classes, 1, 1});
  add_step([=, this](Run& run) {
    const size_t images = size_t(layout_.images), lanes = size_t(layout_.lanes), count = size_t(classes);
    logits_.resize(images * count);
    const float* from = run.floats(logits);
    for (size_t image = 0; image < images; ++image)
      for (size_t number = 0; number < count; ++number)
        logits_[image * count + number] = from[((image / lanes) * count + number) * lanes + image % lanes];
  });
}

}  // namespace fedmef
