// Linear layers with all or only the active weights, and the loss.
//
// Features lie as [blocks][features][lanes]. With lanes of images, a weight meets a vector of images; without,
// neighbouring inputs of one image are the vector.
#include <algorithm>
#include <cmath>

#include "kernels/parts.h"
#include "kernels/sums.h"
#include "threads.h"

namespace fedmef::FEDMEF_ISA {

namespace {

// result[row] = sum over k of matrix[row, k] * x[k], where x and results are vectors of images in several blocks.
// Both the layer (rows are outputs) and the gradient for its input (rows are inputs) are such a product.
struct Product {
  const float* matrix;
  size_t row_stride, term_stride;
  int terms;
  const float* x;
  size_t x_block;  // floats from block to block

  template <int ROWS, int BLOCKS, class Finish>
  FEDMEF_INLINE void tile(int row, int block, const Finish& finish) const {
    Vector totals[ROWS][BLOCKS] = {};
    const float* weights = matrix + row * row_stride;
    const float* from = x + block * x_block;
    for (int term = 0; term < terms; ++term, weights += term_stride, from += LANES) {
      Vector factors[BLOCKS];
      FEDMEF_UNROLL for (int b = 0; b < BLOCKS; ++b) factors[b] = load(from + b * x_block);
      FEDMEF_UNROLL for (int r = 0; r < ROWS; ++r) {
        FEDMEF_UNROLL for (int b = 0; b < BLOCKS; ++b) totals[r][b] += factors[b] * weights[r * row_stride];
      }
    }
    FEDMEF_UNROLL for (int r = 0; r < ROWS; ++r) {
      FEDMEF_UNROLL for (int b = 0; b < BLOCKS; ++b) finish(row + r, block + b, totals[r][b]);
    }
  }

