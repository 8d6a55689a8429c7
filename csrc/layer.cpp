#include "layer.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "checked.h"
#include "release.h"

namespace fedmef {

namespace {

constexpr int LARGEST = 1 << 24;  // of channels, rows and columns
constexpr int LARGEST_PADDING = 1 << 12;
constexpr int64_t MOST_PIXELS = 1000;     // that one output needs: offsets in the buffer of a tile have 16 bits
constexpr size_t MOST = size_t(1) << 31;  // of elements: indices have 32 bits
constexpr size_t GROWTH_FLOATS = size_t(1) << 16;  // of a dense gradient that is looked at at once: 256 kB

void check_shape(const Shape& shape) {
  require(std::min({shape.channels, shape.height, shape.width}) >= 1 &&
              std::max({shape.channels, shape.height, shape.width}) <= LARGEST,
          "a layer's shape is not one");
  require(times(times(size_t(shape.channels), size_t(shape.height)), size_t(shape.width)) < MOST,
          "a layer's result is too large");
}

void check_window(const LayerSettings& settings) {
  const int input[2] = {settings.input.height, settings.input.width};
  const int output[2] = {settings.output.height, settings.output.width};
  int64_t pixels = 1;
  size_t padded = size_t(std::max(settings.input.channels, settings.output.channels));
  for (int axis = 0; axis < 2; ++axis) {
    const int64_t kernel = settings.window.kernel[axis], stride = settings.window.stride[axis];
    const int64_t padding = settings.window.padding[axis], dilation = settings.window.dilation[axis];
    require(std::min({kernel, stride, dilation}) >= 1 && padding >= 0, "a convolution's window is not one");
    require(std::max({kernel, stride, dilation}) <= MOST_PIXELS && padding <= LARGEST_PADDING,
            "a convolution's window is too large for these kernels");
    const int64_t room = input[axis] + 2 * padding - dilation * (kernel - 1) - 1;
    require(room >= 0 && room / stride + 1 == output[axis], "a convolution's shapes do not fit its window");
    pixels *= dilation * (kernel - 1) + 1 + stride;
    padded = times(padded, size_t(input[axis] + 2 * (padding + stride) + dilation * (kernel - 1)));
  }
  require(pixels <= MOST_PIXELS, "a convolution's window is too large for these kernels");
  require(padded < MOST, "a convolution's input is too large with its padding");  // offsets there have 32 bits
}

// The kernels begin a sum either at what is there or at the bias: where both are wanted, the bias is added first.
void add_bias(const Pass& pass, const Shape& shape, const float* bias, float* y) {
  const int lanes = pass.layout.lanes;
  pass.threads.run(pass.layout.blocks() * shape.channels, [&](int item, int) {
    const int filled = pass.layout.filled(item / shape.channels);
    const float value = bias[item % shape.channels];
    float* pixel = y + size_t(item) * shape.plane() * size_t(lanes);
    for (size_t i = 0; i < shape.plane(); ++i, pixel += lanes)
      for (int lane = 0; lane < filled; ++lane) pixel[lane] += value;
  });
}

}  // namespace

size_t Scratch::bytes() const {
  return bytes_of(weights) + bytes_of(transposed) + bytes_of(gain_gradient) + bytes_of(bias_gradient) + bytes_of(rows);
}

Layer::Layer(const LayerSettings& settings) : settings_(settings) {
  check_shape(settings.input);
  check_shape(settings.output);
  check_window(settings);
  require(settings.groups >= 1 && settings.input.channels % settings.groups == 0 &&
              settings.output.channels % settings.groups == 0,
          "a convolution's groups do not divide its channels");
  const size_t taps = times(size_t(settings.window.kernel[0]), size_t(settings.window.kernel[1]));
  const size_t filter = times(taps, size_t(settings.input.channels / settings.groups));
  require(times(filter, size_t(settings.output.channels)) < MOST, "a layer has too many weights");
  require(!settings.linear || (!settings.sparse && !is_effective() && settings.groups == 1 && taps == 1 &&
                               settings.input.plane() == 1 && settings.output.plane() == 1),
          "only a dense layer on one pixel is linear");
  require(settings.sparse || !is_effective(), "only a sparse layer has a gain or a normalisation");
  if (settings.normalization)
    require(settings.normalization->epsilon > 0 && settings.normalization->input_channels >= 1,
            "a normalisation's constants make no sense");
  values.trained = settings.train_values;
  gain.trained = settings.gain && settings.train_gain;
  bias.trained = settings.bias && settings.train_bias;
}

size_t Layer::size() const {
  return size_t(settings_.output.channels) * size_t(settings_.input.channels / settings_.groups) *
         size_t(settings_.window.kernel[0]) * size_t(settings_.window.kernel[1]);
}

void Layer::load_values(const Kernels& kernels, const float* from, size_t count, const uint8_t* mask,
                        size_t mask_bytes) {
  require((mask != nullptr) == settings_.sparse, "a sparse layer has a mask, and no other one");
  if (mask) {
    require(mask_bytes == (size() + 7) / 8, "a mask is not of its layer's size");
    size_t active = 0;
    for (size_t byte = 0; byte < mask_bytes; ++byte) active += size_t(std::popcount(mask[byte]));
    require(size() % 8 == 0 || mask[mask_bytes - 1] >> (size() % 8) == 0, "a mask has bits beyond its layer");
    require(active == count, "a layer has not as many values as its mask has ones");
  } else {
    require(count == size(), "a dense layer's weight is not of its size");
  }
  if (settings_.linear) {
    values.load(from, count);
  } else {
    const bool same = loaded_ && (!mask || !std::memcmp(this->mask(kernels).data(), mask, mask_bytes));
    if (!same) {
      loaded_ = false;
      values.load(nullptr, 0);  // they belong to the plan
      marked_.clear();
      plan_ = {};  // before the new one takes memory
      plan_ = plan_convolution(kernels, settings_.input, settings_.output, settings_.window, settings_.groups, mask);
      statistics_.lengths = filter_lengths(plan_);
      for (std::vector<float>* each : {&statistics_.mean, &statistics_.inverse_norm, &statistics_.scale})
        each->assign(size_t(plan_.filters()), 0.0f);
    }
    values.load(from, count);
    to_stream(plan_, from, values.values.data());
  }
  marked_.clear();
  loaded_ = true;
}

std::vector<float> Layer::canonical(const std::vector<float>& stream) const {
  if (settings_.linear || stream.empty()) return stream;
  std::vector<float> result(stream.size());
  from_stream(plan_, stream.data(), result.data());
  return result;
}

void Layer::mark(const int64_t* places, size_t count) {
  require(settings_.sparse && loaded_, "only weights of a sparse layer are marked");
  const size_t active = values.values.size();
  for (size_t i = 0; i < count; ++i)
    require(places[i] >= 0 && size_t(places[i]) < active, "a marked weight is beyond the layer's active ones");
  release(marked_);
  if (count == 0) return;
  marked_.reserve(count);
  const std::vector<uint32_t> moved = stream_places(plan_);
  for (size_t i = 0; i < count; ++i) marked_.push_back(moved[size_t(places[i])]);
}

double Layer::marked_squares() const {
  double sum = 0;
  for (uint32_t place : marked_) sum += double(values.values[place]) * values.values[place];
  return sum;
}

void Layer::reserve(Scratch& scratch, bool backward) const {
  if (is_effective()) Scratch::at_least(scratch.weights, values.values.size());
  if (!backward) return;
  Scratch::at_least(scratch.transposed, plan_.active);
  if (trains_weights()) Scratch::at_least(scratch.weights, values.values.size());
  Scratch::at_least(scratch.gain_gradient, gain.values.size());
  Scratch::at_least(scratch.bias_gradient, bias.values.size());
}

void Layer::prepare(const Pass& pass) {
  const bool small = pass.layout.lanes == 1;
  if (settings_.linear || plan_.small == small) return;
  const std::vector<uint8_t> active = mask(pass.kernels);
  loaded_ = false;  // stays so if there is not enough memory
  choose_offsets(pass.kernels, plan_, settings_.sparse ? active.data() : nullptr, small);
  loaded_ = true;
}

const float* Layer::effective(const Pass& pass) {
  if (!is_effective()) return values.values.data();
  float* result = Scratch::at_least(pass.scratch.weights, values.values.size());
  effective_values(pass.kernels, pass.threads, plan_, statistics(), gains(), values.values.data(), result);
  return result;
}

void Layer::forward(const Pass& pass, const float* x, float* y, bool accumulate, const Rectification& then) {
  if (settings_.linear) {
    pass.kernels.linear(pass.threads, pass.layout, settings_.input.channels, settings_.output.channels,
                        values.values.data(), nullptr, nullptr, biases(), x, y);
    pass.kernels.rectify(pass.threads, y, pass.layout.elements(settings_.output), then);
    return;
  }
  if (settings_.normalization)
    measure_filters(pass.kernels, pass.threads, plan_, *settings_.normalization, values.values.data(), statistics_);
  if (accumulate && settings_.bias) add_bias(pass, settings_.output, biases(), y);
  pass.kernels.convolve(pass.threads, plan_, pass.layout, effective(pass), accumulate ? nullptr : biases(), x, y,
                        accumulate, then);
}

void Layer::input_gradient(const Pass& pass, const float* dy, float* dx, bool accumulate, const Rectification& then) {
  if (settings_.linear) {
    pass.kernels.linear_input_gradient(pass.threads, pass.layout, settings_.input.channels, settings_.output.channels,
                                       values.values.data(), nullptr, nullptr, dy, dx, accumulate);
    pass.kernels.rectify(pass.threads, dx, pass.layout.elements(settings_.input), then);
    return;
  }
  if (pass.scratch.of != this) transpose(pass);
  pass.scratch.of = nullptr;
  pass.kernels.input_gradient(pass.threads, plan_, pass.layout, pass.scratch.transposed.data(), dy, dx, accumulate,
                              then);
}

void Layer::transpose(const Pass& pass) {
  if (settings_.linear) return;
  transpose_values(plan_, effective(pass), Scratch::at_least(pass.scratch.transposed, plan_.active));
  pass.scratch.of = this;
}

void Layer::weight_gradient(const Pass& pass, Source source, const float* dy) {
  Scratch& scratch = pass.scratch;
  float* bias_gradient = bias.trained ? Scratch::at_least(scratch.bias_gradient, bias.values.size()) : nullptr;
  if (bias.trained && !(settings_.linear && trains_weights()))
    pass.kernels.bias_gradient(pass.threads, pass.layout, settings_.output, dy, bias_gradient);
  if (!trains_weights()) return;
  float* gradient = Scratch::at_least(scratch.weights, values.values.size());
  if (settings_.linear) {
    pass.kernels.linear_weight_gradient(pass.threads, pass.layout, settings_.input.channels, settings_.output.channels,
                                        nullptr, nullptr, source.dense, dy, gradient, bias_gradient);
    return;
  }
  pass.kernels.weight_gradient(pass.threads, plan_, pass.layout, source, dy, gradient);
  if (is_effective()) {
    float* gain_gradient = Scratch::at_least(scratch.gain_gradient, gain.values.size());
    effective_gradient(pass.kernels, pass.threads, plan_, statistics(), gains(), values.values.data(), gradient,
                       gain_gradient);
  }
}

void Layer::update(const Pass& pass, const Descent& descent) {
  if (values.trained) {
    float* gradient = pass.scratch.weights.data();
    for (uint32_t place : marked_) gradient[place] += 2 * descent.pull * values.values[place];
    values.descend(gradient, descent);
  }
  if (gain.trained) gain.descend(pass.scratch.gain_gradient.data(), descent);
  if (bias.trained) bias.descend(pass.scratch.bias_gradient.data(), descent);
}

void Layer::score(const Pass& pass, Source source, const float* dy) {
  const size_t filter_size = plan_.filter_size();
  const int rows = int(std::clamp<size_t>(GROWTH_FLOATS / filter_size, 1, size_t(plan_.filters())));
  std::vector<float> scales(size_t(plan_.filters()), 1.0f);
  if (settings_.normalization) scales = growth_scales(statistics_);
  if (settings_.gain)
    for (size_t filter = 0; filter < scales.size(); ++filter) scales[filter] *= gain.values[filter];
  const std::vector<uint8_t> active = mask(pass.kernels);
  LargestGradients largest(std::min(growing, plan_.size() - plan_.active));
  float* gradient = Scratch::at_least(pass.scratch.rows, size_t(rows) * filter_size);
  for (int first = 0; first < plan_.filters(); first += rows) {
    const int last = std::min(first + rows, plan_.filters());
    pass.kernels.dense_weight_gradient(pass.threads, plan_, pass.layout, source, dy, first, last, gradient);
    for (size_t i = 0; i < size_t(last - first) * filter_size; ++i) {
      const size_t position = size_t(first) * filter_size + i;
      if (active[position / 8] >> (position % 8) & 1) continue;
      largest.offer(int32_t(position), gradient[i] * scales[position / filter_size]);
    }
  }
  scores = largest.sorted();
}

std::vector<uint8_t> Layer::mask(const Kernels& kernels) const {
  if (!settings_.sparse || !loaded_) return {};
  return mask_of(kernels, plan_);
}

size_t Layer::weight_bytes() const { return values.bytes() + gain.bytes() + bias.bytes(); }

size_t Layer::index_bytes() const {
  size_t bytes = bytes_of(marked_) + bytes_of(plan_.transpose) + bytes_of(plan_.wide_transpose);
  for (const Stream* stream : {&plan_.forward_stream, &plan_.backward_stream})
    bytes += bytes_of(stream->segments) + bytes_of(stream->offsets) + bytes_of(stream->wide);
  return bytes + bytes_of(statistics_.lengths) * 4;
}

}  // namespace fedmef
