// A small pool of threads for loops over independent items. The caller works too; with one thread nothing is started.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace fedmef {

// Where the part number `part` of `parts` begins, of `count` items.
inline int begin_of(int part, int parts, int count) { return int(int64_t(count) * part / parts); }

class Threads {
 public:
  explicit Threads(int count = 1);
  ~Threads();
  Threads(const Threads&) = delete;
  Threads& operator=(const Threads&) = delete;

  int count() const { return int(workers_.size()) + 1; }

  // work(item, thread) for every item in [0, items), in any order; `thread` is below count().
  template <class Work>
  void run(int items, const Work& work) {
    if (workers_.empty() || items <= 1) {
      for (int item = 0; item < items; ++item) work(item, 0);
    } else {
      run_shared(items, work);
    }
  }

  // Scratch memory of every thread, at least this many bytes. Before run(): it may throw.
  void reserve(size_t bytes);
  // Aligned to a page; contents are undefined. Kept for the next caller.
  void* scratch(int thread) { return scratch_[size_t(thread)].memory; }
  size_t scratch_bytes() const;
  void free_scratch();

 private:
  void run_shared(int items, const std::function<void(int, int)>& work);
  void serve(int thread);
  void stop();
  void take_items(int thread);

  struct Scratch {
    void* memory = nullptr;
    size_t bytes = 0;
  };
  std::vector<std::thread> workers_;
  std::vector<Scratch> scratch_;
  std::mutex mutex_;
  std::condition_variable begins_;
  std::atomic<int> generation_{0}, next_{0}, busy_{0};
  std::atomic<bool> stopping_{false};
  int items_ = 0;
  std::exception_ptr failure_;  // the first one of a run
  const std::function<void(int, int)>* work_ = nullptr;
};

}  // namespace fedmef