  // finish(row, block, vector) for every result.
  template <class Finish>
  void run(Threads& threads, int rows, int blocks, const Finish& finish) const {
    constexpr int ROWS = 4, BLOCKS = 2;
    const int pairs = (blocks + BLOCKS - 1) / BLOCKS;
    threads.run((rows + ROWS - 1) / ROWS * pairs, [&](int item, int) {
      const int row = item / pairs * ROWS, block = item % pairs * BLOCKS;
      const bool two = block + BLOCKS <= blocks;
      if (row + ROWS <= rows) return two ? tile<ROWS, BLOCKS>(row, block, finish) : tile<ROWS, 1>(row, block, finish);
      for (int r = row; r < rows; ++r) two ? tile<1, BLOCKS>(r, block, finish) : tile<1, 1>(r, block, finish);
    });
  }
};

// The sum over a sparse row's weights of weight * x[column].
FEDMEF_INLINE Vector sparse_row(const float* weights, const uint32_t* columns, uint32_t begin, uint32_t end,
                                const float* x) {
  Vector even = {}, odd = {};
  uint32_t k = begin;
  for (; k + 2 <= end; k += 2) {
    even += load(x + size_t(columns[k]) * LANES) * weights[k];
    odd += load(x + size_t(columns[k + 1]) * LANES) * weights[k + 1];
  }
  if (k < end) even += load(x + size_t(columns[k]) * LANES) * weights[k];
  return even + odd;
}

FEDMEF_INLINE float sparse_row_of_one(const float* weights, const uint32_t* columns, uint32_t begin, uint32_t end,
                                      const float* x) {
  float even = 0, odd = 0;
  uint32_t k = begin;
  for (; k + 2 <= end; k += 2) {
    even += x[columns[k]] * weights[k];
    odd += x[columns[k + 1]] * weights[k + 1];
  }
  if (k < end) even += x[columns[k]] * weights[k];
  return even + odd;
}

FEDMEF_INLINE float dot(const float* a, const float* b, size_t count) {
  return sum(lane_sums(count, [&](size_t at, auto access) { return access.load(a + at) * access.load(b + at); }));
}

}  // namespace

void linear(Threads& threads, Layout layout, int inputs, int outputs, const float* weights, const uint32_t* rows,
            const uint32_t* columns, const float* bias, const float* x, float* y) {
  const int blocks = layout.blocks();
  const auto offset = [&](int output) { return bias ? bias[output] : 0.0f; };
  if (layout.lanes == 1) {
    threads.run(outputs, [&](int output, int) {
      for (int image = 0; image < blocks; ++image) {
        const float* from = x + size_t(image) * inputs;
        const float total = columns ? sparse_row_of_one(weights, columns, rows[output], rows[output + 1], from)
                                    : dot(weights + size_t(output) * inputs, from, size_t(inputs));
        y[size_t(image) * outputs + output] = total + offset(output);
      }
    });
    return;
  }
  const auto finish = [&](int output, int block, Vector total) {
    const Vector result = where(first_lanes(layout.filled(block)), total + offset(output));
    store(y + (size_t(block) * outputs + output) * LANES, result);
  };
  if (columns) {
    threads.run(outputs, [&](int output, int) {
      for (int block = 0; block < blocks; ++block) {
        const float* from = x + size_t(block) * inputs * LANES;
        finish(output, block, sparse_row(weights, columns, rows[output], rows[output + 1], from));
      }
    });
  } else {
    Product{weights, size_t(inputs), 1, inputs, x, size_t(inputs) * LANES}.run(threads, outputs, blocks, finish);
  }
}

namespace {

// Every block of images is one owner's: the columns of several rows meet in one place.
void sparse_input_gradient(Threads& threads, Layout layout, int inputs, int outputs, const float* weights,
                           const uint32_t* rows, const uint32_t* columns, const float* dy, float* dx, bool accumulate) {
  threads.run(layout.blocks(), [&](int block, int) {
    const size_t lanes = size_t(layout.lanes);
    float* to = dx + block * inputs * lanes;
    const float* from = dy + block * outputs * lanes;
    if (!accumulate) std::memset(to, 0, inputs * lanes * sizeof(float));
    for (int output = 0; output < outputs; ++output) {
      if (lanes == 1) {
        for (uint32_t k = rows[output]; k < rows[output + 1]; ++k) to[columns[k]] += weights[k] * from[output];
        continue;
      }
      const Vector gradient = load(from + output * LANES);
      for (uint32_t k = rows[output]; k < rows[output + 1]; ++k) {
        float* place = to + size_t(columns[k]) * LANES;
        store(place, load(place) + gradient * weights[k]);
      }
    }
  });
}

}  // namespace

void linear_input_gradient(Threads& threads, Layout layout, int inputs, int outputs, const float* weights,
                           const uint32_t* rows, const uint32_t* columns, const float* dy, float* dx, bool accumulate) {
  if (columns) {
    sparse_input_gradient(threads, layout, inputs, outputs, weights, rows, columns, dy, dx, accumulate);
  } else if (layout.lanes == 1) {
    constexpr size_t PART = 8 * LANES;
    const size_t parts = (size_t(inputs) + PART - 1) / PART;
    threads.run(int(layout.blocks() * parts), [&](int item, int) {
      const size_t image = size_t(item) / parts, begin = size_t(item) % parts * PART;
      each_vector(std::min(PART, size_t(inputs) - begin), [&](size_t at, auto access) {
        float* to = dx + image * inputs + begin + at;
        Vector total = accumulate ? access.load(to) : Vector{};
        for (int output = 0; output < outputs; ++output)
          total += access.load(weights + size_t(output) * inputs + begin + at) * dy[image * outputs + output];
        access.store(to, total);
      });
    });
  } else {
    const Product product = {weights, 1, size_t(inputs), outputs, dy, size_t(outputs) * LANES};
    product.run(threads, inputs, layout.blocks(), [&](int input, int block, Vector total) {
      float* to = dx + (size_t(block) * inputs + input) * LANES;
      store(to, accumulate ? load(to) + total : total);
    });
  }
}

namespace {

struct WeightGradient {
  Layout layout;
  int inputs, outputs;
  const float *x, *dy;

  const float* input(int block, size_t place) const { return x + (size_t(block) * inputs + place) * layout.lanes; }
  const float* gradient(int block, int output) const { return dy + (size_t(block) * outputs + output) * layout.lanes; }

