// Maximum and average pooling, with PyTorch's rules for windows that reach beyond the image.
#include <algorithm>
#include <cmath>
#include <type_traits>

#include "kernels/masks.h"
#include "kernels/parts.h"
#include "threads.h"

namespace fedmef::FEDMEF_ISA {

namespace {

// The part of a window that lies inside the image, in one direction.
struct Range {
  int begin = 0, end = 0, step = 1;
  int first = 0;   // the number of the window's element at `begin`
  int padded = 0;  // elements, padding included
  int count() const { return end > begin ? (end - begin + step - 1) / step : 0; }
};

int extent(const Shape& shape, int direction) { return direction == 0 ? shape.height : shape.width; }

Range range(const Pooling& pooling, int direction, int output) {
  const int size = extent(pooling.input, direction);
  if (pooling.kind == PoolKind::adaptive) {
    const int64_t outputs = extent(pooling.output, direction);
    const int begin = int(int64_t(output) * size / outputs);
    const int end = int(((output + int64_t(1)) * size + outputs - 1) / outputs);
    return {begin, end, 1, 0, end - begin};
  }
  const Window& window = pooling.window;
  const int kernel = window.kernel[direction], padding = window.padding[direction];
  const int step = pooling.kind == PoolKind::maximum ? window.dilation[direction] : 1;
  const int begin = output * window.stride[direction] - padding;
  const int end = begin + (kernel - 1) * step + 1;
  const int skipped = begin < 0 ? (-begin + step - 1) / step : 0;
  return {begin + skipped * step, std::min(end, size), step, skipped, std::min(end, size + padding) - begin};
}

float divisor(const Pooling& pooling, const Range& rows, const Range& columns) {
  if (pooling.kind == PoolKind::average && pooling.divisor != 0) return float(pooling.divisor);
  const bool padded = pooling.kind == PoolKind::average && pooling.count_padding;
  return padded ? float(rows.padded) * float(columns.padded) : float(rows.count()) * float(columns.count());
}

// A pixel is a vector of images, or one float.
template <class Pixel>
constexpr int WIDTH = int(sizeof(Pixel) / sizeof(float));

template <class Pixel>
FEDMEF_INLINE Pixel read(const float* from) {
  Pixel pixel;
  std::memcpy(&pixel, from, sizeof pixel);
  return pixel;
}

template <class Pixel>
FEDMEF_INLINE void write(float* to, Pixel pixel) {
  std::memcpy(to, &pixel, sizeof pixel);
}

template <class Pixel>
using Places = std::conditional_t<std::is_same_v<Pixel, float>, int32_t, IntegerVector>;

FEDMEF_INLINE void write_places(uint8_t* to, int32_t place) { *to = uint8_t(place); }
FEDMEF_INLINE void write_places(uint8_t* to, IntegerVector places) {
  for (int lane = 0; lane < LANES; ++lane) to[lane] = uint8_t(places[lane]);
}
FEDMEF_INLINE void read_places(const uint8_t* from, int32_t& place) { place = *from; }
FEDMEF_INLINE void read_places(const uint8_t* from, IntegerVector& places) {
  for (int lane = 0; lane < LANES; ++lane) places[lane] = from[lane];
}

// visit(output pixel, rows, columns) for every output of a plane.
template <class Visit>
FEDMEF_INLINE void each_window(const Pooling& pooling, const Visit& visit) {
  for (int row = 0; row < pooling.output.height; ++row) {
    const Range rows = range(pooling, 0, row);
    for (int column = 0; column < pooling.output.width; ++column)
      visit(size_t(row) * pooling.output.width + column, rows, range(pooling, 1, column));
  }
}

// visit(input pixel, number in the window) for every element of a window that is inside the image.
template <class Visit>
FEDMEF_INLINE void each_element(const Pooling& pooling, const Range& rows, const Range& columns, const Visit& visit) {
  int row_number = rows.first;
  for (int row = rows.begin; row < rows.end; row += rows.step, ++row_number) {
    int number = row_number * pooling.window.kernel[1] + columns.first;
    for (int column = columns.begin; column < columns.end; column += columns.step, ++number)
      visit(size_t(row) * pooling.input.width + column, number);
  }
}

// The first maximum wins, and NaN is larger than all, as in PyTorch.
template <class Pixel>
void maximum(const Pooling& pooling, int filled, const float* x, float* y, uint8_t* places) {
  constexpr int width = WIDTH<Pixel>;
  each_window(pooling, [&](size_t output, const Range& rows, const Range& columns) {
    Pixel best = Pixel{} - INFINITY;
    Places<Pixel> place = Places<Pixel>{} + (rows.first * pooling.window.kernel[1] + columns.first);
    each_element(pooling, rows, columns, [&](size_t pixel, int number) {
      const Pixel value = read<Pixel>(x + pixel * width);
      const Places<Pixel> better = (value > best) | (value != value);
      best = better ? value : best;
      place = better ? Places<Pixel>{} + number : place;
    });
    write(y + output * width, best);
    if (places) write_places(places + output * width, place);
    // A dilated window may miss the image: its maximum is -inf, but only of real images.
    if (rows.count() == 0 || columns.count() == 0)
      for (int lane = filled; lane < width; ++lane) y[output * width + lane] = 0;
  });
}

template <class Pixel>
void maximum_backward(const Pooling& pooling, const float* dy, const uint8_t* places, float* dx) {
  constexpr int width = WIDTH<Pixel>;
  each_window(pooling, [&](size_t output, const Range& rows, const Range& columns) {
    const Pixel gradient = read<Pixel>(dy + output * width);
    Places<Pixel> place;
    read_places(places + output * width, place);
    each_element(pooling, rows, columns, [&](size_t pixel, int number) {
      float* to = dx + pixel * width;
      write<Pixel>(to, read<Pixel>(to) + (place == number ? gradient : Pixel{}));
    });
  });
}

template <class Pixel>
void average(const Pooling& pooling, const float* x, float* y) {
  constexpr int width = WIDTH<Pixel>;
  each_window(pooling, [&](size_t output, const Range& rows, const Range& columns) {
    Pixel total = {};
    for (int row = rows.begin; row < rows.end; ++row) {
      Pixel row_total = {};
      const float* from = x + size_t(row) * pooling.input.width * width;
      for (int column = columns.begin; column < columns.end; ++column) row_total += read<Pixel>(from + column * width);
      total += row_total;
    }
    const bool inside = rows.count() > 0 && columns.count() > 0;
    write<Pixel>(y + output * width, inside ? total / divisor(pooling, rows, columns) : Pixel{});
  });
}

template <class Pixel>
void average_backward(const Pooling& pooling, const float* dy, float* dx) {
  constexpr int width = WIDTH<Pixel>;
  each_window(pooling, [&](size_t output, const Range& rows, const Range& columns) {
    if (rows.count() == 0 || columns.count() == 0) return;
    const Pixel gradient = read<Pixel>(dy + output * width) / divisor(pooling, rows, columns);
    each_element(pooling, rows, columns, [&](size_t pixel, int) {
      float* to = dx + pixel * width;
      write<Pixel>(to, read<Pixel>(to) + gradient);
    });
  });
}

}  // namespace

void pool(Threads& threads, const Pooling& pooling, Layout layout, const float* x, float* y, uint8_t* places) {
  const size_t input = pooling.input.plane() * layout.lanes, output = pooling.output.plane() * layout.lanes;
  threads.run(layout.blocks() * pooling.input.channels, [&](int plane, int) {
    const float* from = x + plane * input;
    float* to = y + plane * output;
    if (pooling.kind != PoolKind::maximum) {
      layout.lanes == 1 ? average<float>(pooling, from, to) : average<Vector>(pooling, from, to);
      return;
    }
    uint8_t* here = places ? places + plane * output : nullptr;
    const int filled = layout.filled(plane / pooling.input.channels);
    layout.lanes == 1 ? maximum<float>(pooling, filled, from, to, here)
                      : maximum<Vector>(pooling, filled, from, to, here);
  });
}

void pool_backward(Threads& threads, const Pooling& pooling, Layout layout, const float* dy, const uint8_t* places,
                   float* dx, bool accumulate) {
  const size_t input = pooling.input.plane() * layout.lanes, output = pooling.output.plane() * layout.lanes;
  threads.run(layout.blocks() * pooling.input.channels, [&](int plane, int) {
    const float* from = dy + plane * output;
    float* to = dx + plane * input;
    if (!accumulate) std::memset(to, 0, input * sizeof(float));
    if (pooling.kind != PoolKind::maximum) {
      layout.lanes == 1 ? average_backward<float>(pooling, from, to) : average_backward<Vector>(pooling, from, to);
    } else {
      const uint8_t* here = places + plane * output;
      layout.lanes == 1 ? maximum_backward<float>(pooling, from, here, to)
                        : maximum_backward<Vector>(pooling, from, here, to);
    }
  });
}

}  // namespace fedmef::FEDMEF_ISA
