// BatchNorm by channel, the LayerNorm before a classifier, and the gradient of a convolution's bias.
#include <algorithm>
#include <cmath>

#include "kernels/parts.h"
#include "kernels/sums.h"
#include "threads.h"

namespace fedmef::FEDMEF_ISA {

namespace {

// Mean and squared deviations of many values, from those of their parts.
struct Moments {
  double count = 0, mean = 0, squares = 0;

  void add(double part_count, double part_mean, double part_squares) {
    const double difference = part_mean - mean, total = count + part_count;
    mean += difference * (part_count / total);
    squares += part_squares + difference * difference * (count * part_count / total);
    count = total;
  }
};

// The planes of one channel: visit(first float, lanes with an image) for every block.
template <class Visit>
void each_plane(Layout layout, const Shape& shape, int channel, const Visit& visit) {
  const size_t size = shape.plane() * layout.lanes;
  for (int block = 0; block < layout.blocks(); ++block)
    visit((size_t(block) * shape.channels + channel) * size, layout.filled(block));
}

Moments channel_moments(Layout layout, const Shape& shape, int channel, const float* x) {
  const size_t pixels = shape.plane(), size = pixels * layout.lanes;
  Moments moments;
  each_plane(layout, shape, channel, [&](size_t first, int filled) {
    const float* plane = x + first;
    const Vector totals = lane_sums(size, [&](size_t at, auto access) { return access.load(plane + at); });
    const Vector means = image_sums(layout.lanes, totals) / float(pixels);
    const Vector squares = image_sums(layout.lanes, lane_sums(size, [&](size_t at, auto access) {
                                        const Vector centered = access.load(plane + at) - means;
                                        return centered * centered;
                                      }));
    for (int lane = 0; lane < filled; ++lane) moments.add(double(pixels), means[lane], squares[lane]);
  });
  return moments;
}

// y = slope x + offset in one channel; lanes without an image stay 0.
void apply_line(Layout layout, const Shape& shape, int channel, const float* x, double slope, double offset, float* y) {
  const size_t size = shape.plane() * layout.lanes;
  each_plane(layout, shape, channel, [&](size_t first, int filled) {
    const IntegerVector real = layout.lanes == 1 ? first_lanes(LANES) : first_lanes(filled);
    const Vector slopes = where(real, broadcast(float(slope))), offsets = where(real, broadcast(float(offset)));
    each_vector(size, [&](size_t at, auto access) {
      access.store(y + first + at, access.load(x + first + at) * slopes + offsets);
    });
  });
}

double at_or(const float* values, int place, double otherwise) { return values ? double(values[place]) : otherwise; }

}  // namespace

void batch_norm(Threads& threads, Layout layout, Shape shape, BatchNormConstants constants, const float* x,
                const float* gain, const float* bias, float* running_mean, float* running_variance, float* mean,
                float* inverse, float* y) {
  threads.run(shape.channels, [&](int channel, int) {
    const Moments moments = channel_moments(layout, shape, channel, x);
    const double deviation = 1 / std::sqrt(moments.squares / moments.count + double(constants.epsilon));
    mean[channel] = float(moments.mean);
    inverse[channel] = float(deviation);
    if (running_mean) {
      const double momentum = constants.momentum;
      const double unbiased = moments.squares / std::max(moments.count - 1, 1.0);
      running_mean[channel] = float((1 - momentum) * running_mean[channel] + momentum * moments.mean);
      running_variance[channel] = float((1 - momentum) * running_variance[channel] + momentum * unbiased);
    }
    const double slope = deviation * at_or(gain, channel, 1);
    apply_line(layout, shape, channel, x, slope, at_or(bias, channel, 0) - moments.mean * slope, y);
  });
}

void batch_norm_fixed(Threads& threads, Layout layout, Shape shape, float epsilon, const float* x, const float* gain,
                      const float* bias, const float* running_mean, const float* running_variance, float* y) {
  threads.run(shape.channels, [&](int channel, int) {
    const double slope = at_or(gain, channel, 1) / std::sqrt(double(running_variance[channel]) + double(epsilon));
    const double offset = at_or(bias, channel, 0) - double(running_mean[channel]) * slope;
    apply_line(layout, shape, channel, x, slope, offset, y);
  });
}

void batch_norm_backward(Threads& threads, Layout layout, Shape shape, const float* x, const float* gain,
                         const float* mean, const float* inverse, const float* dy, float* dx, float* d_gain,
                         float* d_bias, bool fixed) {
  const size_t size = shape.plane() * layout.lanes;
  threads.run(shape.channels, [&](int channel, int) {
    const Vector center = broadcast(mean[channel]);
    const bool summed = !fixed || d_gain || d_bias;
    double gradients = 0, products = 0;  // sums of dy, and of dy (x - mean)
    if (summed) {
      each_plane(layout, shape, channel, [&](size_t first, int) {
        const VectorPair totals = lane_sums<VectorPair>(size, [&](size_t at, auto access) {
          const Vector gradient = access.load(dy + first + at);
          return VectorPair{gradient, gradient * (access.load(x + first + at) - center)};
        });
        gradients += double(sum(totals.first));
        products += double(sum(totals.second));
      });
    }
    if (d_gain) d_gain[channel] = float(products * inverse[channel]);
    if (d_bias) d_bias[channel] = float(gradients);
    if (!dx) return;
    const double slope = inverse[channel] * at_or(gain, channel, 1);
    if (fixed) return apply_line(layout, shape, channel, dy, slope, 0, dx);

    // dx = slope (dy - mean(dy) - (x - mean) inverse² mean(dy (x - mean)))
    const double count = double(layout.images) * double(shape.plane());
    const double along = -slope * inverse[channel] * inverse[channel] * products / count;
    each_plane(layout, shape, channel, [&](size_t first, int filled) {
      const IntegerVector real = layout.lanes == 1 ? first_lanes(LANES) : first_lanes(filled);
      const Vector slopes = where(real, broadcast(float(slope)));
      const Vector offsets = where(real, broadcast(float(-slope * gradients / count)));
      const Vector directions = where(real, broadcast(float(along)));
      each_vector(size, [&](size_t at, auto access) {
        const Vector centered = access.load(x + first + at) - center;
        const Vector gradient = access.load(dy + first + at) * slopes + offsets;
        access.store(dx + first + at, gradient + centered * directions);
      });
    });
  });
}

void bias_gradient(Threads& threads, Layout layout, Shape shape, const float* dy, float* d_bias) {
  const size_t size = shape.plane() * layout.lanes;
  threads.run(shape.channels, [&](int channel, int) {
    double total = 0;
    each_plane(layout, shape, channel, [&](size_t first, int) {
      total += double(sum(lane_sums(size, [&](size_t at, auto access) { return access.load(dy + first + at); })));
    });
    d_bias[channel] = float(total);
  });
}

namespace {

constexpr float SMALLEST = 1e-30f;  // where no value of an image is larger, no gradient passes

// The largest magnitude of each image, in its lane or in all lanes.
Vector peaks(int lanes, size_t count, const float* x) {
  Vector peak = {};
  each_vector(count, [&](size_t at, auto access) {
    const Vector value = access.load(x + at), magnitude = value < 0 ? -value : value;
    peak = magnitude > peak ? magnitude : peak;
  });
  if (lanes != 1) return peak;
  float largest = peak[0];
  for (int lane = 1; lane < LANES; ++lane) largest = std::max(largest, peak[lane]);
  return broadcast(largest);
}

}  // namespace

// x' = (x - mean) / sqrt(variance + epsilon peak²), computed on x / peak: squares of small values must not underflow.
void layer_norm(Threads& threads, Layout layout, size_t size, float epsilon, float* x, float* factors) {
  threads.run(layout.blocks(), [&](int block, int) {
    const size_t count = size * layout.lanes;
    float* values = x + block * count;
    const Vector peak = peaks(layout.lanes, count, values);
    const IntegerVector shown = peak > SMALLEST;
    const Vector unit = shown ? peak : broadcast(1);
    const Vector totals = lane_sums(count, [&](size_t at, auto access) { return access.load(values + at) / unit; });
    const Vector mean = image_sums(layout.lanes, totals) / float(size);
    const Vector squares = lane_sums(count, [&](size_t at, auto access) {
      const Vector centered = access.load(values + at) / unit - mean;
      return centered * centered;
    });
    const Vector variance = image_sums(layout.lanes, squares) / float(size) + epsilon;
    Vector inverse;
    for (int lane = 0; lane < LANES; ++lane) inverse[lane] = 1 / std::sqrt(variance[lane]);
    each_vector(count, [&](size_t at, auto access) {
      access.store(values + at, (access.load(values + at) / unit - mean) * inverse);
    });
    const Vector factor = where(shown, inverse / unit);
    for (int lane = 0; lane < layout.lanes; ++lane) factors[block * layout.lanes + lane] = factor[lane];
  });
}

void layer_norm_backward(Threads& threads, Layout layout, size_t size, const float* y, const float* factors,
                         float* gradient) {
  threads.run(layout.blocks(), [&](int block, int) {
    const size_t count = size * layout.lanes;
    const float* output = y + block * count;
    float* values = gradient + block * count;
    const Vector factor = layout.lanes == 1 ? broadcast(factors[block]) : load(factors + block * LANES);
    const VectorPair totals = lane_sums<VectorPair>(count, [&](size_t at, auto access) {
      const Vector value = access.load(values + at);
      return VectorPair{value, value * access.load(output + at)};
    });
    const Vector mean = image_sums(layout.lanes, totals.first) / float(size);
    const Vector along = image_sums(layout.lanes, totals.second) / float(size);
    each_vector(count, [&](size_t at, auto access) {
      const Vector tangent = access.load(values + at) - mean - access.load(output + at) * along;
      access.store(values + at, tangent * factor);
    });
  });
}

}  // namespace fedmef::FEDMEF_ISA