  // At up to four inputs, with vectors of images.
  FEDMEF_INLINE void four(int output, const size_t* places, int count, float* to) const {
    Vector totals[4] = {};
    for (int block = 0; block < layout.blocks(); ++block) {
      const Vector factor = load(gradient(block, output));
      FEDMEF_UNROLL for (int i = 0; i < 4; ++i) totals[i] += load(input(block, places[i])) * factor;
    }
    const Vector4 results =
        sums(quarter_sums(totals[0]), quarter_sums(totals[1]), quarter_sums(totals[2]), quarter_sums(totals[3]));
    for (int i = 0; i < count; ++i) to[i] = results[i];
  }

  // place(k) is the input of weight k of this row.
  template <class Place>
  FEDMEF_INLINE void row(int output, size_t begin, size_t end, const Place& place, float* to) const {
    for (size_t k = begin; k < end; k += 4) {
      const int count = int(std::min(size_t(4), end - k));
      size_t places[4];
      for (int i = 0; i < 4; ++i) places[i] = place(k + std::min(i, count - 1));
      four(output, places, count, to + k);
    }
  }

  void dense_row_of_ones(int output, float* to) const {
    each_vector(size_t(inputs), [&](size_t at, auto access) {
      Vector total = {};
      for (int image = 0; image < layout.images; ++image)
        total += access.load(input(image, at)) * *gradient(image, output);
      access.store(to + at, total);
    });
  }

  float of_ones(int output, size_t place) const {
    float total = 0;
    for (int image = 0; image < layout.images; ++image) total += *input(image, place) * *gradient(image, output);
    return total;
  }

  float bias(int output) const {
    double total = 0;
    for (int block = 0; block < layout.blocks(); ++block)
      for (int lane = 0; lane < layout.filled(block); ++lane) total += double(gradient(block, output)[lane]);
    return float(total);
  }
};

}  // namespace

void linear_weight_gradient(Threads& threads, Layout layout, int inputs, int outputs, const uint32_t* rows,
                            const uint32_t* columns, const float* x, const float* dy, float* d_weights, float* d_bias) {
  const WeightGradient gradient = {layout, inputs, outputs, x, dy};
  threads.run(outputs, [&](int output, int) {
    float* dense = d_weights + size_t(output) * inputs;
    if (columns && layout.lanes == 1) {
      for (uint32_t k = rows[output]; k < rows[output + 1]; ++k) d_weights[k] = gradient.of_ones(output, columns[k]);
    } else if (columns) {
      gradient.row(output, rows[output], rows[output + 1], [&](size_t k) { return columns[k]; }, d_weights);
    } else if (layout.lanes == 1) {
      gradient.dense_row_of_ones(output, dense);
    } else {
      gradient.row(output, 0, size_t(inputs), [](size_t k) { return k; }, dense);
    }
    if (d_bias) d_bias[output] = gradient.bias(output);
  });
}

double cross_entropy(Layout layout, int classes, const int64_t* labels, float* logits) {
  if (!labels) return 0;
  double loss = 0;
  for (int image = 0; image < layout.blocks() * layout.lanes; ++image) {
    const int block = image / layout.lanes, lane = image % layout.lanes;
    const auto at = [&](int64_t label) -> float& {
      return logits[(size_t(block) * classes + label) * layout.lanes + lane];
    };
    if (image >= layout.images) {
      for (int label = 0; label < classes; ++label) at(label) = 0;
      continue;
    }
    double peak = at(0), total = 0;
    for (int label = 1; label < classes; ++label) peak = std::max(peak, double(at(label)));
    for (int label = 0; label < classes; ++label) total += std::exp(at(label) - peak);
    loss += std::log(total) + peak - at(labels[image]);
    for (int label = 0; label < classes; ++label) {
      const double probability = std::exp(at(label) - peak) / total;
      at(label) = float((probability - (label == labels[image])) / layout.images);
    }
  }
  return loss / layout.images;
}

}  // namespace fedmef::FEDMEF_ISA
