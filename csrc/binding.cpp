// The Python module fedmef.native._kernels. Arrays are NumPy's, of exactly the type that is named here; nothing is
// called back, and Python's lock is free while a program runs.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <optional>
#include <tuple>

#include "program.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace fedmef {

namespace {

template <class Element, int DIMENSIONS = 1>
using In = nb::ndarray<const Element, nb::numpy, nb::ndim<DIMENSIONS>, nb::c_contig, nb::device::cpu>;
template <class Element>
using Out = nb::ndarray<nb::numpy, Element, nb::ndim<1>>;
using Sides = std::array<int, 3>;
using Windows = std::array<int, 8>;  // kernel, stride, padding and dilation, down and across

template <class Element>
Out<Element> to_numpy(std::vector<Element> elements) {
  auto* owned = new std::vector<Element>(std::move(elements));
  nb::capsule owner(owned, [](void* memory) noexcept { delete static_cast<std::vector<Element>*>(memory); });
  return Out<Element>(owned->data(), {owned->size()}, owner);
}

Shape shape_of(const Sides& sides) { return {sides[0], sides[1], sides[2]}; }

Window window_of(const Windows& numbers) {
  Window window;
  for (size_t axis = 0; axis < 2; ++axis) {
    window.kernel[axis] = numbers[axis];
    window.stride[axis] = numbers[2 + axis];
    window.padding[axis] = numbers[4 + axis];
    window.dilation[axis] = numbers[6 + axis];
  }
  return window;
}

Pooling pooling_of(const std::string& kind, const Sides& input, const Sides& output, const Windows& window,
                   bool count_padding, int divisor) {
  require(kind == "maximum" || kind == "average" || kind == "adaptive", "there is no such pooling");
  const PoolKind type = kind == "maximum"   ? PoolKind::maximum
                        : kind == "average" ? PoolKind::average
                                            : PoolKind::adaptive;
  return {type, shape_of(input), shape_of(output), window_of(window), count_padding, divisor};
}

template <class Element>
std::vector<Element> copy_of(const In<Element>& array) {
  return {array.data(), array.data() + array.size()};
}

void load_optional(Parameter& parameter, const std::optional<In<float>>& array, size_t count) {
  require(array.has_value() == (count > 0), "a layer's gain and bias are there or not");
  if (array) {
    require(array->size() == count, "a layer has one gain and one bias for each channel");
    parameter.load(array->data(), count);
  }
}

void load_layer(Runtime& runtime, const std::string& name, const In<float>& values,
                const std::optional<In<uint8_t>>& mask, const std::optional<In<float>>& gain,
                const std::optional<In<float>>& bias) {
  Layer& layer = runtime.layer(name);
  const size_t filters = size_t(layer.settings().output.channels);
  load_optional(layer.gain, gain, layer.settings().gain ? filters : 0);
  load_optional(layer.bias, bias, layer.settings().bias ? filters : 0);
  layer.load_values(runtime.kernels, values.data(), values.size(), mask ? mask->data() : nullptr,
                    mask ? mask->size() : 0);
}

void load_batch_norm(Runtime& runtime, const std::string& name, const In<float>& mean, const In<float>& variance,
                     int64_t batches, const std::optional<In<float>>& gain, const std::optional<In<float>>& bias) {
  BatchNormLayer& layer = runtime.batch_norm(name);
  const size_t channels = size_t(layer.channels);
  require(mean.size() == channels && variance.size() == channels, "a batch normalisation has other channels");
  load_optional(layer.gain, gain, layer.affine ? channels : 0);
  load_optional(layer.bias, bias, layer.affine ? channels : 0);
  layer.running_mean = copy_of(mean);
  layer.running_variance = copy_of(variance);
  layer.batches = batches;
}

// The values of a layer's arrays, or their last gradients if those were recorded; what is not there is left out.
std::map<std::string, Out<float>> layer_arrays(Runtime& runtime, const std::string& name, bool gradients) {
  const Layer& layer = runtime.layer(name);
  const auto chosen = [&](const Parameter& parameter) -> const std::vector<float>& {
    return gradients ? parameter.recorded : parameter.values;
  };
  std::map<std::string, Out<float>> arrays;
  if (!gradients || layer.values.trained) arrays.emplace("values", to_numpy(layer.canonical(chosen(layer.values))));
  if (layer.settings().gain) arrays.emplace("gain", to_numpy(chosen(layer.gain)));
  if (layer.settings().bias) arrays.emplace("bias", to_numpy(chosen(layer.bias)));
  return arrays;
}

std::map<std::string, Out<float>> batch_norm_arrays(Runtime& runtime, const std::string& name, bool gradients) {
  const BatchNormLayer& layer = runtime.batch_norm(name);
  std::map<std::string, Out<float>> arrays;
  if (layer.affine) {
    arrays.emplace("weight", to_numpy(gradients ? layer.gain.recorded : layer.gain.values));
    arrays.emplace("bias", to_numpy(gradients ? layer.bias.recorded : layer.bias.values));
  }
  if (gradients) return arrays;
  arrays.emplace("running_mean", to_numpy(layer.running_mean));
  arrays.emplace("running_var", to_numpy(layer.running_variance));
  return arrays;
}

void bind_runtime(nb::module_& module) {
  nb::class_<Runtime>(module, "Runtime")
      .def(
          "__init__",
          [](Runtime* runtime, const std::string& instructions, int threads, const Sides& shape, const In<float>& scale,
             const In<float>& shift) {
            new (runtime) Runtime(instructions, threads, {shape_of(shape), copy_of(scale), copy_of(shift)});
          },
          "instructions"_a, "threads"_a, "shape"_a, "scale"_a.noconvert(), "shift"_a.noconvert())
      .def_prop_ro("instructions", [](const Runtime& runtime) { return std::string(runtime.kernels.name); })
      .def_prop_ro("lanes", [](const Runtime& runtime) { return runtime.kernels.lanes; })
      .def_prop_ro("threads", [](const Runtime& runtime) { return runtime.threads.count(); })
      .def(
          "add_layer",
          [](Runtime& runtime, const std::string& name, const Sides& input, const Sides& output, const Windows& window,
             int groups, bool sparse, bool linear, bool bias, bool gain,
             const std::optional<std::tuple<double, double, bool, int>>& normalization, bool train_values,
             bool train_gain, bool train_bias) {
            LayerSettings settings{
                shape_of(input), shape_of(output), window_of(window), groups,    sparse, linear, bias, gain,
                std::nullopt,    train_values,     train_gain,        train_bias};
            if (normalization) {
              const auto& [gamma, epsilon, paper, channels] = *normalization;
              settings.normalization = Normalization{gamma, epsilon, paper, channels};
            }
            runtime.add_layer(name, settings);
          },
          "name"_a, "input"_a, "output"_a, "window"_a, "groups"_a, "sparse"_a, "linear"_a, "bias"_a, "gain"_a,
          "normalization"_a.none(), "train_values"_a, "train_gain"_a, "train_bias"_a)
      .def(
          "add_batch_norm",
          [](Runtime& runtime, const std::string& name, int channels, float epsilon, float momentum, bool affine,
             bool train_gain, bool train_bias) {
            runtime.add_batch_norm(name, channels, {epsilon, momentum}, affine, train_gain, train_bias);
          },
          "name"_a, "channels"_a, "epsilon"_a, "momentum"_a, "affine"_a, "train_gain"_a, "train_bias"_a)
      .def("load_layer", load_layer, "name"_a, "values"_a.noconvert(), "mask"_a.noconvert().none(),
           "gain"_a.noconvert().none(), "bias"_a.noconvert().none())
      .def("load_batch_norm", load_batch_norm, "name"_a, "mean"_a.noconvert(), "variance"_a.noconvert(), "batches"_a,
           "gain"_a.noconvert().none(), "bias"_a.noconvert().none())
      .def("layer_arrays", layer_arrays, "name"_a, "gradients"_a = false)
      .def("batch_norm_arrays", batch_norm_arrays, "name"_a, "gradients"_a = false)
      .def("mask", [](Runtime& runtime,
                      const std::string& name) { return to_numpy(runtime.layer(name).mask(runtime.kernels)); })
      .def("batches", [](Runtime& runtime, const std::string& name) { return runtime.batch_norm(name).batches; })
      .def(
          "mark",
          [](Runtime& runtime, const std::string& name, const In<int64_t>& places) {
            runtime.layer(name).mark(places.data(), places.size());
          },
          "name"_a, "places"_a.noconvert())
      .def("marked_squares",
           [](Runtime& runtime, const std::string& name) { return runtime.layer(name).marked_squares(); })
      .def("grow", [](Runtime& runtime, const std::string& name, size_t count) { runtime.layer(name).growing = count; })
      .def("scores",
           [](Runtime& runtime, const std::string& name) {
             GrowthScores scores = std::move(runtime.layer(name).scores);
             runtime.layer(name).scores = {};
             return std::pair(to_numpy(std::move(scores.positions)), to_numpy(std::move(scores.gradients)));
           })
      .def("shrink", &Runtime::shrink)
      .def("memory", [](const Runtime& runtime) {
        const Memory memory = runtime.memory();
        return std::map<std::string, size_t>{{"arena", memory.arena},
                                             {"weights", memory.weights},
                                             {"indices", memory.indices},
                                             {"scratch", memory.scratch}};
      });
}

double run(Program& program, const In<uint8_t, 4>& images, const std::optional<In<int64_t>>& labels, float rate,
           float pull, float momentum, float weight_decay, bool record) {
  const Descent descent{rate, momentum, weight_decay, pull, record};
  const uint8_t* pixels = images.data();
  const size_t count = images.size(), label_count = labels ? labels->size() : 0;
  const int64_t* classes = labels ? labels->data() : nullptr;
  const Runtime::InUse in_use(program.runtime());
  const nb::gil_scoped_release release;
  return program.run(pixels, count, classes, label_count, descent);
}

void bind_program(nb::module_& module) {
  nb::class_<Program>(module, "Program")
      .def(nb::init<Runtime&, int, int, size_t>(), "runtime"_a, "images"_a, "lanes"_a, "arena"_a,
           nb::keep_alive<1, 2>())
      .def("buffer", &Program::buffer, "offset"_a, "bytes"_a)
      .def("read_images", &Program::read_images, "to"_a)
      .def("convolve", &Program::convolve, "layer"_a, "x"_a, "y"_a, "accumulate"_a)
      .def("convolve_relu", &Program::convolve_relu, "layer"_a, "x"_a, "y"_a, "bits"_a = NONE, nb::kw_only(),
           "accumulate"_a, "upper"_a, "at_zero"_a)
      .def("transpose", &Program::transpose, "layer"_a)
      .def("input_gradient", &Program::input_gradient, "layer"_a, "dy"_a, "dx"_a, "accumulate"_a)
      .def("input_gradient_relu", &Program::input_gradient_relu, "layer"_a, "dy"_a, "dx"_a, "bits"_a, "accumulate"_a)
      .def("weight_gradient", &Program::weight_gradient, "layer"_a, "dy"_a, "dense"_a = NONE, "cache"_a = NONE)
      .def("score", &Program::score, "layer"_a, "dy"_a, "dense"_a = NONE, "cache"_a = NONE)
      .def("update", &Program::update, "layer"_a)
      .def(
          "prune",
          [](Program& program, int x, int cache, const Sides& shape, size_t keep, const std::string& dtype) {
            program.prune(x, cache, shape_of(shape), keep, dtype);
          },
          "x"_a, "cache"_a, "shape"_a, "keep"_a, "dtype"_a)
      .def("relu", &Program::relu, "x"_a, "bits"_a = NONE, nb::kw_only(), "count"_a, "upper"_a, "at_zero"_a)
      .def("relu_backward", &Program::relu_backward, "gradient"_a, "bits"_a, "count"_a)
      .def("add", &Program::add, "to"_a, "source"_a)
      .def("scale", &Program::scale, "x"_a, "factor"_a)
      .def("copy", &Program::copy, "to"_a, "to_offset"_a, "to_stride"_a, "source"_a, "source_offset"_a,
           "source_stride"_a, "size"_a, "accumulate"_a)
      .def(
          "pool",
          [](Program& program, int x, int y, int places, const std::string& kind, const Sides& input,
             const Sides& output, const Windows& window, bool count_padding, int divisor) {
            program.pool(x, y, places, pooling_of(kind, input, output, window, count_padding, divisor));
          },
          "x"_a, "y"_a, "places"_a = NONE, nb::kw_only(), "pooling"_a, "input"_a, "output"_a, "window"_a,
          "count_padding"_a, "divisor"_a)
      .def(
          "pool_backward",
          [](Program& program, int dy, int dx, int places, const std::string& kind, const Sides& input,
             const Sides& output, const Windows& window, bool count_padding, int divisor, bool accumulate) {
            const Pooling pooling = pooling_of(kind, input, output, window, count_padding, divisor);
            program.pool_backward(dy, dx, places, pooling, accumulate);
          },
          "dy"_a, "dx"_a, "places"_a = NONE, nb::kw_only(), "pooling"_a, "input"_a, "output"_a, "window"_a,
          "count_padding"_a, "divisor"_a, "accumulate"_a)
      .def(
          "batch_norm",
          [](Program& program, const std::string& layer, int x, int y, int statistics, const Sides& shape, bool track) {
            program.batch_norm(layer, x, y, statistics, shape_of(shape), track);
          },
          "layer"_a, "x"_a, "y"_a, "statistics"_a, "shape"_a, "track"_a)
      .def(
          "batch_norm_fixed",
          [](Program& program, const std::string& layer, int x, int y, int statistics, const Sides& shape) {
            program.batch_norm_fixed(layer, x, y, statistics, shape_of(shape));
          },
          "layer"_a, "x"_a, "y"_a, "statistics"_a = NONE, nb::kw_only(), "shape"_a)
      .def(
          "batch_norm_backward",
          [](Program& program, const std::string& layer, int x, int dy, int dx, int statistics, const Sides& shape,
             bool fixed, bool update) {
            program.batch_norm_backward(layer, x, dy, dx, statistics, shape_of(shape), fixed, update);
          },
          "layer"_a, "x"_a, "dy"_a, "dx"_a, "statistics"_a, "shape"_a, "fixed"_a, "update"_a)
      .def("layer_norm", &Program::layer_norm, "x"_a, "factors"_a, "size"_a, "epsilon"_a)
      .def("layer_norm_backward", &Program::layer_norm_backward, "y"_a, "factors"_a, "gradient"_a, "size"_a)
      .def("cross_entropy", &Program::cross_entropy, "logits"_a, "classes"_a)
      .def("logits", &Program::logits, "logits"_a, "classes"_a)
      .def("run", run, "images"_a.noconvert(), "labels"_a.noconvert().none(), "rate"_a = 0.0f, "pull"_a = 0.0f,
           "momentum"_a = 0.0f, "weight_decay"_a = 0.0f, "record"_a = false)
      .def_rw("timed", &Program::timed)
      .def("seconds",
           [](const Program& program) {
             program.runtime().check_idle();
             return to_numpy(program.seconds());
           })
      .def("last_logits",
           [](const Program& program) {
             program.runtime().check_idle();
             return to_numpy(program.last_logits());
           })
      .def("content", [](const Program& program, int buffer) { return to_numpy(program.content(buffer)); });
}

}  // namespace

}  // namespace fedmef

NB_MODULE(_kernels, module) {
  module.doc() = "fedmef's native kernels.";
  nanobind::set_leak_warnings(false);  // what Python still holds when it ends says nothing to a user
  module.def("available", [] {
    std::vector<std::string> names;
    for (const char* name : fedmef::available_kernels()) names.emplace_back(name);
    return names;
  });
  fedmef::bind_runtime(module);
  fedmef::bind_program(module);
}
